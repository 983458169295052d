//! Checkpoints: the maps and tables of one moment, written to segments of their own, and then an
//! anchor that leads to them.
//!
//! 1. In one step without waiting: each dirty node gets a new place, its content is held, and its
//!    old place becomes garbage. So all of them are of one moment. Nearly all nodes are leaves of
//!    maps. Their bytes are made later, in pieces ([`super::pace`]). A change meanwhile makes a
//!    copy.
//! 2. The nodes are written, and everything is flushed.
//! 3. The anchor is written, in the place that does not hold the newest one.
//! 4. Segments that no checkpoint needs any more are discarded. They are free once that is durable.
//!
//! The segment table says how much of each segment is live, also of the segments with its own
//! nodes. So the places of all nodes are chosen before the bytes of the table are made, and the
//! leaves of the table that this changes are known before ([`ThinStore::changing_table_leaves`]).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use drive::{BlockError, Buf, Env, join_all};
use format::Uuid;
use format::thin::StoredRange;
use format::thin::anchor::{ANCHOR_DISTANCE_BYTES, Anchor, Root};
use format::thin::batch::{BATCH_HEAD_BYTES, BatchRecords, encode_index};
use format::thin::line::{LINE_RECORD_BYTES, LINES_LINE, LINES_PER_LEAF, LineRecord, SEGMENTS_LINE};
use format::thin::node::{
    CHILDREN, ChildRecord, Children, NODE_HEAD_BYTES, NodeId, SEGMENT_LEAF_BYTES, encode_inner_node, encode_line_leaf,
    encode_map_leaf, encode_segment_leaf, inner_node_bytes, root_level,
};
use format::thin::record::{NodeRecord, RECORD_BYTES};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentUse};

use super::backing::Backing;
use super::leaf::MapLeaf;
use super::runs::claim;
use super::segments::OpenSegment;
use super::store::ThinStore;
use super::trees::{Child, Line, NodeContent, child_records};

/// The bytes of so many nodes are made before clients are served, see [`super::pace`].
const NODES_AT_ONCE: usize = 32;

/// Where the anchor of a generation is, in a store whose first extent begins at `start_byte`.
pub(super) fn anchor_address(start_byte: u64, generation: u64) -> u64 {
    start_byte + generation % 2 * ANCHOR_DISTANCE_BYTES
}

/// Writes an anchor in its place, in a store whose first extent begins at `start_byte`.
pub(super) async fn write_anchor<B: Backing>(
    backing: &B,
    array: &Uuid,
    start_byte: u64,
    anchor: &Anchor,
) -> Result<(), BlockError> {
    let address = anchor_address(start_byte, anchor.generation);
    backing.write(address, Buf::from(anchor.encode(array)), true).await
}

/// A run with nodes: its place, and its nodes with theirs.
struct NodeRun {
    address: u64,
    bytes: u64,
    nodes: Vec<(NodeId, StoredRange)>,
}

/// All that a checkpoint writes.
struct FrozenCheckpoint {
    anchor: Anchor,
    /// Runs with nodes, and the contents of these.
    runs: Vec<NodeRun>,
    contents: BTreeMap<NodeId, FrozenNode>,
    /// Segments that are free once the anchor is durable.
    freed: Vec<u64>,
}

/// The content of a node at the moment of the checkpoint.
enum FrozenNode {
    Leaf(Rc<MapLeaf>),
    Encoded(Vec<u8>),
}

/// The nodes of a checkpoint, while their places are chosen.
#[derive(Default)]
struct NodeWriter {
    runs: Vec<NodeRun>,
    open: Option<OpenSegment>,
    contents: BTreeMap<NodeId, FrozenNode>,
}

impl<B: Backing> ThinStore<B> {
    /// Makes a checkpoint, and then discards the segments that it frees.
    ///
    /// # Errors
    /// [`BlockError`]. The store is useless then.
    pub async fn checkpoint(self: &Rc<Self>) -> Result<(), BlockError> {
        let _hurry = self.hurry();
        self.checkpoint_at_pace().await
    }

