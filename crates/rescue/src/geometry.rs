//! Maps logical bytes to members: docs/format/layout.md, "Zones" and "Stripes".

use format::{Layout, Shape};

/// The numbers of a group's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Members of a set.
    pub width: usize,
    /// Data strips of a stripe.
    pub data_count: usize,
    /// Parity strips of a stripe, or copies less one for mirrors.
    pub parity_count: usize,
    /// Sets.
    pub sets: u64,
    /// Bytes of a strip.
    pub strip: u64,
    /// Bytes of an allocation chunk on one member.
    pub chunk: u64,
    /// Start of the data region on each member.
    pub data_offset: u64,
    /// Length of the data region on each member.
    pub data_len: u64,
}

/// Where a byte of the group's logical space lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StripPlace {
    /// The set.
    pub set: u64,
    /// The data strip, from 0.
    pub strip: usize,
    /// Offset from the start of the data region, on each member of the set.
    pub offset: u64,
}

impl Geometry {
    pub(crate) fn new(shape: &Shape, layout: &Layout) -> Geometry {
        Geometry {
            width: shape.members_per_set(),
            data_count: shape.data_per_set(),
            parity_count: usize::from(shape.parity_count),
            sets: u64::from(shape.sets),
            strip: u64::from(shape.strip_bytes),
            chunk: u64::from(layout.chunk_bytes),
            data_offset: layout.data.offset,
            data_len: layout.data.len,
        }
    }

    /// Location of byte `logical` of the group.
    pub(crate) fn locate(&self, logical: u64) -> StripPlace {
        let stripe_data_bytes = self.data_count as u64 * self.strip;
        let stripe = logical / stripe_data_bytes;
        let (set, row) = (stripe % self.sets, stripe / self.sets);
        let strip = (logical % stripe_data_bytes / self.strip) as usize;
        StripPlace { set, strip, offset: row * self.strip + logical % self.strip }
    }

    /// First logical byte of the stripe that contains the bytes at `offset` of a set.
    pub(crate) fn stripe_start(&self, set: u64, offset: u64) -> u64 {
        (offset / self.strip * self.sets + set) * self.data_count as u64 * self.strip
    }

    /// The allocation chunk of the bytes at `offset` of a set.
    pub(crate) fn chunk_of(&self, set: u64, offset: u64) -> u64 {
        offset / self.chunk * self.sets + set
    }

    /// The slot that holds strip `strip` (data from 0, then parity) of the row at `offset` of a
    /// set.
    pub(crate) fn slot_of(&self, set: u64, offset: u64, strip: usize) -> usize {
        let first = set as usize * self.width;
        if self.parity_count == 0 {
            return first + strip;
        }
        let n = self.width;
        let p = n - 1 - (offset / self.strip % n as u64) as usize;
        let after_p = if strip < self.data_count { self.parity_count + strip } else { strip - self.data_count };
        first + (p + after_p) % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::Level;

    fn geometry(level: Level, members: u16) -> Geometry {
        let shape = Shape::of(level, members).strip_bytes(65536).build().unwrap();
        Geometry::new(&shape, &Layout::plan(&shape, 64 << 20, false).unwrap())
    }

    #[test]
    fn the_example_of_the_document_lies_where_it_says() {
        let raid5 = geometry(Level::Raid5, 3);
        let place = raid5.locate(200_000);
        assert_eq!(place, StripPlace { set: 0, strip: 1, offset: 65536 + 3392 });
        assert_eq!(raid5.slot_of(0, place.offset, 1), 0);
        assert_eq!(raid5.slot_of(0, place.offset, 0), 2);
        assert_eq!(raid5.slot_of(0, place.offset, 2), 1, "P");
    }

    #[test]
    fn each_row_uses_every_member_of_its_set_once() {
        for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 3), (Level::Raid6, 6), (Level::Raid50, 8)] {
            let geometry = geometry(level, members);
            for set in 0..geometry.sets {
                for row in 0..10 {
                    let count = geometry.data_count + geometry.parity_count;
                    let mut slots: Vec<usize> =
                        (0..count).map(|strip| geometry.slot_of(set, row * geometry.strip, strip)).collect();
                    slots.sort_unstable();
                    let first = set as usize * geometry.width;
                    assert_eq!(slots, (first..first + geometry.width).collect::<Vec<_>>(), "{level} row {row}");
                }
            }
        }
    }

    #[test]
    fn a_stripe_starts_at_its_first_data_strip() {
        let geometry = geometry(Level::Raid50, 8);
        for logical in (0..40u64 << 20).step_by(12_345) {
            let place = geometry.locate(logical);
            let start = geometry.stripe_start(place.set, place.offset);
            let at = start + place.strip as u64 * geometry.strip + place.offset % geometry.strip;
            assert_eq!(at, logical);
        }
    }
}
