//! Shapes and layouts, from the numbers of a request.

use format::sums::{sum_block_offset, sum_place};
use format::{BLOCK, Layout, LayoutError, Level, Shape, map_block_count, map_slot_offset};

use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "layout",
    checks: "shapes and layouts of any numbers: refused, or regions are in order, inside, and large enough",
    run,
    seeds: || {
        let seed = |name, level: Level, members: u16, options: [u8; 4], strip_bytes: u32, member_bytes: u64| {
            let mut bytes = vec![level as u8];
            bytes.extend_from_slice(&members.to_le_bytes());
            bytes.extend_from_slice(&options);
            bytes.extend_from_slice(&strip_bytes.to_le_bytes());
            bytes.extend_from_slice(&member_bytes.to_le_bytes());
            Seed::new(name, bytes)
        };
        vec![
            seed("raid6", Level::Raid6, 6, [0, 0, 0, 0], 64 << 10, 1 << 40),
            seed("raid10", Level::Raid10, 8, [2, 0, 2, 0], 4096, 1 << 20),
            seed("raid60", Level::Raid60, 12, [4, 0, 0, 3], 1 << 20, 1 << 56),
            seed("nm", Level::Nm, 64, [1, 8, 0, 0], 16 << 10, 300_000),
        ]
    },
    stored: Vec::new,
    dictionary: &[&[0xFF; 8], &[0, 0, 0, 0, 0, 0, 0, 1], &[64, 0], &[0, 16, 0, 0]],
    input_bytes_max: 32,
    memory: Memory { base_bytes: 16 << 10, per_input_byte: 0 },
};

/// `[level, members (2, LE), which options are given, parity, copies, sets, strip (4, LE), member
/// (8, LE)]`.
fn run(input: &[u8]) {
    let Some((&[level, m0, m1, given, parity, copies, sets], rest)) = input.split_first_chunk::<7>() else { return };
    let Some((strip, rest)) = rest.split_first_chunk::<4>() else { return };
    let Some((member, _)) = rest.split_first_chunk::<8>() else { return };
    let Some(level) = Level::from_number(level) else { return };
    let (members, strip_bytes) = (u16::from_le_bytes([m0, m1]), u32::from_le_bytes(*strip));
    let option = |bit: u8, value: u8| (given & bit != 0).then_some(value);
    let raw = Shape { level, members, sets: sets.into(), parity_count: parity, strip_bytes };
    let checked = raw.check();

    let made = Shape::of(level, members)
        .parity(option(1, parity))
        .copies(option(2, copies))
        .sets(option(4, sets).map(u16::from))
        .strip_bytes(strip_bytes)
        .build();
    let shape = match made {
        Ok(shape) => shape,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            // Fields that contradict each other are refused in both forms.
            let Ok(()) = checked else { return };
            raw
        }
    };
    assert_eq!(shape.check(), Ok(()));
    assert!(
        shape.data_per_set() >= 1 && shape.members_per_set() * usize::from(shape.sets) == usize::from(shape.members)
    );
    assert!(!shape.to_string().is_empty());
    let (set, place) = shape.set_of(usize::from(shape.members) - 1);
    assert_eq!((set, place), (usize::from(shape.sets) - 1, shape.members_per_set() - 1));
    for checksums in [false, true] {
        check_layout(&shape, u64::from_le_bytes(*member), checksums);
    }
}

fn check_layout(shape: &Shape, member_bytes: u64, checksums: bool) {
    let layout = match Layout::plan(shape, member_bytes, checksums) {
        Ok(layout) => layout,
        Err(LayoutError::TooSmall { need, have }) => {
            assert!(have == member_bytes && need > have, "{need} bytes are needed, {have} are there");
            assert!(Layout::plan(shape, need, checksums).is_ok(), "what is said to be needed is enough");
            return;
        }
        Err(LayoutError::TooLarge { .. }) => return assert!(member_bytes > 1 << 50, "no such drive exists"),
    };
    let block = BLOCK as u64;
    let mut regions = vec![layout.map, layout.log, layout.catalogue, layout.data];
    regions.extend(layout.checksums);
    assert_eq!(layout.checksums.is_some(), checksums);
    if let Some(region) = layout.checksums {
        let (last, _) = sum_place(&layout, layout.data.end() - 1);
        assert!(sum_block_offset(&region, last) + block <= region.end(), "{layout:?}");
    }
    regions.sort_by_key(|region| region.offset);
    let mut free_from = block;
    for region in regions {
        assert!(region.offset >= free_from && region.len > 0, "{layout:?}");
        assert!(region.offset.is_multiple_of(block) && region.len.is_multiple_of(block), "{layout:?}");
        free_from = region.end();
    }
    assert!(free_from + block <= layout.member_bytes && layout.member_bytes <= member_bytes, "{layout:?}");
    map_slot_offset(&layout, map_block_count(layout.chunk_count) - 1, 1);
    let bytes_in_chunks = layout.chunk_count * u64::from(layout.chunk_bytes);
    assert_eq!(bytes_in_chunks, layout.data.len * u64::from(shape.sets), "every byte of data is in one chunk");
    assert!(layout.capacity_bytes(shape) >= layout.data.len);
}
