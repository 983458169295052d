//! Thin volumes: batches, nodes, anchors, frames of the intent log, and compressed contents.

use format::intent_log::{
    INTENT_HEAD_BYTES, IntentFrame, IntentFrameError, IntentHead, encode_intent_head, intent_frame_len,
};
use format::thin::anchor::{ANCHOR_BYTES, Anchor, Root};
use format::thin::batch::{BATCH_HEAD_BYTES, BatchIndex, BatchRecords, RECORDS_MAX, encode_index};
use format::thin::entry::MapEntry;
use format::thin::line::LineRecord;
use format::thin::node::{
    ChildRecord, NodeId, decode_inner_node, decode_line_leaf, decode_map_leaf, decode_segment_leaf, encode_inner_node,
    encode_line_leaf, encode_map_leaf, encode_segment_leaf,
};
use format::thin::packed::seal_packed;
use format::thin::record::{FragmentRecord, HoleRecord, NodeRecord};
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord, SegmentUse};
use format::thin::{Codec, StoredRange, ThinError};
use format::{BLOCK, Uuid};

use super::samples::ARRAY;
use super::seal::{self, Mode};
use crate::target::{Memory, Seed, Target};

const KEY: [u8; 16] = *b"a store's secret";

const LARGE: Memory = Memory { base_bytes: 256 << 10, per_input_byte: 64 };

pub(super) const BATCH: Target = Target {
    name: "thin-batch",
    checks: "a batch of a thin store, checksum fixed up or not: contents follow each other in it, and round-trip",
    run: batch,
    seeds: || {
        vec![
            Seed::new("run", seal::input(Mode::SEALED, &encode_index(&KEY, 1 << 20, 65536, &records()))),
            Seed::new("frame", seal::input(Mode::SEALED | 1 << 2, &encode_index(&KEY, 0, 65536, &records()))),
            Seed::new("empty", seal::input(Mode::SEALED, &encode_index(&KEY, 0, 64, &BatchRecords::default()))),
        ]
    },
    stored: Vec::new,
    dictionary: &[b"PurlinTB", &[0xFF; 8], &[0, 0, 1, 0]],
    input_bytes_max: 2 * BLOCK,
    memory: LARGE,
};

pub(super) const NODE: Target = Target {
    name: "thin-node",
    checks: "a node of a tree of a thin store, checksum fixed up or not: no block is mapped twice, and it round-trips",
    run: node,
    seeds: node_seeds,
    stored: Vec::new,
    dictionary: &[&[0xFF; 8], &[0; 8], &[0xFE, 0xFF, 0xFF, 0xFF]],
    input_bytes_max: 2 * BLOCK,
    memory: LARGE,
};

pub(super) const ANCHOR: Target = Target {
    name: "thin-anchor",
    checks: "an anchor of a thin store, checksum fixed up or not: round-trips",
    run: anchor,
    seeds: || {
        let root = |level| Some(Root { stored: StoredRange { address: 1 << 30, bytes: 4000 }, level });
        let anchor = |segments, lines| Anchor {
            key: KEY,
            generation: 7,
            segment_bytes: 1 << 20,
            covered: 99,
            next_sequence: 105,
            intent_generation: 3,
            segments,
            lines,
        };
        let seed = |name, anchor: Anchor| Seed::new(name, seal::input(Mode::SEALED, &anchor.encode(&ARRAY)));
        vec![seed("new", anchor(None, None)), seed("full", anchor(root(1), root(0)))]
    },
    stored: Vec::new,
    dictionary: &[b"PurlinTA", &[0xFF; 8]],
    input_bytes_max: ANCHOR_BYTES + 64,
    memory: LARGE,
};

pub(super) const FRAME: Target = Target {
    name: "intent-frame",
    checks: "a frame of the intent log, checksum fixed up or not: the body lies in the frame, and round-trips",
    run: frame,
    seeds: || {
        let seed = |name, body: &[u8]| {
            let head = IntentHead { generation: 3, offset: 65536, sequence: 17, stream: 2 };
            let mut bytes = encode_intent_head(&ARRAY, &head, [body].into_iter()).to_vec();
            bytes.extend_from_slice(body);
            bytes.resize(intent_frame_len(body.len()), 0);
            Seed::new(name, seal::input(Mode::SEALED, &bytes))
        };
        vec![seed("empty", &[]), seed("batch", &encode_index(&KEY, 0, 4096, &records())), seed("long", &[5; 5000])]
    },
    stored: Vec::new,
    dictionary: &[b"PurlinIL", &[0xFF; 8], &[0, 16, 0, 0]],
    input_bytes_max: 3 * BLOCK,
    memory: LARGE,
};

pub(super) const PACKED: Target = Target {
    name: "thin-packed",
    checks: "a compressed content, checksum fixed up or not: engine and rescue decode it to the same bytes, or refuse it",
    run: packed,
    seeds: packed_seeds,
    stored: Vec::new,
    dictionary: &[&[0x28, 0xB5, 0x2F, 0xFD], &[0xFF; 4], &[0x1F, 0, 1, 0]],
    input_bytes_max: 4 * BLOCK,
    // The window of a decoder, and the tables of Zstandard.
    memory: Memory { base_bytes: 4 << 20, per_input_byte: 64 },
};

