//! Runs tell a drive that was left behind from one that continued on its own.
//!
//! While an array runs, one leader writes all of its superblocks. A drive that misses one keeps an
//! older superblock. That older superblock may be one that never took effect: it says that other
//! members left, but before it was on enough drives, the leader continued with those members. The
//! superblocks of a single run form one line, and the newest counts. Two runs that had different
//! drives at their start are two lines.

use super::Superblock;

/// One run of an array: from its creation or assembly to its end. The next run with the same drives
/// begins at a higher epoch, if this one wrote any superblock; a run with other drives has other
/// `members`. So no two runs that write are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// The first epoch that it writes. 0: unknown, as in arrays of older versions.
    pub first_epoch: u64,
    /// The slots whose drives the run had at its start: bit `i` for slot `i`.
    pub members: u64,
}

/// Number of earlier runs that a superblock names.
pub const RUNS_BEFORE: usize = 15;

/// The run that wrote a superblock, and the runs before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Runs {
    /// The run that wrote the superblock.
    pub this: Run,
    /// The run that `this` took over from, the run that that one took over from, and so on. The
    /// epochs that a run wrote below [`Run::first_epoch`] of its successor were on the drives when
    /// the successor began. Unused entries at the end are unknown.
    pub before: [Run; RUNS_BEFORE],
}

impl Runs {
    /// All runs, newest first.
    pub(super) fn all(&self) -> [Run; 1 + RUNS_BEFORE] {
        std::array::from_fn(|index| if index == 0 { self.this } else { self.before[index - 1] })
    }

    pub(super) fn from_all([this, before @ ..]: [Run; 1 + RUNS_BEFORE]) -> Self {
        Runs { this, before }
    }
}

impl Superblock {
    /// The runs that the next run must write if it takes the array over from this superblock.
    /// `slots` are the slots whose drives it has.
    pub fn next_runs(&self, slots: impl Iterator<Item = usize>) -> Runs {
        let members = slots.fold(0, |bits, slot| bits | 1 << slot);
        let all = self.runs.all();
        let before = std::array::from_fn(|index| all[index]);
        Runs { this: Run { first_epoch: self.epoch + 1, members }, before }
    }

    /// Whether the older superblock is from the line that led to this one, rather than from another
    /// line. `false` if that is unknown.
    pub fn follows(&self, older: &Superblock) -> bool {
        let run = older.runs.this;
        if run.first_epoch == 0 || older.epoch > self.epoch {
            return false;
        }
        let all = self.runs.all();
        match all.iter().position(|&known| known == run) {
            Some(0) => true,
            Some(index) => older.epoch < all[index - 1].first_epoch,
            None => false,
        }
    }

    /// Each run begins after the one before it, and no later than this superblock's epoch.
    pub(super) fn runs_are_in_order(&self) -> bool {
        let is_unknown = |run: &Run| *run == Run::default();
        let in_order =
            |pair: &[Run]| pair[1].first_epoch < pair[0].first_epoch || (is_unknown(&pair[0]) && is_unknown(&pair[1]));
        self.runs.this.first_epoch <= self.epoch && self.runs.all().windows(2).all(in_order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::disk::tests::sample;

    #[test]
    fn what_one_run_wrote_is_one_line_and_what_two_wrote_side_by_side_is_not() {
        let made = sample();
        let written = |epoch, runs| Superblock { epoch, runs, ..made.clone() };
        let first = written(5, Runs { this: Run { first_epoch: 1, members: 0b111 }, ..Runs::default() });
        assert!(first.follows(&written(4, first.runs)) && !written(4, first.runs).follows(&first));
        let left = written(7, first.next_runs([0, 1].into_iter()));
        let right = written(9, first.next_runs([2].into_iter()));
        for half in [&left, &right] {
            assert!(half.follows(&first) && half.check().is_ok());
            // The previous run continued after it was taken over, on drives that were absent.
            assert!(!half.follows(&written(6, first.runs)));
        }
        assert!(!right.follows(&left) && !left.follows(&right));
        // A series of further runs: the superblocks name this many earlier runs, and no more.
        let mut later = right.clone();
        for run in 0..RUNS_BEFORE {
            assert!(later.follows(&first) && !later.follows(&left), "{run} runs");
            later = written(20 * (run as u64 + 1), later.next_runs([0, 1, 2].into_iter()));
            assert_eq!(later.check(), Ok(()));
        }
        assert!(later.follows(&right) && !later.follows(&first));
        let unknown = written(5, Runs::default());
        assert!(!first.follows(&unknown) && !unknown.follows(&unknown));
    }
}
