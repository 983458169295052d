//! Reads thin volumes through their maps: docs/format/thin.md.
//!
//! A volume has the content of the newest checkpoint, with the writes on top that came after it:
//! those in runs, and those in frames of the intent log.

mod bytes;
mod overlay;
pub(crate) mod packed;

use std::collections::BTreeMap;
use std::rc::Rc;

use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES, Anchor, Root};
use format::thin::batch::BatchIndex;
use format::thin::entry::LEAF_BLOCKS;
use format::thin::line::{LINES_LINE, LineRecord, SEGMENTS_LINE};
use format::thin::node::{NodeId, decode_inner_node, decode_line_leaf, decode_map_leaf, decode_segment_leaf};
use format::thin::record::{FragmentRecord, HoleRecord};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord, SegmentUse};
use format::thin::{Codec, StoredRange, ThinError};
use format::{BLOCK, ThinPoolRecord};

use crate::group::Group;
use crate::log::Log;
use crate::map::Map;
use crate::survey::SurveyedDrive;

use bytes::GroupBytes;
use overlay::{Overlay, Write, WriteContent};
use packed::LastFragment;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// The content of a block.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// It is at this byte of the group.
    Stored(u64),
    /// It is in a compressed fragment, so many blocks behind the first.
    Packed(PackedFragment, u8),
    /// It is in a frame.
    Frame(Rc<Vec<u8>>, usize),
    /// It cannot be read: its map is damaged.
    Unknown,
}

/// A compressed fragment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedFragment {
    stored: StoredRange,
    codec: Codec,
    blocks: u8,
}

/// A thin store of a group.
pub(crate) struct ThinStore<'a> {
    bytes: GroupBytes<'a>,
    anchor: Anchor,
    unit_bytes: u64,
    segments: Vec<u64>,
    /// Lines at the checkpoint.
    lines: BTreeMap<u32, LineRecord>,
    overlay: Overlay,
    last_fragment: LastFragment,
}

/// The leaves of a volume's map, and the parts of it that cannot be read.
#[derive(Default)]
pub(crate) struct VolumeMap {
    leaves: BTreeMap<u64, StoredRange>,
    /// Ranges of leaves below nodes that cannot be read.
    lost: Vec<(u64, u64)>,
}

