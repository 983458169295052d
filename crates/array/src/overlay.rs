//! What the writes of one batch leave in a unit: for each data strip the newest bytes of every column they touch.

use drive::Buf;

use crate::geometry::{Geometry, Role};
use crate::ranges::{Range, Ranges};

/// New content of some columns.
#[derive(Debug, Clone)]
pub enum Content {
    /// These bytes.
    Data(Buf),
    /// Zeroes. The space may be given back unless `keep`.
    Zero {
        /// The space stays allocated.
        keep: bool,
    },
}

/// New content of a run of columns of one data strip.
#[derive(Debug, Clone)]
pub struct Patch {
    /// The columns.
    pub range: Range,
    /// What they hold from now on.
    pub content: Content,
}

/// The patches of a unit, by data strip, sorted and disjoint.
#[derive(Debug)]
pub struct Overlay {
    strips: Vec<Vec<Patch>>,
}

impl Overlay {
    /// Nothing changes in any of `data` strips.
    pub fn new(data: usize) -> Self {
        Overlay { strips: vec![Vec::new(); data] }
    }

    /// Adds a patch over whatever was there.
    pub fn add(&mut self, role: Role, patch: Patch) {
        let strip = &mut self.strips[role];
        if strip.last().is_none_or(|last| last.range.end <= patch.range.start) {
            strip.push(patch);
            return;
        }
        self.remove(role, patch.range);
        let strip = &mut self.strips[role];
        let at = strip.partition_point(|other| other.range.start < patch.range.start);
        strip.insert(at, patch);
    }

    /// Forgets what was to happen to some columns of a strip.
    pub fn remove(&mut self, role: Role, range: Range) {
        let old = std::mem::take(&mut self.strips[role]);
        for patch in old {
            if patch.range.intersect(range).is_empty() {
                self.strips[role].push(patch);
                continue;
            }
            for part in [
                Range::new(patch.range.start, range.start.max(patch.range.start)),
                Range::new(range.end.min(patch.range.end), patch.range.end),
            ] {
                if !part.is_empty() {
                    self.strips[role].push(patch.clip(part));
                }
            }
        }
    }

    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.strips.iter().all(Vec::is_empty)
    }

    /// The patches of a strip that touch some columns, cut to them.
    pub fn patches(&self, role: Role, within: Range) -> impl Iterator<Item = Patch> + '_ {
        let patches = &self.strips[role];
        let from = patches.partition_point(|patch| patch.range.end <= within.start);
        patches[from..]
            .iter()
            .take_while(move |patch| patch.range.start < within.end)
            .map(move |patch| patch.clip(patch.range.intersect(within)))
    }

    /// The columns that a strip's patches cover.
    pub fn covered(&self, role: Role, within: Range) -> Ranges {
        let mut ranges = Ranges::new();
        for patch in self.patches(role, within) {
            ranges.add(patch.range);
        }
        ranges
    }

    /// The sectors that a strip's patches touch.
    pub fn touched(&self, role: Role, within: Range, geometry: &Geometry) -> Ranges {
        let mut ranges = Ranges::new();
        for range in self.covered(role, within).iter() {
            ranges.add(geometry.outward(range));
        }
        ranges
    }

    /// The sectors that a strip's patches cover whole.
    pub fn full(&self, role: Role, within: Range, geometry: &Geometry) -> Ranges {
        let mut ranges = Ranges::new();
        for range in self.covered(role, within).iter() {
            ranges.add(geometry.inward(range));
        }
        ranges
    }

    /// Writes the patches over `old`, which holds the columns from `base` on.
    pub fn apply(&self, role: Role, base: u64, old: &mut [u8]) {
        let within = Range::new(base, base + old.len() as u64);
        for patch in self.patches(role, within) {
            let into = &mut old[patch.range.relative(base)];
            match patch.content {
                Content::Data(data) => into.copy_from_slice(&data),
                Content::Zero { .. } => into.fill(0),
            }
        }
    }
}

impl Patch {
    fn clip(&self, part: Range) -> Patch {
        let content = match &self.content {
            Content::Data(data) => Content::Data(data.slice(part.relative(self.range.start))),
            Content::Zero { keep } => Content::Zero { keep: *keep },
        };
        Patch { range: part, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_write_of_a_byte_wins(writes in proptest::collection::vec((0u64..64, 1u64..32, 1u8..255, any::<bool>()), 0..12)) {
            let mut overlay = Overlay::new(1);
            let mut model = [0xFFu8; 64];
            let mut covered = [false; 64];
            for (start, len, value, zero) in writes {
                let range = Range::new(start, (start + len).min(64));
                let content = if zero { Content::Zero { keep: false } } else { Content::Data(vec![value; range.len() as usize].into()) };
                overlay.add(0, Patch { range, content });
                model[range.relative(0)].fill(if zero { 0 } else { value });
                covered[range.relative(0)].fill(true);
            }
            let mut bytes = [0xFFu8; 64];
            overlay.apply(0, 0, &mut bytes);
            prop_assert_eq!(bytes, model);
            let mut seen = [false; 64];
            for range in overlay.covered(0, Range::new(0, 64)).iter() {
                seen[range.relative(0)].fill(true);
            }
            prop_assert_eq!(seen, covered);
        }
    }
}
