//! The list of lost blocks: ranges of the group whose content is unknown. Reading them is an error
//! until they are written again.
//!
//! Every member has two slots, written in turn. The valid copy with the highest sequence counts.
//! Without a valid copy, nothing is lost.

use std::mem::size_of;

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::COUNTER_MAX;
use crate::checksum::crc32c_without;
use crate::uuid::Uuid;

/// Version of the list format that this crate writes and reads.
pub const LOST_VERSION: u32 = 1;

/// Slots of the list.
pub const LOST_SLOTS: u64 = 2;

/// Bytes of a slot.
pub const LOST_SLOT_BYTES: usize = 8192;

/// Most ranges of the list.
pub const LOST_RANGES_MAX: usize = (LOST_SLOT_BYTES - 64) / size_of::<DiskRange>();

const MAGIC: [u8; 8] = *b"PurlinLB";

const CRC_FIELD: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct DiskRange {
    offset: U64,
    len: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskLost {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    sequence: U64,
    count: U32,
    reserved: [u8; 20],
    ranges: [DiskRange; LOST_RANGES_MAX],
}

const _: () = assert!(size_of::<DiskLost>() == LOST_SLOT_BYTES);

/// The list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostBlocks {
    /// Grows with every version; 0 is the list that was never written.
    pub sequence: u64,
    /// Offset in the group and length, in bytes. Ranges are sorted, not empty and do not overlap.
    /// At most [`LOST_RANGES_MAX`].
    pub ranges: Vec<(u64, u64)>,
}

/// Why bytes are not a copy of this list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LostError {
    /// There is no list here.
    #[error("not a list of lost blocks")]
    NotAList,
    /// The bytes were damaged or written only in part.
    #[error("the checksum of the list of lost blocks does not match")]
    Checksum,
    /// Written by another version of Purlin.
    #[error("list of lost blocks of version {found}, this program reads version {LOST_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// Left behind by another array.
    #[error("a list of lost blocks of another array")]
    OtherArray,
    /// The checksum is right, but the sequence or the ranges are invalid.
    #[error("the list of lost blocks is invalid")]
    Invalid,
}

impl LostBlocks {
    /// The bytes on a drive.
    ///
    /// # Panics
    /// If the ranges break the rules of [`LostBlocks::ranges`].
    pub fn encode(&self, array: &Uuid) -> Vec<u8> {
        assert!(self.is_valid(), "ranges are valid before they are written");
        let mut disk = DiskLost::new_zeroed();
        disk.magic = MAGIC;
        disk.version = LOST_VERSION.into();
        disk.array = *array.as_bytes();
        disk.sequence = self.sequence.into();
        disk.count = (self.ranges.len() as u32).into();
        for (slot, &(offset, len)) in disk.ranges.iter_mut().zip(&self.ranges) {
            *slot = DiskRange { offset: offset.into(), len: len.into() };
        }
        disk.crc32c = crc32c_without(disk.as_bytes(), CRC_FIELD).into();
        disk.as_bytes().to_vec()
    }

    /// Reads a copy from the first [`LOST_SLOT_BYTES`] bytes.
    ///
    /// # Errors
    /// [`LostError`]: the copy counts as absent.
    pub fn decode(bytes: &[u8], array: &Uuid) -> Result<LostBlocks, LostError> {
        let (disk, _) = DiskLost::ref_from_prefix(bytes).map_err(|_| LostError::NotAList)?;
        if disk.magic != MAGIC {
            return Err(LostError::NotAList);
        }
        if disk.crc32c.get() != crc32c_without(disk.as_bytes(), CRC_FIELD) {
            return Err(LostError::Checksum);
        }
        if disk.version.get() != LOST_VERSION {
            return Err(LostError::UnknownVersion { found: disk.version.get() });
        }
        if disk.array != *array.as_bytes() {
            return Err(LostError::OtherArray);
        }
        let ranges = disk.ranges.get(..disk.count.get() as usize).ok_or(LostError::Invalid)?;
        let ranges = ranges.iter().map(|range| (range.offset.get(), range.len.get())).collect();
        let list = LostBlocks { sequence: disk.sequence.get(), ranges };
        if list.is_valid() { Ok(list) } else { Err(LostError::Invalid) }
    }

    fn is_valid(&self) -> bool {
        let mut free_from = 0;
        self.ranges.len() <= LOST_RANGES_MAX
            && self.sequence <= COUNTER_MAX
            && self.ranges.iter().all(|&(offset, len)| {
                let fits = offset >= free_from && len > 0;
                free_from = offset.saturating_add(len);
                fits && offset.checked_add(len).is_some()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_bytes([3; 16]);

    #[test]
    fn the_list_reads_back_and_is_refused_when_damaged_or_foreign() {
        let list = LostBlocks { sequence: 5, ranges: vec![(4096, 4096), (1 << 40, 512)] };
        let bytes = list.encode(&ARRAY);
        assert_eq!(LostBlocks::decode(&bytes, &ARRAY), Ok(list));
        assert_eq!(LostBlocks::decode(&bytes, &Uuid::from_bytes([4; 16])), Err(LostError::OtherArray));
        for byte in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 1;
            assert!(LostBlocks::decode(&damaged, &ARRAY).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn ranges_that_overlap_or_hold_nothing_are_refused() {
        for ranges in [vec![(0, 0)], vec![(0, 10), (5, 10)], vec![(u64::MAX, 1)]] {
            assert!(std::panic::catch_unwind(|| LostBlocks { sequence: 1, ranges }.encode(&ARRAY)).is_err());
        }
        let list = LostBlocks { sequence: 1, ranges: vec![(0, 512)] };
        let mut bytes = list.encode(&ARRAY);
        bytes[40] = 2;
        let sum = crc32c_without(&bytes, CRC_FIELD);
        bytes[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(LostBlocks::decode(&bytes, &ARRAY), Err(LostError::Invalid));
    }
}
