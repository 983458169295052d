//! Nodes of trees. All trees are radix trees with 256 children per inner node.
//!
//! | tree | index of a leaf | content of a leaf |
//! |---|---|---|
//! | a volume's map | block / 256 | [`MapEntry`] in the order of their first blocks |
//! | segment table | segment / 128 | 128 [`SegmentRecord`] |
//! | table of lines | line / 64 | [`LineRecord`] in the order of their numbers |
//!
//! The parent of node `index` is node `index / 256` of the next level, and the tree's root is node
//! 0. So a root can get another one above it when a volume grows.
//!
//! ```text
//! | head 16 | leaf: entries or records |
//! | head 16 | inner node: 256 bits, which children there are | a child's record, 24 bytes each |
//! ```

use std::mem::offset_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::entry::{ENTRY_BYTES, LEAF_BLOCKS, MapEntry};
use super::line::{LINE_RECORD_BYTES, LINES_PER_LEAF, LineRecord};
use super::segment::{SEGMENT_RECORD_BYTES, SEGMENTS_PER_LEAF, SegmentRecord};
use super::{BLOCKS_MAX, StoredRange, ThinError};
use crate::BLOCK;
use crate::checksum::crc32c_without;

/// Bytes of a node before its content.
pub const NODE_HEAD_BYTES: usize = size_of::<DiskHead>();

/// Children of an inner node.
pub const CHILDREN: usize = 256;

/// Highest level of a root: it covers 2^40 blocks.
pub const LEVEL_MAX: u8 = 4;

const CRC_FIELD: usize = offset_of!(DiskHead, crc32c);

const PRESENT_BYTES: usize = CHILDREN / 8;

const CHILD_BYTES: usize = size_of::<DiskChild>();

const WHAT: &str = "map node";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHead {
    crc32c: U32,
    line: U32,
    /// The level in the lowest eight bits, the index above.
    index_level: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskChild {
    stored: U64,
    blocks: U64,
    live_bytes: U64,
}

const _: () = assert!(size_of::<DiskHead>() == 16 && size_of::<DiskChild>() == 24);

/// The identity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId {
    /// The tree.
    pub line: u32,
    /// Level in the tree. Leaves have 0.
    pub level: u8,
    /// Number of the node among those of its level.
    pub index: u64,
}

impl NodeId {
    /// The node above, and the number of this one among its children.
    pub fn parent(self) -> (NodeId, usize) {
        let parent = NodeId { line: self.line, level: self.level + 1, index: self.index / CHILDREN as u64 };
        (parent, (self.index % CHILDREN as u64) as usize)
    }

    /// A node below.
    pub fn child(self, slot: usize) -> NodeId {
        NodeId { line: self.line, level: self.level - 1, index: self.index * CHILDREN as u64 + slot as u64 }
    }
}

/// The level of the root of a tree whose leaves have indices below `leaves`.
pub fn root_level(leaves: u64) -> u8 {
    let last = leaves.saturating_sub(1);
    (0..=LEVEL_MAX).find(|level| last >> (8 * u32::from(*level)) == 0).unwrap_or(LEVEL_MAX)
}

/// A child in its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildRecord {
    /// The child's bytes.
    pub stored: StoredRange,
    /// Blocks of the volume that are mapped below it. In other trees 0.
    pub blocks: u64,
    /// Their live bytes. In other trees 0.
    pub live_bytes: u64,
}

impl ChildRecord {
    pub(super) fn is_possible(&self) -> bool {
        self.blocks <= BLOCKS_MAX && self.live_bytes <= self.blocks.saturating_mul(BLOCK as u64)
    }
}

fn invalid(field: &'static str) -> ThinError {
    ThinError::Invalid { what: WHAT, field }
}

