//! Superblocks.

use format::{
    BLOCK, CATALOGUE_SLOTS, Features, MAP_SLOTS, MEMBERS_MAX, Role, SPARES_MAX, Superblock, SuperblockError,
    catalogue_slot_bytes, catalogue_slot_offset, map_block_count, map_slot_offset, newest, superblock_offsets,
};

use super::samples;
use super::seal::{self, Mode};
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "superblock",
    checks: "one copy, checksum fixed up or not: what is decoded is valid, and encodes and decodes to the same",
    run: one,
    seeds: || {
        let seed =
            |(name, superblock): (&str, Superblock)| Seed::new(name, seal::input(Mode::SEALED, &superblock.encode()));
        samples::superblocks().into_iter().map(seed).collect()
    },
    stored: Vec::new,
    dictionary: &[b"PurlinSB", &[0xFF, 0xFF], &[0; 16], b"\x01\0\0\0\0\0\0\0", b"\x64\x08"],
    input_bytes_max: 2 * BLOCK,
    memory: Memory { base_bytes: 96 << 10, per_input_byte: 4 },
};

pub(super) const COPIES: Target = Target {
    name: "copies",
    checks: "head and tail of one drive: the newer valid copy counts, and contradictions are refused",
    run: both,
    seeds: || {
        let pair = |head: &Superblock, tail: &Superblock| {
            let (head, tail) = (trimmed(head), trimmed(tail));
            let len = (head.len() as u16).to_le_bytes();
            [&[Mode::SEALED][..], &len, &head, &tail].concat()
        };
        let mut all = samples::superblocks();
        let (_, old) = all.swap_remove(0);
        let mut new = old.clone();
        new.epoch += 1;
        let (_, other) = all.swap_remove(0);
        vec![
            Seed::new("same", pair(&old, &old)),
            Seed::new("tail-newer", pair(&old, &new)),
            Seed::new("head-newer", pair(&new, &old)),
            Seed::new("two-arrays", pair(&old, &other)),
        ]
    },
    stored: Vec::new,
    dictionary: TARGET.dictionary,
    input_bytes_max: 2 * BLOCK,
    memory: Memory { base_bytes: 128 << 10, per_input_byte: 8 },
};

fn trimmed(superblock: &Superblock) -> Vec<u8> {
    seal::input(0, &superblock.encode())[1..].to_vec()
}

fn one(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let bytes = mode.apply(bytes);
    let decoded = Superblock::decode(&bytes);
    if mode.seal && bytes.len() >= BLOCK {
        assert_ne!(decoded, Err(SuperblockError::Checksum), "the checksum was made right");
    }
    let longer = [&bytes[..], &[0x5A; 7]].concat();
    if bytes.len() >= BLOCK {
        assert_eq!(Superblock::decode(&longer), decoded, "only the first block counts");
    }
    match decoded {
        Ok(superblock) => check(&superblock),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Checks the properties on which every user of a decoded superblock relies.
fn check(superblock: &Superblock) {
    assert_eq!(superblock.check(), Ok(()));
    assert!(!superblock.to_string().chars().any(|c| c.is_control() && c != '\n'), "it can be shown");
    let (shape, layout) = (&superblock.shape, &superblock.layout);
    assert!(shape.members <= MEMBERS_MAX && superblock.spares.len() <= SPARES_MAX);
    assert_eq!(superblock.members.len(), usize::from(shape.members));
    assert_eq!(shape.members_per_set() * usize::from(shape.sets), usize::from(shape.members));
    assert!(shape.data_per_set() >= 1 && shape.survives() < shape.members_per_set());
    if let Role::Member(slot) = superblock.role {
        assert_eq!(superblock.members[usize::from(slot)].uuid, superblock.drive);
        shape.set_of(usize::from(slot));
    }
    check_layout(superblock);
    let capacity_bytes = layout.capacity_bytes(shape);
    assert!(
        capacity_bytes > 0 && capacity_bytes / shape.data_per_set() as u64 / u64::from(shape.sets) == layout.data.len
    );

    if superblock.is_read_only() {
        return;
    }
    let bytes = superblock.encode();
    let again = Superblock::decode(&bytes).expect("what was written is read");
    let expected = Superblock { features: Features { compatible: 0, ..superblock.features }, ..superblock.clone() };
    assert_eq!(again, expected, "only unknown compatible features are lost");
    assert_eq!(again.encode(), bytes, "one superblock has one form");
}

/// Checks that no offset from the layout is outside of the member, or on a superblock.
fn check_layout(superblock: &Superblock) {
    let layout = &superblock.layout;
    let block = BLOCK as u64;
    let [_, tail] = superblock_offsets(layout.member_bytes).expect("a member has two superblocks");
    let inside = |start: u64, len: u64| start >= block && start.checked_add(len).is_some_and(|end| end <= tail);
    for region in [layout.map, layout.log, layout.catalogue, layout.data] {
        assert!(inside(region.offset, region.len) && region.end() == region.offset + region.len, "{region:?}");
    }
    let blocks = map_block_count(layout.chunk_count);
    assert!(blocks > 0, "a group has a chunk");
    for index in [0, blocks / 2, blocks - 1] {
        for slot in 0..MAP_SLOTS {
            let at = map_slot_offset(layout, index, slot);
            assert!(at >= layout.map.offset && at + block <= layout.map.end());
        }
    }
    for slot in 0..CATALOGUE_SLOTS {
        let at = catalogue_slot_offset(layout, slot);
        assert!(at >= layout.catalogue.offset && at + catalogue_slot_bytes(layout) <= layout.catalogue.end());
    }
}

/// `[mode, length of the head (2, LE), head, tail]`.
fn both(input: &[u8]) {
    let Some((mode, rest)) = Mode::split(input) else { return };
    let Some((len, rest)) = rest.split_first_chunk::<2>() else { return };
    let (head, tail) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let (head, tail) = (mode.apply(head), mode.apply(tail));
    let (one, other) = (Superblock::decode(&head), Superblock::decode(&tail));
    match newest(&head, &tail) {
        Ok(copies) => {
            let best = [&one, &other].into_iter().flatten().map(|copy| copy.epoch).max();
            assert_eq!(Some(copies.superblock.epoch), best, "the newest counts");
            assert!(one.as_ref() == Ok(&copies.superblock) || other.as_ref() == Ok(&copies.superblock));
            assert_eq!(copies.head_stale, one != Ok(copies.superblock.clone()));
            assert_eq!(copies.tail_stale, other != Ok(copies.superblock.clone()));
            for copy in [&one, &other].into_iter().flatten() {
                assert_eq!((copy.array, copy.drive), (copies.superblock.array, copies.superblock.drive));
            }
        }
        Err(SuperblockError::TwoArrays { .. }) => {
            let (one, other) = (one.expect("whole"), other.expect("whole"));
            assert_ne!((one.array, one.drive), (other.array, other.drive));
        }
        Err(error) => assert!(one.as_ref() == Err(&error) || other.as_ref() == Err(&error), "{error}"),
    }
}
