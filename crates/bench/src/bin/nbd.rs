//! The whole data path: fio over NBD on a Unix socket, with the server on one core and the client
//! on another.
//!
//! Compares RAID 6 over six memory drives with a plain memory volume of the same daemon, nbdkit's
//! memory plug-in, and `qemu-nbd` on a file in memory. All have the same size and are written once
//! before.

use std::path::Path;
use std::process::{Command, ExitCode};

use bench::arguments::{Sides, Turns};
use bench::daemon::Daemon;
use bench::process::{Process, go_first, output, pinned};
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds, Sample, spread};
use bench::{Error, fio};
use clap::Parser;

const MIB: u64 = 1 << 20;

/// Benchmarks 4 KiB random reads over NBD: RAID 6 and a plain volume, nbdkit and qemu-nbd.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// Seconds of one turn of one contender
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    turn_s: u64,
    #[command(flatten)]
    sides: Sides,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
}

const RAID6: usize = 0;
const PLAIN: usize = 1;
const NBDKIT: usize = 2;
const QEMU: usize = 3;
const NAMES: [&str; 4] = ["RAID 6", "plain memory volume", "nbdkit memory", "qemu-nbd"];

/// All servers, started and filled.
struct Servers {
    uris: [String; 4],
    daemon: Daemon,
    nbdkit: Process,
    qemu: Process,
}

impl Servers {
    fn start(arguments: &Arguments, dir: &Path) -> Result<Servers, Error> {
        let bytes = arguments.sides.volume_mib * MIB;
        let core = arguments.sides.server_core;
        let daemon = Daemon::start(dir, Some(&core.to_string()))?;
        // Room for the metadata in addition to a part of the volume.
        let drives = |name: &str, count: u64, data: u64| -> Vec<String> {
            let mib = arguments.sides.volume_mib.div_ceil(data) + 32;
            (0..count).map(|index| format!("mem:{name}{index}:{mib}MiB")).collect()
        };
        let raid6 = daemon.serve("tank", "raid6", &drives("t", 6, 4), bytes)?;
        let plain = daemon.serve("plain", "raid0", &drives("p", 2, 2), bytes)?;

        let socket = dir.join("nbdkit.sock");
        let mut nbdkit = pinned(Some(core), "nbdkit");
        nbdkit.args(["--foreground", "--unix"]).arg(&socket).args(["memory", &bytes.to_string()]);
        let mut nbdkit = Process::start(&mut nbdkit)?;
        nbdkit.wait_for(&socket)?;
        let nbdkit_uri = format!("nbd+unix:///?socket={}", socket.display());

        let (socket, image) = (dir.join("qemu.sock"), dir.join("qemu.raw"));
        std::fs::File::create(&image)?.set_len(bytes)?;
        let mut qemu = pinned(Some(core), "qemu-nbd");
        qemu.args(["--persistent", "--format=raw", "--shared=8", "--socket"]).arg(&socket).arg(&image);
        let mut qemu = Process::start(&mut qemu)?;
        qemu.wait_for(&socket)?;
        let qemu_uri = format!("nbd+unix:///?socket={}", socket.display());

        let servers = Servers { uris: [raid6, plain, nbdkit_uri, qemu_uri], daemon, nbdkit, qemu };
        for uri in &servers.uris {
            fio::fill(uri, bytes)?;
        }
        Ok(servers)
    }

    fn process(&self, contender: usize) -> &Process {
        match contender {
            RAID6 | PLAIN => self.daemon.process(),
            NBDKIT => &self.nbdkit,
            _ => &self.qemu,
        }
    }
}

/// The results of all rounds.
struct Measured {
    /// Wall time, and CPU time of the server.
    server: Rounds,
    /// CPU time of the side that took more. It limits the rate if both cores have no other work.
    busier: Rounds,
    latency_us: [Vec<[f64; 4]>; 4],
}

