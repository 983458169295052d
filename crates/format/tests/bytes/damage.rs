//! No damage passes for a value: flipped bits, torn writes, anything at all.

use crate::common::{
    array, catalogue, catalogue_with_maintenance, catalogue_with_thin_volumes, map_block, superblock,
    superblock_of_a_spare, superblock_with_checksums, uuid,
};
use format::{
    BLOCK, COUNTER_MAX, Catalogue, Layout, Level, MapBlock, MapError, Run, Runs, Shape, SlotError, Superblock,
    TooLarge, decode_slot, encode_slot,
};
use proptest::prelude::*;

const SECTOR: usize = 512;
const SLOT_BYTES: u64 = 16 << 10;

/// Calls `check` with `bytes` after each single bit has been flipped.
fn for_each_flipped_bit(bytes: &[u8], mut check: impl FnMut(&[u8], usize)) {
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        check(&damaged, bit);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Calls `check` with what is on the medium after a write of `new` over `old` was torn: any set of
/// the sectors of one 4 KiB block, or any number of leading sectors of something longer.
fn for_each_torn_write(old: &[u8], new: &[u8], mut check: impl FnMut(&[u8])) {
    let len = old.len().max(new.len());
    let sectors = len / SECTOR;
    let sets: Vec<u64> =
        if sectors <= 8 { (0..1 << sectors).collect() } else { (0..=sectors).map(|count| (1 << count) - 1).collect() };
    for set in sets {
        let mut torn = vec![0; len];
        torn[..old.len()].copy_from_slice(old);
        for sector in (0..new.len() / SECTOR).filter(|sector| set >> sector & 1 == 1) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            torn[range.clone()].copy_from_slice(&new[range]);
        }
        check(&torn);
    }
}

#[test]
fn every_flipped_bit_of_a_superblock_is_noticed() {
    for superblock in [superblock(), superblock_of_a_spare()] {
        for_each_flipped_bit(&superblock.encode(), |damaged, bit| {
            assert!(Superblock::decode(damaged).is_err(), "bit {bit}");
        });
    }
}

#[test]
fn every_flipped_bit_of_a_map_block_is_noticed() {
    let block = map_block();
    for_each_flipped_bit(&block.encode(&array()), |damaged, bit| {
        assert!(MapBlock::decode(damaged, &array(), block.index).is_err(), "bit {bit}");
    });
}

#[test]
fn every_flipped_bit_of_a_catalogue_is_noticed() {
    let bytes = encode_slot(&catalogue_with_maintenance(), &array(), 5, SLOT_BYTES).unwrap();
    for_each_flipped_bit(&bytes, |damaged, bit| {
        assert!(decode_slot(damaged, &array()).is_err(), "bit {bit}");
    });
}

#[test]
fn a_torn_superblock_is_the_old_one_the_new_one_or_an_error() {
    let old = superblock();
    let mut new = Superblock { epoch: old.epoch + 1, clean: false, ..superblock() };
    new.spares[1] = uuid(0xE0);
    let mut errors = 0;
    for_each_torn_write(&old.encode(), &new.encode(), |torn| match Superblock::decode(torn) {
        Ok(read) => assert!(read == old || read == new),
        Err(_) => errors += 1,
    });
    assert!(errors > 0, "some tears mix the two");
    for_each_torn_write(&[0; BLOCK], &new.encode(), |torn| {
        assert!(Superblock::decode(torn).is_ok_and(|read| read == new) || Superblock::decode(torn).is_err());
    });
}

#[test]
fn a_torn_map_block_is_the_old_one_the_new_one_or_an_error() {
    let old = map_block();
    let mut new = MapBlock { sequence: old.sequence + 2, ..map_block() };
    (0..32_000).step_by(3).for_each(|chunk| new.set(chunk, true));
    let mut errors = 0;
    for_each_torn_write(&old.encode(&array()), &new.encode(&array()), |torn| {
        match MapBlock::decode(torn, &array(), old.index) {
            Ok(read) => assert!(read == old || read == new),
            Err(_) => errors += 1,
        }
    });
    assert!(errors > 0, "some tears mix the two");
}

