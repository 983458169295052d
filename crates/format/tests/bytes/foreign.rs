//! A drive that holds something else is recognised, and said what it holds.
//!
//! `tests/foreign/` has images made by the tools of each format's authors (see `make.sh`), with
//! blkid's opinion of each. Formats without such a tool are made here by hand, from their
//! documents.

use std::path::Path;

use crate::common::{superblock, superblock_of_a_spare};
use format::BLOCK;
use format::foreign::{Foreign, INSPECT_BYTES, inspect};
use proptest::prelude::*;

const SECTOR: usize = 512;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Head and tail of a drive, mostly zeroes.
struct Image {
    head: Vec<u8>,
    tail: Vec<u8>,
    bytes: u64,
}

impl Image {
    fn blank(bytes: u64) -> Image {
        let len = (INSPECT_BYTES as u64).min(bytes) as usize;
        Image { head: vec![0; len], tail: vec![0; len], bytes }
    }

    fn with(mut self, at: u64, data: &[u8]) -> Image {
        let tail_start = self.bytes - self.tail.len() as u64;
        for (at, &byte) in (at..).zip(data) {
            if let Some(place) = self.head.get_mut(at as usize) {
                *place = byte;
            }
            if let Some(place) = at.checked_sub(tail_start).and_then(|at| self.tail.get_mut(at as usize)) {
                *place = byte;
            }
        }
        self
    }

    /// One of the images in `tests/foreign/`.
    fn stored(name: &str) -> Image {
        let file = std::fs::read(folder().join(name).with_extension("sectors")).expect("an image of this name");
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let sectors = file[8..].chunks_exact(8 + SECTOR);
        sectors.fold(Image::blank(number(&file[..8])), |image, sector| image.with(number(&sector[..8]), &sector[8..]))
    }

    fn inspect(&self) -> Vec<Foreign> {
        inspect(&self.head, &self.tail, self.bytes)
    }

    /// The findings, and each of them as text.
    fn found(&self) -> Vec<(&'static str, String)> {
        self.inspect().into_iter().map(|foreign| (foreign.what, foreign.to_string())).collect()
    }
}

fn folder() -> &'static Path {
    Path::new("tests/foreign")
}

#[test]
fn images_of_the_formats_own_tools_are_found_with_the_label_and_uuid_that_blkid_finds() {
    let expected: [(&str, &[&str]); 20] = [
        ("bcache", &["bcache device"]),
        ("btrfs", &["btrfs file system"]),
        ("blank", &[]),
        ("exfat", &["exFAT file system"]),
        ("ext2", &["ext2 file system"]),
        ("ext3", &["ext3 file system"]),
        ("ext4", &["ext4 file system"]),
        ("f2fs", &["F2FS file system"]),
        ("fat12", &["FAT file system"]),
        ("fat16", &["FAT file system"]),
        ("fat32", &["FAT32 file system"]),
        ("gpt", &["GPT partition table", "GPT partition table (backup)"]),
        ("iso9660", &["ISO 9660 file system"]),
        ("luks1", &["LUKS1 encrypted volume"]),
        ("luks2", &["LUKS2 encrypted volume", "LUKS2 encrypted volume (second header)"]),
        ("lvm2", &["LVM2 physical volume"]),
        ("mbr", &["MBR partition table"]),
        ("ntfs", &["NTFS file system", "NTFS file system (backup boot sector)"]),
        ("swap", &["Linux swap"]),
        ("xfs", &["XFS file system"]),
    ];
    let blkid = std::fs::read_to_string(folder().join("blkid.txt")).unwrap();
    assert_eq!(blkid.lines().count(), expected.len());
    for (name, what) in expected {
        let found = Image::stored(name).found();
        assert_eq!(found.iter().map(|(what, _)| *what).collect::<Vec<_>>(), what, "{name}: {found:?}");
        let facts = blkid.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        for fact in facts.split_whitespace() {
            let (key, value) = fact.split_once('=').unwrap();
            // Not shown: NTFS keeps its label in a file, ISO 9660 has no UUID but a date, an MBR
            // has a number.
            let shown = match key {
                "LABEL" => name != "ntfs",
                "UUID" | "PTUUID" => !["iso9660", "mbr"].contains(&name),
                _ => false,
            };
            assert!(!shown || found.iter().all(|(_, text)| text.contains(value)), "{name}: {value} in {found:?}");
        }
    }
}

#[test]
fn partitions_are_counted() {
    let text = |name| Image::stored(name).found()[0].1.clone();
    assert!(text("gpt").contains("2 partitions"), "{}", text("gpt"));
    assert!(text("mbr").contains("2 partitions, type 0x83, 0x07"), "{}", text("mbr"));
}

