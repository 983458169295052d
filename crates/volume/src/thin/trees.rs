//! The block maps of all volumes, in memory: radix trees, whose leaves are loaded when they are
//! needed. Inner nodes stay once they were loaded; they are a small part of the whole.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use format::thin::StoredRange;
use format::thin::entry::ENTRY_BYTES;
use format::thin::node::{CHILDREN, ChildRecord, Children, NODE_HEAD_BYTES, NodeId, inner_node_bytes, root_level};

use super::leaf::MapLeaf;

/// A child as its parent has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Child {
    /// Its bytes as of the last checkpoint. `None`: it has none yet, and is in memory.
    pub stored: Option<StoredRange>,
    /// Mapped blocks below it.
    pub blocks: u64,
    /// Their live bytes.
    pub live_bytes: u64,
}

impl Child {
    pub fn of(record: ChildRecord) -> Child {
        Child { stored: Some(record.stored), blocks: record.blocks, live_bytes: record.live_bytes }
    }

    pub fn record(&self) -> Option<ChildRecord> {
        let Child { stored, blocks, live_bytes } = *self;
        stored.map(|stored| ChildRecord { stored, blocks, live_bytes })
    }

    /// Changes the sums. Those that were read from a damaged drive may be too small.
    fn add(&mut self, blocks: i64, live_bytes: i64) {
        self.blocks = self.blocks.saturating_add_signed(blocks);
        self.live_bytes = self.live_bytes.saturating_add_signed(live_bytes);
    }
}

pub(super) enum NodeContent {
    /// A checkpoint may hold it as well: then a change makes a copy.
    Leaf(Rc<MapLeaf>),
    Inner(BTreeMap<u8, Child>),
}

pub(super) struct Node {
    pub content: NodeContent,
    /// It was changed since the last checkpoint.
    pub is_dirty: bool,
    /// The checkpoint that wrote it. Until that one is durable, its bytes may not be on the drives.
    pub generation: u64,
    /// When it was used, for leaves.
    used: u64,
}

impl NodeContent {
    /// Bytes of the node in a run.
    pub fn encoded_bytes(&self) -> usize {
        match self {
            NodeContent::Leaf(leaf) => NODE_HEAD_BYTES + leaf.entries().len() * ENTRY_BYTES,
            NodeContent::Inner(children) => inner_node_bytes(children.len()),
        }
    }
}

impl Node {
    fn new_dirty(content: NodeContent) -> Node {
        Node { content, is_dirty: true, generation: 0, used: 0 }
    }

    /// Bytes that it adds to the next checkpoint.
    fn dirty_bytes(&self) -> u64 {
        if self.is_dirty { self.content.encoded_bytes() as u64 } else { 0 }
    }
}

/// A volume's content.
pub(super) struct Line {
    pub epoch: u32,
    pub is_deleted: bool,
    pub root_level: u8,
    /// `None`: nothing is mapped.
    pub root: Option<Child>,
}

impl Default for Line {
    fn default() -> Self {
        Line { epoch: 1, is_deleted: false, root_level: 0, root: None }
    }
}

/// The result of looking for a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// It is in memory.
    Ready,
    /// Nothing of it is mapped.
    Unmapped,
    /// This node has to be loaded.
    Load(NodeId, StoredRange),
}

#[derive(Default)]
pub(super) struct Trees {
    pub lines: BTreeMap<u32, Line>,
    nodes: BTreeMap<NodeId, Node>,
    /// Lines whose records changed since the last checkpoint.
    pub dirty_lines: BTreeSet<u32>,
    /// Clean leaves by their last use.
    by_use: BTreeMap<u64, NodeId>,
    /// All leaves in memory.
    leaves: usize,
    uses: u64,
    /// Bytes of the dirty nodes.
    dirty_bytes: u64,
}

fn leaf_id(line: u32, leaf: u64) -> NodeId {
    NodeId { line, level: 0, index: leaf }
}

fn slot_at(leaf: u64, level: u8) -> u8 {
    (leaf >> (8 * u32::from(level - 1))) as u8
}

fn index_at(leaf: u64, level: u8) -> u64 {
    leaf >> (8 * u32::from(level))
}

