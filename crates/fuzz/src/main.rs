//! Fuzzing by hand, for any length of time. See `docs/fuzzing.md`.
#![deny(unsafe_code)]

mod guided;
#[cfg(feature = "guided")]
#[allow(unsafe_code, reason = "libFuzzer is C++")]
mod libfuzzer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use clap::{Args, Parser, Subcommand};
use fuzz::{TARGETS, Target, corpus, find, run};

const EXAMPLES: &str = "\
Examples:
  ./x fuzz list                                  names of the targets, and what each checks
  ./x fuzz superblock                            one target for a minute
  ./x fuzz superblock --seconds 3600 --jobs 4    an hour in four processes
  ./x fuzz all --seconds 20                      each target for 20 seconds
  ./x fuzz replay superblock FILE                what one input does
  ./x fuzz minimise superblock FILE              the smallest input with the same crash";

/// Fuzz the code that parses external data, guided by coverage with libFuzzer
#[derive(Debug, Parser)]
#[command(name = "fuzz", bin_name = "./x fuzz", after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Line {
    #[command(subcommand)]
    command: Option<Verb>,
    /// The target, or `all` for each in turn; `list` shows them
    #[arg(required = true)]
    target: Option<String>,
    #[command(flatten)]
    extent: Extent,
}

/// How long a target is fuzzed.
#[derive(Debug, Clone, Copy, Args)]
struct Extent {
    /// Stop after this many seconds
    #[arg(long, conflicts_with = "runs", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Stop after this many inputs, of each job
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Seed; another seed tries other inputs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seed: u32,
    /// Concurrent processes, with seeds counting up from --seed; they exchange new inputs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: u32,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show all targets
    List,
    /// Write the generated part of the corpora again
    Corpus,
    /// Run single inputs, and show the results
    Replay {
        /// The target
        target: String,
        /// Files with inputs
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Make an input that causes a crash as small as possible
    Minimise {
        /// The target
        target: String,
        /// File with the input
        file: PathBuf,
        /// Stop if no smaller input was found for this many seconds
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        seconds: u32,
    },
}

fn main() -> ExitCode {
    #[cfg(feature = "guided")]
    if let Some(target) = guided::requested_target() {
        return libfuzzer::run(target);
    }
    match execute(&Line::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns false if a violation was found.
fn execute(line: &Line) -> io::Result<bool> {
    match (&line.command, &line.target) {
        (Some(Verb::List), _) => {
            TARGETS.iter().for_each(|target| println!("{:<14}{}", target.name, target.checks));
            Ok(true)
        }
        (Some(Verb::Corpus), _) => {
            for target in &TARGETS {
                println!("{}: {} inputs", target.name, corpus::generate(target)?);
            }
            Ok(true)
        }
        (Some(Verb::Replay { target, files }), _) => replay(known(target)?, files),
        (Some(Verb::Minimise { target, file, seconds }), _) => {
            guided::minimise(known(target)?, file, Duration::from_secs(u64::from(*seconds)))?;
            Ok(true)
        }
        (None, Some(name)) if name == "all" => guided::fuzz(&TARGETS, line.extent),
        (None, Some(name)) => guided::fuzz(&[*known(name)?], line.extent),
        (None, None) => Err(io::Error::other("which target? `./x fuzz list` shows them")),
    }
}

fn known(name: &str) -> io::Result<&'static Target> {
    find(name).ok_or_else(|| io::Error::other(format!("there is no target {name:?}: `./x fuzz list` shows them")))
}

fn replay(target: &Target, files: &[PathBuf]) -> io::Result<bool> {
    let mut is_clean = true;
    for file in files {
        let crashes = run(target, std::iter::once(read(file)?));
        is_clean &= crashes.is_empty();
        let result = crashes.first().map_or_else(|| "fine".to_owned(), |crash| crash.finding.to_string());
        println!("{}: {result}", file.display());
    }
    Ok(is_clean)
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    fs::read(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}
