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

mod decode;
mod disk;
mod encode;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use self::decode::FrameError;
pub use self::encode::{EXCEPTIONS_MAX, encode_checkpoint, encode_frame, encode_frame_meta, frame_len, frame_meta_len};
use crate::RoleSet;
use crate::layout::Layout;
use crate::shape::Shape;

/// Version of the frame format that this crate writes and reads.
pub const FRAME_VERSION: u32 = 1;

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
    /// Data strips that are overwritten in place. The partial parity excludes them.
    pub overwritten: RoleSet,
    /// Data strips carried in parity: their drive lacked them or could not read them.
    /// Their content, new where it changes, is only in the partial parity. Disjoint from
    /// `overwritten`.
    pub in_parity: RoleSet,
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
    pub holders: RoleSet,
    /// Strips whose members are in sync, one bit each. If a member is in sync now and was not then,
    /// a rebuild has ended since, and the record needs no recovery.
    pub in_sync: RoleSet,
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
    pub holders: RoleSet,
    /// See [`PartData::in_sync`].
    pub in_sync: RoleSet,
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

impl Entry {
    /// The entry only says that older records for these member offsets do not apply any more.
    pub fn is_void(&self) -> bool {
        (self.overwritten | self.in_parity).is_empty()
    }

    /// The payload has the partial parity of this entry. That is so if some data strip is not
    /// overwritten; else the partial parity is zero. `data` is the number of data strips.
    pub fn has_base(&self, data: usize) -> bool {
        !self.is_void() && self.overwritten.len() < data
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
