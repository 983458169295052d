//! The write-hole log: frames, and the list of lost blocks.

use format::log::{
    Entry, Frame, FrameError, FrameHead, LOST_RANGES_MAX, LOST_SLOT_BYTES, LogShape, LostBlocks, LostError, PartData,
    encode_frame, frame_len,
};
use format::{BLOCK, RoleSet, Uuid};

use super::samples::ARRAY;
use super::seal::{self, Mode};
use crate::target::{Memory, Seed, Target};

/// The shape of the group, by [`Mode::extra`].
const SHAPES: [LogShape; 4] = [shape(4, 6), shape(1, 2), shape(56, 64), shape(3, 3)];

const fn shape(data_strips: usize, strips: usize) -> LogShape {
    LogShape { data_strips, strips, stripe_groups: 1000, stripe_group_bytes: 1 << 20, strip_bytes: 64 << 10 }
}

const GENERATION_AT: usize = 32;
const OFFSET_AT: usize = 40;
const FRAME_LEN_AT: usize = 68;

pub(super) const FRAME: Target = Target {
    name: "log-frame",
    checks: "a frame of the write-hole log, checksum fixed up or not: parts lie in the frame, and round-trip",
    run: frame,
    seeds,
    stored: Vec::new,
    dictionary: &[b"PurlinLG", &[0, 16, 0, 0], &[0, 32, 0, 0], &[0xFF; 8], &[0xFF; 4]],
    input_bytes_max: 4 * BLOCK,
    // An entry of 32 bytes is larger in memory, and a growing list exists twice.
    memory: Memory { base_bytes: 256 << 10, per_input_byte: 64 },
};

pub(super) const LOST: Target = Target {
    name: "log-lost",
    checks: "the list of lost blocks, checksum fixed up or not: ranges are sorted and disjoint, and round-trip",
    run: lost,
    seeds: || {
        let seed = |name, ranges: Vec<(u64, u64)>| {
            let list = LostBlocks { sequence: 3, ranges };
            Seed::new(name, seal::input(Mode::SEALED, &list.encode(&ARRAY)))
        };
        vec![
            seed("none", Vec::new()),
            seed("some", vec![(0, 4096), (8192, 512), (u64::MAX - 5000, 4096)]),
            seed("many", (0..20).map(|n| (n * 8192, 4096)).collect()),
        ]
    },
    stored: Vec::new,
    dictionary: &[b"PurlinLB", &[0xFF; 8], &[0, 16, 0, 0, 0, 0, 0, 0]],
    input_bytes_max: LOST_SLOT_BYTES + 64,
    memory: Memory { base_bytes: 128 << 10, per_input_byte: 4 },
};

fn seeds() -> Vec<Seed> {
    let entry = |offset, len, overwritten, in_parity, checksums| {
        let (overwritten, in_parity) = (RoleSet::from_bits(overwritten), RoleSet::from_bits(in_parity));
        Entry { offset, len, overwritten, in_parity, checksums }
    };
    let entries = [
        entry(8192, 128, 0b0001, 0, vec![]),
        entry(12288, 64, 0b0011, 0b1000, vec![1, 2, 3, 4]),
        entry(16384, 8192, 0b1111, 0, (0..12).collect()),
        entry(0, 4096, 0, 0, vec![]),
    ];
    let payload = [0x33; 192];
    let part = |role| PartData {
        sequence: 7,
        stripe_group: 9,
        holders: RoleSet::from_bits(0b11_0000),
        in_sync: RoleSet::from_bits(0b11_1110),
        role,
        whole: false,
        entries: &entries,
        payload: &payload,
    };
    let copies = [entry(0, 64, 1, 0, vec![5, 6])];
    let copy = PartData {
        sequence: 1,
        stripe_group: 0,
        holders: RoleSet::below(2),
        in_sync: RoleSet::below(2),
        role: 0,
        whole: false,
        entries: &copies,
        payload: &[],
    };
    let new = PartData { whole: true, payload: &payload[..64], ..copy.clone() };
    let seed = |name, extra: u8, parts: &[PartData<'_>]| {
        let mut bytes = vec![0; frame_len(parts)];
        let head = FrameHead { generation: 3, offset: 65536, stream: 2, piece_bytes: 4096, tail: 1 };
        encode_frame(&ARRAY, &head, parts, &mut bytes);
        Seed::new(name, seal::input(Mode::SEALED | extra << 2, &bytes))
    };
    // Most of the payload is left out of the corpus: it is filled up with zeroes, and the checksum
    // is corrected.
    let mut all = vec![
        seed("parity", 0, &[part(4), part(5)]),
        seed("mirror", 1, &[copy]),
        seed("whole", 1, &[new]),
        seed("empty", 0, &[]),
    ];
    all[0].bytes.truncate(1000);
    all
}

fn own_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |field| u64::from_le_bytes(field.try_into().expect("8 bytes")))
}

fn own_array(bytes: &[u8]) -> Uuid {
    bytes.get(16..32).map_or(ARRAY, |array| Uuid::from_bytes(array.try_into().expect("16 bytes")))
}

