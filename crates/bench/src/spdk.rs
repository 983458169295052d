//! SPDK, if it is built on this machine: its NVMe/TCP target, and its initiator as a load.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::Error;
use crate::initiator::Load;
use crate::process::{Process, output, pinned};

/// The environment variable with the folder in which SPDK was built.
const VARIABLE: &str = "PURLIN_SPDK";

/// Memory of its initiator, in MiB of huge pages.
const INITIATOR_MIB: u64 = 256;

/// Memory of its target in addition to the volume, in MiB of huge pages.
const TARGET_MIB: u64 = 800;

/// Time that its target may take to start.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// The programs of an SPDK build.
#[derive(Debug)]
pub struct Spdk {
    programs: PathBuf,
}

impl Spdk {
    /// Finds the build that `PURLIN_SPDK` names, for volumes of this size.
    ///
    /// # Errors
    /// If there is none, or the machine has too few free huge pages.
    pub fn find(volume_mib: u64) -> Result<Spdk, Error> {
        let folder =
            std::env::var_os(VARIABLE).ok_or(format!("{VARIABLE} has to name the folder where SPDK was built"))?;
        let programs = Path::new(&folder).join("build/bin");
        for program in ["nvmf_tgt", "spdk_nvme_perf"] {
            if !programs.join(program).exists() {
                return Err(format!("there is no {program} in {}: {VARIABLE} names it", programs.display()).into());
            }
        }
        let need_mib = volume_mib + TARGET_MIB + INITIATOR_MIB;
        let free_mib = free_huge_mib()?;
        if free_mib < need_mib {
            return Err(format!(
                "SPDK needs {need_mib} MiB of free huge pages, there are {free_mib}: see /proc/sys/vm/nr_hugepages"
            )
            .into());
        }
        Ok(Spdk { programs })
    }

    /// Its version, as it reports it.
    ///
    /// # Errors
    /// If it does not report one.
    pub fn version(&self) -> Result<String, Error> {
        Ok(output(Command::new(self.programs.join("nvmf_tgt")).arg("--version"))?.trim().to_owned())
    }

    /// Starts its target on a core, with one namespace in memory. Its files are in `dir`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn target(
        &self,
        dir: &Path,
        core: usize,
        volume_mib: u64,
        block_bytes: u32,
        address: SocketAddr,
    ) -> Result<Target, Error> {
        const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
        let blocks = (volume_mib << 20) / u64::from(block_bytes);
        let call = |method: &str, params: serde_json::Value| json!({ "method": method, "params": params });
        let listen = json!({
            "trtype": "TCP", "adrfam": "IPv4", "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
        });
        let config = json!({ "subsystems": [
            { "subsystem": "bdev", "config": [
                call("bdev_malloc_create", json!({ "name": "memory", "num_blocks": blocks, "block_size": block_bytes })),
            ] },
            { "subsystem": "nvmf", "config": [
                call("nvmf_create_transport", json!({ "trtype": "TCP" })),
                call("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true, "serial_number": "SPDK1" })),
                call("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "memory" } })),
                call("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": listen })),
            ] },
        ] });
        let file = dir.join("spdk.json");
        std::fs::write(&file, config.to_string())?;
        let mut command = pinned(None, self.programs.join("nvmf_tgt"));
        command.args(["-m", &mask(core), "-s", &(volume_mib + TARGET_MIB).to_string(), "-c"]).arg(file);
        command.arg("-r").arg(dir.join("spdk.sock")).stderr(Stdio::null());
        let process = Process::start(&mut command)?;
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if begin.elapsed() > START_PATIENCE || process.cpu_s().is_err() {
                return Err("SPDK's target does not come up".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let target = Target { process, address, nqn: NQN.to_owned() };
        target.rest()?;
        Ok(target)
    }

    /// Runs its initiator on a core with this load for `duration`. Returns the number of
    /// operations.
    ///
    /// # Errors
    /// The output of the initiator, if it failed.
    pub fn load(
        &self,
        core: usize,
        (address, nqn): (SocketAddr, &str),
        load: Load,
        duration: Duration,
    ) -> Result<f64, Error> {
        let kind = if load.writes { "randwrite" } else { "randread" };
        let place = format!("trtype:TCP adrfam:IPv4 traddr:{} trsvcid:{} subnqn:{nqn}", address.ip(), address.port());
        let mut command = pinned(None, self.programs.join("spdk_nvme_perf"));
        command.args(["-s", &INITIATOR_MIB.to_string(), "-c", &mask(core), "-w", kind, "-r", &place]);
        command.args(["-q", &load.depth.to_string(), "-o", &load.bytes.to_string()]);
        let said = output(command.args(["-t", &duration.as_secs().to_string()]))?;
        // Total   :   IOPS  MiB/s  average  least  most
        let total = said.lines().find_map(|line| line.strip_prefix("Total")?.split_once(':'));
        let iops = total.and_then(|(_, numbers)| numbers.split_whitespace().next()?.parse::<f64>().ok());
        Ok(iops.ok_or("spdk_nvme_perf reports in another form")? * duration.as_secs_f64())
    }
}

/// SPDK's target. It always polls while it runs, so it is stopped between its turns.
#[derive(Debug)]
pub struct Target {
    process: Process,
    address: SocketAddr,
    nqn: String,
}

impl Target {
    /// Its address and the NQN of its subsystem.
    pub fn place(&self) -> (SocketAddr, &str) {
        (self.address, &self.nqn)
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Continues it.
    ///
    /// # Errors
    /// If it is gone.
    pub fn go_on(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Stops it.
    ///
    /// # Errors
    /// If it is gone.
    pub fn rest(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).ok_or("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A stopped process does not react to a signal to terminate.
        let _ = self.go_on();
    }
}

/// The mask of a core that SPDK expects.
fn mask(core: usize) -> String {
    format!("{:#x}", 1_u64 << core)
}

fn free_huge_mib() -> Result<u64, Error> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let number = |name: &str| -> Option<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let numbers = number("HugePages_Free:").zip(number("Hugepagesize:"));
    Ok(numbers.map_or(0, |(pages, page_kib)| pages * page_kib / 1024))
}
