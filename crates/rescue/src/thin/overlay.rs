//! Writes in runs and in frames: for each block, the one with the highest sequence counts.
//!
//! A map that is rebuilt from segments has a record for each fragment of a volume. So a record has
//! 24 bytes, and those that count no more are dropped again and again: memory is needed for twice
//! the records that count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use format::BLOCK;
use format::thin::batch::BatchIndex;
use format::thin::entry::LEAF_BLOCKS;
use format::thin::record::{FragmentRecord, HoleRecord};
use format::thin::{ADDRESS_MAX, Codec, StoredRange, UNIT_BYTES};

use super::{Content, PackedFragment};

/// Records of a line that are kept before those that count no more are dropped.
const WRITES_MIN: usize = 1 << 14;

/// The kind of a write. Of writes with the same sequence, the last kind counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A fragment that the checkpoint does not use: no block has content of this write, or of an
    /// earlier one. A copy of it may be live.
    Unused,
    /// Of a write that is in a frame and in a run, either is right.
    Frame,
    Hole,
    Plain,
    Lz4,
    Zstd,
}

/// A write, or a part of one, within one leaf: writers divide them.
#[derive(Debug, Clone, Copy)]
struct Write {
    sequence: u64,
    /// The packed stored range; number of the frame and the byte in it; 0.
    place: u64,
    leaf: u32,
    /// The first block, in the leaf.
    first: u8,
    /// Blocks less one.
    last: u8,
    kind: Kind,
}

const _: () = assert!(size_of::<Write>() == 24);

/// Blocks of a leaf, a bit for each.
#[derive(Default)]
struct LeafBits([u64; LEAF_BLOCKS as usize / 64]);

impl Write {
    fn new(sequence: u64, block: u64, blocks: u64, kind: Kind, place: u64) -> Option<Write> {
        let leaf = u32::try_from(block / LEAF_BLOCKS).ok()?;
        let first = (block % LEAF_BLOCKS) as u8;
        let last = (blocks.checked_sub(1)?).min(LEAF_BLOCKS - 1 - u64::from(first)) as u8;
        Some(Write { sequence, place, leaf, first, last, kind })
    }

    fn key(&self) -> (u32, u64, Kind) {
        (self.leaf, self.sequence, self.kind)
    }

    fn has_content(&self) -> bool {
        !matches!(self.kind, Kind::Hole | Kind::Unused)
    }

    /// The blocks in the leaf.
    fn blocks(&self) -> Range<usize> {
        let first = usize::from(self.first);
        first..first + usize::from(self.last) + 1
    }
}

impl LeafBits {
    /// Sets bits. Whether any of them was not set before.
    fn cover(&mut self, blocks: Range<usize>) -> bool {
        let mut is_new = false;
        for block in blocks {
            let (word, bit) = (&mut self.0[block / 64], 1 << (block % 64));
            is_new |= *word & bit == 0;
            *word |= bit;
        }
        is_new
    }
}

/// The writes of a line.
#[derive(Default)]
struct LineWrites {
    writes: Vec<Write>,
    /// Records to have before the next are dropped.
    most: usize,
}

impl LineWrites {
    fn push(&mut self, write: Write) {
        if self.writes.len() >= self.most.max(WRITES_MIN) {
            self.compact();
            self.most = 2 * self.writes.len();
            self.writes.reserve_exact(self.writes.len().max(WRITES_MIN));
        }
        self.writes.push(write);
    }

    /// Sorts the writes, and drops those of which no block counts.
    fn compact(&mut self) {
        self.writes.sort_unstable_by_key(Write::key);
        let (mut covered, mut leaf) = (LeafBits::default(), None);
        let mut kept = self.writes.len();
        // From the last to the first: kept ones move to the end.
        for index in (0..self.writes.len()).rev() {
            let write = self.writes[index];
            if leaf != Some(write.leaf) {
                (covered, leaf) = (LeafBits::default(), Some(write.leaf));
            }
            if covered.cover(write.blocks()) {
                kept -= 1;
                self.writes[kept] = write;
            }
        }
        self.writes.drain(..kept);
    }

