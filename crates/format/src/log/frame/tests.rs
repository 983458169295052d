//! Frames read back as they were written, and everything else is refused.

use super::disk::CRC_FIELD;
use super::*;
use crate::BLOCK;
use crate::RoleSet;
use crate::checksum::crc32c_without;
use crate::uuid::Uuid;

const ARRAY: Uuid = Uuid::from_bytes([7; 16]);
const SHAPE: LogShape =
    LogShape { data_strips: 4, strips: 6, stripe_groups: 10, stripe_group_bytes: 32768, strip_bytes: 16384 };

fn entries() -> Vec<Entry> {
    vec![
        Entry {
            offset: 8192,
            len: 4096,
            overwritten: RoleSet::from_bits(0b0001),
            in_parity: RoleSet::EMPTY,
            checksums: vec![],
        },
        Entry {
            offset: 12288,
            len: 512,
            overwritten: RoleSet::from_bits(0b0011),
            in_parity: RoleSet::from_bits(0b1000),
            checksums: vec![1, 2, 3, 4],
        },
        Entry {
            offset: 16384,
            len: 8192,
            overwritten: RoleSet::from_bits(0b1111),
            in_parity: RoleSet::EMPTY,
            checksums: (0..12).collect(),
        },
    ]
}

fn sample() -> Vec<u8> {
    let entries = entries();
    let payload: Vec<u8> = (0..4096 + 512).map(|i| i as u8).collect();
    let part = |sequence, role| PartData {
        sequence,
        stripe_group: 9,
        holders: RoleSet::from_bits(0b11_0000),
        in_sync: RoleSet::from_bits(0b11_0111),
        role,
        entries: &entries,
        whole: false,
        payload: &payload,
    };
    let parts = [part(1, 4), part(2, 5)];
    let mut out = vec![0xAA; frame_len(&parts)];
    let head = FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 4096, tail: 1 };
    encode_frame(&ARRAY, &head, &parts, &mut out);
    out
}

fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    Frame::decode(bytes, &ARRAY, 3, 65536, &SHAPE)
}

fn reseal(bytes: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(bytes);
    let sum = crc32c_without(bytes, CRC_FIELD);
    bytes[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn a_frame_reads_back_as_it_was_written_whatever_follows_it() {
    let mut bytes = sample();
    assert_eq!(bytes.len(), 4096 + 12288);
    bytes.extend([0x55; 4096]);
    let frame = decode(&bytes).unwrap();
    assert_eq!(frame.head, FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 4096, tail: 1 });
    assert_eq!((frame.len, frame.parts.len()), (16384, 2));
    for (part, (sequence, role)) in frame.parts.iter().zip([(1, 4), (2, 5)]) {
        assert_eq!((part.sequence, part.stripe_group, part.role), (sequence, 9, role));
        assert_eq!((part.holders.bits(), part.in_sync.bits()), (0b11_0000, 0b11_0111));
        assert_eq!(part.entries, entries());
        let payload = &bytes[part.payload.clone()];
        assert!(payload.len() == 4608 && payload.iter().enumerate().all(|(i, &byte)| byte == i as u8));
    }
}

#[test]
fn a_checkpoint_reads_back_with_its_exceptions() {
    let head = FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 512, tail: 1000 };
    for exceptions in [vec![], vec![7, 999], (0..EXCEPTIONS_MAX as u64).collect()] {
        let frame = decode(&encode_checkpoint(&ARRAY, &head, &exceptions)).unwrap();
        assert_eq!((frame.head, frame.exceptions, frame.parts.len(), frame.len), (head, exceptions, 0, BLOCK));
    }
}

#[test]
fn a_frame_torn_at_any_sector_is_no_frame() {
    let bytes = sample();
    for sector in 0..bytes.len() / 512 {
        let mut torn = bytes.clone();
        torn[sector * 512..][..512].fill(0xEE);
        let changed = torn != bytes;
        assert!(!changed || decode(&torn).is_err(), "sector {sector}");
    }
    assert_eq!(decode(&bytes[..8192]), Err(FrameError::NotAFrame), "cut off");
}

#[test]
fn a_frame_of_another_array_generation_or_place_does_not_count() {
    let bytes = sample();
    let other = Uuid::from_bytes([8; 16]);
    assert_eq!(Frame::decode(&bytes, &other, 3, 65536, &SHAPE), Err(FrameError::Stale));
    assert_eq!(Frame::decode(&bytes, &ARRAY, 4, 65536, &SHAPE), Err(FrameError::Stale));
    let misplaced = Err(FrameError::Misplaced { found: 65536, expected: 0 });
    assert_eq!(Frame::decode(&bytes, &ARRAY, 3, 0, &SHAPE), misplaced);
}

#[test]
fn fields_that_cannot_be_are_refused_even_under_a_right_checksum() {
    let cases: [(&str, usize, &[u8]); 13] = [
        ("exceptions", 76, &[0xFF; 4]),
        ("piece_bytes", 72, &[1]),
        ("meta_len", 64, &[0xFF; 4]),
        ("meta_len", 64, &[0; 4]),
        ("parts", 60, &[9]),
        ("holders", 112, &[6]),
        ("holders", 96, &[0xFF; 8]),
        ("payload", 116, &[0xFF; 4]),
        ("entries", 136, &[0; 4]),
        ("entries", 140, &[0xFF; 4]),
        ("stripe group", 88, &[10]),
        // Past the end of the stripe group, and across the end of a strip.
        ("entries", 130, &[1]),
        ("entries", 129, &[0x3E]),
    ];
    for (field, offset, value) in cases {
        let mut bytes = sample();
        reseal(&mut bytes, |bytes| bytes[offset..offset + value.len()].copy_from_slice(value));
        assert_eq!(decode(&bytes), Err(FrameError::Invalid { field }), "offset {offset}");
    }
}
