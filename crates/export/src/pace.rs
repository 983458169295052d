//! When a busy connection waits a moment before it receives, so that more arrives at once.
//!
//! A client with a deep queue on another core sends its requests one by one. A shard that is as fast as the client then
//! receives, serves and sends every request on its own, at several times the cost of one in a batch, and wakes the client
//! as often. Waiting [`WAIT`] before a receive makes batches; a client whose queue is deep does not notice, since it still
//! has answers to work on. Whether that is so shows in the rate at which it sends: a client of depth q that waits for
//! answers slows down, one that does not keeps its rate, and at an equal rate and depth the mean latency is equal too
//! (Little's law). So the rate decides, measured again and again:
//!
//! ```text
//!            busy                rate kept                  after 64 epochs
//!  Plain ------------> Trial --------------------> Paced -------------------> Plain
//!    ^                   | rate fell, or batches of one     | idle, or batches of one
//!    +-- 4..64 epochs ---+                                  |
//!    +------------------------------------------------------+
//! ```
//! `docs/decisions/nbd-pacing.md` has the measurement.

use std::time::Duration;

use drive::Nanos;

/// The wait before a receive: some six requests of a client that sends one in 8 us. Below the time that a drive takes for
/// an operation.
pub(crate) const WAIT: Duration = Duration::from_micros(50);

/// Requests after which the rate is looked at: some 10 ms of a busy client, long enough to see more than scheduling.
const EPOCH_REQUESTS: u32 = 1024;

/// A connection is busy if its requests come at least this close, in ns. Slower ones cost too little to save at.
const BUSY_GAP: Nanos = 20_000;

/// Epochs until a decision is looked at again: half a second of a busy client.
const HOLD_EPOCHS: u32 = 64;

/// Epochs until a first failed trial is repeated; twice as many after each further one, up to [`HOLD_EPOCHS`]. A trial
/// fails by chance too, when something else takes the core.
const RETRY_EPOCHS: u32 = 4;

/// Receives with one request or none, in a row, after which waiting is given up: the queue is not deep any more.
const LONELY_MAX: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// No waits. A trial may follow after that many epochs.
    Plain { rest: u32 },
    /// Waits, to be compared with an epoch without, which took `plain` ns.
    Trial { plain: Nanos },
    /// Waits. A new comparison follows after that many epochs.
    Paced { rest: u32 },
}

/// Decides for one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    mode: Mode,
    /// Start of the epoch.
    since: Nanos,
    /// Requests in the epoch.
    requests: u32,
    lonely: u32,
    /// Rest after the next failed trial.
    retry: u32,
}

impl Pace {
    pub fn new(now: Nanos) -> Pace {
        Pace { mode: Mode::Plain { rest: 0 }, since: now, requests: 0, lonely: 0, retry: RETRY_EPOCHS }
    }

    /// `requests` came with the last receive, which ended at `now`. Returns whether to wait before the next.
    #[inline]
    pub fn waits(&mut self, now: Nanos, requests: u32) -> bool {
        self.requests += requests;
        if self.requests >= EPOCH_REQUESTS {
            let took = now.saturating_sub(self.since) * Nanos::from(EPOCH_REQUESTS) / Nanos::from(self.requests);
            self.mode = self.after_epoch(took);
            self.since = now;
            self.requests = 0;
        }
        match self.mode {
            Mode::Plain { .. } => return false,
            // Already lost: what is left of the epoch would only cost more.
            Mode::Trial { plain } if now.saturating_sub(self.since) > plain + plain / 8 => {
                self.mode = self.failed();
                return false;
            }
            Mode::Trial { .. } | Mode::Paced { .. } => {}
        }
        self.lonely = if requests <= 1 { self.lonely + 1 } else { 0 };
        if self.lonely >= LONELY_MAX {
            self.lonely = 0;
            self.mode = self.failed();
            return false;
        }
        true
    }

