//! Counters of the operations of a drive.
//!
//! Every shard writes its own counters, without locked instructions. A reader adds them up.

use std::sync::atomic::{AtomicU64, Ordering};

use ::drive::Nanos;

use crate::shard::count;

/// Buckets of a latency histogram. Bucket `i` counts operations that took at least `2^i` and less
/// than `2^(i+1)` nanoseconds. The last one counts all longer ones (9 minutes).
pub const LATENCY_BUCKETS: usize = 40;

/// Totals of a drive since it was opened. All values only grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveStats {
    /// Reads that succeeded.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Discards that succeeded.
    pub discards: u64,
    /// Zeroed ranges.
    pub zeroes: u64,
    /// Reads and writes, or parts of them, that went as NVMe commands past the block layer. Failed
    /// commands are not counted.
    pub commands: u64,
    /// Operations of any kind that failed. Operations refused for their range are not counted.
    pub errors: u64,
    /// Latencies of reads. For a memory drive, one operation in 16 is measured.
    pub read_latency: [u64; LATENCY_BUCKETS],
    /// Latencies of writes, sampled like those of reads.
    pub write_latency: [u64; LATENCY_BUCKETS],
    /// Latencies of flushes.
    pub flush_latency: [u64; LATENCY_BUCKETS],
}

impl Default for DriveStats {
    fn default() -> Self {
        DriveStats {
            reads: 0,
            read_bytes: 0,
            writes: 0,
            write_bytes: 0,
            flushes: 0,
            discards: 0,
            zeroes: 0,
            commands: 0,
            errors: 0,
            read_latency: [0; LATENCY_BUCKETS],
            write_latency: [0; LATENCY_BUCKETS],
            flush_latency: [0; LATENCY_BUCKETS],
        }
    }
}

#[derive(Debug)]
struct Histogram([AtomicU64; LATENCY_BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Histogram {
    fn record(&self, latency: Nanos) {
        let bucket = latency.max(1).ilog2() as usize;
        count(&self.0[bucket.min(LATENCY_BUCKETS - 1)], 1);
    }

    fn add_to(&self, sums: &mut [u64; LATENCY_BUCKETS]) {
        for (sum, bucket) in sums.iter_mut().zip(&self.0) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }
}

/// The counters of one drive on one shard. Only that shard's thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
    commands: AtomicU64,
    errors: AtomicU64,
    read_latency: Histogram,
    write_latency: Histogram,
    flush_latency: Histogram,
}

/// The event to count.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Done {
    Read(u64),
    Write(u64),
    Flush,
    Discard,
    Zeroes,
    Error,
}

impl Counters {
    /// Counts an operation, and its latency if it was measured.
    #[inline]
    pub(crate) fn record(&self, done: Done, latency: Option<Nanos>) {
        let histogram = match done {
            Done::Read(bytes) => {
                count(&self.reads, 1);
                count(&self.read_bytes, bytes);
                &self.read_latency
            }
            Done::Write(bytes) => {
                count(&self.writes, 1);
                count(&self.write_bytes, bytes);
                &self.write_latency
            }
            Done::Flush => {
                count(&self.flushes, 1);
                &self.flush_latency
            }
            Done::Discard => return count(&self.discards, 1),
            Done::Zeroes => return count(&self.zeroes, 1),
            Done::Error => return count(&self.errors, 1),
        };
        if let Some(latency) = latency {
            histogram.record(latency);
        }
    }

    /// Counts a command that went past the block layer.
    #[inline]
    pub(crate) fn record_command(&self) {
        count(&self.commands, 1);
    }

    /// True for one operation in 16 of a kind, for drives so fast that reading the clock would slow
    /// them down.
    #[inline]
    pub(crate) fn is_sample(&self, kind: Done) -> bool {
        match kind {
            Done::Read(_) => self.reads.load(Ordering::Relaxed).is_multiple_of(16),
            Done::Write(_) => self.writes.load(Ordering::Relaxed).is_multiple_of(16),
            Done::Flush | Done::Discard | Done::Zeroes | Done::Error => false,
        }
    }

    pub(crate) fn add_to(&self, sums: &mut DriveStats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sums.reads += read(&self.reads);
        sums.read_bytes += read(&self.read_bytes);
        sums.writes += read(&self.writes);
        sums.write_bytes += read(&self.write_bytes);
        sums.flushes += read(&self.flushes);
        sums.discards += read(&self.discards);
        sums.zeroes += read(&self.zeroes);
        sums.commands += read(&self.commands);
        sums.errors += read(&self.errors);
        self.read_latency.add_to(&mut sums.read_latency);
        self.write_latency.add_to(&mut sums.write_latency);
        self.flush_latency.add_to(&mut sums.flush_latency);
    }
}
