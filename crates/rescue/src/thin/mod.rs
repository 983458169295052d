//! Reads thin volumes through their maps: docs/format/thin.md.
//!
//! A volume has the content of the newest checkpoint, with the writes on top that came after it:
//! those in runs, and those in frames of the intent log.
//!
//! Where the map or the tables cannot be read, the map is rebuilt from all runs of all segments.
//! For each block the fragment or the hole with the highest sequence counts. Of each block with
//! content a segment has the newest fragment, so such a block is right. A hole is in no segment any
//! more once the collector has freed the one that it was in. So a block without content may come
//! back with a content that it had before, if that has not been freed as well.

mod anchors;
mod bytes;
mod loss;
mod overlay;
pub(crate) mod packed;
mod scan;
mod volume_map;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use format::thin::anchor::Anchor;
use format::thin::batch::{BatchIndex, StoreKey};
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::line::LineRecord;
use format::thin::node::{ChildRecord, NodeId, decode_inner_node, decode_map_leaf};
use format::thin::segment::SegmentUse;
use format::thin::{BLOCKS_MAX, Codec, StoredRange};
use format::{BLOCK, ExtentRecord, ThinPoolRecord, ThinStoreRecord, VolumeKind, VolumeRecord};

use crate::group::Group;
use crate::log::Log;
use crate::map::Map;
use crate::survey::SurveyedDrive;

use anchors::{Anchors, Checkpoint, below};
use bytes::{FrameId, GroupBytes};
use overlay::Overlay;
use packed::LastFragment;
use scan::{Grid, RunReader, key_of_first_runs};
use volume_map::Rebuilt;

pub(crate) use volume_map::VolumeMap;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Leaves of the largest volume.
const LEAVES_MAX: u64 = BLOCKS_MAX / LEAF_BLOCKS;

/// The limit of a map that is rebuilt from segments.
const OLD_CONTENT: &str = "blocks that were discarded or zeroed may have old content";

/// The content of a block.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// It is at this byte of the group.
    Stored(u64),
    /// It is in a compressed fragment, so many blocks behind the first.
    Packed(PackedFragment, u8),
    /// It is in a frame.
    Frame(Rc<Vec<u8>>, usize),
}

/// A compressed fragment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedFragment {
    stored: StoredRange,
    codec: Codec,
    blocks: u8,
}

/// A store that is read, and how.
pub(crate) struct ThinQuery<'a> {
    /// Identity of the store.
    pub store: u16,
    pub segment_bytes: u64,
    pub extents: &'a [ExtentRecord],
    /// The lines of the volumes. Other lines in the segments are those of deleted volumes.
    pub lines: BTreeSet<u32>,
    /// Use no anchor and no map.
    pub from_segments: bool,
}

/// A thin store of a group.
pub(crate) struct ThinStore<'a> {
    /// Its name for people.
    name: String,
    group: &'a Group,
    drives: &'a [SurveyedDrive],
    bytes: GroupBytes<'a>,
    grid: Grid,
    key: StoreKey,
    wanted: BTreeSet<u32>,
    /// `None`: no anchor is used.
    checkpoint: Option<Checkpoint>,
    /// Writes that the checkpoint does not cover.
    overlay: Overlay,
    /// The maps from segments, up to the writes that the checkpoint covers. Made when the first
    /// part of a map is found that cannot be read.
    rebuilt: Option<Overlay>,
    /// The tables and anchors that cannot be read: sentences.
    messages: Vec<String>,
    /// Bytes of segments in which runs may be that cannot be read.
    unread_bytes: u64,
    last_fragment: LastFragment,
}

