//! Replays the log after a crash: makes every stripe right whose write was interrupted, before any
//! read. This file finds the work; [`crate::recovery::put_right`] decides about one stripe.
//!
//! Guarantees:
//! 1. Afterwards every stripe that a record names agrees with itself, and with its checksums.
//! 2. A record is applied only if all of its holders that are there have their part. Otherwise its
//!    strips were never overwritten.
//! 3. Each member offset is decided by its newest record alone.
//! 4. Absent members are marked as missing before the first record is applied.
//!
//! Example: the log of a 4+2 group after a crash has three records of stripe group 5.
//!
//! ```text
//! record   range            holders   found on       so
//! 21        0 .. 16 KiB     P, Q      P, Q           complete
//! 22        8 .. 12 KiB     P, Q      P, Q           complete, newer
//! 23       12 .. 20 KiB     P, Q      P              the write of its frame was cut off: ignored
//!
//! pieces   record 22:  8 .. 12 KiB;  record 21:  0 .. 8 KiB and 12 .. 16 KiB
//! ```
//!
//! Tests: `sim/tests/engine/crash.rs`, `records.rs` and `overwritten.rs`;
//! `sim/tests/exhaustive.rs`; `rescue/tests/engine/crash.rs` compares with a second implementation.
//!
//! `docs/format/log.md`, "Recovery", has the rules. Nothing here has to be atomic: every step can
//! be repeated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::log::{LOST_SLOTS, LostBlocks, lost_slot_offset};
use format::{BLOCK, MemberState, Runs, Superblock, superblock_offsets};

use crate::drives::bounded::Bounded;
use crate::drives::retry::{flush_retried, read_retried, write_retried};
use crate::drives::superblock::write_superblock;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{MemberIndex, StripeGroup};
use crate::recovery::recompute_sums::RecomputedSums;
use crate::recovery::replay_log::Record;
use crate::state::lost::listable;
use crate::state::shared::Shared;
use crate::state::warm::WarmGroup;
use crate::util::semaphore::FairSemaphore;

/// Stripe groups that are recovered at the same time. A drive answers many operations as fast as
/// one, and every answer polls all of them.
const STRIPE_GROUPS_AT_ONCE: usize = 16;

/// Bytes of the strips of these stripe groups. A single one may have more.
const BYTES_AT_ONCE: u64 = 16 << 20;

/// The result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were applied, as a whole or in part.
    pub records: u64,
    /// Bytes of each member that were processed.
    pub bytes: u64,
    /// Bytes of the group whose content is unknown.
    pub lost: u64,
    /// Records whose parts contradict each other. No crash leaves one: the log was damaged or
    /// forged. They are not applied, so their ranges may be inconsistent.
    pub contradictory: u64,
    /// Members that failed during the replay.
    pub failed: Vec<MemberIndex>,
}

/// A member's drive and state, if it is present.
pub(crate) type Present<'a, D> = Option<(&'a D, MemberState)>;

/// The pieces of a record that no newer record covers.
struct Work {
    record: Record,
    pieces: Vec<Piece>,
}

struct Piece {
    /// Index among the record's entries.
    entry: usize,
    /// Offset of the entry in the payloads.
    offset: usize,
    offsets: Range,
}

pub(crate) struct Replay<'a, E: Env> {
    pub env: &'a E,
    pub superblock: &'a Superblock,
    pub shared: &'a Shared,
    /// The drives by member, with their states. Missing ones, and those that fail during the
    /// replay, are `None`.
    pub members: RefCell<Vec<Present<'a, Bounded<'a, E>>>>,
    /// The list of lost blocks, as the members have it.
    pub lost: RefCell<LostBlocks>,
    /// Held by a task that changes the list.
    pub listing: FairSemaphore,
    /// Checksums of the member offsets that were being written.
    pub recomputed: RecomputedSums,
    /// After a killed daemon: the in-memory state of the log.
    pub warm: Option<WarmGroup>,
    /// The superblock that marks absent members as missing. Set before the first drive gets it.
    pub announced: &'a RefCell<Option<Superblock>>,
    /// The runs that this superblock names.
    pub runs: Runs,
}

