//! The log that closes the write hole, and the list of lost blocks, which no log could save.
//!
//! ```text
//! log region of a member:  | lost 0 | lost 1 | ring of stream 0 | ring of stream 1 | ...
//! ```
//! The first two slots hold the list of lost blocks ([`LostBlocks`]). The rest is divided among
//! *streams*, one for each writer. Each stream has two blocks for *checkpoint records*, which say
//! what needs no recovery, followed by a ring of [`Frame`]s. A reader looks for frames at every
//! block of the rings, so it need not know the number of streams.

mod frame;
mod lost;

pub use frame::{
    EXCEPTIONS_MAX, Entry, FRAME_VERSION, Frame, FrameError, FrameHead, LogShape, Part, PartData, encode_checkpoint,
    encode_frame, encode_frame_meta, frame_len, frame_meta_len,
};
pub use lost::{LOST_RANGES_MAX, LOST_SLOT_BYTES, LOST_SLOTS, LOST_VERSION, LostBlocks, LostError};

use crate::BLOCK;
use crate::layout::{LOG_BYTES_MIN, Layout, Region};

/// Blocks for checkpoint records before the ring of a stream, written in turn.
pub const CHECKPOINT_SLOTS: u64 = 2;

/// Least bytes of a stream: its checkpoint blocks, and a ring for a frame with one block of parts
/// and one of payload.
pub const RING_BYTES_MIN: u64 = (CHECKPOINT_SLOTS + 2) * BLOCK as u64;

const _: () = assert!(
    LOST_SLOTS * LOST_SLOT_BYTES as u64 + 2 * (RING_BYTES_MIN + BLOCK as u64) <= LOG_BYTES_MIN,
    "half of the least region has room for a ring"
);

/// Offset of a slot of the list of lost blocks, the same on every member.
///
/// # Panics
/// If there is no such slot.
pub fn lost_slot_offset(layout: &Layout, slot: u64) -> u64 {
    assert!(slot < LOST_SLOTS, "slot {slot} of {LOST_SLOTS}");
    layout.log.offset + slot * LOST_SLOT_BYTES as u64
}

/// The part of the log region that holds the rings, those of the [intent log](crate::intent_log)
/// included.
pub(crate) fn all_rings(layout: &Layout) -> Region {
    let used = LOST_SLOTS * LOST_SLOT_BYTES as u64;
    Region { offset: layout.log.offset + used, len: layout.log.len.saturating_sub(used) }
}

/// The part of the log region that holds the rings of this log: all that the list of lost blocks
/// leaves, or the first half of it in a group with an intent log.
pub fn rings(layout: &Layout, has_intent_log: bool) -> Region {
    let all = all_rings(layout);
    let half = all.len / 2 / BLOCK as u64 * BLOCK as u64;
    Region { len: if has_intent_log { half } else { all.len }, ..all }
}

/// Number of rings for `wanted` streams in the region of the [`rings`]: as many as there is room
/// for, at least one.
pub fn ring_count(rings: &Region, wanted: usize) -> usize {
    wanted.min((rings.len / RING_BYTES_MIN) as usize).max(1)
}

/// The ring of stream `stream` of `count`, in the region of the [`rings`].
///
/// # Panics
/// If there is no such stream.
pub fn ring(rings: &Region, stream: usize, count: usize) -> Region {
    assert!(stream < count, "stream {stream} of {count}");
    let len = rings.len / count as u64 / BLOCK as u64 * BLOCK as u64;
    let checkpoints = CHECKPOINT_SLOTS * BLOCK as u64;
    Region { offset: rings.offset + stream as u64 * len + checkpoints, len: len - checkpoints }
}

/// Offset of a checkpoint block of a stream: one of the blocks before its ring.
pub fn checkpoint_offset(ring: &Region, slot: u64) -> u64 {
    assert!(slot < CHECKPOINT_SLOTS, "slot {slot} of {CHECKPOINT_SLOTS}");
    ring.offset - (CHECKPOINT_SLOTS - slot) * BLOCK as u64
}
