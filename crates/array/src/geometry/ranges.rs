//! Sorted, disjoint ranges of member offsets.

use smallvec::SmallVec;

/// Member offsets `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First member offset.
    pub start: u64,
    /// One past the last member offset.
    pub end: u64,
}

impl Range {
    /// Two parts of whole blocks, about equal. `None` if the range is no longer than a block.
    pub fn halves(self) -> Option<[Range; 2]> {
        let block = format::BLOCK as u64;
        let middle = (self.start + self.len() / 2).next_multiple_of(block);
        (middle < self.end).then(|| [Range::new(self.start, middle), Range::new(middle, self.end)])
    }

    /// `start..end`, where `end` is not below `start`.
    pub fn new(start: u64, end: u64) -> Self {
        debug_assert!(start <= end, "range {start}..{end}");
        Range { start, end }
    }

    /// Number of member offsets.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it has no member offsets.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The common member offsets; empty if there are none.
    pub fn intersect(&self, other: Range) -> Range {
        let start = self.start.max(other.start);
        Range::new(start, self.end.min(other.end).max(start))
    }

    /// Whether all member offsets of `other` are in this range.
    pub fn contains(&self, other: Range) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The range as indices relative to `base`.
    pub fn relative(&self, base: u64) -> std::ops::Range<usize> {
        (self.start - base) as usize..(self.end - base) as usize
    }
}

/// Sorted, disjoint, non-adjacent, non-empty ranges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges(SmallVec<[Range; 4]>);

impl Ranges {
    /// No member offsets.
    pub fn new() -> Self {
        Ranges::default()
    }

    /// Adds a range. Ranges that overlap or touch become one.
    pub fn add(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.start <= range.start
            && range.start <= last.end
        {
            last.end = last.end.max(range.end);
            return;
        }
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        let mut merged = range;
        if from < to {
            merged.start = merged.start.min(self.0[from].start);
            merged.end = merged.end.max(self.0[to - 1].end);
            self.0.drain(from..to);
        }
        self.0.insert(from, merged);
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.0.iter().copied()
    }

    /// Whether there are no member offsets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of `within` that are not covered.
    pub fn gaps(&self, within: Range) -> Ranges {
        let mut gaps = Ranges::new();
        let mut at = within.start;
        for range in self.iter() {
            let covered = range.intersect(within);
            if covered.is_empty() {
                continue;
            }
            if at < covered.start {
                gaps.0.push(Range::new(at, covered.start));
            }
            at = covered.end;
        }
        if at < within.end {
            gaps.0.push(Range::new(at, within.end));
        }
        gaps
    }

    /// The parts that lie in `within`.
    pub fn clip(&self, within: Range) -> Ranges {
        let clipped = self.iter().map(|range| range.intersect(within));
        Ranges(clipped.filter(|range| !range.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(ranges: &Ranges) -> Vec<bool> {
        let mut bits = vec![false; 64];
        for range in ranges.iter() {
            bits[range.start as usize..range.end as usize].fill(true);
        }
        bits
    }

    proptest! {
        #[test]
        fn ranges_are_a_set_of_columns(spans in proptest::collection::vec((0u64..64, 0u64..16), 0..12), from in 0u64..64, len in 0u64..64) {
            let mut ranges = Ranges::new();
            let mut model = vec![false; 64];
            for (start, len) in spans {
                let end = (start + len).min(64);
                ranges.add(Range::new(start, end));
                model[start as usize..end as usize].fill(true);
            }
            prop_assert_eq!(bits(&ranges), model.clone());
            let sorted: Vec<Range> = ranges.iter().collect();
            prop_assert!(sorted.windows(2).all(|pair| pair[0].end < pair[1].start));
            let within = Range::new(from, (from + len).min(64));
            let inside = |index: usize| (within.start..within.end).contains(&(index as u64));
            let expected: Vec<bool> = model.iter().enumerate().map(|(index, set)| inside(index) && !set).collect();
            prop_assert_eq!(bits(&ranges.gaps(within)), expected);
            let expected: Vec<bool> = model.iter().enumerate().map(|(index, set)| inside(index) && *set).collect();
            prop_assert_eq!(bits(&ranges.clip(within)), expected);
        }
    }
}
