//! Thin volumes: a log-structured store in extents of the group.
//!
//! Guarantees:
//! 1. After a power cut, everything is there that was flushed or written with FUA. Of later writes
//!    any subset is there, each piece within 64 KiB of the volume as a whole. After a kill nothing
//!    is missing that was acknowledged.
//! 2. A write that was accepted finds room. When space runs out, writes are refused with the
//!    no-space error, and reads, discards and flushes go on.
//! 3. A segment is filled again only after it was discarded durably, and it is discarded only when
//!    the newest durable checkpoint does without it.
//!
//! Example: RAID 6 with 4+2 members, stripes of 256 KiB of data, segments of 1 MiB. A 4 KiB write
//! to a volume gets the next number and goes to memory (`pending`), where reads find it. At the end
//! of the turn, a frame of the intent log has it and all others of the turn: 3 writes of drives.
//! Then all are acknowledged. After 63 such writes their blocks and an index fill a stripe. This is
//! a *run*: 6 writes of 64 KiB, and then the map has the new places (`runs`). The intent log needs
//! the frames until the next flush.
//!
//! ```text
//! segment:  | run: index, 63 blocks | run: index, 63 blocks | ...
//! map:      volume, block  ->  place in a run
//! ```
//!
//! From time to time a checkpoint makes the maps durable (`checkpoint`), and the collector moves
//! what is live out of segments with much garbage (`collect`), at a pace that leaves time to
//! clients (`pace`). After a crash the newest checkpoint is read, and then what came after it
//! (`recover`).
//!
//! Free segments are kept for the collector and for checkpoints, so that a full store still works
//! (`space`).
//!
//! Parts are compressed when they get into runs (`compress`). The log and memory have them plain.
//! Content that was not written for a while is packed again, in larger pieces, and content that is
//! read in order is stored in order (`order`, `repack`).
//!
//! Still missing: snapshots.
//!
//! A store lives on one shard. A pool has several, which give each other space (`pool`). The bytes
//! are those of [`format::thin`].
//!
//! Tests: `sim/tests/thin`.

mod admit;
mod background;
mod backing;
mod checkpoint;
mod collect;
mod compress;
mod due;
mod frames;
mod grid;
mod grow;
mod leaf;
mod order;
mod pace;
mod pending;
mod pool;
mod read;
mod recover;
mod repack;
mod runs;
mod segments;
use crate::signal;
mod space;
mod store;
mod trees;
mod volume;
mod write;

pub use admit::VolumeSettings;
pub use backing::{Allocated, ArrayBacking, Backing};
pub use compress::{Compression, compress, decompress};
pub use grid::Grid;
pub use pool::{PoolSpace, SpaceWanted};
pub use recover::OpenThinError;
pub use segments::SegmentSums;
pub use space::ThinSpace;
pub use store::{ThinCounts, ThinStore, Tuning};
pub use volume::{OPTIMAL_IO_BYTES, Thin};
