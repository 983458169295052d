//! The log of writes that were in progress: docs/format/log.md, up to step 3 of "Recovery".

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use format::log::{
    Entry, Frame, FrameError, LOST_SLOT_BYTES, LOST_SLOTS, LogShape, LostBlocks, LostError, Part, lost_slot_offset,
    rings,
};
use format::{BLOCK, CrashSafety, RoleSet};
use serde::{Deserialize, Serialize};

use crate::drive::plain;
use crate::finding::{Finding, Structure};
use crate::group::Group;
use crate::map::names;
use crate::survey::SurveyedDrive;

/// Counts of a group's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogCount {
    /// Intact frames of the current generation on all members.
    pub frame_count: u64,
    /// Records with parts in these frames.
    pub record_count: u64,
    /// How many of these records matter to a reader: the group was not stopped in order, and their
    /// writes may be incomplete.
    pub live_record_count: u64,
    /// Ranges of the group that were lost in a crash and not written again.
    pub lost_range_count: u64,
}

/// Member offsets of a stripe whose write was in progress.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    /// Position of the entry's first member offset, from the start of the data region.
    pub start: u64,
    /// Member offsets per checksum, counted from `start`.
    pub piece: u64,
    /// The entry of the record.
    pub entry: Rc<Entry>,
    /// The payloads hold the new content of their strips, instead of partial parity.
    pub whole: bool,
    /// The payloads that were found, by strip number, data first. Each is as long as the entry.
    pub payloads: Rc<BTreeMap<usize, Vec<u8>>>,
}

impl Live {
    /// An entry that only says that older records for these member offsets do not apply any more.
    fn void(start: u64, entry: Entry) -> Live {
        Live { start, piece: BLOCK as u64, entry: Rc::new(entry), whole: false, payloads: Rc::default() }
    }
}

/// The part of a group's log that matters to a reader.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// By set and first member offset, with the end. The ranges do not overlap.
    live: BTreeMap<(u64, u64), (u64, Live)>,
    /// Ranges of the group whose content is unknown: offset and length.
    pub lost: Vec<(u64, u64)>,
    pub count: LogCount,
}

/// A record, assembled from the parts on its holders.
struct Record {
    stripe_group: u64,
    holders: RoleSet,
    in_sync: RoleSet,
    piece: u64,
    whole: bool,
    entries: Vec<Entry>,
    /// Its parts disagree about the record, which no crash can cause.
    contradictory: bool,
    /// The payload of each role that was found.
    parts: BTreeMap<usize, Vec<u8>>,
}

impl Record {
    /// Whether a part agrees with the record's first part.
    fn says(&self, part: &Part, piece: u64) -> bool {
        (self.stripe_group, self.holders, self.in_sync) == (part.stripe_group, part.holders, part.in_sync)
            && (self.piece, self.whole) == (piece, part.whole)
            && self.entries == part.entries
    }
}

impl Log {
    /// Reads the logs and lists of lost blocks of all members, and reports their defects.
    pub(crate) fn read(group: &Group, drives: &[SurveyedDrive], findings: &mut Vec<Finding>) -> Log {
        let mut log = Log { lost: read_lost(group, drives, findings), ..Log::default() };
        log.count.lost_range_count = log.lost.len() as u64;
        let superblock = &group.superblock;
        if superblock.crash_safety == CrashSafety::Off {
            return log;
        }
        let mut scan =
            Scan { records: BTreeMap::new(), tails: BTreeMap::new(), frames: 0, unreadable: BTreeSet::new() };
        for slot in group.present().filter(|&slot| group.is_in_sync(slot)) {
            scan.member(group, drives, slot, findings);
        }
        log.count.frame_count = scan.frames;
        log.count.record_count = scan.records.len() as u64;
        for ((stream, sequence), _) in scan.records.iter().filter(|(_, record)| record.contradictory) {
            let message = format!("the parts of record {sequence} of stream {stream} contradict each other");
            findings.push(Finding::group(group, Structure::Log, message));
        }
        if !superblock.clean {
            log.keep_live(group, scan);
        }
        log
    }

