//! A batch: a head, records, and the contents that they describe.
//!
//! ```text
//! | head 64 | records, 32 bytes each | content 0 | content 1 | ... | zeroes |
//! ```
//! The place of a content follows from the records before it. Plain fragments begin at a multiple
//! of a block, so that they can be read alone; all other contents at a multiple of 16 bytes.
//!
//! A *run* is a batch in a segment: whole stripes, written by one request. The body of a frame of
//! the intent log is a batch as well. Its blocks are counted from the start of the frame.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use gf::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::record::{FragmentRecord, HoleRecord, NodeRecord, RECORD_BYTES};
use super::{Codec, ThinError, UNIT_BYTES};
use crate::BLOCK;
use crate::checksum::crc32c_without;

/// Version of the batch format that this crate writes and reads.
pub const BATCH_VERSION: u32 = 1;

/// Bytes of a batch before its records.
pub const BATCH_HEAD_BYTES: usize = size_of::<DiskHead>();

/// Most records of a batch.
pub const RECORDS_MAX: usize = 1 << 16;

const MAGIC: [u8; 8] = *b"PurlinTB";

const CRC_FIELD: usize = offset_of!(DiskHead, crc32c);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHead {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    key: [u8; 16],
    address: U64,
    batch_bytes: U32,
    fragments: U32,
    holes: U32,
    nodes: U32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<DiskHead>() == 64 && CRC_FIELD == 12);

/// A secret of the store. Users of its volumes do not know it, so their data never looks like a
/// batch.
pub type StoreKey = [u8; 16];

/// The records of a batch, in the order of their contents. Holes have no content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchRecords {
    /// Fragments of volumes.
    pub fragments: Vec<FragmentRecord>,
    /// Holes of volumes.
    pub holes: Vec<HoleRecord>,
    /// Nodes of trees.
    pub nodes: Vec<NodeRecord>,
}

impl BatchRecords {
    /// Bytes of the head and the records.
    pub fn index_bytes(&self) -> usize {
        let count = self.fragments.len() + self.holes.len() + self.nodes.len();
        BATCH_HEAD_BYTES + count * RECORD_BYTES
    }

    /// Where the contents lie in the batch: those of the fragments, then those of the nodes.
    pub fn contents(&self, base: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let fragments = self.fragments.iter().map(|record| (record.codec, record.stored_bytes));
        let nodes = self.nodes.iter().map(|record| (Codec::Lz4, record.stored_bytes));
        let mut cursor = ContentCursor::new(base, self.index_bytes());
        fragments.chain(nodes).map(move |(codec, stored_bytes)| cursor.next(codec, stored_bytes))
    }
}

/// Gives out the places of contents in a batch.
#[derive(Debug, Clone, Copy)]
pub struct ContentCursor {
    base: usize,
    at: usize,
}

impl ContentCursor {
    /// Begins behind `index_bytes` bytes of head and records. `base`: bytes from the last multiple
    /// of a block to the start of the batch.
    pub fn new(base: usize, index_bytes: usize) -> ContentCursor {
        ContentCursor { base, at: index_bytes }
    }

    /// The place of the next content.
    pub fn next(&mut self, codec: Codec, stored_bytes: u32) -> Range<usize> {
        let unit = if codec == Codec::Plain { BLOCK } else { UNIT_BYTES as usize };
        let start = (self.base + self.at).next_multiple_of(unit) - self.base;
        self.at = start + stored_bytes as usize;
        start..self.at
    }

    /// The first byte behind the contents so far.
    pub fn end(&self) -> usize {
        self.at
    }
}

