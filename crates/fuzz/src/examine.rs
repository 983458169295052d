//! Runs a target on one input, and detects violations.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use crate::memory;
use crate::target::Target;

/// A violation of a target's promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It panicked: a check failed, or the code under test did not expect the input.
    Panic {
        /// The place, as `file:line:column`.
        place: String,
        /// The message.
        message: String,
    },
    /// It used more memory at one time than its input justifies.
    Memory {
        /// Most bytes that it used at one time.
        peak_bytes: usize,
        /// Bytes allowed for an input of this length.
        limit_bytes: usize,
    },
    /// It did not end; see [`crate::run`].
    Time {
        /// The time it may take.
        limit: Duration,
    },
}

impl Finding {
    /// True if two findings are the same fault as far as that can be determined: the same place,
    /// even if the numbers differ.
    pub fn is_like(&self, other: &Finding) -> bool {
        match (self, other) {
            (Finding::Panic { place, .. }, Finding::Panic { place: other, .. }) => place == other,
            (Finding::Memory { .. }, Finding::Memory { .. }) | (Finding::Time { .. }, Finding::Time { .. }) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Panic { place, message } => write!(formatter, "panicked at {place}: {message}"),
            Finding::Memory { peak_bytes, limit_bytes } => {
                write!(formatter, "took {peak_bytes} bytes of memory, {limit_bytes} are allowed")
            }
            Finding::Time { limit } => write!(formatter, "did not end within {limit:?}"),
        }
    }
}

thread_local! {
    static EXAMINING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Keeps the message of a panic in a target instead of printing it. Other panics are printed as
/// usual.
fn catch_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXAMINING.get() {
                return before(info);
            }
            let place = info.location().map_or_else(String::new, ToString::to_string);
            let message = info.payload_as_str().unwrap_or("(no message)").to_owned();
            PANIC.set(Some((place, message)));
        }));
    });
}

/// Runs `target` on `input`.
///
/// # Errors
/// [`Finding`], if it panicked or used too much memory.
pub fn examine(target: &Target, input: &[u8]) -> Result<(), Finding> {
    catch_messages();
    EXAMINING.set(true);
    let (result, peak_bytes) = memory::measure(|| panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    EXAMINING.set(false);
    if result.is_err() {
        let (place, message) = PANIC.take().unwrap_or_default();
        return Err(Finding::Panic { place, message });
    }
    let limit_bytes = target.memory.limit_bytes(input.len());
    if peak_bytes > limit_bytes { Err(Finding::Memory { peak_bytes, limit_bytes }) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::target::Memory;

    /// A target of tests. It may take 1000 bytes of memory, and two more for each byte.
    pub(crate) fn target(run: fn(&[u8])) -> Target {
        let memory = Memory { base_bytes: 1000, per_input_byte: 2 };
        Target {
            name: "test",
            checks: "",
            run,
            seeds: Vec::new,
            stored: Vec::new,
            dictionary: &[],
            input_bytes_max: 100,
            memory,
        }
    }

    #[test]
    fn a_panic_is_caught_with_its_message_and_place() {
        let found = examine(&target(|input| assert!(input.is_empty(), "not {}", input.len())), &[1, 2]);
        let Err(Finding::Panic { place, message }) = found else { panic!("{found:?}") };
        assert!(place.contains("examine.rs:") && message == "not 2", "{place} {message}");
        assert_eq!(examine(&target(|_| ()), &[]), Ok(()));
    }

    #[test]
    fn memory_that_the_input_does_not_justify_is_a_finding() {
        let greedy = target(|input| drop(std::hint::black_box(vec![0u8; usize::from(input[0]) << 24])));
        assert_eq!(examine(&greedy, &[0]), Ok(()));
        let found = examine(&greedy, &[255]);
        assert!(matches!(found, Err(Finding::Memory { peak_bytes: 4_278_190_080, limit_bytes: 1002 })), "{found:?}");
    }
}