impl Trees {
    /// Finds a leaf: in memory, or from the root on.
    pub fn lookup(&mut self, line: u32, leaf: u64) -> Lookup {
        if self.nodes.contains_key(&leaf_id(line, leaf)) {
            self.touch(leaf_id(line, leaf));
            return Lookup::Ready;
        }
        let Some(Line { root: Some(root), root_level, .. }) = self.lines.get(&line) else { return Lookup::Unmapped };
        let (mut child, root_level) = (*root, *root_level);
        if index_at(leaf, root_level) != 0 {
            return Lookup::Unmapped;
        }
        for level in (0..=root_level).rev() {
            let id = NodeId { line, level, index: index_at(leaf, level) };
            match self.nodes.get(&id).map(|node| &node.content) {
                None => return Lookup::Load(id, child.stored.expect("a node without bytes is in memory")),
                Some(NodeContent::Leaf(_)) => unreachable!("it is not in memory"),
                Some(NodeContent::Inner(children)) => match children.get(&slot_at(leaf, level)) {
                    Some(next) => child = *next,
                    None => return Lookup::Unmapped,
                },
            }
        }
        unreachable!("level 0 is a leaf")
    }

    /// A node was read. A leaf is not evicted before the task that waits for it has looked it up.
    /// Otherwise many tasks with a small cache could load leaves for ever.
    pub fn loaded(&mut self, id: NodeId, content: NodeContent, generation: u64) {
        if let Entry::Vacant(place) = self.nodes.entry(id) {
            place.insert(Node { content, is_dirty: false, generation, used: 0 });
            self.leaves += usize::from(id.level == 0);
        }
    }

    fn touch(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        // The order need not be exact: most uses change nothing.
        if node.used > 0 && self.uses - node.used < (self.leaves / 8) as u64 {
            return;
        }
        self.by_use.remove(&node.used);
        self.uses += 1;
        node.used = self.uses;
        if !node.is_dirty {
            self.by_use.insert(node.used, id);
        }
    }

    pub fn leaf(&self, line: u32, leaf: u64) -> Option<&MapLeaf> {
        match &self.nodes.get(&leaf_id(line, leaf))?.content {
            NodeContent::Leaf(leaf) => Some(leaf),
            NodeContent::Inner(_) => None,
        }
    }

    /// Makes a leaf, whose blocks are unmapped ([`Lookup::Unmapped`]).
    pub fn create(&mut self, line: u32, leaf: u64) {
        self.dirty_lines.insert(line);
        let entry = self.lines.entry(line).or_default();
        let needed = root_level(leaf + 1);
        if entry.root.is_none() {
            (entry.root, entry.root_level) = (Some(Child::default()), needed);
        }
        while entry.root_level < needed {
            let below = entry.root.replace(Child { stored: None, ..entry.root.expect("there is a root") });
            entry.root_level += 1;
            let children = BTreeMap::from([(0, below.expect("there is a root"))]);
            let node = Node::new_dirty(NodeContent::Inner(children));
            self.dirty_bytes += node.dirty_bytes();
            self.nodes.insert(NodeId { line, level: entry.root_level, index: 0 }, node);
        }
        for level in (1..=entry.root_level).rev() {
            let id = NodeId { line, level, index: index_at(leaf, level) };
            let node = self.nodes.entry(id).or_insert_with(|| {
                let node = Node::new_dirty(NodeContent::Inner(BTreeMap::new()));
                self.dirty_bytes += node.dirty_bytes();
                node
            });
            change_node(node, &mut self.dirty_bytes, |content| {
                inner(content).entry(slot_at(leaf, level)).or_default();
            });
        }
        let id = leaf_id(line, leaf);
        let node = Node::new_dirty(NodeContent::Leaf(Rc::default()));
        self.dirty_bytes += node.dirty_bytes();
        if self.nodes.insert(id, node).is_none() {
            self.leaves += 1;
        }
        self.touch(id);
    }

    /// Changes a leaf that is in memory, and the sums above it.
    pub fn change<T>(&mut self, line: u32, leaf: u64, change: impl FnOnce(&mut MapLeaf) -> T) -> T {
        let id = leaf_id(line, leaf);
        let node = self.nodes.get_mut(&id).expect("the leaf is in memory");
        self.by_use.remove(&node.used);
        let (result, blocks, live_bytes) = change_node(node, &mut self.dirty_bytes, |content| {
            let NodeContent::Leaf(content) = content else { unreachable!("level 0 is a leaf") };
            let (blocks, live_bytes) = (content.blocks() as i64, content.live_bytes() as i64);
            let result = change(Rc::make_mut(content));
            (result, content.blocks() as i64 - blocks, content.live_bytes() as i64 - live_bytes)
        });
        self.mark_path(id, blocks, live_bytes);
        result
    }

