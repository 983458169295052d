//! The allocation map, from all copies: docs/format/map.md.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::{BLOCK, CHUNKS_PER_MAP_BLOCK, MAP_SLOTS, MapBlock, MapError, Uuid, map_block_count, map_slot_offset};

use crate::drive::plain;
use crate::finding::{Finding, Structure};
use crate::group::Group;
use crate::survey::SurveyedDrive;

/// Map blocks that are read at once from each member.
const BLOCKS_AT_ONCE: u64 = 128;

/// Which allocation chunks were ever written.
pub(crate) struct Map {
    /// The blocks with a valid copy, by index. The memory used depends on the drives' content, not
    /// on the size that the superblock states.
    blocks: BTreeMap<u64, MapBlock>,
    /// Blocks whose existing copies are all damaged. Their content is unknown.
    unknown: BTreeSet<u64>,
    /// From this block on, no member is large enough to hold a copy.
    end: u64,
    /// Number of blocks of the group's map.
    count: u64,
    /// Blocks with damaged copies and no valid one that count as never written: torn first writes.
    pub torn: u64,
    /// Valid copies on all members.
    pub copies: u64,
}

/// State of one slot of a block.
enum Slot {
    Valid(Box<MapBlock>),
    /// Never written for this group.
    Absent,
    /// Invalid, with the reason.
    Bad(String),
    /// Beyond the end of a member that was cut off.
    CutOff,
}

impl Map {
    /// Reads every copy and reports the damage of each.
    pub(crate) fn read(group: &Group, drives: &[SurveyedDrive], findings: &mut Vec<Finding>) -> Map {
        let layout = &group.superblock.layout;
        let count = map_block_count(layout.chunk_count);
        let of_bytes = |bytes: u64| (bytes / (MAP_SLOTS * BLOCK as u64)).min(count);
        let end = of_bytes(group.held(drives, layout.map.offset, layout.map.len));
        for member in group.present() {
            let held = of_bytes(group.held_by(drives, member, layout.map.offset, layout.map.len));
            if held < count {
                let message = format!("the allocation map is cut off: blocks {held} to {} are not there", count - 1);
                let finding = Finding::member(group, drives, member, Structure::Map, message);
                let offset = map_slot_offset(layout, held, 0);
                findings.push(finding.at(offset, layout.map.end() - offset));
            }
        }
        let (blocks, unknown) = (BTreeMap::new(), BTreeSet::new());
        let mut map = Map { blocks, unknown, end, count, torn: 0, copies: 0 };
        for first in (0..end).step_by(BLOCKS_AT_ONCE as usize) {
            map.read_part(group, drives, first..end.min(first + BLOCKS_AT_ONCE), findings);
        }
        map
    }

    /// If no chunk from `chunk` on to the end of its map block was ever written: the first chunk of
    /// the next map block.
    pub(crate) fn unwritten_up_to(&self, chunk: u64) -> Option<u64> {
        let block = chunk / CHUNKS_PER_MAP_BLOCK;
        let is_empty = block < self.end && !self.unknown.contains(&block) && !self.blocks.contains_key(&block);
        is_empty.then_some((block + 1) * CHUNKS_PER_MAP_BLOCK)
    }

    /// Whether a chunk was written; `None` if that is unknown.
    pub(crate) fn is_written(&self, chunk: u64) -> Option<bool> {
        let block = chunk / CHUNKS_PER_MAP_BLOCK;
        let is_set = |block: &MapBlock| block.is_set(chunk % CHUNKS_PER_MAP_BLOCK);
        let is_known = block < self.end && !self.unknown.contains(&block);
        is_known.then(|| self.blocks.get(&block).is_some_and(is_set))
    }

    /// Whether it is known of every chunk whether it was written.
    pub(crate) fn is_whole(&self) -> bool {
        self.unknown.is_empty() && self.end == self.count
    }

    /// Blocks of the map.
    pub(crate) fn block_count(&self) -> u64 {
        self.count
    }

    fn read_part(&mut self, group: &Group, drives: &[SurveyedDrive], part: Range<u64>, findings: &mut Vec<Finding>) {
        let slots: Vec<(usize, Vec<Slot>)> =
            group.present().map(|member| (member, read_slots(group, drives, member, &part))).collect();
        for index in part.clone() {
            let at = (index - part.start) as usize * MAP_SLOTS as usize;
            let of_block = |slots: &[Slot]| at..(at + MAP_SLOTS as usize).min(slots.len());
            let mut newest: Option<&MapBlock> = None;
            let mut is_any_bad = false;
            for (member, slots) in &slots {
                for (number, slot) in slots[of_block(slots)].iter().enumerate() {
                    match slot {
                        Slot::Absent | Slot::CutOff => {}
                        Slot::Valid(block) => {
                            self.copies += 1;
                            if newest.is_none_or(|other| other.sequence < block.sequence) {
                                newest = Some(block);
                            }
                        }
                        Slot::Bad(why) => {
                            is_any_bad = true;
                            let name = slot_name(number);
                            let message = format!("slot {name} of map block {index}: {why}");
                            let finding = Finding::member(group, drives, *member, Structure::Map, message);
                            let offset = map_slot_offset(&group.superblock.layout, index, number as u64);
                            findings.push(finding.at(offset, BLOCK as u64));
                        }
                    }
                }
            }
            if let Some(newest) = newest {
                for (member, slots) in &slots {
                    let own = &slots[of_block(slots)];
                    compare(group, drives, *member, newest, own, findings);
                }
                self.check_end(group, newest, findings);
                self.blocks.insert(index, newest.clone());
            } else if is_any_bad {
                let pairs = slots.iter().map(|(_, slots)| &slots[of_block(slots)]);
                if could_be_torn(group, pairs) {
                    self.torn += 1;
                    continue;
                }
                self.unknown.insert(index);
                let message = format!(
                    "map block {index} has no valid copy left: which of its allocation chunks hold data is not known"
                );
                findings.push(Finding::group(group, Structure::Map, message));
            }
        }
    }

