//! Fuzzing by hand, for any length of time. See `docs/fuzzing.md`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, io};

use clap::{Parser, Subcommand};
use fuzz::{Plan, Report, TARGETS, Target, corpus, examine, find};

/// Fuzz the code that parses external data
#[derive(Debug, Parser)]
#[command(name = "fuzz", args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Line {
    #[command(subcommand)]
    command: Option<Verb>,
    /// The target, or `all` for each in turn; `fuzz list` shows them
    #[arg(required = true)]
    target: Option<String>,
    /// Stop after this many seconds
    #[arg(long, conflicts_with = "runs", default_value_t = 60)]
    seconds: u64,
    /// Stop after this many mutated inputs; such a run repeats exactly on every machine
    #[arg(long)]
    runs: Option<u64>,
    /// Seed; another seed tries other inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Concurrent processes, with seeds counting up from --seed
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Store inputs that reached new code in this folder
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
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
}

fn main() -> ExitCode {
    match run(&Line::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns false if a violation was found.
fn run(line: &Line) -> io::Result<bool> {
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
        (None, Some(_)) if line.jobs > 1 => in_processes(line),
        (None, Some(name)) if name == "all" => {
            TARGETS.iter().try_fold(true, |clean, target| Ok(fuzz_one(target, line)? && clean))
        }
        (None, Some(name)) => fuzz_one(known(name)?, line),
        (None, None) => Err(io::Error::other("which target?")),
    }
}

fn known(name: &str) -> io::Result<&'static Target> {
    find(name).ok_or_else(|| io::Error::other(format!("there is no target {name:?}: `fuzz list` shows them")))
}

fn replay(target: &Target, files: &[PathBuf]) -> io::Result<bool> {
    let mut clean = true;
    for file in files {
        let result = examine(target, &fs::read(file)?);
        clean &= result.is_ok();
        println!("{}: {}", file.display(), result.map_or_else(|finding| finding.to_string(), |()| "fine".to_owned()));
    }
    Ok(clean)
}

fn fuzz_one(target: &Target, line: &Line) -> io::Result<bool> {
    let inputs = corpus::load(target)?;
    let plan = Plan {
        seed: line.seed,
        runs: line.runs.unwrap_or(u64::MAX),
        time: line.runs.is_none().then(|| Duration::from_secs(line.seconds)),
        neighbours_max: 20_000,
    };
    let report = fuzz::fuzz(target, &inputs, &plan, |report| show(target, line.seed, report));
    show(target, line.seed, &report);
    for crash in &report.crashes {
        let path = corpus::keep_crash(target, &crash.input)?;
        println!("{}: CRASH: {}; kept: {}", target.name, crash.finding, path.display());
    }
    if let Some(folder) = &line.save {
        for input in &report.discovered {
            corpus::keep(&folder.join(target.name), input)?;
        }
    }
    Ok(report.crashes.is_empty())
}

fn show(target: &Target, seed: u64, report: &Report) {
    let per_s = report.runs as f64 / report.elapsed.as_secs_f64().max(0.001);
    let (reached, edges) = report.edges;
    let coverage = match edges {
        0 => "no coverage (see docs/fuzzing.md)".to_owned(),
        edges => format!("{reached} of {edges} edges, {} new inputs", report.discovered.len()),
    };
    println!(
        "{:<14}seed {seed}: {} runs in {:.0} s, {per_s:.0}/s; {coverage}; {} crashes",
        target.name,
        report.runs,
        report.elapsed.as_secs_f64(),
        report.crashes.len()
    );
}

/// Runs one process for each job, because a process has one set of coverage counters, and may be
/// ended by a crash.
fn in_processes(line: &Line) -> io::Result<bool> {
    let program = env::current_exe()?;
    let mut children = Vec::new();
    for job in 0..line.jobs {
        let mut command = Command::new(&program);
        command.arg(line.target.as_deref().unwrap_or("all")).args(["--seed", &(line.seed + job).to_string()]);
        match line.runs {
            Some(runs) => command.args(["--runs", &runs.to_string()]),
            None => command.args(["--seconds", &line.seconds.to_string()]),
        };
        if let Some(folder) = &line.save {
            command.arg("--save").arg(folder);
        }
        children.push(command.spawn()?);
    }
    let mut clean = true;
    for mut child in children {
        let status = child.wait()?;
        if status.code().is_none() {
            println!("a process ended by itself: {status}; the same --seed repeats it");
        }
        clean &= status.success();
    }
    Ok(clean)
}
