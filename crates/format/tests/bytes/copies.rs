//! A drive keeps two copies of its superblock, and one of them is enough.

use crate::common::{superblock, superblock_of_a_spare, uuid};
use format::{BLOCK, Superblock, SuperblockError, newest, superblock_offsets};

fn older() -> Superblock {
    Superblock { epoch: superblock().epoch - 1, ..superblock() }
}

/// Makes the version of an encoded superblock 2, with a right checksum.
fn of_version_2(superblock: &Superblock) -> [u8; BLOCK] {
    let mut bytes = superblock.encode();
    bytes[8] = 2;
    bytes[12..16].fill(0);
    let sum = gf::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn the_tail_lies_in_the_last_whole_block() {
    assert_eq!(superblock_offsets(1 << 20), Some([0, (1 << 20) - 4096]));
    assert_eq!(superblock_offsets((1 << 20) + 4095), Some([0, (1 << 20) - 4096]));
    assert_eq!(superblock_offsets(8192), Some([0, 4096]));
}

#[test]
fn a_drive_of_fewer_than_two_blocks_has_no_room_for_a_superblock() {
    for drive_bytes in [0, 511, 512, 4095, 4096, 8191] {
        assert_eq!(superblock_offsets(drive_bytes), None, "{drive_bytes}");
    }
}

#[test]
fn the_copy_with_the_higher_epoch_counts_and_the_other_is_named() {
    let (old, new) = (older().encode(), superblock().encode());
    let copies = newest(&old, &new).unwrap();
    assert_eq!((copies.superblock, copies.head_stale, copies.tail_stale), (superblock(), true, false));
    let copies = newest(&new, &old).unwrap();
    assert_eq!((copies.superblock, copies.head_stale, copies.tail_stale), (superblock(), false, true));
    let copies = newest(&new, &new).unwrap();
    assert_eq!((copies.superblock, copies.head_stale, copies.tail_stale), (superblock(), false, false));
}

#[test]
fn one_damaged_copy_is_survived_and_named() {
    let good = superblock().encode();
    let mut bad = good;
    bad[100] ^= 1;
    for bad in [&bad[..], &[0; BLOCK], &[]] {
        let copies = newest(&good, bad).unwrap();
        assert_eq!((copies.superblock, copies.head_stale, copies.tail_stale), (superblock(), false, true));
        let copies = newest(bad, &good).unwrap();
        assert_eq!((copies.superblock, copies.head_stale, copies.tail_stale), (superblock(), true, false));
    }
}

#[test]
fn a_crash_between_the_writes_of_tail_and_head_leaves_the_old_or_the_new() {
    let (old, new) = (older().encode(), superblock().encode());
    for sectors in 0..=8 {
        let mut torn = old;
        torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
        for (head, tail) in [(&old, &torn), (&torn, &new)] {
            let read = newest(head, tail).unwrap().superblock;
            assert!(read == older() || read == superblock(), "{sectors} sectors");
        }
    }
}

#[test]
fn two_bad_copies_are_an_error_that_says_the_most() {
    let mut bad = superblock().encode();
    bad[100] ^= 1;
    assert_eq!(newest(&[], &[0; BLOCK]), Err(SuperblockError::NotPurlin));
    assert_eq!(newest(&bad, &[0; BLOCK]), Err(SuperblockError::Checksum));
    assert_eq!(newest(&[], &bad), Err(SuperblockError::Checksum));
}

#[test]
fn a_copy_of_an_unknown_version_is_never_overruled_by_one_that_is_known() {
    let (known, unknown) = (superblock().encode(), of_version_2(&older()));
    assert_eq!(newest(&known, &unknown), Err(SuperblockError::UnknownVersion { found: 2 }));
    assert_eq!(newest(&unknown, &known), Err(SuperblockError::UnknownVersion { found: 2 }));
}

#[test]
fn two_arrays_that_claim_one_drive_are_refused() {
    let other = Superblock { array: uuid(7), ..superblock() };
    let expected = SuperblockError::TwoArrays { head: superblock().array, tail: other.array };
    assert_eq!(newest(&superblock().encode(), &other.encode()), Err(expected));
    assert!(newest(&superblock().encode(), &superblock_of_a_spare().encode()).is_err(), "two drives");
}
