//! A thin volume that compresses, beside a file on btrfs that compresses, on the same loop devices.
//!
//! Both are RAID 6 over six devices, whose files are in memory. Each has a file of the same size,
//! half of whose bytes compress away, written once before. fio overwrites single blocks of it: of
//! the volume over NBD, of btrfs through the page cache, as btrfs does not compress direct writes.
//! All times are up to a flush at the end.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use bench::arguments::Turns;
use bench::daemon::Daemon;
use bench::process::output;
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds, Sample};
use bench::{Error, fio};
use clap::Parser;

/// Benchmarks random overwrites: thin volumes with LZ4 and zstd:1, btrfs with zstd:1. Needs root
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// MiB of the volume and of the file
    #[arg(long, default_value_t = 768, value_parser = clap::value_parser!(u64).range(256..))]
    size_mib: u64,
    /// Overwrites of a turn with one flush at its end. With a flush after each 32 it has a tenth
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1000..))]
    writes: u64,
}

const DEVICES: u64 = 6;
const NAMES: [&str; 3] = ["thin, LZ4", "thin, zstd:1", "btrfs, zstd:1"];
const BTRFS: usize = 2;

/// Loop devices over files in memory.
struct Loops(Vec<String>);

impl Loops {
    fn make(dir: &Path, mib: u64) -> Result<Loops, Error> {
        let mut loops = Loops(Vec::new());
        for index in 0..DEVICES {
            let file = dir.join(format!("drive{index}"));
            std::fs::File::create(&file)?.set_len(mib << 20)?;
            let device = output(Command::new("losetup").args(["--find", "--show"]).arg(&file))?;
            loops.0.push(device.trim().to_owned());
        }
        Ok(loops)
    }

    /// Gives all of the devices' memory back.
    fn clear(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|device| output(Command::new("blkdiscard").args(["--force", device])).map(drop))
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            if let Err(error) = output(Command::new("losetup").args(["--detach", device])) {
                eprintln!("{device} is left: {error}");
            }
        }
    }
}

/// A mounted file system.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("umount").arg(&self.0)) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// Fills what fio's arguments name, and overwrites blocks. Samples with one flush at the end, and
/// with one after each 32 writes.
fn load(at: &[&str], arguments: &Arguments) -> Result<[Sample; 2], Error> {
    let size = format!("--size={}m", arguments.size_mib);
    // Half of the bytes are noise, in pieces of 4 KiB.
    let content =
        ["--buffer_compress_percentage=50", "--refill_buffers", "--buffer_compress_chunk=4k", "--end_fsync=1"];
    let run = |more: &[&str]| -> Result<f64, Error> {
        let begin = Instant::now();
        fio::run(None, &[at, &content, &[&size], more].concat())?;
        Ok(begin.elapsed().as_secs_f64())
    };
    run(&["--rw=write", "--bs=1m", "--iodepth=4"])?;
    let overwrite = |count: u64, flush: &[&str]| -> Result<Sample, Error> {
        let number = format!("--number_ios={count}");
        let wall_s = run(&[&["--rw=randwrite", "--bs=4k", "--iodepth=32", &number], flush].concat())?;
        Ok(Sample { amount: count as f64, wall_s, cpu_s: wall_s })
    };
    Ok([overwrite(arguments.writes, &[])?, overwrite(arguments.writes / 10, &["--fsync=32"])?])
}

fn thin(dir: &Path, loops: &Loops, compression: &str, arguments: &Arguments) -> Result<[Sample; 2], Error> {
    let dir = tempfile::Builder::new().prefix("daemon-").tempdir_in(dir)?;
    let daemon = Daemon::start(dir.path(), None)?;
    daemon.purlin(&["group", "create", "tank", "--level", "raid6", "--drives", &loops.0.join(","), "--yes"])?;
    let uri = daemon.export_with("tank", &["--thin", "--compress", compression], arguments.size_mib << 20)?;
    load(&["--ioengine=nbd", &format!("--uri={uri}")], arguments)
}

fn btrfs(dir: &Path, loops: &Loops, arguments: &Arguments) -> Result<[Sample; 2], Error> {
    let place = dir.join("btrfs");
    std::fs::create_dir_all(&place)?;
    let profiles = ["--quiet", "--force", "--data", "raid6", "--metadata", "raid1c3"];
    output(Command::new("mkfs.btrfs").args(profiles).args(&loops.0))?;
    output(Command::new("mount").args(["-t", "btrfs", "-o", "compress=zstd:1", &loops.0[0]]).arg(&place))?;
    let mounted = Mounted(place);
    let file = format!("--filename={}", mounted.0.join("file").display());
    load(&["--ioengine=io_uring", &file], arguments)
}

fn measure(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?;
    // Half of the space is left to both.
    let loops = Loops::make(dir.path(), arguments.size_mib / 2 + 128)?;
    let mut rounds = [Rounds::new(NAMES.len()), Rounds::new(NAMES.len())];
    for round in 0..usize::from(arguments.turns.rounds) {
        for contender in Rounds::order(NAMES.len(), round) {
            loops.clear()?;
            let samples = match contender {
                BTRFS => btrfs(dir.path(), &loops, arguments)?,
                0 => thin(dir.path(), &loops, "lz4", arguments)?,
                _ => thin(dir.path(), &loops, "zstd:1", arguments)?,
            };
            rounds.iter_mut().zip(samples).for_each(|(rounds, sample)| rounds.add(contender, sample));
        }
    }
    let flushes = ["a flush at the end", "a flush after each 32"];
    for (ours, name) in NAMES[..BTRFS].iter().enumerate() {
        for (rounds, flush) in rounds.iter().zip(flushes) {
            let what = format!("4 KiB random overwrites, {name}, {flush}");
            let target = Some(Target::AtLeast(3.0));
            let peer = (BTRFS, NAMES[BTRFS]);
            report.rows.push(Row::of((&what, "IOPS"), rounds, Basis::Wall, ours, peer, target));
        }
    }
    report.notes.push(
        "Six loop devices over files in memory; RAID 6, btrfs with data in raid6 and metadata in raid1c3.".into(),
    );
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let rounds = usize::from(arguments.turns.rounds);
    Report::run("btrfs", rounds, arguments.turns.json, |report| measure(&arguments, report))
}
