//! The intent log: content that was acknowledged before it has its final place in the group. ZFS
//! calls such a log ZIL.
//!
//! ```text
//! log region of a member:  | lost 0 | lost 1 | rings of the write-hole log | its own rings |
//! frame:                   | head 72 | body ...................... | zeroes up to 4096 |
//! ```
//! The group has an intent log if its superblocks have [`Features::INTENT_LOG`]. The write-hole log
//! then has the first half of the rings ([`log::rings`]), and the intent log the rest.
//!
//! A frame is written to several members, each copy at an offset of its own. The body is the same
//! in all copies. The checksum covers the whole frame, so a frame that was written in part does not
//! count.
//!
//! [`Features::INTENT_LOG`]: crate::Features::INTENT_LOG
//! [`log::rings`]: crate::log::rings

use std::mem::{offset_of, size_of};
use std::ops::Range;

use gf::crc32c_append;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c_without;
use crate::layout::{LOG_BYTES_MIN, Layout, Region};
use crate::log::{LOST_SLOT_BYTES, LOST_SLOTS, all_rings, rings};
use crate::uuid::Uuid;
use crate::{BLOCK, COUNTER_MAX};

/// Version of the frame format that this crate writes and reads.
pub const INTENT_FRAME_VERSION: u32 = 1;

/// Bytes of a frame before its body.
pub const INTENT_HEAD_BYTES: usize = size_of::<DiskHead>();

const MAGIC: [u8; 8] = *b"PurlinIL";

const CRC_FIELD: usize = offset_of!(DiskHead, crc32c);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHead {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    generation: U64,
    offset: U64,
    sequence: U64,
    stream: U32,
    body_len: U32,
    frame_len: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<DiskHead>() == 72 && CRC_FIELD == 12);

/// The fields of a frame besides its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntentHead {
    /// Grows with every recovery of the intent log. Frames of another generation mean nothing.
    pub generation: u64,
    /// Offset of the frame on the member. A copy of the frame at another offset means nothing.
    pub offset: u64,
    /// Number of the frame in its stream; grows.
    pub sequence: u64,
    /// The stream (the writer) of the frame.
    pub stream: u32,
}

/// A frame as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentFrame {
    /// The head.
    pub head: IntentHead,
    /// Range of the body in the frame's bytes.
    pub body: Range<usize>,
    /// Length in bytes: a multiple of [`BLOCK`].
    pub len: usize,
}

/// Why bytes are not a frame of this log. None of these is alarming by itself: a ring holds
/// arbitrary bytes where no frame was written in this generation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IntentFrameError {
    /// The magic is missing, or there are fewer bytes than the frame's length.
    #[error("not a frame of an intent log")]
    NotAFrame,
    /// The bytes were damaged or written only in part.
    #[error("the checksum of the intent log frame does not match")]
    Checksum,
    /// Written by another version of Purlin.
    #[error("intent log frame of version {found}, this program reads version {INTENT_FRAME_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// Left behind by another array, or by another generation of this one.
    #[error("an intent log frame of another array or another generation")]
    Stale,
    /// A copy of a frame that belongs elsewhere.
    #[error("an intent log frame of offset {found}, found at {expected}")]
    Misplaced {
        /// Offset in the frame.
        found: u64,
        /// Where it was found.
        expected: u64,
    },
    /// The checksum is right, but a field is out of range.
    #[error("the field `{field}` of the intent log frame is invalid")]
    Invalid {
        /// Which field.
        field: &'static str,
    },
}

/// The least bytes of a ring. The smallest frame has an index and a block, and a frame takes at
/// most a quarter of its ring.
pub const INTENT_RING_BYTES_MIN: u64 = 8 * BLOCK as u64;

const _: () = assert!(
    LOST_SLOTS * LOST_SLOT_BYTES as u64 + 2 * INTENT_RING_BYTES_MIN <= LOG_BYTES_MIN,
    "the least region has room for a ring"
);

