//! `purlind`, started for a benchmark and controlled by `purlin`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::process::{Process, ours, output, pinned};

/// A daemon of the benchmark, with its state in a directory of the benchmark. It is stopped when
/// this value is dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    purlin: PathBuf,
    socket: PathBuf,
}

/// Operations that the drives of a daemon have received so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveCounts {
    /// Reads of all drives.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes of all drives.
    pub writes: u64,
}

impl Daemon {
    /// Starts `purlind` (from `PURLIND`, next to this program, or from the system) with its files
    /// in `dir`, on these cores or on all.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(dir: &Path, cores: Option<&str>) -> Result<Daemon, Error> {
        let socket = dir.join("purlind.sock");
        let mut command = pinned(None, ours("PURLIND", "purlind"));
        command.arg("--state").arg(dir.join("state")).arg("--socket").arg(&socket);
        if let Some(cores) = cores {
            command.args(["--cores", cores]);
        }
        command.env("PURLIN_LOG", "warn").stderr(Stdio::inherit());
        let mut process = Process::start(&mut command)?;
        process.wait_for(&socket)?;
        Ok(Daemon { process, purlin: ours("PURLIN", "purlin"), socket })
    }

    /// The daemon's process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kills the daemon, so that it leaves everything as it is at this moment.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn kill(mut self) -> Result<(), Error> {
        self.process.kill()
    }

    /// Runs `purlin` with these arguments.
    ///
    /// # Errors
    /// The error message of `purlin`, if it fails.
    pub fn purlin(&self, arguments: &[&str]) -> Result<String, Error> {
        output(Command::new(&self.purlin).arg("--socket").arg(&self.socket).args(arguments))
    }

    /// Makes a group with one volume and exports the volume at a Unix socket. Returns the URI of
    /// the export.
    ///
    /// # Errors
    /// The error message of the command.
    pub fn serve(&self, group: &str, level: &str, drives: &[String], volume_bytes: u64) -> Result<String, Error> {
        self.serve_with(group, level, &[], drives, volume_bytes)
    }

    /// As [`Daemon::serve`], with further options for the group.
    ///
    /// # Errors
    /// As for [`Daemon::serve`].
    pub fn serve_with(
        &self,
        group: &str,
        level: &str,
        options: &[&str],
        drives: &[String],
        volume_bytes: u64,
    ) -> Result<String, Error> {
        let create = ["group", "create", group, "--level", level, "--drives", &drives.join(","), "--yes"];
        self.purlin(&[&create[..], options].concat())?;
        self.export(group, volume_bytes)
    }

    /// Makes a volume in a group and exports it at a Unix socket. Returns the URI of the export.
    ///
    /// # Errors
    /// As for [`Daemon::serve`].
    pub fn export(&self, group: &str, volume_bytes: u64) -> Result<String, Error> {
        self.export_with(group, &[], volume_bytes)
    }

    /// As [`Daemon::export`], with further options for the volume.
    ///
    /// # Errors
    /// As for [`Daemon::serve`].
    pub fn export_with(&self, group: &str, options: &[&str], volume_bytes: u64) -> Result<String, Error> {
        let volume = format!("{group}/v");
        let create = ["volume", "create", &volume, "--size", &volume_bytes.to_string()];
        self.purlin(&[&create[..], options].concat())?;
        let socket = self.socket.with_file_name(format!("{group}.nbd"));
        let at = format!("unix:{}", socket.display());
        self.purlin(&["export", "create", &volume, "--nbd", &at])?;
        Ok(format!("nbd+unix:///{volume}?socket={}", socket.display()))
    }

    /// Makes a plain volume in memory (RAID 0 of two drives), and exports it over NBD at a Unix
    /// socket and to any host over NVMe/TCP at this address. Returns the URI of the NBD export and
    /// the NQN of the subsystem.
    ///
    /// # Errors
    /// The error message of the command.
    pub fn serve_nvme(&self, group: &str, volume_mib: u64, address: SocketAddr) -> Result<(String, String), Error> {
        // Room for the metadata in addition to half of the volume.
        let half = volume_mib.div_ceil(2) + 32;
        let drives = [format!("mem:a:{half}MiB"), format!("mem:b:{half}MiB")];
        let uri = self.serve(group, "raid0", &drives, volume_mib << 20)?;
        let (volume, address) = (format!("{group}/v"), address.to_string());
        self.purlin(&["export", "create", &volume, "--nvme-tcp", &address, "--allow-any-host"])?;
        let exports: Value = serde_json::from_str(&self.purlin(&["export", "list", "--output", "json"])?)?;
        let exports = exports["exports"].as_array().ok_or("the list of exports has another form")?;
        let nqn = exports.iter().find_map(|export| export["nqn"].as_str()).ok_or("no export has a subsystem")?;
        Ok((uri, nqn.to_owned()))
    }

    /// Operations that all drives have received so far.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn drive_counts(&self) -> Result<DriveCounts, Error> {
        let answer: Value = serde_json::from_str(&self.purlin(&["drive", "list", "--output", "json"])?)?;
        let drives = answer["drives"].as_array().ok_or("the list of drives has another form")?;
        let sum = |field: &str| {
            let counts = drives.iter().map(|drive| drive["io"][field].as_u64().ok_or("a drive without counts"));
            counts.sum::<Result<u64, _>>()
        };
        Ok(DriveCounts { reads: sum("read_count")?, read_bytes: sum("read_bytes")?, writes: sum("write_count")? })
    }

    /// As [`Daemon::drive_counts`], but waits until the drives are not written any more. One second
    /// after the last write, the log writes that it needs no recovery.
    ///
    /// # Errors
    /// If the daemon does not answer, or the drives are still written after half a minute.
    pub fn quiet_drive_counts(&self) -> Result<DriveCounts, Error> {
        let mut before = self.drive_counts()?;
        for _ in 0..15 {
            thread::sleep(Duration::from_secs(2));
            let now = self.drive_counts()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        Err("the drives are written though nobody writes".into())
    }
}
