//! Replaying the log after a crash: puts every stripe right whose writing was interrupted, before anybody reads.
//!
//! `docs/format/log.md`, "Recovery", has the rules. Nothing here has to be atomic: every step can be done again.

use std::cell::RefCell;
use std::collections::BTreeMap;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::log::{Entry, LOST_SLOTS, LostBlocks, lost_slot_offset};
use format::{BLOCK, MemberState, Superblock, superblock_offsets};

use crate::bounded::Bounded;
use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::kept::KeptGroup;
use crate::leader::{flush_retried, read_retried, write_retried};
use crate::lost::listable;
use crate::ranges::{Range, Ranges};
use crate::replay_log::Record;
use crate::resum::Resums;
use crate::shared::Shared;

/// What a replay did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were applied, as a whole or in part.
    pub records: u64,
    /// Bytes on each member that were gone through.
    pub bytes: u64,
    /// Bytes of the group whose content nobody knows any more.
    pub lost: u64,
    /// Members that failed meanwhile.
    pub failed: Vec<MemberIndex>,
}

/// A stripe's strips over some columns.
pub(crate) struct Row {
    /// By role; `None` if it could not be read or its member is not in sync.
    pub strips: Vec<Option<BufMut>>,
    /// By role: read, but not to be believed.
    pub doubtful: Vec<Option<BufMut>>,
}

/// A member's drive and state, if it is there.
pub(crate) type Present<'a, D> = Option<(&'a D, MemberState)>;

pub(crate) struct Replay<'a, E: Env> {
    pub env: &'a E,
    pub superblock: &'a Superblock,
    pub shared: &'a Shared,
    /// The drives by member, with their states. Missing ones, and those that fail during the replay, are `None`.
    pub members: RefCell<Vec<Present<'a, Bounded<'a, E>>>>,
    /// The list of lost blocks, as the members have it.
    pub lost: RefCell<LostBlocks>,
    /// Checksums of the columns that were being written.
    pub resums: Resums,
    /// After a kill: what the log was in memory.
    pub kept: Option<KeptGroup>,
}

impl<'a, E: Env> Replay<'a, E> {
    /// Replays the whole log and makes the result durable. Of `new_zones` the map on the members does not know: their checksums
    /// were not saved.
    ///
    /// # Errors
    /// [`BlockError`] if more members fail than the level survives: what was done can be done again.
    pub async fn run(&self, new_zones: &[u64]) -> Result<Replayed, BlockError> {
        let mut done = Replayed::default();
        let before = self.live();
        for &zone in new_zones {
            done.bytes += self.resum_zone(zone).await?;
        }
        let mut covered: BTreeMap<UnitIndex, Ranges> = BTreeMap::new();
        let mut records = self.records().await?;
        // Before any is applied: of a member that fails meanwhile nobody could tell any more that it lacks its part.
        records.retain(|_, record| self.is_complete(record));
        // The newest first, so that older ones find what is covered.
        for ((_, _), mut record) in records.into_iter().rev() {
            let mut offset = 0;
            let mut todo = Vec::new();
            for (index, entry) in record.entries.iter().enumerate() {
                let range = Range::new(entry.x, entry.x + u64::from(entry.len));
                let covered = covered.entry(record.unit).or_default();
                let open = covered.gaps(range);
                covered.add(range);
                for open in open.iter().filter(|_| !entry.is_void()) {
                    todo.extend(self.allocated(record.unit, open).iter().map(|columns| (index, offset, columns)));
                }
                let has_payload = record.whole || entry.has_base(self.shared.geometry.data);
                offset += if has_payload { entry.len as usize } else { 0 };
            }
            if !todo.is_empty() {
                self.fetch(&mut record).await;
            }
            for (index, offset, columns) in todo {
                self.put_right(&record, &record.entries[index], offset, columns, &mut done).await?;
                done.bytes += columns.len();
            }
            done.records += 1;
        }
        if done.bytes > 0 {
            self.save_sums().await?;
            for (member, drive) in self.live() {
                if flush_retried(drive).await.is_err() {
                    self.give_up(member)?;
                }
            }
        }
        let live = self.live();
        let failed = before.iter().filter(|(member, _)| !live.iter().any(|(other, _)| other == member));
        done.failed = failed.map(|(member, _)| *member).collect();
        Ok(done)
    }

    /// A member's drive, if it is there and in the state that is asked for, or any.
    pub fn drive(&self, member: MemberIndex, wanted: Option<MemberState>) -> Option<&'a Bounded<'a, E>> {
        let (drive, state) = self.members.borrow()[usize::from(member.0)]?;
        wanted.is_none_or(|wanted| wanted == state).then_some(drive)
    }

