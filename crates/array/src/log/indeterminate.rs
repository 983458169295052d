//! Limits how much a power cut may make indeterminate: no more than the list of lost blocks has
//! room for.
//!
//! A record that overwrites several strips of a stripe leaves an indeterminate range. A checkpoint
//! record resolves it. If the record has checksums, it is resolved once the strips are durable. If
//! members are lost in a power cut, each such range may become a range of lost blocks. So the
//! records of all shards together leave no more of them than the list has room for. From
//! [`CHECKPOINT_FROM`] on the group is flushed in the background and a checkpoint record is
//! written. A write that finds no room waits for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use format::log::LOST_RANGES_MAX;

use crate::state::shared::Shared;

/// Indeterminate ranges from which on the group is flushed and a checkpoint record is written, so
/// that there is room before it is needed.
pub(crate) const CHECKPOINT_FROM: usize = 192;

/// A record counts for no more than this, so that it finds room beside others.
pub(crate) const OF_RECORD_MAX: usize = LOST_RANGES_MAX / 2;

/// How often a write that found no room checks again.
pub(crate) const LOOK: Duration = Duration::from_micros(100);

/// The indeterminate ranges of a group, shared by its shards.
#[derive(Debug, Default)]
pub(crate) struct Indeterminates {
    open: AtomicUsize,
    /// A shard flushes and writes a checkpoint record in the background.
    pub(crate) answering: AtomicBool,
}

impl Indeterminates {
    /// Counts `count` more if that leaves no more than `most`, or if there are no others. Returns
    /// the new total.
    pub(crate) fn try_open(&self, count: usize, most: usize) -> Option<usize> {
        let fits = |open: usize| (open == 0 || open + count <= most).then_some(open + count);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok().map(|before| before + count)
    }

    /// Whether there is room for any record beside the ranges that are open, even if none of them
    /// is resolved for long.
    pub fn is_roomy(&self) -> bool {
        self.open.load(Ordering::Acquire) <= LOST_RANGES_MAX - OF_RECORD_MAX
    }
}

/// The indeterminate ranges that one record leaves. Resolved when this is dropped.
#[derive(Debug)]
pub(crate) struct IndeterminateRanges {
    pub(crate) shared: Arc<Shared>,
    pub(crate) count: usize,
}

impl Drop for IndeterminateRanges {
    fn drop(&mut self) {
        self.shared.indeterminate.open.fetch_sub(self.count, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_questions_are_open_than_there_is_room_for_but_one_record_always_goes_on() {
        let indeterminate = Indeterminates::default();
        assert_eq!(indeterminate.try_open(3, 8), Some(3));
        assert_eq!(indeterminate.try_open(5, 8), Some(8));
        assert_eq!(indeterminate.try_open(1, 8), None);
        indeterminate.open.store(0, Ordering::Release);
        assert_eq!(indeterminate.try_open(9, 8), Some(9));
        assert_eq!(indeterminate.try_open(1, 8), None);
    }
}
