//! The anchor: the newest checkpoint, from which all else is found.
//!
//! There are two places for it. A checkpoint writes the one that does not hold the newest anchor.
//! All fields are in the first 512 bytes, and the others are always zeroes. So a torn write leaves
//! either the older anchor or the newer one in its place, and both places are valid at any time.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::batch::StoreKey;
use super::node::LEVEL_MAX;
use super::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use super::{StoredRange, ThinError};
use crate::checksum::crc32c_without;
use crate::uuid::Uuid;
use crate::{BLOCK, COUNTER_MAX};

/// Version of the anchor that this crate writes and reads.
pub const ANCHOR_VERSION: u32 = 1;

/// Bytes from the first anchor to the second.
pub const ANCHOR_DISTANCE_BYTES: u64 = 32 << 10;

/// Bytes of an anchor.
pub const ANCHOR_BYTES: usize = BLOCK;

const MAGIC: [u8; 8] = *b"PurlinTA";

const CRC_FIELD: usize = offset_of!(DiskAnchor, crc32c);

const WHAT: &str = "anchor";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskAnchor {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    key: [u8; 16],
    generation: U64,
    segment_bytes: U64,
    covered: U64,
    next_sequence: U64,
    intent_generation: U64,
    segments: DiskRoot,
    lines: DiskRoot,
    reserved: [u8; BLOCK - 120],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskRoot {
    stored: U64,
    level: u8,
    is_there: u8,
    reserved: [u8; 6],
}

const _: () = assert!(size_of::<DiskAnchor>() == ANCHOR_BYTES && CRC_FIELD == 12);

// A drive writes a sector as a whole, and no drive has sectors shorter than this.
const _: () = assert!(offset_of!(DiskAnchor, reserved) <= 512);

/// The root of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Its bytes.
    pub stored: StoredRange,
    /// Its level.
    pub level: u8,
}

/// An anchor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The secret of this store, in all of its batches.
    pub key: StoreKey,
    /// Counts checkpoints, from 1.
    pub generation: u64,
    /// Bytes of a segment. Segment `n` begins at byte `n * segment_bytes` of the group.
    pub segment_bytes: u64,
    /// Every write up to this one is in the trees. Later ones are found in segments and in frames.
    pub covered: u64,
    /// The number of the next write is at least this.
    pub next_sequence: u64,
    /// Generation of the frames of the intent log that count.
    pub intent_generation: u64,
    /// The segment table.
    pub segments: Option<Root>,
    /// The table of lines.
    pub lines: Option<Root>,
}

fn encode_root(root: Option<Root>) -> DiskRoot {
    DiskRoot {
        stored: root.map_or(0, |root| root.stored.pack()).into(),
        level: root.map_or(0, |root| root.level),
        is_there: root.is_some().into(),
        reserved: [0; 6],
    }
}

fn decode_root(disk: &DiskRoot) -> Result<Option<Root>, ThinError> {
    let root = Root { stored: StoredRange::unpack(disk.stored.get()), level: disk.level };
    match disk.is_there {
        0 => Ok(None),
        1 if root.level <= LEVEL_MAX => Ok(Some(root)),
        _ => Err(ThinError::Invalid { what: WHAT, field: "root" }),
    }
}

impl Anchor {
    /// The newer one of a store's two anchors, those of an even and of an odd generation.
    ///
    /// # Errors
    /// [`ThinError`]: they do not belong together.
    pub fn newest(even: Anchor, odd: Anchor) -> Result<Anchor, ThinError> {
        let are_in_place = even.generation.is_multiple_of(2) && !odd.generation.is_multiple_of(2);
        if !are_in_place || even.generation.abs_diff(odd.generation) != 1 || even.key != odd.key {
            return Err(ThinError::Misplaced { what: WHAT });
        }
        Ok(if even.generation > odd.generation { even } else { odd })
    }

    /// The bytes of this anchor.
    pub fn encode(&self, array: &Uuid) -> Vec<u8> {
        let mut disk = DiskAnchor::new_zeroed();
        disk.magic = MAGIC;
        disk.version = ANCHOR_VERSION.into();
        disk.array = *array.as_bytes();
        disk.key = self.key;
        disk.generation = self.generation.into();
        disk.segment_bytes = self.segment_bytes.into();
        disk.covered = self.covered.into();
        disk.next_sequence = self.next_sequence.into();
        disk.intent_generation = self.intent_generation.into();
        disk.segments = encode_root(self.segments);
        disk.lines = encode_root(self.lines);
        disk.crc32c = crc32c_without(disk.as_bytes(), CRC_FIELD).into();
        disk.as_bytes().to_vec()
    }