impl<'a> ThinQuery<'a> {
    /// A store of a pool, with the volumes of a catalogue that are in it.
    pub fn new(pool: &'a ThinPoolRecord, store: &'a ThinStoreRecord, volumes: &[VolumeRecord]) -> ThinQuery<'a> {
        let own = volumes.iter().filter(|record| record.kind == VolumeKind::Thin && record.thin.store == store.id);
        let lines = own.filter_map(|record| u32::try_from(record.id).ok()).collect();
        let (store, segment_bytes, extents) = (store.id, pool.segment_bytes, &store.extents[..]);
        ThinQuery { store, segment_bytes, extents, lines, from_segments: false }
    }
}

impl<'a> ThinStore<'a> {
    /// Reads the newest checkpoint and all writes after it.
    ///
    /// # Errors
    /// A sentence: neither an anchor nor a run can be read.
    pub(crate) fn open(
        group: &'a Group,
        drives: &'a [SurveyedDrive],
        (map, log): (&'a Map, &'a Log),
        query: ThinQuery<'_>,
    ) -> Result<ThinStore<'a>, String> {
        let mut bytes = GroupBytes::new(group, drives, map, log);
        let grid = Grid::new(&group.geometry, &query);
        let name = format!("thin store {}", query.store);
        let first = grid.anchors().ok_or_else(|| format!("{name} has no segment"))?;
        let anchors = match query.from_segments {
            true => Anchors::Lost(format!("the anchors of {name} are not used")),
            false => Anchors::read(&mut bytes, &group.superblock.array, (first, grid.segment_bytes), &name),
        };
        let mut messages = Vec::new();
        let anchor = match anchors {
            Anchors::Newest(anchor) => Ok(anchor),
            Anchors::Lost(why) => Err(why),
            Anchors::OneLeft(left) if is_newest(&mut bytes, &grid, &left) => {
                messages.push(format!("one of the two anchors of {name} is damaged; the other one is the newest"));
                Ok(left)
            }
            Anchors::OneLeft(_) => {
                Err(format!("one of the two anchors of {name} is damaged, and the other one may be older"))
            }
        };
        let (key, checkpoint) = match anchor {
            Ok(anchor) => (anchor.key, Some(Checkpoint::read(&mut bytes, anchor))),
            Err(why) => {
                let key = key_of_first_runs(&mut bytes, &grid);
                messages.push(format!("{why}. The maps are rebuilt from segments: {OLD_CONTENT}"));
                (key.ok_or_else(|| format!("{why}, and its segments have no run"))?, None)
            }
        };
        messages.extend(checkpoint.iter().flat_map(|checkpoint| checkpoint.messages(&name)));
        let (wanted, overlay, last_fragment) = (query.lines, Overlay::default(), LastFragment::default());
        let mut store = ThinStore {
            name,
            group,
            drives,
            bytes,
            grid,
            key,
            wanted,
            checkpoint,
            overlay,
            rebuilt: None,
            messages,
            unread_bytes: 0,
            last_fragment,
        };
        store.find_writes();
        Ok(store)
    }

    /// Finds the writes that the checkpoint does not cover.
    fn find_writes(&mut self) {
        let Some(checkpoint) = &self.checkpoint else { return };
        let covered = checkpoint.anchor.covered;
        let mut reader = RunReader { bytes: &mut self.bytes, grid: &self.grid, key: &self.key, unread_bytes: 0 };
        let wanted = |line: u32, sequence: u64| self.wanted.contains(&line) && sequence > covered;
        for (id, start) in self.grid.with_runs() {
            let record = checkpoint.segment(id);
            let filled = record.map_or(0, |record| u64::from(record.filled_bytes)).min(self.grid.segment_bytes);
            let has_more = reader.bytes.is_any_written(start + filled, self.grid.segment_bytes - filled);
            let is_read = match record.map(|record| record.used_for) {
                Some(SegmentUse::Nodes | SegmentUse::Anchors) => false,
                Some(SegmentUse::Data) => record.is_some_and(|record| record.newest_sequence > covered) || has_more,
                Some(SegmentUse::Free) | None => has_more,
            };
            if is_read {
                reader.segment(start, &mut |address, index| self.overlay.push_run(address, index, true, wanted));
            }
        }
        self.unread_bytes = reader.unread_bytes;
        let frames = bytes::frames(self.group, self.drives, Some(checkpoint.anchor.intent_generation));
        for (_, body) in frames {
            if let Some(index) = self::frame_index(&body, &self.key) {
                self.overlay.push_frame(body, &index, wanted);
            }
        }
        self.overlay.sort();
    }

    /// Rebuilds the maps from all segments, if that was not done yet.
    ///
    /// A segment that the table calls free has no fragment that the checkpoint uses. Its fragments
    /// count as holes: the checkpoint has a later write for each of their blocks, or none of them
    /// had content any more. Joined ones do not count at all.
    fn rebuild(&mut self) {
        if self.rebuilt.is_some() {
            return;
        }
        let mut rebuilt = Overlay::default();
        let covered = self.checkpoint.as_ref().map_or(u64::MAX, |checkpoint| checkpoint.anchor.covered);
        let wanted = |line: u32, sequence: u64| self.wanted.contains(&line) && sequence <= covered;
        let mut reader = RunReader { bytes: &mut self.bytes, grid: &self.grid, key: &self.key, unread_bytes: 0 };
        for (id, start) in self.grid.with_runs() {
            let record = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.segment(id));
            let used_for = record.map(|record| record.used_for);
            if matches!(used_for, Some(SegmentUse::Nodes | SegmentUse::Anchors)) {
                continue;
            }
            let is_used = used_for != Some(SegmentUse::Free);
            reader.segment(start, &mut |address, index| rebuilt.push_run(address, index, is_used, wanted));
        }
        // All of these segments, of which some were read before.
        self.unread_bytes = reader.unread_bytes;
        if self.checkpoint.is_none() {
            let frames = bytes::frames(self.group, self.drives, None);
            for (body, index) in newest_frames(frames, &self.key) {
                rebuilt.push_frame(body, &index, wanted);
            }
        }
        rebuilt.sort();
        self.rebuilt = Some(rebuilt);
    }

    /// The record of a line at the checkpoint. `Err`: it is not known whether there is one.
    fn line(&self, line: u32) -> Result<Option<LineRecord>, ()> {
        self.checkpoint.as_ref().ok_or(())?.line(line)
    }

    /// Bytes of the blocks of a line that have content. Only the leaves are read that were written
    /// since the checkpoint, unless a part of the map has to be rebuilt.
    pub(crate) fn mapped_bytes(&mut self, line: u32) -> u64 {
        let record = self.line(line);
        let at_checkpoint = record.map(|record| record.and_then(|record| record.root).map_or(0, |root| root.blocks));
        let written = self.overlay.written_leaves(line);
        if let (Ok(blocks), true) = (at_checkpoint, written.is_empty()) {
            return blocks * BLOCK_BYTES;
        }
        let mut map = self.volume_map(line);
        let (leaves, others) = match at_checkpoint {
            Ok(blocks) if map.rebuilt.is_empty() => {
                let before = written.iter().filter_map(|leaf| map.leaves.get(leaf)).map(|child| child.blocks);
                let others = blocks.saturating_sub(before.sum());
                (written, others)
            }
            _ => (self.used_leaves(line, &map), 0),
        };
        let blocks = leaves.into_iter().map(|leaf| self.leaf(line, leaf, &mut map).iter().flatten().count() as u64);
        (blocks.sum::<u64>() + others) * BLOCK_BYTES
    }

    /// The parts of the store, but for the volumes' maps, that cannot be read: sentences.
    pub(crate) fn messages(&self) -> Vec<String> {
        let unread = (self.unread_bytes > 0).then(|| {
            let (bytes, name) = (self.unread_bytes, &self.name);
            format!(
                "{bytes} bytes of segments of {name} cannot be read: blocks that were written there may have older \
                 content"
            )
        });
        self.messages.iter().cloned().chain(unread).collect()
    }

    /// The rebuilt parts of a map, after every leaf of it was read: sentences.
    pub(crate) fn map_messages(&self, map: &VolumeMap) -> Vec<String> {
        // Without a checkpoint, this is said once for all volumes.
        if self.checkpoint.is_some() { map.messages() } else { Vec::new() }
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of segments in which runs may be that cannot be read.
    pub(crate) fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }

    /// Reads the inner nodes of a volume's map.
    pub(crate) fn volume_map(&mut self, line: u32) -> VolumeMap {
        let mut map = VolumeMap::default();
        let Ok(record) = self.line(line) else {
            self.rebuild_leaves(line, 0..LEAVES_MAX, None, &mut map);
            return map;
        };
        let root = record.and_then(|record| record.root.map(|root| (record.root_level, root)));
        let mut left: Vec<(NodeId, ChildRecord)> =
            root.iter().map(|(level, root)| (NodeId { line, level: *level, index: 0 }, *root)).collect();
        while let Some((id, child)) = left.pop() {
            if id.level == 0 {
                map.leaves.insert(id.index, child);
                continue;
            }
            let node = self.bytes.read(child.stored.address, u64::from(child.stored.bytes));
            match node.and_then(|node| decode_inner_node(&node, id).ok()) {
                Some(children) => {
                    left.extend(children.into_iter().map(|(slot, child)| (id.child(usize::from(slot)), child)));
                }
                None => self.rebuild_leaves(line, below(id), Some(child.blocks), &mut map),
            }
        }
        map
    }

    /// Has leaves of a map rebuilt. `mapped` is the number of blocks that the map had there, if
    /// that is known.
    fn rebuild_leaves(&mut self, line: u32, leaves: Range<u64>, mapped: Option<u64>, map: &mut VolumeMap) {
        self.rebuild();
        let count = |rebuilt: &Overlay| rebuilt.content_blocks(line, leaves.clone());
        let found = self.rebuilt.as_ref().map_or(0, count);
        let is_exact = self.checkpoint.as_ref().is_some_and(Checkpoint::is_exact);
        let result = match mapped.filter(|_| is_exact) {
            _ if self.unread_bytes > 0 => Rebuilt::InPart,
            Some(mapped) if found < mapped => Rebuilt::InPart,
            // All blocks with content are found. So if there are no more than the map had, these
            // are the ones.
            Some(mapped) if found == mapped => Rebuilt::Exactly,
            _ => Rebuilt::Whole,
        };
        map.lose(leaves, result);
    }

    /// The leaves of a volume that may have content, in order.
    pub(crate) fn used_leaves(&self, line: u32, map: &VolumeMap) -> Vec<u64> {
        let mut leaves: Vec<u64> = map.leaves.keys().copied().collect();
        leaves.extend(self.overlay.leaves(line, 0..LEAVES_MAX));
        for (first, part) in &map.rebuilt {
            leaves.extend(self.rebuilt.iter().flat_map(|rebuilt| rebuilt.leaves(line, *first..first + part.leaves)));
        }
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// The contents of the blocks of a leaf. `None`: a hole. A leaf that cannot be read is rebuilt.
    pub(crate) fn leaf(&mut self, line: u32, leaf: u64, map: &mut VolumeMap) -> Vec<Option<Content>> {
        let mut blocks: Vec<Option<Content>> = vec![None; LEAF_BLOCKS as usize];
        if let Some(child) = map.leaves.get(&leaf).copied() {
            let id = NodeId { line, level: 0, index: leaf };
            let node = self.bytes.read(child.stored.address, u64::from(child.stored.bytes));
            match node.and_then(|node| decode_map_leaf(&node, id).ok()) {
                Some(entries) => entries.iter().for_each(|entry| entry_blocks(entry, &mut blocks)),
                None => {
                    map.leaves.remove(&leaf);
                    self.rebuild_leaves(line, below(id), Some(child.blocks), map);
                }
            }
        }
        if map.is_rebuilt(leaf) {
            self.rebuilt.iter().for_each(|rebuilt| rebuilt.apply(line, leaf, &mut blocks));
        }
        self.overlay.apply(line, leaf, &mut blocks);
        blocks
    }

    /// Fills `buf`, a block, with its content. False if it cannot be read.
    pub(crate) fn read_block(&mut self, content: &Content, buf: &mut [u8]) -> bool {
        match content {
            Content::Stored(address) => match self.bytes.read(*address, BLOCK_BYTES) {
                Some(bytes) => buf.copy_from_slice(&bytes[..buf.len()]),
                None => return false,
            },
            Content::Packed(PackedFragment { stored, codec, blocks }, block) => {
                let read = || {
                    let bytes = self.bytes.read(stored.address, u64::from(stored.bytes))?;
                    packed::decompress(*codec, &bytes, *blocks)
                };
                match self.last_fragment.get(*stored, read) {
                    Some(content) => buf.copy_from_slice(&content[usize::from(*block) * BLOCK..][..buf.len()]),
                    None => return false,
                }
            }
            Content::Frame(body, at) => buf.copy_from_slice(&body[*at..*at + buf.len()]),
        }
        true
    }

    /// Bytes that were computed, and blocks that do not fit their checksums.
    pub(crate) fn reader(&self) -> &crate::stripe::StripeReader<'a> {
        &self.bytes.reader
    }
}