impl<'a> ThinStore<'a> {
    /// Reads the newest checkpoint and all writes after it, of one store of the pool.
    ///
    /// # Errors
    /// A sentence: the anchors, the table of lines or the segment table cannot be read.
    pub(crate) fn open(
        group: &'a Group,
        drives: &'a [SurveyedDrive],
        (map, log): (&'a Map, &'a Log),
        pool: &ThinPoolRecord,
        store: u16,
    ) -> Result<ThinStore<'a>, String> {
        let mut bytes = GroupBytes::new(group, drives, map, log);
        let store = pool.store(store).ok_or("its pool has no such store")?;
        let segments: Vec<u64> = store
            .extents
            .iter()
            .flat_map(|extent| {
                let first = extent.start_byte.div_ceil(pool.segment_bytes);
                first..((extent.start_byte + extent.len_bytes) / pool.segment_bytes).max(first)
            })
            .collect();
        let first = *segments.first().ok_or("the store has no segment")?;
        let anchor = newest_anchor(&mut bytes, group, first * pool.segment_bytes)?;
        if anchor.segment_bytes != pool.segment_bytes {
            return Err("its anchor has another segment size than the catalogue".to_owned());
        }
        let geometry = &group.geometry;
        let stripe = geometry.data_count as u64 * geometry.strip;
        let rows = (geometry.chunk / geometry.strip).max(1);
        let unit_bytes = if rows == 1 { stripe } else { stripe * rows * geometry.sets };
        let (lines, overlay) = (BTreeMap::new(), Overlay::default());
        let mut store =
            ThinStore { bytes, anchor, unit_bytes, segments, lines, overlay, last_fragment: LastFragment::default() };
        let damaged = |error: ThinError| error.to_string();
        for (index, node) in store.own_leaves(LINES_LINE, store.anchor.lines)? {
            let id = NodeId { line: LINES_LINE, level: 0, index };
            store.lines.extend(decode_line_leaf(&node, id).map_err(damaged)?.into_iter().map(|line| (line.line, line)));
        }
        let mut records: BTreeMap<u64, SegmentRecord> = BTreeMap::new();
        for (index, node) in store.own_leaves(SEGMENTS_LINE, store.anchor.segments)? {
            let id = NodeId { line: SEGMENTS_LINE, level: 0, index };
            records.extend((index * SEGMENTS_PER_LEAF..).zip(decode_segment_leaf(&node, id).map_err(damaged)?));
        }
        store.find_writes(group, drives, &records);
        Ok(store)
    }

    /// All leaves of one of the store's own trees.
    fn own_leaves(&mut self, line: u32, root: Option<Root>) -> Result<Vec<(u64, Vec<u8>)>, String> {
        let mut leaves = Vec::new();
        let mut left: Vec<(NodeId, StoredRange)> =
            root.iter().map(|root| (NodeId { line, level: root.level, index: 0 }, root.stored)).collect();
        while let Some((id, stored)) = left.pop() {
            let node = self.stored(stored).ok_or_else(|| format!("a node at byte {} is lost", stored.address))?;
            if id.level == 0 {
                leaves.push((id.index, node));
                continue;
            }
            let children = decode_inner_node(&node, id).map_err(|error| error.to_string())?;
            left.extend(children.into_iter().map(|(slot, child)| (id.child(usize::from(slot)), child.stored)));
        }
        Ok(leaves)
    }

    /// The bytes of a stored range, if all of them can be read.
    fn stored(&mut self, stored: StoredRange) -> Option<Vec<u8>> {
        self.bytes.read(stored.address, u64::from(stored.bytes))
    }

    /// Finds the writes that the checkpoint does not cover.
    fn find_writes(&mut self, group: &Group, drives: &[SurveyedDrive], records: &BTreeMap<u64, SegmentRecord>) {
        let covered = self.anchor.covered;
        for id in self.segments.clone() {
            let record = records.get(&id).copied().unwrap_or_default();
            let start = id * self.anchor.segment_bytes;
            let filled = u64::from(record.filled_bytes).min(self.anchor.segment_bytes);
            let rest = self.anchor.segment_bytes - filled;
            let has_more = || self.bytes.is_any_written(start + filled, rest);
            let is_read = match record.used_for {
                SegmentUse::Nodes | SegmentUse::Anchors => false,
                SegmentUse::Data => record.newest_sequence > covered || has_more(),
                SegmentUse::Free => has_more(),
            };
            if is_read {
                self.scan_segment(start);
            }
        }
        for body in bytes::frames(group, drives, self.anchor.intent_generation) {
            self.read_frame(body);
        }
        self.overlay.sort(covered);
    }

    fn scan_segment(&mut self, start: u64) {
        let mut at = 0;
        while at < self.anchor.segment_bytes {
            let address = start + at;
            let run = self.index_at(address, self.anchor.segment_bytes - at);
            at += run.as_ref().map_or(self.unit_bytes, |index| index.batch_bytes as u64);
            let Some(index) = run else { continue };
            for (record, place) in index.records.fragments.iter().zip(index.records.contents(0)) {
                let at = address + place.start as u64;
                let content = match record.codec {
                    Codec::Plain => WriteContent::Stored(at),
                    codec => {
                        let stored = StoredRange { address: at, bytes: record.stored_bytes };
                        WriteContent::Packed(PackedFragment { stored, codec, blocks: record.blocks })
                    }
                };
                self.overlay.push(fragment(record, content, true));
            }
            index.records.holes.iter().for_each(|record| self.overlay.push(hole(record, true)));
        }
    }

    /// The index of a run that is there completely.
    fn index_at(&mut self, address: u64, room: u64) -> Option<BatchIndex> {
        let head = self.bytes.read(address, BLOCK_BYTES)?;
        let len = BatchIndex::announced_bytes(&head, &self.anchor.key, address)? as u64;
        let all = self.bytes.read(address, len.min(room))?;
        let index = BatchIndex::decode(&all, &self.anchor.key, address, 0).ok()?;
        let len = index.batch_bytes as u64;
        let is_whole = len > 0 && len.is_multiple_of(self.unit_bytes) && len <= room;
        (is_whole && self.bytes.is_all_written(address, len)).then_some(index)
    }

    fn read_frame(&mut self, body: Vec<u8>) {
        let base = format::intent_log::INTENT_HEAD_BYTES;
        let Ok(index) = BatchIndex::decode(&body, &self.anchor.key, 0, base) else { return };
        let body = Rc::new(body);
        for (record, place) in index.records.fragments.iter().zip(index.records.contents(base)) {
            let is_whole = body.get(place.clone()).is_some_and(|content| gf::crc32c(content) == record.crc32c);
            if is_whole && record.codec == Codec::Plain {
                let content = WriteContent::Frame(body.clone(), place.start);
                self.overlay.push(fragment(record, content, false));
            }
        }
        index.records.holes.iter().for_each(|record| self.overlay.push(hole(record, false)));
    }

    /// Bytes of a line that were mapped at the checkpoint.
    pub(crate) fn mapped_bytes(&self, line: u32) -> u64 {
        self.lines.get(&line).and_then(|line| line.root).map_or(0, |root| root.blocks * BLOCK_BYTES)
    }

    /// The parts of a volume's map, and of its content's places, that cannot be used: sentences.
    pub(crate) fn check(&mut self, line: u32) -> Vec<String> {
        let map = self.volume_map(line);
        let bytes = |block: u64| block * BLOCK_BYTES;
        let lost = map.lost().map(|(block, blocks)| {
            format!("the map of bytes {} to {} cannot be read", bytes(block), bytes(block + blocks))
        });
        let mut messages: Vec<String> = lost.collect();
        for leaf in self.used_leaves(line, &map) {
            let contents = self.leaf(line, leaf, &map);
            if contents.iter().flatten().any(|content| matches!(content, Content::Unknown)) {
                let start = bytes(leaf * LEAF_BLOCKS);
                messages.push(format!("the map of bytes {start} to {} cannot be read", start + bytes(LEAF_BLOCKS)));
            }
        }
        messages
    }

    /// Reads the inner nodes of a volume's map.
    pub(crate) fn volume_map(&mut self, line: u32) -> VolumeMap {
        let mut map = VolumeMap::default();
        let Some(record) = self.lines.get(&line).copied() else { return map };
        let mut left: Vec<(NodeId, StoredRange)> =
            record.root.iter().map(|root| (NodeId { line, level: record.root_level, index: 0 }, root.stored)).collect();
        while let Some((id, stored)) = left.pop() {
            if id.level == 0 {
                map.leaves.insert(id.index, stored);
                continue;
            }
            match self.stored(stored).and_then(|node| decode_inner_node(&node, id).ok()) {
                Some(children) => {
                    left.extend(children.into_iter().map(|(slot, child)| (id.child(usize::from(slot)), child.stored)));
                }
                None => {
                    let below = 8 * u32::from(id.level);
                    map.lost.push((id.index << below, 1 << below));
                }
            }
        }
        map
    }

    /// The leaves of a volume that may have content, in order.
    pub(crate) fn used_leaves(&self, line: u32, map: &VolumeMap) -> Vec<u64> {
        let mut leaves: Vec<u64> = map.leaves.keys().copied().chain(self.overlay.leaves(line)).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// The contents of the blocks of a leaf. `None`: a hole.
    pub(crate) fn leaf(&mut self, line: u32, leaf: u64, map: &VolumeMap) -> Vec<Option<Content>> {
        let mut blocks: Vec<Option<Content>> = vec![None; LEAF_BLOCKS as usize];
        if let Some(stored) = map.leaves.get(&leaf) {
            let id = NodeId { line, level: 0, index: leaf };
            match self.stored(*stored).and_then(|node| decode_map_leaf(&node, id).ok()) {
                Some(entries) => {
                    for entry in entries {
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
                }
                None => blocks.fill(Some(Content::Unknown)),
            }
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
            Content::Unknown => return false,
        }
        true
    }

    /// Bytes that were computed, and blocks that do not fit their checksums.
    pub(crate) fn reader(&self) -> &crate::stripe::StripeReader<'a> {
        &self.bytes.reader
    }
}

