//! Frames: the unit in which a member's log is written.
//!
//! A *record* says which bytes of a stripe are about to be overwritten, and holds what is needed to
//! put the stripe right if that is interrupted. Each member that stores a *part* of the record
//! finds it in a frame of its own. A frame gathers the parts of many records.
//!
//! ```text
//! | head 80 | exceptions 8 .. | part 48 | entry 32 | checksums 4 .. | entry .. | part .. | ...
//! | zeroes up to 4096 | payload, packed .. | zeroes up to 4096 |
//! ```
//! The checksum covers the whole frame, so a frame that was written in part does not count.

use std::mem::size_of;
use std::ops::Range;

use gf::crc32c_append;
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::BLOCK;
use crate::checksum::crc32c_without;
use crate::layout::Layout;
use crate::shape::Shape;
use crate::uuid::Uuid;

/// Version of the frame format that this crate writes and reads.
pub const FRAME_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"PurlinLG";

const CRC_FIELD: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHead {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    generation: U64,
    offset: U64,
    tail: U64,
    stream: U32,
    parts: U32,
    meta_len: U32,
    frame_len: U32,
    piece_bytes: U32,
    exceptions: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskPart {
    sequence: U64,
    stripe_group: U64,
    holders: U64,
    in_sync: U64,
    role: U16,
    entries: U16,
    payload_offset: U32,
    payload_len: U32,
    flags: U32,
}

/// The payload is the new content.
const FLAG_WHOLE: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskEntry {
    offset: U64,
    len: U32,
    checksums: U32,
    overwritten: U64,
    in_parity: U64,
}

const _: () = {
    assert!(size_of::<DiskHead>() == 80 && size_of::<DiskPart>() == 48 && size_of::<DiskEntry>() == 32);
};

/// The fields of a frame besides its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Grows with every assembly of the group. Frames of an older generation mean nothing. The
    /// superblock has the current one.
    pub generation: u64,
    /// Offset of the frame on the member. A copy of the frame at another offset means nothing.
    pub offset: u64,
    /// The stream that wrote it. Within a generation, records of different streams never name the
    /// same stripe group.
    pub stream: u32,
    /// Member offsets that one checksum covers: a power of two from 512 to 4096. Later writes cover
    /// whole pieces, so that each piece belongs to one record.
    pub piece_bytes: u32,
    /// Records of this stream below this sequence number need no recovery, because their writes are
    /// durable. The exceptions that the frame names may still need it.
    pub tail: u64,
}

/// A range of member offsets of one stripe in which the same strips are overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// First member offset: bytes from the start of the stripe group on each member.
    pub offset: u64,
    /// Number of member offsets.
    pub len: u32,
    /// Data strips that are overwritten in place, one bit each. The partial parity excludes them.
    pub overwritten: u64,
    /// Data strips carried in parity, one bit each: their drive lacked them or could not read them.
    /// Their content, new where it changes, is only in the partial parity. Disjoint from
    /// `overwritten`.
    pub in_parity: u64,
    /// CRC-32C of the new content of each piece of [`FrameHead::piece_bytes`] member offsets: first
    /// the overwritten data strips in order, then all parity strips. Empty if a single overwritten
    /// strip decides alone.
    pub checksums: Vec<u32>,
}

/// A member's part of a record, to be written.
#[derive(Debug, Clone)]
pub struct PartData<'a> {
    /// Sequence number of the record in its stream.
    pub sequence: u64,
    /// The stripe group.
    pub stripe_group: u64,
    /// Strips whose members hold a part of the record, one bit for each strip of the stripe, data
    /// strips first.
    pub holders: u64,
    /// Strips whose members are in sync, one bit each. If a member is in sync now and was not then,
    /// a rebuild has ended since, and the record needs no recovery.
    pub in_sync: u64,
    /// The strip of this member.
    pub role: u16,
    /// Identical in all parts of the record.
    pub entries: &'a [Entry],
    /// The payloads hold new content instead of partial parity. Each part has the new content of
    /// its own strip for every entry (zeroes where a data strip is not overwritten). The
    /// overwritten strips and the parity strips hold parts.
    pub whole: bool,
    /// The partial parity of this role for each entry that has one, in order: see
    /// [`Entry::payload_len`].
    pub payload: &'a [u8],
}