fn records() -> BatchRecords {
    let fragment = |sequence, blocks: u8, codec, stored_bytes| FragmentRecord {
        sequence,
        line: 1,
        block: sequence * 16,
        blocks,
        codec,
        stored_bytes,
        crc32c: 5,
        birth: 1,
        joined: codec == Codec::Zstd,
    };
    BatchRecords {
        fragments: vec![
            fragment(1, 2, Codec::Plain, 8192),
            fragment(2, 1, Codec::Lz4, 1001),
            fragment(3, 4, Codec::Zstd, 20),
        ],
        holes: vec![HoleRecord { sequence: 5, line: 1, block: 7, blocks: 1 << 30, birth: 1 }],
        nodes: vec![NodeRecord { generation: 1, line: 1, level: 1, index: 0, stored_bytes: 56 }],
    }
}

fn own<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..at + BYTES)?.try_into().ok()
}

fn batch(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let mut bytes = bytes.to_vec();
    if mode.pad {
        bytes.resize(bytes.len().max(BATCH_HEAD_BYTES), 0);
    }
    let (key, address) = (own(&bytes, 16).unwrap_or(KEY), u64::from_le_bytes(own(&bytes, 32).unwrap_or_default()));
    if mode.seal
        && let Some(len) = BatchIndex::announced_bytes(&bytes, &key, address)
        && let Some(index) = bytes.get_mut(..len)
    {
        seal::seal(index);
    }
    let base = usize::from(mode.extra & 1) * INTENT_HEAD_BYTES;
    let index = match BatchIndex::decode(&bytes, &key, address, base) {
        Ok(index) => index,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let records = &index.records;
    assert!(records.fragments.len() + records.holes.len() + records.nodes.len() <= RECORDS_MAX);
    let mut end = records.index_bytes();
    for (number, place) in records.contents(base).enumerate() {
        assert!(place.start >= end && place.end > place.start && place.end <= index.batch_bytes);
        let is_plain = records.fragments.get(number).is_some_and(|record| record.codec == Codec::Plain);
        assert!((base + place.start).is_multiple_of(if is_plain { BLOCK } else { 16 }));
        end = place.end;
    }
    let written = encode_index(&key, address, index.batch_bytes, records);
    let again = BatchIndex::decode(&written, &key, address, base).expect("what was written is read");
    assert_eq!(again, index);
    assert!(BatchIndex::decode(&written, &key, address ^ 4096, base).is_err());
    assert!(BatchIndex::decode(&written[..written.len() - 1], &key, address, base).is_err());
}

fn node_seeds() -> Vec<Seed> {
    let entry = |address, bytes, codec, first, blocks, used| MapEntry {
        stored: StoredRange { address, bytes },
        codec,
        first,
        blocks,
        used,
        birth: 1,
    };
    let leaf = NodeId { line: 3, level: 0, index: 9 };
    let entries = [
        entry(4096, 8192, Codec::Plain, 0, 2, 0b10),
        entry(65536 + 16, 9000, Codec::Lz4, 16, 4, 0b1101),
        entry(1 << 30, 4096, Codec::Plain, 255, 1, 1),
    ];
    let child = ChildRecord { stored: StoredRange { address: 1 << 20, bytes: 64 }, blocks: 5, live_bytes: 20480 };
    let inner = NodeId { line: 3, level: 2, index: 0 };
    let mut segments = vec![SegmentRecord::default(); SEGMENTS_PER_LEAF as usize];
    segments[3] = SegmentRecord { used_for: SegmentUse::Data, live_bytes: 9, filled_bytes: 65536, newest_sequence: 7 };
    let table = NodeId { line: u32::MAX, level: 0, index: 1 };
    let line = LineRecord { line: 65, is_deleted: false, epoch: 1, root_level: 2, root: Some(child) };
    let lines = NodeId { line: u32::MAX - 1, level: 0, index: 1 };
    let seed = |name, extra: u8, bytes: Vec<u8>| Seed::new(name, [&[Mode::SEALED | extra << 2], &bytes[..]].concat());
    vec![
        seed("map", 0, encode_map_leaf(leaf, &entries)),
        seed("inner", 1, encode_inner_node(inner, &[(0, child), (200, child)])),
        seed("segments", 2, encode_segment_leaf(table, &segments)),
        seed("lines", 3, encode_line_leaf(lines, &[line])),
    ]
}

/// A node has its checksum first.
fn seal_node(bytes: &mut [u8]) {
    if bytes.len() >= 16 {
        bytes[..4].fill(0);
        let sum = gf::crc32c(bytes);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn node(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let mut bytes = bytes.to_vec();
    if mode.seal {
        seal_node(&mut bytes);
    }
    let index_level = u64::from_le_bytes(own(&bytes, 8).unwrap_or_default());
    let line = u32::from_le_bytes(own(&bytes, 4).unwrap_or_default());
    let id = NodeId { line, level: index_level as u8, index: index_level >> 8 };
    let again = match mode.extra {
        0 => decode_map_leaf(&bytes, id).map(|entries| {
            let mut used = [false; 256];
            for entry in &entries {
                assert!(entry.used != 0 && entry.live_bytes() <= u64::from(entry.used.count_ones()) * BLOCK as u64);
                for block in (0..entry.blocks).filter(|block| entry.used & 1 << block != 0) {
                    let block = usize::from(entry.first) + usize::from(block);
                    assert!(!std::mem::replace(&mut used[block], true), "block {block} is mapped twice");
                }
            }
            encode_map_leaf(id, &entries)
        }),
        1 => decode_inner_node(&bytes, id).map(|children| {
            assert!(children.is_sorted_by(|one, next| one.0 < next.0));
            encode_inner_node(id, &children)
        }),
        2 => decode_segment_leaf(&bytes, id).map(|records| encode_segment_leaf(id, &records)),
        _ => decode_line_leaf(&bytes, id).map(|lines| {
            assert!(lines.is_sorted_by(|one, next| one.line < next.line));
            encode_line_leaf(id, &lines)
        }),
    };
    match again {
        // Reserved bytes may differ, but only once.
        Ok(written) => {
            let stable = match mode.extra {
                0 => decode_map_leaf(&written, id).map(|entries| encode_map_leaf(id, &entries)),
                1 => decode_inner_node(&written, id).map(|children| encode_inner_node(id, &children)),
                2 => decode_segment_leaf(&written, id).map(|records| encode_segment_leaf(id, &records)),
                _ => decode_line_leaf(&written, id).map(|lines| encode_line_leaf(id, &lines)),
            };
            assert_eq!(stable, Ok(written));
        }
        Err(error) => assert!(error != ThinError::Checksum { what: "map node" } || !mode.seal || bytes.len() < 16),
    }
}

fn anchor(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let bytes = mode.apply(bytes);
    let array = own(&bytes, 16).map_or(ARRAY, Uuid::from_bytes);
    match Anchor::decode(&bytes, &array) {
        Ok(anchor) => assert_eq!(Anchor::decode(&anchor.encode(&array), &array), Ok(anchor)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn frame(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let mut bytes = mode.apply(bytes);
    let array = own(&bytes, 16).map_or(ARRAY, Uuid::from_bytes);
    let number = |bytes: &[u8], at| u64::from_le_bytes(own(bytes, at).unwrap_or_default());
    let (generation, offset) = (number(&bytes, 32), number(&bytes, 40));
    let announced = IntentFrame::announced_len(&bytes, &array, generation, offset);
    if let Some(len) = announced.filter(|len| mode.seal && *len <= 16 * BLOCK as u64) {
        bytes.resize(bytes.len().max(len as usize), 0);
        seal::seal(&mut bytes[..len as usize]);
    }
    match IntentFrame::decode(&bytes, &array, generation, offset) {
        Ok(frame) => {
            assert!(frame.len.is_multiple_of(BLOCK) && frame.len <= bytes.len() && frame.body.end <= frame.len);
            let body = &bytes[frame.body.clone()];
            let mut written = encode_intent_head(&array, &frame.head, [body].into_iter()).to_vec();
            written.extend_from_slice(body);
            written.resize(intent_frame_len(body.len()), 0);
            assert_eq!(IntentFrame::decode(&written, &array, generation, offset), Ok(frame));
            let other = generation.wrapping_add(1);
            assert_eq!(IntentFrame::decode(&written, &array, other, offset), Err(IntentFrameError::Stale));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn packed_seeds() -> Vec<Seed> {
    let content: Vec<u8> = (0..2 * BLOCK).map(|at| (at / 40 % 7 * at) as u8).collect();
    let all = [volume::thin::Compression::Lz4, volume::thin::Compression::Zstd(3)];
    let seeds = (0u8..).zip(all).filter_map(|(number, compression)| {
        let (_, stored) = volume::thin::compress(compression, &content)?;
        // Two blocks, and the codec.
        Some(Seed::new(format!("{compression:?}"), [&[Mode::SEALED | number << 2, 2], &stored[..]].concat()))
    });
    seeds.collect()
}

fn packed(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let Some((&blocks, stored)) = bytes.split_first() else { return };
    let (mut stored, blocks) = (stored.to_vec(), blocks % 16 + 1);
    if mode.seal && stored.len() >= 4 {
        seal_packed(&mut stored);
    }
    let codec = [Codec::Lz4, Codec::Zstd, Codec::Plain, Codec::Lz4][usize::from(mode.extra)];
    let engine = volume::thin::decompress(codec, &stored, blocks);
    let rescue = rescue::decompress_fragment(codec, &stored, blocks);
    for content in engine.iter().chain(&rescue) {
        assert_eq!(content.len(), usize::from(blocks) * BLOCK);
    }
    // A decoder may take a frame that the other one does not. But there is one content only.
    if let (Some(engine), Some(rescue)) = (&engine, &rescue) {
        assert!(engine == rescue, "two contents");
    }
}