    /// The length of the first part of a range that is covered by a single record, or by none, and
    /// that record.
    pub(crate) fn at(&self, set: u64, offset: u64, len: u64) -> (u64, Option<&Live>) {
        let before = self.live.range((set, 0)..=(set, offset)).next_back();
        if let Some((_, (end, live))) = before.filter(|(_, (end, _))| *end > offset) {
            return (len.min(end - offset), Some(live));
        }
        let next = self.live.range((set, offset)..(set, offset + len)).next();
        (next.map_or(len, |((_, start), _)| start - offset), None)
    }

    fn keep_live(&mut self, group: &Group, scan: Scan) {
        let geometry = &group.geometry;
        let stripe_group_bytes = geometry.chunk.max(geometry.strip);
        // In order of sequence within each stripe group, so newer records replace older ones.
        for ((stream, sequence), record) in scan.records {
            let (set, start) =
                (record.stripe_group % geometry.sets, record.stripe_group / geometry.sets * stripe_group_bytes);
            let Some(first) = record.entries.first() else { continue };
            let slot_of = |role: usize| geometry.slot_of(set, start + first.offset, role);
            let lacks = |role: usize| {
                let slot = slot_of(role);
                group.is_in_sync(slot) && !scan.unreadable.contains(&slot) && !record.parts.contains_key(&role)
            };
            let mut holders = (0..geometry.width).filter(|&role| record.holders.contains(role));
            // A member that is in sync now but was not then was rebuilt since. So the record's
            // write was completed long ago.
            let mut others = (0..geometry.width).filter(|&role| !record.in_sync.contains(role));
            let tails = scan.tails.get(&stream).map_or(&[][..], |tails| tails);
            let is_done = tails.iter().any(|(tail, except)| sequence < *tail && !except.contains(&sequence));
            if is_done || holders.any(lacks) || others.any(|role| group.is_in_sync(slot_of(role))) {
                continue;
            }
            self.count.live_record_count += 1;
            let mut payload_at = 0;
            for mut entry in record.entries {
                if record.contradictory {
                    // Its payloads do not fit its entries. It is kept only to prevent older records
                    // from being applied.
                    (entry.overwritten, entry.in_parity) = (RoleSet::EMPTY, RoleSet::EMPTY);
                    let (from, end) = (start + entry.offset, start + entry.offset + u64::from(entry.len));
                    self.replace(set, from, end, Live::void(from, entry));
                    continue;
                }
                let len = entry.len as usize;
                let payload_len = |role| entry.payload_len(role, record.whole, geometry.data_count);
                // If all data strips are overwritten, the partial parity is zero.
                let payload = |role: usize, payload: &Vec<u8>| match payload_len(role as u16) {
                    0 => vec![0; len],
                    payload_len => payload[payload_at..payload_at + payload_len].to_vec(),
                };
                let payloads = record.parts.iter().map(|(role, bytes)| (*role, payload(*role, bytes))).collect();
                let in_payload = payload_len(geometry.data_count as u16);
                let live = Live {
                    start: start + entry.offset,
                    piece: record.piece,
                    whole: record.whole,
                    payloads: Rc::new(payloads),
                    entry: Rc::new(entry),
                };
                payload_at += in_payload;
                self.replace(set, live.start, live.start + len as u64, live);
            }
        }
        // An entry that overwrites nothing only replaces older ones.
        self.live.retain(|_, (_, live)| !live.entry.is_void());
    }

    /// Makes a record the only one that counts for a range.
    fn replace(&mut self, set: u64, start: u64, end: u64, live: Live) {
        let overlapping: Vec<(u64, u64)> = self
            .live
            .range((set, 0)..(set, end))
            .filter(|(_, (other_end, _))| *other_end > start)
            .map(|(key, _)| *key)
            .collect();
        for key in overlapping {
            let (other_end, other) = self.live.remove(&key).expect("it was found");
            if key.1 < start {
                self.live.insert(key, (start, other.clone()));
            }
            if other_end > end {
                self.live.insert((set, end), (other_end, other));
            }
        }
        self.live.insert((set, start), (end, live));
    }
}

