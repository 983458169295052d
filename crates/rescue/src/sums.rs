//! Checks whether a member returns what was written to it: docs/format/checksums.md, "Reading".

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use format::{BLOCK, Region};
use serde::{Deserialize, Serialize};

use crate::group::Group;
use crate::survey::SurveyedDrive;

/// Checksums in a block of sums.
const SUMS_PER_BLOCK: u64 = BLOCK as u64 / 4;

/// Most blocks of sums in memory. When it is reached, all are dropped.
const BLOCKS_MAX: usize = 4096;

/// Most damaged blocks that are remembered. If a member has lost all its sums, all of its blocks
/// seem damaged.
const DAMAGED_MAX: usize = 1 << 20;

/// Most ranges of damaged blocks that are shown.
const RANGES_MAX: usize = 1000;

/// Adjacent blocks of a drive that do not fit their checksums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRange {
    /// The drive.
    pub drive: String,
    /// Its slot in the group.
    pub slot: u16,
    /// First byte, on the drive.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Blocks of sums by slot and number; `None` if unreadable.
type SumBlocks = BTreeMap<(usize, u64), Option<Vec<u8>>>;

/// The checksums of a group's members, if the group has any.
pub(crate) struct Sums<'a> {
    group: &'a Group,
    drives: &'a [SurveyedDrive],
    region: Option<Region>,
    blocks: RefCell<SumBlocks>,
    /// Data blocks that did not fit: slot, offset on the drive.
    damaged: RefCell<BTreeSet<(usize, u64)>>,
}

impl<'a> Sums<'a> {
    pub(crate) fn new(group: &'a Group, drives: &'a [SurveyedDrive]) -> Self {
        let region = group.superblock.layout.checksums;
        Sums { group, drives, region, blocks: RefCell::default(), damaged: RefCell::default() }
    }

    /// Offset of the sum of a block, in bytes on the drive. `offset` is that of the block, from the
    /// start of the data region.
    pub(crate) fn place(&self, offset: u64) -> Option<u64> {
        let block = offset / BLOCK as u64;
        self.region.map(|region| region.offset + block / SUMS_PER_BLOCK * BLOCK as u64 + block % SUMS_PER_BLOCK * 4)
    }

    /// Whether bytes from a member are what was written there, as far as that is known. They are
    /// whole blocks, `offset` bytes from the start of the data region. If a sum is unreadable, its
    /// block counts as fitting.
    pub(crate) fn fit(&self, slot: usize, offset: u64, bytes: &[u8]) -> bool {
        let Some(region) = self.region else { return true };
        let mut all_fit = true;
        for (index, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let number = offset / BLOCK as u64 + index as u64;
            let fits = self.sum(&region, slot, number).is_none_or(|sum| gf::crc32c(block) == sum);
            if !fits {
                let mut damaged = self.damaged.borrow_mut();
                if damaged.len() < DAMAGED_MAX {
                    damaged.insert((slot, self.group.geometry.data_offset + number * BLOCK as u64));
                }
            }
            all_fit &= fits;
        }
        all_fit
    }

    /// Number of blocks that did not fit so far, up to a million.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.borrow().len() as u64
    }

    /// The first ranges of these blocks.
    pub(crate) fn damaged_ranges(&self) -> Vec<DamagedRange> {
        let mut ranges: Vec<DamagedRange> = Vec::new();
        for &(slot, offset_bytes) in self.damaged.borrow().iter() {
            let is_room = ranges.len() < RANGES_MAX;
            match ranges.last_mut() {
                Some(last) if usize::from(last.slot) == slot && last.offset_bytes + last.len_bytes == offset_bytes => {
                    last.len_bytes += BLOCK as u64;
                }
                _ if is_room => {
                    let drive = self.group.members[slot].expect("a member that was read is there");
                    let drive = self.drives[drive].drive.name().to_owned();
                    ranges.push(DamagedRange { drive, slot: slot as u16, offset_bytes, len_bytes: BLOCK as u64 });
                }
                _ => break,
            }
        }
        ranges
    }

    /// The sum of a block. `number` is its index in the data region.
    fn sum(&self, region: &Region, slot: usize, number: u64) -> Option<u32> {
        let key = (slot, number / SUMS_PER_BLOCK);
        let mut blocks = self.blocks.borrow_mut();
        if blocks.len() >= BLOCKS_MAX && !blocks.contains_key(&key) {
            blocks.clear();
        }
        let sums = blocks.entry(key).or_insert_with(|| {
            let mut bytes = vec![0; BLOCK];
            let read = self.group.read(self.drives, slot, region.offset + key.1 * BLOCK as u64, &mut bytes);
            read.ok().map(|()| bytes)
        });
        let at = (number % SUMS_PER_BLOCK) as usize * 4;
        let bytes: [u8; 4] = sums.as_ref()?[at..at + 4].try_into().expect("four bytes");
        Some(u32::from_le_bytes(bytes))
    }
}
