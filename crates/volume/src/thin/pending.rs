//! Writes that were accepted and are not in the map yet. Reads look here first.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::rc::Rc;

use drive::Buf;
use format::thin::entry::LEAF_BLOCKS;
use format::thin::{Codec, WINDOW_BLOCKS};
use smallvec::SmallVec;

use super::frames::Frame;

/// Names a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartId {
    pub line: u32,
    pub window: u64,
    pub sequence: u64,
    /// Its first block in the window.
    pub first: u8,
}

/// By how much a volume grows. It shrinks if this is negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// Stored bytes.
    pub bytes: i64,
    /// Blocks with content.
    pub blocks: i64,
}

impl Growth {
    /// Of blocks that are stored plain, and had no content.
    pub fn of_new(bits: u16) -> Growth {
        let blocks = i64::from(bits.count_ones());
        Growth { bytes: blocks * format::BLOCK as i64, blocks }
    }
}

impl Add for Growth {
    type Output = Growth;

    fn add(self, other: Growth) -> Growth {
        Growth { bytes: self.bytes + other.bytes, blocks: self.blocks + other.blocks }
    }
}

impl Sub for Growth {
    type Output = Growth;

    fn sub(self, other: Growth) -> Growth {
        Growth { bytes: self.bytes - other.bytes, blocks: self.blocks - other.blocks }
    }
}

impl Sum for Growth {
    fn sum<I: Iterator<Item = Growth>>(all: I) -> Growth {
        all.fold(Growth::default(), Growth::add)
    }
}

/// Blocks of one write in one window.
#[derive(Clone)]
pub(super) struct Part {
    pub sequence: u64,
    pub birth: u32,
    pub first: u8,
    pub blocks: u8,
    /// The blocks that no later write has replaced, as bits of the window.
    pub used: u16,
    /// The blocks for which the map has a later write already.
    pub outdated: u16,
    /// The content of all blocks. `None`: a hole.
    pub content: Option<Buf>,
    /// The content as it is stored, if that is compressed.
    pub packed: Option<(Codec, Buf)>,
    /// Most that the volume grows by.
    pub growth: Growth,
    /// The frame with the part, if it is in the log.
    pub frame: Option<Rc<Frame>>,
}

impl Part {
    /// A part that no other one has replaced, and that is not compressed so far.
    pub fn new(sequence: u64, birth: u32, (first, blocks): (u8, u8), content: Option<Buf>) -> Part {
        let used = block_bits(first, blocks);
        Part {
            sequence,
            birth,
            first,
            blocks,
            used,
            outdated: 0,
            content,
            packed: None,
            growth: Growth::default(),
            frame: None,
        }
    }

    /// Its blocks, as bits of the window.
    pub fn bits(&self) -> u16 {
        block_bits(self.first, self.blocks)
    }

    /// The blocks that belong into the map when the part is on the drives.
    pub fn current(&self) -> u16 {
        self.bits() & !self.outdated
    }

    /// The bytes to be stored, and how they are stored. `None`: a hole.
    pub fn stored(&self) -> Option<(Codec, &Buf)> {
        match (&self.packed, &self.content) {
            (Some((codec, bytes)), _) => Some((*codec, bytes)),
            (None, Some(content)) => Some((Codec::Plain, content)),
            (None, None) => None,
        }
    }
}

/// `blocks` blocks from `first` on, as bits of a window.
pub(super) fn block_bits(first: u8, blocks: u8) -> u16 {
    (((1u32 << blocks) - 1) << first) as u16
}

#[derive(Default)]
pub(super) struct Pending {
    windows: BTreeMap<(u32, u64), SmallVec<[Part; 1]>>,
    /// Leaves of maps with pending parts.
    leaves: u64,
    /// How many parts each write has.
    writes: BTreeMap<u64, usize>,
    /// Bytes of contents.
    pub bytes: u64,
    /// Most that all volumes grow by.
    growth: Growth,
    /// The same of each volume with pending parts.
    lines: BTreeMap<u32, LineSum>,
}

/// Parts of a volume, and by how much they let it grow.
#[derive(Default)]
struct LineSum {
    parts: usize,
    growth: Growth,
}

impl Pending {
    /// The parts of a window, in the order of their writes.
    pub fn window(&self, line: u32, window: u64) -> &[Part] {
        self.windows.get(&(line, window)).map_or(&[], |parts| parts)
    }

    /// The blocks of a window that are pending, and those among them that are holes.
    pub fn bits(&self, line: u32, window: u64) -> (u16, u16) {
        let parts = self.window(line, window).iter();
        parts.fold((0, 0), |(all, holes), part| {
            (all | part.used, if part.content.is_none() { holes | part.used } else { holes })
        })
    }

    /// The first window of a line from `from` on with parts.
    pub fn next_window(&self, line: u32, from: u64) -> Option<u64> {
        self.windows.range((line, from)..=(line, u64::MAX)).next().map(|((_, window), _)| *window)
    }

