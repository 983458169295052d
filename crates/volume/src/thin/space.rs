//! Room: how much may be stored, who may use the last free segments, and when the collector works.
//!
//! Free segments are for writes of users, except for a reserve. From the lowest on:
//!
//! ```text
//! | checkpoint | landing | collector | writes of users ...
//! ```
//!
//! - *Checkpoint*: dirty nodes have at most [`ThinStore::checkpoint_bytes`]. Users wait at half of
//!   it, and the collector stops at all of it.
//! - *Landing*: what was accepted without room, as holes, is written to a run here.
//! - *Collector*: what is live in R + 1 segments has to fit into R. The limit of live bytes sees to
//!   it that there are such segments: on average at most R / (R + 1) of a segment is live when only
//!   the reserve is left. So the collector always gains a segment, and a write that was accepted
//!   finds room.
//!
//! Example: a pool of 1 TiB has 2^20 segments of 1 MiB. 128 MiB are kept for the checkpoint and 64
//! for the collector, and the limit is 15/16 of what segments hold beside their indexes: 0.93 TiB.

use std::ops::AddAssign;

use format::BLOCK;
use format::thin::batch::BATCH_HEAD_BYTES;
use format::thin::entry::{ENTRY_BYTES, LEAF_BLOCKS};
use format::thin::node::{CHILDREN, NODE_HEAD_BYTES, SEGMENT_LEAF_BYTES, inner_node_bytes};
use format::thin::record::RECORD_BYTES;
use format::thin::segment::SEGMENTS_PER_LEAF;

use super::backing::Backing;
use super::collect::STREAMS;
use super::segments::SegmentSums;
use super::store::ThinStore;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// The collector has one segment in so many for its copies, within these bounds.
const COLLECTOR_SHARE: usize = 32;
const COLLECTOR_SEGMENTS_MIN: usize = 4;
const COLLECTOR_SEGMENTS_MAX: usize = 64;

/// A checkpoint writes at most one part in so many of the store's space.
const CHECKPOINT_SHARE: u64 = 64;

/// Least bytes that a checkpoint can write.
const CHECKPOINT_BYTES_MIN: u64 = 128 << 10;

/// Of what segments hold, at most so much may be live: 15 of 16.
const LIVE_SHARE: (u64, u64) = (15, 16);

/// Segments that are neither free nor collected: with anchors, and those that are being filled.
const OTHER_SEGMENTS: usize = 4 + STREAMS;

/// Segments that users can fill before they wait for the collector: a write and its index.
const WRITE_SEGMENTS: usize = 2;

/// The collector works ahead by one segment in so many, and at most by so many.
const AHEAD_SHARE: usize = 256;
const AHEAD_SEGMENTS_MAX: usize = 32;

/// Bytes that a pending leaf adds to the next checkpoint: the leaf, and two full nodes above it.
const LEAF_PATH_BYTES: u64 =
    (NODE_HEAD_BYTES + LEAF_BLOCKS as usize * ENTRY_BYTES + 2 * inner_node_bytes(CHILDREN)) as u64;

/// The space of a store, or of all stores of a pool, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinSpace {
    /// Sums over its segments.
    pub segments: SegmentSums,
    /// Bytes that accepted writes and discards will add.
    pub growth: i64,
    /// Bytes that are kept for volumes.
    pub reserved: u64,
    /// Most bytes that may be live.
    pub limit: u64,
}

impl ThinSpace {
    /// Bytes that will be live.
    pub fn used(&self) -> u64 {
        (self.segments.live_data + self.segments.live_nodes).saturating_add_signed(self.growth)
    }

    /// Bytes that are neither used nor kept for a volume.
    pub fn unused(&self) -> u64 {
        self.limit.saturating_sub(self.used() + self.reserved)
    }
}

impl AddAssign for ThinSpace {
    fn add_assign(&mut self, other: ThinSpace) {
        self.segments += other.segments;
        self.growth += other.growth;
        self.reserved += other.reserved;
        self.limit += other.limit;
    }
}

