//! Records of lines. A *line* is the history of a volume's content. Each volume has one, with the
//! number of the volume.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::node::{ChildRecord, LEVEL_MAX};
use super::{StoredRange, ThinError};

/// Bytes of a line's record.
pub const LINE_RECORD_BYTES: usize = 64;

/// Lines of a leaf of the table of lines have numbers that differ in the lowest six bits only.
pub const LINES_PER_LEAF: u64 = 64;

/// The tree of the segment table, in node records.
pub const SEGMENTS_LINE: u32 = u32::MAX;

/// The tree of the table of lines, in node records.
pub const LINES_LINE: u32 = u32::MAX - 1;

/// The highest number of a volume's line.
pub const LINE_MAX: u32 = u32::MAX - 16;

/// A line at a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRecord {
    /// Its number: that of the volume in the catalogue.
    pub line: u32,
    /// The volume is deleted, and the map is being freed.
    pub is_deleted: bool,
    /// Its epoch: one more than the number of snapshots that were made.
    pub epoch: u32,
    /// Level of the map's root, if the map has one.
    pub root_level: u8,
    /// The map's root, with the sums of the whole map. `None`: nothing is mapped.
    pub root: Option<ChildRecord>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskLine {
    line: U32,
    epoch: U32,
    is_deleted: u8,
    root_level: u8,
    has_root: u8,
    reserved: [u8; 5],
    stored: U64,
    blocks: U64,
    live_bytes: U64,
    reserved_last: [u8; 24],
}

const _: () = assert!(size_of::<DiskLine>() == LINE_RECORD_BYTES);

impl LineRecord {
    /// The bytes of this record.
    pub fn encode(&self) -> [u8; LINE_RECORD_BYTES] {
        let root = self.root;
        zerocopy::transmute!(DiskLine {
            line: self.line.into(),
            epoch: self.epoch.into(),
            is_deleted: self.is_deleted.into(),
            root_level: self.root_level,
            has_root: root.is_some().into(),
            reserved: [0; 5],
            stored: root.map_or(0, |root| root.stored.pack()).into(),
            blocks: root.map_or(0, |root| root.blocks).into(),
            live_bytes: root.map_or(0, |root| root.live_bytes).into(),
            reserved_last: [0; 24],
        })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; LINE_RECORD_BYTES]) -> Result<LineRecord, ThinError> {
        let invalid = |field| ThinError::Invalid { what: "line record", field };
        let disk: &DiskLine = zerocopy::transmute_ref!(bytes);
        let flag = |byte: u8, field| if byte <= 1 { Ok(byte == 1) } else { Err(invalid(field)) };
        let stored = StoredRange::unpack(disk.stored.get());
        let root = ChildRecord { stored, blocks: disk.blocks.get(), live_bytes: disk.live_bytes.get() };
        let record = LineRecord {
            line: disk.line.get(),
            is_deleted: flag(disk.is_deleted, "deleted")?,
            epoch: disk.epoch.get(),
            root_level: disk.root_level,
            root: flag(disk.has_root, "root")?.then_some(root),
        };
        if record.line > LINE_MAX {
            return Err(invalid("line"));
        }
        if record.root_level > LEVEL_MAX {
            return Err(invalid("root level"));
        }
        if record.root.is_some_and(|root| !root.is_possible()) {
            return Err(invalid("root"));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let root = ChildRecord { stored: StoredRange { address: 1 << 30, bytes: 56 }, blocks: 5, live_bytes: 20480 };
        for root in [None, Some(root)] {
            let record = LineRecord { line: 7, is_deleted: root.is_none(), epoch: 3, root_level: 2, root };
            assert_eq!(LineRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let record = LineRecord { line: 7, is_deleted: false, epoch: 3, root_level: 2, root: None };
        assert!(LineRecord::decode(&LineRecord { line: LINES_LINE, ..record }.encode()).is_err());
        assert!(LineRecord::decode(&LineRecord { root_level: 99, ..record }.encode()).is_err());
        assert!(LineRecord::decode(&[2; LINE_RECORD_BYTES]).is_err());
    }
}
