//! The anchors, and the tables of the newest checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;

use format::Uuid;
use format::thin::StoredRange;
use format::thin::anchor::{ANCHOR_BYTES, ANCHOR_DISTANCE_BYTES, Anchor, Root};
use format::thin::line::{LINES_LINE, LINES_PER_LEAF, LineRecord, SEGMENTS_LINE};
use format::thin::node::{NodeId, decode_inner_node, decode_line_leaf, decode_segment_leaf};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord};

use super::bytes::GroupBytes;

/// The anchors of a store.
pub(super) enum Anchors {
    /// The newest one.
    Newest(Anchor),
    /// The only one that is left. The other one may have been newer.
    OneLeft(Anchor),
    /// None is left: a sentence.
    Lost(String),
}

impl Anchors {
    /// Reads the anchors in the segment at `start`. `store` is its name for people.
    ///
    /// Both are valid at any time, also after a crash. If one of them is not, it was damaged later.
    /// It may have been the newer one. Then segments that the older one needs may have been freed
    /// and filled again.
    pub fn read(bytes: &mut GroupBytes<'_>, array: &Uuid, (start, segment_bytes): (u64, u64), store: &str) -> Anchors {
        let mut valid = Vec::new();
        let mut reason = format!("the anchors of {store} are lost");
        for address in [start, start + ANCHOR_DISTANCE_BYTES] {
            let Some(block) = bytes.read(address, ANCHOR_BYTES as u64) else { continue };
            match Anchor::decode(&block, array) {
                Ok(anchor) if anchor.segment_bytes == segment_bytes => valid.push(anchor),
                Ok(_) => reason = format!("the anchor of {store} has another segment size than the catalogue"),
                Err(error) => reason = format!("{store} has no anchor: {error}"),
            }
        }
        if let [even, odd] = &valid[..]
            && let Ok(newest) = Anchor::newest(even.clone(), odd.clone())
        {
            return Anchors::Newest(newest);
        }
        valid.sort_by_key(|anchor| anchor.generation);
        valid.pop().map_or(Anchors::Lost(reason), Anchors::OneLeft)
    }
}

/// The newest checkpoint.
pub(super) struct Checkpoint {
    pub anchor: Anchor,
    lines: BTreeMap<u32, LineRecord>,
    /// Leaves of the table of lines that cannot be read.
    lost_lines: Vec<Range<u64>>,
    /// The segment table, if all of it can be read.
    segments: Option<BTreeMap<u64, SegmentRecord>>,
}

/// Leaves of a tree, and the ranges of leaves that cannot be read.
#[derive(Default)]
struct Leaves<T> {
    leaves: Vec<(u64, T)>,
    lost: Vec<Range<u64>>,
}

impl Checkpoint {
    pub fn read(bytes: &mut GroupBytes<'_>, anchor: Anchor) -> Checkpoint {
        let lines = own_leaves(bytes, (LINES_LINE, anchor.lines), |node, id| decode_line_leaf(node, id).ok());
        let table = own_leaves(bytes, (SEGMENTS_LINE, anchor.segments), |node, id| decode_segment_leaf(node, id).ok());
        let segments = table.leaves.into_iter().flat_map(|(index, leaf)| (index * SEGMENTS_PER_LEAF..).zip(leaf));
        let segments = table.lost.is_empty().then(|| segments.collect());
        let records = lines.leaves.into_iter().flat_map(|(_, leaf)| leaf);
        let records = records.map(|record| (record.line, record)).collect();
        Checkpoint { anchor, lines: records, lost_lines: lines.lost, segments }
    }

    /// The record of a segment. `None`: the segment table cannot be read.
    pub fn segment(&self, id: u64) -> Option<SegmentRecord> {
        self.segments.as_ref().map(|segments| segments.get(&id).copied().unwrap_or_default())
    }

    /// The record of a line, if it has one. `Err`: the table of lines cannot be read there.
    pub fn line(&self, line: u32) -> Result<Option<LineRecord>, ()> {
        let leaf = u64::from(line) / LINES_PER_LEAF;
        if self.lost_lines.iter().any(|lost| lost.contains(&leaf)) {
            return Err(());
        }
        Ok(self.lines.get(&line).copied())
    }

    /// Whether the trees have exactly the writes up to the one that the anchor names. Otherwise
    /// they may have later ones, too.
    pub fn is_exact(&self) -> bool {
        self.anchor.covered.checked_add(1) == Some(self.anchor.next_sequence)
    }

    /// The parts of the tables that cannot be read: sentences.
    pub fn messages(&self, store: &str) -> Vec<String> {
        let is_cut = !self.lost_lines.is_empty();
        let lines = is_cut.then(|| format!("a part of the table of lines of {store} cannot be read"));
        let segments = self.segments.is_none().then(|| format!("the segment table of {store} cannot be read"));
        lines.into_iter().chain(segments).collect()
    }
}

/// All leaves of one of the store's own trees.
fn own_leaves<T>(
    bytes: &mut GroupBytes<'_>,
    (line, root): (u32, Option<Root>),
    decode: impl Fn(&[u8], NodeId) -> Option<T>,
) -> Leaves<T> {
    let mut read = Leaves { leaves: Vec::new(), lost: Vec::new() };
    let mut left: Vec<(NodeId, StoredRange)> =
        root.iter().map(|root| (NodeId { line, level: root.level, index: 0 }, root.stored)).collect();
    while let Some((id, stored)) = left.pop() {
        let node = bytes.read(stored.address, u64::from(stored.bytes)).unwrap_or_default();
        let is_read = if id.level == 0 {
            decode(&node, id).map(|leaf| read.leaves.push((id.index, leaf)))
        } else {
            let children = decode_inner_node(&node, id).ok();
            let child =
                |(slot, child): (u8, format::thin::node::ChildRecord)| (id.child(usize::from(slot)), child.stored);
            children.map(|children| left.extend(children.into_iter().map(child)))
        };
        if is_read.is_none() {
            read.lost.push(below(id));
        }
    }
    read
}

/// The leaves below a node.
pub(super) fn below(id: NodeId) -> Range<u64> {
    let bits = 8 * u32::from(id.level);
    id.index << bits..(id.index + 1) << bits
}