impl<B: Backing> ThinStore<B> {
    /// The numbers of the store's space.
    pub fn space(&self) -> ThinSpace {
        let (segments, count) = {
            let segments = self.segments.borrow();
            (segments.sums(), segments.len())
        };
        let growth = self.pending.borrow().growth().bytes;
        ThinSpace { segments, growth, reserved: self.reserved_bytes(), limit: self.limit_of(count) }
    }

    /// Most bytes that may be live in so many segments.
    fn limit_of(&self, segments: usize) -> u64 {
        let kept = self.reserved_segments(segments) + WRITE_SEGMENTS + OTHER_SEGMENTS;
        let held = segments.saturating_sub(kept) as u64 * self.dense_bytes();
        let collector = collector_segments(segments) as u64;
        (held * LIVE_SHARE.0 / LIVE_SHARE.1).min(held * collector / (collector + 1))
    }

    /// Segments without which all that is stored and kept would still be within the limit.
    pub(super) fn spare_segments(&self) -> usize {
        let (space, count) = (self.space(), self.segments.borrow().len());
        let least = space.used() + space.reserved;
        let spare = (space.unused() / self.dense_bytes()) as usize;
        // A small store keeps a larger part of itself. So the limit may fall by more.
        (0..=spare.min(count)).rev().find(|spare| self.limit_of(count - spare) >= least).unwrap_or(0)
    }

    /// Free segments that neither reserves nor accepted writes need.
    pub(super) fn free_segments(&self) -> usize {
        let segments = self.segments.borrow();
        let kept = self.reserved_segments(segments.len()) + self.queued_segments() + WRITE_SEGMENTS;
        segments.free_count().saturating_sub(kept)
    }

    /// The sums over the segments, counted anew from each of them. For checks of [`Self::space`].
    pub fn count_segments(&self) -> SegmentSums {
        self.segments.borrow().count()
    }

    /// Bytes of fragments that a segment holds beside the indexes of its runs.
    pub(super) fn dense_bytes(&self) -> u64 {
        let run = self.run_bytes_max().min(self.grid.segment_bytes);
        let (whole, rest) = (self.grid.segment_bytes / run, self.grid.segment_bytes % run);
        whole * content_bytes(run) + content_bytes(rest)
    }

    /// Most bytes of a run.
    pub(super) fn run_bytes_max(&self) -> u64 {
        self.tuning.run_bytes_max.max(self.grid.unit_bytes) / self.grid.unit_bytes * self.grid.unit_bytes
    }

    /// Most bytes of dirty nodes.
    pub(super) fn checkpoint_bytes(&self) -> u64 {
        let total = self.segments.borrow().len() as u64 * self.grid.segment_bytes;
        self.tuning.checkpoint_bytes_max.min(total / CHECKPOINT_SHARE).max(CHECKPOINT_BYTES_MIN)
    }

    /// Bytes of nodes that the next checkpoint writes, once all pending parts are in the map.
    pub(super) fn coming_checkpoint_bytes(&self) -> u64 {
        self.trees.borrow().dirty_bytes() + self.pending.borrow().leaves() * LEAF_PATH_BYTES
    }

    /// Segments that are kept for a checkpoint.
    pub(super) fn checkpoint_segments(&self, segments: usize) -> usize {
        let table = (segments as u64 / SEGMENTS_PER_LEAF + 2) * (SEGMENT_LEAF_BYTES + RECORD_BYTES) as u64;
        let inner = (segments / CHILDREN / SEGMENTS_PER_LEAF as usize + 2) * inner_node_bytes(CHILDREN);
        let bytes = self.checkpoint_bytes() + table + inner as u64 + self.grid.unit_bytes;
        // No node is in two segments.
        1 + bytes.div_ceil(self.grid.segment_bytes - inner_node_bytes(CHILDREN) as u64) as usize
    }

    /// Free segments that runs of accepted parts leave to checkpoints. A recovery needs none of
    /// them: its first checkpoint is small.
    pub(super) fn segments_kept_from_runs(&self) -> usize {
        if self.is_recovering.get() { 0 } else { self.checkpoint_segments(self.segments.borrow().len()) }
    }

