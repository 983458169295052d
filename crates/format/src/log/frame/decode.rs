//! Reading frames. A member's ring holds arbitrary bytes, so every field is verified.

use std::mem::size_of;
use std::ops::Range;

use thiserror::Error;
use zerocopy::FromBytes;

use super::disk::{CRC_FIELD, DiskEntry, DiskHead, DiskPart, FLAG_WHOLE, MAGIC};
use super::{Entry, FRAME_VERSION, Frame, FrameHead, LogShape, Part};
use crate::BLOCK;
use crate::RoleSet;
use crate::checksum::crc32c_without;
use crate::uuid::Uuid;

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
        let (disk, frame) = verified(bytes, array, generation, offset)?;
        let piece_bytes = disk.piece_bytes.get();
        if !piece_bytes.is_power_of_two() || !(512..=BLOCK as u32).contains(&piece_bytes) {
            return Err(invalid("piece_bytes"));
        }
        let meta = frame.get(..disk.meta_len.get() as usize).ok_or(invalid("meta_len"))?;
        let rest = meta.get(size_of::<DiskHead>()..).ok_or(invalid("meta_len"))?;
        let (exceptions, mut rest) = decode_exceptions(rest, disk.exceptions.get() as usize)?;
        let payloads = meta.len()..frame.len();
        let mut parts = Vec::new();
        for _ in 0..disk.parts.get() {
            let part;
            (part, rest) = decode_part(rest, piece_bytes, shape, &payloads)?;
            parts.push(part);
        }
        let head = FrameHead { generation, offset, stream: disk.stream.get(), piece_bytes, tail: disk.tail.get() };
        Ok(Frame { head, exceptions, parts, len: frame.len() })
    }
}

fn invalid(field: &'static str) -> FrameError {
    FrameError::Invalid { field }
}

/// The head and all bytes of the frame, once they are known to be what was written here in this
/// generation.
fn verified<'a>(
    bytes: &'a [u8],
    array: &Uuid,
    generation: u64,
    offset: u64,
) -> Result<(&'a DiskHead, &'a [u8]), FrameError> {
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
    Ok((disk, frame))
}

/// The exceptions of a checkpoint record, and the bytes after them.
fn decode_exceptions(bytes: &[u8], count: usize) -> Result<(Vec<u64>, &[u8]), FrameError> {
    let (exceptions, rest) = bytes.split_at_checked(count.saturating_mul(8)).ok_or(invalid("exceptions"))?;
    let exceptions = exceptions.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    Ok((exceptions.collect(), rest))
}

/// A part with its entries, and the bytes after them. `payloads` is the part of the frame that
/// holds the payloads.
fn decode_part<'a>(
    bytes: &'a [u8],
    piece_bytes: u32,
    shape: &LogShape,
    payloads: &Range<usize>,
) -> Result<(Part, &'a [u8]), FrameError> {
    let (disk, mut rest) = DiskPart::ref_from_prefix(bytes).map_err(|_| invalid("parts"))?;
    let (role, whole) = (disk.role.get(), disk.flags.get() & FLAG_WHOLE != 0);
    let mut entries = Vec::new();
    let mut payload_len = 0;
    for _ in 0..disk.entries.get() {
        let entry;
        (entry, rest) = decode_entry(rest, piece_bytes, shape)?;
        payload_len += entry.payload_len(role, whole, shape.data_strips);
        entries.push(entry);
    }
    let start = disk.payload_offset.get() as usize;
    let payload = start..start.saturating_add(disk.payload_len.get() as usize);
    if payload.start < payloads.start || payload.end > payloads.end || payload.len() != payload_len {
        return Err(invalid("payload"));
    }
    let (holders, strips) = (RoleSet::from_bits(disk.holders.get()), shape.strips);
    if usize::from(role) >= strips || !holders.contains(role.into()) || !below(holders, strips) {
        return Err(invalid("holders"));
    }
    if disk.stripe_group.get() >= shape.stripe_groups {
        return Err(invalid("stripe group"));
    }
    let part = Part {
        sequence: disk.sequence.get(),
        stripe_group: disk.stripe_group.get(),
        holders,
        in_sync: RoleSet::from_bits(disk.in_sync.get()),
        role,
        entries,
        whole,
        payload,
    };
    Ok((part, rest))
}

/// Whether all strips are among the first `count`.
fn below(strips: RoleSet, count: usize) -> bool {
    (strips - RoleSet::below(count)).is_empty()
}

fn decode_entry<'a>(bytes: &'a [u8], piece_bytes: u32, shape: &LogShape) -> Result<(Entry, &'a [u8]), FrameError> {
    let (disk, rest) = DiskEntry::ref_from_prefix(bytes).map_err(|_| invalid("entries"))?;
    let count = disk.checksums.get() as usize;
    let sums = rest.get(..count.saturating_mul(4)).ok_or(invalid("entries"))?;
    let entry = Entry {
        offset: disk.offset.get(),
        len: disk.len.get(),
        overwritten: RoleSet::from_bits(disk.overwritten.get()),
        in_parity: RoleSet::from_bits(disk.in_parity.get()),
        checksums: sums.chunks_exact(4).map(|sum| u32::from_le_bytes(sum.try_into().expect("four bytes"))).collect(),
    };
    let parity_strips = shape.strips - shape.data_strips;
    let expected = entry.pieces(piece_bytes) * (entry.overwritten.len() + parity_strips);
    let right = shape.holds(&entry)
        && below(entry.overwritten | entry.in_parity, shape.data_strips)
        && (entry.overwritten & entry.in_parity).is_empty()
        && (count == 0 || (count == expected && !entry.is_void()));
    if right { Ok((entry, &rest[sums.len()..])) } else { Err(invalid("entries")) }
}