/// A member's part of a record, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// See [`PartData::sequence`].
    pub sequence: u64,
    /// See [`PartData::stripe_group`].
    pub stripe_group: u64,
    /// See [`PartData::holders`].
    pub holders: u64,
    /// See [`PartData::in_sync`].
    pub in_sync: u64,
    /// See [`PartData::role`].
    pub role: u16,
    /// See [`PartData::entries`].
    pub entries: Vec<Entry>,
    /// See [`PartData::whole`].
    pub whole: bool,
    /// Range of the payload in the frame's bytes.
    pub payload: Range<usize>,
}

/// A frame as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The head.
    pub head: FrameHead,
    /// Records below the tail that may need recovery nevertheless.
    pub exceptions: Vec<u64>,
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Length in bytes: a multiple of [`BLOCK`].
    pub len: usize,
}

/// The ranges that frames may name: strips, stripe groups and bytes that exist in the array. A
/// frame that names others is invalid, so a decoded frame needs no second check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogShape {
    /// Data strips of a stripe.
    pub data_strips: usize,
    /// Strips of a stripe, parity included.
    pub strips: usize,
    /// Stripe groups of all sets together.
    pub stripe_groups: u64,
    /// Bytes of a stripe group on each member.
    pub stripe_group_bytes: u64,
    /// Bytes of a strip. An entry lies within one strip.
    pub strip_bytes: u64,
}

impl LogShape {
    /// The shape of the logs of an array.
    pub fn new(shape: &Shape, layout: &Layout) -> Self {
        let strip_bytes = u64::from(shape.strip_bytes);
        let stripe_group_bytes = strip_bytes.max(layout.chunk_bytes.into());
        LogShape {
            data_strips: shape.data_per_set(),
            strips: shape.members_per_set(),
            stripe_groups: layout.data.len / stripe_group_bytes * u64::from(shape.sets),
            stripe_group_bytes,
            strip_bytes,
        }
    }

    fn holds(&self, entry: &Entry) -> bool {
        let Some(end) = entry.offset.checked_add(u64::from(entry.len)).filter(|end| *end > entry.offset) else {
            return false;
        };
        end <= self.stripe_group_bytes && entry.offset / self.strip_bytes == (end - 1) / self.strip_bytes
    }
}

/// Why bytes are not a frame of this log. None of these is alarming by itself: a ring holds
/// arbitrary bytes where no frame was written in this generation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The magic is missing, or there are fewer bytes than the frame's length.
    #[error("not a log frame")]
    NotAFrame,
    /// The bytes were damaged or written only in part.
    #[error("the checksum of the log frame does not match")]
    Checksum,
    /// Written by another version of Purlin.
    #[error("log frame of version {found}, this program reads version {FRAME_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// Left behind by another array, or by an older generation of this one.
    #[error("a log frame of another array or an older generation")]
    Stale,
    /// A copy of a frame that belongs elsewhere.
    #[error("a log frame of offset {found}, found at {expected}")]
    Misplaced {
        /// Offset in the frame.
        found: u64,
        /// Where it was found.
        expected: u64,
    },
    /// The checksum is right, but a field is out of range.
    #[error("the field `{field}` of the log frame is invalid")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
}

impl Entry {
    /// The entry only says that older records for these member offsets do not apply any more.
    pub fn is_void(&self) -> bool {
        self.overwritten | self.in_parity == 0
    }

    /// The payload has the partial parity of this entry. That is so if some data strip is not
    /// overwritten; else the partial parity is zero. `data` is the number of data strips.
    pub fn has_base(&self, data: usize) -> bool {
        !self.is_void() && self.overwritten.count_ones() < data as u32
    }

    /// Bytes of this entry in the payload of a role's part. A *whole* record has new content in all
    /// parts; otherwise the parts of parity strips have the partial parity. `data` is the number of
    /// data strips.
    pub fn payload_len(&self, role: u16, whole: bool, data: usize) -> usize {
        let has_payload = whole || (usize::from(role) >= data && self.has_base(data));
        if has_payload { self.len as usize } else { 0 }
    }

    /// Number of pieces that have checksums.
    fn pieces(&self, piece_bytes: u32) -> usize {
        self.len.div_ceil(piece_bytes) as usize
    }
}

