//! Reads the members' logs after a crash: returns the records that count, without their payloads.
//!
//! A log can have 64 MiB on each of many members, and most of it is too old to matter. So it is
//! read in windows, a few members at a time. Of each frame only its description is kept, and the
//! location of its payloads. A payload is read again when its record is applied.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use drive::{BlockError, Env, join_all};
use format::log::{Entry, Frame, LogShape, Part};
use format::{BLOCK, MemberState, Region, RoleSet};

use crate::drives::window::{WINDOW_BYTES_MAX, Window};
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::recovery::replay::Replay;

/// Members whose logs are read at the same time. With [`WINDOW_BYTES_MAX`] and the largest frame
/// this bounds the memory.
const MEMBERS_AT_ONCE: usize = 4;

/// A record, assembled from the parts that were found.
pub(crate) struct Record {
    pub stripe_group: StripeGroup,
    pub holders: RoleSet,
    pub in_sync: RoleSet,
    pub entries: Vec<Entry>,
    pub whole: bool,
    /// Completed: its strips are written, data and parity.
    pub completed: bool,
    /// Member offsets of one checksum.
    pub piece_bytes: u64,
    /// Its parts disagree about the record, which no crash can cause.
    pub contradictory: bool,
    /// Locations of the payloads, by role, of the parts that were found.
    pub found: BTreeMap<Role, Payload>,
    /// Payloads by role, once they were fetched.
    pub parts: BTreeMap<Role, Vec<u8>>,
}

impl Record {
    /// Adds the part of a further member. All parts of a record are the same except for their
    /// payloads. If this one differs, the record is contradictory: its payloads do not fit its
    /// entries, so none of it can be applied.
    fn add(&mut self, part: &Part, piece_bytes: u32, role: Role, payload: Payload) {
        let same = self.stripe_group.0 == part.stripe_group
            && self.holders == part.holders
            && self.in_sync == part.in_sync
            && self.whole == part.whole
            && self.piece_bytes == u64::from(piece_bytes)
            && self.entries == part.entries;
        self.contradictory |= !same;
        self.found.insert(role, payload);
    }
}

/// Location of a payload.
#[derive(Clone, Copy)]
pub(crate) struct Payload {
    member: MemberIndex,
    /// Offset on the member.
    offset: u64,
    len: u64,
    /// CRC-32C: makes sure that the second read returns the bytes that the frame's checksum
    /// covered.
    crc32c: u32,
}

/// A frame without the bytes of its payloads.
struct FoundFrame {
    frame: Frame,
    /// One for each part.
    payloads: Vec<Payload>,
}