/// The part of the log region with the intent log's rings, where the group has one: the second half
/// of what the list of lost blocks leaves.
pub fn intent_region(layout: &Layout) -> Region {
    let (all, others) = (all_rings(layout), rings(layout, true));
    Region { offset: others.end(), len: all.len - others.len }
}

/// The ring of stream `stream` of `count`. `None` if there is no such stream, or no room for so
/// many.
pub fn intent_ring(region: &Region, stream: usize, count: usize) -> Option<Region> {
    let len = region.len / count as u64 / BLOCK as u64 * BLOCK as u64;
    let fits = stream < count && len >= INTENT_RING_BYTES_MIN;
    fits.then_some(Region { offset: region.offset + stream as u64 * len, len })
}

/// Bytes of a frame whose body has `body_len` bytes: a multiple of [`BLOCK`].
pub fn intent_frame_len(body_len: usize) -> usize {
    (INTENT_HEAD_BYTES + body_len).next_multiple_of(BLOCK)
}

/// The head of a frame with this body. The whole frame is the head, the body, and zeroes up to
/// [`intent_frame_len`].
pub fn encode_intent_head<'a>(
    array: &Uuid,
    head: &IntentHead,
    body: impl Iterator<Item = &'a [u8]> + Clone,
) -> [u8; INTENT_HEAD_BYTES] {
    let body_len: usize = body.clone().map(<[u8]>::len).sum();
    let frame_len = intent_frame_len(body_len);
    let mut disk = DiskHead::new_zeroed();
    disk.magic = MAGIC;
    disk.version = INTENT_FRAME_VERSION.into();
    disk.array = *array.as_bytes();
    disk.generation = head.generation.into();
    disk.offset = head.offset.into();
    disk.sequence = head.sequence.into();
    disk.stream = head.stream.into();
    disk.body_len = (body_len as u32).into();
    disk.frame_len = (frame_len as u32).into();
    let checksum = body.fold(crc32c_without(disk.as_bytes(), CRC_FIELD), crc32c_append);
    let padding = frame_len - INTENT_HEAD_BYTES - body_len;
    disk.crc32c = crc32c_append(checksum, &[0; BLOCK][..padding]).into();
    zerocopy::transmute!(disk)
}

impl IntentFrame {
    /// Length of the frame that may start with the first of `bytes`, which lie at `offset` on the
    /// member. [`decode`](IntentFrame::decode) needs that many bytes. It is a multiple of
    /// [`BLOCK`], comes from the head, and is not confirmed by a checksum. `None` if no frame of
    /// this generation starts here.
    pub fn announced_len(bytes: &[u8], array: &Uuid, generation: u64, offset: u64) -> Option<u64> {
        let (disk, _) = DiskHead::ref_from_prefix(bytes).ok()?;
        let is_ours = disk.magic == MAGIC
            && disk.version.get() == INTENT_FRAME_VERSION
            && disk.array == *array.as_bytes()
            && disk.generation.get() == generation
            && disk.offset.get() == offset;
        let len = disk.frame_len.get() as usize;
        (is_ours && len >= BLOCK && len.is_multiple_of(BLOCK)).then_some(len as u64)
    }

    /// The generation of the frame that may start with the first of `bytes`. For a reader that does
    /// not know which generation counts. Not confirmed by a checksum.
    pub fn announced_generation(bytes: &[u8], array: &Uuid) -> Option<u64> {
        let (disk, _) = DiskHead::ref_from_prefix(bytes).ok()?;
        (disk.magic == MAGIC && disk.array == *array.as_bytes()).then(|| disk.generation.get())
    }

