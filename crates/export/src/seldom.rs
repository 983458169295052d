//! What strangers can make happen, said now and then: whoever opens thousands of connections shall not fill the log as well.

use std::time::Duration;

use drive::Nanos;

/// How often at most it is said.
const EVERY: Duration = Duration::from_secs(10);

/// Something that is said seldom, and with how often it has happened.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    said: Option<Nanos>,
    count: u64,
}

impl Seldom {
    /// It has happened. `Some` if that is to be said: how often, since it was said last.
    pub fn happened(&mut self, now: Nanos) -> Option<u64> {
        self.count += 1;
        if self.said.is_some_and(|said| now.saturating_sub(said) < EVERY.as_nanos() as Nanos) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_said_seldom_and_with_its_number() {
        let mut seldom = Seldom::default();
        assert_eq!(seldom.happened(5), Some(1));
        assert_eq!((seldom.happened(5), seldom.happened(6)), (None, None));
        let again = 5 + EVERY.as_nanos() as Nanos;
        assert_eq!((seldom.happened(again - 1), seldom.happened(again), seldom.happened(again)), (None, Some(4), None));
    }
}