    /// The table above. `took`: ns per [`EPOCH_REQUESTS`] requests.
    fn after_epoch(&mut self, took: Nanos) -> Mode {
        let busy = took <= BUSY_GAP * Nanos::from(EPOCH_REQUESTS);
        match self.mode {
            Mode::Plain { rest: 0 } if busy => Mode::Trial { plain: took },
            Mode::Plain { rest } => Mode::Plain { rest: rest.saturating_sub(1) },
            // A thirty-second is below what a rate varies by itself.
            Mode::Trial { plain } if took <= plain + plain / 32 => {
                self.retry = RETRY_EPOCHS;
                Mode::Paced { rest: HOLD_EPOCHS }
            }
            Mode::Trial { .. } => self.failed(),
            Mode::Paced { rest } if busy && rest > 0 => Mode::Paced { rest: rest - 1 },
            Mode::Paced { .. } => Mode::Plain { rest: 0 },
        }
    }

    fn failed(&mut self) -> Mode {
        let rest = self.retry;
        self.retry = (rest * 2).min(HOLD_EPOCHS);
        Mode::Plain { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a client that keeps `depth` requests in flight and needs `think` ns for each, against a server that needs
    /// `batch` ns for a batch and `each` for each request in it. Gives the share of requests that came behind a
    /// wait, and the time per request without pacing and with it.
    fn closed_loop(depth: u32, think: Nanos, batch: Nanos, each: Nanos) -> (f64, Nanos, Nanos) {
        let run = |pace: &mut Option<Pace>| {
            let (mut now, mut served, mut behind_waits, mut waits) = (0, 0u64, 0u64, false);
            // When the client has worked on everything it was given.
            let mut client_free = 0;
            // When each request will have arrived.
            let mut arrivals: std::collections::VecDeque<Nanos> = (0..depth).map(|_| 0).collect();
            while served < 400_000 {
                if let Some(&first) = arrivals.front() {
                    now = now.max(first);
                }
                let mut got = 0;
                while arrivals.front().is_some_and(|&at| at <= now) {
                    arrivals.pop_front();
                    got += 1;
                }
                now += batch + each * Nanos::from(got);
                for _ in 0..got {
                    client_free = client_free.max(now) + think;
                    arrivals.push_back(client_free);
                }
                served += u64::from(got);
                behind_waits += if waits { u64::from(got) } else { 0 };
                waits = pace.as_mut().is_some_and(|pace| pace.waits(now, got));
                now += if waits { WAIT.as_nanos() as Nanos } else { 0 };
            }
            (behind_waits as f64 / served as f64, now / served)
        };
        let plain = run(&mut None).1;
        let (waits, paced) = run(&mut Some(Pace::new(0)));
        (waits, plain, paced)
    }

    #[test]
    fn a_deep_queue_is_paced_and_keeps_its_rate() {
        for depth in [16, 32, 128] {
            let (waits, plain, paced) = closed_loop(depth, 8_000, 5_000, 2_000);
            assert!(waits > 0.5, "depth {depth}: {waits}");
            assert!(paced <= plain + plain / 20, "depth {depth}: {paced} ns a request, {plain} without");
        }
    }

    #[test]
    fn a_shallow_queue_is_left_alone() {
        for depth in [1, 2, 3] {
            let (waits, plain, paced) = closed_loop(depth, 3_000, 3_000, 2_000);
            assert!(waits < 0.05, "depth {depth}: {waits}");
            assert!(paced <= plain + plain / 20, "depth {depth}: {paced} ns a request, {plain} without");
        }
    }

    #[test]
    fn a_slow_connection_never_waits() {
        let mut pace = Pace::new(0);
        assert!((1..100_000u64).all(|index| !pace.waits(index * 50_000, 2)));
    }

    #[test]
    fn waiting_ends_when_the_queue_gets_shallow() {
        let mut pace = Pace::new(0);
        let mut now = 0;
        while !pace.waits(now, 4) {
            now += 30_000;
        }
        let lonely = (0..100).take_while(|_| pace.waits(now, 1)).count();
        assert!(lonely < LONELY_MAX as usize, "{lonely}");
        assert!(!pace.waits(now, 4), "and does not begin again at once");
    }
}