fn frame(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let mut bytes = mode.apply(bytes);
    let announced = bytes.get(FRAME_LEN_AT..FRAME_LEN_AT + 4);
    let announced = announced.map_or(0, |len| u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize);
    if mode.pad && announced <= 16 * BLOCK {
        bytes.resize(bytes.len().max(announced), 0);
    }
    if mode.seal
        && let Some(frame) = bytes.get_mut(..announced).filter(|frame| frame.len() >= BLOCK)
    {
        seal::seal(frame);
    }
    let (array, generation, offset) = (own_array(&bytes), own_u64(&bytes, GENERATION_AT), own_u64(&bytes, OFFSET_AT));
    let shape = &SHAPES[usize::from(mode.extra)];
    let frame = match Frame::decode(&bytes, &array, generation, offset, shape) {
        Ok(frame) => frame,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return assert!(error != FrameError::Checksum || !mode.seal, "the checksum was made right");
        }
    };
    check(&frame, &bytes, shape);
    assert_eq!(Frame::decode(&bytes, &array, generation.wrapping_add(1), offset, shape), Err(FrameError::Stale));
    let misplaced = FrameError::Misplaced { found: offset, expected: offset ^ 4096 };
    assert_eq!(Frame::decode(&bytes, &array, generation, offset ^ 4096, shape), Err(misplaced));
    assert!(Frame::decode(&bytes[..frame.len - 1], &array, generation, offset, shape).is_err());

    let payloads: Vec<&[u8]> = frame.parts.iter().map(|part| &bytes[part.payload.clone()]).collect();
    let parts: Vec<PartData<'_>> = frame
        .parts
        .iter()
        .zip(&payloads)
        .map(|(part, payload)| PartData {
            sequence: part.sequence,
            stripe_group: part.stripe_group,
            holders: part.holders,
            in_sync: part.in_sync,
            role: part.role,
            whole: part.whole,
            entries: &part.entries,
            payload,
        })
        .collect();
    // Parts of a foreign frame may share payload. When they are written again, each has its own.
    let len = frame_len(&parts);
    if len > 64 * BLOCK {
        return;
    }
    let mut written = vec![0x77; len];
    encode_frame(&array, &frame.head, &parts, &mut written);
    let again = Frame::decode(&written, &array, generation, offset, shape).expect("what was written is read");
    assert_eq!((again.head, again.len, again.parts.len()), (frame.head, written.len(), frame.parts.len()));
    for ((again, part), payload) in again.parts.iter().zip(&frame.parts).zip(payloads) {
        assert_eq!(&written[again.payload.clone()], payload);
        let same_place = format::log::Part { payload: part.payload.clone(), ..again.clone() };
        assert_eq!(same_place, *part);
    }
}

/// Checks the properties on which a recovery relies.
fn check(frame: &Frame, bytes: &[u8], shape: &LogShape) {
    let (data, strips) = (shape.data_strips, shape.strips);
    assert!(frame.len >= BLOCK && frame.len.is_multiple_of(BLOCK) && frame.len <= bytes.len());
    for part in &frame.parts {
        assert!(part.payload.start <= part.payload.end && part.payload.end <= frame.len);
        assert!(usize::from(part.role) < strips && part.holders.contains(part.role.into()));
        assert!((part.holders - RoleSet::below(strips)).is_empty());
        assert!(part.stripe_group < shape.stripe_groups);
        let base: usize = part
            .entries
            .iter()
            .filter(|entry| part.whole || (usize::from(part.role) >= data && entry.has_base(data)))
            .map(|entry| entry.len as usize)
            .sum();
        assert_eq!(part.payload.len(), base, "each entry with a base, or with new content, has its payload");
        for entry in &part.entries {
            let end = entry.offset.checked_add(entry.len.into()).expect("an entry ends");
            assert!(entry.len > 0 && end <= shape.stripe_group_bytes);
            assert_eq!(entry.offset / shape.strip_bytes, (end - 1) / shape.strip_bytes, "an entry lies in one strip");
            assert!(
                (entry.overwritten & entry.in_parity).is_empty()
                    && ((entry.overwritten | entry.in_parity) - RoleSet::below(data)).is_empty()
            );
            assert!(!entry.is_void() || entry.checksums.is_empty());
            let pieces = entry.len.div_ceil(frame.head.piece_bytes) as usize;
            let sums = pieces * (entry.overwritten.len() + strips - data);
            assert!([0, sums].contains(&entry.checksums.len()));
        }
    }
}

fn lost(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let mut bytes = bytes.to_vec();
    if mode.pad {
        bytes.resize(bytes.len().max(LOST_SLOT_BYTES), 0);
    }
    if mode.seal
        && let Some(slot) = bytes.get_mut(..LOST_SLOT_BYTES)
    {
        seal::seal(slot);
    }
    let array = own_array(&bytes);
    let list = match LostBlocks::decode(&bytes, &array) {
        Ok(list) => list,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return assert!(error != LostError::Checksum || !mode.seal, "the checksum was made right");
        }
    };
    assert!(list.ranges.len() <= LOST_RANGES_MAX);
    let mut free_from = 0;
    for &(offset, len) in &list.ranges {
        assert!(offset >= free_from && len > 0);
        free_from = offset.checked_add(len).expect("a range ends");
    }
    let written = list.encode(&array);
    assert_eq!(LostBlocks::decode(&written, &array), Ok(list.clone()));
    let mut canonical = bytes[..LOST_SLOT_BYTES].to_vec();
    canonical[44..64].fill(0);
    canonical[64 + 16 * list.ranges.len()..].fill(0);
    seal::seal(&mut canonical);
    assert_eq!(written, canonical, "all but reserved bytes and unused slots is kept");
}
