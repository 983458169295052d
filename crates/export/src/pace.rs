//! Decides when a busy connection waits a moment before it receives, so that more arrives at once.
//!
//! A client with a deep queue on another core sends its requests one by one. A shard that is as
//! fast as the client then receives, serves and sends every request on its own. That costs several
//! times as much as a request in a batch, and wakes the client every time. A wait before each
//! receive makes batches. A client whose queue is deep does not notice, since it still has answers
//! to work on.
//!
//! The client's request rate shows whether that is so. A client of depth q that waits for answers
//! slows down; one that does not keeps its rate. At an equal rate and depth the mean latency is
//! equal, too (Little's law). So the rate decides. It is measured again and again, for each of the
//! [`WAITS`] by itself:
//!
//! ```text
//!            busy                   rate kept                     rate kept     rate kept
//!  Plain ------------> Trial of the ----------> Trial of the next ------> ... --------> Paced by
//!    ^                 shortest wait                  | rate fell                     the longest
//!    |                   | rate fell, or              v                                    |
//!    +-- 2..32 epochs ---+ batches of one      Paced by the one before                     |
//!    |                                                | after 32 epochs, idle,             |
//!    |                                                | or batches of one                  |
//!    +------------------------------------------------+------------------------------------+
//! ```
//! `docs/decisions/nbd-pacing.md` has the measurement.

use std::time::Duration;

use drive::Nanos;

/// The waits before a receive, the shortest first. A fast client works through its answers sooner
/// than a slow one, so it needs a shorter wait. A short wait that makes both sides work in batches
/// may raise the rate so far that a longer one is no loss. All waits are below the time that a
/// drive takes for an operation, or about that.
const WAITS: [Duration; 4] =
    [Duration::from_micros(10), Duration::from_micros(20), Duration::from_micros(50), Duration::from_micros(100)];

/// Requests per measurement of the rate: 10 to 80 ms of a busy client, long enough to average out
/// scheduling.
const EPOCH_REQUESTS: u32 = 4096;

/// A connection is busy if its requests are at most this far apart, in ns. Slower ones cost too
/// little to be worth pacing.
const BUSY_GAP: Nanos = 20_000;

/// Epochs until a decision is checked again: half a second of a fast client.
const HOLD_EPOCHS: u32 = 32;

/// Epochs until a first failed trial is repeated. The number doubles after each further failure, up
/// to [`HOLD_EPOCHS`]. A trial may also fail by chance, when another task takes the core.
const RETRY_EPOCHS: u32 = 2;

/// Waiting stops after this many receives in a row with one request or none: the queue is no longer
/// deep.
const LONELY_MAX: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// No waits. A trial may follow after `rest` epochs.
    Plain { rest: u32 },
    /// Waits of index `wait`, to be compared with an epoch without waits, which took `plain` ns.
    Trial { wait: usize, plain: Nanos },
    /// Waits of index `wait`. A new comparison follows after `rest` epochs.
    Paced { wait: usize, rest: u32 },
}

/// The pacing of one connection.
#[derive(Debug)]
pub(crate) struct Pace {
    mode: Mode,
    /// Start of the epoch.
    since: Nanos,
    /// Requests in the epoch.
    requests: u32,
    lonely: u32,
    /// Rest after the next failed trial of the shortest wait.
    retry: u32,
}

impl Pace {
    pub fn new(now: Nanos) -> Pace {
        Pace { mode: Mode::Plain { rest: 0 }, since: now, requests: 0, lonely: 0, retry: RETRY_EPOCHS }
    }

    /// `requests` came with the last receive, which ended at `now`. Returns how long to wait before
    /// the next receive, if at all.
    #[inline]
    pub fn wait(&mut self, now: Nanos, requests: u32) -> Option<Duration> {
        self.requests += requests;
        if self.requests >= EPOCH_REQUESTS {
            // An epoch may last for months.
            let took =
                now.saturating_sub(self.since).saturating_mul(EPOCH_REQUESTS.into()) / Nanos::from(self.requests);
            self.mode = self.after_epoch(took);
            self.begin_epoch(now);
        }
        // The trial has already failed: the rest of the epoch would only cost more.
        if let Mode::Trial { wait, plain } = self.mode
            && now.saturating_sub(self.since) > plain + plain / 8
        {
            self.mode = self.failed(wait);
            self.begin_epoch(now);
        }
        let (Mode::Trial { wait, .. } | Mode::Paced { wait, .. }) = self.mode else { return None };
        self.lonely = if requests <= 1 { self.lonely + 1 } else { 0 };
        if self.lonely >= LONELY_MAX {
            self.lonely = 0;
            self.mode = self.failed(0);
            return None;
        }
        Some(WAITS[wait])
    }

