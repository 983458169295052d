//! The write-hole log of one shard. Before strips are overwritten, the data that repairs their
//! stripe after a crash is made durable on the members that hold its parity. `docs/format/log.md`
//! has the bytes and why they suffice.
//!
//! A *record* announces one component of a write. Records that come together leave as one frame,
//! and one write, on each member. A record is *open* until its strips have been overwritten, then
//! it is *completed* (`completed`). A flush of the members after that makes it *reclaimed*
//! (`reclaimed`): its space in the rings may be used again. At most [`OPEN_MAX`] records are open:
//! the warm-restart state has so many places, and a checkpoint record (`write_checkpoint`) can name
//! so many.
//!
//! Guarantees:
//! 1. A write that is acknowledged survives a kill of the daemon; one that was flushed, or has FUA,
//!    survives a power cut, also with as many members lost as there are parity strips.
//! 2. A log that is full makes writes wait. It never makes them fail, and never drops a record that
//!    a recovery may need.
//!
//! Example: three writes of 4 KiB to different stripe groups of a 4+2 group, and a flush.
//!
//! ```text
//! records 7, 8 and 9 arrive together: one frame, and so one write, on each holder
//!           open 7 8 9       completed -        reclaimed up to 6
//! strips of 7 and 9 are written
//!           open 8           completed 7 9
//! a flush of all members begins and ends; meanwhile 8 is completed and 10 begins
//!           open 10          completed 8 9      reclaimed up to 7: 8 was open when the flush began
//! a checkpoint record says: below 10 all are completed, except 8
//! ```
//!
//! A recovery now looks at record 8 and at those from 10 on.
//!
//! Tests: those of [`open`], [`rings`] and [`uncovered`] beside models;
//! `sim/tests/engine/records.rs`; `sim/tests/exhaustive.rs` for every crash of small programs.
//!
//! Invariants, besides those of the rings ([`rings`]):
//! 1. Records of one stripe group are appended under its lock. So the next one begins when the
//!    strips of the one before are written.
//! 2. A record's partial parity comes from durable strips, except those that it names itself.
//!    Earlier writes to other strips of these member offsets are flushed first, with parity and
//!    checksums (`recent` has them). Else a recovery could find old parity beside newer partial
//!    parity.
//! 3. A flush of all members counts for the logs of all shards. The shard that flushes has noted
//!    before which records of each log are completed ([`Counters::completed`]).

pub(crate) mod admit;
pub(crate) mod append;
pub(crate) mod indeterminate;
pub(crate) mod record;
pub(crate) mod uncovered;

mod checkpoint;
mod open;
pub(crate) mod rings;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drive::{BlockError, Buf, Receiver, Sender, oneshot};
use format::log::{EXCEPTIONS_MAX, Entry, FrameHead, PartData, frame_len};
use format::{Region, RoleSet, Uuid};
use smallvec::SmallVec;

use self::open::OpenSet;
use self::rings::Rings;
use crate::geometry::ranges::Range;
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::log::indeterminate::IndeterminateRanges;
use crate::log::uncovered::Uncovered;
use crate::state::shared::{Counters, Shared};
use crate::state::slot::DriveId;
use crate::state::warm::{OPEN_MAX, WarmStream};
use crate::util::semaphore::{FairSemaphore, Turn};
use crate::util::stripe_group_map::StripeGroupMap;

/// Most parts in one frame: bounds the time of the first record in it.
pub(crate) const PARTS_MAX: usize = 256;

const _: () = assert!(OPEN_MAX <= EXCEPTIONS_MAX, "a checkpoint record names every record that is open");

/// A record that is to be made durable.
pub(crate) struct Record {
    pub stripe_group: StripeGroup,
    pub entries: Entries,
    /// See [`PartData::whole`].
    pub whole: bool,
    /// See [`PartData::in_sync`].
    pub in_sync: RoleSet,
    /// If an overwritten strip is lost, the record cannot tell whether the others are new. Once
    /// they are durable, a checkpoint record has to say so.
    pub unverified: bool,
    /// Ranges indeterminate until a checkpoint record, or, if verifiable, until it is completed.
    pub indeterminate: Option<IndeterminateRanges>,
    pub shares: SmallVec<[Share; 4]>,
    /// Data strips. If there are any, one of their members also holds a part (extra log holder).
    pub extra_holders: ExtraHolders,
}