    /// As [`ThinStore::checkpoint`], at the pace of the collector.
    pub(super) async fn checkpoint_at_pace(self: &Rc<Self>) -> Result<(), BlockError> {
        while !claim(&self.checkpointing) {
            self.progress.changed().await;
        }
        let result = self.make_checkpoint().await;
        self.checkpointing.set(false);
        if let Err(error) = &result {
            self.fail(error);
        }
        self.progress.raise();
        result
    }

    async fn make_checkpoint(self: &Rc<Self>) -> Result<(), BlockError> {
        self.check_usable()?;
        let covered = self.coverable();
        let FrozenCheckpoint { anchor, runs, mut contents, freed } = self.freeze(covered)?;
        self.check_usable()?;
        let written: u64 = runs.iter().map(|run| run.bytes).sum();
        for run in &runs {
            let data = self.encode_nodes(run, &mut contents, anchor.generation).await;
            self.write_in_pieces(run.address, &data).await?;
        }
        self.make_durable().await?;
        write_anchor(&self.backing, &self.array, self.grid.start(self.anchors), &anchor).await?;
        self.generation.set(anchor.generation);
        self.covered.set(covered);
        self.changes_since.set(anchor.next_sequence);
        {
            let mut counts = self.counts.borrow_mut();
            counts.checkpoints += 1;
            counts.node_run_bytes += written;
            counts.freed_segments += freed.len() as u64;
        }
        self.discard_segments(&freed).await
    }

    /// The highest write that a checkpoint would cover now, with all before it.
    pub(super) fn coverable(&self) -> u64 {
        self.pending.borrow().lowest().unwrap_or(self.next_sequence.get()) - 1
    }

    /// Discards segments that the newest anchor says are free. Reads that began before it may still
    /// use them.
    pub(super) async fn discard_segments(&self, freed: &[u64]) -> Result<(), BlockError> {
        if freed.is_empty() {
            return Ok(());
        }
        self.earlier_reads().await;
        let discards = freed.iter().map(|id| self.backing.discard(self.grid.start(*id), self.grid.segment_bytes));
        join_all(discards.collect::<Vec<_>>()).await.into_iter().collect::<Result<(), _>>()?;
        self.make_durable().await?;
        let mut segments = self.segments.borrow_mut();
        freed.iter().for_each(|id| segments.discarded(*id));
        Ok(())
    }

    /// All that a checkpoint writes, as of now.
    fn freeze(&self, covered: u64) -> Result<FrozenCheckpoint, BlockError> {
        let generation = self.generation.get() + 1;
        let mut writer = NodeWriter { open: self.node_segment.get(), ..NodeWriter::default() };
        let maps = self.remove_empty_nodes();
        let lines = self.own_ids(LINES_LINE, &self.dirty_line_leaves());
        let mut freed = self.segments.borrow_mut().free_unused(covered);
        let mut wanted: Vec<(NodeId, usize)> = maps.iter().map(|id| (*id, self.map_node_bytes(*id))).collect();
        wanted.extend(lines.iter().map(|id| (*id, self.line_node_bytes(*id, &lines))));
        let table_leaves = self.changing_table_leaves(&wanted);
        let table = self.own_ids(SEGMENTS_LINE, &table_leaves);
        wanted.extend(table.iter().map(|id| (*id, self.table_node_bytes(*id, &table))));

        let places = self.place_nodes(&mut writer, &wanted)?;
        let (map_places, own_places) = places.split_at(maps.len());
        maps.iter().zip(map_places).for_each(|(id, place)| self.freeze_map_node(&mut writer, *id, *place, generation));
        lines.iter().chain(&table).zip(own_places).for_each(|(id, place)| self.own_node_moved(*id, *place));
        freed.extend(self.segments.borrow_mut().free_unused(covered));
        self.encode_own_nodes(&mut writer, &lines, &table);
        {
            let dirty = &mut self.segments.borrow_mut().dirty;
            assert!(dirty.is_subset(&table_leaves), "a leaf of the segment table was forgotten");
            dirty.clear();
        }
        self.node_segment.set(writer.open);
        let anchor = Anchor {
            key: self.key,
            generation,
            segment_bytes: self.grid.segment_bytes,
            covered,
            next_sequence: self.next_sequence.get(),
            intent_generation: self.intent_generation.get(),
            segments: self.own_root(SEGMENTS_LINE),
            lines: self.own_root(LINES_LINE),
        };
        {
            let mut segments = self.segments.borrow_mut();
            writer.runs.iter().for_each(|run| segments.landed(run.address));
        }
        Ok(FrozenCheckpoint { anchor, runs: writer.runs, contents: writer.contents, freed })
    }

