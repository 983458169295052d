//! Writes that were accepted and are not in the map yet. Reads look here first.

use std::collections::BTreeMap;
use std::rc::Rc;

use drive::Buf;
use format::thin::WINDOW_BLOCKS;
use format::thin::entry::LEAF_BLOCKS;
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

/// Blocks of one write in one window.
#[derive(Clone)]
pub(super) struct Part {
    pub sequence: u64,
    /// The lowest write that this one replaced before it was in the map, or its own number. A
    /// recovery may still need that one.
    pub floor: u64,
    pub birth: u32,
    pub first: u8,
    pub blocks: u8,
    /// The blocks that no later write has replaced, as bits of the window.
    pub used: u16,
    /// The content of all blocks. `None`: a hole.
    pub content: Option<Buf>,
    /// Bytes that the volume grows by, or shrinks if this is negative.
    pub growth: i64,
    /// The frame with the part, if it is in the log.
    pub frame: Option<Rc<Frame>>,
}

impl Part {
    /// Its blocks, as bits of the window.
    pub fn bits(&self) -> u16 {
        block_bits(self.first, self.blocks)
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
    /// How many parts have each floor.
    floors: BTreeMap<u64, usize>,
    /// Bytes of contents.
    pub bytes: u64,
    /// Bytes that the volumes grow by.
    pub growth: i64,
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
    pub fn insert(&mut self, line: u32, window: u64, mut part: Part) {
        self.leaves += u64::from(!self.has_leaf_of(line, window));
        let parts = self.windows.entry((line, window)).or_default();
        let bits = part.used;
        for older in parts.iter_mut().filter(|older| older.used & bits != 0) {
            older.used &= !bits;
            part.floor = part.floor.min(older.floor);
        }
        *self.floors.entry(part.floor).or_default() += 1;
        self.bytes += part.content.as_ref().map_or(0, |content| content.len() as u64);
        self.growth += part.growth;
        parts.push(part);
    }

    /// Replaces blocks of the window by others that are in the map already. Only a recovery does
    /// that.
    pub fn supersede(&mut self, line: u32, window: u64, bits: u16) {
        let Some(parts) = self.windows.get_mut(&(line, window)) else { return };
        parts.iter_mut().for_each(|part| part.used &= !bits);
    }

    pub fn get(&self, id: PartId) -> Option<&Part> {
        self.window(id.line, id.window).iter().find(|part| (part.sequence, part.first) == (id.sequence, id.first))
    }

    pub fn get_mut(&mut self, id: PartId) -> Option<&mut Part> {
        let parts = self.windows.get_mut(&(id.line, id.window))?;
        parts.iter_mut().find(|part| (part.sequence, part.first) == (id.sequence, id.first))
    }

    /// Divides a part behind `blocks` of its blocks. Returns the second half's name.
    pub fn split(&mut self, id: PartId, blocks: u8) -> PartId {
        let part = self.get_mut(id).expect("the part is pending");
        let mut rest = part.clone();
        (rest.first, rest.blocks) = (part.first + blocks, part.blocks - blocks);
        part.blocks = blocks;
        let most = i64::from(blocks) * format::BLOCK as i64;
        let growth = part.growth.clamp(-most, most);
        (rest.growth, part.growth) = (part.growth - growth, growth);
        let (here, there) = (part.bits(), rest.bits());
        (rest.used, part.used) = (part.used & there, part.used & here);
        if let Some(content) = part.content.take() {
            let at = usize::from(blocks) * format::BLOCK;
            rest.content = Some(content.slice(at..content.len()));
            part.content = Some(content.slice(0..at));
        }
        if let Some(frame) = &part.frame {
            frame.add_part();
        }
        *self.floors.entry(rest.floor).or_default() += 1;
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
        let count = self.floors.get_mut(&part.floor).expect("each part has a floor");
        *count -= 1;
        if *count == 0 {
            self.floors.remove(&part.floor);
        }
        self.bytes -= part.content.as_ref().map_or(0, |content| content.len() as u64);
        self.growth -= part.growth;
        part
    }

    /// The lowest write that is not in the map, and on which no newer one in the map relies.
    pub fn lowest(&self) -> Option<u64> {
        self.floors.keys().next().copied()
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
