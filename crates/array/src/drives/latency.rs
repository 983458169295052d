//! How long operations take: distributions with one writer each, which all shards may read.
//!
//! Buckets are log-linear, eight to a power of two, so a figure is at most an eighth too high. A
//! drive's distribution forgets: when it has [`WINDOW`] entries, all its counts are halved. The
//! clients' distribution does not forget. The difference of two snapshots shows recent requests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use drive::Nanos;

use crate::geometry::MemberIndex;
use crate::state::shared::Shared;
use crate::state::slot::DriveId;

/// The shortest time that is distinguished: 2^10 ns.
const OCTAVE_MIN: u32 = 10;
/// The longest: 2^36 ns are 68 s.
const OCTAVE_MAX: u32 = 35;
const BUCKETS: usize = ((OCTAVE_MAX - OCTAVE_MIN + 1) * 8) as usize;

/// Entries of a distribution before its counts are halved: enough for a 99th percentile, few enough
/// that a change shows within a second of busy reading.
const WINDOW: u32 = 2048;

/// Entries before a distribution is used.
pub(crate) const ENTRIES_MIN: u64 = 32;

/// Lengths of reads with a distribution of their own: up to 16 KiB, up to 128 KiB, longer.
pub(crate) const CLASSES: usize = 3;

/// The class of a read.
#[inline]
pub(crate) fn class_of(len: usize) -> u8 {
    match len {
        0..=0x4000 => 0,
        0x4001..=0x2_0000 => 1,
        _ => 2,
    }
}

fn bucket(nanos: Nanos) -> usize {
    let nanos = nanos.clamp(1 << OCTAVE_MIN, (1 << (OCTAVE_MAX + 1)) - 1);
    let octave = nanos.ilog2();
    ((octave - OCTAVE_MIN) * 8) as usize + (nanos >> (octave - 3) & 7) as usize
}

/// The end of a bucket.
fn end_of(bucket: usize) -> Nanos {
    (bucket as Nanos % 8 + 9) << (bucket as u32 / 8 + OCTAVE_MIN - 3)
}

/// Counts of operations by their duration.
#[derive(Debug)]
pub(crate) struct Distribution {
    buckets: Box<[AtomicU32]>,
    count: AtomicU32,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution { buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(), count: AtomicU32::new(0) }
    }
}

