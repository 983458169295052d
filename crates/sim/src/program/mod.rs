//! A run as plain data: a group, and the steps executed on it. It is drawn from a seed
//! ([`generate`]), executed together with the model ([`execute`]), limited to the promises
//! ([`promise`]), and shrunk when it fails ([`shrink`]).

pub mod execute;
pub mod generate;
pub mod promise;
mod show;
pub mod shrink;

use format::Shape;

use crate::engine::Protection;
use crate::engine::history::Request;
use crate::trace::OpKind;
use crate::{Broken, Way};

/// How long drive operations take in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// No time passes and operations complete in the order they were given: the speed of memory.
    Immediate,
    /// 5 to 100 µs: operations overtake each other.
    Usual,
    /// As usual, with one operation in 30 taking 20 ms.
    Spikes,
}

/// The group of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// The layout of the data.
    pub shape: Shape,
    /// The loss that a power cut may cause.
    pub protection: Protection,
    /// Sector size of all drives, 512 or 4096.
    pub sector_bytes: u32,
    /// Size of every drive.
    pub drive_bytes: u64,
    /// Shards the group runs on.
    pub shards: usize,
    /// Speed of the drives.
    pub pace: Pace,
    /// The engine sometimes takes branches that it hardly ever takes
    /// ([`Sim::enable_buggify`](crate::Sim::enable_buggify)).
    pub buggify: bool,
    /// Users access a volume that lies in the group in pieces, not the group itself.
    pub in_pieces: bool,
    /// Which members are on targets.
    pub remote: Remote,
}

/// Which members are on a target, each on one of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// A bit for each member.
    pub members: u64,
    /// Addresses of each target.
    pub addresses: usize,
}

impl Remote {
    /// The member is on a target.
    pub fn has(&self, member: usize) -> bool {
        self.members >> member & 1 == 1
    }
}

/// A fault of the path to a target, or of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// All connections are reset.
    Reset,
    /// The host's kernel gives all connections up; sent data still arrive.
    TimeOut,
    /// Each connection delays data in one direction, for a time of its own.
    Stall(Way),
    /// No data arrive, in some directions.
    Split {
        /// No data arrive at the target.
        to_target: bool,
        /// No data arrive at the host.
        to_host: bool,
    },
    /// The target loses its power.
    TargetPower,
    /// The process that serves the drive is killed.
    TargetKill,
}

/// A request of a user. When it is executed, its range is mapped into the group and rounded to
/// whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The kind of request.
    pub request: Request,
    /// Start in bytes.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The shard it arrives on, modulo the number of shards.
    pub shard: usize,
    /// Virtual time to wait before the group gets it.
    pub pause_us: u64,
}

/// Damage that a drive does not report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// Bits flip.
    Rot,
    /// A write is acknowledged and dropped.
    LostWrite,
    /// A write lands elsewhere on the drive.
    Misdirected,
}

/// The kind of a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashKind {
    /// The power of the whole machine fails: drives keep any part of the unflushed data.
    PowerCut,
    /// The process is killed. The kernel completes the operations that it got, and drives keep
    /// their caches: no acknowledged write is lost.
    Kill,
}

/// The next step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Requests at the same time. One that overlaps an earlier one of the step is skipped.
    Work(Vec<Ask>),
    /// The crash comes after this many more drive operations, during any of the following steps; at
    /// the latest before the next crash or at the end of the run. The interrupted step is not
    /// continued.
    Crash {
        /// The kind of crash.
        kind: CrashKind,
        /// Operations that still complete.
        after: u64,
        /// Members that are dead afterwards.
        lost: Vec<usize>,
        /// For each recovery attempt that crashes too, in the same way: the operations before its
        /// crash.
        again: Vec<u64>,
    },
    /// A member dies after this many more operations.
    Die {
        /// Its slot.
        member: usize,
        /// Operations that still complete.
        after: u64,
    },
    /// A member stops answering once it got this many more operations. It answers again when its
    /// drive is back ([`Step::Return`]).
    Hang {
        /// Its slot.
        member: usize,
        /// Operations that it still gets before.
        after: u64,
    },
    /// Two operations of a kind fail, one after the other: the member counts as faulty.
    Errors {
        /// Its slot.
        member: usize,
        /// Which operations.
        kind: OpKind,
        /// They fail for lack of space.
        full: bool,
    },
    /// One operation of a kind fails. The engine tries again.
    Hiccup {
        /// The member.
        member: usize,
        /// Which operation.
        kind: OpKind,
    },
    /// Reads of a range of a member fail until it is written.
    Media {
        /// The member.
        member: usize,
        /// Start in bytes of the data region, modulo its length.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A write that a drive damages or whose place rots, and a scrub that repairs.
    Silent {
        /// The member.
        member: usize,
        /// The kind of damage.
        fault: Silent,
        /// Start of the write, and of the damage, in bytes of the group.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The path to some members fails for a while, for all of them at the same time.
    Outage {
        /// The members. If these are more than a set survives, requests may fail until it has
        /// ended.
        members: Vec<usize>,
        /// How operations end meanwhile.
        how: Broken,
        /// It comes while the group is started the next time.
        at_start: bool,
        /// Operations that they still get before it begins.
        after: u64,
        /// How long it lasts.
        us: u64,
    },
    /// A member is this much slower than usual.
    Slow {
        /// The member.
        member: usize,
        /// Factor on latencies, at least 1.
        factor: u32,
    },
    /// A fault between the group and a member on a target, while other steps run.
    Mishap {
        /// The member.
        member: usize,
        /// The kind of fault.
        what: Mishap,
        /// The delay until it begins.
        after_us: u64,
        /// How long it lasts, or at most.
        ms: u64,
    },
    /// A new drive takes a lost member's slot.
    Replace {
        /// The member.
        member: usize,
        /// As a hot spare.
        spare: bool,
    },
    /// A working member is copied to a new drive, which takes its slot, while other steps run.
    Exchange {
        /// The member.
        member: usize,
    },
    /// The old drive of a lost member is back at the next assembly.
    Return {
        /// The member.
        member: usize,
    },
    /// The group is stopped in order and assembled again, without some members.
    Restart {
        /// Members that are absent.
        without: Vec<usize>,
        /// Shards from now on.
        shards: usize,
    },
    /// Other shards get the ownership of the stripe groups, while other steps run.
    Own {
        /// The first of them, modulo the number of shards.
        first: usize,
        /// How many, if there are that many.
        count: usize,
        /// Consecutive stripe groups that have the same owner.
        run: u64,
        /// The delay until it begins.
        after_us: u64,
    },
    /// Compare everything, and repair.
    Scrub,
    /// Wait until all rebuilds, resyncs and scrubs have ended.
    Settle,
    /// Read everything.
    Verify,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The world's seed: order, latencies, surviving sectors.
    pub seed: u64,
    /// The group.
    pub setup: Setup,
    /// The steps, in order.
    pub steps: Vec<Step>,
}