struct Scan {
    /// By stream and sequence.
    records: BTreeMap<(u32, u64), Record>,
    /// For each stream, the tail and the exceptions of each frame: records below the tail need no
    /// recovery, except for these.
    tails: BTreeMap<u32, Vec<(u64, Vec<u64>)>>,
    frames: u64,
    /// Members whose log could not be read completely.
    unreadable: BTreeSet<usize>,
}

impl Scan {
    /// Searches a member's log for frames.
    fn member(&mut self, group: &Group, drives: &[SurveyedDrive], slot: usize, findings: &mut Vec<Finding>) {
        let superblock = &group.superblock;
        let region = rings(&superblock.layout, superblock.has_intent_log());
        let mut bytes = vec![0; usize::try_from(region.len).expect("a log fits memory")];
        if group.read(drives, slot, region.offset, &mut bytes).is_err() {
            for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
                let offset = region.offset + (index * BLOCK) as u64;
                if let Err(error) = group.read(drives, slot, offset, block) {
                    block.fill(0);
                    self.unreadable.insert(slot);
                    let message = format!("the log cannot be read: {}", plain(&error));
                    let finding = Finding::member(group, drives, slot, Structure::Log, message);
                    finding.at(offset, BLOCK as u64).add_to(findings);
                }
            }
        }
        let shape = LogShape::new(&superblock.shape, &superblock.layout);
        let mut at = 0;
        while at < bytes.len() {
            let offset = region.offset + at as u64;
            let rest = &bytes[at..];
            match Frame::decode(rest, &superblock.array, superblock.log_generation, offset, &shape) {
                Ok(frame) => {
                    self.take(&frame, rest);
                    at += frame.len;
                    continue;
                }
                Err(error @ (FrameError::UnknownVersion { .. } | FrameError::Invalid { .. })) => {
                    let finding = Finding::member(group, drives, slot, Structure::Log, error.to_string());
                    findings.push(finding.at(offset, BLOCK as u64));
                }
                Err(_) => {}
            }
            at += BLOCK;
        }
    }

    fn take(&mut self, frame: &Frame, bytes: &[u8]) {
        self.frames += 1;
        self.tails.entry(frame.head.stream).or_default().push((frame.head.tail, frame.exceptions.clone()));
        let piece = u64::from(frame.head.piece_bytes);
        for part in &frame.parts {
            let record = self.records.entry((frame.head.stream, part.sequence)).or_insert_with(|| Record {
                stripe_group: part.stripe_group,
                holders: part.holders,
                in_sync: part.in_sync,
                piece,
                whole: part.whole,
                entries: part.entries.clone(),
                contradictory: false,
                parts: BTreeMap::new(),
            });
            record.contradictory |= !record.says(part, piece);
            record.parts.insert(usize::from(part.role), bytes[part.payload.clone()].to_vec());
        }
    }
}

/// The list of lost blocks: the valid copy with the highest sequence.
pub(crate) fn read_lost(group: &Group, drives: &[SurveyedDrive], findings: &mut Vec<Finding>) -> Vec<(u64, u64)> {
    let superblock = &group.superblock;
    let mut newest = LostBlocks::default();
    for slot in group.present() {
        for number in 0..LOST_SLOTS {
            let offset = lost_slot_offset(&superblock.layout, number);
            let mut bytes = vec![0; LOST_SLOT_BYTES];
            let message = match group.read(drives, slot, offset, &mut bytes) {
                Err(error) => format!("cannot be read: {}", plain(&error)),
                Ok(()) => match LostBlocks::decode(&bytes, &superblock.array) {
                    Ok(list) => {
                        newest = if list.sequence > newest.sequence { list } else { newest };
                        continue;
                    }
                    Err(LostError::OtherArray) => continue,
                    Err(LostError::NotAList | LostError::Checksum) if !names(&bytes, &superblock.array) => continue,
                    Err(error) => error.to_string(),
                },
            };
            let name = if number == 0 { 'A' } else { 'B' };
            let message = format!("slot {name} of the list of lost blocks: {message}");
            let finding = Finding::member(group, drives, slot, Structure::Log, message);
            findings.push(finding.at(offset, LOST_SLOT_BYTES as u64));
        }
    }
    newest.ranges
}
