//! Segments: where they lie. Pure arithmetic.

use array::Geometry;
use format::ExtentRecord;

/// Segments on a group: at most about so many, so that their table stays small.
const SEGMENTS_MAX: u64 = 1 << 20;

/// Least bytes of a segment.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// The division of a group into segments. Segment `n` begins at byte `n * segment_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Bytes of a segment: whole bands.
    pub segment_bytes: u64,
    /// Every run is a multiple of this: whole stripes and whole allocation chunks.
    pub unit_bytes: u64,
}

impl Grid {
    /// The division of a new store on a group: whole bands of at least 1 MiB.
    pub fn plan(geometry: &Geometry) -> Grid {
        let band_bytes = geometry.band_bytes();
        let least = SEGMENT_BYTES_MIN.max(geometry.capacity() / SEGMENTS_MAX);
        Grid { segment_bytes: least.div_ceil(band_bytes) * band_bytes, unit_bytes: geometry.whole_write_bytes() }
    }

    /// The division of a store with segments of so many bytes. `None` if those are not whole bands.
    pub fn of(geometry: &Geometry, segment_bytes: u64) -> Option<Grid> {
        let is_possible = segment_bytes > 0 && segment_bytes.is_multiple_of(geometry.band_bytes());
        is_possible.then(|| Grid { segment_bytes, unit_bytes: geometry.whole_write_bytes() })
    }

    /// The segment with a byte of the group.
    pub fn segment_of(&self, address: u64) -> u64 {
        address / self.segment_bytes
    }

    /// The first byte of a segment.
    pub fn start(&self, segment: u64) -> u64 {
        segment * self.segment_bytes
    }

    /// The segments of an extent.
    pub fn segments(&self, extent: &ExtentRecord) -> std::ops::Range<u64> {
        let start = extent.start_byte.div_ceil(self.segment_bytes);
        start..((extent.start_byte + extent.len_bytes) / self.segment_bytes).max(start)
    }
}