#[test]
fn a_gpt_that_lost_one_of_its_tables_is_found_by_what_is_left() {
    let zeroes = [0; SECTOR];
    let without_primary = Image::stored("gpt").with(512, &zeroes).found();
    let names: Vec<_> = without_primary.iter().map(|(what, _)| *what).collect();
    assert_eq!(names, ["GPT partition table (backup)"]);
    let without_both = Image::stored("gpt").with(512, &zeroes).with(4 * MIB - 512, &zeroes).found();
    assert_eq!(without_both.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["protective MBR of a GPT"]);
    let large_sectors = Image::blank(8 * MIB).with(4096, b"EFI PART").with(8 * MIB - 4096, b"EFI PART").inspect();
    assert_eq!(large_sectors.iter().map(|foreign| foreign.at).collect::<Vec<_>>(), [4096, 8 * MIB - 4096]);
}

#[test]
fn an_empty_partition_table_and_a_boot_sector_are_no_mbr() {
    let signature = Image::blank(MIB).with(510, &[0x55, 0xAA]);
    assert_eq!(signature.found(), []);
    let code_in_the_table = Image::blank(MIB).with(446, b"some code that is no table").with(510, &[0x55, 0xAA]);
    assert_eq!(code_in_the_table.found(), []);
}

/// A version 1 md superblock for `at`, without what is not looked at.
fn md_1(at: u64) -> Vec<u8> {
    let mut block = vec![0; 256];
    block[0..4].copy_from_slice(&0xA92B_4EFC_u32.to_le_bytes());
    block[4] = 1;
    block[16..32].copy_from_slice(&[0xAB; 16]);
    block[32..42].copy_from_slice(b"host:array");
    block[72..76].copy_from_slice(&6i32.to_le_bytes());
    block[92..96].copy_from_slice(&8u32.to_le_bytes());
    block[144..152].copy_from_slice(&(at / 512).to_le_bytes());
    block
}

#[test]
fn members_of_linux_md_are_found_wherever_their_version_keeps_its_superblock() {
    let bytes = 64 * MIB + 12345;
    let end = bytes / 512 * 512;
    let place_1_0 = (end - 8192) / 4096 * 4096;
    for (what, at) in [("Linux md 1.0 member", place_1_0), ("Linux md 1.1 member", 0), ("Linux md 1.2 member", 4096)] {
        let found = Image::blank(bytes).with(at, &md_1(at)).found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, what);
        assert!(found[0].1.contains("host:array") && found[0].1.contains("raid level 6, 8 drives"), "{found:?}");
        assert_eq!(Image::blank(bytes).with(at, &md_1(at + 512)).found(), [], "it says that it lies elsewhere");
    }
    let at = bytes / 65536 * 65536 - 65536;
    for big_endian in [false, true] {
        let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        let image = Image::blank(bytes).with(at, &word(0xA92B_4EFC)).with(at + 28, &word(5)).with(at + 40, &word(3));
        let found = image.found();
        assert_eq!(found[0].0, "Linux md 0.90 member");
        assert!(found[0].1.contains("raid level 5, 3 drives"), "{found:?}");
    }
}

