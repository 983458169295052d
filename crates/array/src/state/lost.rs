//! Lost blocks: no redundancy could restore them, and reading them is an error until they are
//! written again.
//!
//! A group has some only after a crash that took a member along while several strips of one stripe
//! were being written.

#![allow(clippy::disallowed_types, reason = "only a group that lost blocks takes the lock, and reads share it")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use drive::BlockError;
use format::BLOCK;
use format::log::{LOST_RANGES_MAX, LostBlocks};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// The lost ranges of a group, which its shards share. Ranges are found lost before the group runs.
/// From then on blocks only come back. A *lost block* is a block of a range, shorter at an end of
/// the range that is no end of a block. It has to be written as a whole to be readable again.
///
/// Memory follows the number of ranges, which the format limits, and not their lengths.
#[derive(Debug, Default)]
pub struct LostRanges {
    /// The first byte, and the first byte after the range. Sorted, not empty, not touching.
    ranges: RwLock<Vec<(u64, u64)>>,
    /// Whether there are ranges. Nearly every group has none, and takes no lock to know it.
    any: AtomicBool,
    /// Number of ranges in the list on the members.
    pub(crate) listed: AtomicUsize,
}

impl LostRanges {
    pub(crate) fn new(list: &LostBlocks) -> Self {
        let ranges = normalized(list.ranges.clone()).into_iter().map(|(offset, len)| (offset, offset + len));
        LostRanges {
            any: AtomicBool::new(!list.ranges.is_empty()),
            listed: AtomicUsize::new(list.ranges.len()),
            ranges: RwLock::new(ranges.collect()),
        }
    }

    fn all(&self) -> RwLockReadGuard<'_, Vec<(u64, u64)>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that nothing in this range is lost.
    ///
    /// # Errors
    /// [`BlockError::Unknown`] with the first lost block.
    #[inline]
    pub(crate) fn check_read(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        if self.is_empty() {
            return Ok(());
        }
        let ranges = self.all();
        match overlapping(&ranges, offset, offset + len).first() {
            Some(&range) => Err(block_at(range, offset.max(range.0))),
            None => Ok(()),
        }
    }

    /// Checks that no lost block would be written in part.
    ///
    /// # Errors
    /// [`BlockError::Unknown`] with the first that would.
    pub(crate) fn check_write(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        if self.is_empty() {
            return Ok(());
        }
        let (ranges, end) = (self.all(), offset + len);
        // Only the first and the last byte of the write can lie in a block that is written in part.
        for &range in overlapping(&ranges, offset, end) {
            if range.0 < offset && !offset.is_multiple_of(BLOCK_BYTES) {
                return Err(block_at(range, offset));
            }
            if range.1 > end && !end.is_multiple_of(BLOCK_BYTES) {
                return Err(block_at(range, end - 1));
            }
        }
        Ok(())
    }

    /// Makes the lost blocks of a range readable: the range was written durably, and the list says
    /// so.
    pub(crate) fn written(&self, offset: u64, len: u64) {
        if self.is_empty() || len == 0 {
            return;
        }
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        *ranges = without(&ranges, offset, len);
        self.any.store(!ranges.is_empty(), Ordering::Release);
    }

    /// Whether no block is lost, or none any more.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Number of ranges in the list on the members.
    pub(crate) fn listed(&self) -> usize {
        self.listed.load(Ordering::Acquire)
    }

    /// The lost ranges, as offsets in the group and lengths in bytes.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges_without(0, 0)
    }

    /// The lost ranges outside of a range.
    pub(crate) fn ranges_without(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let left = if len == 0 { self.all().clone() } else { without(&self.all(), offset, len) };
        left.into_iter().map(|(start, end)| (start, end - start)).collect()
    }
}

/// The ranges that share bytes with `offset..end`.
fn overlapping(ranges: &[(u64, u64)], offset: u64, end: u64) -> &[(u64, u64)] {
    let from = ranges.partition_point(|range| range.1 <= offset);
    let to = from + ranges[from..].partition_point(|range| range.0 < end);
    &ranges[from..to]
}

/// The ranges that are left when the blocks that share bytes with a range are back.
fn without(ranges: &[(u64, u64)], offset: u64, len: u64) -> Vec<(u64, u64)> {
    let start = offset / BLOCK_BYTES * BLOCK_BYTES;
    let end = (offset + len).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
    let parts = ranges.iter().flat_map(|&(from, to)| [(from, to.min(start)), (from.max(end), to)]);
    parts.filter(|(from, to)| from < to).collect()
}