impl<'a, E: Env> Replay<'a, E> {
    /// Replays the whole log and makes the result durable. `new_chunks`: allocation chunks that are
    /// not in the map on the members. Their checksums were not saved.
    ///
    /// # Errors
    /// [`BlockError`] if more members fail than the level survives. All steps can then be repeated.
    pub async fn run(&self, new_chunks: &[u64]) -> Result<Replayed, BlockError> {
        let before = self.live();
        let recompute_sums = async |&chunk: &u64| self.recompute_chunk(chunk).await;
        let chunks =
            all_of(self.stripe_groups_at_once(self.shared.geometry.chunk_bytes), new_chunks.iter(), recompute_sums)
                .await?;
        let mut done = Replayed { bytes: chunks.iter().sum(), ..Replayed::default() };
        let mut records = self.records().await?;
        // Before any record is applied: if a member failed meanwhile, nothing would show any more
        // that it lacks its part.
        records.retain(|_, record| self.is_complete(record));
        if !records.is_empty() {
            self.leave_behind().await?;
        }
        done.records = records.len() as u64;
        done.contradictory = records.values().filter(|record| record.contradictory).count() as u64;
        let stripe_groups = self.by_stripe_group(records.into_values());
        let largest =
            stripe_groups.iter().flatten().flat_map(|work| &work.pieces).map(|piece| piece.offsets.len()).max();
        let put_right = async |stripe_group: Vec<Work>| self.put_stripe_group_right(stripe_group).await;
        for part in
            all_of(self.stripe_groups_at_once(largest.unwrap_or(0)), stripe_groups.into_iter(), put_right).await?
        {
            done.bytes += part.bytes;
            done.lost += part.lost;
        }
        if done.bytes > 0 {
            self.save_sums().await?;
            let live = self.live();
            let flushed = join_all(live.iter().map(|(_, drive)| flush_retried(*drive))).await;
            for ((member, _), flushed) in live.into_iter().zip(flushed) {
                if flushed.is_err() {
                    self.give_up(member)?;
                }
            }
        }
        let live = self.live();
        let failed = before.iter().filter(|(member, _)| !live.iter().any(|(other, _)| other == member));
        done.failed = failed.map(|(member, _)| *member).collect();
        Ok(done)
    }

    /// Marks absent members as missing in the superblocks, before any record is applied. Without
    /// that, a member that is back after another crash would make records look incomplete that had
    /// been applied without it.
    ///
    /// # Errors
    /// [`BlockError`] if members that the group cannot do without do not take it.
    async fn leave_behind(&self) -> Result<(), BlockError> {
        let mut next = self.superblock.clone();
        for (entry, present) in next.members.iter_mut().zip(&*self.members.borrow()) {
            if entry.state == MemberState::InSync && present.is_none() {
                entry.state = MemberState::Missing;
            }
        }
        if next.members == self.superblock.members {
            return Ok(());
        }
        next.epoch += 1;
        next.runs = self.runs;
        self.warm.iter().for_each(|warm| warm.expect_epoch(next.epoch));
        self.announced.replace(Some(next.clone()));
        let live = self.live();
        let write = |&(member, drive): &(MemberIndex, &'a Bounded<'a, E>)| {
            let drive_uuid = next.members[usize::from(member.0)].uuid;
            let own = Superblock { role: format::Role::Member(member.0), drive: drive_uuid, ..next.clone() };
            async move { write_superblock(drive, &own).await }
        };
        let results = join_all(live.iter().map(write)).await;
        for ((member, _), result) in live.into_iter().zip(results) {
            if result.is_err() {
                self.give_up(member)?;
            }
        }
        self.warm.iter().for_each(|warm| warm.found_epoch(next.epoch));
        Ok(())
    }

    /// The work by stripe group: each member offset once, by its newest record. `records` are in
    /// their order.
    fn by_stripe_group(&self, records: impl DoubleEndedIterator<Item = Record>) -> Vec<Vec<Work>> {
        let mut stripe_groups: BTreeMap<StripeGroup, (Ranges, Vec<Work>)> = BTreeMap::new();
        for record in records.rev() {
            let (covered, works) = stripe_groups.entry(record.stripe_group).or_default();
            let mut offset = 0;
            let mut pieces = Vec::new();
            for (entry, said) in record.entries.iter().enumerate() {
                let range = Range::new(said.offset, said.offset + u64::from(said.len));
                let open = covered.gaps(range);
                covered.add(range);
                // A contradictory record changes nothing. Older records must not be applied to its
                // member offsets either.
                let applies = !said.is_void() && !record.contradictory;
                for open in open.iter().filter(|_| applies) {
                    let allocated = self.allocated(record.stripe_group, open);
                    pieces.extend(allocated.iter().map(|offsets| Piece { entry, offset, offsets }));
                }
                let has_payload = record.whole || said.has_base(self.shared.geometry.data);
                offset += if has_payload { said.len as usize } else { 0 };
            }
            if !pieces.is_empty() {
                works.push(Work { record, pieces });
            }
        }
        stripe_groups.into_values().map(|(_, works)| works).filter(|works| !works.is_empty()).collect()
    }

    /// Number of stripe groups that fit into the memory of a replay. `len`: member offsets of the
    /// longest piece, or more.
    fn stripe_groups_at_once(&self, len: u64) -> usize {
        let row = self.shared.geometry.strips() as u64 * len.max(1);
        (BYTES_AT_ONCE / row).clamp(1, STRIPE_GROUPS_AT_ONCE as u64) as usize
    }

    async fn put_stripe_group_right(&self, works: Vec<Work>) -> Result<Replayed, BlockError> {
        let mut done = Replayed::default();
        for Work { mut record, pieces } in works {
            self.fetch(&mut record).await?;
            for Piece { entry, offset, offsets } in pieces {
                self.put_right(&record, &record.entries[entry], offset, offsets, &mut done).await?;
                done.bytes += offsets.len();
            }
        }
        Ok(done)
    }

    /// A member's drive, if it is present and in the wanted state, or in any state.
    pub fn drive(&self, member: MemberIndex, wanted: Option<MemberState>) -> Option<&'a Bounded<'a, E>> {
        let (drive, state) = self.members.borrow()[usize::from(member.0)]?;
        wanted.is_none_or(|wanted| wanted == state).then_some(drive)
    }

