//! Which shards own the stripe groups.

use crate::geometry::StripeGroup;

/// The shards that own the stripe groups: `count` shards from `first` on, continuing at shard 0
/// after the last. Runs of stripe groups are dealt to them in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The shard that owns the first stripe group.
    pub first: usize,
    /// Number of owners, at least one. On small drives it is limited by the number of streams that
    /// the log has room for.
    pub count: usize,
    /// Number of consecutive stripe groups with the same owner, at least one. Large requests stay
    /// together if a run has about as many bytes.
    pub run: u64,
}

impl Owners {
    /// All shards, from the leader on, one stripe group each in turn.
    pub fn all(shards: usize) -> Owners {
        Owners { first: 0, count: shards, run: 1 }
    }

    /// The owning shards, in the order of their runs. `shards`: number of all shards.
    pub fn among(self, shards: usize) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| (self.first + index) % shards)
    }

    /// The shard that owns a stripe group. `shards`: number of all shards.
    #[inline]
    pub(crate) fn of(self, stripe_group: StripeGroup, shards: usize) -> usize {
        let index = if self.count == 1 { 0 } else { (stripe_group.0 / self.run % self.count as u64) as usize };
        let shard = self.first + index;
        if shard < shards { shard } else { shard - shards }
    }

    /// Position of a shard among the owners. `shards`: number of all shards.
    pub(crate) fn index(self, shard: usize, shards: usize) -> Option<usize> {
        let index = (shard + shards - self.first) % shards;
        (index < self.count).then_some(index)
    }
}
