//! A host that reads 4 KiB at a time while other clients overload the daemon: latency of its reads,
//! and memory of the daemon.
//!
//! The host and the attackers use different groups of one daemon with one shard. The host polls on
//! its own core. The attackers share that core at a lower priority, so that the measured latency is
//! caused by the daemon.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bench::Error;
use bench::arguments::Turns;
use bench::attack::{ATTACKS, Attack, Target};
use bench::daemon::Daemon;
use bench::initiator::{Initiator, NamespacePart};
use bench::process::{free_address, go_first};
use bench::report::{Report, Row, Target as Wanted};
use clap::Parser;
use nvme::Nqn;

/// Benchmarks a host's reads while other clients overload the daemon.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// Seconds of one turn
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    turn_s: u64,
    /// Only attacks whose names contain this text, like "trims"
    #[arg(long, default_value = "")]
    only: String,
    /// Core of the daemon
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// Core of the clients
    #[arg(long, default_value_t = 1)]
    client_core: usize,
}

/// The daemon's default limit for buffer memory.
const BUDGET_BYTES: u64 = 64 << 20;

/// Further memory of a connection: data that has arrived and is not processed yet, and 64 KiB that
/// the limit does not count.
const CONNECTION_BYTES: u64 = 320 << 10;

/// Bytes of each volume that are written.
const WRITTEN_BYTES: u64 = 256 << 20;

/// Targets: factor by which reads may take longer, and share of the allowed memory that may be
/// used.
const LATENCY_RATIO: f64 = 5.0;
const MEMORY_RATIO: f64 = 1.0;

/// Time that an attack runs before the measurement begins.
const BEFORE: Duration = Duration::from_millis(300);

/// An attack that runs until it is ended.
struct Running {
    stop: Arc<AtomicBool>,
    ended: mpsc::Receiver<Result<u64, String>>,
}

type Job = (Attack, Target, Arc<AtomicBool>, mpsc::Sender<Result<u64, String>>);

impl Running {
    fn start(jobs: &mpsc::Sender<Job>, attack: Attack, target: &Target) -> Result<Running, Error> {
        let (stop, (sender, ended)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        jobs.send((attack, target.clone(), stop.clone(), sender)).map_err(|_| "the attacker is gone")?;
        thread::sleep(BEFORE);
        Ok(Running { stop, ended })
    }

    fn end(self) -> Result<u64, Error> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.ended.recv()??)
    }
}

/// A thread with normal priority: it is made before this program gets real-time priority.
fn attacker(core: usize) -> mpsc::Sender<Job> {
    let (jobs, orders) = mpsc::channel::<Job>();
    thread::spawn(move || {
        let _ = run_on(core);
        for (attack, target, stop, ended) in orders {
            // The receiver is gone if the benchmark has failed.
            let _ = ended.send(attack.run(&target, &stop).map_err(|error| format!("{}: {error}", attack.name())));
        }
    });
    jobs
}

fn run_on(core: usize) -> Result<(), Error> {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &cores)?)
}

/// The largest resident memory of a process during a measurement.
fn most_memory<T>(pid: u32, measure: impl FnOnce() -> T) -> (T, u64) {
    let most = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes(pid), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let measured = measure();
        done.store(true, Ordering::Relaxed);
        (measured, most.load(Ordering::Relaxed).max(resident_bytes(pid)))
    })
}

/// VmRSS of a process; 0 if it has ended, which the clients notice.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    field.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The 99th percentile in microseconds.
fn p99(mut nanos: Vec<u64>) -> Result<f64, Error> {
    nanos.sort_unstable();
    let at = nanos.len() * 99 / 100;
    Ok(*nanos.get(at).ok_or("no read was answered")? as f64 / 1000.0)
}

