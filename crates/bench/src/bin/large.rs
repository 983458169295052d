//! A large group over sparse files: the time to make it and to assemble it, and the daemon's memory
//! for it under random writes to the whole volume.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use bench::daemon::Daemon;
use bench::report::{Report, Row};
use bench::{Error, fio};
use clap::Parser;

/// Benchmarks a 16 TiB group over sparse files: time to make it and to assemble it, resident memory
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Groups that are made one after the other; their median is reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Writes of 4 KiB, anywhere in the volume; each takes 160 KiB of memory for a while
    #[arg(long, default_value_t = 12_000, value_parser = clap::value_parser!(u64).range(1..))]
    writes: u64,
}

/// With two parity drives, these files hold 16 TiB of data.
const FILES: u64 = 10;
const FILE_TIB: u64 = 2;
const DATA_TIB: u64 = (FILES - 2) * FILE_TIB;
const RAW_TIB: u64 = FILES * FILE_TIB;
/// The volume leaves 1 TiB of the 16 for the group's own structures.
const VOLUME_BYTES: u64 = (DATA_TIB - 1) << 40;

/// Limits: seconds to make and to assemble the group, MiB of resident memory.
const SECONDS_MAX: f64 = 2.0;
const RESIDENT_MIB_MAX: f64 = (175 + RAW_TIB) as f64;

struct Sample {
    made_s: f64,
    assembled_s: f64,
    resident_mib: f64,
}

fn round(dir: &Path, writes: u64) -> Result<Sample, Error> {
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in(dir)?;
    let files: Vec<String> =
        (0..FILES).map(|index| dir.path().join(format!("drive{index}")).display().to_string()).collect();
    let daemon = Daemon::start(dir.path(), None)?;
    let size = format!("{FILE_TIB}TiB");
    let (drives, begin) = (files.join(","), Instant::now());
    let create = ["group", "create", "big", "--level", "raid6", "--drives", &drives, "--create-files", &size, "--yes"];
    daemon.purlin(&create)?;
    let made_s = begin.elapsed().as_secs_f64();
    let uri = daemon.export("big", VOLUME_BYTES)?;
    // First writes and overwrites, so that every structure that grows with writes exists.
    let (uri, size) = (format!("--uri={uri}"), format!("--size={VOLUME_BYTES}"));
    let number = format!("--number_ios={writes}");
    let job = ["--ioengine=nbd", &uri, &size, "--rw=randwrite", "--bs=4k", "--iodepth=32", &number];
    fio::run(None, &job)?;
    let resident_mib = daemon.process().resident_bytes_max()? as f64 / f64::from(1 << 20);
    daemon.purlin(&["group", "stop", "big", "--yes"])?;
    let begin = Instant::now();
    let assemble = ["group", "assemble"].into_iter().chain(files.iter().map(String::as_str));
    daemon.purlin(&assemble.collect::<Vec<_>>())?;
    Ok(Sample { made_s, assembled_s: begin.elapsed().as_secs_f64(), resident_mib })
}

fn measure(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    // The files are in memory, so that only the daemon is measured.
    let dir = Path::new("/dev/shm");
    let samples =
        (0..arguments.rounds).map(|_| round(dir, arguments.writes)).collect::<Result<Vec<Sample>, Error>>()?;
    let row = |what: &str, unit: &str, of: fn(&Sample) -> f64, most: f64| {
        let samples: Vec<f64> = samples.iter().map(of).collect();
        Row::within(&format!("{DATA_TIB} TiB, RAID 6 over {FILES} files: {what}"), unit, &samples, most)
    };
    report.rows = vec![
        row("made", "s", |sample| sample.made_s, SECONDS_MAX),
        row("assembled", "s", |sample| sample.assembled_s, SECONDS_MAX),
        row("most resident memory", "MiB", |sample| sample.resident_mib, RESIDENT_MIB_MAX),
    ];
    report.notes.push(format!(
        "Files are sparse, in {}. A volume of {} TiB is written by fio over NBD, {} times 4 KiB at random, depth 32.",
        dir.display(),
        VOLUME_BYTES >> 40,
        arguments.writes
    ));
    report.notes.push("Times are those of the command, from its start to its end.".into());
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    Report::run("large", usize::from(arguments.rounds), arguments.json, |report| measure(&arguments, report))
}
