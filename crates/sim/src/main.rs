//! The simulator's command: random programs checked by the model, on all cores, and the exhaustive
//! checker.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use format::CrashSafety;
use sim::campaign::{Campaign, SeedResults, attempt, failure, program_of, shrunk, violations};
use sim::engine::Protection;
use sim::exhaustive::{Counts, Extent, Part, shapes};
use sim::program::execute::execute;
use sim::program::promise;
use sim::thin::Faults;

/// Runs the real array code over simulated drives that crash, lie and die, and checks all reads
/// with a model.
#[derive(Parser)]
#[command(name = "sim", args_conflicts_with_subcommands = true)]
struct Command {
    #[command(subcommand)]
    which: Option<Which>,
    #[command(flatten)]
    random: Random,
}

#[derive(Subcommand)]
enum Which {
    /// Every crash of every short program, at each level.
    Exhaustive(Exhaustive),
    /// Random runs of thin volumes, with all faults.
    Thin(Thin),
}

#[derive(Args)]
struct Exhaustive {
    /// Only this level: raid5, raid6, raid7, nm, raid10 or raid50.
    #[arg(long)]
    level: Option<String>,
    /// Requests of a program; with --full 3.
    #[arg(long, default_value_t = 1)]
    ops: usize,
    /// All programs of up to three requests. Takes hours.
    #[arg(long)]
    full: bool,
    /// Without the log: shows the write hole.
    #[arg(long)]
    off: bool,
    /// With the crash safety that allows no exception.
    #[arg(long, conflicts_with = "off")]
    strict: bool,
    /// Without checksums.
    #[arg(long)]
    no_checksums: bool,
    /// Up to this many members of a set lost, before and in the crash together; as many as the
    /// level survives unless given.
    #[arg(long, value_name = "N")]
    lost: Option<usize>,
    /// Check each set of lost members, and each state of the others, also where one differs
    /// from another only in members that play the same part in the program.
    #[arg(long)]
    every_set: bool,
    /// Number of successive crashes: with 2, another crash at every point of the recovery from
    /// the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    crashes: usize,
    /// Only count the cases, of first crashes.
    #[arg(long)]
    count: bool,
    /// Only one of several parts of the programs: 2/5 is the second of five.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    part: Part,
    /// Threads; all cores unless given.
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
}

/// The runs of a campaign.
#[derive(Args)]
struct Seeds {
    /// Replay one run. A program that fails is shrunk, and the short one is printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --seed: print every step as it is executed.
    #[arg(long)]
    verbose: bool,
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
}

impl Seeds {
    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// The campaign that was asked for, or one of `runs` runs.
    fn campaign(&self, runs: u64, remote: bool) -> Campaign {
        Campaign {
            from: self.from,
            runs: self.runs.unwrap_or(if self.hours.is_some() { u64::MAX } else { runs }),
            time: self.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0)),
            jobs: self.jobs(),
            progress: true,
            remote,
        }
    }
}

#[derive(Args)]
struct Thin {
    #[command(flatten)]
    seeds: Seeds,
    /// Instead: every crash of every program of up to N steps, over a model of a group.
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "verbose", "runs", "hours", "from"])]
    every: Option<usize>,
}

#[derive(Args)]
struct Random {
    #[command(flatten)]
    seeds: Seeds,
    /// With --seed: do not shrink.
    #[arg(long)]
    no_shrink: bool,
    /// Programs with members on other machines, and networks that fail.
    #[arg(long)]
    remote: bool,
    /// Print the table of faults that are promised to be survived.
    #[arg(long)]
    faults: bool,
}

fn main() -> ExitCode {
    let command = Command::parse();
    match command.which {
        Some(Which::Exhaustive(which)) => return exhaustive(&which),
        Some(Which::Thin(which)) => return thin(&which),
        None => {}
    }
    let random = command.random;
    if random.faults {
        print!("{}", promise::table());
        return ExitCode::SUCCESS;
    }
    match random.seeds.seed {
        Some(seed) => replay(seed, &random),
        None => campaign(&random),
    }
}

