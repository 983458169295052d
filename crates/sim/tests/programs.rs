//! Random programs, as the simulator's command runs them.

use sim::campaign::{Campaign, attempt};
use sim::engine::history::Request;
use sim::program::execute::execute;
use sim::program::generate::generate;
use sim::program::promise::is_promised;
use sim::program::shrink::shrink;
use sim::program::{Program, Step};

#[test]
fn random_programs_within_the_table_of_faults_keep_every_promise() {
    let runs = std::env::var("PURLIN_SIM_RUNS").ok().map_or(400, |runs| runs.parse().expect("a number"));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let outcome = Campaign { from: 0, runs, time: None, jobs, progress: false }.run();
    println!("{}", outcome.summary());
    assert!(outcome.failures.is_empty(), "{}", outcome.summary());
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..30 {
        let program = generate(seed);
        assert_eq!(program, generate(seed), "seed {seed}");
        let results = [attempt(|| execute(&program, false)), attempt(|| execute(&program, false))];
        assert_eq!(results[0], results[1], "seed {seed}");
    }
}

#[test]
fn programs_stay_within_what_is_promised_also_while_they_are_shrunk() {
    let cut = |step: &Step| matches!(step, Step::PowerCut { .. });
    let discards = |step: &Step| match step {
        Step::Work(asks) => asks.iter().any(|ask| ask.request == Request::Discard),
        _ => false,
    };
    // As if a discard after a power cut were a bug.
    let fails = |program: &Program| {
        assert!(is_promised(program));
        let first = program.steps.iter().position(cut);
        first.is_some_and(|first| program.steps[first..].iter().any(discards))
    };
    let mut shrunk = 0;
    for seed in 0..2000 {
        let program = generate(seed);
        assert!(is_promised(&program), "seed {seed}:\n{program}");
        if shrunk < 20 && fails(&program) {
            shrunk += 1;
            let short = shrink(&program, fails);
            assert_eq!(short.steps.len(), 2, "seed {seed}:\n{short}");
        }
    }
    assert_eq!(shrunk, 20, "enough programs have what is looked for");
}
