//! The fuzzing loop: choose an input, mutate it, run it, and keep it if it reached new code.

use std::time::{Duration, Instant};

use crate::coverage::Coverage;
use crate::examine::{Finding, examine};
use crate::minimise::minimise;
use crate::mutate::{Mutator, neighbours};
use crate::rng::Rng;
use crate::target::{Seed, Target};
use crate::watch::Watch;

/// Most runs to minimize one crash.
const MINIMISE_TRIES: usize = 20_000;

/// Inputs of the random walk, which replaces coverage in a build without instrumentation.
const WALK: usize = 64;

/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The extent of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Makes a run repeatable: the same seed and corpus give the same inputs.
    pub seed: u64,
    /// Most mutated inputs to run.
    pub runs: u64,
    /// Time after which the run stops. With `None` only `runs` ends it, so that a run repeats
    /// exactly.
    pub time: Option<Duration>,
    /// Most neighbors of each corpus input that run before mutations; see [`neighbours`].
    pub neighbours_max: usize,
}

/// A crash, with an input that is as small as possible.
#[derive(Debug, Clone)]
pub struct Crash {
    /// The violation.
    pub finding: Finding,
    /// The input.
    pub input: Vec<u8>,
}

/// Progress of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of inputs that were run.
    pub runs: u64,
    /// Time since the start.
    pub elapsed: Duration,
    /// Crashes at different places.
    pub crashes: Vec<Crash>,
    /// Inputs that reached code that no earlier input did, without the corpus.
    pub discovered: Vec<Vec<u8>>,
    /// Edges that were reached, and all edges. Zeroes in a build without instrumentation.
    pub edges: (usize, usize),
}

struct Fuzzing<'a> {
    target: &'a Target,
    coverage: Coverage,
    watch: Watch,
    start: Instant,
    report: Report,
}

impl Fuzzing<'_> {
    /// Runs one input. Returns true if it reached new code.
    fn run(&mut self, input: &[u8]) -> bool {
        self.report.runs += 1;
        self.watch.begin(input);
        // Discard the counts from choosing and mutating the input.
        self.coverage.learn();
        let result = examine(self.target, input);
        let new = self.coverage.learn();
        self.watch.end();
        let Err(finding) = result else { return new > 0 };
        if self.report.crashes.iter().all(|crash| !crash.finding.is_like(&finding)) {
            let input = minimise(self.target, input, &finding, MINIMISE_TRIES);
            self.report.crashes.push(Crash { finding, input });
        }
        false
    }

    fn report(&mut self) -> &Report {
        self.report.elapsed = self.start.elapsed();
        self.report.edges = (self.coverage.reached(), self.coverage.edges());
        &self.report
    }
}

/// Fuzzes `target`: first runs `corpus`, then its neighbors, then mutations. `tell` is called with
/// the progress now and then.
pub fn fuzz(target: &Target, corpus: &[Seed], plan: &Plan, mut tell: impl FnMut(&Report)) -> Report {
    let mut rng = Rng::new(plan.seed);
    let mutator = Mutator::new(target.dictionary, target.input_bytes_max);
    let mut fuzzing = Fuzzing {
        target,
        coverage: Coverage::new(),
        watch: Watch::new(*target),
        start: Instant::now(),
        report: Report::default(),
    };
    let mut told = Instant::now();
    let mut tell_sometimes = |fuzzing: &mut Fuzzing<'_>| {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(fuzzing.report());
        }
    };

    let mut pool: Vec<Vec<u8>> = vec![Vec::new()];
    pool.extend(corpus.iter().map(|seed| seed.bytes.clone()));
    for input in &pool {
        fuzzing.run(input);
    }
    // Neighbors take at most half of the time, so that a large corpus leaves time for mutations.
    let enough = |fuzzing: &Fuzzing<'_>| plan.time.is_some_and(|time| fuzzing.start.elapsed() >= time / 2);
    for seed in corpus {
        for input in neighbours(&seed.bytes, plan.neighbours_max) {
            if enough(&fuzzing) {
                break;
            }
            fuzzing.run(&input);
            tell_sometimes(&mut fuzzing);
        }
    }

    let mut walk: Vec<Vec<u8>> = Vec::with_capacity(WALK);
    let mut input = Vec::new();
    for mutated in 0..plan.runs {
        if mutated % 64 == 0 {
            if plan.time.is_some_and(|time| fuzzing.start.elapsed() >= time) {
                break;
            }
            tell_sometimes(&mut fuzzing);
        }
        let base =
            if !walk.is_empty() && rng.one_in(4) { &walk[rng.below(walk.len())] } else { choose(&mut rng, &pool) };
        input.clear();
        input.extend_from_slice(base);
        let other = &pool[rng.below(pool.len())];
        mutator.mutate(&mut rng, &mut input, other);
        if fuzzing.run(&input) {
            fuzzing.report.discovered.push(input.clone());
            pool.push(input.clone());
        } else if rng.one_in(16) {
            if walk.len() < WALK { walk.push(input.clone()) } else { walk[rng.below(WALK)].clone_from(&input) }
        }
    }
    fuzzing.report();
    fuzzing.report
}

/// Chooses an input. Half of the time it is one of the latest, which have been tried least.
fn choose<'a>(rng: &mut Rng, pool: &'a [Vec<u8>]) -> &'a Vec<u8> {
    let from = if rng.one_in(2) { pool.len().saturating_sub(32) } else { 0 };
    &pool[from + rng.below(pool.len() - from)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Memory;

    const TARGET: Target = Target {
        name: "engine-test",
        checks: "",
        run: |input| assert!(!input.starts_with(b"crash") || input.len() != 7, "found"),
        seeds: || vec![Seed::new("near", b"cras".as_slice())],
        stored: Vec::new,
        dictionary: &[b"h"],
        input_bytes_max: 16,
        memory: Memory { base_bytes: 1 << 20, per_input_byte: 16 },
    };

    #[test]
    fn a_fault_behind_a_magic_and_a_length_is_found_once_and_the_same_seed_finds_it_again() {
        let plan = Plan { seed: 5, runs: 50_000, time: None, neighbours_max: 100 };
        let reports = [0, 1].map(|_| fuzz(&TARGET, &(TARGET.seeds)(), &plan, |_| ()));
        assert_eq!(reports[0].crashes.len(), 1);
        assert!(reports[0].crashes[0].input.starts_with(b"crash"));
        assert_eq!(reports[0].crashes[0].input, reports[1].crashes[0].input);
        assert_eq!(reports[0].runs, reports[1].runs);
    }
}