    /// The members that are there, whatever they are worth.
    pub fn live(&self) -> Vec<(MemberIndex, &'a Bounded<'a, E>)> {
        let count = self.members.borrow().len() as u16;
        (0..count).map(MemberIndex).filter_map(|member| Some((member, self.drive(member, None)?))).collect()
    }

    /// Goes on without a member that failed.
    pub fn give_up(&self, member: MemberIndex) -> Result<(), BlockError> {
        self.members.borrow_mut()[usize::from(member.0)] = None;
        let (strips, survives) = (self.shared.geometry.strips(), self.shared.geometry.syndromes);
        let first = usize::from(member.0) / strips * strips;
        let members = &self.members.borrow()[first..first + strips];
        let lost = members.iter().filter(|member| !matches!(member, Some((_, MemberState::InSync)))).count();
        if lost > survives { Err(BlockError::Lost { lost, survives }) } else { Ok(()) }
    }

    /// Writes to a member, twice if need be. Without success the member is given up.
    pub async fn write(&self, member: MemberIndex, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        match write_retried(drive, offset, data, fua).await {
            Ok(()) => Ok(()),
            Err(_) => self.give_up(member),
        }
    }

    /// Every holder that is there has its part: if not, the record was never complete, and nothing was overwritten. And
    /// no member has been filled since: else the record is long done with.
    fn is_complete(&self, record: &Record) -> bool {
        let geometry = &self.shared.geometry;
        let x = record.entries.first().map_or(0, |entry| entry.x);
        let is_named = |bits: u64, role: Role| bits >> role & 1 == 1;
        (0..geometry.strips()).all(|role| {
            let there = self.drive(geometry.member(record.unit, x, role), Some(MemberState::InSync)).is_some();
            let silent = is_named(record.holders, role) && !record.found.contains_key(&role);
            !there || (is_named(record.in_sync, role) && !silent)
        })
    }

    fn allocated(&self, unit: UnitIndex, columns: Range) -> Ranges {
        let geometry = &self.shared.geometry;
        let mut allocated = Ranges::new();
        for zone in geometry.zones() {
            if self.shared.map.get(geometry.zone_index(unit, zone.start)) {
                allocated.add(zone.intersect(columns));
            }
        }
        allocated
    }

    /// Makes the strips of a stripe agree over some columns of an entry. `offset`: of the entry in the payloads.
    async fn put_right(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        columns: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        if record.whole {
            return self.roll_forward(record, entry, offset, columns).await;
        }
        let mut row = self.read_row(record.unit, columns, entry, record.settled).await?;
        if record.settled {
            self.fill(&mut row, columns);
        }
        let overwritten = |role: Role| entry.overwritten >> role & 1 == 1;
        let within = columns.relative(entry.x);
        let bases: Vec<Option<&[u8]>> = (data..strips)
            .map(|role| record.parts.get(&role).filter(|_| entry.has_base(data)))
            .map(|payload| payload.map(|payload| &payload[offset + within.start..offset + within.end]))
            .collect();

        let mut unknown: Vec<Role> = Vec::new();
        let solve: Vec<Role> = (0..data).filter(|&role| !overwritten(role) && row.strips[role].is_none()).collect();
        if !solve.is_empty() {
            if let Some(solved) = self.by_bases(&row, &solve, overwritten, &bases, columns) {
                for (role, strip) in solve.into_iter().zip(solved) {
                    row.strips[role] = Some(strip);
                }
            } else {
                // Beyond redundancy. What could be read is the best there is.
                for role in solve {
                    row.strips[role] = row.doubtful[role].take();
                    if row.strips[role].is_none() {
                        unknown.push(role);
                    }
                }
            }
        }
        if entry.overwritten.count_ones() == 1 && entry.restated == 0 {
            let role = entry.overwritten.trailing_zeros() as Role;
            self.weigh(&mut row, record.unit, role, &bases, columns).await?;
        } else if unknown.is_empty() {
            self.complete(&mut row, entry, record.piece_bytes, columns);
        }
        unknown.extend((0..data).filter(|&role| overwritten(role) && row.strips[role].is_none()));
        if !unknown.is_empty() {
            let range = |&role: &Role| (geometry.offset(record.unit, role, columns.start), columns.len());
            let ranges: Vec<(u64, u64)> = unknown.iter().map(range).collect();
            done.lost += ranges.iter().map(|(_, len)| len).sum::<u64>();
            // Before the syndromes say that these strips are zero.
            self.list_lost(ranges).await?;
            for role in unknown {
                let mut zeroes = self.env.alloc(columns.len() as usize);
                zeroes.fill(0);
                row.strips[role] = Some(zeroes);
            }
        }
        self.write_row(record.unit, columns, row).await
    }