/// Entries of a record. Most records have one.
pub(crate) type Entries = SmallVec<[Entry; 1]>;

/// Strips with their members and drives.
pub(crate) type ExtraHolders = SmallVec<[(Role, MemberIndex, DriveId); 8]>;

/// The part of a record that one holder stores.
pub(crate) struct Share {
    pub role: Role,
    pub member: MemberIndex,
    pub drive: DriveId,
    pub payload: Buf,
}

/// A record that is durable. It is completed when this is dropped: its strips have been
/// overwritten, or never will be.
pub(crate) struct Open {
    log: Rc<Log>,
    stripe_group: StripeGroup,
    sequence: u64,
    /// Its place in the warm-restart state.
    warm: Option<usize>,
    /// Its indeterminate ranges, if it can be verified.
    _indeterminate: Option<IndeterminateRanges>,
    _turn: Turn,
}

impl Open {
    /// Leaves the record open in the warm-restart state: a recovery after a kill finds it open.
    pub fn leave_open(mut self) {
        self.warm = None;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.log.open.borrow_mut().remove(self.sequence);
        if let (Some(warm), Some(place)) = (&self.log.warm, self.warm) {
            warm.complete(place);
        }
        if let Some(recent) = self.log.recent.borrow_mut().get_mut(self.stripe_group) {
            let mine = recent.iter_mut().filter(|recent| recent.sequence == self.sequence);
            mine.for_each(|recent| recent.completed = Some(self.log.flushes.get()));
        }
        self.log.counters().completed.store(self.log.completed_below(), Ordering::Release);
        self.log.changed();
    }
}

/// An entry of a record whose strips may not be durable yet.
struct Recent {
    sequence: u64,
    offsets: Range,
    overwritten: RoleSet,
    in_parity: RoleSet,
    /// The flush that was the next to begin when the record was completed.
    completed: Option<u64>,
}

/// An entry of a completed record, whose strips may not be durable.
pub(crate) struct Written {
    sequence: u64,
    /// Data strips, a bit each. The parity was written as well.
    pub strips: RoleSet,
}

/// The state when a flush began: records that were completed before are durable when it ends.
pub(crate) struct FlushMark {
    completed_below: u64,
    flush: u64,
    /// The sequence after the last record there was, and the records that were open.
    below: u64,
    open: Vec<u64>,
}

/// The result of appending a record.
pub(crate) enum Appended {
    /// The record is durable on all holders.
    Durable(Open),
    /// A holder failed and left the group: the caller decides again what to log.
    HolderLeft,
}

pub(crate) struct Pending {
    record: Record,
    open: Open,
    done: Sender<Result<Appended, BlockError>>,
}

/// The log of one shard.
pub(crate) struct Log {
    array: Uuid,
    /// Fields that all frames of this log have in common.
    head: FrameHead,
    place: Region,
    next: Cell<u64>,
    open: RefCell<OpenSet>,
    /// Permits to begin a record.
    begins: FairSemaphore,
    /// Permit to leave ranges indeterminate, in order of arrival.
    pub asks: FairSemaphore,
    /// Open records in the warm-restart state.
    warm: Option<WarmStream>,
    /// By shard.
    counters: Arc<[Counters]>,
    /// The shard of this log.
    shard: usize,
    /// The shard has another log: nothing is written to the place of this one any more.
    closed: Cell<bool>,
    rings: RefCell<Rings>,
    /// Entries by stripe group, until their strips are durable.
    recent: RefCell<StripeGroupMap<SmallVec<[Recent; 1]>>>,
    /// Flushes of all members that have begun.
    flushes: Cell<u64>,
    /// Operations that flushes of rows took since the last flush of all members began.
    spent_on_rows: Cell<usize>,
    uncovered: RefCell<Uncovered>,
    checkpoints: FairSemaphore,
    checkpoint_slot: Cell<u64>,
    pending: RefCell<VecDeque<Pending>>,
    writing: Cell<bool>,
    /// A task writes a checkpoint record for completed records, after a while.
    lingering: Cell<bool>,
    /// Tasks that wait for a record to be completed or reclaimed.
    waiting: RefCell<Vec<Sender<()>>>,
}

