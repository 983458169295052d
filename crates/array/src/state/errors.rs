//! Counts failed operations of members, by their kind.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kind of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush, a discard, or an answer that never came.
    Other,
    /// An operation that is tried again.
    Retried,
}

/// Failed operations of a member since the group was assembled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemberErrors {
    /// Reads that failed for good.
    pub reads: u64,
    /// Writes that failed for good.
    pub writes: u64,
    /// Flushes and discards that failed for good, and members given up since they did not answer.
    pub others: u64,
    /// Operations that failed and were tried again.
    pub retries: u64,
}

/// As [`MemberErrors`], counted by all shards.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    retries: AtomicU64,
}

impl ErrorCounters {
    pub fn count(&self, failed: Failed) {
        let counter = match failed {
            Failed::Read => &self.reads,
            Failed::Write => &self.writes,
            Failed::Other => &self.others,
            Failed::Retried => &self.retries,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn load(&self) -> MemberErrors {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemberErrors {
            reads: load(&self.reads),
            writes: load(&self.writes),
            others: load(&self.others),
            retries: load(&self.retries),
        }
    }
}
