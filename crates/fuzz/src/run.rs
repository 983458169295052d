//! Runs many inputs one after the other, and detects one that never ends.

use std::panic;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::examine::{Finding, examine};
use crate::target::Target;

/// No input takes even seconds. If one takes this long, even on a busy machine, it is in an endless
/// loop.
pub const INPUT_TIME_MAX: Duration = Duration::from_secs(60);

/// A finding, with an input that causes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The violation.
    pub finding: Finding,
    /// The shortest of the inputs that caused it.
    pub input: Vec<u8>,
}

/// Progress of a run.
#[derive(Debug, Default)]
struct Progress {
    /// When the current input was started, and the input.
    current: Option<(Instant, Vec<u8>)>,
    crashes: Vec<Crash>,
}

impl Progress {
    fn add(&mut self, finding: Finding, input: Vec<u8>) {
        match self.crashes.iter_mut().find(|crash| crash.finding.is_like(&finding)) {
            None => self.crashes.push(Crash { finding, input }),
            Some(crash) if input.len() < crash.input.len() => *crash = Crash { finding, input },
            Some(_) => {}
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `inputs` one after the other. Returns each violation once.
///
/// An input that takes longer than [`INPUT_TIME_MAX`] is the last one. Nothing can end it, so its
/// thread remains until the process ends.
pub fn run(target: &Target, inputs: impl Iterator<Item = Vec<u8>> + Send + 'static) -> Vec<Crash> {
    run_within(INPUT_TIME_MAX, *target, inputs)
}

fn run_within(
    time_max: Duration,
    target: Target,
    inputs: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> Vec<Crash> {
    let progress = Arc::new(Mutex::new(Progress::default()));
    let (running, has_ended) = mpsc::channel::<()>();
    let runner = thread::spawn({
        let progress = Arc::clone(&progress);
        move || {
            for input in inputs {
                lock(&progress).current = Some((Instant::now(), input.clone()));
                let result = examine(&target, &input);
                let mut progress = lock(&progress);
                progress.current = None;
                if let Err(finding) = result {
                    progress.add(finding, input);
                }
            }
            // The end of the channel is the end of the run, also if the iterator panics.
            drop(running);
        }
    });
    while has_ended.recv_timeout(time_max / 100) == Err(RecvTimeoutError::Timeout) {
        let mut progress = lock(&progress);
        if let Some((_, input)) = progress.current.take_if(|(since, _)| since.elapsed() > time_max) {
            progress.add(Finding::Time { limit: time_max }, input);
            return progress.crashes.clone();
        }
    }
    runner.join().unwrap_or_else(|message| panic::resume_unwind(message));
    std::mem::take(&mut lock(&progress).crashes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examine::tests::target;

    #[test]
    fn a_violation_is_returned_once_with_its_shortest_input() {
        let target = target(|input| {
            assert!(!input.starts_with(b"one"), "{} bytes", input.len());
            assert!(!input.starts_with(b"two"), "two");
        });
        let inputs = ["one longer", "fine", "one", "two", "one long"].map(|input| input.as_bytes().to_vec());
        let crashes = run(&target, inputs.into_iter());
        assert_eq!(crashes.iter().map(|crash| &crash.input[..]).collect::<Vec<_>>(), [b"one", b"two"]);
        assert!(crashes[0].finding.to_string().ends_with("3 bytes"), "{}", crashes[0].finding);
    }

    #[test]
    fn an_input_that_never_ends_is_a_violation_and_the_last_one() {
        let endless = target(|input| {
            if input == b"endless" {
                loop {
                    thread::park();
                }
            }
        });
        let limit = Duration::from_millis(100);
        let inputs = ["fine", "endless", "after"].map(|input| input.as_bytes().to_vec());
        let crashes = run_within(limit, endless, inputs.into_iter());
        assert_eq!(crashes, [Crash { finding: Finding::Time { limit }, input: b"endless".to_vec() }]);
    }

    #[test]
    #[should_panic(expected = "no more inputs")]
    fn a_panic_of_the_generator_is_not_a_violation() {
        run(&target(|_| ()), std::iter::from_fn(|| panic!("no more inputs")));
    }
}