    fn map_node_bytes(&self, id: NodeId) -> usize {
        self.trees.borrow().node(id).expect("a dirty node is in memory").content.encoded_bytes()
    }

    /// Bytes of a node of the table of lines, once the nodes `changed` are there.
    fn line_node_bytes(&self, id: NodeId, changed: &[NodeId]) -> usize {
        match id.level {
            0 => NODE_HEAD_BYTES + self.line_records(id.index).len() * LINE_RECORD_BYTES,
            _ => inner_node_bytes(self.own_children_with(id, changed)),
        }
    }

    /// Bytes of a node of the segment table, once the nodes `changed` are there.
    fn table_node_bytes(&self, id: NodeId, changed: &[NodeId]) -> usize {
        match id.level {
            0 => SEGMENT_LEAF_BYTES,
            _ => inner_node_bytes(self.own_children_with(id, changed)),
        }
    }

    /// A dirty node of a map gets its place, and its content is held. Nodes come from the leaves
    /// up, so that each has the places of those below it.
    fn freeze_map_node(&self, writer: &mut NodeWriter, id: NodeId, place: StoredRange, generation: u64) {
        let mut trees = self.trees.borrow_mut();
        let frozen = trees.clean(id, generation, |content| match content {
            NodeContent::Leaf(leaf) => FrozenNode::Leaf(leaf.clone()),
            NodeContent::Inner(children) => FrozenNode::Encoded(encode_inner_node(id, &child_records(children))),
        });
        writer.contents.insert(id, frozen);
        let old = trees.child_of(id).stored.replace(place);
        self.node_moved(old, place);
    }

    /// The bytes of the nodes of the store's own trees. Their places were chosen before.
    fn encode_own_nodes(&self, writer: &mut NodeWriter, lines: &[NodeId], table: &[NodeId]) {
        for id in lines.iter().chain(table) {
            let bytes = match (id.level, id.line) {
                (0, LINES_LINE) => encode_line_leaf(*id, &self.line_records(id.index)),
                (0, _) => encode_segment_leaf(*id, &self.segments.borrow().leaf(id.index)),
                _ => encode_inner_node(*id, &self.own_children(*id)),
            };
            writer.contents.insert(*id, FrozenNode::Encoded(bytes));
        }
    }

    /// The leaves of the segment table that change when these nodes, and then those leaves, get
    /// other places. Some may be in it that do not.
    fn changing_table_leaves(&self, nodes: &[(NodeId, usize)]) -> BTreeSet<u64> {
        let (segments, own) = (self.segments.borrow(), self.own_nodes.borrow());
        let leaf_of = |segment: u64| segment / SEGMENTS_PER_LEAF;
        let leaf_at = |stored: StoredRange| leaf_of(self.grid.segment_of(stored.address));
        let mut leaves = segments.dirty.clone();
        {
            let mut trees = self.trees.borrow_mut();
            let old = nodes.iter().filter_map(|(id, _)| match id.line {
                LINES_LINE => own.get(id).copied(),
                _ => trees.child_of(*id).stored,
            });
            leaves.extend(old.map(leaf_at));
        }
        leaves.extend(self.node_segment.get().map(|open| leaf_of(open.id)));
        loop {
            let table = self.own_ids(SEGMENTS_LINE, &leaves);
            let more = table.iter().map(|id| (*id, self.table_node_bytes(*id, &table)));
            let bytes: u64 =
                nodes.iter().copied().chain(more).map(|(_, len)| RECORD_BYTES as u64 + len as u64 + 15).sum();
            // No node is in two segments, so a little of each segment may stay empty.
            let opened = 1 + bytes / (self.grid.segment_bytes - inner_node_bytes(CHILDREN) as u64);
            let before = leaves.len();
            leaves.extend(segments.next_free().take(opened as usize + 1).map(leaf_of));
            leaves.extend(table.iter().filter_map(|id| own.get(id).copied()).map(leaf_at));
            if leaves.len() == before {
                return leaves;
            }
        }
    }

