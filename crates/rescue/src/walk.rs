//! The pieces of a volume, in its own order.

use format::VolumeRecord;

use crate::group::Group;
use crate::map::Map;
use crate::stripe::Column;

/// Bytes of a volume that lie side by side on one member, in one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First byte, in the volume.
    pub start: u64,
    /// How many.
    pub len: u64,
    /// Where they lie.
    pub at: Column,
    /// On which data strip.
    pub strip: usize,
    /// Whether they were ever written; `None` where nobody knows.
    pub written: Option<bool>,
}

/// Goes through a volume.
pub(crate) struct Walk<'a> {
    group: &'a Group,
    map: &'a Map,
    volume: &'a VolumeRecord,
    extent: usize,
    within: u64,
    start: u64,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(group: &'a Group, map: &'a Map, volume: &'a VolumeRecord) -> Self {
        Walk { group, map, volume, extent: 0, within: 0, start: 0 }
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
        let place = geometry.locate(extent.start_byte + self.within);
        let in_strip = geometry.strip - place.offset % geometry.strip;
        let in_zone = geometry.zone - place.offset % geometry.zone;
        let len = in_strip.min(in_zone).min(extent.len_bytes - self.within).min(left);
        let zone = geometry.zone_of(place.set, place.offset);
        let piece = Piece {
            start: self.start,
            len,
            at: Column { set: place.set, offset: place.offset },
            strip: place.strip,
            written: self.map.is_written(zone),
        };
        self.start += len;
        self.within += len;
        if self.within == extent.len_bytes {
            (self.extent, self.within) = (self.extent + 1, 0);
        }
        Some(piece)
    }
}
