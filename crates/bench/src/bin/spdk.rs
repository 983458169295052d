//! Compares the NVMe/TCP target with SPDK's. SPDK's own initiator polls on one core, the targets
//! run on another.

use std::process::ExitCode;
use std::time::Duration;

use bench::arguments::{Sides, Turns};
use bench::daemon::Daemon;
use bench::initiator::LOADS;
use bench::process::free_address;
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds, Sample};
use bench::spdk::Spdk;
use bench::{Error, fio};
use clap::Parser;

/// Benchmarks the NVMe/TCP target, compared with SPDK's (PURLIN_SPDK names the folder where SPDK
/// was built).
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// Seconds of one turn of one contender
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    turn_s: u64,
    /// Only loads whose names contain this text, like "writes" or "depth 32"
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    sides: Sides,
}

const OURS: usize = 0;
const SPDK: usize = 1;

/// Bytes of a block of either namespace.
const BLOCK_BYTES: u32 = 4096;

fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    let spdk = Spdk::find(arguments.sides.volume_mib)?;
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?;
    let daemon = Daemon::start(dir.path(), Some(&arguments.sides.server_core.to_string()))?;
    let address = free_address()?;
    let (uri, nqn) = daemon.serve_nvme("plain", arguments.sides.volume_mib, address)?;
    fio::fill(&uri, arguments.sides.volume_mib << 20)?;
    let spdk_address = free_address()?;
    let target =
        spdk.target(dir.path(), arguments.sides.server_core, arguments.sides.volume_mib, BLOCK_BYTES, spdk_address)?;

    let turn = Duration::from_secs(arguments.turn_s);
    for load in LOADS {
        let what = load.to_string();
        if !what.contains(&arguments.only) {
            continue;
        }
        let mut rounds = Rounds::new(2);
        for round in 0..usize::from(arguments.turns.rounds) {
            for contender in Rounds::order(2, round) {
                let (process, place) = match contender {
                    OURS => (daemon.process(), (address, &*nqn)),
                    _ => (target.process(), target.place()),
                };
                if contender == SPDK {
                    target.go_on()?;
                }
                let before = process.cpu_s()?;
                let amount = spdk.load(arguments.sides.client_core, place, load, turn)?;
                let cpu_s = process.cpu_s()? - before;
                if contender == SPDK {
                    target.rest()?;
                }
                rounds.add(contender, Sample { amount, wall_s: turn.as_secs_f64(), cpu_s });
            }
        }
        let row =
            Row::of((&what, "IOPS"), &rounds, Basis::Wall, OURS, (SPDK, "SPDK's target"), Some(Target::AtLeast(1.0)));
        report.rows.push(row);
    }
    report.notes.push(format!(
        "Targets on core {}, SPDK's initiator on core {}, which polls; one I/O queue, a plain memory volume (RAID 0 of two drives) \
         beside a bdev of memory, all written before.",
        arguments.sides.server_core, arguments.sides.client_core
    ));
    report.notes.push(spdk.version()?);
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // At normal priority: SPDK's target never sleeps, and the kernel takes the core away from a
    // real-time program that never sleeps.
    Report::run("spdk", usize::from(arguments.turns.rounds), arguments.turns.json, |report| run(&arguments, report))
}
