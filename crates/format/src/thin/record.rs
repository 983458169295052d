//! Records: what a batch says about each of its contents.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{BLOCKS_MAX, Codec, STORED_BYTES_MAX, ThinError, WINDOW_BLOCKS};
use crate::{BLOCK, COUNTER_MAX};

/// Bytes of every record.
pub const RECORD_BYTES: usize = 32;

/// The bit of a joined fragment, beside its codec.
const JOINED: u8 = 1 << 7;

/// A fragment: consecutive blocks of one volume, stored together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FragmentRecord {
    /// The write's number in the store. Of two writes to a block, the higher one counts. A copy
    /// that the collector makes keeps the number.
    pub sequence: u64,
    /// The volume.
    pub line: u32,
    /// The first block.
    pub block: u64,
    /// Number of blocks: 1 to [`WINDOW_BLOCKS`], all in one window.
    pub blocks: u8,
    /// How the content is stored.
    pub codec: Codec,
    /// Bytes of the stored content.
    pub stored_bytes: u32,
    /// CRC-32C of the stored content.
    pub crc32c: u32,
    /// The volume's epoch when the fragment was written.
    pub birth: u32,
    /// Its blocks are of several writes, and the number is not lower than any of theirs.
    pub joined: bool,
}

/// A hole: blocks that read as zeroes from this write on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoleRecord {
    /// As of a fragment.
    pub sequence: u64,
    /// The volume.
    pub line: u32,
    /// The first block.
    pub block: u64,
    /// Number of blocks, at least 1.
    pub blocks: u64,
    /// The volume's epoch.
    pub birth: u32,
}

/// A node of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRecord {
    /// The checkpoint that wrote the node.
    pub generation: u64,
    /// The tree: a volume's map, or one of the store's own trees.
    pub line: u32,
    /// Level in the tree. Leaves have 0.
    pub level: u8,
    /// Number of the node among those of its level.
    pub index: u64,
    /// Bytes of the node.
    pub stored_bytes: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskFragment {
    sequence: U64,
    block: U64,
    line: U32,
    birth: U32,
    crc32c: U32,
    stored_less_one: U16,
    blocks: u8,
    codec_and_joined: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHole {
    sequence: U64,
    block: U64,
    line: U32,
    birth: U32,
    blocks: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskNode {
    generation: U64,
    index: U64,
    line: U32,
    stored_less_one: U16,
    level: u8,
    reserved: [u8; 9],
}

const _: () = {
    assert!(size_of::<DiskFragment>() == RECORD_BYTES);
    assert!(size_of::<DiskHole>() == RECORD_BYTES);
    assert!(size_of::<DiskNode>() == RECORD_BYTES);
};

fn invalid(field: &'static str) -> ThinError {
    ThinError::Invalid { what: "record", field }
}

fn check(is_right: bool, field: &'static str) -> Result<(), ThinError> {
    is_right.then_some(()).ok_or(invalid(field))
}

impl FragmentRecord {
    /// The bytes of this record.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(DiskFragment {
            sequence: self.sequence.into(),
            block: self.block.into(),
            line: self.line.into(),
            birth: self.birth.into(),
            crc32c: self.crc32c.into(),
            stored_less_one: ((self.stored_bytes - 1) as u16).into(),
            blocks: self.blocks,
            codec_and_joined: self.codec.number() | if self.joined { JOINED } else { 0 },
        })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<FragmentRecord, ThinError> {
        let disk: &DiskFragment = zerocopy::transmute_ref!(bytes);
        let record = FragmentRecord {
            sequence: disk.sequence.get(),
            line: disk.line.get(),
            block: disk.block.get(),
            blocks: disk.blocks,
            codec: Codec::of(disk.codec_and_joined & !JOINED).ok_or(invalid("codec"))?,
            stored_bytes: u32::from(disk.stored_less_one.get()) + 1,
            crc32c: disk.crc32c.get(),
            birth: disk.birth.get(),
            joined: disk.codec_and_joined & JOINED != 0,
        };
        let blocks = u64::from(record.blocks);
        check(record.sequence <= COUNTER_MAX, "sequence")?;
        check((1..=WINDOW_BLOCKS).contains(&blocks), "blocks")?;
        check(record.block < BLOCKS_MAX && record.block % WINDOW_BLOCKS + blocks <= WINDOW_BLOCKS, "block")?;
        let plain_bytes = u32::from(record.blocks) * BLOCK as u32;
        let fits = match record.codec {
            Codec::Plain => record.stored_bytes == plain_bytes,
            Codec::Lz4 | Codec::Zstd => record.stored_bytes < plain_bytes,
        };
        check(fits && record.stored_bytes <= STORED_BYTES_MAX, "stored bytes")?;
        Ok(record)
    }
}

