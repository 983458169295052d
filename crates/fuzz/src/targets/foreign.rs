//! Detection of other content on a drive.

use std::fs;
use std::path::Path;

use format::foreign::{INSPECT_BYTES, inspect};
use format::{Level, Shape};

use super::samples;
use crate::corpus;
use crate::target::{Memory, Seed, Target};

const SECTOR: usize = 512;

pub(super) const TARGET: Target = Target {
    name: "foreign",
    checks: "head and tail of a drive of any size: findings are ordered, on the drive, and safe to print",
    run,
    seeds,
    stored,
    dictionary: &[
        b"EFI PART",
        b"\x55\xAA",
        b"LABELONE",
        b"LVM2 001",
        b"\xFC\x4E\x2B\xA9",
        b"LUKS\xBA\xBE",
        b"SKUL\xBA\xBE",
        b"\x53\xEF",
        b"_BHRfS_M",
        b"XFSB",
        b"NTFS    ",
        b"EXFAT   ",
        b"FAT32   ",
        b"SWAPSPACE2",
        b"CD001",
        b"BEA01",
        b"NSR03",
        b"\x10\x20\xF5\xF2",
        b"\x0C\xB1\xBA\0\0\0\0\0",
        b"\0\0\0\x04name\0\0\0\x09\0\0\0\x01",
        b"\x83\x74\x02\x6B",
        b"\xDE\x11\xDE\x11",
        b"Intel Raid ISM Cfg Sig. ",
        b"bluestore block device\n",
        b"\x1B[31m",
        b"PurlinSB",
    ],
    input_bytes_max: 24 << 10,
    // Head and tail, and copies of labels.
    memory: Memory { base_bytes: 3 * INSPECT_BYTES, per_input_byte: 64 },
};

/// Drives of extreme sizes, and one of Purlin's own.
fn seeds() -> Vec<Seed> {
    let image = |drive_bytes: u64, sectors: &[(u64, &[u8])]| {
        let mut bytes = drive_bytes.to_le_bytes().to_vec();
        for (at, data) in sectors {
            bytes.extend_from_slice(&at.to_le_bytes());
            let mut sector = data.to_vec();
            sector.resize(SECTOR, 0);
            bytes.extend_from_slice(&sector);
        }
        bytes
    };
    let shape = Shape::of(Level::Raid1, 2).strip_bytes(4096).build().expect("two copies");
    let superblock = samples::superblock(shape, 1 << 20).encode();
    vec![
        Seed::new("tiny", image(100, &[(0, b"LUKS\xBA\xBE\0\x02")])),
        Seed::new(
            "purlin",
            image(1 << 20, &[(0, &superblock[..SECTOR]), (SECTOR as u64, &superblock[SECTOR..2 * SECTOR])]),
        ),
        Seed::new("largest", image(u64::MAX, &[(0, b"hsqs"), (u64::MAX - 511, b"EFI PART")])),
        Seed::new("gpt-backup", image(1 << 40, &[((1 << 40) - 512, b"EFI PART")])),
    ]
}

/// The images with which `crates/format` is tested, which have the same form. Only small ones.
fn stored() -> Vec<Seed> {
    let folder = corpus::home().join("../format/tests/foreign");
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sectors"));
    paths.sort();
    let seed = |path: &Path| {
        let bytes = fs::read(path).ok().filter(|bytes| bytes.len() < TARGET.input_bytes_max)?;
        Some(Seed::new(path.file_name()?.to_string_lossy(), bytes))
    };
    paths.iter().filter_map(|path| seed(path)).collect()
}

/// `[size of the drive (8, LE), ([address (8, LE), 512 bytes])*]`: a drive of zeroes except for
/// these sectors.
fn run(input: &[u8]) {
    let Some((size, sectors)) = input.split_first_chunk::<8>() else { return };
    let drive_bytes = u64::from_le_bytes(*size);
    let part_bytes = (INSPECT_BYTES as u64).min(drive_bytes);
    let tail_start = drive_bytes - part_bytes;
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for sector in sectors.chunks(8 + SECTOR) {
        let Some((at, data)) = sector.split_first_chunk::<8>() else { continue };
        let at = u64::from_le_bytes(*at);
        lay(&mut head, Some(at), data, part_bytes);
        if tail.is_empty() && at.checked_sub(tail_start).is_some_and(|at| at < part_bytes) {
            tail.resize(part_bytes as usize, 0);
        }
        lay(&mut tail, at.checked_sub(tail_start), data, part_bytes);
    }
    // Zeroes after the last byte with content are not worth the time, but the head must not end
    // right there.
    head.resize((head.len() + 8192).min(part_bytes as usize), 0);
    let found = inspect(&head, &tail, drive_bytes);
    assert!(found.is_sorted_by_key(|foreign| foreign.at));
    for foreign in &found {
        assert!(foreign.at < drive_bytes, "{foreign:?} on a drive of {drive_bytes} bytes");
        assert!(!foreign.to_string().chars().any(char::is_control), "{foreign:?} moves a cursor");
        assert!(foreign.detail.len() < 4096, "{} bytes for people to read", foreign.detail.len());
    }
    assert_eq!(found, inspect(&head, &tail, drive_bytes));
    for (head, tail) in [(&head[..], &[][..]), (&[], &tail), (&head[..head.len() / 2], &tail[tail.len() / 3..])] {
        inspect(head, tail, drive_bytes);
    }
}

fn lay(part: &mut Vec<u8>, at: Option<u64>, data: &[u8], part_bytes: u64) {
    let Some(at) = at.filter(|&at| at < part_bytes).map(|at| at as usize) else { return };
    let end = (at + data.len()).min(part_bytes as usize);
    part.resize(part.len().max(end), 0);
    part[at..end].copy_from_slice(&data[..end - at]);
}