/// Head and records of a batch of `batch_bytes` bytes in all. `address`: its first byte in the
/// group; 0 in a frame.
pub fn encode_index(key: &StoreKey, address: u64, batch_bytes: usize, records: &BatchRecords) -> Vec<u8> {
    let head = DiskHead {
        magic: MAGIC,
        version: BATCH_VERSION.into(),
        crc32c: 0.into(),
        key: *key,
        address: address.into(),
        batch_bytes: (batch_bytes as u32).into(),
        fragments: (records.fragments.len() as u32).into(),
        holes: (records.holes.len() as u32).into(),
        nodes: (records.nodes.len() as u32).into(),
        reserved: [0; 8],
    };
    let mut bytes = Vec::with_capacity(records.index_bytes());
    bytes.extend_from_slice(head.as_bytes());
    records.fragments.iter().for_each(|record| bytes.extend_from_slice(&record.encode()));
    records.holes.iter().for_each(|record| bytes.extend_from_slice(&record.encode()));
    records.nodes.iter().for_each(|record| bytes.extend_from_slice(&record.encode()));
    let checksum = crc32c(&bytes);
    bytes[CRC_FIELD..][..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A batch's head and records, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchIndex {
    /// Bytes of the whole batch.
    pub batch_bytes: usize,
    /// The records.
    pub records: BatchRecords,
}

const WHAT: &str = "batch";

impl BatchIndex {
    /// Bytes of head and records of the batch that starts with the first of `bytes`, for
    /// [`BatchIndex::decode`]. Not confirmed by a checksum. `None` if no batch of this store starts
    /// here.
    pub fn announced_bytes(bytes: &[u8], key: &StoreKey, address: u64) -> Option<usize> {
        let (head, _) = DiskHead::ref_from_prefix(bytes).ok()?;
        let is_ours = head.magic == MAGIC && head.key == *key && head.address.get() == address;
        is_ours.then(|| head.index_bytes())?
    }

    /// The key of the batch that starts with the first of `bytes`, in whichever store it is. For a
    /// reader without an anchor. Not confirmed by a checksum.
    pub fn announced_key(bytes: &[u8], address: u64) -> Option<StoreKey> {
        let (head, _) = DiskHead::ref_from_prefix(bytes).ok()?;
        (head.magic == MAGIC && head.address.get() == address).then_some(head.key)
    }

    /// Reads the batch that starts with the first of `bytes`, which reach at least to the end of
    /// its records. `base`: as for [`ContentCursor::new`].
    ///
    /// # Errors
    /// [`ThinError`]: there is no valid batch.
    pub fn decode(bytes: &[u8], key: &StoreKey, address: u64, base: usize) -> Result<BatchIndex, ThinError> {
        let (head, _) = DiskHead::ref_from_prefix(bytes).map_err(|_| ThinError::Missing { what: WHAT })?;
        if head.magic != MAGIC {
            return Err(ThinError::Missing { what: WHAT });
        }
        if head.key != *key || head.address.get() != address {
            return Err(ThinError::Misplaced { what: WHAT });
        }
        let found = head.version.get();
        if found != BATCH_VERSION {
            return Err(ThinError::UnknownVersion { what: WHAT, found, reads: BATCH_VERSION });
        }
        let index_bytes = head.index_bytes().ok_or(ThinError::Invalid { what: WHAT, field: "records" })?;
        let index = bytes.get(..index_bytes).ok_or(ThinError::Missing { what: WHAT })?;
        if head.crc32c.get() != crc32c_without(index, CRC_FIELD) {
            return Err(ThinError::Checksum { what: WHAT });
        }
        let (records, _) = index[BATCH_HEAD_BYTES..].as_chunks::<RECORD_BYTES>();
        let (fragments, others) = records.split_at(head.fragments.get() as usize);
        let (holes, nodes) = others.split_at(head.holes.get() as usize);
        let records = BatchRecords {
            fragments: fragments.iter().map(FragmentRecord::decode).collect::<Result<_, _>>()?,
            holes: holes.iter().map(HoleRecord::decode).collect::<Result<_, _>>()?,
            nodes: nodes.iter().map(NodeRecord::decode).collect::<Result<_, _>>()?,
        };
        let batch_bytes = head.batch_bytes.get() as usize;
        let end = records.contents(base).last().map_or(index_bytes, |content| content.end);
        if batch_bytes < end.max(index_bytes) {
            return Err(ThinError::Invalid { what: WHAT, field: "length" });
        }
        Ok(BatchIndex { batch_bytes, records })
    }
}

impl DiskHead {
    fn index_bytes(&self) -> Option<usize> {
        let counts = [self.fragments.get(), self.holes.get(), self.nodes.get()];
        let count: u64 = counts.into_iter().map(u64::from).sum();
        (count <= RECORDS_MAX as u64).then_some(BATCH_HEAD_BYTES + count as usize * RECORD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: StoreKey = [9; 16];

    fn fragment(sequence: u64, blocks: u8, codec: Codec, stored_bytes: u32) -> FragmentRecord {
        FragmentRecord {
            sequence,
            line: 1,
            block: sequence * 16,
            blocks,
            codec,
            stored_bytes,
            crc32c: 5,
            birth: 1,
            joined: false,
        }
    }

    fn records() -> BatchRecords {
        BatchRecords {
            fragments: vec![
                fragment(1, 2, Codec::Plain, 8192),
                fragment(2, 1, Codec::Lz4, 1001),
                fragment(3, 16, Codec::Lz4, 20),
                fragment(4, 1, Codec::Plain, 4096),
            ],
            holes: vec![HoleRecord { sequence: 5, line: 1, block: 7, blocks: 1 << 30, birth: 1 }],
            nodes: vec![NodeRecord { generation: 1, line: 1, level: 1, index: 0, stored_bytes: 56 }],
        }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let bytes = encode_index(&KEY, 1 << 20, 65536, &records());
        let read = BatchIndex::decode(&bytes, &KEY, 1 << 20, 0).unwrap();
        assert_eq!(read, BatchIndex { batch_bytes: 65536, records: records() });
        assert_eq!(BatchIndex::announced_bytes(&bytes, &KEY, 1 << 20), Some(bytes.len()));
        assert_eq!(BatchIndex::announced_key(&bytes, 1 << 20), Some(KEY));
        assert_eq!(BatchIndex::announced_key(&bytes, 0), None);
        assert_eq!(BatchIndex::announced_key(&bytes[1..], 1 << 20), None);
    }

    #[test]
    fn plain_contents_begin_at_blocks_and_others_at_units() {
        let index_bytes = records().index_bytes();
        assert_eq!(index_bytes, 64 + 6 * 32);
        let places: Vec<Range<usize>> = records().contents(0).collect();
        assert_eq!(places, [4096..12288, 12288..13289, 13296..13316, 16384..20480, 20480..20536]);
        // In a frame, 72 bytes lie before the batch.
        let places: Vec<Range<usize>> = records().contents(72).collect();
        assert_eq!(places[0], 4096 - 72..12288 - 72);
        assert_eq!(places[3].start, 16384 - 72);
    }

    #[test]
    fn a_flipped_bit_or_a_cut_makes_it_no_batch() {
        let bytes = encode_index(&KEY, 4096, 65536, &records());
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(BatchIndex::decode(&damaged, &KEY, 4096, 0).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(BatchIndex::decode(&bytes[..len], &KEY, 4096, 0).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_batch_of_another_store_or_place_or_of_a_wrong_length_does_not_count() {
        let bytes = encode_index(&KEY, 4096, 65536, &records());
        let misplaced = Err(ThinError::Misplaced { what: WHAT });
        assert_eq!(BatchIndex::decode(&bytes, &[8; 16], 4096, 0), misplaced);
        assert_eq!(BatchIndex::decode(&bytes, &KEY, 8192, 0), misplaced);
        let short = encode_index(&KEY, 4096, 20480, &records());
        let length = Err(ThinError::Invalid { what: WHAT, field: "length" });
        assert_eq!(BatchIndex::decode(&short, &KEY, 4096, 0), length);
    }
}
