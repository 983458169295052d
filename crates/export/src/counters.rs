//! Counters of an export, readable from any thread without stopping it.
//!
//! A connection lives on one shard, and this shard is the only writer of its counters. So counting
//! a request takes a plain load and a plain store, and no locked instruction. An export's counters
//! are the sum of its live connections and of the totals that ended ones left behind.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Give space back.
    Trim,
    /// A hint that a range will be accessed.
    Cache,
    /// Zero a range.
    WriteZeroes,
    /// Query the allocation.
    BlockStatus,
    /// Register, acquire, release and report reservations.
    Reservation,
}

/// Number of [`Kind`]s.
pub const KINDS: usize = 8;

impl Kind {
    /// All kinds, in order of their number.
    pub const ALL: [Kind; KINDS] = [
        Kind::Read,
        Kind::Write,
        Kind::Flush,
        Kind::Trim,
        Kind::Cache,
        Kind::WriteZeroes,
        Kind::BlockStatus,
        Kind::Reservation,
    ];

    /// Name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Trim => "trim",
            Kind::Cache => "cache",
            Kind::WriteZeroes => "write_zeroes",
            Kind::BlockStatus => "block_status",
            Kind::Reservation => "reservation",
        }
    }
}

/// Buckets of a latency histogram. Bucket 0 counts requests below 1 us, bucket n those from 2^(n-1)
/// us to below 2^n us. The last bucket counts all above: 2^22 us are 4 s, beyond which finer
/// buckets would be of no use.
pub const LATENCY_BUCKETS: usize = 24;

/// Answered requests by [`Kind`] and time from the request's arrival to its answer. There may be
/// one of these for each host and namespace, and most clients use few kinds. So a kind that was
/// never used takes no memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies([Option<Box<[u64; LATENCY_BUCKETS]>>; KINDS]);

impl Latencies {
    /// The requests in each bucket for one kind.
    pub fn of(&self, kind: Kind) -> &[u64; LATENCY_BUCKETS] {
        self.0[kind as usize].as_deref().unwrap_or(&[0; LATENCY_BUCKETS])
    }

    fn add(&mut self, other: &Latencies) {
        for (sum, other) in self.0.iter_mut().zip(&other.0) {
            let Some(other) = other else { continue };
            let sum = sum.get_or_insert_default();
            sum.iter_mut().zip(&other[..]).for_each(|(sum, other)| *sum += other);
        }
    }
}

/// Counters at one moment. All of them only grow, except `in_flight`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Accepted requests, by [`Kind`].
    pub requests: [u64; KINDS],
    /// Bytes that reads delivered.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Requests answered with an error, refused ones included.
    pub errors: u64,
    /// Of those errors, reads of data that neither a drive nor redundancy can deliver. NVMe hosts
    /// only.
    pub media_errors: u64,
    /// Requests being served now.
    pub in_flight: u64,
    /// Latencies of the answered requests.
    pub latency_us: Latencies,
}

impl Counters {
    /// Adds another set.
    pub fn add(&mut self, other: &Counters) {
        self.requests.iter_mut().zip(other.requests).for_each(|(sum, other)| *sum += other);
        self.latency_us.add(&other.latency_us);
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
        self.media_errors += other.media_errors;
        self.in_flight += other.in_flight;
    }
}

/// Counters of one connection, written by its shard alone.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    requests: [AtomicU64; KINDS],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    media_errors: AtomicU64,
    answered: AtomicU64,
    /// One histogram for each kind that was used.
    latency_us: [OnceLock<Box<[AtomicU64; LATENCY_BUCKETS]>>; KINDS],
}

/// Only the owning shard writes, so no update is lost between the load and the store.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The bucket of a latency.
#[inline]
fn bucket(nanos: u64) -> usize {
    let micros = nanos / 1000;
    ((u64::BITS - micros.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

impl LiveCounters {
    #[inline]
    pub fn accepted(&self, kind: Kind) {
        bump(&self.requests[kind as usize], 1);
    }

    #[inline]
    pub fn answered(&self, kind: Kind, nanos: u64, failed: bool) {
        bump(&self.answered, 1);
        let latencies = self.latency_us[kind as usize].get_or_init(Default::default);
        bump(&latencies[bucket(nanos)], 1);
        if failed {
            bump(&self.errors, 1);
        }
    }

    pub fn refused(&self) {
        bump(&self.errors, 1);
    }

    /// A failed request, already counted by [`LiveCounters::answered`], was a read of lost data.
    pub fn media_error(&self) {
        bump(&self.media_errors, 1);
    }

    #[inline]
    pub fn read(&self, bytes: u64) {
        bump(&self.read_bytes, bytes);
    }

    #[inline]
    pub fn written(&self, bytes: u64) {
        bump(&self.written_bytes, bytes);
    }

    pub fn snapshot(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Loaded before `requests`, so that the difference is never below 0.
        let answered = read(&self.answered);
        let requests = self.requests.each_ref().map(read);
        Counters {
            requests,
            read_bytes: read(&self.read_bytes),
            written_bytes: read(&self.written_bytes),
            errors: read(&self.errors),
            media_errors: read(&self.media_errors),
            in_flight: requests.iter().sum::<u64>().saturating_sub(answered),
            latency_us: Latencies(
                self.latency_us.each_ref().map(|row| row.get().map(|row| Box::new(row.each_ref().map(read)))),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_buckets_are_powers_of_two_microseconds() {
        for (nanos, expected) in [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (4_000_000, 12), (u64::MAX, 23)] {
            assert_eq!(bucket(nanos), expected, "{nanos} ns");
        }
    }

    #[test]
    fn what_was_accepted_and_not_answered_is_in_flight() {
        let live = LiveCounters::default();
        live.accepted(Kind::Read);
        live.accepted(Kind::Write);
        live.answered(Kind::Read, 5000, true);
        live.refused();
        let now = live.snapshot();
        assert_eq!((now.in_flight, now.errors, now.latency_us.of(Kind::Read)[3]), (1, 2, 1));
        let mut sum = now.clone();
        sum.add(&now);
        assert_eq!((sum.requests[1], sum.in_flight), (2, 2));
    }
}
