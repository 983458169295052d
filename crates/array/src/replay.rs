//! Replaying the log after a crash: puts every stripe right whose writing was interrupted, before anybody reads.
//!
//! `docs/format/log.md`, "Recovery", has the rules. Nothing here has to be atomic: every step can be done again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::log::{Entry, Frame, LOST_RANGES_MAX, LOST_SLOTS, LostBlocks, Part, lost_slot_offset};
use format::{BLOCK, MemberState, Superblock};

use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::leader::{flush_retried, write_retried};
use crate::lost::normalized;
use crate::ranges::{Range, Ranges};
use crate::shared::Shared;

/// How much of a ring is read by one operation.
const READ_BYTES: u64 = 1 << 20;

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

/// A record, put together from the parts that were found.
struct Record {
    unit: UnitIndex,
    holders: u64,
    in_sync: u64,
    entries: Vec<Entry>,
    whole: bool,
    /// Columns of one checksum.
    piece_bytes: u64,
    /// Payloads by role.
    parts: BTreeMap<Role, Vec<u8>>,
}

/// A stripe's strips over some columns.
struct Row {
    /// By role; `None` if it could not be read or its member is not in sync.
    strips: Vec<Option<BufMut>>,
    /// By role: read, but not to be believed.
    doubtful: Vec<Option<BufMut>>,
}

/// A member's drive and state, if it is there.
pub(crate) type Present<'a, D> = Option<(&'a D, MemberState)>;

pub(crate) struct Replay<'a, E: Env> {
    pub env: &'a E,
    pub superblock: &'a Superblock,
    pub shared: &'a Shared,
    /// The drives by member, with their states. Missing ones, and those that fail during the replay, are `None`.
    pub members: RefCell<Vec<Present<'a, E::Drive>>>,
    /// The list of lost blocks, as the members have it.
    pub lost: RefCell<LostBlocks>,
}