    /// Leaves of maps with pending parts.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    fn has_leaf_of(&self, line: u32, window: u64) -> bool {
        let windows = LEAF_BLOCKS / WINDOW_BLOCKS;
        let first = window / windows * windows;
        self.next_window(line, first).is_some_and(|next| next < first + windows)
    }

    /// Adds a part, which is newer than all others.
    pub fn insert(&mut self, line: u32, window: u64, part: Part) {
        self.leaves += u64::from(!self.has_leaf_of(line, window));
        let parts = self.windows.entry((line, window)).or_default();
        parts.iter_mut().for_each(|older| older.used &= !part.used);
        *self.writes.entry(part.sequence).or_default() += 1;
        self.bytes += part.content.as_ref().map_or(0, |content| content.len() as u64);
        let growth = part.growth;
        parts.push(part);
        self.lines.entry(line).or_default().parts += 1;
        self.grow(line, growth);
    }

    fn grow(&mut self, line: u32, growth: Growth) {
        self.growth = self.growth + growth;
        let sum = self.lines.get_mut(&line).expect("the line has parts");
        sum.growth = sum.growth + growth;
    }

    /// Most that all volumes grow by.
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Most that a volume grows by.
    pub fn growth_of(&self, line: u32) -> Growth {
        self.lines.get(&line).map_or(Growth::default(), |sum| sum.growth)
    }

    /// Has the map's content count for blocks of the window: that of the write `sequence`.
    pub fn entered(&mut self, line: u32, window: u64, (bits, sequence): (u16, u64)) {
        let Some(parts) = self.windows.get_mut(&(line, window)) else { return };
        for older in parts.iter_mut().filter(|older| older.sequence <= sequence) {
            older.used &= !bits;
            older.outdated |= bits;
        }
    }

    /// Computes anew by how much each part of a window grows the volume: `growth_of` the blocks
    /// that count, and whether they are a hole.
    pub fn regrow(&mut self, line: u32, window: u64, growth_of: impl Fn(u16, bool) -> Growth) {
        let Some(parts) = self.windows.get_mut(&(line, window)) else { return };
        let mut change = Growth::default();
        for part in parts {
            let growth = growth_of(part.used, part.content.is_none());
            change = change + growth - part.growth;
            part.growth = growth;
        }
        self.grow(line, change);
    }

    pub fn get(&self, id: PartId) -> Option<&Part> {
        self.window(id.line, id.window).iter().find(|part| (part.sequence, part.first) == (id.sequence, id.first))
    }

    pub fn get_mut(&mut self, id: PartId) -> Option<&mut Part> {
        let parts = self.windows.get_mut(&(id.line, id.window))?;
        parts.iter_mut().find(|part| (part.sequence, part.first) == (id.sequence, id.first))
    }

    /// Divides a part that is not compressed behind `blocks` of its blocks. Returns the second
    /// half's name.
    pub fn split(&mut self, id: PartId, blocks: u8) -> PartId {
        let part = self.get_mut(id).expect("the part is pending");
        debug_assert!(part.packed.is_none());
        let mut rest = part.clone();
        (rest.first, rest.blocks) = (part.first + blocks, part.blocks - blocks);
        part.blocks = blocks;
        for half in [&mut *part, &mut rest] {
            let bits = half.bits();
            half.used &= bits;
            half.outdated &= bits;
        }
        // Which half frees how much is known when the first one is in the map.
        let most = Growth::of_new(part.bits());
        part.growth.bytes = part.growth.bytes.clamp(0, most.bytes);
        part.growth.blocks = part.growth.blocks.clamp(0, most.blocks);
        rest.growth.blocks -= part.growth.blocks;
        let more = Growth { blocks: 0, ..part.growth };
        if let Some(content) = part.content.take() {
            let at = usize::from(blocks) * format::BLOCK;
            rest.content = Some(content.slice(at..content.len()));
            part.content = Some(content.slice(0..at));
        }
        if let Some(frame) = &part.frame {
            frame.add_part();
        }
        self.lines.get_mut(&id.line).expect("the line has parts").parts += 1;
        self.grow(id.line, more);
        *self.writes.entry(rest.sequence).or_default() += 1;
        let rest_id = PartId { first: rest.first, ..id };
        let parts = self.windows.get_mut(&(id.line, id.window)).expect("the window is pending");
        let index = parts.iter().position(|part| (part.sequence, part.first) == (id.sequence, id.first));
        parts.insert(index.expect("the part is pending") + 1, rest);
        rest_id
    }

    /// Removes a part: it is in the map from now on.
    pub fn remove(&mut self, id: PartId) -> Part {
        let parts = self.windows.get_mut(&(id.line, id.window)).expect("the window is pending");
        let index = parts.iter().position(|part| (part.sequence, part.first) == (id.sequence, id.first));
        let part = parts.remove(index.expect("the part is pending"));
        if parts.is_empty() {
            self.windows.remove(&(id.line, id.window));
            self.leaves -= u64::from(!self.has_leaf_of(id.line, id.window));
        }
        let count = self.writes.get_mut(&part.sequence).expect("each write has parts");
        *count -= 1;
        if *count == 0 {
            self.writes.remove(&part.sequence);
        }
        self.bytes -= part.content.as_ref().map_or(0, |content| content.len() as u64);
        self.grow(id.line, Growth::default() - part.growth);
        let sum = self.lines.get_mut(&id.line).expect("the line has parts");
        sum.parts -= 1;
        if sum.parts == 0 {
            self.lines.remove(&id.line);
        }
        part
    }

    /// The lowest write that is not in the map.
    pub fn lowest(&self) -> Option<u64> {
        self.writes.keys().next().copied()
    }

    /// All parts, in the order of their writes.
    pub fn all(&self) -> Vec<PartId> {
        let ids = self.windows.iter().flat_map(|(&(line, window), parts)| {
            parts.iter().map(move |part| PartId { line, window, sequence: part.sequence, first: part.first })
        });
        let mut ids: Vec<PartId> = ids.collect();
        ids.sort_by_key(|id| (id.sequence, id.line, id.window, id.first));
        ids
    }
}