    /// The leaves of the table of lines with changed lines.
    fn dirty_line_leaves(&self) -> BTreeSet<u64> {
        let dirty = std::mem::take(&mut self.trees.borrow_mut().dirty_lines);
        dirty.iter().map(|line| u64::from(*line) / LINES_PER_LEAF).collect()
    }

    /// The records of a leaf of the table of lines.
    fn line_records(&self, leaf: u64) -> Vec<LineRecord> {
        let trees = self.trees.borrow();
        let range = (leaf * LINES_PER_LEAF) as u32..=((leaf + 1) * LINES_PER_LEAF - 1) as u32;
        let record = |(line, state): (&u32, &Line)| LineRecord {
            line: *line,
            is_deleted: state.is_deleted,
            epoch: state.epoch,
            root_level: state.root_level,
            root: state.root.as_ref().and_then(Child::record),
        };
        trees.lines.range(range).map(record).collect()
    }

    /// Removes the nodes that map nothing, and returns the other dirty ones from the leaves up.
    fn remove_empty_nodes(&self) -> Vec<NodeId> {
        let mut trees = self.trees.borrow_mut();
        let dirty = trees.dirty();
        let mut left = Vec::with_capacity(dirty.len());
        for id in dirty {
            let is_empty = match &trees.node(id).expect("a dirty node is in memory").content {
                NodeContent::Leaf(leaf) => leaf.entries().is_empty(),
                NodeContent::Inner(children) => children.is_empty(),
            };
            if !is_empty {
                left.push(id);
                continue;
            }
            let old = trees.child_of(id).stored;
            trees.remove_empty(id);
            if let Some(old) = old {
                self.segments.borrow_mut().change_live(old.address, -i64::from(old.bytes));
            }
        }
        left
    }

    fn node_moved(&self, old: Option<StoredRange>, new: StoredRange) {
        let mut segments = self.segments.borrow_mut();
        segments.change_live(new.address, i64::from(new.bytes));
        if let Some(old) = old {
            segments.change_live(old.address, -i64::from(old.bytes));
        }
    }

    fn open_node_segment(&self, writer: &mut NodeWriter) -> Result<(), BlockError> {
        let mut segments = self.segments.borrow_mut();
        let next = segments.open(SegmentUse::Nodes, 0).ok_or(BlockError::NoSpace)?;
        if let Some(open) = writer.open.replace(next) {
            segments.close(open);
        }
        Ok(())
    }

    /// The nodes of one of the store's own trees that change with these leaves, from the leaves up.
    fn own_ids(&self, line: u32, leaves: &BTreeSet<u64>) -> Vec<NodeId> {
        let mut ids: Vec<NodeId> = leaves.iter().map(|leaf| NodeId { line, level: 0, index: *leaf }).collect();
        let top = self.own_root_level(line, leaves);
        let mut below = 0..ids.len();
        for _ in 0..top {
            let above: BTreeSet<NodeId> = ids[below.clone()].iter().map(|id| id.parent().0).collect();
            below = ids.len()..ids.len() + above.len();
            ids.extend(above);
        }
        ids
    }

    fn own_root_level(&self, line: u32, leaves: &BTreeSet<u64>) -> u8 {
        let own = self.own_nodes.borrow();
        let first = NodeId { line, level: 0, index: 0 };
        let known = own.range(first..NodeId { level: 1, ..first }).next_back().map(|(id, _)| id.index);
        let last = known.into_iter().chain(leaves.last().copied()).max();
        root_level(last.map_or(0, |last| last + 1))
    }

    fn own_node_moved(&self, id: NodeId, place: StoredRange) {
        let old = self.own_nodes.borrow_mut().insert(id, place);
        self.node_moved(old, place);
    }

    fn own_root(&self, line: u32) -> Option<Root> {
        let level = self.own_root_level(line, &BTreeSet::new());
        let root = self.own_nodes.borrow().get(&NodeId { line, level, index: 0 }).copied();
        root.map(|stored| Root { stored, level })
    }