fn encode(id: NodeId, content: impl Iterator<Item = impl AsRef<[u8]>>) -> Vec<u8> {
    let index_level = (id.index << 8) | u64::from(id.level);
    let head = DiskHead { crc32c: 0.into(), line: id.line.into(), index_level: index_level.into() };
    let mut bytes = head.as_bytes().to_vec();
    content.for_each(|part| bytes.extend_from_slice(part.as_ref()));
    let checksum = gf::crc32c(&bytes);
    bytes[CRC_FIELD..][..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The content of a node, which has to be `id`.
fn content(bytes: &[u8], id: NodeId) -> Result<&[u8], ThinError> {
    let (head, content) = DiskHead::ref_from_prefix(bytes).map_err(|_| ThinError::Missing { what: WHAT })?;
    if head.crc32c.get() != crc32c_without(bytes, CRC_FIELD) {
        return Err(ThinError::Checksum { what: WHAT });
    }
    let index_level = (id.index << 8) | u64::from(id.level);
    if head.line.get() != id.line || head.index_level.get() != index_level {
        return Err(ThinError::Misplaced { what: WHAT });
    }
    Ok(content)
}

/// The parts of a content that has only whole ones, and at most `max`.
fn parts<const BYTES: usize>(content: &[u8], max: u64) -> Result<&[[u8; BYTES]], ThinError> {
    let (parts, rest) = content.as_chunks::<BYTES>();
    if rest.is_empty() && parts.len() as u64 <= max { Ok(parts) } else { Err(invalid("length")) }
}

/// The bytes of a leaf of a volume's map.
pub fn encode_map_leaf(id: NodeId, entries: &[MapEntry]) -> Vec<u8> {
    encode(id, entries.iter().map(MapEntry::encode))
}

/// Reads a leaf of a volume's map.
///
/// # Errors
/// [`ThinError`], also if two entries have the same block.
pub fn decode_map_leaf(bytes: &[u8], id: NodeId) -> Result<Vec<MapEntry>, ThinError> {
    let parts = parts::<ENTRY_BYTES>(content(bytes, id)?, LEAF_BLOCKS)?;
    let entries: Vec<MapEntry> = parts.iter().map(MapEntry::decode).collect::<Result<_, _>>()?;
    if entries.windows(2).any(|pair| pair[0].first > pair[1].first) {
        return Err(invalid("order"));
    }
    let mut used = [0u64; 4];
    for entry in &entries {
        for block in (0..entry.blocks).filter(|block| entry.used & 1 << block != 0) {
            let block = usize::from(entry.first + block);
            if used[block / 64] & 1 << (block % 64) != 0 {
                return Err(invalid("used"));
            }
            used[block / 64] |= 1 << (block % 64);
        }
    }
    Ok(entries)
}

/// The bytes of a leaf of the segment table. Its length is always the same.
pub fn encode_segment_leaf(id: NodeId, segments: &[SegmentRecord]) -> Vec<u8> {
    assert_eq!(segments.len() as u64, SEGMENTS_PER_LEAF);
    encode(id, segments.iter().map(SegmentRecord::encode))
}

/// Bytes of a leaf of the segment table.
pub const SEGMENT_LEAF_BYTES: usize = NODE_HEAD_BYTES + SEGMENTS_PER_LEAF as usize * SEGMENT_RECORD_BYTES;

/// Reads a leaf of the segment table.
///
/// # Errors
/// [`ThinError`].
pub fn decode_segment_leaf(bytes: &[u8], id: NodeId) -> Result<Vec<SegmentRecord>, ThinError> {
    let parts = parts::<SEGMENT_RECORD_BYTES>(content(bytes, id)?, SEGMENTS_PER_LEAF)?;
    if parts.len() as u64 != SEGMENTS_PER_LEAF {
        return Err(invalid("length"));
    }
    parts.iter().map(SegmentRecord::decode).collect()
}

/// The bytes of a leaf of the table of lines.
pub fn encode_line_leaf(id: NodeId, lines: &[LineRecord]) -> Vec<u8> {
    encode(id, lines.iter().map(LineRecord::encode))
}

/// Reads a leaf of the table of lines.
///
/// # Errors
/// [`ThinError`].
pub fn decode_line_leaf(bytes: &[u8], id: NodeId) -> Result<Vec<LineRecord>, ThinError> {
    let parts = parts::<LINE_RECORD_BYTES>(content(bytes, id)?, LINES_PER_LEAF)?;
    let lines: Vec<LineRecord> = parts.iter().map(LineRecord::decode).collect::<Result<_, _>>()?;
    let in_order = lines.windows(2).all(|pair| pair[0].line < pair[1].line);
    let ours = lines.iter().all(|line| u64::from(line.line) / LINES_PER_LEAF == id.index);
    if in_order && ours { Ok(lines) } else { Err(invalid("line")) }
}

/// The children of an inner node, by their slots.
pub type Children = Vec<(u8, ChildRecord)>;

/// Bytes of an inner node with so many children.
pub const fn inner_node_bytes(children: usize) -> usize {
    NODE_HEAD_BYTES + PRESENT_BYTES + children * CHILD_BYTES
}

/// The bytes of an inner node with these children, which are in order.
pub fn encode_inner_node(id: NodeId, children: &[(u8, ChildRecord)]) -> Vec<u8> {
    let mut present = [0; PRESENT_BYTES];
    children.iter().for_each(|(slot, _)| present[usize::from(*slot) / 8] |= 1 << (slot % 8));
    let child = |(_, child): &(u8, ChildRecord)| {
        let (stored, blocks) = (child.stored.pack().into(), child.blocks.into());
        DiskChild { stored, blocks, live_bytes: child.live_bytes.into() }.as_bytes().to_vec()
    };
    encode(id, std::iter::once(present.to_vec()).chain(children.iter().map(child)))
}

/// Reads an inner node.
///
/// # Errors
/// [`ThinError`].
pub fn decode_inner_node(bytes: &[u8], id: NodeId) -> Result<Children, ThinError> {
    let (present, children) = content(bytes, id)?.split_at_checked(PRESENT_BYTES).ok_or(invalid("length"))?;
    let slots = (0..CHILDREN).filter(|slot| present[slot / 8] & 1 << (slot % 8) != 0);
    let parts = parts::<CHILD_BYTES>(children, CHILDREN as u64)?;
    let slots: Vec<u8> = slots.map(|slot| slot as u8).collect();
    if slots.len() != parts.len() {
        return Err(invalid("length"));
    }
    let child = |part: &[u8; CHILD_BYTES]| {
        let disk: &DiskChild = zerocopy::transmute_ref!(part);
        let stored = StoredRange::unpack(disk.stored.get());
        ChildRecord { stored, blocks: disk.blocks.get(), live_bytes: disk.live_bytes.get() }
    };
    let children: Children = slots.into_iter().zip(parts.iter().map(child)).collect();
    if children.iter().all(|(_, child)| child.is_possible()) { Ok(children) } else { Err(invalid("child")) }
}

#[cfg(test)]
mod tests {
    use super::super::Codec;
    use super::*;

    const ID: NodeId = NodeId { line: 3, level: 0, index: 1 << 31 };

    fn entry(first: u8, blocks: u8, used: u16) -> MapEntry {
        let stored = StoredRange { address: 4096 * u64::from(first), bytes: 4096 * u32::from(blocks) };
        MapEntry { stored, codec: Codec::Plain, first, blocks, used, birth: 1 }
    }

    fn child(address: u64) -> ChildRecord {
        ChildRecord { stored: StoredRange { address, bytes: 100 }, blocks: 4, live_bytes: 16384 }
    }

    #[test]
    fn nodes_are_read_as_they_were_written() {
        let entries: Vec<MapEntry> = (0..=255).map(|first| entry(first, 1, 1)).collect();
        let bytes = encode_map_leaf(ID, &entries);
        assert_eq!((decode_map_leaf(&bytes, ID), bytes.len()), (Ok(entries), 16 + 4096));

        let segments = [SegmentRecord { newest_sequence: 5, ..SegmentRecord::default() }; 128];
        let bytes = encode_segment_leaf(ID, &segments);
        assert_eq!((decode_segment_leaf(&bytes, ID), bytes.len()), (Ok(segments.to_vec()), SEGMENT_LEAF_BYTES));

        let children: Children = vec![(0, child(0)), (7, child(16)), (255, child(1 << 40))];
        let inner = NodeId { level: 1, ..ID };
        let bytes = encode_inner_node(inner, &children);
        assert_eq!((decode_inner_node(&bytes, inner), bytes.len()), (Ok(children), inner_node_bytes(3)));

        let line = |line| LineRecord { line, is_deleted: false, epoch: 1, root_level: 0, root: None };
        let (lines, id) = (vec![line(64), line(127)], NodeId { index: 1, ..ID });
        assert_eq!(decode_line_leaf(&encode_line_leaf(id, &lines), id), Ok(lines));
    }

    #[test]
    fn a_flipped_bit_or_another_place_makes_it_no_node() {
        let bytes = encode_map_leaf(ID, &[entry(3, 2, 3)]);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_map_leaf(&damaged, ID).is_err(), "bit {bit}");
        }
        let other = NodeId { index: 4, ..ID };
        assert_eq!(decode_map_leaf(&bytes, other), Err(ThinError::Misplaced { what: WHAT }));
        assert!(decode_inner_node(&bytes, ID).is_err());
    }

    #[test]
    fn a_block_has_one_entry_at_most() {
        let twice = [entry(3, 2, 3), entry(4, 1, 1)];
        assert_eq!(decode_map_leaf(&encode_map_leaf(ID, &twice), ID), Err(invalid("used")));
        let unordered = [entry(4, 1, 1), entry(3, 2, 1)];
        assert_eq!(decode_map_leaf(&encode_map_leaf(ID, &unordered), ID), Err(invalid("order")));
        let both = [entry(3, 2, 1), entry(4, 1, 1)];
        assert_eq!(decode_map_leaf(&encode_map_leaf(ID, &both), ID), Ok(both.to_vec()));
    }

    #[test]
    fn a_root_is_as_high_as_its_leaves_need() {
        let cases = [(0, 0), (1, 0), (2, 1), (256, 1), (257, 2), (1 << 24, 3), (1 << 32, 4), (u64::MAX, 4)];
        for (leaves, level) in cases {
            assert_eq!(root_level(leaves), level, "{leaves}");
        }
        let (parent, slot) = ID.parent();
        assert_eq!(parent.child(slot), ID);
    }
}