#[test]
fn formats_without_a_tool_here_are_found_by_their_documented_signatures() {
    let bytes = 64 * MIB;
    let list = b"\0\0\0\x20\0\0\0\x20\0\0\0\x04name\0\0\0\x09\0\0\0\x01\0\0\0\x04tank";
    let zfs = |label: u64, magic: [u8; 8]| {
        Image::blank(bytes).with(label + 16 * KIB + 100, list).with(label + 128 * KIB + 4096, &magic)
    };
    let magic = 0x00BA_B10C_u64;
    let cases: [(&str, &str, Image); 27] = [
        ("ZFS pool member", "pool \"tank\"", zfs(0, magic.to_le_bytes())),
        ("ZFS pool member", "pool \"tank\"", zfs(256 * KIB, magic.to_be_bytes())),
        ("ZFS pool member", "pool \"tank\"", zfs(bytes - 256 * KIB, magic.to_le_bytes())),
        ("ZFS pool member", "pool \"tank\"", zfs(bytes - 512 * KIB, magic.to_le_bytes())),
        ("DRBD 8 backing device", "", Image::blank(bytes).with(bytes - 4096 + 60, &[0x83, 0x74, 0x02, 0x6B])),
        ("DRBD 9 backing device", "", Image::blank(bytes).with(bytes - 4096 + 60, &[0x83, 0x74, 0x02, 0x6D])),
        ("DDF RAID member", "vendor LSI", Image::blank(bytes).with(bytes - 512, b"\xDE\x11\xDE\x11....LSI     ")),
        ("Intel Matrix RAID member", "", Image::blank(bytes).with(bytes - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00")),
        ("VMFS volume member", "", Image::blank(bytes).with(MIB, b"\x0D\xD0\x01\xC0")),
        (
            "Ceph BlueStore device",
            "01234567-89ab-cdef-0123-456789abcdef",
            Image::blank(bytes).with(0, b"bluestore block device\n01234567-89ab-cdef-0123-456789abcdef\n"),
        ),
        (
            "bcachefs file system",
            "label \"fs\"",
            Image::blank(bytes)
                .with(4120, b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF")
                .with(4096 + 72, b"fs"),
        ),
        ("ReFS file system", "", Image::blank(bytes).with(3, b"ReFS\0\0\0\0").with(510, &[0x55, 0xAA])),
        ("BitLocker volume", "", Image::blank(bytes).with(3, b"-FVE-FS-").with(510, &[0x55, 0xAA])),
        ("APFS container", "", Image::blank(bytes).with(32, b"NXSB")),
        ("HFS+ file system", "", Image::blank(bytes).with(1024, b"H+\0\x04")),
        ("JFS file system", "label \"j\"", Image::blank(bytes).with(32768, b"JFS1").with(32768 + 152, b"j")),
        ("ReiserFS file system", "", Image::blank(bytes).with(65536 + 52, b"ReIsEr2Fs")),
        ("GFS2 file system", "", Image::blank(bytes).with(65536, &[1, 0x16, 0x19, 0x70, 0, 0, 0, 1])),
        ("OCFS2 file system", "", Image::blank(bytes).with(8192, b"OCFSV2")),
        ("NILFS2 file system", "", Image::blank(bytes).with(1024, &[2, 0, 0, 0, 0, 0, 0x34, 0x34])),
        ("UDF file system", "", Image::blank(bytes).with(32769 + 2048, b"NSR02")),
        ("squashfs file system", "", Image::blank(bytes).with(0, b"hsqs")),
        ("EROFS file system", "", Image::blank(bytes).with(1024, &[0xE2, 0xE1, 0xF5, 0xE0])),
        ("Apple partition map", "", Image::blank(bytes).with(0, b"ER").with(512, b"PM")),
        ("VDO volume", "", Image::blank(bytes).with(0, b"dmvdo001")),
        ("Stratis pool member", "", Image::blank(bytes).with(516, b"!Stra0tis\x86\xFF\x02^\x41rh")),
        ("Linux swap with a hibernated system", "", Image::blank(bytes).with(4086, b"S1SUSPEND\0")),
    ];
    for (index, (what, detail, image)) in cases.into_iter().enumerate() {
        let found = image.found();
        assert_eq!(found.len(), 1, "case {index}, {what}: {found:?}");
        assert_eq!(found[0].0, what, "case {index}");
        assert!(found[0].1.contains(detail), "case {index}: {found:?}");
    }
}

#[test]
fn a_drive_of_another_array_is_found_by_either_copy_and_named() {
    let bytes = 64 * MIB + 1000;
    let tail = 64 * MIB - BLOCK as u64;
    let member = superblock();
    for places in [vec![0], vec![tail], vec![0, tail]] {
        let image = places.iter().fold(Image::blank(bytes), |image, &at| image.with(at, &member.encode()));
        let found = image.inspect();
        assert_eq!(found.iter().map(|foreign| foreign.at).collect::<Vec<_>>(), places);
        let text = format!("tank-1.x_y {}, member 2", member.array);
        assert!(found.iter().all(|foreign| foreign.what == "Purlin superblock" && foreign.detail == text));
    }
    let damaged = Image::blank(bytes).with(0, &superblock_of_a_spare().encode()).with(500, &[1]).inspect();
    assert_eq!(damaged[0].detail, "the checksum of the superblock does not match");
}

#[test]
fn a_label_cannot_move_the_cursor_of_a_terminal() {
    let found = Image::stored("ext4").with(1024 + 0x78, b"\x1B[2Jevil\r\n").found();
    assert!(found[0].1.contains("evil") && !found[0].1.chars().any(char::is_control), "{found:?}");
}

#[test]
fn short_reads_and_tiny_drives_find_less_and_never_fail() {
    let image = Image::stored("gpt");
    for len in [0, 1, 511, 512, 1024, 4096, 70_000] {
        for bytes in [0, 1, 511, 512, 4095, 4096, 8192, 70_000, image.bytes, u64::MAX] {
            inspect(&image.head[..len], &image.tail[image.tail.len() - len..], bytes);
        }
    }
    assert_eq!(inspect(&image.head, &[], image.bytes).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn damaged_images_are_inspected_without_failing(
        name in prop::sample::select(vec!["gpt", "mbr", "fat32", "lvm2", "luks2", "ext4", "bcache", "iso9660", "f2fs"]),
        changes in prop::collection::vec((0u64..40_000, any::<u8>()), 1..200),
        shrink in 0usize..5000,
    ) {
        let image = changes.into_iter().fold(Image::stored(name), |image, (at, byte)| image.with(at, &[byte]));
        inspect(&image.head[..image.head.len() - shrink], &image.tail[shrink..], image.bytes - shrink as u64);
    }
}
