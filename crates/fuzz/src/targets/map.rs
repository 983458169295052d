//! Blocks of the allocation map.

use format::{BLOCK, CHUNKS_PER_MAP_BLOCK, MapBlock, MapError, Uuid};

use super::samples::ARRAY;
use super::seal::{self, Mode};
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "map",
    checks: "a map block, checksum fixed up or not: what is decoded is what was written, here and by this array",
    run,
    seeds: || {
        let mut full = MapBlock { index: 3, sequence: 9, ..MapBlock::empty(3) };
        full.bits.fill(0xFF);
        let mut some = MapBlock { sequence: u64::MAX, ..MapBlock::empty(0) };
        [0, 9, 77, 1000].into_iter().for_each(|chunk| some.set(chunk, true));
        let seed = |name, block: MapBlock| Seed::new(name, seal::input(Mode::SEALED, &block.encode(&ARRAY)));
        // The bits of the full block are cut off after a few bytes: the rest of an input is zeroes.
        let mut full = seed("full", full);
        full.bytes.truncate(100);
        vec![full, seed("some", some), seed("empty", MapBlock::empty(1))]
    },
    stored: Vec::new,
    dictionary: &[b"PurlinMB", b"\x01\0\0\0"],
    input_bytes_max: BLOCK + 64,
    memory: Memory { base_bytes: 64 << 10, per_input_byte: 4 },
};

fn run(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let bytes = mode.apply(bytes);
    // Decode with the array and index from the block itself, or with those that another reader
    // expects.
    let own = |at: usize| bytes.get(at..at + 8).map(|field| u64::from_le_bytes(field.try_into().expect("8 bytes")));
    let index = if mode.extra & 1 == 0 { own(32).unwrap_or(0) } else { 3 };
    let array = match bytes.get(16..32) {
        Some(array) if mode.extra & 2 == 0 => Uuid::from_bytes(array.try_into().expect("16 bytes")),
        _ => ARRAY,
    };
    let decoded = MapBlock::decode(&bytes, &array, index);
    if mode.seal && bytes.len() >= BLOCK {
        assert_ne!(decoded, Err(MapError::Checksum), "the checksum was made right");
    }
    let block = match decoded {
        Ok(block) => block,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(block.index, index);
    assert_eq!((&bytes[16..32], Some(block.sequence)), (&array.as_bytes()[..], own(40)));
    let written = block.encode(&array);
    assert_eq!(MapBlock::decode(&written, &array, index).as_ref(), Ok(&block));
    let mut canonical = bytes[..BLOCK].to_vec();
    canonical[48..64].fill(0);
    seal::seal(&mut canonical);
    assert_eq!(written[..], canonical[..], "all but the reserved bytes is kept");
    for chunk in [0, 1, 63, CHUNKS_PER_MAP_BLOCK - 1] {
        let mut changed = block.clone();
        changed.set(chunk, !block.is_set(chunk));
        assert_ne!(changed.is_set(chunk), block.is_set(chunk));
        changed.set(chunk, block.is_set(chunk));
        assert_eq!(changed, block);
    }
}
