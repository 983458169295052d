//! Rate limiter for messages of the daemon's log. A host or a drive that causes a thousand events a
//! second gets one line per [`EVERY`], with the number of events.

use std::collections::BTreeMap;
use std::time::Duration;

use drive::Nanos;

/// Shortest time between two lines for a key.
const EVERY: Duration = Duration::from_secs(10);

/// Most keys that have a line of their own. Unknown peers choose their names, so there is a limit;
/// all further keys share a line.
const KEYS_MAX: usize = 256;

/// A rate limiter for lines of the daemon's log, with one budget for each key.
#[derive(Debug)]
pub struct LogLimiter<K> {
    keys: BTreeMap<K, Line>,
    /// The line of all keys beyond [`KEYS_MAX`].
    others: Line,
}

#[derive(Debug, Default)]
struct Line {
    written: Option<Nanos>,
    count: u64,
}

impl Line {
    fn is_due(&self, now: Nanos) -> bool {
        self.written.is_none_or(|written| now.saturating_sub(written) >= EVERY.as_nanos() as Nanos)
    }

    fn happened(&mut self, now: Nanos) -> Option<u64> {
        self.count += 1;
        if !self.is_due(now) {
            return None;
        }
        self.written = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

impl<K> Default for LogLimiter<K> {
    fn default() -> Self {
        LogLimiter { keys: BTreeMap::new(), others: Line::default() }
    }
}

impl<K: Ord> LogLimiter<K> {
    /// Counts an event of this key. Returns `Some` if a line is to be written: the number of events
    /// that it stands for, this one included.
    pub fn happened(&mut self, key: K, now: Nanos) -> Option<u64> {
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
            self.keys.retain(|_, line| !line.is_due(now) || line.count > 0);
            if self.keys.len() >= KEYS_MAX {
                return self.others.happened(now);
            }
        }
        self.keys.entry(key).or_default().happened(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Nanos = EVERY.as_nanos() as Nanos;

    #[test]
    fn events_that_happen_often_share_a_line_with_their_number() {
        let mut limiter = LogLimiter::default();
        assert_eq!(limiter.happened("a", 5), Some(1));
        assert_eq!((limiter.happened("a", 5), limiter.happened("a", 4 + LATER)), (None, None));
        assert_eq!(limiter.happened("b", 6), Some(1), "another key has a line of its own");
        assert_eq!((limiter.happened("a", 5 + LATER), limiter.happened("a", 6 + LATER)), (Some(3), None));
    }

    #[test]
    fn strangers_who_change_their_names_share_a_line_and_take_no_memory() {
        let mut limiter = LogLimiter::default();
        let lines = (0..100_000u32).filter(|&name| limiter.happened(name, 1).is_some()).count();
        assert_eq!((lines, limiter.keys.len()), (KEYS_MAX + 1, KEYS_MAX));
        assert_eq!(limiter.happened(100_000, 1 + LATER), Some(1), "names that are quiet again make room");
    }
}