    /// Has a node written by the next checkpoint, at another place. It and all nodes above it are
    /// in memory.
    pub fn rewrite(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("the node is in memory");
        if id.level == 0 {
            self.by_use.remove(&node.used);
        }
        change_node(node, &mut self.dirty_bytes, |_| ());
        self.mark_path(id, 0, 0);
    }

    /// Marks the nodes above `id` dirty and changes their sums.
    fn mark_path(&mut self, id: NodeId, blocks: i64, live_bytes: i64) {
        self.dirty_lines.insert(id.line);
        let line = self.lines.get_mut(&id.line).expect("a node belongs to a line");
        line.root.as_mut().expect("there is a root").add(blocks, live_bytes);
        let mut below = id;
        while below.level < line.root_level {
            let (parent, slot) = below.parent();
            let node = self.nodes.get_mut(&parent).expect("inner nodes stay in memory");
            change_node(node, &mut self.dirty_bytes, |content| {
                inner(content).get_mut(&(slot as u8)).expect("the child is there").add(blocks, live_bytes);
            });
            below = parent;
        }
    }

    /// Bytes of the nodes that the next checkpoint writes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// A checkpoint writes a node. Calls `freeze` with its content.
    pub fn clean<T>(&mut self, id: NodeId, generation: u64, freeze: impl FnOnce(&NodeContent) -> T) -> T {
        let node = self.nodes.get_mut(&id).expect("a dirty node is in memory");
        self.dirty_bytes -= node.dirty_bytes();
        (node.is_dirty, node.generation) = (false, generation);
        if id.level == 0 {
            if node.used == 0 {
                // It was loaded to be written anew, and no task has looked it up.
                self.uses += 1;
                node.used = self.uses;
            }
            self.by_use.insert(node.used, id);
        }
        freeze(&node.content)
    }

