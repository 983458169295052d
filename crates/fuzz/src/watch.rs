//! Detects an input that never ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::corpus;
use crate::target::Target;

/// No input takes even milliseconds. If one takes this long, even on a busy machine, it is in an
/// endless loop.
const HANG: Duration = Duration::from_secs(60);

/// Watches one thread that runs inputs. A run that takes longer than a minute ends the process,
/// because nothing else can end it. The input is stored as a crash before.
#[derive(Debug)]
pub struct Watch(Arc<Mutex<Run>>);

#[derive(Debug)]
struct Run {
    /// When the current input was started.
    since: Option<Instant>,
    input: Vec<u8>,
}

impl Watch {
    /// Starts to watch. The watch ends when it is dropped.
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

    /// The run of this input begins.
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
