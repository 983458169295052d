//! Processes that a benchmark starts. They end with it, and it reads their CPU time.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

/// Time that a process has to open its socket, and to end by itself before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process that runs until this value is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts a process. Its standard output is discarded.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Result<Process, Error> {
        let program = command.get_program().to_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Process(child.map_err(|error| format!("{}: {error}", program.display()))?))
    }

    /// Its PID.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// CPU time of all its threads so far, in seconds. The resolution is a clock tick, usually 10
    /// ms.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu_s(&self) -> Result<f64, Error> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The name in parentheses may contain any characters. After it, the fields from the third
        // on are separated by spaces.
        let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/PID/stat has another form")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// The largest resident memory so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn resident_bytes_max(&self) -> Result<u64, Error> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let field = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(field.ok_or("/proc/PID/status has another form")?.parse::<u64>()? << 10)
    }

    /// Kills it.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Waits for a path to appear, such as a socket.
    ///
    /// # Errors
    /// If the process ends before, or the path does not appear in time.
    pub fn wait_for(&mut self, path: &Path) -> Result<(), Error> {
        let start = Instant::now();
        while !path.exists() {
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("the server of {} ended: {status}", path.display()).into());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{} does not appear", path.display()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let start = Instant::now();
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            // An error means that it has already ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        while matches!(self.0.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Requests real-time scheduling for this program and its children, so that other processes on a
/// busy machine do not interrupt either contender. (Niceness is not enough: it only counts within a
/// session.) Returns whether it was granted.
pub fn go_first() -> bool {
    let own = std::process::id().to_string();
    output(Command::new("chrt").args(["--fifo", "--pid", "1", &own])).is_ok()
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// The standard error of the command, if it failed.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let program = command.get_program().to_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} {:?}: {}", program.display(), command.get_args(), said.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A command that is terminated when this program ends, in any way. It is pinned to a core if one
/// is given.
pub fn pinned(core: Option<usize>, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    if let Some(core) = core {
        command.args(["taskset", "-c", &core.to_string()]);
    }
    command.arg(program);
    command
}

/// An address of this machine whose port is currently free.
///
/// # Errors
/// If there is none.
pub fn free_address() -> Result<SocketAddr, Error> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// One of Purlin's programs: from an environment variable, next to this program, or from the search
/// path.
pub fn ours(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    beside.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}