    fn of_leaves(&self, leaves: Range<u64>) -> &[Write] {
        let from = self.writes.partition_point(|write| u64::from(write.leaf) < leaves.start);
        let to = self.writes.partition_point(|write| u64::from(write.leaf) < leaves.end);
        &self.writes[from..to.max(from)]
    }
}

/// All writes of some lines.
#[derive(Default)]
pub(super) struct Overlay {
    lines: BTreeMap<u32, LineWrites>,
    frames: Vec<Rc<Vec<u8>>>,
}

impl Overlay {
    fn push(&mut self, line: u32, write: Option<Write>) {
        if let Some(write) = write {
            self.lines.entry(line).or_default().push(write);
        }
    }

    /// Adds those writes of the run at `address` for which `wanted` says so, by line and sequence.
    /// Without `is_used`, the checkpoint uses none of the run's fragments.
    pub fn push_run(&mut self, address: u64, index: &BatchIndex, is_used: bool, wanted: impl Fn(u32, u64) -> bool) {
        let records = &index.records;
        for (record, place) in records.fragments.iter().zip(records.contents(0)) {
            let FragmentRecord { sequence, line, block, blocks, stored_bytes, codec, joined, .. } = *record;
            let address = address + place.start as u64;
            if !wanted(line, sequence) || address > ADDRESS_MAX || !address.is_multiple_of(UNIT_BYTES) {
                continue;
            }
            if joined && !is_used {
                // The fragments that it is made of can be live, and have lower sequences.
                continue;
            }
            let kind = match codec {
                _ if !is_used => Kind::Unused,
                Codec::Plain => Kind::Plain,
                Codec::Lz4 => Kind::Lz4,
                Codec::Zstd => Kind::Zstd,
            };
            let place = StoredRange { address, bytes: stored_bytes }.pack();
            self.push(line, Write::new(sequence, block, u64::from(blocks), kind, place));
        }
        self.push_holes(&records.holes, wanted);
    }

    fn push_holes(&mut self, holes: &[HoleRecord], wanted: impl Fn(u32, u64) -> bool) {
        for HoleRecord { sequence, line, block, blocks, .. } in holes {
            if wanted(*line, *sequence) {
                self.push(*line, Write::new(*sequence, *block, *blocks, Kind::Hole, 0));
            }
        }
    }

    /// Adds those writes of a frame for which `wanted` says so, by line and sequence.
    pub fn push_frame(&mut self, body: Vec<u8>, index: &BatchIndex, wanted: impl Fn(u32, u64) -> bool) {
        let base = format::intent_log::INTENT_HEAD_BYTES;
        let number = self.frames.len() as u64;
        for (record, place) in index.records.fragments.iter().zip(index.records.contents(base)) {
            let is_whole = body.get(place.clone()).is_some_and(|content| gf::crc32c(content) == record.crc32c);
            if is_whole && record.codec == Codec::Plain && wanted(record.line, record.sequence) {
                let place = number << 32 | place.start as u64;
                let write = Write::new(record.sequence, record.block, u64::from(record.blocks), Kind::Frame, place);
                self.push(record.line, write);
            }
        }
        self.push_holes(&index.records.holes, wanted);
        self.frames.push(Rc::new(body));
    }

    /// Puts the writes in their order, after the last one was added.
    pub fn sort(&mut self) {
        for line in self.lines.values_mut() {
            line.compact();
            line.writes.shrink_to_fit();
        }
    }

    /// The leaves of a line with content, out of a range of them, in order.
    pub fn leaves(&self, line: u32, leaves: Range<u64>) -> Vec<u64> {
        let writes = self.lines.get(&line).map_or(&[][..], |line| line.of_leaves(leaves));
        let mut leaves: Vec<u64> = Vec::new();
        for write in writes.iter().filter(|write| write.has_content()) {
            if leaves.last() != Some(&u64::from(write.leaf)) {
                leaves.push(u64::from(write.leaf));
            }
        }
        leaves
    }