impl Log {
    /// The log of a shard, which is `stream` of so many `streams`. Its records are numbered from
    /// `first` on. Records before are reclaimed.
    pub fn new(
        shared: &Shared,
        counters: Arc<[Counters]>,
        shard: usize,
        (stream, streams): (usize, usize),
        first: u64,
    ) -> Rc<Log> {
        let generation = shared.log_generation.load(Ordering::Acquire);
        let piece_bytes = shared.geometry.sector_bytes as u32;
        let place = format::log::ring(&shared.log_rings(), stream, streams);
        Rc::new(Log {
            array: shared.array,
            head: FrameHead { generation, offset: 0, stream: stream as u32, piece_bytes, tail: 0 },
            rings: RefCell::new(Rings::new(place.len, first)),
            place,
            next: Cell::new(first),
            open: RefCell::default(),
            begins: FairSemaphore::for_tasks(OPEN_MAX),
            asks: FairSemaphore::default(),
            warm: shared.map.warm().and_then(|warm| warm.stream(generation, stream)),
            counters,
            shard,
            closed: Cell::new(false),
            recent: RefCell::default(),
            flushes: Cell::new(0),
            spent_on_rows: Cell::new(0),
            uncovered: RefCell::default(),
            checkpoints: FairSemaphore::default(),
            checkpoint_slot: Cell::new(0),
            pending: RefCell::default(),
            writing: Cell::new(false),
            lingering: Cell::new(false),
            waiting: RefCell::default(),
        })
    }

    /// The sequence of the next record.
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    /// Closes the log: no record in it is needed any more, and nothing is written to its place from
    /// now on.
    pub async fn close(&self) {
        // A checkpoint record that is being written comes first.
        let _turn = self.checkpoints.enter().await;
        debug_assert!(self.open.borrow().is_empty(), "no record is open");
        self.closed.set(true);
        self.uncovered.take();
        self.counters().uncovered.store(false, Ordering::SeqCst);
    }

    /// Most member offsets of a component whose record is sure to fit in the ring, for any change.
    pub fn component_bytes_max(&self) -> u64 {
        // A piece of 4096 member offsets takes at most as much again for entries of single sectors
        // and their checksums.
        let blocks = self.place.len / BLOCK_BYTES;
        (blocks / 4).max(1) * BLOCK_BYTES
    }

    /// Whether records for the stripe group may be found in a ring.
    pub fn has(&self, stripe_group: StripeGroup) -> bool {
        self.rings.borrow().has(stripe_group)
    }

    /// Whether whole records for the stripe group may be found in a ring.
    pub fn has_whole(&self, stripe_group: StripeGroup) -> bool {
        self.rings.borrow().has_whole(stripe_group)
    }

    /// Notes that a flush of all members begins.
    pub fn flush_begins(&self) -> FlushMark {
        let flush = self.flushes.get();
        self.flushes.set(flush + 1);
        self.spent_on_rows.set(0);
        let open: Vec<u64> = self.open.borrow().iter().collect();
        FlushMark { completed_below: self.completed_below(), flush, below: self.next.get(), open }
    }

    /// Notes that the flush of this mark has ended, on all members.
    pub fn flush_ended(&self, mark: &FlushMark) {
        self.recent.borrow_mut().retain(|entries| {
            entries.retain(|entry| entry.completed.is_none_or(|completed| completed > mark.flush));
            !entries.is_empty()
        });
        if mark.completed_below > self.reclaimed() {
            self.reclaim(mark.completed_below);
        }
        self.changed();
    }

