//! Records of segments: 128 of them are a leaf of the segment table.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ThinError;
use crate::COUNTER_MAX;

/// Bytes of a segment's record.
pub const SEGMENT_RECORD_BYTES: usize = 32;

/// Segments in a leaf of the table.
pub const SEGMENTS_PER_LEAF: u64 = 128;

/// Least bytes of a segment.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 16;

/// Most bytes of a segment.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 31;

/// How a segment is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SegmentUse {
    /// It may be filled, once it is discarded.
    #[default]
    Free,
    /// It has runs with fragments.
    Data,
    /// It has runs with nodes.
    Nodes,
    /// It has the anchors.
    Anchors,
}

/// A segment at a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentRecord {
    /// Its use.
    pub used_for: SegmentUse,
    /// Bytes that are still used.
    pub live_bytes: u32,
    /// Bytes of its runs. The rest of the segment stays unused until the segment is free again.
    pub filled_bytes: u32,
    /// The highest write in it. A recovery reads the segment if the checkpoint does not cover that.
    pub newest_sequence: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskSegment {
    used_for: u8,
    reserved: [u8; 3],
    live_bytes: U32,
    filled_bytes: U32,
    reserved_too: U32,
    newest_sequence: U64,
    reserved_last: U64,
}

const _: () = assert!(size_of::<DiskSegment>() == SEGMENT_RECORD_BYTES);

const USES: [SegmentUse; 4] = [SegmentUse::Free, SegmentUse::Data, SegmentUse::Nodes, SegmentUse::Anchors];

impl SegmentRecord {
    /// The bytes of this record. A free segment that was never used has only zeroes.
    pub fn encode(&self) -> [u8; SEGMENT_RECORD_BYTES] {
        let used_for = USES.iter().position(|known| *known == self.used_for).expect("all uses are listed");
        zerocopy::transmute!(DiskSegment {
            used_for: used_for as u8,
            reserved: [0; 3],
            live_bytes: self.live_bytes.into(),
            filled_bytes: self.filled_bytes.into(),
            reserved_too: 0.into(),
            newest_sequence: self.newest_sequence.into(),
            reserved_last: 0.into(),
        })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; SEGMENT_RECORD_BYTES]) -> Result<SegmentRecord, ThinError> {
        let invalid = |field| ThinError::Invalid { what: "segment record", field };
        let disk: &DiskSegment = zerocopy::transmute_ref!(bytes);
        let record = SegmentRecord {
            used_for: *USES.get(usize::from(disk.used_for)).ok_or(invalid("use"))?,
            live_bytes: disk.live_bytes.get(),
            filled_bytes: disk.filled_bytes.get(),
            newest_sequence: disk.newest_sequence.get(),
        };
        if record.newest_sequence > COUNTER_MAX {
            return Err(invalid("newest sequence"));
        }
        if record.live_bytes > record.filled_bytes || u64::from(record.filled_bytes) > SEGMENT_BYTES_MAX {
            return Err(invalid("live bytes"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_zeroes_are_a_free_segment() {
        for used_for in USES {
            let record = SegmentRecord { used_for, live_bytes: 5, filled_bytes: 1 << 20, newest_sequence: 7 };
            assert_eq!(SegmentRecord::decode(&record.encode()), Ok(record));
        }
        assert_eq!(SegmentRecord::decode(&[0; SEGMENT_RECORD_BYTES]), Ok(SegmentRecord::default()));
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let record = SegmentRecord { live_bytes: 5, filled_bytes: 4, ..SegmentRecord::default() };
        assert!(SegmentRecord::decode(&record.encode()).is_err());
        assert!(SegmentRecord::decode(&[4; SEGMENT_RECORD_BYTES]).is_err());
    }
}
