//! Opens a store: reads the newest checkpoint, and applies the writes that came after it.
//!
//! Such writes are found in two places. A run counts if all of its allocation chunks are allocated,
//! as the map of a chunk is durable after its data. A frame counts if the intent log has it. Each
//! block has the content of the write with the highest number. At the end there is a new
//! checkpoint, and the log begins anew.
//!
//! A run that no checkpoint knows is in a segment that the newest one calls free, or behind the
//! filled part of a segment. A segment that was freed and is not discarded yet may have old runs:
//! their writes are covered by the checkpoint, and do not count.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use drive::{BlockError, Buf, Env, oneshot};
use format::thin::anchor::{ANCHOR_BYTES, Anchor, Root};
use format::thin::batch::{BatchIndex, StoreKey};
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::thin::node::{NodeId, decode_inner_node, decode_line_leaf, decode_segment_leaf};
use format::thin::record::{FragmentRecord, HoleRecord};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord, SegmentUse};
use format::thin::{Codec, StoredRange, ThinError, WINDOW_BLOCKS};
use format::{BLOCK, ExtentRecord, Uuid};
use gf::crc32c;
use thiserror::Error;

use super::backing::{Allocated, Backing, INTENT_BASE};
use super::checkpoint::{anchor_address, write_anchor};
use super::frames::Frames;
use super::grid::Grid;
use super::leaf::LiveChanges;
use super::pace::Pace;
use super::pending::{Part, block_bits};
use super::pool::Growth;
use super::runs::Place;
use super::segments::SegmentTable;
use super::signal::Signal;
use super::store::{Readers, ThinStore, Tuning};
use super::trees::{Child, Line};
use super::write::split;

