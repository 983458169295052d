//! The pieces of a volume, in the order of its bytes.

use format::VolumeRecord;

use crate::group::Group;
use crate::map::Map;
use crate::stripe::MemberRange;

/// Consecutive bytes of a volume on one member, in one allocation chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte, in the volume.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Position on the members.
    pub at: MemberRange,
    /// Number of the data strip.
    pub strip: usize,
    /// Whether they were ever written; `None` if their content, or even that, is unknown.
    pub written: Option<bool>,
}

impl Piece {
    /// Whether too many members are missing for these bytes. Members with unreadable sectors count
    /// as present.
    pub(crate) fn is_lost(&self, group: &Group) -> bool {
        match self.written {
            Some(false) => false,
            None => true,
            Some(true) => {
                let missing = group.lost_strips(self.at.set, self.at.offset);
                missing.contains(&self.strip) && missing.len() > group.geometry.parity_count
            }
        }
    }
}

/// Iterates over the pieces of a volume.
pub(crate) struct Walk<'a> {
    group: &'a Group,
    map: &'a Map,
    /// Ranges of the group whose content is unknown, sorted.
    lost: &'a [(u64, u64)],
    volume: &'a VolumeRecord,
    extent: usize,
    within: u64,
    start: u64,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(group: &'a Group, map: &'a Map, lost: &'a [(u64, u64)], volume: &'a VolumeRecord) -> Self {
        Walk { group, map, lost, volume, extent: 0, within: 0, start: 0 }
    }
}

impl Walk<'_> {
    /// If no chunk of the map block of `chunk` was ever written: the end of the block. The stripes
    /// of all sets alternate, so the chunk of the first set beside this one must be in the same map
    /// block, too.
    fn unwritten_up_to(&self, chunk: u64) -> Option<u64> {
        let sets = self.group.geometry.sets;
        let end = self.map.unwritten_up_to(chunk)?;
        (self.map.unwritten_up_to(chunk / sets * sets) == Some(end)).then_some(end)
    }

    /// The first range in the list of lost blocks that ends after a byte of the group.
    fn lost_from(&self, logical: u64) -> Option<(u64, u64)> {
        let index = self.lost.partition_point(|(start, len)| start + len <= logical);
        self.lost.get(index).map(|(start, len)| (*start, start + len))
    }
}

impl Iterator for Walk<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let extent = self.volume.extents.get(self.extent)?;
        let left = self.volume.size_bytes - self.start;
        if left == 0 {
            return None; // The last block of the last extent may be longer than the volume.
        }
        let geometry = &self.group.geometry;
        let logical = extent.start_byte + self.within;
        let place = geometry.locate(logical);
        let in_strip = geometry.strip - place.offset % geometry.strip;
        let in_chunk = geometry.chunk - place.offset % geometry.chunk;
        let len = in_strip.min(in_chunk).min(extent.len_bytes - self.within).min(left);
        let chunk = geometry.chunk_of(place.set, place.offset);
        let in_extent = (extent.len_bytes - self.within).min(left);
        let (len, written) = if place.offset >= self.group.data_bytes {
            // Beyond the end of every member, and so is the rest of this extent.
            (in_extent, None)
        } else if let Some(end) = self.unwritten_up_to(chunk) {
            let up_to = geometry.stripe_start(0, end / geometry.sets * geometry.chunk);
            (in_extent.min(up_to.saturating_sub(logical).max(len)), Some(false))
        } else {
            (len, self.map.is_written(chunk))
        };
        let (len, written) = match self.lost_from(logical) {
            Some((start, end)) if start <= logical && written == Some(true) => (len.min(end - logical), None),
            Some((start, _)) if start > logical => (len.min(start - logical), written),
            _ => (len, written),
        };
        let piece = Piece {
            start: self.start,
            len,
            at: MemberRange { set: place.set, offset: place.offset },
            strip: place.strip,
            written,
        };
        self.start += len;
        self.within += len;
        if self.within == extent.len_bytes {
            (self.extent, self.within) = (self.extent + 1, 0);
        }
        Some(piece)
    }
}