#[test]
fn a_torn_catalogue_is_the_old_one_the_new_one_or_an_error() {
    let mut large = catalogue();
    for id in 100..130 {
        let mut volume = large.volumes[0].clone();
        volume.id = id;
        volume.name = format!("volume-{id}");
        volume.extents.iter_mut().for_each(|extent| extent.start_byte += (id - 90) << 40);
        large.volumes.push(volume);
    }
    large.next_id = 200;
    let encode = |catalogue: &Catalogue, sequence| encode_slot(catalogue, &array(), sequence, SLOT_BYTES).unwrap();
    let (short, long) = (encode(&catalogue(), 5), encode(&large, 7));
    assert!(long.len() > short.len());
    for (old, new) in [(&short, &long), (&long, &short)] {
        let mut errors = 0;
        for_each_torn_write(old, new, |torn| match decode_slot(torn, &array()) {
            Ok(read) => assert!(read == (5, catalogue()) || read == (7, large.clone())),
            Err(_) => errors += 1,
        });
        assert!(errors > 0, "some tears mix the two");
    }
}

/// Changes bytes of a block and makes its checksum right again.
fn resealed(mut bytes: Vec<u8>, offset: usize, value: &[u8]) -> Vec<u8> {
    bytes[offset..offset + value.len()].copy_from_slice(value);
    bytes[12..16].fill(0);
    let sum = gf::crc32c(&bytes[..BLOCK]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn blocks_of_another_array_or_version_are_refused_and_say_so() {
    let block = map_block().encode(&array()).to_vec();
    let other = MapError::OtherArray { array: array() };
    assert_eq!(MapBlock::decode(&block, &uuid(0), 3), Err(other));
    let later = resealed(block, 8, &[2]);
    assert_eq!(MapBlock::decode(&later, &array(), 3), Err(MapError::UnknownVersion { found: 2 }));

    let slot = encode_slot(&catalogue(), &array(), 5, SLOT_BYTES).unwrap();
    assert_eq!(decode_slot(&slot, &uuid(0)), Err(SlotError::OtherArray { array: array() }));
    let later = resealed(slot.clone(), 8, &[4]);
    assert_eq!(decode_slot(&later, &array()), Err(SlotError::UnknownVersion { found: 4 }));
    // Version 1 has no maintenance settings and no scrub.
    let mislabelled = encode_slot(&catalogue_with_maintenance(), &array(), 5, SLOT_BYTES).unwrap();
    assert!(matches!(decode_slot(&resealed(mislabelled, 8, &[1]), &array()), Err(SlotError::Document { .. })));
    let mislabelled = encode_slot(&catalogue_with_thin_volumes(), &array(), 5, SLOT_BYTES).unwrap();
    assert!(matches!(decode_slot(&resealed(mislabelled, 8, &[2]), &array()), Err(SlotError::Document { .. })));
    let longer = resealed(slot, 40, &u32::MAX.to_le_bytes());
    assert_eq!(decode_slot(&longer, &array()), Err(SlotError::Length { len: u32::MAX }));
}

#[test]
fn a_catalogue_that_does_not_fit_its_slot_is_refused_with_the_size_it_needs() {
    let fits = 2 * BLOCK as u64;
    assert!(encode_slot(&catalogue(), &array(), 1, fits).is_ok());
    let refused = encode_slot(&catalogue(), &array(), 1, fits - 1);
    assert_eq!(refused, Err(TooLarge { need: fits, have: fits - 1 }));
}

#[test]
fn fewer_bytes_than_a_structure_are_an_error() {
    let bytes = superblock().encode();
    let map = map_block().encode(&array());
    let slot = encode_slot(&catalogue(), &array(), 5, SLOT_BYTES).unwrap();
    for len in [0, 1, 512, BLOCK - 1] {
        assert!(Superblock::decode(&bytes[..len]).is_err());
        assert!(MapBlock::decode(&map[..len], &array(), 3).is_err());
        assert!(decode_slot(&slot[..len], &array()).is_err());
    }
    assert!(decode_slot(&slot[..BLOCK], &array()).is_err());
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let parts = (0..Level::ALL.len(), 2u16..=64, 1u8..=8, 2u16..=8, 12u32..=20);
    parts.prop_filter_map("no such shape", |(level, members, parity, sets, strip)| {
        let level = Level::ALL[level];
        let parity = (level == Level::Nm).then_some(parity);
        let copies = (level == Level::Raid10).then_some(sets.min(4) as u8);
        let sets = matches!(level, Level::Raid50 | Level::Raid60).then_some(sets);
        Shape::of(level, members).parity(parity).copies(copies).sets(sets).strip_bytes(1 << strip).build().ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_written_is_what_is_read(
        shape in any_shape(),
        member_bytes in (4u64 << 20)..(1 << 50),
        name in "[a-z0-9][a-z0-9._-]{0,63}",
        (epoch, clean, created_unix_s, slot) in (1..=COUNTER_MAX, any::<bool>(), any::<u64>(), any::<u16>()),
        (states, spare_count, rebuild_at) in (proptest::collection::vec(1u8..=4, 64), 0u8..=16, any::<u64>()),
        checksums in any::<bool>(),
    ) {
        let members: Vec<_> = (0..shape.members).map(|slot| format::MemberEntry {
            uuid: uuid(slot as u8 + 1),
            state: format::MemberState::from_number(states[usize::from(slot)]).unwrap(),
        }).collect();
        let layout = Layout::plan(&shape, member_bytes, checksums).unwrap();
        let filling = members.iter().position(|entry| entry.state == format::MemberState::Rebuilding);
        let superblock = Superblock {
            name,
            epoch,
            held_epoch: created_unix_s % epoch,
            runs: Runs {
                this: Run { first_epoch: epoch - epoch / 3, members: created_unix_s },
                before: std::array::from_fn(|index| {
                    let first_epoch = (epoch / 3).saturating_sub(index as u64);
                    Run { first_epoch, members: if first_epoch == 0 { 0 } else { !created_unix_s } }
                }),
            },
            clean,
            created_unix_s,
            drive: members[usize::from(slot % shape.members)].uuid,
            role: format::Role::Member(slot % shape.members),
            spares: (0..spare_count).map(|spare| uuid(spare + 0x80)).collect(),
            rebuild: filling.map(|member| {
                format::Rebuild { member: member as u16, next_chunk: rebuild_at % (layout.chunk_count + 1) }
            }),
            shape,
            members,
            layout,
            features: if checksums { superblock_with_checksums().features } else { superblock().features },
            ..superblock()
        };
        prop_assert_eq!(superblock.check(), Ok(()));
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn a_map_block_reads_back_and_only_in_its_place(
        bits in proptest::collection::vec(any::<u8>(), format::MAP_PAYLOAD_BYTES),
        index in 0u64..1 << 40,
        sequence in 0..=COUNTER_MAX,
    ) {
        let block = MapBlock { index, sequence, bits: bits.try_into().unwrap() };
        let bytes = block.encode(&array());
        prop_assert_eq!(MapBlock::decode(&bytes, &array(), index), Ok(block));
        prop_assert!(MapBlock::decode(&bytes, &array(), index + 1).is_err());
        prop_assert!(MapBlock::decode(&bytes, &uuid(0), index).is_err());
    }

    /// Wrong fields may have a right checksum. They give an error, or a value that is written again
    /// as it was read.
    #[test]
    fn any_bytes_under_a_right_checksum_give_an_error_or_a_value_that_can_be_written(
        changes in proptest::collection::vec((16usize..2416, any::<u8>()), 1..6),
    ) {
        let mut bytes = superblock().encode();
        for (offset, value) in changes {
            bytes[offset] = value;
        }
        bytes[12..16].fill(0);
        let sum = gf::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        if let Ok(read) = Superblock::decode(&bytes) && !read.is_read_only() {
            let mut again = read.clone();
            again.features.compatible = 0;
            prop_assert_eq!(Superblock::decode(&read.encode()), Ok(again));
            prop_assert!(!read.to_string().is_empty());
        }
    }

    #[test]
    fn noise_is_never_a_structure(
        mut bytes in proptest::collection::vec(any::<u8>(), 2 * BLOCK),
        magic in prop_oneof![Just(*b"PurlinSB"), Just(*b"PurlinMB"), Just(*b"PurlinCT")],
    ) {
        bytes[..8].copy_from_slice(&magic);
        prop_assert!(Superblock::decode(&bytes).is_err());
        prop_assert!(MapBlock::decode(&bytes, &array(), 0).is_err());
        prop_assert!(decode_slot(&bytes, &array()).is_err());
    }
}
