//! Thin volumes: a log-structured store in the extents of a group that the catalogue gives to it.
//!
//! - [`batch`]: fragments and their records, as they are written: a *run* in a segment, or the body
//!   of a frame of the intent log.
//! - [`entry`] and [`node`]: the block map, a radix tree for each volume.
//! - [`segment`]: what is known of each segment.
//! - [`line`]: what is known of each volume.
//! - [`packed`]: contents that are compressed.
//! - [`anchor`]: the newest checkpoint.
//!
//! Blocks of volumes are counted in [`BLOCK`](crate::BLOCK) bytes. `docs/format/thin.md` describes
//! the same bytes for independent readers.

pub mod anchor;
pub mod batch;
pub mod entry;
pub mod line;
pub mod node;
pub mod packed;
pub mod record;
pub mod segment;

use thiserror::Error;

/// Most blocks of a fragment, and the blocks of the aligned window in which it lies.
pub const WINDOW_BLOCKS: u64 = 16;

/// Addresses in the group are multiples of this many bytes.
pub const UNIT_BYTES: u64 = 16;

/// Largest address of a byte in the group that a map can hold: 4 PiB.
pub const ADDRESS_MAX: u64 = ((1 << 48) - 1) * UNIT_BYTES;

/// Most bytes of a stored fragment or node.
pub const STORED_BYTES_MAX: u32 = 1 << 16;

/// Most blocks of a volume: 4 PiB.
pub const BLOCKS_MAX: u64 = 1 << 40;

/// The stored bytes of a fragment or of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRange {
    /// The first byte in the group: a multiple of [`UNIT_BYTES`], at most [`ADDRESS_MAX`].
    pub address: u64,
    /// Length in bytes: 1 to [`STORED_BYTES_MAX`].
    pub bytes: u32,
}

impl StoredRange {
    /// Both numbers in one: the address in units in the upper 48 bits, the length less one below.
    pub fn pack(self) -> u64 {
        debug_assert!(self.address.is_multiple_of(UNIT_BYTES) && self.address <= ADDRESS_MAX);
        debug_assert!((1..=STORED_BYTES_MAX).contains(&self.bytes));
        (self.address / UNIT_BYTES) << 16 | u64::from(self.bytes - 1)
    }

    /// The inverse of [`StoredRange::pack`]. Every number is a range.
    pub fn unpack(packed: u64) -> StoredRange {
        StoredRange { address: (packed >> 16) * UNIT_BYTES, bytes: (packed & 0xFFFF) as u32 + 1 }
    }
}

/// How the content of a fragment is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// As it is, at a multiple of a block.
    Plain,
    /// As one LZ4 block.
    Lz4,
    /// As one Zstandard frame.
    Zstd,
}

impl Codec {
    /// The number of this codec in records.
    pub fn number(self) -> u8 {
        match self {
            Codec::Plain => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        }
    }

    /// The codec with a number.
    pub fn of(number: u8) -> Option<Codec> {
        [Codec::Plain, Codec::Lz4, Codec::Zstd].into_iter().find(|codec| codec.number() == number)
    }
}

/// Why bytes are not a structure of thin volumes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ThinError {
    /// The magic is missing, or there are fewer bytes than the structure says.
    #[error("no {what} of thin volumes")]
    Missing {
        /// The structure that was expected.
        what: &'static str,
    },
    /// The bytes were damaged or written only in part.
    #[error("the checksum of a {what} does not match")]
    Checksum {
        /// The structure.
        what: &'static str,
    },
    /// Written by another version of Purlin.
    #[error("a {what} of version {found}, this program reads version {reads}")]
    UnknownVersion {
        /// The structure.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The version that this program reads.
        reads: u32,
    },
    /// A structure of another store, or a copy that belongs elsewhere.
    #[error("a {what} that belongs elsewhere")]
    Misplaced {
        /// The structure.
        what: &'static str,
    },
    /// The checksum is right, but a field is out of range.
    #[error("the field `{field}` of a {what} is invalid")]
    Invalid {
        /// The structure.
        what: &'static str,
        /// Which field.
        field: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_range_is_read_as_it_was_written() {
        for address in [0, 16, 1 << 40, ADDRESS_MAX] {
            for bytes in [1, 4096, 65536] {
                let range = StoredRange { address, bytes };
                assert_eq!(StoredRange::unpack(range.pack()), range);
            }
        }
    }

    #[test]
    fn codecs_have_numbers_of_their_own() {
        for codec in [Codec::Plain, Codec::Lz4, Codec::Zstd] {
            assert_eq!(Codec::of(codec.number()), Some(codec));
        }
        assert_eq!(Codec::of(3), None);
    }
}
