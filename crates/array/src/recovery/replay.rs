//! Replays the log after a crash: puts every stripe right whose write was interrupted, before any
//! read.
//!
//! `docs/format/log.md`, "Recovery", has the rules. Nothing here has to be atomic: every step can
//! be repeated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::log::{Entry, LOST_SLOTS, LostBlocks, lost_slot_offset};
use format::{BLOCK, MemberState, Runs, Superblock, superblock_offsets};

use crate::drives::bounded::Bounded;
use crate::drives::retry::{flush_retried, read_retried, write_retried};
use crate::drives::superblock::write_superblock;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{MemberIndex, Role, StripeGroup, roles};
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

/// A stripe's strips over some member offsets.
pub(crate) struct Row {
    /// By role; `None` if it could not be read or its member is not in sync.
    pub strips: Vec<Option<BufMut>>,
    /// By role: read, but not trusted.
    pub suspect: Vec<Option<BufMut>>,
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
        let is_named = |bits: u64, role: Role| bits >> role & 1 == 1;
        (0..geometry.strips()).all(|role| {
            let there =
                self.drive(geometry.member(record.stripe_group, offset, role), Some(MemberState::InSync)).is_some();
            let silent = is_named(record.holders, role) && !record.found.contains_key(&role);
            !there || (is_named(record.in_sync, role) && !silent)
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

    /// Makes the strips of a stripe agree over some member offsets of an entry. `offset`: of the
    /// entry in the payloads.
    async fn put_right(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        if record.whole {
            return self.roll_forward(record, entry, offset, offsets, done).await;
        }
        let mut row = self.read_row(record.stripe_group, offsets, entry, record.completed).await?;
        if record.completed {
            self.fill(&mut row, offsets);
        }
        let overwritten = |role: Role| entry.overwritten >> role & 1 == 1;
        let within = offsets.relative(entry.offset);
        let bases: Vec<Option<&[u8]>> = (data..strips)
            .map(|role| record.parts.get(&role).filter(|_| entry.has_base(data)))
            .map(|payload| payload.map(|payload| &payload[offset + within.start..offset + within.end]))
            .collect();

        let mut unknown: Vec<Role> = Vec::new();
        let solve: Vec<Role> = (0..data).filter(|&role| !overwritten(role) && row.strips[role].is_none()).collect();
        if !solve.is_empty() {
            if let Some(solved) = self.by_bases(&row, &solve, overwritten, &bases, offsets) {
                for (role, strip) in solve.into_iter().zip(solved) {
                    row.strips[role] = Some(strip);
                }
            } else {
                unknown = take_suspect(&mut row, solve);
            }
        }
        if entry.overwritten.count_ones() == 1 && entry.in_parity == 0 {
            let role = entry.overwritten.trailing_zeros() as Role;
            self.vote(&mut row, record.stripe_group, role, &bases, offsets).await?;
        } else if unknown.is_empty() {
            self.complete(&mut row, entry, record.piece_bytes, offsets);
        }
        unknown.extend((0..data).filter(|&role| overwritten(role) && row.strips[role].is_none()));
        self.call_lost(record.stripe_group, &mut row, unknown, offsets, done).await?;
        self.write_row(record.stripe_group, offsets, row).await
    }

    /// The content of these strips is unknown: they become zeroes, and are listed as lost.
    async fn call_lost(
        &self,
        stripe_group: StripeGroup,
        row: &mut Row,
        unknown: Vec<Role>,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let range = |&role: &Role| (self.shared.geometry.offset(stripe_group, role, offsets.start), offsets.len());
        let ranges: Vec<(u64, u64)> = unknown.iter().map(range).collect();
        done.lost += ranges.iter().map(|(_, len)| len).sum::<u64>();
        // Before the parity says that these strips are zero.
        self.list_lost(ranges).await?;
        for role in unknown {
            let mut zeroes = self.env.alloc(offsets.len() as usize);
            zeroes.fill(0);
            row.strips[role] = Some(zeroes);
        }
        Ok(())
    }

    /// Writes the new content of a whole record, and the parity and lost strips computed from it.
    async fn roll_forward(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let mut row = self.read_row(record.stripe_group, offsets, entry, false).await?;
        let within = offsets.relative(entry.offset);
        for role in roles(entry.overwritten).chain(data..strips) {
            row.suspect[role] = row.strips[role].take();
            row.strips[role] = record.parts.get(&role).map(|payload| {
                let mut new = self.env.alloc(within.len());
                new.copy_from_slice(&payload[offset + within.start..offset + within.end]);
                new
            });
        }
        let missing: Vec<Role> = (0..data).filter(|&role| row.strips[role].is_none()).collect();
        if !missing.is_empty() {
            let source = |role: Role| row.strips[role].as_deref();
            if let Some(solved) = self.solve(&missing, source, offsets.len() as usize) {
                for (role, strip) in missing.into_iter().zip(solved) {
                    row.strips[role] = Some(strip);
                }
            } else {
                let unknown = take_suspect(&mut row, missing);
                self.call_lost(record.stripe_group, &mut row, unknown, offsets, done).await?;
            }
        }
        // The parity as it is on the drives, not as it should be.
        for role in data..strips {
            row.strips[role] = row.suspect[role].take();
        }
        self.write_row(record.stripe_group, offsets, row).await
    }

    /// Adds to the list of lost blocks, durably.
    async fn list_lost(&self, ranges: Vec<(u64, u64)>) -> Result<(), BlockError> {
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

    /// Computes the missing data strips from the strips that are present, which agree. Leaves the
    /// stripe as it is if too few are present.
    fn fill(&self, row: &mut Row, offsets: Range) {
        let geometry = &self.shared.geometry;
        let parity: Vec<Role> = (geometry.data..geometry.strips()).filter(|&role| row.strips[role].is_some()).collect();
        let missing: Vec<Role> = (0..geometry.data).filter(|&role| row.strips[role].is_none()).collect();
        for (role, strip) in missing.iter().zip(self.by_parity(row, &missing, &parity, offsets).into_iter().flatten()) {
            row.strips[*role] = Some(strip);
        }
    }

    /// Reads a stripe's strips. Damaged strips are suspect, and so are strips carried in parity
    /// unless the record is completed (`completed`). The checksums of member offsets that the
    /// record changes may be stale, so they are ignored.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    async fn read_row(
        &self,
        stripe_group: StripeGroup,
        offsets: Range,
        entry: &Entry,
        completed: bool,
    ) -> Result<Row, BlockError> {
        let geometry = &self.shared.geometry;
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let in_sync = |role: Role| {
            let member = geometry.member(stripe_group, offsets.start, role);
            (member, self.drive(member, Some(MemberState::InSync)))
        };
        let read = |role: Role| {
            let (_, drive) = in_sync(role);
            async move { read_retried(drive?, offset, || self.env.alloc(offsets.len() as usize)).await.ok() }
        };
        let mut strips: Vec<Option<BufMut>> = join_all((0..geometry.strips()).map(read)).await;
        for (role, strip) in strips.iter_mut().enumerate() {
            let (member, drive) = in_sync(role);
            if strip.is_none() && drive.is_some() {
                // A bad sector is no reason to give up the member. But a drive that is gone, or was
                // for a moment, must not make blocks count as lost that are present.
                self.look_after(member).await?;
                *strip = read(role).await;
            }
        }
        let is_damaged = join_all(strips.iter().enumerate().map(|(role, strip)| async move {
            let named = entry.overwritten | entry.in_parity;
            let ((member, Some(drive)), Some(bytes)) = (in_sync(role), strip) else { return false };
            role < geometry.data && named >> role & 1 == 0 && !self.is_genuine(member, drive, offset, bytes).await
        }));
        let mut suspect: Vec<Option<BufMut>> = Vec::with_capacity(strips.len());
        for (role, is_damaged) in is_damaged.await.into_iter().enumerate() {
            if is_damaged {
                self.look_after(in_sync(role).0).await?;
            }
            let suspects = is_damaged || (!completed && entry.in_parity >> role & 1 == 1);
            suspect.push(if suspects { strips[role].take() } else { None });
        }
        Ok(Row { strips, suspect })
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

    /// Computes data strips that are not overwritten from partial parity.
    fn by_bases(
        &self,
        row: &Row,
        wanted: &[Role],
        overwritten: impl Fn(Role) -> bool,
        bases: &[Option<&[u8]>],
        offsets: Range,
    ) -> Option<Vec<BufMut>> {
        let geometry = &self.shared.geometry;
        let len = offsets.len() as usize;
        let zeroes = vec![0; len];
        let source = |role: Role| match role.checked_sub(geometry.data) {
            Some(parity_strip) => bases[parity_strip],
            None if overwritten(role) => Some(&zeroes[..]),
            None => row.strips[role].as_deref(),
        };
        self.solve(wanted, source, len)
    }

    /// Computes data strips from other data strips and these parity strips.
    fn by_parity(&self, row: &Row, wanted: &[Role], parity: &[Role], offsets: Range) -> Option<Vec<BufMut>> {
        let data = self.shared.geometry.data;
        let source = |role: Role| {
            let usable = role < data || parity.contains(&role);
            usable.then(|| row.strips[role].as_deref()).flatten()
        };
        self.solve(wanted, source, offsets.len() as usize)
    }

    /// Computes strips from those that `source` gives. `None` if those are too few.
    pub fn solve<'b>(
        &self,
        wanted: &[Role],
        source: impl Fn(Role) -> Option<&'b [u8]>,
        len: usize,
    ) -> Option<Vec<BufMut>> {
        let lost: Vec<Role> = (0..self.shared.geometry.strips()).filter(|&role| source(role).is_none()).collect();
        let decoder = self.shared.code.decoder_for(&lost, wanted).ok()?;
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&role| source(role)).collect::<Option<_>>()?;
        let mut out: Vec<BufMut> = wanted.iter().map(|_| self.env.alloc(len)).collect();
        decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        Some(out)
    }

    /// Computes overwritten strips that are missing or do not match the record, from the strips and
    /// parity that match. Leaves the stripe as it is if those are too few.
    fn complete(&self, row: &mut Row, entry: &Entry, piece_bytes: u64, offsets: Range) {
        let data = self.shared.geometry.data;
        let right = self.as_announced(row, entry, piece_bytes, offsets);
        let wrong: Vec<Role> = roles(entry.overwritten).filter(|&role| !right[role]).collect();
        let parity: Vec<Role> = (data..right.len()).filter(|&role| right[role]).collect();
        if wrong.is_empty() || parity.is_empty() {
            return;
        }
        let before: Vec<Option<BufMut>> = wrong.iter().map(|&role| row.strips[role].take()).collect();
        let solved = self.by_parity(row, &wrong, &parity, offsets);
        match solved {
            Some(solved) => {
                for ((role, strip), before) in wrong.into_iter().zip(solved).zip(before) {
                    row.strips[role] = Some(strip);
                    row.suspect[role] = before;
                }
            }
            None => wrong.into_iter().zip(before).for_each(|(role, before)| row.strips[role] = before),
        }
    }

    /// Which overwritten strips and parity strips match the checksums of an entry, so that they are
    /// new. None if the entry has no checksums.
    fn as_announced(&self, row: &Row, entry: &Entry, piece_bytes: u64, offsets: Range) -> Vec<bool> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let named: Vec<Role> = roles(entry.overwritten).chain(data..strips).collect();
        let mut right = vec![!entry.checksums.is_empty(); strips];
        for (index, sums) in entry.checksums.chunks_exact(named.len()).enumerate() {
            let start = entry.offset + index as u64 * piece_bytes;
            let piece = Range::new(start, (start + piece_bytes).min(entry.offset + u64::from(entry.len)));
            if piece.intersect(offsets).is_empty() {
                continue;
            }
            let whole = offsets.contains(piece);
            for (&role, &sum) in named.iter().zip(sums) {
                let matches = |strip: &BufMut| whole && gf::crc32c(&strip[piece.relative(offsets.start)]) == sum;
                right[role] &= row.strips[role].as_ref().is_some_and(matches);
            }
        }
        right
    }