    /// Writes the new content of a whole record, and what follows from it.
    async fn roll_forward(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        columns: Range,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let mut row = self.read_row(record.unit, columns, entry, false).await?;
        let within = columns.relative(entry.x);
        for role in (0..strips).filter(|&role| role >= data || entry.overwritten >> role & 1 == 1) {
            row.doubtful[role] = row.strips[role].take();
            row.strips[role] = record.parts.get(&role).map(|payload| {
                let mut new = self.env.alloc(within.len());
                new.copy_from_slice(&payload[offset + within.start..offset + within.end]);
                new
            });
        }
        let missing: Vec<Role> = (0..data).filter(|&role| row.strips[role].is_none()).collect();
        if !missing.is_empty() {
            let source = |role: Role| row.strips[role].as_deref();
            let solved = self.solve(&missing, source, columns.len() as usize);
            let solved = solved.ok_or(BlockError::Lost { lost: missing.len(), survives: geometry.syndromes })?;
            for (role, strip) in missing.into_iter().zip(solved) {
                row.strips[role] = Some(strip);
            }
        }
        // What the syndromes are on their drives, not what they should be.
        for role in data..strips {
            row.strips[role] = row.doubtful[role].take();
        }
        self.write_row(record.unit, columns, row).await
    }

    /// Adds to the list of lost blocks, durably.
    async fn list_lost(&self, ranges: Vec<(u64, u64)>) -> Result<(), BlockError> {
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

    /// Computes the data strips that are missing from what is there, which agrees. Leaves the row as it is if that is too
    /// little.
    fn fill(&self, row: &mut Row, columns: Range) {
        let geometry = &self.shared.geometry;
        let syndromes: Vec<Role> =
            (geometry.data..geometry.strips()).filter(|&role| row.strips[role].is_some()).collect();
        let missing: Vec<Role> = (0..geometry.data).filter(|&role| row.strips[role].is_none()).collect();
        for (role, strip) in
            missing.iter().zip(self.by_syndromes(row, &missing, &syndromes, columns).into_iter().flatten())
        {
            row.strips[*role] = Some(strip);
        }
    }

    /// Reads a stripe's strips. Those that are restated, unless that is `settled`, or damaged are doubtful; the checksums of
    /// what the record changes may be behind and say nothing.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    async fn read_row(&self, unit: UnitIndex, columns: Range, entry: &Entry, settled: bool) -> Result<Row, BlockError> {
        let geometry = &self.shared.geometry;
        let offset = geometry.member_offset(unit, columns.start);
        let in_sync = |role: Role| {
            let member = geometry.member(unit, columns.start, role);
            (member, self.drive(member, Some(MemberState::InSync)))
        };
        let read = |role: Role| {
            let (_, drive) = in_sync(role);
            async move { read_retried(drive?, offset, || self.env.alloc(columns.len() as usize)).await.ok() }
        };
        let mut strips: Vec<Option<BufMut>> = join_all((0..geometry.strips()).map(read)).await;
        let mut doubtful: Vec<Option<BufMut>> = Vec::with_capacity(strips.len());
        for (role, strip) in strips.iter_mut().enumerate() {
            let (member, drive) = in_sync(role);
            if strip.is_none() && drive.is_some() {
                // Sectors that cannot be read are one thing; a drive that is gone, or was for a moment, must not make
                // blocks count as lost that are there.
                self.look_after(member).await?;
                *strip = read(role).await;
            }
            let is_damaged = match (&strip, drive) {
                (Some(bytes), Some(drive))
                    if role < geometry.data && (entry.overwritten | entry.restated) >> role & 1 == 0 =>
                {
                    !self.is_genuine(member, drive, offset, bytes).await
                }
                _ => false,
            };
            if is_damaged {
                self.look_after(member).await?;
            }
            let doubted = is_damaged || (!settled && entry.restated >> role & 1 == 1);
            doubtful.push(if doubted { strip.take() } else { None });
        }
        Ok(Row { strips, doubtful })
    }