    /// The members that are present, in any state.
    pub fn live(&self) -> Vec<(MemberIndex, &'a Bounded<'a, E>)> {
        let count = self.members.borrow().len() as u16;
        (0..count).map(MemberIndex).filter_map(|member| Some((member, self.drive(member, None)?))).collect()
    }

    /// Goes on without a member that failed. A member that the group cannot do without stays: data
    /// that concurrent tasks cannot read from it must not look lost to them.
    ///
    /// # Errors
    /// [`BlockError::Lost`] if the group cannot do without it.
    pub fn give_up(&self, member: MemberIndex) -> Result<(), BlockError> {
        let (strips, survives) = (self.shared.geometry.strips(), self.shared.geometry.parity_count);
        let first = usize::from(member.0) / strips * strips;
        let is_lost = |index: &usize| {
            *index == usize::from(member.0) || !matches!(self.members.borrow()[*index], Some((_, MemberState::InSync)))
        };
        let lost = (first..first + strips).filter(is_lost).count();
        if lost > survives {
            return Err(BlockError::Lost { lost, survives });
        }
        self.members.borrow_mut()[usize::from(member.0)] = None;
        Ok(())
    }

    /// Writes to a member, with one retry. If that fails, the member is given up.
    pub async fn write(&self, member: MemberIndex, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        match write_retried(drive, offset, data, fua).await {
            Ok(()) => Ok(()),
            Err(_) => self.give_up(member),
        }
    }

    /// Whether every holder that is present has its part. If not, the record was never complete,
    /// and nothing was overwritten. Also false if a member was filled since: the record was then
    /// completed long ago.
    fn is_complete(&self, record: &Record) -> bool {
        let geometry = &self.shared.geometry;
        let offset = record.entries.first().map_or(0, |entry| entry.offset);
        (0..geometry.strips()).all(|role| {
            let there =
                self.drive(geometry.member(record.stripe_group, offset, role), Some(MemberState::InSync)).is_some();
            let silent = record.holders.contains(role) && !record.found.contains_key(&role);
            !there || (record.in_sync.contains(role) && !silent)
        })
    }

    fn allocated(&self, stripe_group: StripeGroup, offsets: Range) -> Ranges {
        let geometry = &self.shared.geometry;
        let mut allocated = Ranges::new();
        for chunk in geometry.chunks() {
            if self.shared.map.get(geometry.chunk_index(stripe_group, chunk.start)) {
                allocated.add(chunk.intersect(offsets));
            }
        }
        allocated
    }

    /// Adds to the list of lost blocks, durably.
    pub(super) async fn list_lost(&self, ranges: Vec<(u64, u64)>) -> Result<(), BlockError> {
        let _turn = self.listing.enter().await;
        let mut list = self.lost.borrow().clone();
        list.sequence += 1;
        list.ranges = listable(list.ranges.into_iter().chain(ranges).collect());
        let bytes = BufMut::copy_of(&list.encode(&self.superblock.array)).freeze();
        let offset = lost_slot_offset(&self.superblock.layout, list.sequence % LOST_SLOTS);
        for (member, _) in self.live() {
            self.write(member, offset, bytes.clone(), true).await?;
        }
        self.lost.replace(list);
        Ok(())
    }

    /// Gives up a member if not even a superblock can be read from it any more.
    ///
    /// # Errors
    /// [`BlockError`] if the group cannot do without it.
    pub async fn look_after(&self, member: MemberIndex) -> Result<(), BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        for offset in superblock_offsets(drive.info().size_bytes).into_iter().flatten() {
            if read_retried(drive, offset, || self.env.alloc(BLOCK)).await.is_ok() {
                return Ok(());
            }
        }
        self.give_up(member)
    }
}

/// Works on `at_once` items at the same time, and begins no more after an error.
async fn all_of<T, R>(
    at_once: usize,
    items: impl Iterator<Item = T>,
    work: impl AsyncFn(T) -> Result<R, BlockError>,
) -> Result<Vec<R>, BlockError> {
    let (items, failed, results) = (RefCell::new(items), Cell::new(false), RefCell::new(Vec::new()));
    let worker = async || {
        while !failed.get() {
            let Some(item) = items.borrow_mut().next() else { break };
            let result = work(item).await;
            failed.set(failed.get() || result.is_err());
            results.borrow_mut().push(result?);
        }
        Ok(())
    };
    join_all((0..at_once).map(|_| worker())).await.into_iter().collect::<Result<(), _>>()?;
    Ok(results.into_inner())
}

/// The members of an assembled group, for a replay.
pub(crate) fn members<'a, D>(
    superblock: &Superblock,
    places: &[Option<usize>],
    drives: &'a [D],
) -> Vec<Present<'a, D>> {
    let member = |(entry, place): (&format::MemberEntry, &Option<usize>)| {
        place.filter(|_| entry.state.takes_writes()).map(|index| (&drives[index], entry.state))
    };
    superblock.members.iter().zip(places).map(member).collect()
}
