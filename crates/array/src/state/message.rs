//! Messages between the shards of a group.
//!
//! A write goes to the shard that owns its stripe group, and a change of the group's state goes to
//! the leader (shard 0). Each request is answered by one reply. Messages may arrive in any order.

use std::collections::BTreeSet;

use drive::{BlockError, BufMut};
use smallvec::SmallVec;

use crate::geometry::ranges::Range;
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::io::overlay::Content;
use crate::state::cause::{Cause, Failure};
use crate::state::event::Event;
use crate::state::findings::{ScrubMode, ScrubReport};
use crate::state::owners::Owners;
use crate::state::slot::DriveId;

/// The channel to the other shards. The environment delivers each message by
/// [`crate::Array::deliver`] on the shard `to`.
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
    Reply(Result<Reply, BlockError>),
}

/// A request to another shard.
#[derive(Debug)]
pub(crate) enum Request {
    /// To the owner of a stripe group: run an operation on it.
    OnStripeGroup(StripeGroup, Op),
    /// To the leader: make the map durable, and all data it stands for.
    Persist,
    /// To any shard: wait until no record of its log is open.
    CompleteRecords,
    /// To any shard: flush, and write a checkpoint record. It says durably that earlier writes to
    /// its stripe groups need no recovery.
    Checkpoint,
    /// The same, also where a recovery could do without the checkpoint record.
    CheckpointAll,
    /// Like [`Request::Checkpoint`], without members that are leaving. For a leader that is
    /// changing the group's state: it can learn of a failure only from the answer.
    CheckpointQuietly,
    /// To the leader: make the list of lost blocks durable without those in a range of the group.
    /// The range was written and is durable.
    SaveLost {
        offset: u64,
        len: u64,
    },
    /// To the leader: note in the superblocks that the group is being written to.
    MarkDirty,
    /// To any shard: wait until all work that is now queued for its stripe groups is done.
    Barrier,
    /// To any shard, one after the other while the owners change: begin no work on stripe groups
    /// (`Close`), wait until none is under way (`Quiet`), take over the new stripe groups (`Own`),
    /// and begin work again (`Open`).
    Close,
    Quiet,
    Own(Owners, RebuiltAhead),
    Open,
    /// To the owner of a stripe group: this chunk was freed, and the drives have not been told.
    Freed(StripeGroup, Range),
    /// To the leader: this drive of this member failed, with this cause.
    Fail(MemberIndex, DriveId, Cause),
    /// To the leader: pass this event to its listener.
    Tell(Event),
    /// To the leader: this drive has not answered within the time limit.
    Silent(MemberIndex, DriveId),
    /// To the leader: reads of this drive are late.
    Slow(MemberIndex, DriveId),
}

/// New content of a run of member offsets of a data strip.
#[derive(Debug)]
pub(crate) struct Piece {
    pub role: Role,
    pub range: Range,
    pub content: Content,
}

/// Stripe groups that are already rebuilt on a drive although the rebuild has not reached them.
pub(crate) type RebuiltAhead = BTreeSet<(DriveId, StripeGroup)>;

pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// Work on a stripe group, under its lock.
#[derive(Debug)]
pub(crate) enum Op {
    /// Fill the buffer from whole sectors of a data strip. With `without`, the member is not read
    /// if that is possible.
    Read { role: Role, offset: u64, buf: BufMut, without: bool },
    /// Change some member offsets.
    Write { pieces: Pieces, fua: bool },
    /// Compute the content of a member in this stripe group, and write it there.
    Rebuild { member: MemberIndex },
    /// Compare data and parity.
    Scrub { mode: ScrubMode },
    /// Wait for all earlier work.
    Nothing,
    /// Keep the lock until the discards are done that need it.
    Lock,
}

#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Read(BufMut),
    Rebuilt {
        bytes: u64,
    },
    Scrubbed(ScrubReport),
    Accepted(bool),
    /// State of the shard's stripe groups that their next owners need. `None`: work is still under
    /// way, or incomplete writes are left.
    Quiet(Option<RebuiltAhead>),
    /// These members had something to make durable, and could not. No checkpoint record is written
    /// then.
    Checkpointed {
        failed: Vec<(MemberIndex, DriveId, Failure)>,
    },
}

/// Entries of stripe groups rebuilt ahead, before those that the rebuild has passed are removed.
pub(crate) const AHEAD_MIN: usize = 4096;

/// Steps of one shard that are under way at the same time, of all requests.
pub(crate) const STEPS_AT_ONCE: usize = 4;