    /// Reports bits past the last allocation chunk of the group, which must be zero.
    fn check_end(&self, group: &Group, block: &MapBlock, findings: &mut Vec<Finding>) {
        let chunks = group.superblock.layout.chunk_count - block.index * CHUNKS_PER_MAP_BLOCK;
        if (chunks.min(CHUNKS_PER_MAP_BLOCK)..CHUNKS_PER_MAP_BLOCK).any(|chunk| block.is_set(chunk)) {
            let message = format!("map block {} has bits behind the last allocation chunk of the group", block.index);
            findings.push(Finding::group(group, Structure::Map, message));
        }
    }
}

/// Whether the damaged copies of a block without any valid copy can come from a first write that a
/// crash tore. A block is intact on every member before data relies on it. So after a torn first
/// write, some member has no damaged slot; or, if the group was not stopped in order, each member
/// has at most one.
fn could_be_torn<'a>(group: &Group, members: impl Iterator<Item = &'a [Slot]> + Clone) -> bool {
    let bad = |slots: &[Slot]| slots.iter().filter(|slot| matches!(slot, Slot::Bad(_))).count();
    let is_absent_somewhere = members.clone().any(|slots| bad(slots) == 0);
    is_absent_somewhere || (!group.superblock.clean && members.clone().all(|slots| bad(slots) <= 1))
}

fn slot_name(number: usize) -> char {
    if number == 0 { 'A' } else { 'B' }
}

/// Reports a member that lacks the newest copy of a block, or whose copy differs.
fn compare(
    group: &Group,
    drives: &[SurveyedDrive],
    member: usize,
    newest: &MapBlock,
    slots: &[Slot],
    findings: &mut Vec<Finding>,
) {
    let index = newest.index;
    let own = slots
        .iter()
        .enumerate()
        .filter_map(|(number, slot)| match slot {
            Slot::Valid(block) => Some((number, block)),
            Slot::Absent | Slot::Bad(_) | Slot::CutOff => None,
        })
        .max_by_key(|(_, block)| block.sequence);
    let offset = |number: usize| map_slot_offset(&group.superblock.layout, index, number as u64);
    let message = match own {
        Some((_, block)) if **block == *newest => return,
        Some((number, block)) if block.sequence == newest.sequence => {
            let name = slot_name(number);
            let message = format!("slot {name} of map block {index} differs from the copies of the same sequence");
            let finding = Finding::member(group, drives, member, Structure::Map, message);
            findings.push(finding.at(offset(number), BLOCK as u64));
            return;
        }
        Some((_, block)) => {
            format!("map block {index} is behind: sequence {}, the newest is {}", block.sequence, newest.sequence)
        }
        // The damage of the slots was reported already.
        None if slots.iter().any(|slot| matches!(slot, Slot::Bad(_) | Slot::CutOff)) => return,
        None => format!("map block {index} is not there; other members have it with sequence {}", newest.sequence),
    };
    let finding = Finding::member(group, drives, member, Structure::Map, message);
    findings.push(finding.at(offset(0), MAP_SLOTS * BLOCK as u64));
}

/// Both slots of a range of map blocks of one member, in order.
fn read_slots(group: &Group, drives: &[SurveyedDrive], member: usize, part: &Range<u64>) -> Vec<Slot> {
    let layout = &group.superblock.layout;
    let start = map_slot_offset(layout, part.start, 0);
    let mut bytes = vec![0; ((part.end - part.start) * MAP_SLOTS) as usize * BLOCK];
    let held = group.held_by(drives, member, start, bytes.len() as u64);
    let whole = group.read(drives, member, start, &mut bytes).is_ok();
    let slot = |(position, bytes): (usize, &mut [u8])| {
        let index = part.start + (position as u64) / MAP_SLOTS;
        if (position as u64 / MAP_SLOTS + 1) * MAP_SLOTS * BLOCK as u64 > held {
            return Slot::CutOff;
        }
        if !whole && let Err(error) = group.read(drives, member, start + (position * BLOCK) as u64, bytes) {
            return Slot::Bad(format!("cannot be read: {}", plain(&error)));
        }
        decode(bytes, &group.superblock.array, index)
    };
    bytes.chunks_exact_mut(BLOCK).enumerate().map(slot).collect()
}

fn decode(bytes: &[u8], array: &Uuid, index: u64) -> Slot {
    match MapBlock::decode(bytes, array, index) {
        Ok(block) => Slot::Valid(Box::new(block)),
        Err(MapError::OtherArray { .. }) => Slot::Absent,
        Err(MapError::NotAMapBlock | MapError::Checksum) if !names(bytes, array) => Slot::Absent,
        Err(MapError::NotAMapBlock) => Slot::Bad("its magic is gone".to_owned()),
        Err(error) => Slot::Bad(error.to_string()),
    }
}

/// Whether the UUID field, at byte 16 of map blocks and catalogues, was written for this array,
/// even if it is damaged in part. Leftovers of another array or of a file system do not resemble
/// it.
pub(crate) fn names(bytes: &[u8], array: &Uuid) -> bool {
    bytes[16..32].iter().zip(array.as_bytes()).filter(|(found, own)| found == own).count() >= 8
}
