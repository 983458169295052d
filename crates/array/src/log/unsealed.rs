//! Records of a log that leave an indeterminate range while nothing on the members says that they
//! are completed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::log::questions::OpenQuestions;

/// Sequences of such records. The reclaimed ones may be many, so they are kept as a range in which
/// each may be one of them. Naming a record in two checkpoint records does no harm.
#[derive(Debug, Default)]
pub(crate) struct Unsealed {
    retired: Option<RangeInclusive<u64>>,
    /// All are above the range.
    others: BTreeSet<u64>,
    /// The indeterminate ranges of the records, reclaimed or not.
    questions: BTreeMap<u64, OpenQuestions>,
}

impl Unsealed {
    /// A record begins.
    pub fn add(&mut self, sequence: u64) {
        self.others.insert(sequence);
    }

    /// The indeterminate ranges of a record count until a checkpoint record covers it.
    pub fn leave_open(&mut self, sequence: u64, questions: OpenQuestions) {
        self.questions.insert(sequence, questions);
    }

    /// The next checkpoint record is for all completed records.
    pub fn add_all(&mut self) {
        // Lower than any record.
        let last = self.retired.as_ref().map_or(0, |retired| *retired.end());
        self.retired = Some(0..=last);
    }

    /// Records below `below` are reclaimed.
    pub fn retire(&mut self, below: u64) {
        let others = self.others.split_off(&below);
        let retired = std::mem::replace(&mut self.others, others);
        if let (Some(&first), Some(&last)) = (retired.first(), retired.last()) {
            let first = self.retired.as_ref().map_or(first, |before| *before.start());
            self.retired = Some(first..=last);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.retired.is_none() && self.others.is_empty()
    }

    /// Whether there may be a record below `below` that is not in `open`, which is sorted.
    pub fn has_settled(&self, below: u64, open: &[u64]) -> bool {
        let is_settled = |sequence: &u64| open.binary_search(sequence).is_err();
        let of_range = |retired: &RangeInclusive<u64>| {
            let last = *retired.end().min(&below.saturating_sub(1));
            let open = open.iter().filter(|sequence| (*retired.start()..=last).contains(sequence));
            retired.start() < &below && last - retired.start() + 1 > open.count() as u64
        };
        self.retired.as_ref().is_some_and(of_range) || self.others.range(..below).any(is_settled)
    }

    /// A checkpoint record says that records below `tail` are completed, except `exceptions`, which
    /// are sorted.
    pub fn seal(&mut self, tail: u64, exceptions: &[u64]) {
        let is_left = |retired: &RangeInclusive<u64>| {
            *retired.end() >= tail || exceptions.iter().any(|sequence| retired.contains(sequence))
        };
        self.retired = self.retired.take().filter(is_left);
        let is_open = |sequence: &u64| *sequence >= tail || exceptions.binary_search(sequence).is_ok();
        self.others.retain(is_open);
        self.questions.retain(|sequence, _| is_open(sequence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(records: impl IntoIterator<Item = u64>) -> Unsealed {
        let mut unsealed = Unsealed::default();
        records.into_iter().for_each(|sequence| unsealed.add(sequence));
        unsealed
    }

    #[test]
    fn what_was_open_when_a_flush_began_is_sealed_by_a_later_one() {
        let mut unsealed = with([1, 2, 5]);
        assert!(unsealed.has_settled(3, &[2]) && !unsealed.has_settled(3, &[1, 2]));
        unsealed.seal(3, &[2]);
        assert!(unsealed.has_settled(6, &[5]), "2");
        assert!(unsealed.has_settled(6, &[2]), "5");
        assert!(!unsealed.has_settled(6, &[2, 5]));
        unsealed.seal(6, &[]);
        assert!(unsealed.is_empty());
    }

    #[test]
    fn a_seal_that_was_begun_before_records_were_retired_is_not_for_those_that_were_open() {
        // The first flush began while 2 was open, and another one that began later has ended since.
        let mut unsealed = with([1, 2]);
        unsealed.retire(3);
        assert!(unsealed.has_settled(3, &[2]), "1 may be one of them");
        unsealed.seal(3, &[2]);
        assert!(unsealed.has_settled(3, &[]), "2 is not sealed");
        unsealed.seal(3, &[]);
        assert!(unsealed.is_empty());
    }

    #[test]
    fn retired_records_are_sealed_by_a_seal_for_all_of_them_only() {
        let mut unsealed = with([2, 4, 9]);
        unsealed.retire(5);
        unsealed.retire(6);
        unsealed.seal(4, &[]);
        assert!(unsealed.has_settled(5, &[]), "4 was not below");
        assert!(!unsealed.has_settled(2, &[]) && !unsealed.has_settled(0, &[]));
        unsealed.seal(9, &[]);
        assert!(unsealed.has_settled(10, &[]) && !unsealed.has_settled(9, &[]), "9 is left");
        unsealed.retire(20);
        unsealed.seal(20, &[]);
        assert!(unsealed.is_empty());
    }

    #[test]
    fn a_suspect_member_asks_for_one_more_seal() {
        let mut unsealed = Unsealed::default();
        unsealed.add_all();
        assert!(unsealed.has_settled(1, &[]) && !unsealed.is_empty());
        unsealed.seal(1, &[]);
        assert!(unsealed.is_empty());
        let mut unsealed = with([3]);
        unsealed.retire(4);
        unsealed.add_all();
        unsealed.seal(2, &[]);
        assert!(unsealed.has_settled(4, &[]), "3 is not sealed");
    }
}
