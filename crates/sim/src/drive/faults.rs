//! The faults of a drive.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use ::drive::DriveError;

use super::outage::{Broken, Way};
use super::request::Request;
use crate::trace::OpKind;

/// The faults that are switched on.
#[derive(Default)]
pub(crate) struct Faults {
    /// Every operation is answered with [`DriveError::Gone`].
    pub(crate) failed: bool,
    /// Operations that still complete before the drive fails.
    pub(crate) fail_after: Option<u64>,
    /// Operations are taken and, until the hang ends, not answered.
    pub(crate) hung: bool,
    /// Operations are taken and not answered.
    pub(crate) mute: bool,
    /// Operations that the drive still takes before it is mute.
    pub(crate) mute_after: Option<u64>,
    /// The next operation is taken and not answered, while others are.
    pub(crate) lose_next: bool,
    /// Outages of paths to it, present or armed.
    pub(crate) outages: Vec<Rc<Way>>,
    /// Reads of these fail.
    pub(crate) unreadable: Ranges,
    /// Writes of these fail, again and again.
    pub(crate) unwritable: Ranges,
    /// Errors for the next operations of a kind.
    pub(crate) errors: VecDeque<(OpKind, DriveError)>,
    /// Writes that will be acknowledged and dropped.
    pub(crate) lost_writes: u64,
    /// Offsets at which the next writes land instead.
    pub(crate) misdirected: VecDeque<u64>,
    /// Flushes and FUA are acknowledged and do nothing.
    pub(crate) flush_ignored: bool,
}

impl Faults {
    /// Operations are not answered.
    pub(crate) fn answers_nothing(&self) -> bool {
        self.hung || self.mute || self.broken() == Some(Broken::Silent)
    }

    /// How the path to the drive fails now.
    #[inline]
    pub(crate) fn broken(&self) -> Option<Broken> {
        let mut broken = self.outages.iter().filter_map(|way| way.broken());
        // An absent drive does not answer late.
        broken.clone().find(|broken| broken.error().is_some()).or_else(|| broken.next())
    }

    /// The drive gets an operation.
    pub(crate) fn count_given(&mut self) {
        self.outages.iter().for_each(|way| way.count());
        if let Some(left) = self.mute_after {
            self.mute_after = left.checked_sub(1);
            self.mute |= left == 0;
        }
    }

    /// The error of an operation that fails on its own.
    pub(crate) fn error_for(&mut self, request: &Request) -> Option<DriveError> {
        if let Some(position) = self.errors.iter().position(|(of, _)| *of == request.kind()) {
            return self.errors.remove(position).map(|(_, error)| error);
        }
        let Request::Write { offset, data, .. } = request else { return None };
        let len: usize = data.iter().map(|part| part.len()).sum();
        let bad = self.unwritable.first_within(*offset..*offset + len as u64)?;
        Some(DriveError::Media { offset: bad.start, len: bad.end - bad.start })
    }
}

/// A set of byte offsets: disjoint ranges, none empty.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        self.0.insert(range.start, range.end);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        while let Some(found) = self.first_within(range.clone()) {
            // The range that holds `found` may extend on both sides.
            let (&start, &end) = self.0.range(..=found.start).next_back().expect("just found");
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// The first part of `range` that is in the set.
    #[inline]
    pub(crate) fn first_within(&self, range: Range<u64>) -> Option<Range<u64>> {
        if self.0.is_empty() || range.is_empty() {
            return None;
        }
        let (&start, &end) = self.0.range(..range.end).next_back().filter(|(_, end)| **end > range.start)?;
        // Walk back to the first that overlaps: sets are small.
        let mut first = start..end;
        for (&start, &end) in self.0.range(..start).rev() {
            if end <= range.start {
                break;
            }
            first = start..end;
        }
        Some(first.start.max(range.start)..first.end.min(range.end))
    }
}