    fn begin_epoch(&mut self, now: Nanos) {
        self.since = now;
        self.requests = 0;
    }

    /// The state diagram above. `took`: ns per [`EPOCH_REQUESTS`] requests.
    fn after_epoch(&mut self, took: Nanos) -> Mode {
        let busy = took <= BUSY_GAP * Nanos::from(EPOCH_REQUESTS);
        match self.mode {
            Mode::Plain { rest: 0 } if busy => Mode::Trial { wait: 0, plain: took },
            Mode::Plain { rest } => Mode::Plain { rest: rest.saturating_sub(1) },
            // The rate itself varies by more than 1/32.
            Mode::Trial { wait, plain } if took <= plain + plain / 32 => {
                self.retry = RETRY_EPOCHS;
                match wait + 1 {
                    longer if longer < WAITS.len() => Mode::Trial { wait: longer, plain },
                    _ => Mode::Paced { wait, rest: HOLD_EPOCHS },
                }
            }
            Mode::Trial { wait, .. } => self.failed(wait),
            Mode::Paced { wait, rest } if busy && rest > 0 => Mode::Paced { wait, rest: rest - 1 },
            Mode::Paced { .. } => Mode::Plain { rest: 0 },
        }
    }

    /// The wait of this index has failed: goes back to the next shorter one, which did not slow the
    /// client down.
    fn failed(&mut self, wait: usize) -> Mode {
        if let Some(shorter) = wait.checked_sub(1) {
            return Mode::Paced { wait: shorter, rest: HOLD_EPOCHS };
        }
        let rest = self.retry;
        self.retry = (rest * 2).min(HOLD_EPOCHS);
        Mode::Plain { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a client that keeps `depth` requests in flight and needs `think` ns for each, against a
    /// server that needs `batch` ns for a batch and `each` for each request in it. Returns the
    /// share of requests that came after a wait, and the time per request without pacing and with
    /// it.
    fn closed_loop(depth: u32, think: Nanos, batch: Nanos, each: Nanos) -> (f64, Nanos, Nanos) {
        let run = |pace: &mut Option<Pace>| {
            let (mut now, mut served, mut behind_waits, mut wait) = (0, 0u64, 0u64, None);
            // When the client has worked on all its answers.
            let mut client_free = 0;
            // When each request will have arrived.
            let mut arrivals: std::collections::VecDeque<Nanos> = (0..depth).map(|_| 0).collect();
            while served < 1_600_000 {
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
                behind_waits += if wait.is_some() { u64::from(got) } else { 0 };
                wait = pace.as_mut().and_then(|pace| pace.wait(now, got));
                now += wait.map_or(0, |wait| wait.as_nanos() as Nanos);
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
    fn the_longest_wait_is_taken_that_keeps_the_rate() {
        // A request takes longer if the connection waits for `slow_from` or more.
        let taken = |slow_from: Duration| {
            let mut pace = Pace::new(0);
            let (mut now, mut wait) = (0, None);
            for _ in 0..8 * EPOCH_REQUESTS / 4 {
                now += 4 * if wait.is_some_and(|wait| wait >= slow_from) { 9_000 } else { 8_000 };
                wait = pace.wait(now, 4);
            }
            wait
        };
        assert_eq!(taken(Duration::from_secs(1)), WAITS.last().copied());
        assert_eq!(taken(WAITS[3]), Some(WAITS[2]));
        assert_eq!(taken(WAITS[1]), Some(WAITS[0]));
        assert_eq!(taken(WAITS[0]), None);
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
        assert!((1..100_000u64).all(|index| pace.wait(index * 50_000, 2).is_none()));
    }

    #[test]
    fn waiting_ends_when_the_queue_gets_shallow() {
        let mut pace = Pace::new(0);
        let mut now = 0;
        while pace.wait(now, 4).is_none() {
            now += 30_000;
        }
        let lonely = (0..100).take_while(|_| pace.wait(now, 1).is_some()).count();
        assert!(lonely < LONELY_MAX as usize, "{lonely}");
        assert!(pace.wait(now, 4).is_none(), "and does not begin again at once");
    }
}