    /// Gives a member up of which not even a superblock can be read any more.
    ///
    /// # Errors
    /// [`BlockError`] if the group cannot do without it.
    pub async fn look_after(&self, member: MemberIndex) -> Result<(), BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        for offset in superblock_offsets(drive.info().size_bytes) {
            if read_retried(drive, offset, || self.env.alloc(BLOCK)).await.is_ok() {
                return Ok(());
            }
        }
        self.give_up(member)
    }

    /// Data strips that are not overwritten, from base syndromes.
    fn by_bases(
        &self,
        row: &Row,
        wanted: &[Role],
        overwritten: impl Fn(Role) -> bool,
        bases: &[Option<&[u8]>],
        columns: Range,
    ) -> Option<Vec<BufMut>> {
        let geometry = &self.shared.geometry;
        let len = columns.len() as usize;
        let zeroes = vec![0; len];
        let source = |role: Role| match role.checked_sub(geometry.data) {
            Some(syndrome) => bases[syndrome],
            None if overwritten(role) => Some(&zeroes[..]),
            None => row.strips[role].as_deref(),
        };
        self.solve(wanted, source, len)
    }

    /// Data strips from others and these syndromes.
    fn by_syndromes(&self, row: &Row, wanted: &[Role], syndromes: &[Role], columns: Range) -> Option<Vec<BufMut>> {
        let data = self.shared.geometry.data;
        let source = |role: Role| {
            let usable = role < data || syndromes.contains(&role);
            usable.then(|| row.strips[role].as_deref()).flatten()
        };
        self.solve(wanted, source, columns.len() as usize)
    }

    /// Strips from those that `source` gives. `None` if those are too few.
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

    /// Computes the overwritten strips that are not there, or not as they were to be, from those and the syndromes that are. Leaves
    /// the row as it is if that is too little.
    fn complete(&self, row: &mut Row, entry: &Entry, piece_bytes: u64, columns: Range) {
        let data = self.shared.geometry.data;
        let right = self.as_announced(row, entry, piece_bytes, columns);
        let wrong: Vec<Role> = (0..data).filter(|role| entry.overwritten >> role & 1 == 1 && !right[*role]).collect();
        let syndromes: Vec<Role> = (data..right.len()).filter(|&role| right[role]).collect();
        if wrong.is_empty() || syndromes.is_empty() {
            return;
        }
        let before: Vec<Option<BufMut>> = wrong.iter().map(|&role| row.strips[role].take()).collect();
        let solved = self.by_syndromes(row, &wrong, &syndromes, columns);
        match solved {
            Some(solved) => {
                for ((role, strip), before) in wrong.into_iter().zip(solved).zip(before) {
                    row.strips[role] = Some(strip);
                    row.doubtful[role] = before;
                }
            }
            None => wrong.into_iter().zip(before).for_each(|(role, before)| row.strips[role] = before),
        }
    }

    /// Which overwritten strips and syndromes fit the checksums of an entry: as they were to be. None of an entry without.
    fn as_announced(&self, row: &Row, entry: &Entry, piece_bytes: u64, columns: Range) -> Vec<bool> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let named: Vec<Role> =
            (0..data).filter(|role| entry.overwritten >> role & 1 == 1).chain(data..strips).collect();
        let mut right = vec![!entry.checksums.is_empty(); strips];
        for (index, sums) in entry.checksums.chunks_exact(named.len()).enumerate() {
            let start = entry.x + index as u64 * piece_bytes;
            let piece = Range::new(start, (start + piece_bytes).min(entry.x + u64::from(entry.len)));
            if piece.intersect(columns).is_empty() {
                continue;
            }
            let whole = columns.contains(piece);
            for (&role, &sum) in named.iter().zip(sums) {
                let matches = |strip: &BufMut| whole && gf::crc32c(&strip[piece.relative(columns.start)]) == sum;
                right[role] &= row.strips[role].as_ref().is_some_and(matches);
            }
        }
        right
    }

    /// Writes syndromes and restated strips where they are not what they should be, and what members that are being
    /// filled should have.
    async fn write_row(&self, unit: UnitIndex, columns: Range, row: Row) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let Row { strips, doubtful } = row;
        let mut strips = strips.into_iter();
        let data: Vec<BufMut> =
            strips.by_ref().take(geometry.data).map(|strip| strip.expect("all are known")).collect();
        let mut before = doubtful;
        for (slot, strip) in before[geometry.data..].iter_mut().zip(strips) {
            *slot = strip;
        }
        let sources: Vec<&[u8]> = data.iter().map(|strip| &**strip).collect();
        let mut syndromes: Vec<BufMut> =
            (0..geometry.syndromes).map(|_| self.env.alloc(columns.len() as usize)).collect();
        self.shared.code.encode(&sources, &mut syndromes.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        let offset = geometry.member_offset(unit, columns.start);
        for (role, strip) in data.into_iter().chain(syndromes).enumerate() {
            let member = geometry.member(unit, columns.start, role);
            let differs = match &before[role] {
                _ if self.drive(member, Some(MemberState::Rebuilding)).is_some() => true,
                Some(before) => **before != *strip,
                // A data strip as it was read, or a strip that could not be: what is written there heals it.
                None => role >= geometry.data,
            };
            self.note_sums(member, offset, &strip).await?;
            if differs {
                self.write(member, offset, strip.freeze(), false).await?;
            }
        }
        Ok(())
    }
}

/// The members of an assembled group as a replay sees them.
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
