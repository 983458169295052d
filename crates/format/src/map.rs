//! The allocation map: one bit per allocation chunk, set once the chunk has been written.
//!
//! Each block of the map has two slots on every member. A writer overwrites the slot that does not
//! hold the newest copy, so a torn write leaves the older copy. A reader takes the valid copy with
//! the highest sequence over all members. If no copy is valid, no chunk of that block was ever
//! written, so a new group writes no map at all.

use std::mem::{offset_of, size_of};

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c_without;
use crate::layout::Layout;
use crate::uuid::Uuid;
use crate::{BLOCK, COUNTER_MAX};

/// Slots of every map block.
pub const MAP_SLOTS: u64 = 2;

/// Bytes of bits in one map block.
pub const MAP_PAYLOAD_BYTES: usize = BLOCK - 64;

/// Allocation chunks in one map block.
pub const CHUNKS_PER_MAP_BLOCK: u64 = 8 * MAP_PAYLOAD_BYTES as u64;

/// Version of the map format that this crate writes and reads.
pub const MAP_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"PurlinMB";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskMapBlock {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    index: U64,
    sequence: U64,
    reserved: [u8; 16],
    bits: [u8; MAP_PAYLOAD_BYTES],
}

const _: () = {
    assert!(size_of::<DiskMapBlock>() == BLOCK);
    assert!(offset_of!(DiskMapBlock, crc32c) == 12);
    assert!(offset_of!(DiskMapBlock, array) == 16);
    assert!(offset_of!(DiskMapBlock, index) == 32);
    assert!(offset_of!(DiskMapBlock, sequence) == 40);
    assert!(offset_of!(DiskMapBlock, reserved) == 48);
    assert!(offset_of!(DiskMapBlock, bits) == 64);
};

/// One block of the allocation map. Chunk `index * CHUNKS_PER_MAP_BLOCK + n` is bit `n % 8` of byte
/// `n / 8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapBlock {
    /// Index of the block in the map, from 0.
    pub index: u64,
    /// Grows with every write of this block, to any slot and member. The first is 1.
    pub sequence: u64,
    /// The bits. Those past the last allocation chunk of the group are zero.
    pub bits: [u8; MAP_PAYLOAD_BYTES],
}

/// Why bytes are not a block of this map. None of these is alarming by itself: a slot that was
/// never written holds arbitrary bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MapError {
    /// There is no map block here, or fewer bytes than one.
    #[error("not a map block")]
    NotAMapBlock,
    /// The bytes were damaged or written only in part.
    #[error("the checksum of the map block does not match")]
    Checksum,
    /// Written by another version of Purlin.
    #[error("map block of version {found}, this program reads version {MAP_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// Left behind by another array.
    #[error("map block of array {array}")]
    OtherArray {
        /// That array.
        array: Uuid,
    },
    /// A sequence above [`COUNTER_MAX`], which counting never reaches.
    #[error("the sequence {found} of the map block is invalid")]
    Sequence {
        /// The sequence found.
        found: u64,
    },
    /// Another block of the map, written or read at the wrong place.
    #[error("map block {found} in the place of {expected}")]
    Misplaced {
        /// Index in the block.
        found: u64,
        /// Index that belongs here.
        expected: u64,
    },
}

impl MapBlock {
    /// A block in which no chunk was written, with sequence 0. It applies if no copy is valid.
    pub fn empty(index: u64) -> Self {
        MapBlock { index, sequence: 0, bits: [0; MAP_PAYLOAD_BYTES] }
    }

    /// The bytes on a drive.
    pub fn encode(&self, array: &Uuid) -> [u8; BLOCK] {
        let mut disk = DiskMapBlock::new_zeroed();
        disk.magic = MAGIC;
        disk.version = MAP_VERSION.into();
        disk.array = *array.as_bytes();
        disk.index = self.index.into();
        disk.sequence = self.sequence.into();
        disk.bits = self.bits;
        disk.crc32c = crc32c_without(disk.as_bytes(), offset_of!(DiskMapBlock, crc32c)).into();
        zerocopy::transmute!(disk)
    }

