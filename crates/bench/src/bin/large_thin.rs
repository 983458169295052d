//! A large thin volume over sparse files: the daemon's memory for its map, the time and the bytes
//! that a start after a kill reads, and the time to discard all of it.
//!
//! A block of each MiB is written, so that the map has all of its leaves.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use bench::daemon::Daemon;
use bench::process::output;
use bench::report::{Report, Row};
use bench::{Error, fio};
use clap::Parser;
use serde_json::Value;

/// Benchmarks a thin volume over sparse files: resident memory, start after a kill, discard
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Volumes that are made one after the other; their median is reported
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// GiB of the volume; each takes about 10 MiB of memory for a while
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    volume_gib: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FILES: u64 = 6;

/// Limits at 1 TiB: 150 MiB, 128 MiB of cached leaves, and 32 MiB for each TiB.
const RESIDENT_MIB: f64 = 150.0 + 128.0;
const RESIDENT_MIB_PER_TIB: f64 = 32.0;
/// A store of 16 TiB starts in so many seconds.
const START_16_TIB_S: f64 = 5.0;

/// Bytes that a start may read: the logs of all drives, which are the same for every size, and a
/// part for each TiB.
const READ_MIB: f64 = 64.0 * FILES as f64;
const READ_MIB_PER_TIB: f64 = 320.0;

/// Longest wait for the numbers of the volume after a discard.
const SHOWN_S: u64 = 900;

struct Sample {
    resident_mib: f64,
    start_s: f64,
    start_read_mib: f64,
    accepted_s: f64,
    shown_s: f64,
}

/// Bytes of the volume that have content.
fn written_bytes(daemon: &Daemon) -> Result<u64, Error> {
    let volume: Value = serde_json::from_str(&daemon.purlin(&["volume", "show", "big/v", "--output", "json"])?)?;
    volume["used_bytes"].as_u64().ok_or_else(|| format!("no used_bytes in {volume}").into())
}

fn round(dir: &Path, volume_bytes: u64) -> Result<Sample, Error> {
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in(dir)?;
    let files: Vec<String> =
        (0..FILES).map(|index| dir.path().join(format!("drive{index}")).display().to_string()).collect();
    let daemon = Daemon::start(dir.path(), None)?;
    // A quarter more than the volume, with two parity drives.
    let (drives, size) = (files.join(","), format!("{}", volume_bytes / 4 * 5 / 4));
    let create = ["group", "create", "big", "--level", "raid6", "--drives", &drives, "--create-files", &size, "--yes"];
    daemon.purlin(&create)?;
    let uri = format!("--uri={}", daemon.export_with("big", &["--thin"], volume_bytes)?);
    let (bytes, number) = (format!("--size={volume_bytes}"), format!("--number_ios={}", volume_bytes / MIB));
    let job = ["--ioengine=nbd", &uri, &bytes, "--rw=write:1020k", "--bs=4k", "--iodepth=32", &number];
    fio::run(None, &job)?;
    let resident_mib = daemon.process().resident_bytes_max()? as f64 / MIB as f64;
    daemon.kill()?;
    let begin = Instant::now();
    let daemon = Daemon::start(dir.path(), None)?;
    while daemon.purlin(&["volume", "show", "big/v"]).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    fio::run(None, &["--ioengine=nbd", &uri, "--size=4k", "--rw=read", "--bs=4k", "--number_ios=1"])?;
    let start_s = begin.elapsed().as_secs_f64();
    let start_read_mib = daemon.drive_counts()?.read_bytes as f64 / MIB as f64;
    let begin = Instant::now();
    // Its report has no reads or writes.
    output(Command::new("fio").args(["--name=bench", "--ioengine=nbd", &uri, &bytes]).args(["--rw=trim", "--bs=1g"]))?;
    let accepted_s = begin.elapsed().as_secs_f64();
    while written_bytes(&daemon)? > 0 {
        if begin.elapsed().as_secs() > SHOWN_S {
            return Err("the volume's numbers do not follow the discard".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown_s = begin.elapsed().as_secs_f64();
    Ok(Sample { resident_mib, start_s, start_read_mib, accepted_s, shown_s })
}

fn measure(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    let dir = Path::new("/dev/shm");
    let volume_bytes = arguments.volume_gib * GIB;
    let samples = (0..arguments.rounds).map(|_| round(dir, volume_bytes)).collect::<Result<Vec<Sample>, Error>>()?;
    let tib = arguments.volume_gib as f64 / 1024.0;
    let row = |what: &str, unit: &str, of: fn(&Sample) -> f64, most: f64| {
        let samples: Vec<f64> = samples.iter().map(of).collect();
        Row::within(&format!("thin volume of {} GiB: {what}", arguments.volume_gib), unit, &samples, most)
    };
    let start_s = START_16_TIB_S * (tib / 16.0).max(0.2);
    report.rows = vec![
        row("most resident memory", "MiB", |sample| sample.resident_mib, RESIDENT_MIB + RESIDENT_MIB_PER_TIB * tib),
        row("started after a kill", "s", |sample| sample.start_s, start_s),
        row("read from drives at the start", "MiB", |sample| sample.start_read_mib, READ_MIB + READ_MIB_PER_TIB * tib),
        row("all is discarded, and reads as zeroes", "s", |sample| sample.accepted_s, 10.0 * tib),
        row("the volume's numbers say so", "s", |sample| sample.shown_s, 10.0 * tib),
    ];
    report.notes.push(format!(
        "Files are sparse, in {}. 4 KiB of each MiB are written by fio over NBD, depth 32.",
        dir.display()
    ));
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    Report::run("large-thin", usize::from(arguments.rounds), arguments.json, |report| measure(&arguments, report))
}