    /// The place of a node as its parent has it, if all nodes above it are in memory: `Ok(None)` if
    /// there is no such node, `Err` if another one has to be loaded first.
    pub fn place_of(&self, id: NodeId) -> Result<Option<StoredRange>, (NodeId, StoredRange)> {
        let Some(Line { root: Some(root), root_level, .. }) = self.lines.get(&id.line) else { return Ok(None) };
        let (mut child, mut at) = (*root, NodeId { line: id.line, level: *root_level, index: 0 });
        if id.level > *root_level || index_at(id.index, root_level - id.level) != 0 {
            return Ok(None);
        }
        while at.level > id.level {
            let Some(node) = self.nodes.get(&at) else {
                return child.stored.map_or(Ok(None), |stored| Err((at, stored)));
            };
            let NodeContent::Inner(children) = &node.content else { unreachable!("levels above 0 are inner") };
            let slot = slot_at(id.index, at.level - id.level);
            let Some(next) = children.get(&slot) else { return Ok(None) };
            (child, at) = (*next, at.child(usize::from(slot)));
        }
        Ok(child.stored)
    }

    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// Dirty nodes, by level from the leaves up.
    pub fn dirty(&self) -> Vec<NodeId> {
        let mut dirty: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| node.is_dirty).map(|(id, _)| *id).collect();
        dirty.sort_by_key(|id| (id.level, id.line, id.index));
        dirty
    }

    /// The child record of a node in its parent, or in its line.
    pub fn child_of(&mut self, id: NodeId) -> &mut Child {
        let line = self.lines.get_mut(&id.line).expect("a node belongs to a line");
        if id.level == line.root_level {
            return line.root.as_mut().expect("there is a root");
        }
        let (parent, slot) = id.parent();
        let node = self.nodes.get_mut(&parent).expect("inner nodes stay in memory");
        inner(&mut node.content).get_mut(&(slot as u8)).expect("the child is there")
    }

    /// Removes a node that maps nothing, from its parent as well.
    pub fn remove_empty(&mut self, id: NodeId) {
        let line = self.lines.get_mut(&id.line).expect("a node belongs to a line");
        if id.level == line.root_level {
            line.root = None;
        } else {
            let (parent, slot) = id.parent();
            let node = self.nodes.get_mut(&parent).expect("inner nodes stay in memory");
            change_node(node, &mut self.dirty_bytes, |content| inner(content).remove(&(slot as u8)));
        }
        if let Some(node) = self.nodes.remove(&id) {
            if id.level == 0 {
                self.by_use.remove(&node.used);
                self.leaves -= 1;
            }
            self.dirty_bytes -= node.dirty_bytes();
        }
    }

    /// Removes the least recently used leaves that are neither dirty nor maybe not on the drives,
    /// until there are at most `leaves`.
    pub fn evict(&mut self, leaves: usize, durable: u64) {
        let excess = self.leaves.saturating_sub(leaves);
        let is_durable = |id: &NodeId| self.nodes[id].generation <= durable;
        let clean = self.by_use.iter().map(|(used, id)| (*used, *id));
        let oldest: Vec<(u64, NodeId)> = clean.take(2 * excess).filter(|(_, id)| is_durable(id)).take(excess).collect();
        self.leaves -= oldest.len();
        for (used, id) in oldest {
            self.by_use.remove(&used);
            self.nodes.remove(&id);
        }
    }

    /// The next leaf of a line from `from` on that may have mapped blocks. `Err`: this node has to
    /// be loaded to know.
    pub fn next_leaf(&self, line: u32, from: u64) -> Result<Option<u64>, (NodeId, StoredRange)> {
        let Some(Line { root: Some(root), root_level, .. }) = self.lines.get(&line) else { return Ok(None) };
        self.next_below(NodeId { line, level: *root_level, index: 0 }, *root, from)
    }

    fn next_below(&self, id: NodeId, child: Child, from: u64) -> Result<Option<u64>, (NodeId, StoredRange)> {
        let first = id.index << (8 * u32::from(id.level));
        if child.blocks == 0 || (from > first && index_at(from - first, id.level) != 0) {
            return Ok(None);
        }
        if id.level == 0 {
            return Ok(Some(id.index));
        }
        let Some(node) = self.nodes.get(&id) else {
            return Err((id, child.stored.expect("a node without bytes is in memory")));
        };
        let NodeContent::Inner(children) = &node.content else { unreachable!("levels above 0 are inner") };
        for (slot, child) in children {
            if let Some(leaf) = self.next_below(id.child(usize::from(*slot)), *child, from)? {
                return Ok(Some(leaf));
            }
        }
        Ok(None)
    }
}

fn inner(content: &mut NodeContent) -> &mut BTreeMap<u8, Child> {
    let NodeContent::Inner(children) = content else { unreachable!("levels above 0 are inner") };
    children
}

/// Changes a node, which is dirty from then on.
fn change_node<T>(node: &mut Node, dirty_bytes: &mut u64, change: impl FnOnce(&mut NodeContent) -> T) -> T {
    *dirty_bytes -= node.dirty_bytes();
    let result = change(&mut node.content);
    node.is_dirty = true;
    *dirty_bytes += node.dirty_bytes();
    result
}

/// The children of an inner node, for its bytes. Only those with bytes of their own.
pub(super) fn child_records(children: &BTreeMap<u8, Child>) -> Children {
    debug_assert!(children.len() <= CHILDREN);
    children.iter().filter_map(|(slot, child)| Some((*slot, child.record()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_that_was_loaded_to_be_written_anew_is_evicted_like_any_other() {
        let (mut trees, id) = (Trees::default(), leaf_id(1, 0));
        trees.create(1, 0);
        trees.clean(id, 1, |_| ());
        trees.evict(0, 1);
        assert!(!trees.contains(id));
        trees.loaded(id, NodeContent::Leaf(Rc::default()), 0);
        trees.rewrite(id);
        trees.evict(0, 1);
        assert!(trees.contains(id), "a checkpoint has to write it first");
        trees.clean(id, 2, |_| ());
        trees.evict(0, 1);
        assert!(trees.contains(id), "it may not be on the drives yet");
        trees.evict(0, 2);
        assert!(!trees.contains(id));
        assert_eq!((trees.leaves, trees.dirty_bytes()), (0, 0));
    }
}
