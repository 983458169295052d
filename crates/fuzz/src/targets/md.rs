//! Superblocks of Linux md arrays, and arrays that consist of them.

use std::fs;

use md::{Candidate, SUPERBLOCK_BYTES, SectorPlace, Superblock, SuperblockError, Version, assess, decode_bad_blocks};

use super::seal::{self, Mode};
use crate::corpus;
use crate::target::{Memory, Seed, Target};

/// Sectors of the drives on which superblocks are assumed to be.
const DRIVE_SECTORS: u64 = 40_960;

/// Number of places of an array that are checked.
const PLACES: u64 = 64;

pub(super) const TARGET: Target = Target {
    name: "md",
    checks: "superblocks of md, checksum fixed up or not: what is decoded can be shown, and an array of them lies inside its members",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"\xFC\x4E\x2B\xA9\x01\0\0\0",
        b"\xFF\xFF",
        b"\xFE\xFF",
        b"\xFD\xFF",
        b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
        b"\x05\0\0\0\x02\0\0\0",
        b"\x06\0\0\0\x12\0\0\0",
        b"\x0A\0\0\0\x02\x01\0\0",
        b"\x0A\0\0\0\x01\x02\x01\0",
    ],
    input_bytes_max: 4 * SUPERBLOCK_BYTES,
    // The roles of 64 members, up to 4 KiB each, and the place of each slot.
    memory: Memory { base_bytes: 640 << 10, per_input_byte: 64 },
};

/// Superblocks that mdadm wrote. The extra bits of the mode are the version.
fn seeds() -> Vec<Seed> {
    let folder = corpus::home().join("../md/tests/golden");
    let golden = |name: &str, version: u8| {
        let bytes =
            fs::read(folder.join(format!("{name}.bin"))).expect("the superblocks of crates/md are in the repository");
        Seed::new(name, seal::input(Mode::SEALED | version << 2, &bytes))
    };
    vec![golden("raid5-0", 0), golden("raid0", 0), golden("raid6-ddf", 1), golden("raid10-far", 2)]
}

/// Corrects the checksum: the sum of all words up to the end of the roles.
fn seal_md(bytes: &mut [u8]) {
    let roles = u32::from_le_bytes(bytes[220..224].try_into().expect("four bytes")) as usize;
    let Some(covered) = bytes.get(..256 + 2 * roles.min(SUPERBLOCK_BYTES)) else { return };
    let words = covered.chunks(4).enumerate().filter(|(index, _)| *index != 54);
    let sum: u64 = words.map(|(_, word)| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).sum();
    let sum = ((sum & 0xFFFF_FFFF) + (sum >> 32)) as u32;
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
}

fn run(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    if let Ok(bad) = decode_bad_blocks(bytes, mode.extra) {
        assert!(bad.iter().all(|range| range.start < range.end));
    }
    let version = [Version::V1_2, Version::V1_1, Version::V1_0][usize::from(mode.extra % 3)];
    let sector = version.sector(DRIVE_SECTORS).expect("there is room");
    let mut bytes = bytes.to_vec();
    if mode.pad {
        bytes.resize(bytes.len().max(1).next_multiple_of(SUPERBLOCK_BYTES), 0);
    }
    let mut candidates = Vec::new();
    for one in bytes.chunks_mut(SUPERBLOCK_BYTES) {
        if mode.seal && one.len() == SUPERBLOCK_BYTES {
            seal_md(one);
        }
        match Superblock::decode(one, version, sector) {
            Ok(superblock) => {
                assert!(!superblock.name.chars().any(char::is_control), "it can be shown");
                candidates.push(Candidate {
                    superblock,
                    drive_sectors: DRIVE_SECTORS,
                    sector_bytes: 512,
                    bad: Ok(Vec::new()),
                });
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(!mode.seal || error != SuperblockError::Checksum, "the checksum was made right");
            }
        }
    }
    // One superblock stands for all members: each gets it with its own number.
    if let [one] = &candidates[..] {
        let members = one.superblock.disks.min(64);
        candidates = (0..members)
            .map(|number| {
                let mut member = one.clone();
                member.superblock.device_number = number;
                member
            })
            .collect();
    }
    if !candidates.is_empty() {
        check(&candidates);
    }
}

/// Checks that an array that is accepted is inside the data of its members.
fn check(candidates: &[Candidate]) {
    let assessment = assess(&candidates.iter().collect::<Vec<_>>(), false);
    let mut left_out = assessment.left_out.iter().map(|(index, reason)| (*index, reason.to_string()));
    assert!(left_out.all(|(index, reason)| index < candidates.len() && !reason.is_empty()));
    let assembly = match assessment.assembly {
        Ok(assembly) => assembly,
        Err(refusal) => return assert!(!refusal.to_string().chars().any(char::is_control)),
    };
    let geometry = &assembly.geometry;
    assert_eq!(assembly.members.len(), geometry.disk_count());
    assert!(geometry.sectors() > 0 && geometry.sectors().checked_mul(512).is_some());
    for (slot, member) in assembly.members.iter().enumerate() {
        let Some(member) = member else { continue };
        assert!(member.data_offset + geometry.used_sectors(slot) <= candidates[member.candidate].drive_sectors);
    }
    for step in 0..PLACES.min(geometry.sectors()) {
        let sector = (geometry.sectors() - 1) / (PLACES.min(geometry.sectors()).max(2) - 1) * step;
        let inside = |disk: usize, at: u64, sectors: u64| at + sectors <= geometry.used_sectors(disk);
        match geometry.locate(sector.min(geometry.sectors() - 1)) {
            SectorPlace::Copies { at, sectors } => {
                assert!(sectors > 0 && at.iter().all(|&(disk, start)| inside(disk, start, sectors)), "{at:?}");
            }
            SectorPlace::Strip { row, index, sector, sectors } => {
                let row = geometry.parity().expect("strips have parity").row(row);
                assert!(sectors > 0 && inside(row.data[index], sector, sectors));
            }
        }
    }
}