impl<E: Env> Replay<'_, E> {
    /// All records that count, by stream and sequence.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    pub async fn records(&self) -> Result<BTreeMap<(u32, u64), Record>, BlockError> {
        let geometry = &self.shared.geometry;
        let mut records: BTreeMap<(u32, u64), Record> = BTreeMap::new();
        let mut tails: BTreeMap<u32, Vec<(u64, Vec<u64>)>> = BTreeMap::new();
        let mut silent: Vec<MemberIndex> = Vec::new();
        let live: Vec<MemberIndex> = self.live().into_iter().map(|(member, _)| member).collect();
        for members in live.chunks(MEMBERS_AT_ONCE) {
            let scans = members.iter().map(|&member| async move { (member, self.scan(member).await) });
            for (member, mut scan) in join_all(scans).await {
                if scan.as_ref().is_some_and(|(_, readable)| !readable) {
                    // Not a bad sector, if the drive is gone, or was for a moment.
                    self.look_after(member).await?;
                    scan = self.scan(member).await;
                }
                let Some((frames, readable)) = scan else { continue };
                for FoundFrame { frame, payloads } in frames {
                    let tails = tails.entry(frame.head.stream).or_default();
                    match tails.last_mut() {
                        // Most frames only advance the tail.
                        Some((tail, exceptions)) if exceptions.is_empty() && frame.exceptions.is_empty() => {
                            *tail = frame.head.tail.max(*tail);
                        }
                        _ => tails.push((frame.head.tail, frame.exceptions)),
                    }
                    for (part, payload) in frame.parts.into_iter().zip(payloads) {
                        let key = (frame.head.stream, part.sequence);
                        self.enter(&mut records, key, frame.head.piece_bytes, member, part, payload);
                    }
                }
                if !readable {
                    silent.push(member);
                }
            }
            // Records that need no recovery are removed from memory. The logs of later members may
            // name more of them.
            records.retain(|(stream, sequence), _| !is_done(&tails, *stream, *sequence));
        }
        // Parts that could not be read may still have been written. So a part that is missing on
        // these members says nothing.
        for record in records.values_mut() {
            let offset = record.entries.first().map_or(0, |entry| entry.offset);
            let excused = (0..geometry.strips()).filter(|&role| {
                silent.contains(&geometry.member(record.stripe_group, offset, role))
                    && !record.found.contains_key(&role)
            });
            record.holders = record.holders - excused.collect();
        }
        Ok(records)
    }

    /// Adds a part to its record, unless it belongs elsewhere.
    fn enter(
        &self,
        records: &mut BTreeMap<(u32, u64), Record>,
        key: (u32, u64),
        piece_bytes: u32,
        member: MemberIndex,
        part: Part,
        payload: Payload,
    ) {
        let geometry = &self.shared.geometry;
        let stripe_group = StripeGroup(part.stripe_group);
        if !part.entries.iter().all(|entry| self.is_aligned(entry)) {
            return;
        }
        let role = usize::from(part.role);
        if geometry.member(stripe_group, part.entries.first().map_or(0, |entry| entry.offset), role) != member {
            return;
        }
        match records.entry(key) {
            Slot::Vacant(slot) => {
                let found = BTreeMap::from([(role, payload)]);
                let (piece_bytes, parts) = (piece_bytes.into(), BTreeMap::new());
                let Part { holders, in_sync, entries, whole, .. } = part;
                let generation = self.superblock.log_generation;
                let completed =
                    self.warm.as_ref().is_some_and(|warm| warm.is_completed(generation, key.0 as usize, key.1));
                slot.insert(Record {
                    stripe_group,
                    holders,
                    in_sync,
                    entries,
                    whole,
                    completed,
                    piece_bytes,
                    contradictory: false,
                    found,
                    parts,
                });
            }
            Slot::Occupied(mut slot) => slot.get_mut().add(&part, piece_bytes, role, payload),
        }
    }

    /// Whether an entry consists of whole sectors, like everything that is logged.
    fn is_aligned(&self, entry: &Entry) -> bool {
        (entry.offset | u64::from(entry.len)) & (self.shared.geometry.sector_bytes - 1) == 0
    }

    /// The valid frames in a member's log, and whether all of it could be read. `None` for a member
    /// that is not in sync.
    async fn scan(&self, member: MemberIndex) -> Option<(Vec<FoundFrame>, bool)> {
        let drive = self.drive(member, Some(MemberState::InSync))?;
        let (array, generation) = (&self.superblock.array, self.superblock.log_generation);
        let shape = LogShape::new(&self.superblock.shape, &self.superblock.layout);
        let rings = format::log::rings(&self.superblock.layout, self.superblock.has_intent_log());
        let mut window = Window::new(self.env, drive, rings);
        let mut found = Vec::new();
        let mut at = rings.offset;
        while at < rings.end() {
            let head = window.bytes(at, BLOCK as u64).await;
            let len = Frame::announced_len(head, array, generation, at).filter(|&len| len <= rings.end() - at);
            let frame = match len {
                Some(len) => {
                    let bytes = window.bytes(at, len).await;
                    let frame = Frame::decode(bytes, array, generation, at, &shape).ok();
                    frame.map(|frame| (payloads(member, at, bytes, &frame), frame))
                }
                None => None,
            };
            let Some((payloads, frame)) = frame else {
                at += BLOCK as u64;
                continue;
            };
            at += frame.len as u64;
            found.push(FoundFrame { frame, payloads });
        }
        Some((found, window.readable))
    }

    /// Reads the payloads of a record. A payload that cannot be read again is left out, as if its
    /// member were missing.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    pub async fn fetch(&self, record: &mut Record) -> Result<(), BlockError> {
        let fetched = join_all(record.found.iter().map(|(&role, payload)| async move {
            let mut bytes = self.payload(payload).await;
            if bytes.is_none() {
                // A bad sector is no reason to give up the member. But a drive that is gone, or was
                // for a moment, must not make blocks count as lost.
                self.look_after(payload.member).await?;
                bytes = self.payload(payload).await;
            }
            Ok(bytes.map(|bytes| (role, bytes)))
        }));
        let fetched: Vec<Option<_>> = fetched.await.into_iter().collect::<Result<_, BlockError>>()?;
        record.parts = fetched.into_iter().flatten().collect();
        Ok(())
    }

    /// A payload as it was found, if it can be read again.
    async fn payload(&self, payload: &Payload) -> Option<Vec<u8>> {
        let drive = self.drive(payload.member, Some(MemberState::InSync))?;
        if payload.len == 0 {
            return Some(Vec::new());
        }
        let block = BLOCK as u64;
        let start = payload.offset / block * block;
        let len = (payload.offset + payload.len).next_multiple_of(block) - start;
        let mut window = Window::new(self.env, drive, Region { offset: start, len });
        window.step = WINDOW_BYTES_MAX;
        let bytes = window.bytes(payload.offset, payload.len).await.to_vec();
        (gf::crc32c(&bytes) == payload.crc32c).then_some(bytes)
    }
}

/// Whether a frame of the stream says that the record needs no recovery.
fn is_done(tails: &BTreeMap<u32, Vec<(u64, Vec<u64>)>>, stream: u32, sequence: u64) -> bool {
    let done = |(tail, exceptions): &(u64, Vec<u64>)| sequence < *tail && !exceptions.contains(&sequence);
    tails.get(&stream).is_some_and(|tails| tails.iter().any(done))
}

fn payloads(member: MemberIndex, at: u64, bytes: &[u8], frame: &Frame) -> Vec<Payload> {
    let payload = |part: &Part| {
        let (offset, len) = (at + part.payload.start as u64, part.payload.len() as u64);
        Payload { member, offset, len, crc32c: gf::crc32c(&bytes[part.payload.clone()]) }
    };
    frame.parts.iter().map(payload).collect()
}
