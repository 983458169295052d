//! What shards of a group say to each other.
//!
//! A write goes to the shard that owns its unit, a change of the group's state goes to the leader
//! (shard 0), and each request is answered by one reply. Messages may arrive in any order.

use std::collections::BTreeSet;

use drive::{BlockError, BufMut};
use smallvec::SmallVec;

use crate::cause::{Cause, Failure};
use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::overlay::Content;
use crate::ownership::Owners;
use crate::ranges::Range;
use crate::scrub::{ScrubMode, ScrubReport};
use crate::shared::DriveId;
use crate::status::Event;

/// The way to the other shards. The environment delivers what is sent by [`crate::Array::deliver`]
/// on the shard `to`.
pub trait Peers {
    /// Sends without waiting.
    fn send(&self, to: usize, message: Message);
}

/// For a group on a single shard.
pub struct NoPeers;

impl Peers for NoPeers {
    fn send(&self, to: usize, _message: Message) {
        unreachable!("a group on a single shard has no shard {to}");
    }
}

/// A message from one shard of a group to another.
#[derive(Debug)]
pub struct Message {
    pub(crate) from: usize,
    pub(crate) token: u64,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Request(Request),
    Reply(Result<Outcome, BlockError>),
}

/// What another shard is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Of a unit's owner.
    Unit(UnitIndex, Op),
    /// Of the leader: make the map durable, and all data it stands for.
    Persist,
    /// Of any shard: wait until no record of its log is open.
    Settle,
    /// Of any shard: flush, and make durable that what was written to its units before needs no
    /// recovery.
    Seal,
    /// The same, also where a recovery could do without being told.
    SealAll,
    /// As [`Request::Seal`], without members that are leaving, for a leader who is changing the
    /// group's state and can hear of no failure in another way than by the answer.
    SealQuietly,
    /// Of the leader: make the list of lost blocks durable without those in a range of the group,
    /// which were written and are durable.
    SaveLost {
        offset: u64,
        len: u64,
    },
    /// Of the leader: the superblocks shall say that the group is being written to.
    MarkDirty,
    /// Of any shard: wait until what is queued for its units now has been done.
    Barrier,
    /// Of any shard, one after the other while units change their owners: begin no work on units;
    /// wait until none is under way; take what it owns from now on; and begin work again.
    Close,
    Quiet,
    Own(Owners, RebuiltAhead),
    Open,
    /// Of the leader: this drive failed in this place, because of this.
    Fail(MemberIndex, DriveId, Cause),
    /// Of the leader: its listener is to hear of this.
    Tell(Event),
    /// Of the leader: this drive has not answered within the time limit.
    Silent(MemberIndex, DriveId),
    /// Of the leader: reads of this drive are late.
    Slow(MemberIndex, DriveId),
}

/// New content of a run of columns of a data strip.
#[derive(Debug)]
pub(crate) struct Piece {
    pub role: Role,
    pub range: Range,
    pub content: Content,
}

/// Units that are rebuilt on a drive although the rebuild has not come to them.
pub(crate) type RebuiltAhead = BTreeSet<(DriveId, UnitIndex)>;

pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// Work on a unit, under its lock.
#[derive(Debug)]
pub(crate) enum Op {
    /// Fill the buffer from whole sectors of a data strip; `without` asking its member, if that is
    /// possible.
    Read { role: Role, x: u64, buf: BufMut, without: bool },
    /// Change some columns.
    Write { pieces: Pieces, fua: bool },
    /// Compute what a member holds of this unit, and write it there.
    Rebuild { member: MemberIndex },
    /// Compare data and syndromes.
    Scrub { mode: ScrubMode },
    /// Wait for whatever came before.
    Nothing,
    /// Tell the drives that a zone is no longer needed, if that is still so.
    Trim { zone: Range },
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Read(BufMut),
    Rebuilt {
        bytes: u64,
    },
    Scrubbed(ScrubReport),
    Accepted(bool),
    /// What the shard knows of its units that their next owners have to know; or something is under
    /// way.
    Quiet(Option<RebuiltAhead>),
    /// These members would have had to make something durable, and could not: then nothing is
    /// sealed.
    Sealed {
        failed: Vec<(MemberIndex, DriveId, Failure)>,
    },
}