    /// The children of an inner node of the store's own trees.
    fn own_children(&self, id: NodeId) -> Children {
        let own = self.own_nodes.borrow();
        let child = |(child, stored): (&NodeId, &StoredRange)| {
            ((child.index % 256) as u8, ChildRecord { stored: *stored, blocks: 0, live_bytes: 0 })
        };
        own.range(id.child(0)..=id.child(255)).map(child).collect()
    }

    /// Number of the children that an inner node will have once `added` are there.
    fn own_children_with(&self, id: NodeId, added: &[NodeId]) -> usize {
        let own = self.own_nodes.borrow();
        let range = id.child(0)..=id.child(255);
        let new = added.iter().filter(|node| range.contains(node) && !own.contains_key(node)).count();
        own.range(range.clone()).count() + new
    }

    /// Chooses places for nodes of these lengths, in runs of their own.
    fn place_nodes(&self, writer: &mut NodeWriter, nodes: &[(NodeId, usize)]) -> Result<Vec<StoredRange>, BlockError> {
        let (mut places, mut left) = (Vec::with_capacity(nodes.len()), nodes);
        while !left.is_empty() {
            let room = writer.open.map_or(0, |open| self.segments.borrow().left(open));
            let count = nodes_in(left, room);
            if count == 0 {
                self.open_node_segment(writer)?;
                continue;
            }
            let (now, later) = left.split_at(count);
            let bytes = run_bytes(now).next_multiple_of(self.grid.unit_bytes);
            let open = writer.open.expect("a segment is open");
            let address = self.segments.borrow_mut().fill(open, bytes, 0);
            let mut at = address + index_bytes(now.len());
            let mut run = NodeRun { address, bytes, nodes: Vec::with_capacity(count) };
            for (id, len) in now {
                at = at.next_multiple_of(16);
                let stored = StoredRange { address: at, bytes: *len as u32 };
                run.nodes.push((*id, stored));
                places.push(stored);
                at += *len as u64;
            }
            writer.runs.push(run);
            left = later;
        }
        Ok(places)
    }

    /// The bytes of a run with nodes. Made in pieces.
    async fn encode_nodes(&self, run: &NodeRun, contents: &mut BTreeMap<NodeId, FrozenNode>, generation: u64) -> Buf {
        let record = |(id, stored): &(NodeId, StoredRange)| NodeRecord {
            generation,
            line: id.line,
            level: id.level,
            index: id.index,
            stored_bytes: stored.bytes,
        };
        let records = BatchRecords { nodes: run.nodes.iter().map(record).collect(), ..BatchRecords::default() };
        let index = encode_index(&self.key, run.address, run.bytes as usize, &records);
        let mut data = self.env().alloc(run.bytes as usize);
        data.fill(0);
        data[..index.len()].copy_from_slice(&index);
        for (number, (id, stored)) in run.nodes.iter().enumerate() {
            if number % NODES_AT_ONCE == NODES_AT_ONCE - 1 {
                self.make_room_for_clients().await;
            }
            let at = (stored.address - run.address) as usize;
            let content = match contents.remove(id).expect("each node is in one run") {
                FrozenNode::Leaf(leaf) => encode_map_leaf(*id, leaf.entries()),
                FrozenNode::Encoded(bytes) => bytes,
            };
            assert_eq!(content.len(), stored.bytes as usize, "a node has the length that it got a place for");
            data[at..at + content.len()].copy_from_slice(&content);
        }
        data.freeze()
    }
}

fn index_bytes(nodes: usize) -> u64 {
    (BATCH_HEAD_BYTES + nodes * RECORD_BYTES) as u64
}

/// Bytes of a run with these nodes.
fn run_bytes(nodes: &[(NodeId, usize)]) -> u64 {
    nodes.iter().fold(index_bytes(nodes.len()), |at, (_, len)| at.next_multiple_of(16) + *len as u64)
}

/// How many of these nodes fit into a run of `room` bytes.
fn nodes_in(nodes: &[(NodeId, usize)], room: u64) -> usize {
    let mut bytes = BATCH_HEAD_BYTES as u64;
    let fits = |(_, len): &&(NodeId, usize)| {
        bytes += RECORD_BYTES as u64 + (*len as u64).next_multiple_of(16);
        bytes <= room
    };
    nodes.iter().take_while(fits).count()
}
