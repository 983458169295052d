//! `exerciser`: random operations of every kind that a program can use on a file or block device,
//! compared with a copy in memory.
//!
//! The usual test program for file systems on Linux is `fsx`, but no package of Debian has it. This
//! program does the same work, and also supports block devices. It reads, writes, maps, truncates,
//! punches holes and zeroes, through the page cache and past it. It also makes data durable and
//! drops caches. It compares all data that it reads with the expected data.

mod exercise;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use exercise::Exercise;
use target::Target;

/// Random operations on a file or block device, compared with a copy in memory. The previous
/// content is lost
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  exerciser --ops 5000 /mnt/file\n  exerciser --ops 2000 --seed 7 --size 16777216 /dev/ublkb0"
)]
struct Line {
    /// A file, created if it does not exist, or a block device
    path: PathBuf,
    /// Number of operations
    #[arg(long, default_value_t = 1000)]
    ops: u64,
    /// Seed that determines the operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Most bytes that are used, a multiple of 4096
    #[arg(long, default_value_t = 4 << 20)]
    size: u64,
    /// Print every operation
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