/// Why a store cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpenThinError {
    /// The group cannot be read or written.
    #[error(transparent)]
    Group(#[from] BlockError),
    /// An anchor is damaged, or there is no store in these extents. The other anchor may not be of
    /// the newest checkpoint.
    #[error("an anchor of the thin store cannot be read: {0}")]
    Anchor(ThinError),
    /// The store is damaged.
    #[error("the thin store is damaged: {0}")]
    Damaged(#[from] ThinError),
    /// The extents have no segment.
    #[error("there is no room for a segment")]
    NoRoom,
}

/// A write that the checkpoint does not cover.
struct FoundWrite {
    sequence: u64,
    line: u32,
    block: u64,
    blocks: u64,
    birth: u32,
    content: FoundContent,
}

enum FoundContent {
    /// In a frame: the content, or a hole.
    Frame(Option<Buf>),
    /// In a run: its place, or a hole.
    Run(Option<Place>),
}

impl<B: Backing> ThinStore<B> {
    /// Makes an empty store in these extents, whose content is lost.
    ///
    /// # Errors
    /// [`OpenThinError`].
    pub async fn create(
        backing: &B,
        array: Uuid,
        key: StoreKey,
        grid: Grid,
        extents: &[ExtentRecord],
    ) -> Result<(), OpenThinError> {
        let segments: Vec<u64> = extents.iter().flat_map(|extent| grid.segments(extent)).collect();
        let first = *segments.first().ok_or(OpenThinError::NoRoom)?;
        for id in segments {
            if backing.allocated(grid.start(id), grid.segment_bytes) != Allocated::Nothing {
                backing.discard(grid.start(id), grid.segment_bytes).await?;
            }
        }
        backing.flush().await?;
        let oldest = Anchor {
            key,
            generation: 1,
            segment_bytes: grid.segment_bytes,
            covered: 0,
            next_sequence: 1,
            intent_generation: first_intent_generation(&key),
            segments: None,
            lines: None,
        };
        let newest = Anchor { generation: 2, ..oldest.clone() };
        for anchor in [oldest, newest] {
            write_anchor(backing, &array, grid.start(first), &anchor).await?;
        }
        Ok(())
    }

    /// Opens the store in these extents, and brings it to the state of its last writes. It must
    /// get no write until all stores of the group are open: the intent log may have frames of
    /// theirs where it writes its own.
    ///
    /// # Errors
    /// [`OpenThinError`].
    pub async fn open(
        backing: B,
        array: Uuid,
        grid: Grid,
        extents: &[ExtentRecord],
        tuning: Tuning,
    ) -> Result<Rc<Self>, OpenThinError> {
        let ids: Vec<u64> = extents.iter().flat_map(|extent| grid.segments(extent)).collect();
        let first = *ids.first().ok_or(OpenThinError::NoRoom)?;
        let anchor = newest_anchor(&backing, &array, grid.start(first)).await?;
        if anchor.segment_bytes != grid.segment_bytes {
            return Err(ThinError::Invalid { what: "anchor", field: "segment bytes" }.into());
        }
        let store = Rc::new(Self::with_anchor(backing, array, (grid, first), &anchor, tuning));
        store.load_lines(anchor.lines).await?;
        store.load_segments(anchor.segments, &ids).await?;
        store.backing.begin_intents(anchor.intent_generation + 1)?;
        store.intent_generation.set(anchor.intent_generation + 1);
        let found = store.find_writes(anchor.intent_generation).await?;
        store.apply(found).await?;
        store.land_all().await?;
        store.checkpoint().await?;
        store.is_recovering.set(false);
        store.spawn_background();
        Ok(store)
    }

    fn with_anchor(backing: B, array: Uuid, (grid, anchors): (Grid, u64), anchor: &Anchor, tuning: Tuning) -> Self {
        let (readers, readers_ended) = oneshot();
        ThinStore {
            backing,
            array,
            key: anchor.key,
            grid,
            tuning,
            anchors,
            trees: RefCell::default(),
            pending: RefCell::default(),
            segments: RefCell::new(SegmentTable::new(grid)),
            frames: Frames::default(),
            queue: RefCell::default(),
            compressor: RefCell::default(),
            settings: RefCell::default(),
            ended_waits: RefCell::default(),
            are_waits_ended: Cell::new(false),
            written: RefCell::default(),
            arrived: RefCell::default(),
            landed: RefCell::default(),
            unlogged: Cell::new(false),
            next_sequence: Cell::new(anchor.next_sequence),
            seen_sequence: Cell::default(),
            generation: Cell::new(anchor.generation),
            covered: Cell::new(anchor.covered),
            changes_since: Cell::new(anchor.next_sequence),
            intent_generation: Cell::new(anchor.intent_generation),
            collecting_segments: Cell::default(),
            due: RefCell::default(),
            node_segment: Cell::new(None),
            own_nodes: RefCell::default(),
            loading: RefCell::default(),
            readers: RefCell::new(Rc::new(Readers::new(readers))),
            readers_ended: RefCell::new(readers_ended),
            partial: RefCell::default(),
            progress: Signal::default(),
            work: Signal::default(),
            waits_for_landing: Cell::new(false),
            waits_for_segments: Cell::new(false),
            growth: Growth::default(),
            pace: Pace::default(),
            collected_in_vain: Cell::new(0),
            garbage_in_vain: Cell::new(None),
            failed: RefCell::default(),
            counts: RefCell::default(),
            checkpointing: Cell::new(false),
            is_stopping: Cell::new(false),
            background_work: Cell::new(0),
            is_recovering: Cell::new(true),
        }
    }

    /// All nodes of one of the store's own trees, with their bytes, from the root down.
    async fn load_own(&self, line: u32, root: Option<Root>) -> Result<BTreeMap<u64, Vec<u8>>, OpenThinError> {
        let mut leaves = BTreeMap::new();
        let mut left: Vec<(NodeId, StoredRange)> =
            root.iter().map(|root| (NodeId { line, level: root.level, index: 0 }, root.stored)).collect();
        while let Some((id, stored)) = left.pop() {
            self.own_nodes.borrow_mut().insert(id, stored);
            let bytes = self.read_stored(stored).await?;
            if id.level == 0 {
                leaves.insert(id.index, bytes.to_vec());
                continue;
            }
            for (slot, child) in decode_inner_node(&bytes, id)? {
                left.push((id.child(usize::from(slot)), child.stored));
            }
        }
        Ok(leaves)
    }

    async fn load_lines(&self, root: Option<Root>) -> Result<(), OpenThinError> {
        for (index, bytes) in self.load_own(LINES_LINE, root).await? {
            let records = decode_line_leaf(&bytes, NodeId { line: LINES_LINE, level: 0, index })?;
            let line = |record: &format::thin::line::LineRecord| Line {
                epoch: record.epoch,
                is_deleted: record.is_deleted,
                root_level: record.root_level,
                root: record.root.map(Child::of),
            };
            self.trees.borrow_mut().lines.extend(records.iter().map(|record| (record.line, line(record))));
        }
        Ok(())
    }

    async fn load_segments(&self, root: Option<Root>, ids: &[u64]) -> Result<(), OpenThinError> {
        let mut records: BTreeMap<u64, SegmentRecord> = BTreeMap::new();
        for (index, bytes) in self.load_own(SEGMENTS_LINE, root).await? {
            let leaf = decode_segment_leaf(&bytes, NodeId { line: SEGMENTS_LINE, level: 0, index })?;
            let first = index * SEGMENTS_PER_LEAF;
            records.extend((first..).zip(leaf).filter(|(_, record)| record.used_for != SegmentUse::Free));
        }
        let mut segments = self.segments.borrow_mut();
        for id in ids {
            let record = if *id == self.anchors {
                let bytes = self.grid.segment_bytes as u32;
                records.remove(id);
                SegmentRecord {
                    used_for: SegmentUse::Anchors,
                    live_bytes: bytes,
                    filled_bytes: bytes,
                    newest_sequence: 0,
                }
            } else {
                records.remove(id).unwrap_or_default()
            };
            if u64::from(record.filled_bytes) > self.grid.segment_bytes {
                return Err(ThinError::Invalid { what: "segment record", field: "filled bytes" }.into());
            }
            segments.add(*id, record);
        }
        if !records.is_empty() {
            return Err(ThinError::Invalid { what: "segment record", field: "segment" }.into());
        }
        let (own, trees) = (self.own_nodes.borrow(), self.trees.borrow());
        let roots = trees.lines.values().filter_map(|line| line.root?.stored);
        if !own.values().copied().chain(roots).all(|stored| segments.holds(stored, SegmentUse::Nodes)) {
            return Err(ThinError::Invalid { what: "node", field: "place" }.into());
        }
        Ok(())
    }

    /// All writes that the checkpoint does not cover. Free segments that have none of them are
    /// discarded.
    async fn find_writes(&self, intent_generation: u64) -> Result<Vec<FoundWrite>, OpenThinError> {
        let mut found = Vec::new();
        let covered = self.covered.get();
        let segments: Vec<(u64, SegmentRecord)> =
            self.segments.borrow().iter().map(|(id, segment)| (id, segment.record)).collect();
        let mut unused = Vec::new();
        for (id, record) in segments {
            let tail = u64::from(record.filled_bytes);
            let (start, bytes) = (self.grid.start(id) + tail, self.grid.segment_bytes - tail);
            let has_more = bytes > 0 && self.backing.allocated(start, bytes) != Allocated::Nothing;
            match record.used_for {
                SegmentUse::Free if !has_more => self.segments.borrow_mut().discarded(id),
                SegmentUse::Data if !has_more && record.newest_sequence <= covered => {}
                SegmentUse::Free | SegmentUse::Data => {
                    let before = found.len();
                    self.scan_segment(id, &mut found).await?;
                    let newest = found[before..].iter().map(|write| write.sequence).max();
                    match newest {
                        Some(newest) => self.segments.borrow_mut().found_runs(id, newest),
                        None if record.used_for == SegmentUse::Free => unused.push(id),
                        None => {}
                    }
                }
                SegmentUse::Nodes | SegmentUse::Anchors => {}
            }
        }
        self.discard_segments(&unused).await?;
        for body in self.backing.intents(intent_generation).await? {
            self.read_frame(&body, &mut found);
        }
        found.retain(|write| write.sequence > covered);
        Ok(found)
    }

    /// The uncovered writes in the runs of a segment.
    async fn scan_segment(&self, id: u64, found: &mut Vec<FoundWrite>) -> Result<(), OpenThinError> {
        let (mut at, covered) = (0, self.covered.get());
        while at < self.grid.segment_bytes {
            let address = self.grid.start(id) + at;
            let Some(index) = self.read_index(address).await? else {
                at += self.grid.unit_bytes;
                continue;
            };
            let run_bytes = index.batch_bytes as u64;
            let is_whole = run_bytes.is_multiple_of(self.grid.unit_bytes)
                && run_bytes <= self.grid.segment_bytes - at
                && self.backing.allocated(address, run_bytes) == Allocated::All;
            at += if is_whole { run_bytes } else { self.grid.unit_bytes };
            if !is_whole {
                continue;
            }
            let records = &index.records;
            for (record, place) in records.fragments.iter().zip(records.contents(0)) {
                let stored = StoredRange { address: address + place.start as u64, bytes: record.stored_bytes };
                let place = Place { stored, codec: record.codec };
                found.push(fragment_write(record, FoundContent::Run(Some(place))));
            }
            found.extend(records.holes.iter().map(|hole| hole_write(hole, FoundContent::Run(None))));
        }
        found.retain(|write| write.sequence > covered);
        Ok(())
    }

    /// The index of the run at an address, if there is one.
    pub(super) async fn read_index(&self, address: u64) -> Result<Option<BatchIndex>, BlockError> {
        let head = self.backing.read(address, self.env().alloc(BLOCK)).await?;
        let Some(bytes) = BatchIndex::announced_bytes(&head, &self.key, address) else { return Ok(None) };
        let end = self.grid.start(self.grid.segment_of(address) + 1);
        let bytes = (bytes as u64).next_multiple_of(BLOCK as u64);
        if bytes > end - address {
            return Ok(None);
        }
        let bytes = self.backing.read(address, self.env().alloc(bytes as usize)).await?;
        Ok(BatchIndex::decode(&bytes, &self.key, address, 0).ok())
    }

    /// The writes in a frame.
    fn read_frame(&self, body: &[u8], found: &mut Vec<FoundWrite>) {
        // A frame of another user of the log is none of ours.
        let Ok(index) = BatchIndex::decode(body, &self.key, 0, INTENT_BASE) else { return };
        let records = &index.records;
        for (record, place) in records.fragments.iter().zip(records.contents(INTENT_BASE)) {
            let Some(content) = body.get(place) else { continue };
            if crc32c(content) != record.crc32c || record.codec != Codec::Plain {
                continue;
            }
            found.push(fragment_write(record, FoundContent::Frame(Some(Buf::from(content.to_vec())))));
        }
        found.extend(records.holes.iter().map(|hole| hole_write(hole, FoundContent::Frame(None))));
    }

    /// Applies writes in their order. Writes that only frames have are pending afterwards. If a
    /// write is in a frame and in a run, the run is used.
    async fn apply(self: &Rc<Self>, mut found: Vec<FoundWrite>) -> Result<(), OpenThinError> {
        found.sort_by_key(|write| (write.sequence, matches!(write.content, FoundContent::Run(_))));
        for write in found {
            self.next_sequence.set(self.next_sequence.get().max(write.sequence + 1));
            for (block, blocks) in split(write.block, write.blocks, WINDOW_BLOCKS) {
                let (window, first) = (block / WINDOW_BLOCKS, (block % WINDOW_BLOCKS) as u8);
                let bits = block_bits(first, blocks as u8);
                match &write.content {
                    FoundContent::Frame(content) => {
                        self.make_pending(&write, (window, first, blocks as u8), content.clone());
                    }
                    FoundContent::Run(place) => {
                        self.pending.borrow_mut().entered(write.line, window, (bits, write.sequence));
                        self.map_found(&write, (window, first, blocks as u8), *place).await?;
                    }
                }
            }
        }
        let pending = self.pending.borrow();
        for id in pending.all() {
            self.queue.borrow_mut().push(id, pending.get(id).expect("it was just listed"));
        }
        Ok(())
    }

    fn make_pending(&self, write: &FoundWrite, (window, first, blocks): (u64, u8, u8), content: Option<Buf>) {
        let part = Part::new(write.sequence, write.birth, (first, blocks), content);
        self.pending.borrow_mut().insert(write.line, window, part);
    }

    async fn map_found(
        self: &Rc<Self>,
        write: &FoundWrite,
        (window, first, blocks): (u64, u8, u8),
        place: Option<Place>,
    ) -> Result<(), BlockError> {
        let leaf_index = window * WINDOW_BLOCKS / LEAF_BLOCKS;
        match place {
            Some(_) => self.load_or_create_leaf(write.line, leaf_index).await?,
            None if !self.load_leaf(write.line, leaf_index).await? => return Ok(()),
            None => {}
        }
        let window = (window % (LEAF_BLOCKS / WINDOW_BLOCKS)) as u8;
        self.change_leaf(write.line, leaf_index, |leaf| {
            let mut changes: LiveChanges = leaf.clear(window, block_bits(first, blocks));
            if let Some(Place { stored, codec }) = place {
                let (first, used) = (window * WINDOW_BLOCKS as u8 + first, block_bits(0, blocks));
                let entry = MapEntry { stored, codec, first, blocks, used, birth: write.birth };
                changes.push(leaf.insert(entry));
            }
            changes
        });
        Ok(())
    }
}

/// The generation of a new store's frames, drawn with its key. The log may still have frames of an
/// earlier store, with the same numbers. Each opening takes the next generation.
fn first_intent_generation(key: &StoreKey) -> u64 {
    let (drawn, _) = key.split_first_chunk().expect("a key has 16 bytes");
    (u64::from_le_bytes(*drawn) >> 24 << 20) | 1
}

fn fragment_write(record: &FragmentRecord, content: FoundContent) -> FoundWrite {
    let FragmentRecord { sequence, line, block, birth, .. } = *record;
    FoundWrite { sequence, line, block, blocks: u64::from(record.blocks), birth, content }
}

fn hole_write(hole: &HoleRecord, content: FoundContent) -> FoundWrite {
    let HoleRecord { sequence, line, block, blocks, birth } = *hole;
    FoundWrite { sequence, line, block, blocks, birth, content }
}

/// The anchor with the highest generation. From the first moment on both anchors are valid, also
/// after a power cut: all that differs between two anchors is in one sector. So if one of them is
/// not valid, it was damaged later. If it was the newer one, segments that the older one needs may
/// have been filled again.
async fn newest_anchor<B: Backing>(backing: &B, array: &Uuid, start_byte: u64) -> Result<Anchor, OpenThinError> {
    let mut anchors = Vec::with_capacity(2);
    for place in 0..2 {
        let address = anchor_address(start_byte, place);
        let bytes = backing.read(address, backing.env().alloc(ANCHOR_BYTES)).await?;
        anchors.push(Anchor::decode(&bytes, array).map_err(OpenThinError::Anchor)?);
    }
    let [even, odd] = anchors.try_into().expect("there are two");
    Anchor::newest(even, odd).map_err(OpenThinError::Anchor)
}