    /// Reads block `index` of the map of `array` from the first [`BLOCK`] bytes.
    ///
    /// # Errors
    /// [`MapError`]: the copy counts as absent.
    pub fn decode(bytes: &[u8], array: &Uuid, index: u64) -> Result<MapBlock, MapError> {
        let (disk, _) = DiskMapBlock::ref_from_prefix(bytes).map_err(|_| MapError::NotAMapBlock)?;
        if disk.magic != MAGIC {
            return Err(MapError::NotAMapBlock);
        }
        if disk.crc32c.get() != crc32c_without(disk.as_bytes(), offset_of!(DiskMapBlock, crc32c)) {
            return Err(MapError::Checksum);
        }
        if disk.version.get() != MAP_VERSION {
            return Err(MapError::UnknownVersion { found: disk.version.get() });
        }
        if disk.array != *array.as_bytes() {
            return Err(MapError::OtherArray { array: Uuid::from_bytes(disk.array) });
        }
        if disk.index.get() != index {
            return Err(MapError::Misplaced { found: disk.index.get(), expected: index });
        }
        let sequence = disk.sequence.get();
        if sequence > COUNTER_MAX {
            return Err(MapError::Sequence { found: sequence });
        }
        Ok(MapBlock { index, sequence, bits: disk.bits })
    }

    /// Whether chunk `chunk` of this block (from 0 in each block) was written.
    ///
    /// # Panics
    /// If `chunk` is not below [`CHUNKS_PER_MAP_BLOCK`].
    pub fn is_set(&self, chunk: u64) -> bool {
        let (byte, bit) = bit_of(chunk);
        self.bits[byte] & bit != 0
    }

    /// Sets whether chunk `chunk` of this block (from 0 in each block) was written.
    ///
    /// # Panics
    /// If `chunk` is not below [`CHUNKS_PER_MAP_BLOCK`].
    pub fn set(&mut self, chunk: u64, written: bool) {
        let (byte, bit) = bit_of(chunk);
        if written { self.bits[byte] |= bit } else { self.bits[byte] &= !bit }
    }
}

fn bit_of(chunk: u64) -> (usize, u8) {
    assert!(chunk < CHUNKS_PER_MAP_BLOCK, "chunk {chunk} of a map block");
    ((chunk / 8) as usize, 1 << (chunk % 8))
}

/// Map blocks that hold a bit for each of `chunk_count` allocation chunks.
pub fn map_block_count(chunk_count: u64) -> u64 {
    chunk_count.div_ceil(CHUNKS_PER_MAP_BLOCK)
}

/// Where slot `slot` (0 or 1) of map block `index` lies on a member, in bytes.
///
/// # Panics
/// If there is no such slot, or the block is not within the map region.
pub fn map_slot_offset(layout: &Layout, index: u64, slot: u64) -> u64 {
    assert!(slot < MAP_SLOTS, "slot {slot} of a map block");
    assert!(index < layout.map.len / (MAP_SLOTS * BLOCK as u64), "map block {index} is not in the map region");
    layout.map.offset + (index * MAP_SLOTS + slot) * BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Level, Shape};

    #[test]
    fn every_chunk_has_its_own_bit() {
        let mut block = MapBlock::empty(0);
        for chunk in [0, 1, 7, 8, 4095, CHUNKS_PER_MAP_BLOCK - 1] {
            block.set(chunk, true);
            assert!(block.is_set(chunk));
            assert_eq!(block.bits.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            block.set(chunk, false);
        }
        block.set(10, true);
        assert_eq!(block.bits[1], 4, "chunk 10 is bit 2 of byte 1");
    }

    #[test]
    fn slots_of_all_blocks_lie_in_the_map_region_and_nowhere_twice() {
        let shape = Shape::of(Level::Raid5, 3).strip_bytes(4096).build().unwrap();
        let layout = Layout::plan(&shape, 16 << 30, false).unwrap();
        let count = map_block_count(layout.chunk_count);
        assert!(count > 1);
        let mut offsets: Vec<u64> =
            (0..count).flat_map(|index| [0, 1].map(|slot| map_slot_offset(&layout, index, slot))).collect();
        assert_eq!(offsets[0], layout.map.offset);
        assert!(offsets.iter().all(|offset| offset + BLOCK as u64 <= layout.map.end()));
        offsets.dedup();
        assert!(offsets.is_sorted() && offsets.len() as u64 == 2 * count);
    }
}