impl<E: Env> Replay<'_, E> {
    /// Replays the whole log and makes the result durable.
    ///
    /// # Errors
    /// [`BlockError`] if more members fail than the level survives: what was done can be done again.
    pub async fn run(&self) -> Result<Replayed, BlockError> {
        let mut done = Replayed::default();
        let before = self.live();
        let mut covered: BTreeMap<UnitIndex, Ranges> = BTreeMap::new();
        // The newest first, so that older ones find what is covered.
        for ((_, _), record) in self.records().await.into_iter().rev() {
            if !self.is_complete(&record) {
                continue;
            }
            let mut offset = 0;
            for entry in &record.entries {
                let range = Range::new(entry.x, entry.x + u64::from(entry.len));
                let covered = covered.entry(record.unit).or_default();
                let open = covered.gaps(range);
                covered.add(range);
                for open in open.iter().filter(|_| !entry.is_void()) {
                    for columns in self.allocated(record.unit, open).iter() {
                        self.put_right(&record, entry, offset, columns, &mut done).await?;
                        done.bytes += columns.len();
                    }
                }
                let has_payload = record.whole || entry.has_base(self.shared.geometry.data);
                offset += if has_payload { entry.len as usize } else { 0 };
            }
            done.records += 1;
        }
        if done.bytes > 0 {
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
    fn drive(&self, member: MemberIndex, wanted: Option<MemberState>) -> Option<&E::Drive> {
        let (drive, state) = self.members.borrow()[usize::from(member.0)]?;
        wanted.is_none_or(|wanted| wanted == state).then_some(drive)
    }

    /// The members that are there, whatever they are worth.
    fn live(&self) -> Vec<(MemberIndex, &E::Drive)> {
        let count = self.members.borrow().len() as u16;
        (0..count).map(MemberIndex).filter_map(|member| Some((member, self.drive(member, None)?))).collect()
    }

    /// Goes on without a member that failed.
    fn give_up(&self, member: MemberIndex) -> Result<(), BlockError> {
        self.members.borrow_mut()[usize::from(member.0)] = None;
        let (strips, survives) = (self.shared.geometry.strips(), self.shared.geometry.syndromes);
        let first = usize::from(member.0) / strips * strips;
        let members = &self.members.borrow()[first..first + strips];
        let lost = members.iter().filter(|member| !matches!(member, Some((_, MemberState::InSync)))).count();
        if lost > survives { Err(BlockError::Lost { lost, survives }) } else { Ok(()) }
    }

    /// Writes to a member, twice if need be. Without success the member is given up.
    async fn write(&self, member: MemberIndex, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        match write_retried(drive, offset, data, fua).await {
            Ok(()) => Ok(()),
            Err(_) => self.give_up(member),
        }
    }

    /// All records that count, by stream and sequence.
    async fn records(&self) -> BTreeMap<(u32, u64), Record> {
        let geometry = &self.shared.geometry;
        let rings = format::log::rings(&self.superblock.layout);
        let mut records: BTreeMap<(u32, u64), Record> = BTreeMap::new();
        let mut tails: BTreeMap<u32, Vec<(u64, Vec<u64>)>> = BTreeMap::new();
        let mut silent: Vec<MemberIndex> = Vec::new();
        for (member, _) in self.live() {
            let Some(drive) = self.drive(member, Some(MemberState::InSync)) else { continue };
            let (bytes, readable) = self.read_rings(drive).await;
            let mut at = 0;
            while at < bytes.len() {
                let offset = rings.offset + at as u64;
                let stripes = (geometry.data, geometry.strips());
                let array = &self.superblock.array;
                let frame = Frame::decode(&bytes[at..], array, self.superblock.log_generation, offset, stripes);
                let Ok(frame) = frame else {
                    at += BLOCK;
                    continue;
                };
                let tails = tails.entry(frame.head.stream).or_default();
                match tails.last_mut() {
                    // Most frames only move the tail on.
                    Some((tail, exceptions)) if exceptions.is_empty() && frame.exceptions.is_empty() => {
                        *tail = frame.head.tail.max(*tail);
                    }
                    _ => tails.push((frame.head.tail, frame.exceptions)),
                }
                for part in frame.parts {
                    let unit = UnitIndex(part.unit);
                    if unit.0 >= geometry.unit_count() || !part.entries.iter().all(|entry| self.fits(entry)) {
                        continue;
                    }
                    let role = usize::from(part.role);
                    if geometry.member(unit, part.entries.first().map_or(0, |entry| entry.x), role) != member {
                        continue;
                    }
                    let payload = bytes[at..][part.payload.clone()].to_vec();
                    match records.entry((frame.head.stream, part.sequence)) {
                        Slot::Vacant(slot) => {
                            let parts = BTreeMap::from([(role, payload)]);
                            let piece_bytes = frame.head.piece_bytes.into();
                            let Part { holders, in_sync, entries, whole, .. } = part;
                            slot.insert(Record { unit, holders, in_sync, entries, whole, piece_bytes, parts });
                        }
                        Slot::Occupied(mut slot) => {
                            slot.get_mut().parts.insert(role, payload);
                        }
                    }
                }
                at += frame.len;
            }
            if !readable {
                silent.push(member);
            }
        }
        // What could not be read may have been written all the same: the silence of these members says nothing.
        for record in records.values_mut() {
            let x = record.entries.first().map_or(0, |entry| entry.x);
            let excused = (0..geometry.strips()).filter(|&role| {
                silent.contains(&geometry.member(record.unit, x, role)) && !record.parts.contains_key(&role)
            });
            record.holders &= !excused.fold(0, |bits, role| bits | 1 << role);
        }
        records.retain(|(stream, sequence), _| {
            let done = |(tail, exceptions): &(u64, Vec<u64>)| sequence < tail && !exceptions.contains(sequence);
            !tails.get(stream).is_some_and(|tails| tails.iter().any(done))
        });
        records
    }

    /// An entry lies within one row of a unit, as everything that is logged does.
    fn fits(&self, entry: &Entry) -> bool {
        let geometry = &self.shared.geometry;
        let end = entry.x + u64::from(entry.len);
        let aligned = (entry.x | end) & (geometry.sector - 1) == 0;
        aligned && end <= geometry.unit && entry.x / geometry.strip == (end - 1) / geometry.strip
    }

    /// The bytes of a member's rings; what cannot be read is zero. Says whether all of it could be.
    async fn read_rings(&self, drive: &E::Drive) -> (Vec<u8>, bool) {
        let rings = format::log::rings(&self.superblock.layout);
        let mut bytes = vec![0; rings.len as usize];
        let mut readable = true;
        for (index, chunk) in bytes.chunks_mut(READ_BYTES as usize).enumerate() {
            let offset = rings.offset + index as u64 * READ_BYTES;
            if let Ok(read) = drive.read(offset, self.env.alloc(chunk.len())).await {
                chunk.copy_from_slice(&read);
                continue;
            }
            for (index, block) in chunk.chunks_mut(BLOCK).enumerate() {
                match drive.read(offset + (index * BLOCK) as u64, self.env.alloc(BLOCK)).await {
                    Ok(read) => block.copy_from_slice(&read),
                    Err(_) => readable = false,
                }
            }
        }
        (bytes, readable)
    }

    /// Every holder that is there has its part: if not, the record was never complete, and nothing was overwritten. And
    /// no member has been filled since: else the record is long done with.
    fn is_complete(&self, record: &Record) -> bool {
        let geometry = &self.shared.geometry;
        let x = record.entries.first().map_or(0, |entry| entry.x);
        let is_named = |bits: u64, role: Role| bits >> role & 1 == 1;
        (0..geometry.strips()).all(|role| {
            let there = self.drive(geometry.member(record.unit, x, role), Some(MemberState::InSync)).is_some();
            let silent = is_named(record.holders, role) && !record.parts.contains_key(&role);
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
        let mut row = self.read_row(record.unit, columns, entry.restated).await;
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
        let lost: Vec<Role> = (0..data).filter(|&role| overwritten(role) && row.strips[role].is_none()).collect();
        if !lost.is_empty() && unknown.is_empty() {
            let alone = entry.overwritten.count_ones() == 1 && entry.restated == 0;
            let syndromes: Vec<Role> = match alone {
                true => (data..strips).filter(|&role| row.strips[role].is_some()).take(1).collect(),
                false => self.verified(&row, entry, record.piece_bytes, columns),
            };
            match self.by_syndromes(&row, &lost, &syndromes, columns) {
                Some(solved) => {
                    for (role, strip) in lost.into_iter().zip(solved) {
                        row.strips[role] = Some(strip);
                    }
                }
                None => unknown.extend(lost),
            }
        } else {
            unknown.extend(lost);
        }
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
        let mut row = self.read_row(record.unit, columns, entry.restated).await;
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
        list.ranges = normalized(list.ranges.into_iter().chain(ranges).collect());
        if list.ranges.len() > LOST_RANGES_MAX {
            return Err(BlockError::NoSpace);
        }
        let bytes = BufMut::copy_of(&list.encode(&self.superblock.array)).freeze();
        let offset = lost_slot_offset(&self.superblock.layout, list.sequence % LOST_SLOTS);
        for (member, _) in self.live() {
            self.write(member, offset, bytes.clone(), true).await?;
        }
        self.lost.replace(list);
        Ok(())
    }

    async fn read_row(&self, unit: UnitIndex, columns: Range, restated: u64) -> Row {
        let geometry = &self.shared.geometry;
        let offset = geometry.member_offset(unit, columns.start);
        let read = |role: Role| {
            let drive = self.drive(geometry.member(unit, columns.start, role), Some(MemberState::InSync));
            async move { drive?.read(offset, self.env.alloc(columns.len() as usize)).await.ok() }
        };
        let mut strips: Vec<Option<BufMut>> = join_all((0..geometry.strips()).map(read)).await;
        let take =
            |(role, strip): (Role, &mut Option<BufMut>)| if restated >> role & 1 == 1 { strip.take() } else { None };
        let doubtful = strips.iter_mut().enumerate().map(take).collect();
        Row { strips, doubtful }
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

    fn solve<'b>(&self, wanted: &[Role], source: impl Fn(Role) -> Option<&'b [u8]>, len: usize) -> Option<Vec<BufMut>> {
        let lost: Vec<Role> = (0..self.shared.geometry.strips()).filter(|&role| source(role).is_none()).collect();
        let decoder = self.shared.code.decoder_for(&lost, wanted).ok()?;
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&role| source(role)).collect::<Option<_>>()?;
        let mut out: Vec<BufMut> = wanted.iter().map(|_| self.env.alloc(len)).collect();
        decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        Some(out)
    }

    /// The syndromes that are the new ones, if every overwritten strip that is there is new as well; else none.
    fn verified(&self, row: &Row, entry: &Entry, piece_bytes: u64, columns: Range) -> Vec<Role> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let named: Vec<Role> =
            (0..data).filter(|role| entry.overwritten >> role & 1 == 1).chain(data..strips).collect();
        let mut right = vec![true; strips];
        for (index, sums) in entry.checksums.chunks_exact(named.len()).enumerate() {
            let start = entry.x + index as u64 * piece_bytes;
            let piece = Range::new(start, (start + piece_bytes).min(entry.x + u64::from(entry.len)));
            if piece.intersect(columns).is_empty() {
                continue;
            }
            let whole = columns.contains(piece);
            for (&role, &sum) in named.iter().zip(sums) {
                let strip = row.strips[role].as_deref();
                let matches = |strip: &[u8]| whole && crc32c::crc32c(&strip[piece.relative(columns.start)]) == sum;
                right[role] &= match strip {
                    Some(strip) => matches(strip),
                    None => role < data,
                };
            }
        }
        if entry.checksums.is_empty() || !named.iter().filter(|&&role| role < data).all(|&role| right[role]) {
            return Vec::new();
        }
        (data..strips).filter(|&role| right[role]).collect()
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