/// How often a long check prints its progress, and how often it is polled for its end.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
const PROGRESS_LOOK: Duration = Duration::from_millis(20);

fn exhaustive(which: &Exhaustive) -> ExitCode {
    let Exhaustive { level, ops, full, off, strict, no_checksums, lost, every_set, crashes, count, part, jobs } = which;
    let safety = match (off, strict) {
        (true, _) => CrashSafety::Off,
        (_, true) => CrashSafety::Strict,
        _ => CrashSafety::On,
    };
    let ops = if *full { 3 } else { *ops };
    let (mut bad, mut told) = (0, Instant::now());
    for (name, shape) in shapes().into_iter().filter(|(name, _)| level.as_ref().is_none_or(|level| level == name)) {
        let counts = Counts::default();
        let mut extent = Extent::whole(shape, ops);
        extent.protection = Protection { safety, checksums: !no_checksums };
        extent.lost = lost.map_or(extent.lost, |lost| extent.lost.min(lost));
        extent.jobs = jobs.unwrap_or(extent.jobs);
        extent.every_set = *every_set;
        extent.crashes = *crashes;
        extent.only_count = *count;
        extent.part = *part;
        let (began, programs) = (Instant::now(), extent.programs());
        let violations = std::thread::scope(|scope| {
            let check = scope.spawn(|| extent.check(&programs, &counts));
            while !check.is_finished() {
                std::thread::park_timeout(PROGRESS_LOOK);
                if told.elapsed() >= PROGRESS_EVERY {
                    told = Instant::now();
                    let done = counts.programs.load(Ordering::Relaxed);
                    let found = counts.violations.load(Ordering::Relaxed);
                    let (all, took) = (programs.len(), began.elapsed());
                    eprintln!("{name}: {done} of {all} programs, {found} violations, {took:.0?}");
                }
            }
            check.join().expect("violations are caught")
        });
        println!("{name}, programs of up to {ops}: {counts}, {} violations, {:.1?}", violations.len(), began.elapsed());
        for violation in &violations {
            println!("VIOLATION {violation}");
        }
        bad += violations.len();
    }
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, random: &Random) -> ExitCode {
    let program = program_of(seed, random.remote);
    print!("{program}");
    if random.seeds.verbose {
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
    let remote = if random.remote { "--remote " } else { "" };
    println!("replay: cargo run --release -p sim -- {remote}--seed {seed} --verbose");
    ExitCode::FAILURE
}

fn campaign(random: &Random) -> ExitCode {
    let outcome = random.seeds.campaign(10_000, random.remote).run();
    print!("{}", outcome.summary());
    if let Some(&seed) = outcome.failures.keys().next() {
        let (short, why) = shrunk(&program_of(seed, random.remote));
        println!("\nseed {seed}, shrunk:\n{short}VIOLATION: {why}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Random runs of thin volumes. They are not shrunk: their steps depend on each other.
fn thin(which: &Thin) -> ExitCode {
    let seeds = &which.seeds;
    if let Some(steps) = which.every {
        let began = Instant::now();
        let (counts, violations) = sim::thin::every(steps, seeds.jobs());
        println!("programs of up to {steps}: {counts}, {} violations, {:.1?}", violations.len(), began.elapsed());
        violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
        return if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Some(seed) = seeds.seed {
        return match attempt(|| sim::thin::random(seed, seeds.verbose)) {
            Ok(faults) => {
                println!("{faults}everything is as promised");
                ExitCode::SUCCESS
            }
            Err(why) => {
                println!("VIOLATION: {why}\nreplay: cargo run --release -p sim -- thin --seed {seed} --verbose");
                ExitCode::FAILURE
            }
        };
    }
    let outcome = seeds.campaign(500, false).run_seeds(|seed| sim::thin::random(seed, false), Faults::add);
    let SeedResults { total, runs, failures, .. } = &outcome;
    print!("{runs} runs of thin volumes\n{total}{}", violations(failures, "thin "));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
