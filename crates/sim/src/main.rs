//! The simulator's command: random programs beside the model, on all cores, and the exhaustive checker.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sim::campaign::{Campaign, failure, shrunk};
use sim::program::execute::execute;
use sim::program::generate::generate;
use sim::program::promise;

/// Runs the real array code over simulated drives that crash, lie and die, beside a model of what may be read.
#[derive(Parser)]
#[command(name = "sim", args_conflicts_with_subcommands = true)]
struct Command {
    #[command(subcommand)]
    exhaustive: Option<Which>,
    #[command(flatten)]
    random: Random,
}

#[derive(Subcommand)]
enum Which {}

#[derive(Args)]
struct Random {
    /// Replay one run; if it fails, shrink it and print the short program.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --seed: print every step as it is executed.
    #[arg(long)]
    verbose: bool,
    /// With --seed: do not shrink.
    #[arg(long)]
    no_shrink: bool,
    /// So many runs.
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// As many runs as fit into this time.
    #[arg(long, value_name = "H", conflicts_with = "runs")]
    hours: Option<f64>,
    /// The first seed of --runs and --hours.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Threads; all cores unless given.
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Print the table of faults that are promised to be survived.
    #[arg(long)]
    faults: bool,
}

fn main() -> ExitCode {
    let command = Command::parse();
    if let Some(which) = command.exhaustive {
        match which {}
    }
    let random = command.random;
    if random.faults {
        print!("{}", promise::table());
        return ExitCode::SUCCESS;
    }
    match random.seed {
        Some(seed) => replay(seed, &random),
        None => campaign(&random),
    }
}

fn replay(seed: u64, random: &Random) -> ExitCode {
    let program = generate(seed);
    print!("{program}");
    if random.verbose {
        println!();
        execute(&program, true);
    }
    let Some(why) = failure(&program) else {
        println!("everything is as promised");
        return ExitCode::SUCCESS;
    };
    println!("VIOLATION: {why}");
    if !random.no_shrink {
        let (short, why) = shrunk(&program);
        println!("\nshrunk from {} steps to {}:\n{short}VIOLATION: {why}", program.steps.len(), short.steps.len());
    }
    println!("replay: cargo run --release -p sim -- --seed {seed} --verbose");
    ExitCode::FAILURE
}

fn campaign(random: &Random) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        from: random.from,
        runs: random.runs.unwrap_or(if random.hours.is_some() { u64::MAX } else { 10_000 }),
        time: random.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0)),
        jobs: random.jobs.unwrap_or(cores),
        progress: true,
    };
    let outcome = campaign.run();
    print!("{}", outcome.summary());
    if let Some(&seed) = outcome.failures.keys().next() {
        let (short, why) = shrunk(&generate(seed));
        println!("\nseed {seed}, shrunk:\n{short}VIOLATION: {why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
