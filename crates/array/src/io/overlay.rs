//! The result of a batch of writes to a stripe group: for each data strip the newest bytes of every
//! member offset that they touch.

use drive::Buf;
use smallvec::SmallVec;

use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{Geometry, Role};

/// New content of some member offsets.
#[derive(Debug, Clone)]
pub enum Content {
    /// These bytes.
    Data(Buf),
    /// Zeroes. The space may be freed unless `keep`.
    Zero {
        /// The space stays allocated.
        keep: bool,
    },
}

/// New content of a run of member offsets of one data strip.
#[derive(Debug, Clone)]
pub struct Patch {
    /// The member offsets.
    pub range: Range,
    /// The new content.
    pub content: Content,
}

/// The patches of a stripe group.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Sorted by data strip and member offsets, disjoint. A single allocation: most writes have few
    /// patches, and all writes have at least one.
    patches: Vec<(Role, Patch)>,
}

impl Overlay {
    /// No patches, with room for some.
    pub fn with_capacity(patches: usize) -> Self {
        Overlay { patches: Vec::with_capacity(patches) }
    }

    /// Adds a patch over earlier ones.
    pub fn add(&mut self, role: Role, patch: Patch) {
        let follows = |(last, old): &(Role, Patch)| (*last, old.range.end) <= (role, patch.range.start);
        if self.patches.last().is_none_or(follows) {
            self.patches.push((role, patch));
            return;
        }
        self.remove(role, patch.range);
        let at = self.patches.partition_point(|(other, old)| (*other, old.range.start) < (role, patch.range.start));
        self.patches.insert(at, (role, patch));
    }

    /// Removes the patches of some member offsets of a strip.
    pub fn remove(&mut self, role: Role, range: Range) {
        let touched = self.touching(role, range);
        let parts = |(_, patch): &(Role, Patch)| {
            let before = Range::new(patch.range.start, range.start.max(patch.range.start));
            let after = Range::new(range.end.min(patch.range.end), patch.range.end);
            [before, after].map(|part| (!part.is_empty()).then(|| (role, patch.clip(part)))).into_iter().flatten()
        };
        let left: SmallVec<[(Role, Patch); 2]> = self.patches[touched.clone()].iter().flat_map(parts).collect();
        self.patches.splice(touched, left);
    }

    /// Whether there are no patches.
    pub fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// The indices of a strip's patches that touch some member offsets.
    fn touching(&self, role: Role, within: Range) -> std::ops::Range<usize> {
        if within.is_empty() {
            return 0..0;
        }
        let from = self.patches.partition_point(|(other, old)| (*other, old.range.end) <= (role, within.start));
        let count =
            self.patches[from..].iter().take_while(|(other, old)| (*other, old.range.start) < (role, within.end));
        from..from + count.count()
    }

    /// The patches of a strip that touch some member offsets, cut to them.
    pub fn patches(&self, role: Role, within: Range) -> impl Iterator<Item = Patch> + '_ {
        let touching = &self.patches[self.touching(role, within)];
        touching.iter().map(move |(_, patch)| patch.clip(patch.range.intersect(within)))
    }

    /// Whether some member offsets of a strip are touched.
    pub fn touches(&self, role: Role, within: Range) -> bool {
        !self.touching(role, within).is_empty()
    }

    /// Whether all patches of some member offsets of a strip are zeroes. Unless `or_warm` is set,
    /// only zeroes whose space may be freed count.
    pub fn is_zero(&self, role: Role, within: Range, or_warm: bool) -> bool {
        let touching = &self.patches[self.touching(role, within)];
        touching.iter().all(|(_, patch)| matches!(patch.content, Content::Zero { keep } if or_warm || !keep))
    }

    /// The member offsets that a strip's patches cover.
    pub fn covered(&self, role: Role, within: Range) -> Ranges {
        let mut ranges = Ranges::new();
        for (_, patch) in &self.patches[self.touching(role, within)] {
            ranges.add(patch.range.intersect(within));
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

    /// The sectors that a strip's patches cover entirely.
    pub fn full(&self, role: Role, within: Range, geometry: &Geometry) -> Ranges {
        let mut ranges = Ranges::new();
        for range in self.covered(role, within).iter() {
            ranges.add(geometry.inward(range));
        }
        ranges
    }

    /// Writes the patches over `old`, which holds the member offsets from `base` on.
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
            let mut overlay = Overlay::default();
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