    /// Writes parity and strips carried in parity where they differ from what they should be, and
    /// the data of members that are being filled.
    async fn write_row(&self, stripe_group: StripeGroup, offsets: Range, row: Row) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let Row { strips, suspect } = row;
        let mut strips = strips.into_iter();
        let data: Vec<BufMut> =
            strips.by_ref().take(geometry.data).map(|strip| strip.expect("all are known")).collect();
        let mut before = suspect;
        for (slot, strip) in before[geometry.data..].iter_mut().zip(strips) {
            *slot = strip;
        }
        let sources: Vec<&[u8]> = data.iter().map(|strip| &**strip).collect();
        let mut parity: Vec<BufMut> =
            (0..geometry.parity_count).map(|_| self.env.alloc(offsets.len() as usize)).collect();
        self.shared.code.encode(&sources, &mut parity.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let written =
            data.into_iter().chain(parity).zip(before).enumerate().map(|(role, (strip, before))| async move {
                let member = geometry.member(stripe_group, offsets.start, role);
                let differs = match before {
                    _ if self.drive(member, Some(MemberState::Rebuilding)).is_some() => true,
                    Some(before) => *before != *strip,
                    // A data strip as it was read, or a strip that could not be read: writing it
                    // heals it.
                    None => role >= geometry.data,
                };
                self.note_sums(member, offset, &strip).await?;
                if differs { self.write(member, offset, strip.freeze(), false).await } else { Ok(()) }
            });
        join_all(written).await.into_iter().collect()
    }
}

/// Beyond redundancy the strips that could be read are the best there is. Returns the others.
fn take_suspect(row: &mut Row, roles: Vec<Role>) -> Vec<Role> {
    for &role in &roles {
        row.strips[role] = row.suspect[role].take();
    }
    roles.into_iter().filter(|&role| row.strips[role].is_none()).collect()
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
    let live = |state| matches!(state, MemberState::InSync | MemberState::Rebuilding);
    let member = |(entry, place): (&format::MemberEntry, &Option<usize>)| {
        place.filter(|_| live(entry.state)).map(|index| (&drives[index], entry.state))
    };
    superblock.members.iter().zip(places).map(member).collect()
}