impl Distribution {
    /// Counts an operation for ever. By one shard only.
    pub fn add(&self, nanos: Nanos) {
        let cell = &self.buckets[bucket(nanos)];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts an operation, and forgets older ones slowly. By one shard only.
    fn add_lately(&self, nanos: Nanos) {
        self.add(nanos);
        let mut count = self.count.load(Ordering::Relaxed) + 1;
        if count >= WINDOW {
            count = 0;
            for bucket in &self.buckets {
                let half = bucket.load(Ordering::Relaxed) / 2;
                bucket.store(half, Ordering::Relaxed);
                count += half;
            }
        }
        self.count.store(count, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.count.store(0, Ordering::Relaxed);
    }
}

/// A snapshot of the sum of distributions.
#[derive(Debug, Clone)]
pub(crate) struct Figures(Box<[u64]>);

impl Default for Figures {
    fn default() -> Self {
        Figures(vec![0; BUCKETS].into())
    }
}

impl Figures {
    pub fn of(distribution: &Distribution) -> Figures {
        let mut figures = Figures::default();
        figures.add(distribution);
        figures
    }

    pub fn add(&mut self, distribution: &Distribution) {
        for (sum, bucket) in self.0.iter_mut().zip(&distribution.buckets) {
            *sum += u64::from(bucket.load(Ordering::Relaxed));
        }
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The operations since an earlier snapshot of distributions that are only added to.
    pub fn since(&self, earlier: &Figures) -> Figures {
        // Each bucket counts modulo 2^32.
        let difference = |(now, then): (&u64, &u64)| u64::from((*now as u32).wrapping_sub(*then as u32));
        Figures(self.0.iter().zip(&earlier.0).map(difference).collect())
    }

    /// A time that `per_mille` of a thousand operations do not exceed. `None` without operations.
    pub fn quantile(&self, per_mille: u64) -> Option<Nanos> {
        let rank = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut below = 0;
        let found = self.0.iter().position(|&count| {
            below += count;
            below >= rank
        });
        found.map(end_of)
    }
}

/// The latencies of a member, as one shard measures them.
#[derive(Debug, Default)]
struct MemberLatencies {
    /// The drive of these figures: its [`DriveId`] plus one. Another drive in the slot begins anew.
    drive: AtomicU32,
    reads: [Distribution; CLASSES],
}

/// The measurements of one shard.
#[derive(Debug, Default)]
pub(crate) struct ShardLatencies {
    members: Box<[MemberLatencies]>,
    /// Client requests, from beginning to end. Measured only while a latency target is set.
    pub users: Distribution,
}

/// The measurements of all shards. Made when the first shard takes the group.
#[derive(Debug, Default)]
pub(crate) struct Latencies(OnceLock<Arc<[ShardLatencies]>>);

impl ShardLatencies {
    /// Adds a read of the drive in a member's slot.
    pub fn add_read(&self, member: MemberIndex, drive: DriveId, class: u8, nanos: Nanos) {
        let latencies = &self.members[usize::from(member.0)];
        if latencies.drive.load(Ordering::Relaxed) != u32::from(drive.0) + 1 {
            latencies.reads.iter().for_each(Distribution::clear);
            latencies.drive.store(u32::from(drive.0) + 1, Ordering::Relaxed);
        }
        latencies.reads[usize::from(class)].add_lately(nanos);
    }

    /// A quantile of a member's reads, once there are enough of them.
    pub fn read_quantile(&self, member: MemberIndex, drive: DriveId, class: u8, per_mille: u64) -> Option<Nanos> {
        let latencies = &self.members[usize::from(member.0)];
        let known = latencies.drive.load(Ordering::Relaxed) == u32::from(drive.0) + 1
            && u64::from(latencies.reads[usize::from(class)].count.load(Ordering::Relaxed)) >= ENTRIES_MIN;
        known.then(|| Figures::of(&latencies.reads[usize::from(class)]).quantile(per_mille)).flatten()
    }
}

impl Shared {
    /// The measurements of all shards. Each shard writes only its own.
    pub(crate) fn latencies(&self, shards: usize) -> Arc<[ShardLatencies]> {
        let members = self.slots().count();
        let shard = || ShardLatencies {
            members: (0..members).map(|_| MemberLatencies::default()).collect(),
            users: Distribution::default(),
        };
        self.latencies.0.get_or_init(|| (0..shards).map(|_| shard()).collect()).clone()
    }

    /// How long a member's recent reads of up to 16 KiB took, on all shards.
    pub(crate) fn read_figures(&self, member: MemberIndex, drive: DriveId) -> Figures {
        let mut figures = Figures::default();
        for shard in self.latencies.0.get().into_iter().flat_map(|shards| &**shards) {
            let latencies = &shard.members[usize::from(member.0)];
            if latencies.drive.load(Ordering::Relaxed) == u32::from(drive.0) + 1 {
                figures.add(&latencies.reads[0]);
            }
        }
        figures
    }

    /// How long client requests took so far, on all shards.
    pub(crate) fn user_figures(&self) -> Figures {
        let mut figures = Figures::default();
        for shard in self.latencies.0.get().into_iter().flat_map(|shards| &**shards) {
            figures.add(&shard.users);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_an_eighth_too_high() {
        for nanos in [1_024, 1_500, 65_535, 65_536, 80_000, 1_000_000, 33_333_333, 20_000_000_000] {
            let distribution = Distribution::default();
            distribution.add(nanos);
            let quantile = Figures::of(&distribution).quantile(990).expect("there is one");
            assert!(quantile > nanos && quantile <= nanos + nanos / 8 + 1, "{nanos}: {quantile}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_numbers() {
        let distribution = Distribution::default();
        (1..=1000).for_each(|number| distribution.add(number * 10_000));
        let figures = Figures::of(&distribution);
        for per_mille in [1, 500, 950, 990, 999, 1000] {
            let exact = per_mille * 10_000;
            let quantile = figures.quantile(per_mille).expect("there are some");
            assert!((exact..=exact + exact / 8 + 1).contains(&quantile), "{per_mille}: {quantile}");
        }
        assert_eq!(Figures::default().quantile(500), None);
    }

    #[test]
    fn what_is_old_is_outweighed_soon() {
        let distribution = Distribution::default();
        (0..100_000).for_each(|_| distribution.add_lately(50_000));
        (0..2 * WINDOW).for_each(|_| distribution.add_lately(5_000_000));
        let median = Figures::of(&distribution).quantile(500).expect("there are some");
        assert!(median > 4_000_000, "{median}");
    }

    #[test]
    fn a_difference_is_what_came_in_between() {
        let distribution = Distribution::default();
        (0..100).for_each(|_| distribution.add(50_000));
        let earlier = Figures::of(&distribution);
        (0..10).for_each(|_| distribution.add(5_000_000));
        let lately = Figures::of(&distribution).since(&earlier);
        assert_eq!(lately.count(), 10);
        assert!(lately.quantile(10).expect("there are some") > 5_000_000);
    }
}