    /// Reads an anchor.
    ///
    /// # Errors
    /// [`ThinError`]: there is no valid anchor of this array.
    pub fn decode(bytes: &[u8], array: &Uuid) -> Result<Anchor, ThinError> {
        let (disk, _) = DiskAnchor::ref_from_prefix(bytes).map_err(|_| ThinError::Missing { what: WHAT })?;
        if disk.magic != MAGIC {
            return Err(ThinError::Missing { what: WHAT });
        }
        let found = disk.version.get();
        if found != ANCHOR_VERSION {
            return Err(ThinError::UnknownVersion { what: WHAT, found, reads: ANCHOR_VERSION });
        }
        if disk.crc32c.get() != crc32c_without(disk.as_bytes(), CRC_FIELD) {
            return Err(ThinError::Checksum { what: WHAT });
        }
        if disk.array != *array.as_bytes() {
            return Err(ThinError::Misplaced { what: WHAT });
        }
        let anchor = Anchor {
            key: disk.key,
            generation: disk.generation.get(),
            segment_bytes: disk.segment_bytes.get(),
            covered: disk.covered.get(),
            next_sequence: disk.next_sequence.get(),
            intent_generation: disk.intent_generation.get(),
            segments: decode_root(&disk.segments)?,
            lines: decode_root(&disk.lines)?,
        };
        let invalid = |field| Err(ThinError::Invalid { what: WHAT, field });
        if [anchor.generation, anchor.next_sequence, anchor.intent_generation].iter().any(|it| *it > COUNTER_MAX) {
            return invalid("counter");
        }
        if anchor.covered >= anchor.next_sequence {
            return invalid("covered");
        }
        let segment_bytes = anchor.segment_bytes;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
            || !segment_bytes.is_multiple_of(BLOCK as u64)
        {
            return invalid("segment bytes");
        }
        Ok(anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor() -> Anchor {
        Anchor {
            key: [3; 16],
            generation: 8,
            segment_bytes: 1 << 20,
            covered: 41,
            next_sequence: 42,
            intent_generation: 2,
            segments: Some(Root { stored: StoredRange { address: 1 << 21, bytes: 4112 }, level: 0 }),
            lines: None,
        }
    }

    #[test]
    fn an_anchor_is_read_as_it_was_written() {
        let array = Uuid::from_bytes([1; 16]);
        assert_eq!(Anchor::decode(&anchor().encode(&array), &array), Ok(anchor()));
        let other = Uuid::from_bytes([2; 16]);
        assert_eq!(Anchor::decode(&anchor().encode(&array), &other), Err(ThinError::Misplaced { what: WHAT }));
    }

    #[test]
    fn two_anchors_belong_together_if_they_are_of_one_store_and_follow_each_other() {
        let with = |generation| Anchor { generation, ..anchor() };
        assert_eq!(Anchor::newest(with(8), with(7)), Ok(with(8)));
        assert_eq!(Anchor::newest(with(8), with(9)), Ok(with(9)));
        let other = Anchor { key: [4; 16], ..with(7) };
        for (even, odd) in [(with(8), with(5)), (with(8), with(11)), (with(7), with(8)), (with(8), other)] {
            assert_eq!(Anchor::newest(even, odd), Err(ThinError::Misplaced { what: WHAT }));
        }
    }

    #[test]
    fn a_flipped_bit_or_a_field_out_of_range_is_refused() {
        let array = Uuid::from_bytes([1; 16]);
        let bytes = anchor().encode(&array);
        for bit in 0..200 * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Anchor::decode(&damaged, &array).is_err(), "bit {bit}");
        }
        for wrong in [
            Anchor { covered: 42, ..anchor() },
            Anchor { segment_bytes: 4096, ..anchor() },
            Anchor { generation: COUNTER_MAX + 1, ..anchor() },
        ] {
            let decoded = Anchor::decode(&wrong.encode(&array), &array);
            assert!(matches!(decoded, Err(ThinError::Invalid { .. })), "{decoded:?}");
        }
    }
}
