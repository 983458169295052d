//! The RAID engine: a drive group with parity over drives that fail.
//!
//! The main items:
//! - [`assemble`] finds out which group a set of drives is, [`create`] makes a group of drives, and
//!   [`load`] takes it over.
//! - [`Array`] is the group on one shard: `read`, `write`, `write_zeroes`, `discard`, `flush`,
//!   `extents`.
//! - [`Shared`] is the state that the shards of a group share. [`Peers`] carries messages between
//!   them.
//! - The *leader* (shard 0) changes the group's state, rebuilds and scrubs.
//!
//! The engine is `async fn` over a [`drive::Env`]. It spawns no thread, reads no clock, draws no
//! randomness and iterates no hash map, so that a simulation with one seed runs it exactly as
//! production does.
//!
//! Invariants:
//! 1. A stripe is changed only under the lock of its stripe group, on the shard that owns it
//!    ([`unit`](self)).
//! 2. The allocation map says that a chunk was written only when all its strips are on their
//!    drives.
//! 3. The superblocks show a member's failure before any write is acknowledged without that member.
//! 4. Nothing is read from a part of a member that has not been rebuilt. Every write after the
//!    rebuild of a part includes that member.
//! 5. A request runs to its end even if the caller drops its future.

#![forbid(unsafe_code)]

mod array;
mod assemble;
mod audit;
mod bounded;
mod cause;
mod compute;
mod create;
mod errors;
mod fail_slow;
mod flush;
mod geometry;
mod governor;
mod handle;
mod hedge;
mod job;
mod kept;
mod latency;
mod leader;
mod leave;
mod load;
mod log;
mod lost;
mod map;
mod marks;
mod member;
mod membership;
mod message;
mod missed;
mod outstanding;
mod overlay;
mod ownership;
mod plan;
mod probe;
mod questions;
mod ranges;
mod read;
mod rebuild;
mod recompute_sums;
mod record;
mod replacement;
mod replay;
mod replay_log;
mod scrub;
mod scrub_job;
mod semaphore;
mod settings;
mod shared;
mod slow_detector;
mod status;
mod sums;
mod unit;
mod unit_map;
mod unsealed;
mod verify;
mod version;
mod vote;
mod watch;
mod write;
mod write_retry;
mod zero;

pub use array::{Array, Place};
pub use assemble::{AssembleError, Assembly, Refusal, assemble, judge};
pub use cause::{Cause, Failure, Flaw, Operation};
pub use create::{CreateError, NewGroup, create, erase, plan};
pub use errors::MemberErrors;
pub use geometry::{Geometry, MemberIndex, Role, UnitIndex};
pub use kept::kept_words;
pub use load::{Loaded, load};
pub use lost::LostRanges;
pub use membership::JoinError;
pub use message::{Message, NoPeers, Peers};
pub use ownership::Owners;
pub use probe::{Probe, probe, read_superblock};
pub use replay::Replayed;
pub use scrub::{Fault, Finding, ScrubMode};
pub use scrub_job::ScrubProgress;
pub use settings::Settings;
pub use shared::{Counts, DriveId, Shared, Slot};
pub use status::{Event, GroupStatus, JobKind, JobState, JobStatus, MemberStatus, ReadLatency};
