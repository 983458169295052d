//! Golden images of thin volumes, and readers that refuse every cut.

use format::thin::anchor::{Anchor, Root};
use format::thin::batch::{BatchIndex, BatchRecords, encode_index};
use format::thin::entry::MapEntry;
use format::thin::line::{LINES_LINE, LineRecord, SEGMENTS_LINE};
use format::thin::node::{
    ChildRecord, NodeId, decode_inner_node, decode_line_leaf, decode_map_leaf, decode_segment_leaf, encode_inner_node,
    encode_line_leaf, encode_map_leaf, encode_segment_leaf,
};
use format::thin::record::{FragmentRecord, HoleRecord, NodeRecord};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord, SegmentUse};
use format::thin::{Codec, StoredRange};

use crate::common::array;
use crate::golden::golden;

const KEY: [u8; 16] = *b"key of the store";

fn stored(address: u64, bytes: u32) -> StoredRange {
    StoredRange { address, bytes }
}

fn anchor() -> Anchor {
    Anchor {
        key: KEY,
        generation: 77,
        segment_bytes: 1 << 20,
        covered: 0x1_2345,
        next_sequence: 0x1_2360,
        intent_generation: 5,
        segments: Some(Root { stored: stored(3 << 20, 4112), level: 1 }),
        lines: Some(Root { stored: stored((3 << 20) + 8192, 144), level: 0 }),
    }
}

fn records() -> BatchRecords {
    let fragment = |sequence, block, blocks, codec, stored_bytes| FragmentRecord {
        sequence,
        line: 9,
        block,
        blocks,
        codec,
        stored_bytes,
        crc32c: 0xA1B2_C3D4,
        birth: 3,
        joined: codec == Codec::Zstd,
    };
    BatchRecords {
        fragments: vec![fragment(100, 32, 2, Codec::Plain, 8192), fragment(101, 4096, 16, Codec::Zstd, 31_000)],
        holes: vec![HoleRecord { sequence: 102, line: 9, block: 64, blocks: 1 << 20, birth: 3 }],
        nodes: vec![NodeRecord { generation: 76, line: 9, level: 1, index: 2, stored_bytes: 72 }],
    }
}

fn entries() -> Vec<MapEntry> {
    let entry = |address, bytes, codec, first, blocks, used| MapEntry {
        stored: stored(address, bytes),
        codec,
        first,
        blocks,
        used,
        birth: 3,
    };
    vec![
        entry(5 << 20, 8192, Codec::Plain, 0, 2, 0b10),
        entry((6 << 20) + 16, 31_000, Codec::Lz4, 16, 16, 0xFFFF),
        entry(7 << 20, 4096, Codec::Plain, 255, 1, 1),
    ]
}

#[test]
fn anchors_and_indexes_of_batches_are_the_golden_ones() {
    let image = golden("thin-anchor.bin", &anchor().encode(&array()));
    assert_eq!(Anchor::decode(&image, &array()), Ok(anchor()));
    let image = golden("thin-batch.bin", &encode_index(&KEY, 4 << 20, 65_536, &records()));
    let read = BatchIndex::decode(&image, &KEY, 4 << 20, 0).expect("a batch");
    assert_eq!((read.batch_bytes, read.records), (65_536, records()));
}

#[test]
fn nodes_are_the_golden_ones() {
    let leaf = NodeId { line: 9, level: 0, index: 0x1_0203 };
    let image = golden("thin-map-leaf.bin", &encode_map_leaf(leaf, &entries()));
    assert_eq!(decode_map_leaf(&image, leaf), Ok(entries()));

    let inner = NodeId { line: 9, level: 1, index: 0x102 };
    let child = |address| ChildRecord { stored: stored(address, 64), blocks: 18, live_bytes: 39_192 };
    let children = vec![(0, child(8 << 20)), (3, child((8 << 20) + 64)), (255, child(9 << 20))];
    let image = golden("thin-inner-node.bin", &encode_inner_node(inner, &children));
    assert_eq!(decode_inner_node(&image, inner).map(|read| read.to_vec()), Ok(children));

    let table = NodeId { line: SEGMENTS_LINE, level: 0, index: 2 };
    let used = [SegmentUse::Free, SegmentUse::Data, SegmentUse::Nodes, SegmentUse::Anchors];
    let record = |(at, used_for): (u64, SegmentUse)| match used_for {
        SegmentUse::Free => SegmentRecord::default(),
        _ => SegmentRecord { used_for, live_bytes: 4096, filled_bytes: 1 << 19, newest_sequence: 100 + at },
    };
    let segments: Vec<SegmentRecord> = (0..SEGMENTS_PER_LEAF).zip(used.into_iter().cycle()).map(record).collect();
    let image = golden("thin-segments.bin", &encode_segment_leaf(table, &segments));
    assert_eq!(decode_segment_leaf(&image, table), Ok(segments));

    let lines = NodeId { line: LINES_LINE, level: 0, index: 0 };
    let line = |line, root: Option<ChildRecord>| LineRecord {
        line,
        is_deleted: false,
        epoch: 4,
        root_level: if root.is_some() { 2 } else { 0 },
        root,
    };
    let records = vec![line(9, Some(child(10 << 20))), line(12, None)];
    let image = golden("thin-lines.bin", &encode_line_leaf(lines, &records));
    assert_eq!(decode_line_leaf(&image, lines), Ok(records));
}

#[test]
fn a_cut_or_changed_block_is_none() {
    let bytes = anchor().encode(&array());
    let batch = encode_index(&KEY, 4 << 20, 65_536, &records());
    let leaf = NodeId { line: 9, level: 0, index: 1 };
    let node = encode_map_leaf(leaf, &entries());
    for at in 0..120 {
        let changed = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 1;
            bytes
        };
        assert!(Anchor::decode(&changed(&bytes), &array()).is_err() && Anchor::decode(&bytes[..at], &array()).is_err());
        assert!(BatchIndex::decode(&changed(&batch), &KEY, 4 << 20, 0).is_err());
        assert!(BatchIndex::decode(&batch[..at], &KEY, 4 << 20, 0).is_err());
        assert!(decode_map_leaf(&changed(&node), leaf).is_err());
        assert!(decode_map_leaf(&node[..at.min(node.len() - 1)], leaf).is_err());
    }
}
