//! Superblocks that mdadm 4.2 and Linux 6.12 wrote. Zeroes at the end of a file are left out.

use std::path::Path;

use md::{Candidate, Features, LeftOut, Refusal, Role, SUPERBLOCK_BYTES, Superblock, SuperblockError, Version, assess};
use proptest::prelude::*;

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new("tests/golden").join(format!("{name}.bin"));
    let mut bytes = std::fs::read(path).unwrap();
    bytes.resize(SUPERBLOCK_BYTES, 0);
    bytes
}

fn candidate(name: &str, version: Version) -> Candidate {
    let drive_sectors = 40_960;
    let superblock = Superblock::decode(&golden(name), version, version.sector(drive_sectors).unwrap()).unwrap();
    Candidate { superblock, drive_sectors, sector_bytes: 512, bad: Ok(Vec::new()) }
}

#[test]
fn a_raid_5_with_a_spare_is_what_mdadm_made() {
    let members: Vec<Candidate> = (0..4).map(|number| candidate(&format!("raid5-{number}"), Version::V1_2)).collect();
    let superblock = &members[0].superblock;
    assert_eq!((superblock.name.as_str(), superblock.level, superblock.layout), ("golden:r5", 5, 2));
    assert_eq!((superblock.disks, superblock.chunk_sectors, superblock.size_sectors), (3, 128, 38_912));
    assert_eq!((superblock.data_offset, superblock.data_sectors, superblock.events), (2048, 38_912, 18));
    assert_eq!((superblock.features, superblock.is_clean()), (Features::BITMAP, true));
    assert_eq!(superblock.role_of(0), Role::Member(0));
    let assessment = assess(&members.iter().collect::<Vec<_>>(), false);
    assert_eq!(assessment.left_out, [(3, LeftOut::Spare)]);
    let assembly = assessment.assembly.unwrap();
    let order: Vec<usize> = assembly.members.iter().map(|member| member.as_ref().unwrap().candidate).collect();
    assert_eq!(order, [0, 1, 2], "the third has number 4, and slot 2");
    assert_eq!((assembly.geometry.sectors(), assembly.geometry.layout_name().as_str()), (2 * 38_912, "left-symmetric"));
    assert_eq!(assessment.description.level, "raid5");

    // The same array, while it was being written, with its spare failed; then one member is
    // missing.
    let dirty = candidate("raid5-dirty", Version::V1_2);
    assert_eq!((dirty.superblock.resynced_sectors, dirty.superblock.events), (Some(0), 20));
    assert_eq!(dirty.superblock.role_of(3), Role::Faulty);
    let assessment = assess(&[&dirty, &members[1], &members[3]], false);
    assert_eq!(
        assessment.left_out,
        [(1, LeftOut::Stale { events: 18, newest: 20 }), (2, LeftOut::Faulty)],
        "whoever missed two events is stale, whatever it says of itself"
    );
    assert!(matches!(assessment.assembly, Err(Refusal::Missing { .. })));
}

#[test]
fn the_other_places_levels_and_layouts_are_what_mdadm_made() {
    for (name, version, level, layout, disks, chunk) in [
        ("raid10-far", Version::V1_0, "raid10", "far=2", 4, 1024),
        ("raid6-ddf", Version::V1_1, "raid6", "ddf-N-continue", 5, 1024),
        ("raid0", Version::V1_2, "raid0", "", 2, 24),
    ] {
        let one = candidate(name, version);
        let assessment = assess(&[&one], false);
        let description = &assessment.description;
        assert_eq!((description.level.as_str(), description.disks), (level, disks), "{name}");
        assert!(matches!(assessment.assembly, Err(Refusal::Missing { .. })), "{name}: {:?}", assessment.assembly);
        assert_eq!(one.superblock.chunk_sectors, chunk, "{name}");
        if level != "raid0" {
            assert_eq!(description.layout, layout, "{name}");
        }
    }
}

#[test]
fn a_superblock_in_the_wrong_place_is_refused() {
    let bytes = golden("raid5-0");
    assert_eq!(
        Superblock::decode(&bytes, Version::V1_0, 40_944),
        Err(SuperblockError::SectorPlace { says: 8, lies: 40_944 })
    );
    assert_eq!(Superblock::decode(&bytes[..4095], Version::V1_2, 8), Err(SuperblockError::NotMd));
}

proptest! {
    #[test]
    fn a_flipped_bit_is_noticed(bit in 0..512 * 8_usize) {
        let mut bytes = golden("raid6-ddf");
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Superblock::decode(&bytes, Version::V1_1, 0).is_err());
    }
}