impl VolumeMap {
    /// Ranges of blocks whose map cannot be read.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.lost.iter().map(|(leaf, leaves)| (leaf * LEAF_BLOCKS, leaves * LEAF_BLOCKS))
    }

    /// Whether the map of a leaf cannot be read.
    pub(crate) fn is_lost(&self, leaf: u64) -> bool {
        self.lost.iter().any(|(first, count)| (*first..first + count).contains(&leaf))
    }
}

fn fragment(record: &FragmentRecord, content: WriteContent, is_in_run: bool) -> Write {
    let FragmentRecord { sequence, line, block, blocks, .. } = *record;
    Write { sequence, is_in_run, line, block, blocks: u64::from(blocks), content }
}

fn hole(record: &HoleRecord, is_in_run: bool) -> Write {
    let HoleRecord { sequence, line, block, blocks, .. } = *record;
    Write { sequence, is_in_run, line, block, blocks, content: WriteContent::Hole }
}

/// The valid anchor with the highest generation.
fn newest_anchor(bytes: &mut GroupBytes<'_>, group: &Group, start: u64) -> Result<Anchor, String> {
    let (mut newest, mut reason) = (None::<Anchor>, "its anchors are lost".to_owned());
    for address in [start, start + ANCHOR_DISTANCE_BYTES] {
        let Some(block) = bytes.read(address, ANCHOR_BYTES as u64) else { continue };
        match Anchor::decode(&block, &group.superblock.array) {
            Ok(anchor) if newest.as_ref().is_none_or(|newest| anchor.generation > newest.generation) => {
                newest = Some(anchor);
            }
            Ok(_) => {}
            Err(error) => reason = format!("it has no anchor: {error}"),
        }
    }
    newest.ok_or(reason)
}
