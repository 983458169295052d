//! `exerciser`: random operations of every kind that a program has on a file or block device,
//! beside a copy in memory.
//!
//! What file systems and block devices are tested with on Linux is `fsx`, which is in no package of
//! Debian; this does the same work, and works on block devices too. It reads, writes, maps,
//! truncates, punches holes and zeroes, past the page cache and through it, makes durable and drops
//! caches, and compares all it reads with what it should be.

mod exercise;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use exercise::Exercise;
use target::Target;

/// Random operations on a file or block device, compared with a copy in memory. What is on it is
/// lost
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  exerciser --ops 5000 /mnt/file\n  exerciser --ops 2000 --seed 7 --size 16777216 /dev/ublkb0"
)]
struct Line {
    /// A file, made if it is not there, or a block device
    path: PathBuf,
    /// How many operations
    #[arg(long, default_value_t = 1000)]
    ops: u64,
    /// Decides what is done
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes that are used at most, a multiple of 4096
    #[arg(long, default_value_t = 4 << 20)]
    size: u64,
    /// Say every operation
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let line = Line::parse();
    let target = match Target::open(&line.path, line.size) {
        Ok(target) => target,
        Err(error) => {
            eprintln!("exerciser: {}: {error}", line.path.display());
            return ExitCode::from(2);
        }
    };
    let mut exercise = Exercise::new(target, line.seed);
    for _ in 0..line.ops {
        let done = exercise.step();
        if line.verbose
            && let Some(last) = exercise.history().last()
        {
            println!("{last}");
        }
        if let Err(problem) = done {
            return failed(&exercise, &problem);
        }
    }
    match exercise.verify() {
        Ok(()) => {
            println!("{} operations on {}: all as it should be", line.ops, line.path.display());
            eprintln!("{}", exercise.summary());
            ExitCode::SUCCESS
        }
        Err(problem) => failed(&exercise, &problem),
    }
}

fn failed(exercise: &Exercise, problem: &str) -> ExitCode {
    let history = exercise.history();
    for operation in &history[history.len().saturating_sub(40)..] {
        eprintln!("{operation}");
    }
    eprintln!("exerciser: {problem}");
    ExitCode::FAILURE
}
