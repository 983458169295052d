//! Catalogues, as slots of a drive and as JSON documents.

use format::{BLOCK, Catalogue, SlotError, TooLarge, Uuid, VolumeKind, decode_slot, encode_slot};

use super::samples::{self, ARRAY};
use super::seal::{self, Mode};
use crate::target::{Memory, Seed, Target};

/// In [`Mode::extra`]: the input is only the document, and gets a header here.
const DOCUMENT: u8 = 1 << 2;

const PAYLOAD_LEN_AT: usize = 40;
const PAYLOAD_CHECKSUM_AT: usize = 44;

pub(super) const TARGET: Target = Target {
    name: "catalogue",
    checks: "a slot or its document alone, checksums fixed up or not: what is decoded is valid, and round-trips",
    run,
    seeds: || {
        let slot = |catalogue: &Catalogue| encode_slot(catalogue, &ARRAY, 5, 1 << 20).expect("samples are small");
        let document = |catalogue: &Catalogue| {
            let document = serde_json::to_vec(catalogue).expect("a catalogue has string keys only");
            [&[Mode::SEALED | DOCUMENT], &document[..]].concat()
        };
        vec![
            Seed::new("document", document(&samples::catalogue())),
            Seed::new("document-empty", document(&Catalogue::default())),
            Seed::new("document-maintenance", document(&samples::catalogue_with_maintenance())),
            Seed::new("slot-maintenance", seal::input(Mode::SEALED, &slot(&samples::catalogue_with_maintenance()))),
            Seed::new("slot", seal::input(Mode::SEALED, &slot(&samples::catalogue()))),
        ]
    },
    stored: Vec::new,
    dictionary: &[
        b"PurlinCT",
        b"\"next_id\":",
        b"\"volumes\":[",
        b"\"extents\":[{\"start_byte\":0,\"len_bytes\":4096}]",
        b"\"exports\":[",
        b"\"kind\":{\"nbd\":{\"address\":\"",
        b"\"read_only\":true",
        b"\"tls\":null",
        b",\"settings\":{\"client_p99_us\":0,\"retire_slow\":true,\"scrub_every_s\":null}",
        b",\"scrub\":{\"last\":null,\"skipped_unix_s\":1,\"current\":null}",
        b",\"limits\":[{\"of\":{\"host\":{\"export\":2,\"host\":\"nqn.a\"}},\"iops\":1,\"bytes_per_s\":null,\"burst_ms\":10}]",
        b"unix:",
        b"[[[[[[[[[[[[[[[[",
        b"18446744073709551615",
        b"\\u0000",
    ],
    input_bytes_max: 4 * BLOCK,
    // `{}` may become a record, and an error repeats the input that it refuses.
    memory: Memory { base_bytes: 64 << 10, per_input_byte: 256 },
};

fn run(input: &[u8]) {
    let Some((mode, bytes)) = Mode::split(input) else { return };
    let bytes = if mode.extra << 2 & DOCUMENT != 0 { with_header(bytes) } else { mode.apply(bytes) };
    let bytes = if mode.seal { sealed(bytes) } else { bytes };
    let array = match bytes.get(16..32) {
        Some(array) => Uuid::from_bytes(array.try_into().expect("16 bytes")),
        None => ARRAY,
    };
    let (sequence, catalogue) = match decode_slot(&bytes, &array) {
        Ok(found) => found,
        Err(error @ SlotError::Checksum { .. }) => return assert!(!mode.seal, "{error}, although it was made right"),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(catalogue.check(u64::MAX), Ok(()));
    for volume in catalogue.volumes.iter().filter(|volume| volume.kind == VolumeKind::Direct) {
        let held: u64 = volume.extents.iter().map(|extent| extent.len_bytes).sum();
        assert!(held >= volume.size_bytes && held - volume.size_bytes < BLOCK as u64);
    }
    let ends = catalogue.extents().map(|extent| extent.start_byte + extent.len_bytes);
    let capacity_bytes = ends.chain(catalogue.scrub.current.iter().map(|point| point.next_byte)).max().unwrap_or(0);
    assert_eq!(catalogue.check(capacity_bytes), Ok(()), "a group of just this size holds it");

    let written = encode_slot(&catalogue, &array, sequence, u64::MAX).expect("every slot is smaller");
    let len = written.len() as u64;
    assert!(len.is_multiple_of(BLOCK as u64));
    assert_eq!(encode_slot(&catalogue, &array, sequence, len - 1), Err(TooLarge { need: len, have: len - 1 }));
    let longer = [&written[..], &[0xA5; 99]].concat();
    assert_eq!(decode_slot(&longer, &array).as_ref(), Ok(&(sequence, catalogue)), "what follows is ignored");
    assert!(decode_slot(&written[..written.len() - 1], &array).is_err());
}

fn with_header(document: &[u8]) -> Vec<u8> {
    let newest = samples::catalogue_with_maintenance();
    let mut bytes = encode_slot(&newest, &ARRAY, 1, u64::MAX).expect("it is small")[..BLOCK].to_vec();
    bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&(document.len() as u32).to_le_bytes());
    bytes.extend_from_slice(document);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    seal::seal(&mut bytes[..BLOCK]);
    bytes
}

/// Corrects both checksums, as far as the bytes are long enough.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < BLOCK {
        return bytes;
    }
    let len = bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].try_into().expect("4 bytes");
    let filled_len = (u32::from_le_bytes(len) as usize).next_multiple_of(BLOCK);
    if let Some(payload) = bytes[BLOCK..].get(..filled_len) {
        let sum = gf::crc32c(payload);
        bytes[PAYLOAD_CHECKSUM_AT..PAYLOAD_CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }
    seal::seal(&mut bytes[..BLOCK]);
    bytes
}