    /// Free segments that users leave alone.
    pub(super) fn reserved_segments(&self, segments: usize) -> usize {
        self.checkpoint_segments(segments) + 1 + collector_segments(segments)
    }

    /// Bytes of runs for parts of so many bytes, however they are divided.
    fn bytes_of_runs(&self, bytes: u64) -> u64 {
        bytes.div_ceil(content_bytes(self.grid.unit_bytes)) * self.grid.unit_bytes
    }

    /// Free segments that the parts in the queue need.
    pub(super) fn queued_segments(&self) -> usize {
        let queue = self.queue.borrow();
        let left = queue.open_segment().map_or(0, |open| self.segments.borrow().left(open));
        self.bytes_of_runs(queue.bytes()).saturating_sub(left).div_ceil(self.grid.segment_bytes) as usize
    }

    /// Whether the segments that users may fill have room for all queued parts and `more` bytes.
    pub(super) fn has_room_for(&self, more: u64) -> bool {
        let queue = self.queue.borrow();
        let needed = self.bytes_of_runs(queue.bytes() + more);
        let segments = self.segments.borrow();
        let left = queue.open_segment().map_or(0, |open| segments.left(open));
        let free = segments.free_count().saturating_sub(self.reserved_segments(segments.len()));
        needed <= left + free as u64 * self.grid.segment_bytes
    }

    /// Free segments that are missing until users need not wait, and can fill `steps` times
    /// [`AHEAD_SEGMENTS_MAX`] without it, or fewer in a small pool. These segments are no spare.
    pub(super) fn missing_segments(&self, steps: usize) -> usize {
        let segments = self.segments.borrow();
        let ahead = steps * (segments.len() / AHEAD_SHARE).min(AHEAD_SEGMENTS_MAX);
        let wanted = self.reserved_segments(segments.len()) + self.queued_segments() + WRITE_SEGMENTS + ahead;
        let wanted = wanted + self.growth.giving.get();
        wanted.saturating_sub(segments.free_count())
    }

    /// Bytes of runs that users can fill before they wait.
    pub(super) fn free_run_bytes(&self) -> u64 {
        let queue = self.queue.borrow();
        let segments = self.segments.borrow();
        let left = queue.open_segment().map_or(0, |open| segments.left(open));
        let kept = self.reserved_segments(segments.len()) + self.growth.giving.get();
        let free = segments.free_count().saturating_sub(kept) as u64 * self.grid.segment_bytes;
        (left + free).saturating_sub(self.bytes_of_runs(queue.bytes()))
    }

    /// Bytes that the collector's copies can take now.
    pub(super) fn room_for_copies(&self) -> u64 {
        let segments = self.segments.borrow();
        let kept = self.checkpoint_segments(segments.len()) + 1 + self.queued_segments();
        let spare = segments.free_count().saturating_sub(kept).min(COLLECTOR_SEGMENTS_MAX);
        spare as u64 * self.grid.segment_bytes
    }
}

fn collector_segments(segments: usize) -> usize {
    (segments / COLLECTOR_SHARE).clamp(COLLECTOR_SEGMENTS_MIN, COLLECTOR_SEGMENTS_MAX)
}

/// Bytes of plain blocks in a run of `run` bytes, beside its index.
fn content_bytes(run: u64) -> u64 {
    let blocks = run / BLOCK_BYTES;
    let index = |contents: u64| (BATCH_HEAD_BYTES as u64 + contents * RECORD_BYTES as u64).div_ceil(BLOCK_BYTES);
    let first = blocks.saturating_sub(index(blocks));
    // One block more may fit, as the index is shorter then.
    if first + 1 + index(first + 1) <= blocks { (first + 1) * BLOCK_BYTES } else { first * BLOCK_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_run_and_its_index_fill_it() {
        assert_eq!(content_bytes(256 << 10), 63 * BLOCK_BYTES);
        assert_eq!(content_bytes(1 << 20), 254 * BLOCK_BYTES);
        assert_eq!(content_bytes(8192), BLOCK_BYTES);
        assert_eq!(content_bytes(0), 0);
    }
}