impl HoleRecord {
    /// The bytes of this record.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(DiskHole {
            sequence: self.sequence.into(),
            block: self.block.into(),
            line: self.line.into(),
            birth: self.birth.into(),
            blocks: self.blocks.into(),
        })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<HoleRecord, ThinError> {
        let disk: &DiskHole = zerocopy::transmute_ref!(bytes);
        let record = HoleRecord {
            sequence: disk.sequence.get(),
            line: disk.line.get(),
            block: disk.block.get(),
            blocks: disk.blocks.get(),
            birth: disk.birth.get(),
        };
        check(record.sequence <= COUNTER_MAX, "sequence")?;
        check(record.block < BLOCKS_MAX, "block")?;
        check((1..=BLOCKS_MAX - record.block).contains(&record.blocks), "blocks")?;
        Ok(record)
    }
}

impl NodeRecord {
    /// The bytes of this record.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(DiskNode {
            generation: self.generation.into(),
            index: self.index.into(),
            line: self.line.into(),
            stored_less_one: ((self.stored_bytes - 1) as u16).into(),
            level: self.level,
            reserved: [0; 9],
        })
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<NodeRecord, ThinError> {
        let disk: &DiskNode = zerocopy::transmute_ref!(bytes);
        let record = NodeRecord {
            generation: disk.generation.get(),
            line: disk.line.get(),
            level: disk.level,
            index: disk.index.get(),
            stored_bytes: u32::from(disk.stored_less_one.get()) + 1,
        };
        check(record.generation <= COUNTER_MAX, "generation")?;
        check(record.level <= super::node::LEVEL_MAX, "level")?;
        check(record.index < BLOCKS_MAX, "index")?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAGMENT: FragmentRecord = FragmentRecord {
        sequence: 77,
        line: 3,
        block: 16 * 5 + 2,
        blocks: 14,
        codec: Codec::Lz4,
        stored_bytes: 12345,
        crc32c: 0xDEAD_BEEF,
        birth: 9,
        joined: false,
    };

    #[test]
    fn records_are_read_as_they_were_written() {
        for fragment in [FRAGMENT, FragmentRecord { joined: true, ..FRAGMENT }] {
            assert_eq!(FragmentRecord::decode(&fragment.encode()), Ok(fragment));
        }
        let hole = HoleRecord { sequence: 1, line: 2, block: BLOCKS_MAX - 1, blocks: 1, birth: 4 };
        assert_eq!(HoleRecord::decode(&hole.encode()), Ok(hole));
        let node = NodeRecord { generation: 5, line: 6, level: 3, index: 7, stored_bytes: 65536 };
        assert_eq!(NodeRecord::decode(&node.encode()), Ok(node));
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let cases = [
            (FragmentRecord { blocks: 15, ..FRAGMENT }, "block"),
            (FragmentRecord { blocks: 0, ..FRAGMENT }, "blocks"),
            (FragmentRecord { block: BLOCKS_MAX, blocks: 1, ..FRAGMENT }, "block"),
            (FragmentRecord { codec: Codec::Plain, ..FRAGMENT }, "stored bytes"),
            (FragmentRecord { stored_bytes: 14 * 4096, ..FRAGMENT }, "stored bytes"),
            (FragmentRecord { sequence: COUNTER_MAX + 1, ..FRAGMENT }, "sequence"),
        ];
        for (record, field) in cases {
            assert_eq!(FragmentRecord::decode(&record.encode()), Err(invalid(field)));
        }
        let hole = HoleRecord { sequence: 1, line: 2, block: BLOCKS_MAX - 1, blocks: 2, birth: 4 };
        assert_eq!(HoleRecord::decode(&hole.encode()), Err(invalid("blocks")));
    }
}
