//! Bytes of the group, and frames of its intent log.

use std::collections::BTreeMap;

use format::intent_log::{IntentFrame, intent_region};
use format::{BLOCK, ExtentRecord, ThinVolumeRecord, VolumeKind, VolumeRecord};

use crate::group::Group;
use crate::log::Log;
use crate::map::Map;
use crate::stripe::StripeReader;
use crate::survey::SurveyedDrive;
use crate::walk::Walk;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Reads bytes of the group.
pub(super) struct GroupBytes<'a> {
    group: &'a Group,
    map: &'a Map,
    log: &'a Log,
    pub reader: StripeReader<'a>,
}

impl<'a> GroupBytes<'a> {
    pub fn new(group: &'a Group, drives: &'a [SurveyedDrive], map: &'a Map, log: &'a Log) -> Self {
        GroupBytes { group, map, log, reader: StripeReader::new(group, drives, log) }
    }

    /// Bytes from `address` on. `None` if some of them are lost.
    pub fn read(&mut self, address: u64, len: u64) -> Option<Vec<u8>> {
        let start = address / BLOCK_BYTES * BLOCK_BYTES;
        let range = range(start, (address + len).next_multiple_of(BLOCK_BYTES) - start);
        let mut bytes = vec![0; range.size_bytes as usize];
        let mut is_whole = true;
        for piece in Walk::new(self.group, self.map, &self.log.lost, &range) {
            let part = &mut bytes[piece.start as usize..(piece.start + piece.len) as usize];
            match piece.written {
                Some(false) => {}
                Some(true) => self.reader.read(piece.at, piece.strip, part, &mut |_, _| is_whole = false),
                None => is_whole = false,
            }
        }
        let from = (address - start) as usize;
        is_whole.then(|| bytes[from..from + len as usize].to_vec())
    }

    /// Whether too many members are missing for some of the bytes from `address` on.
    pub fn is_any_lost(&self, address: u64, len: u64) -> bool {
        let start = address / BLOCK_BYTES * BLOCK_BYTES;
        let range = range(start, (address + len).next_multiple_of(BLOCK_BYTES) - start);
        Walk::new(self.group, self.map, &self.log.lost, &range).any(|piece| piece.is_lost(self.group))
    }

    /// Whether content can be lost because of missing members, or of damage to the group's map.
    pub fn may_be_lost(&self) -> bool {
        self.group.lacks_data() || !self.log.lost.is_empty() || !self.map.is_whole()
    }

    /// Whether any chunk of a range was written, or may have been.
    pub fn is_any_written(&self, address: u64, len: u64) -> bool {
        Walk::new(self.group, self.map, &self.log.lost, &range(address, len)).any(|piece| piece.written != Some(false))
    }

    /// Whether all chunks of a range were written.
    pub fn is_all_written(&self, address: u64, len: u64) -> bool {
        Walk::new(self.group, self.map, &self.log.lost, &range(address, len)).all(|piece| piece.written != Some(false))
    }
}

/// A range of the group, as a volume.
fn range(start_byte: u64, len_bytes: u64) -> VolumeRecord {
    let extents = vec![ExtentRecord { start_byte, len_bytes }];
    let kind = VolumeKind::Direct;
    VolumeRecord {
        id: 0,
        name: String::new(),
        kind,
        size_bytes: len_bytes,
        created_unix_s: 0,
        extents,
        thin: ThinVolumeRecord::default(),
        conversion: None,
    }
}

/// A frame: generation, stream, and number in the stream.
pub(super) type FrameId = (u64, u32, u64);

/// The bodies of the frames of a generation, or of all, each once, from any copy that can be read.
pub(super) fn frames(group: &Group, drives: &[SurveyedDrive], generation: Option<u64>) -> BTreeMap<FrameId, Vec<u8>> {
    let mut bodies: BTreeMap<FrameId, Vec<u8>> = BTreeMap::new();
    let superblock = &group.superblock;
    if !superblock.has_intent_log() {
        return bodies;
    }
    let region = intent_region(&superblock.layout);
    for slot in group.present().filter(|&slot| group.is_in_sync(slot)) {
        let mut bytes = vec![0; usize::try_from(region.len).expect("a log fits memory")];
        if group.read(drives, slot, region.offset, &mut bytes).is_err() {
            for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
                if group.read(drives, slot, region.offset + (index * BLOCK) as u64, block).is_err() {
                    block.fill(0);
                }
            }
        }
        let mut at = 0;
        while at < bytes.len() {
            let (rest, offset) = (&bytes[at..], region.offset + at as u64);
            let generation = generation.or_else(|| IntentFrame::announced_generation(rest, &superblock.array));
            let frame = generation.map(|generation| IntentFrame::decode(rest, &superblock.array, generation, offset));
            if let Some(Ok(frame)) = frame {
                let id = (frame.head.generation, frame.head.stream, frame.head.sequence);
                bodies.entry(id).or_insert_with(|| rest[frame.body.clone()].to_vec());
                at += frame.len;
            } else {
                at += BLOCK;
            }
        }
    }
    bodies
}