/// The lost block of a range that holds byte `at`.
fn block_at((start, end): (u64, u64), at: u64) -> BlockError {
    let block = at / BLOCK_BYTES * BLOCK_BYTES;
    let offset = block.max(start);
    BlockError::Unknown { offset, len: block.saturating_add(BLOCK_BYTES).min(end) - offset }
}

/// Ranges in order, with those that touch joined.
pub(crate) fn normalized(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (offset, len) in ranges {
        match merged.last_mut() {
            Some((start, before)) if offset <= *start + *before => *before = (*before).max(offset + len - *start),
            _ => merged.push((offset, len)),
        }
    }
    merged
}

/// As [`normalized`], with no more ranges than the list has room for. If there are too many, those
/// with the smallest gaps are joined, and the gaps count as lost, too. Only logs of versions that
/// left more ranges indeterminate, and some whose records were cut in pieces since, need it
/// ([`crate::log::indeterminate`]). Without it their groups could not be assembled at all.
pub(crate) fn listable(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut ranges = normalized(ranges);
    while ranges.len() > LOST_RANGES_MAX {
        let between = |index: &usize| ranges[index + 1].0 - (ranges[*index].0 + ranges[*index].1);
        let least = (0..ranges.len() - 1).min_by_key(between).expect("there are many");
        let (next, len) = ranges.remove(least + 1);
        ranges[least].1 = next + len - ranges[least].0;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_is_back_when_it_was_written_as_a_whole() {
        let lost = LostRanges::new(&LostBlocks { sequence: 1, ranges: vec![(4096, 8192), (40960, 512)] });
        assert_eq!(lost.check_read(0, 4096), Ok(()));
        assert_eq!(lost.check_read(0, 4097), Err(BlockError::Unknown { offset: 4096, len: 4096 }));
        assert_eq!(lost.check_write(4096, 512), Err(BlockError::Unknown { offset: 4096, len: 4096 }));
        assert_eq!(lost.check_write(4096, 4096), Ok(()));
        lost.written(4096, 4096);
        lost.written(4096, 4096);
        assert_eq!(lost.check_read(0, 8192), Ok(()));
        assert_eq!(lost.ranges(), vec![(8192, 4096), (40960, 512)]);
        lost.written(0, 1 << 20);
        assert_eq!(lost.check_read(0, 1 << 20), Ok(()));
        assert!(lost.ranges().is_empty());
    }

    #[test]
    fn a_lost_range_of_any_length_takes_no_memory_for_its_blocks() {
        let end = u64::MAX / 4096 * 4096;
        let lost = LostRanges::new(&LostBlocks { sequence: 1, ranges: vec![(4096, end - 4096)] });
        assert_eq!(lost.check_read(end - 1, 1), Err(BlockError::Unknown { offset: end - 4096, len: 4096 }));
        lost.written(1 << 40, 1 << 40);
        assert_eq!(lost.ranges(), [(4096, (1 << 40) - 4096), (1 << 41, end - (1 << 41))]);
        assert_eq!(lost.check_read(1 << 40, 1 << 40), Ok(()));
    }

    #[test]
    fn a_write_that_ends_or_begins_within_a_lost_block_is_refused() {
        let lost = LostRanges::new(&LostBlocks { sequence: 1, ranges: vec![(4608, 8192)] });
        let unknown = |offset, len| Err(BlockError::Unknown { offset, len });
        assert_eq!(lost.check_write(0, 4096), Ok(()));
        assert_eq!(lost.check_write(4096, 512), Ok(()), "nothing of it is lost");
        assert_eq!(lost.check_write(4096, 1024), unknown(4608, 3584));
        assert_eq!(lost.check_write(4608, 3584), Ok(()), "the first block begins with the range");
        assert_eq!(lost.check_write(8704, 8192), unknown(8192, 4096));
        assert_eq!(lost.check_write(12288, 512), Ok(()), "the last block ends with the range");
        assert_eq!(lost.check_write(0, 1 << 20), Ok(()));
    }

    #[test]
    fn however_many_ranges_there_are_they_can_be_listed() {
        let far = |index: u64| (index * 100, 10);
        let mut ranges: Vec<(u64, u64)> = (0..LOST_RANGES_MAX as u64).map(far).collect();
        assert_eq!(listable(ranges.clone()), ranges);
        ranges.extend([(720, 5), (330, 1)]);
        let listed = listable(ranges.clone());
        assert_eq!(listed.len(), LOST_RANGES_MAX);
        assert!(listed.contains(&(700, 25)) && listed.contains(&(300, 31)), "the least between them: {listed:?}");
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_joined() {
        assert_eq!(normalized(vec![(8, 8), (0, 8), (20, 4), (22, 10)]), vec![(0, 16), (20, 12)]);
    }
}