fn measure(arguments: &Arguments, servers: &Servers) -> Result<Measured, Error> {
    let mut measured =
        Measured { server: Rounds::new(4), busier: Rounds::new(4), latency_us: std::array::from_fn(|_| Vec::new()) };
    let depth = format!("--iodepth={}", arguments.depth);
    let (runtime, size) =
        (format!("--runtime={}", arguments.turn_s), format!("--size={}m", arguments.sides.volume_mib));
    for round in 0..usize::from(arguments.turns.rounds) {
        for contender in Rounds::order(4, round) {
            let process = servers.process(contender);
            let uri = format!("--uri={}", servers.uris[contender]);
            let job = ["--ioengine=nbd", &uri, "--rw=randread", "--bs=4k", &depth, "--time_based", &runtime, &size];
            let before = process.cpu_s()?;
            let done = fio::run(Some(arguments.sides.client_core), &job)?;
            let cpu_s = process.cpu_s()? - before;
            let sample = Sample { amount: done.operations, wall_s: done.wall_s, cpu_s };
            measured.server.add(contender, sample);
            measured.busier.add(contender, Sample { cpu_s: cpu_s.max(done.client_cpu_s), ..sample });
            measured.latency_us[contender].push(done.latency_us);
        }
    }
    Ok(measured)
}

fn rows(measured: &Measured) -> Vec<Row> {
    let what = ("4 KiB random reads over NBD, RAID 6", "IOPS");
    let cost = ("the same: CPU of the server", "s/op");
    let bound = ("the same: per CPU second of the busier side", "IOPS");
    let better = if measured.server.median(NBDKIT, Basis::Wall) >= measured.server.median(QEMU, Basis::Wall) {
        NBDKIT
    } else {
        QEMU
    };
    let row =
        |what, rounds, basis, peer: usize, target| Row::of(what, rounds, basis, RAID6, (peer, NAMES[peer]), target);
    let mut rows = vec![row(what, &measured.server, Basis::Wall, PLAIN, Some(Target::AtLeast(0.95)))];
    for peer in [NBDKIT, QEMU] {
        rows.push(row(what, &measured.server, Basis::Wall, peer, (peer == better).then_some(Target::AtLeast(1.0))));
    }
    rows.extend([PLAIN, NBDKIT, QEMU].map(|peer| row(bound, &measured.busier, Basis::Cpu, peer, None)));
    rows.push(row(cost, &measured.server, Basis::Cost, NBDKIT, Some(Target::AtMost(0.5))));
    rows.push(row(cost, &measured.server, Basis::Cost, QEMU, None));
    rows.push(row(cost, &measured.server, Basis::Cost, PLAIN, None));
    for row in rows.iter_mut().filter(|row| row.basis == Basis::Cost.name()) {
        // Microseconds are easier to read.
        row.unit = "us/op".into();
        row.ours *= 1e6;
        row.peer *= 1e6;
    }
    rows
}

fn version(program: &str) -> Result<String, Error> {
    Ok(output(Command::new(program).arg("--version"))?.lines().next().unwrap_or_default().to_owned())
}

fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    for program in ["fio", "nbdkit", "qemu-nbd"] {
        report.notes.push(version(program)?);
    }
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?;
    let servers = Servers::start(arguments, dir.path())?;
    let measured = measure(arguments, &servers)?;
    report.rows = rows(&measured);
    report.notes.push(format!(
        "Servers on core {}, fio on core {}, depth {}, one connection.",
        arguments.sides.server_core, arguments.sides.client_core, arguments.depth
    ));
    for (name, latencies) in NAMES.iter().zip(&measured.latency_us) {
        let [p50, p99, p999, p9999] =
            std::array::from_fn(|place| spread(latencies.iter().map(|latency| latency[place]).collect())[1]);
        report.notes.push(format!(
            "{name}: latency p50 {p50:.0} us, p99 {p99:.0}, p99.9 {p999:.0}, p99.99 {p9999:.0} (medians of rounds)"
        ));
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let first = go_first();
    Report::run("nbd", usize::from(arguments.turns.rounds), arguments.turns.json, |report| {
        run(&arguments, report)?;
        report.note_priority(first);
        Ok(())
    })
}