    /// Reads the frame that starts with the first of `bytes`, which lie at `offset` on the member
    /// and reach at least to the frame's end.
    ///
    /// # Errors
    /// [`IntentFrameError`]: there is no valid frame.
    pub fn decode(bytes: &[u8], array: &Uuid, generation: u64, offset: u64) -> Result<IntentFrame, IntentFrameError> {
        let (disk, _) = DiskHead::ref_from_prefix(bytes).map_err(|_| IntentFrameError::NotAFrame)?;
        if disk.magic != MAGIC {
            return Err(IntentFrameError::NotAFrame);
        }
        if disk.version.get() != INTENT_FRAME_VERSION {
            return Err(IntentFrameError::UnknownVersion { found: disk.version.get() });
        }
        // Before the checksum, which costs the most: rings are full of old frames.
        if disk.array != *array.as_bytes() || disk.generation.get() != generation {
            return Err(IntentFrameError::Stale);
        }
        let len = disk.frame_len.get() as usize;
        let frame = bytes.get(..len).filter(|_| len >= BLOCK && len.is_multiple_of(BLOCK));
        let frame = frame.ok_or(IntentFrameError::NotAFrame)?;
        if disk.crc32c.get() != crc32c_without(frame, CRC_FIELD) {
            return Err(IntentFrameError::Checksum);
        }
        if disk.offset.get() != offset {
            return Err(IntentFrameError::Misplaced { found: disk.offset.get(), expected: offset });
        }
        let body_len = disk.body_len.get() as usize;
        if body_len > len || intent_frame_len(body_len) != len {
            return Err(IntentFrameError::Invalid { field: "body length" });
        }
        if disk.sequence.get() > COUNTER_MAX {
            return Err(IntentFrameError::Invalid { field: "sequence" });
        }
        let head = IntentHead { generation, offset, sequence: disk.sequence.get(), stream: disk.stream.get() };
        Ok(IntentFrame { head, body: INTENT_HEAD_BYTES..INTENT_HEAD_BYTES + body_len, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: IntentHead = IntentHead { generation: 3, offset: 65536, sequence: 17, stream: 2 };

    fn array() -> Uuid {
        Uuid::from_bytes([7; 16])
    }

    fn frame(body: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode_intent_head(&array(), &HEAD, body.iter().copied()).to_vec();
        body.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.resize(intent_frame_len(bytes.len() - INTENT_HEAD_BYTES), 0);
        bytes
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_from_any_number_of_parts() {
        for len in [0, 1, BLOCK - INTENT_HEAD_BYTES, BLOCK - INTENT_HEAD_BYTES + 1, 3 * BLOCK] {
            let body: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            let (one, other) = body.split_at(len / 3);
            let bytes = frame(&[one, other]);
            assert_eq!(bytes, frame(&[&body]));
            let read = IntentFrame::decode(&bytes, &array(), 3, 65536).unwrap();
            assert_eq!((read.head, &bytes[read.body.clone()], read.len), (HEAD, &body[..], bytes.len()));
            assert_eq!(IntentFrame::announced_len(&bytes, &array(), 3, 65536), Some(bytes.len() as u64));
            assert_eq!(IntentFrame::announced_generation(&bytes, &array()), Some(3));
            assert_eq!(IntentFrame::announced_generation(&bytes, &Uuid::from_bytes([8; 16])), None);
        }
    }

    #[test]
    fn a_flipped_bit_or_a_cut_makes_it_no_frame() {
        let bytes = frame(&[&[9; 5000]]);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(IntentFrame::decode(&damaged, &array(), 3, 65536).is_err(), "bit {bit}");
        }
        for len in (0..bytes.len()).step_by(512) {
            assert!(IntentFrame::decode(&bytes[..len], &array(), 3, 65536).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_frame_of_elsewhere_or_of_another_time_does_not_count() {
        let bytes = frame(&[&[9; 100]]);
        let decode = |array: &Uuid, generation, offset| IntentFrame::decode(&bytes, array, generation, offset);
        assert_eq!(decode(&Uuid::from_bytes([8; 16]), 3, 65536), Err(IntentFrameError::Stale));
        assert_eq!(decode(&array(), 4, 65536), Err(IntentFrameError::Stale));
        assert_eq!(decode(&array(), 3, 0), Err(IntentFrameError::Misplaced { found: 65536, expected: 0 }));
    }
}