    /// Takes account of flushes by other shards.
    fn catch_up(&self) {
        let flushed = self.counters().flushed.load(Ordering::Acquire);
        if flushed <= self.reclaimed() {
            return;
        }
        self.recent.borrow_mut().retain(|entries| {
            entries.retain(|entry| entry.sequence >= flushed);
            !entries.is_empty()
        });
        self.spent_on_rows.set(0);
        self.reclaim(flushed);
    }

    fn reclaim(&self, below: u64) {
        self.rings.borrow_mut().reclaim(below);
        self.uncovered.borrow_mut().reclaim(below);
    }

    /// Records below this one are reclaimed.
    fn reclaimed(&self) -> u64 {
        self.rings.borrow().reclaimed()
    }

    fn counters(&self) -> &Counters {
        &self.counters[self.shard]
    }

    /// Whether records with indeterminate ranges lack a checkpoint record on the members.
    pub fn is_uncovered(&self) -> bool {
        !self.uncovered.borrow().is_empty()
    }

    /// Whether such records were completed when the flush began, and no checkpoint record says so.
    fn wants_checkpoint(&self, mark: &FlushMark) -> bool {
        !self.closed.get() && self.uncovered.borrow().has_completed(mark.below, &mark.open)
    }

    /// Notes that the rings may not hold what was written there: the next checkpoint record is for
    /// all completed records.
    pub fn mark_suspect(&self) {
        if !self.rings.borrow().is_empty() {
            self.uncovered.borrow_mut().add_all();
        }
    }

    /// Whether other strips in the member offsets of these entries were written, and may not be
    /// durable. If an entry overwrites all `data` data strips, their old content does not matter.
    pub fn conflicts(&self, stripe_group: StripeGroup, entries: &[Entry], data: usize) -> bool {
        self.catch_up();
        let recent = self.recent.borrow();
        let others = recent.get(stripe_group).map_or(&[][..], |recent| recent);
        entries.iter().filter(|entry| entry.has_base(data)).any(|entry| {
            let offsets = Range::new(entry.offset, entry.offset + u64::from(entry.len));
            others.iter().any(|other| {
                let same = (other.overwritten, other.in_parity) == (entry.overwritten, entry.in_parity);
                !same && !other.offsets.intersect(offsets).is_empty()
            })
        })
    }

    /// Completed writes to a row that may not be durable.
    pub fn written_in(&self, stripe_group: StripeGroup, row: Range) -> Vec<Written> {
        let recent = self.recent.borrow();
        let of_row = recent.get(stripe_group).into_iter().flatten().filter(|recent| row.contains(recent.offsets));
        let completed = of_row.filter(|recent| recent.completed.is_some());
        completed
            .map(|recent| Written { sequence: recent.sequence, strips: recent.overwritten | recent.in_parity })
            .collect()
    }

    /// Notes that these writes are durable.
    pub fn became_durable(&self, stripe_group: StripeGroup, written: &[Written]) {
        let mut all = self.recent.borrow_mut();
        let Some(recent) = all.get_mut(stripe_group) else { return };
        recent.retain(|recent| !written.iter().any(|written| written.sequence == recent.sequence));
        if recent.is_empty() {
            all.remove(stripe_group);
        }
    }

    /// Whether to flush only a row, which takes so many `operations`. A flush of everything takes
    /// `all`, and ends the conflicts of every row. Between two of those, flushes of rows may take
    /// as many operations as one.
    pub fn may_flush_row(&self, operations: usize, all: usize) -> bool {
        let spent = self.spent_on_rows.get() + operations;
        self.spent_on_rows.set(spent);
        spent <= all
    }

    /// Every record below is completed: a flush that begins now reclaims it.
    fn completed_below(&self) -> u64 {
        self.open.borrow().first().unwrap_or(self.next.get())
    }

    fn changed(&self) {
        for waiter in self.waiting.take() {
            waiter.send(());
        }
    }

    fn wait(&self) -> Receiver<()> {
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().push(sender);
        receiver
    }