fn median(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

/// A group for the attackers: RAID 5 over six drives, with a volume of 500 GiB. A small
/// part of it is written.
fn attacked(daemon: &Daemon, dir: &Path, nvme: SocketAddr) -> Result<Target, Error> {
    let drives: Vec<String> = (0..6).map(|index| format!("mem:t{index}:101GiB")).collect();
    let size_bytes = 500 << 30;
    daemon.serve("attacked", "raid5", &drives, size_bytes)?;
    let subsystem = export_nvme(daemon, "attacked/v", nvme)?;
    let place = NamespacePart { nsid: 1, block_bytes: 4096, volume_bytes: WRITTEN_BYTES };
    Initiator::connect(nvme, &subsystem, 64)?.fill(place)?;
    Ok(Target {
        volume: "attacked/v".into(),
        nbd: dir.join("attacked.nbd"),
        nvme,
        subsystem,
        written_bytes: WRITTEN_BYTES,
        size_bytes,
    })
}

/// Exports a volume to any host. Returns the NQN of its subsystem.
fn export_nvme(daemon: &Daemon, volume: &str, address: SocketAddr) -> Result<Nqn, Error> {
    daemon.purlin(&["export", "create", volume, "--nvme-tcp", &address.to_string(), "--allow-any-host"])?;
    let exports: serde_json::Value = serde_json::from_str(&daemon.purlin(&["export", "list", "--output", "json"])?)?;
    let exports = exports["exports"].as_array().ok_or("the list of exports has another form")?;
    let of_volume = exports.iter().filter(|export| export["volume"] == volume);
    let nqn = of_volume.filter_map(|export| export["nqn"].as_str()).next();
    Ok(nqn.ok_or("the export has no subsystem")?.parse()?)
}

fn run(arguments: &Arguments, jobs: &mpsc::Sender<Job>, report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?;
    let daemon = Daemon::start(dir.path(), Some(&arguments.server_core.to_string()))?;
    let target = attacked(&daemon, dir.path(), free_address()?)?;
    let drives: Vec<String> = (0..4).map(|index| format!("mem:v{index}:160MiB")).collect();
    daemon.serve("victim", "raid5", &drives, WRITTEN_BYTES)?;
    let address = free_address()?;
    let subsystem = export_nvme(&daemon, "victim/v", address)?;
    run_on(arguments.client_core)?;
    let place = NamespacePart { nsid: 1, block_bytes: 4096, volume_bytes: WRITTEN_BYTES };
    let mut victim = Initiator::connect_as("victim", address, &subsystem, 1, 64)?;
    victim.fill(place)?;
    let turn = Duration::from_secs(arguments.turn_s);
    let pid = daemon.process().id();
    // A daemon that was busy keeps its buffers, so a warm-up comes first.
    victim.latencies(place, turn)?;
    for attack in ATTACKS.into_iter().filter(|attack| attack.name().contains(&arguments.only)) {
        let allowed = BUDGET_BYTES + attack.connections() * CONNECTION_BYTES;
        let (mut alone, mut beside, mut ratios, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut answered = 0;
        for _ in 0..arguments.turns.rounds {
            let quiet = p99(victim.latencies(place, turn)?)?;
            let before = resident_bytes(pid);
            let ((busy, most), requests) = {
                let running = Running::start(jobs, attack, &target)?;
                let measured = most_memory(pid, || victim.latencies(place, turn));
                (measured, running.end()?)
            };
            let busy = p99(busy?)?;
            alone.push(quiet);
            beside.push(busy);
            ratios.push(busy / quiet);
            memory.push(most.saturating_sub(before) as f64);
            answered += requests;
        }
        let [_, ours, _] = median(&mut beside);
        let [_, peer, _] = median(&mut alone);
        let ratio = median(&mut ratios);
        let row = |what: String, unit: &str, ours, peer_name: &str, peer, ratio: [f64; 3], target: f64| Row {
            what,
            unit: unit.into(),
            ours,
            peer_name: peer_name.into(),
            peer,
            basis: "wall".into(),
            ratio,
            target: Some(Wanted::AtMost(target)),
            met: Some(ratio[1] <= target),
        };
        let what = format!("p99 of 4 KiB reads beside {}", attack.name());
        report.rows.push(row(what, "us", ours, "undisturbed", peer, ratio, LATENCY_RATIO));
        let [least, most, worst] = median(&mut memory);
        let share = [least, most, worst].map(|bytes| bytes / allowed as f64);
        let what = format!("memory of {}", attack.name());
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        report.rows.push(row(what, "MiB", mib(most), "budget", mib(allowed as f64), share, MEMORY_RATIO));
        report.notes.push(format!("{}: {answered} requests were answered", attack.name()));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let jobs = attacker(arguments.client_core);
    let first = go_first();
    Report::run("neighbour", usize::from(arguments.turns.rounds), arguments.turns.json, |report| {
        run(&arguments, &jobs, report)?;
        report.note_priority(first);
        Ok(())
    })
}
