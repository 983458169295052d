//! Records of a log that leave an indeterminate range while nothing on the members says that they
//! are completed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::log::indeterminate::IndeterminateRanges;

/// Sequences of such records. The reclaimed ones may be many, so they are kept as a range in which
/// each may be one of them. Naming a record in two checkpoint records does no harm.
#[derive(Debug, Default)]
pub(crate) struct Uncovered {
    reclaimed: Option<RangeInclusive<u64>>,
    /// All are above the range.
    others: BTreeSet<u64>,
    /// The indeterminate ranges of the records, reclaimed or not.
    indeterminate: BTreeMap<u64, IndeterminateRanges>,
}

impl Uncovered {
    /// A record begins.
    pub fn add(&mut self, sequence: u64) {
        self.others.insert(sequence);
    }

    /// The indeterminate ranges of a record count until a checkpoint record covers it.
    pub fn leave_open(&mut self, sequence: u64, indeterminate: IndeterminateRanges) {
        self.indeterminate.insert(sequence, indeterminate);
    }

    /// The next checkpoint record is for all completed records.
    pub fn add_all(&mut self) {
        // Lower than any record.
        let last = self.reclaimed.as_ref().map_or(0, |reclaimed| *reclaimed.end());
        self.reclaimed = Some(0..=last);
    }

    /// Records below `below` are reclaimed.
    pub fn reclaim(&mut self, below: u64) {
        let others = self.others.split_off(&below);
        let reclaimed = std::mem::replace(&mut self.others, others);
        if let (Some(&first), Some(&last)) = (reclaimed.first(), reclaimed.last()) {
            let first = self.reclaimed.as_ref().map_or(first, |before| *before.start());
            self.reclaimed = Some(first..=last);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.reclaimed.is_none() && self.others.is_empty()
    }

    /// Whether there may be a record below `below` that is not in `open`, which is sorted.
    pub fn has_completed(&self, below: u64, open: &[u64]) -> bool {
        let is_completed = |sequence: &u64| open.binary_search(sequence).is_err();
        let of_range = |reclaimed: &RangeInclusive<u64>| {
            let last = *reclaimed.end().min(&below.saturating_sub(1));
            let open = open.iter().filter(|sequence| (*reclaimed.start()..=last).contains(sequence));
            reclaimed.start() < &below && last - reclaimed.start() + 1 > open.count() as u64
        };
        self.reclaimed.as_ref().is_some_and(of_range) || self.others.range(..below).any(is_completed)
    }

    /// A checkpoint record says that records below `tail` are completed, except `exceptions`, which
    /// are sorted.
    pub fn write_checkpoint(&mut self, tail: u64, exceptions: &[u64]) {
        let is_left = |reclaimed: &RangeInclusive<u64>| {
            *reclaimed.end() >= tail || exceptions.iter().any(|sequence| reclaimed.contains(sequence))
        };
        self.reclaimed = self.reclaimed.take().filter(is_left);
        let is_open = |sequence: &u64| *sequence >= tail || exceptions.binary_search(sequence).is_ok();
        self.others.retain(is_open);
        self.indeterminate.retain(|sequence, _| is_open(sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(records: impl IntoIterator<Item = u64>) -> Uncovered {
        let mut uncovered = Uncovered::default();
        records.into_iter().for_each(|sequence| uncovered.add(sequence));
        uncovered
    }

    #[test]
    fn what_was_open_when_a_flush_began_is_covered_by_a_later_one() {
        let mut uncovered = with([1, 2, 5]);
        assert!(uncovered.has_completed(3, &[2]) && !uncovered.has_completed(3, &[1, 2]));
        uncovered.write_checkpoint(3, &[2]);
        assert!(uncovered.has_completed(6, &[5]), "2");
        assert!(uncovered.has_completed(6, &[2]), "5");
        assert!(!uncovered.has_completed(6, &[2, 5]));
        uncovered.write_checkpoint(6, &[]);
        assert!(uncovered.is_empty());
    }

    #[test]
    fn a_checkpoint_that_was_begun_before_records_were_reclaimed_is_not_for_those_that_were_open() {
        // The first flush began while 2 was open, and another one that began later has ended since.
        let mut uncovered = with([1, 2]);
        uncovered.reclaim(3);
        assert!(uncovered.has_completed(3, &[2]), "1 may be one of them");
        uncovered.write_checkpoint(3, &[2]);
        assert!(uncovered.has_completed(3, &[]), "2 is not covered");
        uncovered.write_checkpoint(3, &[]);
        assert!(uncovered.is_empty());
    }

    #[test]
    fn reclaimed_records_are_covered_by_a_checkpoint_for_all_of_them_only() {
        let mut uncovered = with([2, 4, 9]);
        uncovered.reclaim(5);
        uncovered.reclaim(6);
        uncovered.write_checkpoint(4, &[]);
        assert!(uncovered.has_completed(5, &[]), "4 was not below");
        assert!(!uncovered.has_completed(2, &[]) && !uncovered.has_completed(0, &[]));
        uncovered.write_checkpoint(9, &[]);
        assert!(uncovered.has_completed(10, &[]) && !uncovered.has_completed(9, &[]), "9 is left");
        uncovered.reclaim(20);
        uncovered.write_checkpoint(20, &[]);
        assert!(uncovered.is_empty());
    }

    #[test]
    fn a_suspect_member_asks_for_one_more_checkpoint() {
        let mut uncovered = Uncovered::default();
        uncovered.add_all();
        assert!(uncovered.has_completed(1, &[]) && !uncovered.is_empty());
        uncovered.write_checkpoint(1, &[]);
        assert!(uncovered.is_empty());
        let mut uncovered = with([3]);
        uncovered.reclaim(4);
        uncovered.add_all();
        uncovered.write_checkpoint(2, &[]);
        assert!(uncovered.has_completed(4, &[]), "3 is not covered");
    }
}