    fn begin(self: &Rc<Self>, record: &mut Record, turn: Turn) -> Open {
        let sequence = self.next.get();
        self.next.set(sequence + 1);
        self.open.borrow_mut().push(sequence);
        let entry = |entry: &Entry| Recent {
            sequence,
            offsets: Range::new(entry.offset, entry.offset + u64::from(entry.len)),
            overwritten: entry.overwritten,
            in_parity: entry.in_parity,
            completed: None,
        };
        let entries = record.entries.iter().filter(|entry| !entry.is_void()).map(entry);
        self.recent.borrow_mut().or_default(record.stripe_group).extend(entries);
        if record.unverified {
            let mut uncovered = self.uncovered.borrow_mut();
            uncovered.add(sequence);
            if let Some(indeterminate) = record.indeterminate.take() {
                uncovered.leave_open(sequence, indeterminate);
            }
        }
        let warm = self.warm.as_ref().map(|warm| warm.open(sequence));
        let _indeterminate = record.indeterminate.take();
        Open { log: self.clone(), stripe_group: record.stripe_group, sequence, warm, _indeterminate, _turn: turn }
    }

    /// Finds room for a frame on a member. `None` if there is none before more is reclaimed.
    fn place(&self, member: MemberIndex, len: u64, last: u64, stripe_groups: &[(StripeGroup, bool)]) -> Option<u64> {
        self.catch_up();
        let start = self.rings.borrow_mut().place(member, len, last, stripe_groups)?;
        Some(self.place.offset + start)
    }

    /// Returns once one more record may be open. The caller begins it at once.
    pub async fn turn(&self) -> Turn {
        self.begins.enter().await
    }

    /// Returns once no record is open.
    pub async fn until_none_open(&self) {
        while !self.open.borrow().is_empty() {
            let _ = self.wait().await;
        }
    }

    /// Whether more than half of a ring waits to be reclaimed.
    fn is_filling(&self) -> bool {
        self.catch_up();
        self.rings.borrow().is_filling()
    }

    /// Takes the pending records that fit in one frame on every member, with at most `parts_max`
    /// parts on each.
    fn batch(&self, parts_max: usize) -> Vec<Pending> {
        let mut pending = self.pending.borrow_mut();
        choose_extra_holders(&mut pending);
        let mut lens: SmallVec<[(MemberIndex, u64, usize); 16]> = SmallVec::new();
        let mut count = 0;
        for next in pending.iter() {
            let fits = next.record.shares.iter().all(|share| {
                let alone = frame_len(&[part(0, &next.record, RoleSet::EMPTY, share)]) as u64;
                let known = lens.iter().position(|(member, ..)| *member == share.member);
                let index = known.unwrap_or_else(|| {
                    lens.push((share.member, 0, 0));
                    lens.len() - 1
                });
                let (_, len, parts) = &mut lens[index];
                *len += alone;
                *parts += 1;
                *parts <= parts_max && *len <= self.place.len / 2
            });
            if !fits && count > 0 {
                break;
            }
            count += 1;
        }
        pending.drain(..count).collect()
    }
}

/// Gives each record that needs one an extra log holder: a member with a frame, or else the first.
fn choose_extra_holders(pending: &mut VecDeque<Pending>) {
    let shares = pending.iter().flat_map(|pending| &pending.record.shares);
    let mut members = shares.fold(0u64, |members, share| members | 1 << share.member.0);
    for Pending { record, .. } in pending {
        let extra_holders = std::mem::take(&mut record.extra_holders);
        let with_frame = extra_holders.iter().find(|(_, member, _)| members >> member.0 & 1 == 1);
        if let Some(&(role, member, drive)) = with_frame.or(extra_holders.first()) {
            members |= 1 << member.0;
            record.shares.push(Share { role, member, drive, payload: Buf::zeroes(0) });
        }
    }
}

const BLOCK_BYTES: u64 = format::BLOCK as u64;

pub(crate) fn part<'a>(sequence: u64, record: &'a Record, holders: RoleSet, share: &'a Share) -> PartData<'a> {
    let role = share.role as u16;
    let Record { stripe_group, entries, whole, in_sync, .. } = record;
    let (stripe_group, in_sync, whole) = (stripe_group.0, *in_sync, *whole);
    PartData { sequence, stripe_group, holders, in_sync, role, entries, whole, payload: &share.payload }
}