/// Enters the used blocks of an entry of a map.
fn entry_blocks(entry: &MapEntry, blocks: &mut [Option<Content>]) {
    for block in (0..entry.blocks).filter(|block| entry.used & 1 << block != 0) {
        let content = match entry.codec {
            Codec::Plain => Content::Stored(entry.stored.address + u64::from(block) * BLOCK_BYTES),
            codec => {
                let fragment = PackedFragment { stored: entry.stored, codec, blocks: entry.blocks };
                Content::Packed(fragment, block)
            }
        };
        blocks[usize::from(entry.first + block)] = Some(content);
    }
}

/// The index of the batch in a frame, if it is of the store with this key.
fn frame_index(body: &[u8], key: &StoreKey) -> Option<BatchIndex> {
    BatchIndex::decode(body, key, 0, format::intent_log::INTENT_HEAD_BYTES).ok()
}

/// The frames of a store in the newest generation that it has frames of.
///
/// Each opening of a store begins a generation, and writes its first frame when a checkpoint covers
/// the frames of the generation before. Those may be wrong by then: a power cut can leave a frame
/// on one member only. If a recovery comes without that member, it gives the frame's sequence to
/// another write.
fn newest_frames(frames: BTreeMap<FrameId, Vec<u8>>, key: &StoreKey) -> Vec<(Vec<u8>, BatchIndex)> {
    let own = frames.into_iter().filter_map(|((generation, ..), body)| {
        // Only the key tells a frame from a client's data in another frame.
        let index = frame_index(&body, key)?;
        Some((generation, body, index))
    });
    let own: Vec<(u64, Vec<u8>, BatchIndex)> = own.collect();
    let newest = own.iter().map(|(generation, ..)| *generation).max();
    let counts = own.into_iter().filter(|(generation, ..)| Some(*generation) == newest);
    counts.map(|(_, body, index)| (body, index)).collect()
}

/// Whether an anchor is of the newest checkpoint: no segment has a node of a later one. A part of
/// the segments that cannot be read may have one.
fn is_newest(bytes: &mut GroupBytes<'_>, grid: &Grid, anchor: &Anchor) -> bool {
    let mut reader = RunReader { bytes, grid, key: &anchor.key, unread_bytes: 0 };
    let mut is_newest = true;
    for (_, start) in grid.with_runs() {
        reader.segment(start, &mut |_, index| {
            is_newest &= index.records.nodes.iter().all(|node| node.generation <= anchor.generation);
        });
    }
    is_newest && reader.unread_bytes == 0
}