/// Bytes of the head and the parts, without padding.
fn meta_len(parts: &[PartData<'_>]) -> usize {
    let entry = |entry: &Entry| size_of::<DiskEntry>() + 4 * entry.checksums.len();
    let part = |part: &PartData<'_>| size_of::<DiskPart>() + part.entries.iter().map(entry).sum::<usize>();
    size_of::<DiskHead>() + parts.iter().map(part).sum::<usize>()
}

/// Bytes of a frame before the payloads: a multiple of [`BLOCK`].
pub fn frame_meta_len(parts: &[PartData<'_>]) -> usize {
    meta_len(parts).next_multiple_of(BLOCK)
}

/// Bytes of a frame with these parts: a multiple of [`BLOCK`].
pub fn frame_len(parts: &[PartData<'_>]) -> usize {
    let payload: usize = parts.iter().map(|part| part.payload.len()).sum();
    frame_meta_len(parts) + payload.next_multiple_of(BLOCK)
}

/// Most exceptions of a checkpoint record.
pub const EXCEPTIONS_MAX: usize = (BLOCK - size_of::<DiskHead>()) / 8;

/// Encodes a checkpoint record: a frame without parts. It says that nothing below the head's tail
/// needs recovery, except for `exceptions`.
///
/// # Panics
/// If there are more than [`EXCEPTIONS_MAX`] exceptions.
pub fn encode_checkpoint(array: &Uuid, head: &FrameHead, exceptions: &[u64]) -> [u8; BLOCK] {
    assert!(exceptions.len() <= EXCEPTIONS_MAX, "{} exceptions", exceptions.len());
    let mut out = [0; BLOCK];
    encode(array, head, exceptions, &[], &mut out);
    out
}

/// Writes a frame to `out`.
///
/// # Panics
/// If `out` is not [`frame_len`] bytes long.
pub fn encode_frame(array: &Uuid, head: &FrameHead, parts: &[PartData<'_>], out: &mut [u8]) {
    assert_eq!(out.len(), frame_len(parts), "a frame of {} parts", parts.len());
    let (meta, mut rest) = out.split_at_mut(frame_meta_len(parts));
    encode_frame_meta(array, head, parts, meta);
    for part in parts {
        let payload;
        (payload, rest) = rest.split_at_mut(part.payload.len());
        payload.copy_from_slice(part.payload);
    }
    rest.fill(0);
}

/// Writes the bytes before the payloads of a frame to `out`. The whole frame is these bytes, the
/// payloads in order, and zeroes up to [`frame_len`].
///
/// # Panics
/// If `out` is not [`frame_meta_len`] bytes long.
pub fn encode_frame_meta(array: &Uuid, head: &FrameHead, parts: &[PartData<'_>], out: &mut [u8]) {
    assert_eq!(out.len(), frame_meta_len(parts), "a frame of {} parts", parts.len());
    encode(array, head, &[], parts, out);
}

fn encode(array: &Uuid, head: &FrameHead, exceptions: &[u64], parts: &[PartData<'_>], out: &mut [u8]) {
    let meta = meta_len(parts) + 8 * exceptions.len();
    let mut payload_at = out.len();
    out[meta..].fill(0);
    let mut disk = DiskHead::new_zeroed();
    disk.magic = MAGIC;
    disk.version = FRAME_VERSION.into();
    disk.array = *array.as_bytes();
    disk.generation = head.generation.into();
    disk.offset = head.offset.into();
    disk.tail = head.tail.into();
    disk.stream = head.stream.into();
    disk.parts = (parts.len() as u32).into();
    disk.meta_len = (meta as u32).into();
    let payload_len: usize = parts.iter().map(|part| part.payload.len()).sum();
    let padding = payload_len.next_multiple_of(BLOCK) - payload_len;
    disk.frame_len = ((out.len() + payload_len + padding) as u32).into();
    disk.piece_bytes = head.piece_bytes.into();
    disk.exceptions = (exceptions.len() as u32).into();
    let mut at = 0;
    let mut put = |out: &mut [u8], bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(out, disk.as_bytes());
    for exception in exceptions {
        put(out, &exception.to_le_bytes());
    }
    for part in parts {
        let mut disk = DiskPart::new_zeroed();
        disk.sequence = part.sequence.into();
        disk.stripe_group = part.stripe_group.into();
        disk.holders = part.holders.into();
        disk.in_sync = part.in_sync.into();
        disk.role = part.role.into();
        disk.entries = (part.entries.len() as u16).into();
        disk.payload_offset = (payload_at as u32).into();
        disk.payload_len = (part.payload.len() as u32).into();
        disk.flags = if part.whole { FLAG_WHOLE } else { 0 }.into();
        put(out, disk.as_bytes());
        for entry in part.entries {
            let mut disk = DiskEntry::new_zeroed();
            disk.offset = entry.offset.into();
            disk.len = entry.len.into();
            disk.checksums = (entry.checksums.len() as u32).into();
            disk.overwritten = entry.overwritten.into();
            disk.in_parity = entry.in_parity.into();
            put(out, disk.as_bytes());
            for checksum in &entry.checksums {
                put(out, &checksum.to_le_bytes());
            }
        }
        payload_at += part.payload.len();
    }
    let checksum = crc32c_without(out, CRC_FIELD);
    let checksum = parts.iter().fold(checksum, |sum, part| crc32c_append(sum, part.payload));
    let checksum = crc32c_append(checksum, &[0; BLOCK][..padding]);
    out[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&checksum.to_le_bytes());
}

impl Frame {
    /// Length of the frame that may start with the first of `bytes`, which lie at `offset` on the
    /// member. [`decode`](Frame::decode) needs that many bytes. It is a multiple of [`BLOCK`],
    /// comes from the head, and is not confirmed by a checksum. None if no frame of this generation
    /// starts here.
    pub fn announced_len(bytes: &[u8], array: &Uuid, generation: u64, offset: u64) -> Option<u64> {
        let (disk, _) = DiskHead::ref_from_prefix(bytes).ok()?;
        let is_ours = disk.magic == MAGIC
            && disk.version.get() == FRAME_VERSION
            && disk.array == *array.as_bytes()
            && disk.generation.get() == generation
            && disk.offset.get() == offset;
        let len = disk.frame_len.get() as usize;
        (is_ours && len >= BLOCK && len.is_multiple_of(BLOCK)).then_some(len as u64)
    }

    /// Reads the frame that starts with the first of `bytes`, which lie at `offset` on the member
    /// and reach at least to the frame's end.
    ///
    /// # Errors
    /// [`FrameError`]: there is no valid frame.
    pub fn decode(
        bytes: &[u8],
        array: &Uuid,
        generation: u64,
        offset: u64,
        shape: &LogShape,
    ) -> Result<Frame, FrameError> {
        let (disk, _) = DiskHead::ref_from_prefix(bytes).map_err(|_| FrameError::NotAFrame)?;
        if disk.magic != MAGIC {
            return Err(FrameError::NotAFrame);
        }
        if disk.version.get() != FRAME_VERSION {
            return Err(FrameError::UnknownVersion { found: disk.version.get() });
        }
        // Checked before the checksum, which costs the most: rings are full of old frames.
        if disk.array != *array.as_bytes() || disk.generation.get() != generation {
            return Err(FrameError::Stale);
        }
        let len = disk.frame_len.get() as usize;
        let frame = bytes.get(..len).filter(|_| len >= BLOCK && len.is_multiple_of(BLOCK));
        let frame = frame.ok_or(FrameError::NotAFrame)?;
        if disk.crc32c.get() != crc32c_without(frame, CRC_FIELD) {
            return Err(FrameError::Checksum);
        }
        if disk.offset.get() != offset {
            return Err(FrameError::Misplaced { found: disk.offset.get(), expected: offset });
        }
        let invalid = |field| FrameError::Invalid { field };
        let piece_bytes = disk.piece_bytes.get();
        if !piece_bytes.is_power_of_two() || !(512..=BLOCK as u32).contains(&piece_bytes) {
            return Err(invalid("piece_bytes"));
        }
        let meta = frame.get(..disk.meta_len.get() as usize).ok_or(invalid("meta_len"))?;
        let mut rest = meta.get(size_of::<DiskHead>()..).ok_or(invalid("meta_len"))?;
        let exceptions = rest.get(..(disk.exceptions.get() as usize).saturating_mul(8)).ok_or(invalid("exceptions"))?;
        rest = &rest[exceptions.len()..];
        let exceptions =
            exceptions.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let exceptions = exceptions.collect();
        let mut parts = Vec::new();
        for _ in 0..disk.parts.get() {
            let (part, after) = DiskPart::ref_from_prefix(rest).map_err(|_| invalid("parts"))?;
            rest = after;
            let mut entries = Vec::new();
            let whole = part.flags.get() & FLAG_WHOLE != 0;
            let mut payload_len = 0;
            for _ in 0..part.entries.get() {
                let (entry, after) = decode_entry(rest, piece_bytes, shape)?;
                payload_len += entry.payload_len(part.role.get(), whole, shape.data_strips);
                entries.push(entry);
                rest = after;
            }
            let start = part.payload_offset.get() as usize;
            let payload = start..start.saturating_add(part.payload_len.get() as usize);
            let fits = payload.end <= frame.len() && start >= meta.len() && payload.len() == payload_len;
            let role = part.role.get();
            if !fits {
                return Err(invalid("payload"));
            }
            let (holders, strips) = (part.holders.get(), shape.strips);
            if usize::from(role) >= strips || holders >> role & 1 == 0 || !below(holders, strips) {
                return Err(invalid("holders"));
            }
            if part.stripe_group.get() >= shape.stripe_groups {
                return Err(invalid("stripe group"));
            }
            parts.push(Part {
                sequence: part.sequence.get(),
                stripe_group: part.stripe_group.get(),
                holders: part.holders.get(),
                in_sync: part.in_sync.get(),
                role,
                entries,
                whole,
                payload,
            });
        }
        let head = FrameHead { generation, offset, stream: disk.stream.get(), piece_bytes, tail: disk.tail.get() };
        Ok(Frame { head, exceptions, parts, len })
    }
}

/// Whether no bit from `count` on is set.
fn below(bits: u64, count: usize) -> bool {
    count >= 64 || bits >> count == 0
}

fn decode_entry<'a>(bytes: &'a [u8], piece_bytes: u32, shape: &LogShape) -> Result<(Entry, &'a [u8]), FrameError> {
    let invalid = FrameError::Invalid { field: "entries" };
    let (disk, rest) = DiskEntry::ref_from_prefix(bytes).map_err(|_| invalid.clone())?;
    let count = disk.checksums.get() as usize;
    let sums = rest.get(..count.saturating_mul(4)).ok_or(invalid.clone())?;
    let entry = Entry {
        offset: disk.offset.get(),
        len: disk.len.get(),
        overwritten: disk.overwritten.get(),
        in_parity: disk.in_parity.get(),
        checksums: sums.chunks_exact(4).map(|sum| u32::from_le_bytes(sum.try_into().expect("four bytes"))).collect(),
    };
    let parity_strips = shape.strips - shape.data_strips;
    let expected = entry.pieces(piece_bytes) * (entry.overwritten.count_ones() as usize + parity_strips);
    let right = shape.holds(&entry)
        && below(entry.overwritten | entry.in_parity, shape.data_strips)
        && entry.overwritten & entry.in_parity == 0
        && (count == 0 || (count == expected && !entry.is_void()));
    if right { Ok((entry, &rest[sums.len()..])) } else { Err(invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_bytes([7; 16]);
    const SHAPE: LogShape =
        LogShape { data_strips: 4, strips: 6, stripe_groups: 10, stripe_group_bytes: 32768, strip_bytes: 16384 };

    fn entries() -> Vec<Entry> {
        vec![
            Entry { offset: 8192, len: 4096, overwritten: 0b0001, in_parity: 0, checksums: vec![] },
            Entry { offset: 12288, len: 512, overwritten: 0b0011, in_parity: 0b1000, checksums: vec![1, 2, 3, 4] },
            Entry { offset: 16384, len: 8192, overwritten: 0b1111, in_parity: 0, checksums: (0..12).collect() },
        ]
    }

    fn sample() -> Vec<u8> {
        let entries = entries();
        let payload: Vec<u8> = (0..4096 + 512).map(|i| i as u8).collect();
        let part = |sequence, role| PartData {
            sequence,
            stripe_group: 9,
            holders: 0b11_0000,
            in_sync: 0b11_0111,
            role,
            entries: &entries,
            whole: false,
            payload: &payload,
        };
        let parts = [part(1, 4), part(2, 5)];
        let mut out = vec![0xAA; frame_len(&parts)];
        let head = FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 4096, tail: 1 };
        encode_frame(&ARRAY, &head, &parts, &mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
        Frame::decode(bytes, &ARRAY, 3, 65536, &SHAPE)
    }

    fn reseal(bytes: &mut [u8], change: impl FnOnce(&mut [u8])) {
        change(bytes);
        let sum = crc32c_without(bytes, CRC_FIELD);
        bytes[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn a_frame_reads_back_as_it_was_written_whatever_follows_it() {
        let mut bytes = sample();
        assert_eq!(bytes.len(), 4096 + 12288);
        bytes.extend([0x55; 4096]);
        let frame = decode(&bytes).unwrap();
        assert_eq!(frame.head, FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 4096, tail: 1 });
        assert_eq!((frame.len, frame.parts.len()), (16384, 2));
        for (part, (sequence, role)) in frame.parts.iter().zip([(1, 4), (2, 5)]) {
            assert_eq!((part.sequence, part.stripe_group, part.role), (sequence, 9, role));
            assert_eq!((part.holders, part.in_sync), (0b11_0000, 0b11_0111));
            assert_eq!(part.entries, entries());
            let payload = &bytes[part.payload.clone()];
            assert!(payload.len() == 4608 && payload.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        }
    }

    #[test]
    fn a_checkpoint_reads_back_with_its_exceptions() {
        let head = FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 512, tail: 1000 };
        for exceptions in [vec![], vec![7, 999], (0..EXCEPTIONS_MAX as u64).collect()] {
            let frame = decode(&encode_checkpoint(&ARRAY, &head, &exceptions)).unwrap();
            assert_eq!((frame.head, frame.exceptions, frame.parts.len(), frame.len), (head, exceptions, 0, BLOCK));
        }
    }

    #[test]
    fn a_frame_torn_at_any_sector_is_no_frame() {
        let bytes = sample();
        for sector in 0..bytes.len() / 512 {
            let mut torn = bytes.clone();
            torn[sector * 512..][..512].fill(0xEE);
            let changed = torn != bytes;
            assert!(!changed || decode(&torn).is_err(), "sector {sector}");
        }
        assert_eq!(decode(&bytes[..8192]), Err(FrameError::NotAFrame), "cut off");
    }

    #[test]
    fn a_frame_of_another_array_generation_or_place_does_not_count() {
        let bytes = sample();
        let other = Uuid::from_bytes([8; 16]);
        assert_eq!(Frame::decode(&bytes, &other, 3, 65536, &SHAPE), Err(FrameError::Stale));
        assert_eq!(Frame::decode(&bytes, &ARRAY, 4, 65536, &SHAPE), Err(FrameError::Stale));
        let misplaced = Err(FrameError::Misplaced { found: 65536, expected: 0 });
        assert_eq!(Frame::decode(&bytes, &ARRAY, 3, 0, &SHAPE), misplaced);
    }

    #[test]
    fn fields_that_cannot_be_are_refused_even_under_a_right_checksum() {
        let cases: [(&str, usize, &[u8]); 13] = [
            ("exceptions", 76, &[0xFF; 4]),
            ("piece_bytes", 72, &[1]),
            ("meta_len", 64, &[0xFF; 4]),
            ("meta_len", 64, &[0; 4]),
            ("parts", 60, &[9]),
            ("holders", 112, &[6]),
            ("holders", 96, &[0xFF; 8]),
            ("payload", 116, &[0xFF; 4]),
            ("entries", 136, &[0; 4]),
            ("entries", 140, &[0xFF; 4]),
            ("stripe group", 88, &[10]),
            // Past the end of the stripe group, and across the end of a strip.
            ("entries", 130, &[1]),
            ("entries", 129, &[0x3E]),
        ];
        for (field, offset, value) in cases {
            let mut bytes = sample();
            reseal(&mut bytes, |bytes| bytes[offset..offset + value.len()].copy_from_slice(value));
            assert_eq!(decode(&bytes), Err(FrameError::Invalid { field }), "offset {offset}");
        }
    }
}
