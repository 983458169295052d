//! Noticing an input that never ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::corpus;
use crate::target::Target;

/// No input takes a target milliseconds; one that takes this long, on however busy a machine, is a
/// loop without end.
const HANG: Duration = Duration::from_secs(60);

/// Keeps an eye on one thread that runs inputs. A run that takes longer than a minute ends the
/// process, since nothing else can end it; the input is kept as a crash first.
#[derive(Debug)]
pub struct Watch(Arc<Mutex<Run>>);

#[derive(Debug)]
struct Run {
    /// When the input that is being run was begun.
    since: Option<Instant>,
    input: Vec<u8>,
}

impl Watch {
    /// Begins to watch; ends when it is dropped.
    pub fn new(target: Target) -> Watch {
        let run = Arc::new(Mutex::new(Run { since: None, input: Vec::new() }));
        let watched = Arc::downgrade(&run);
        thread::spawn(move || {
            while let Some(run) = watched.upgrade() {
                let state = run.lock().unwrap_or_else(PoisonError::into_inner);
                if state.since.is_some_and(|since| since.elapsed() > HANG) {
                    let kept = corpus::keep_crash(&target, &state.input);
                    eprintln!("{}: an input of {} bytes does not end; kept: {kept:?}", target.name, state.input.len());
                    std::process::abort();
                }
                drop(state);
                drop(run);
                thread::sleep(Duration::from_millis(500));
            }
        });
        Watch(run)
    }

    /// This input is run now.
    pub fn begin(&self, input: &[u8]) {
        let mut run = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        run.input.clear();
        run.input.extend_from_slice(input);
        run.since = Some(Instant::now());
    }

    /// The run has ended.
    pub fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).since = None;
    }
}
