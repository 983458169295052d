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
//!    ([`stripe_group`](self)).
//! 2. The allocation map says that a chunk was written only when all its strips are on their
//!    drives.
//! 3. The superblocks show a member's failure before any write is acknowledged without that member.
//! 4. Nothing is read from a part of a member that has not been rebuilt. Every write after the
//!    rebuild of a part includes that member.
//! 5. A request runs to its end even if the caller drops its future.

#![forbid(unsafe_code)]

mod array;
mod assembly;
mod checksums;
mod drives;
mod geometry;
mod intent;
mod io;
mod jobs;
mod log;
mod membership;
mod recovery;
mod state;
mod util;

pub use array::{Array, ShardPlace};
pub use assembly::assemble::{AssembleError, Assembly, Refusal, assemble, judge};
pub use assembly::create::{CreateError, NewGroup, create, erase, plan};
pub use assembly::load::{Loaded, load};
pub use assembly::probe::{Probe, probe, read_superblock};
pub use geometry::{Geometry, MemberIndex, Role, StripeGroup};
pub use intent::{FoundIntent, IntentLog};
pub use jobs::scrub_job::ScrubProgress;
pub use membership::JoinError;
pub use recovery::replay::Replayed;
pub use state::cause::{Cause, Failure, Flaw, Operation};
pub use state::errors::MemberErrors;
pub use state::event::{Event, GroupStatus, JobKind, JobState, JobStatus, MemberStatus, ReadLatency};
pub use state::findings::{Fault, Finding, ScrubMode};
pub use state::leader::BeforeInSync;
pub use state::lost::LostRanges;
pub use state::message::{Message, NoPeers, Peers};
pub use state::owners::Owners;
pub use state::settings::Settings;
pub use state::shared::{Counts, Shared};
pub use state::slot::{DriveId, Slot};
pub use state::warm::warm_words;