    /// The blocks with content in a range of leaves of a line.
    pub fn content_blocks(&self, line: u32, leaves: Range<u64>) -> u64 {
        let count = |leaf: u64| {
            let mut blocks = vec![None; LEAF_BLOCKS as usize];
            self.apply(line, leaf, &mut blocks);
            blocks.iter().flatten().count() as u64
        };
        self.leaves(line, leaves).into_iter().map(count).sum()
    }

    /// The leaves of a line with any writes, in order.
    pub fn written_leaves(&self, line: u32) -> Vec<u64> {
        let writes = self.lines.get(&line).map_or(&[][..], |line| &line.writes);
        writes.chunk_by(|one, next| one.leaf == next.leaf).map(|same| u64::from(same[0].leaf)).collect()
    }

    /// Applies the writes to a leaf.
    pub fn apply(&self, line: u32, leaf: u64, blocks: &mut [Option<Content>]) {
        let Some(writes) = self.lines.get(&line) else { return };
        for write in writes.of_leaves(leaf..leaf + 1) {
            let stored = StoredRange::unpack(write.place);
            let packed = |codec| PackedFragment { stored, codec, blocks: write.last + 1 };
            for (number, block) in write.blocks().enumerate() {
                blocks[block] = match write.kind {
                    Kind::Hole | Kind::Unused => None,
                    Kind::Plain => Some(Content::Stored(stored.address + (number * BLOCK) as u64)),
                    Kind::Lz4 => Some(Content::Packed(packed(Codec::Lz4), number as u8)),
                    Kind::Zstd => Some(Content::Packed(packed(Codec::Zstd), number as u8)),
                    Kind::Frame => {
                        let (frame, at) = ((write.place >> 32) as usize, (write.place & 0xFFFF_FFFF) as usize);
                        Some(Content::Frame(self.frames[frame].clone(), at + number * BLOCK))
                    }
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_write_of_each_block_counts_and_others_take_no_memory() {
        const LEAVES: u64 = 3;
        let (mut overlay, mut state) = (Overlay::default(), 1u64);
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 24) % below
        };
        let mut newest: Vec<(u64, Option<u64>)> = vec![(0, None); (LEAVES * LEAF_BLOCKS) as usize];
        for address in (1..5 * WRITES_MIN as u64).map(|number| number << 20) {
            let (sequence, block, blocks) = (1 + draw(1 << 38), draw(LEAVES * LEAF_BLOCKS), 1 + draw(16));
            let blocks = blocks.min(LEAF_BLOCKS - block % LEAF_BLOCKS);
            let kind = if draw(4) == 0 { Kind::Hole } else { Kind::Plain };
            let place = StoredRange { address, bytes: 1 }.pack();
            overlay.push(7, Write::new(sequence, block, blocks, kind, place));
            for number in 0..blocks {
                let content = (kind == Kind::Plain).then_some(address + number * BLOCK as u64);
                let known = &mut newest[(block + number) as usize];
                *known = (*known).max((sequence, content));
            }
            assert!(overlay.lines[&7].writes.len() <= WRITES_MIN);
        }
        overlay.sort();
        assert!(overlay.lines[&7].writes.len() as u64 <= LEAVES * LEAF_BLOCKS);
        for leaf in 0..LEAVES {
            let mut blocks = vec![None; LEAF_BLOCKS as usize];
            overlay.apply(7, leaf, &mut blocks);
            for (found, (_, expected)) in blocks.iter().zip(&newest[(leaf * LEAF_BLOCKS) as usize..]) {
                let found = found.as_ref().map(|content| match content {
                    Content::Stored(address) => *address,
                    other => panic!("{other:?}"),
                });
                assert_eq!(found, *expected);
            }
        }
        assert_eq!(overlay.leaves(7, 0..LEAVES), vec![0, 1, 2]);
        assert!(overlay.leaves(8, 0..LEAVES).is_empty());
    }
}
