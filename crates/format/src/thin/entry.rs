//! Entries of the block map: where the blocks of one fragment are.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::record::RECORD_BYTES;
use super::{Codec, StoredRange, ThinError, UNIT_BYTES, WINDOW_BLOCKS};
use crate::BLOCK;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;

/// Blocks of a volume that a leaf of its map covers.
pub const LEAF_BLOCKS: u64 = 256;

/// An entry of a leaf: a fragment and its blocks that are still used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// The stored content.
    pub stored: StoredRange,
    /// How it is stored.
    pub codec: Codec,
    /// The fragment's first block, counted from the start of the leaf.
    pub first: u8,
    /// Blocks of the fragment: 1 to [`WINDOW_BLOCKS`], all in one window.
    pub blocks: u8,
    /// Bit `n` is set if the fragment's block `n` is used. Not 0: an unused fragment has no entry.
    pub used: u16,
    /// The volume's epoch when the fragment was written.
    pub birth: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskEntry {
    stored: U64,
    birth: U32,
    used: U16,
    first: u8,
    /// The blocks less one in the lower four bits, the codec above.
    blocks_codec: u8,
}

const _: () = assert!(size_of::<DiskEntry>() == ENTRY_BYTES);

impl MapEntry {
    /// The bytes of this entry.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        zerocopy::transmute!(DiskEntry {
            stored: self.stored.pack().into(),
            birth: self.birth.into(),
            used: self.used.into(),
            first: self.first,
            blocks_codec: (self.blocks - 1) | self.codec.number() << 4,
        })
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`ThinError::Invalid`].
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Result<MapEntry, ThinError> {
        let invalid = |field| ThinError::Invalid { what: "map entry", field };
        let disk: &DiskEntry = zerocopy::transmute_ref!(bytes);
        let entry = MapEntry {
            stored: StoredRange::unpack(disk.stored.get()),
            codec: Codec::of(disk.blocks_codec >> 4).ok_or(invalid("codec"))?,
            first: disk.first,
            blocks: (disk.blocks_codec & 15) + 1,
            used: disk.used.get(),
            birth: disk.birth.get(),
        };
        let (first, blocks) = (u64::from(entry.first), u64::from(entry.blocks));
        if first % WINDOW_BLOCKS + blocks > WINDOW_BLOCKS {
            return Err(invalid("first"));
        }
        if entry.used == 0 || u32::from(entry.used) >> blocks != 0 {
            return Err(invalid("used"));
        }
        let plain_bytes = u32::from(entry.blocks) * BLOCK as u32;
        let fits = match entry.codec {
            Codec::Plain => entry.stored.bytes == plain_bytes && entry.stored.address.is_multiple_of(BLOCK as u64),
            Codec::Lz4 | Codec::Zstd => entry.stored.bytes < plain_bytes,
        };
        if fits { Ok(entry) } else { Err(invalid("stored")) }
    }

    /// Bytes of its segment that count as live because of this entry: most bytes that a copy of the
    /// used blocks needs. A compressed fragment can be copied as it is, with its record, and any
    /// used block can be stored plain.
    pub fn live_bytes(&self) -> u64 {
        let plain = u64::from(self.used.count_ones()) * BLOCK as u64;
        match self.codec {
            Codec::Plain => plain,
            Codec::Lz4 | Codec::Zstd => plain.min(packed_bytes(self.stored.bytes)),
        }
    }
}

/// Bytes of a compressed fragment in a run, with its record.
pub fn packed_bytes(stored_bytes: u32) -> u64 {
    u64::from(stored_bytes).next_multiple_of(UNIT_BYTES) + RECORD_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: MapEntry = MapEntry {
        stored: StoredRange { address: 4096 + 16, bytes: 1000 },
        codec: Codec::Zstd,
        first: 240,
        blocks: 16,
        used: 0x8001,
        birth: 77,
    };

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let plain = StoredRange { address: 8192, bytes: 8192 };
        for entry in [ENTRY, MapEntry { stored: plain, codec: Codec::Plain, first: 3, blocks: 2, used: 2, birth: 0 }] {
            assert_eq!(MapEntry::decode(&entry.encode()), Ok(entry));
        }
        assert_eq!(ENTRY.live_bytes(), 1008 + 32);
        assert_eq!(MapEntry { stored: StoredRange { bytes: 30_000, ..ENTRY.stored }, ..ENTRY }.live_bytes(), 8192);
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let cases = [
            (MapEntry { first: 241, ..ENTRY }, "first"),
            (MapEntry { used: 0, ..ENTRY }, "used"),
            (MapEntry { blocks: 15, ..ENTRY }, "used"),
            (MapEntry { codec: Codec::Plain, ..ENTRY }, "stored"),
            (MapEntry { stored: StoredRange { address: 0, bytes: 65536 }, ..ENTRY }, "stored"),
        ];
        for (entry, field) in cases {
            let invalid = Err(ThinError::Invalid { what: "map entry", field });
            assert_eq!(MapEntry::decode(&entry.encode()), invalid);
        }
    }
}
