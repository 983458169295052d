//! The format does not change by accident: the bytes of known values are kept in `tests/golden/`.
//!
//! `PURLIN_GOLDEN_WRITE=1 cargo test -p format --test bytes golden` writes them anew, when the
//! format changes on purpose.

use std::path::PathBuf;

use crate::common::{
    array, catalogue, catalogue_with_access, catalogue_with_conversions, catalogue_with_limits,
    catalogue_with_maintenance, catalogue_with_reservations, catalogue_with_secrets, catalogue_with_thin_volumes,
    map_block, superblock, superblock_of_a_spare, superblock_with_checksums,
};
use format::intent_log::{IntentFrame, IntentHead, encode_intent_head, intent_frame_len};
use format::{BLOCK, Catalogue, MapBlock, Superblock, decode_slot, encode_slot};

/// Compares `bytes` with the golden image `name`, or writes it where that was asked for. Gives the
/// image.
pub fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from("tests/golden").join(name);
    if std::env::var_os("PURLIN_GOLDEN_WRITE").is_some() {
        std::fs::write(&path, bytes).expect("the golden image is written");
    }
    let image = std::fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let differ = image.iter().zip(bytes).position(|(golden, now)| golden != now);
    assert_eq!((differ, bytes.len()), (None, image.len()), "{name}: first byte that differs, and length");
    image
}

#[test]
fn a_superblock_is_the_golden_one_byte_for_byte() {
    let images = [
        ("superblock-member.bin", superblock()),
        ("superblock-spare.bin", superblock_of_a_spare()),
        ("superblock-checksums.bin", superblock_with_checksums()),
    ];
    for (name, value) in images {
        let image = golden(name, &value.encode());
        assert_eq!(Superblock::decode(&image), Ok(value));
    }
}

#[test]
fn a_map_block_is_the_golden_one_byte_for_byte() {
    let image = golden("map-block.bin", &map_block().encode(&array()));
    assert_eq!(MapBlock::decode(&image, &array(), map_block().index), Ok(map_block()));
}

#[test]
fn a_catalogue_is_the_golden_one_byte_for_byte() {
    let image = golden("catalogue.bin", &encode_slot(&catalogue(), &array(), 42, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((42, catalogue())));
    let maintenance = catalogue_with_maintenance();
    let image = golden("catalogue-2.bin", &encode_slot(&maintenance, &array(), 43, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((43, maintenance)));
    let reserved = catalogue_with_reservations();
    let image = golden("catalogue-reservations.bin", &encode_slot(&reserved, &array(), 44, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((44, reserved)));
    let limited = catalogue_with_limits();
    let image = golden("catalogue-limits.bin", &encode_slot(&limited, &array(), 45, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((45, limited)));
    let secret = catalogue_with_secrets();
    let image = golden("catalogue-secrets.bin", &encode_slot(&secret, &array(), 46, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((46, secret)));
    let reached = catalogue_with_access();
    let image = golden("catalogue-ana.bin", &encode_slot(&reached, &array(), 47, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((47, reached)));
    let thin = catalogue_with_thin_volumes();
    let image = golden("catalogue-thin.bin", &encode_slot(&thin, &array(), 48, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((48, thin)));
    let converting = catalogue_with_conversions();
    let image = golden("catalogue-conversions.bin", &encode_slot(&converting, &array(), 49, 16 << 10).unwrap());
    assert_eq!(decode_slot(&image, &array()), Ok((49, converting)));
}

/// A reader of version 1 alone goes on reading what has nothing new to say.
#[test]
fn the_version_says_what_a_reader_must_know() {
    let version = |catalogue: &Catalogue| encode_slot(catalogue, &array(), 1, 16 << 10).unwrap()[8];
    assert_eq!((version(&catalogue()), version(&catalogue_with_maintenance())), (1, 2));
    assert_eq!((version(&catalogue_with_thin_volumes()), version(&catalogue_with_conversions())), (3, 3));
}

#[test]
fn a_superblock_is_shown_as_people_read_it() {
    let image = golden("superblock-member.txt", format!("{}\n", superblock()).as_bytes());
    assert!(String::from_utf8(image).unwrap().lines().all(|line| line.is_char_boundary(14)));
}

#[test]
fn the_document_in_the_catalogue_page_is_a_catalogue() {
    let page = include_str!("../../../../docs/format/catalogue.md");
    let (_, rest) = page.split_once("```json\n").expect("the page shows a document");
    let (document, _) = rest.split_once("```").expect("the document ends");
    let catalogue: Catalogue = serde_json::from_str(document).unwrap();
    assert_eq!(catalogue.check(4 << 30), Ok(()));
    assert_eq!((catalogue.volumes.len(), catalogue.exports.len()), (1, 3));
    let is_whole = catalogue.scrub.current.is_some() && !catalogue.reservations.is_empty();
    let is_whole = is_whole && !catalogue.limits.is_empty() && !catalogue.secrets.is_empty();
    let is_whole = is_whole && !catalogue.tls_keys.is_empty();
    assert!(catalogue.version() == 2 && is_whole, "it shows every field");
}

/// The tables of the pages: every row starts where the one before it ends, and the last one ends
/// with the block.
#[test]
fn the_tables_in_the_pages_cover_their_block_without_gap_or_overlap() {
    let pages = [
        include_str!("../../../../docs/format/superblock.md"),
        include_str!("../../../../docs/format/map.md"),
        include_str!("../../../../docs/format/catalogue.md"),
    ];
    for page in pages {
        let rows = page
            .lines()
            .skip_while(|line| !line.starts_with("| 0 | 8 bytes | magic"))
            .take_while(|line| line.starts_with('|'));
        let mut end = 0;
        for row in rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()) {
            assert_eq!(row[1].parse(), Ok(end), "{row:?}");
            let words: Vec<&str> = row[2].split(' ').collect();
            end += match words[..] {
                ["u8"] => 1,
                ["u16"] => 2,
                ["u32"] => 4,
                ["u64"] => 8,
                [count, "bytes"] => count.parse().unwrap(),
                [count, "×", each, "bytes"] => count.parse::<usize>().unwrap() * each.parse::<usize>().unwrap(),
                _ => 0,
            };
        }
        assert_eq!(end, BLOCK);
    }
}

#[test]
fn a_frame_of_the_intent_log_is_the_golden_one_byte_for_byte() {
    let head = IntentHead { generation: 3, offset: 5 << 20, sequence: 17, stream: 2 };
    let body: Vec<u8> = (0..5000).map(|byte| byte as u8).collect();
    let mut bytes = encode_intent_head(&array(), &head, [&body[..]].into_iter()).to_vec();
    bytes.extend_from_slice(&body);
    bytes.resize(intent_frame_len(body.len()), 0);
    let image = golden("intent-frame.bin", &bytes);
    let frame = IntentFrame::decode(&image, &array(), head.generation, head.offset).expect("a valid frame");
    assert_eq!((frame.head, &image[frame.body]), (head, &body[..]));
}
