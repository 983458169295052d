//! File systems and swap. Each function states the document that its offsets come from.

use super::medium::Medium;
use super::{Foreign, named};

/// A file system that is identified by a fixed magic at a fixed offset, with the offsets of label
/// (offset, length) and UUID.
struct Magic {
    what: &'static str,
    at: u64,
    magic: &'static [u8],
    label: Option<(u64, usize)>,
    uuid: Option<u64>,
}

const MAGICS: [Magic; 16] = [
    // XFS Filesystem Structure, "Superblocks".
    Magic { what: "XFS file system", at: 0, magic: b"XFSB", label: Some((108, 12)), uuid: Some(32) },
    // btrfs on-disk format, "Superblock": at 64 KiB.
    Magic {
        what: "btrfs file system",
        at: 65600,
        magic: b"_BHRfS_M",
        label: Some((65536 + 0x12B, 256)),
        uuid: Some(65536 + 0x20),
    },
    // OEM identifier of the boot sector.
    Magic { what: "ReFS file system", at: 3, magic: b"ReFS\0\0\0\0", label: None, uuid: None },
    Magic { what: "BitLocker volume", at: 3, magic: b"-FVE-FS-", label: None, uuid: None },
    // ECMA-119 section 8.4: the primary volume descriptor is sector 16 of 2 KiB.
    Magic { what: "ISO 9660 file system", at: 32769, magic: b"CD001", label: Some((32768 + 40, 32)), uuid: None },
    // Apple File System Reference, nx_superblock_t.
    Magic { what: "APFS container", at: 32, magic: b"NXSB", label: None, uuid: Some(72) },
    // ReiserFS 3.6, super block at 64 KiB.
    Magic {
        what: "ReiserFS file system",
        at: 65588,
        magic: b"ReIsEr2Fs",
        label: Some((65536 + 100, 16)),
        uuid: Some(65536 + 84),
    },
    Magic {
        what: "ReiserFS file system",
        at: 65588,
        magic: b"ReIsEr3Fs",
        label: Some((65536 + 100, 16)),
        uuid: Some(65536 + 84),
    },
    // JFS layout: the superblock is at 32 KiB.
    Magic {
        what: "JFS file system",
        at: 32768,
        magic: b"JFS1",
        label: Some((32768 + 152, 16)),
        uuid: Some(32768 + 136),
    },
    // GFS2: gfs2_sb, at 64 KiB, big endian.
    Magic {
        what: "GFS2 file system",
        at: 65536,
        magic: &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1],
        label: None,
        uuid: None,
    },
    // OCFS2: the superblock is block 2, of 512 bytes to 4 KiB.
    Magic { what: "OCFS2 file system", at: 1024, magic: b"OCFSV2", label: None, uuid: None },
    Magic { what: "OCFS2 file system", at: 2048, magic: b"OCFSV2", label: None, uuid: None },
    Magic { what: "OCFS2 file system", at: 4096, magic: b"OCFSV2", label: None, uuid: None },
    Magic { what: "OCFS2 file system", at: 8192, magic: b"OCFSV2", label: None, uuid: None },
    // Linux documentation: filesystems/squashfs, filesystems/erofs.
    Magic { what: "squashfs file system", at: 0, magic: b"hsqs", label: None, uuid: None },
    Magic {
        what: "EROFS file system",
        at: 1024,
        magic: &[0xE2, 0xE1, 0xF5, 0xE0],
        label: Some((1024 + 64, 16)),
        uuid: Some(1024 + 48),
    },
];

pub(super) fn inspect(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    for magic in MAGICS.iter().filter(|magic| medium.has(magic.at, magic.magic)) {
        let label = magic.label.map_or(String::new(), |(at, len)| medium.text(at, len));
        let uuid = magic.uuid.map_or(String::new(), |at| medium.uuid(at));
        found.push(Foreign { what: magic.what, detail: named(&label, &uuid), at: magic.at });
    }
    let others = [ext(medium), f2fs(medium), ntfs(medium, 3), ntfs_backup(medium), exfat(medium), fat(medium)];
    found.extend(others.into_iter().flatten());
    found.extend([udf(medium), swap(medium), nilfs2(medium), hfs_plus(medium)].into_iter().flatten());
}

/// Whether the first sector is the boot sector of a file system, which ends with the same signature
/// as an MBR.
pub(super) fn is_boot_sector_of_file_system(medium: &Medium<'_>) -> bool {
    let others = [ntfs(medium, 3), exfat(medium), fat(medium)];
    others.iter().any(Option::is_some) || medium.has(3, b"ReFS\0\0\0\0") || medium.has(3, b"-FVE-FS-")
}

/// Linux documentation: filesystems/ext4, "Super Block". At 1024.
fn ext(medium: &Medium<'_>) -> Option<Foreign> {
    const AT: u64 = 1024;
    if medium.le16(AT + 0x38)? != 0xEF53 {
        return None;
    }
    // A magic of two bytes is weak evidence, so the block size and the revision must be plausible
    // too.
    if medium.le32(AT + 0x18)? > 6 || medium.le32(AT + 0x4C)? > 1 {
        return None;
    }
    let (compatible, incompatible) = (medium.le32(AT + 0x5C)?, medium.le32(AT + 0x60)?);
    let read_only = medium.le32(AT + 0x64)?;
    // Feature bits that only ext4 has: all except filetype, recover, journal_dev and meta_bg
    // (incompatible), and sparse_super, large_file and btree_dir (read-only compatible).
    let ext4 = incompatible & !0x1E != 0 || read_only & !0x7 != 0;
    let what = match () {
        () if incompatible & 0x8 != 0 => "external journal of ext3 or ext4",
        () if ext4 => "ext4 file system",
        () if compatible & 0x4 != 0 => "ext3 file system",
        () => "ext2 file system",
    };
    Some(Foreign { what, detail: named(&medium.text(AT + 0x78, 16), &medium.uuid(AT + 0x68)), at: AT + 0x38 })
}

/// Linux's `f2fs_super_block`: at 1024, a copy in the next 4 KiB block.
fn f2fs(medium: &Medium<'_>) -> Option<Foreign> {
    let at = [1024, 5120].into_iter().find(|at| medium.le32(*at) == Some(0xF2F5_2010))?;
    Some(Foreign {
        what: "F2FS file system",
        detail: named(&medium.text_utf16(at + 124, 512), &medium.uuid(at + 108)),
        at,
    })
}

/// NTFS boot sector: the OEM identification at 3, the serial number at 72.
fn ntfs(medium: &Medium<'_>, at: u64) -> Option<Foreign> {
    if !medium.has(at, b"NTFS    ") {
        return None;
    }
    let detail = medium.le64(at + 69).map_or(String::new(), |serial| named("", &format!("{serial:016X}")));
    Some(Foreign { what: "NTFS file system", detail, at })
}

/// NTFS keeps a copy of its boot sector in the last sector.
fn ntfs_backup(medium: &Medium<'_>) -> Option<Foreign> {
    let at = [512, 4096].into_iter().filter_map(|sector| Some(medium.before_end(sector, sector)? + 3));
    let found = at.filter(|&at| at > 3).find_map(|at| ntfs(medium, at))?;
    Some(Foreign { what: "NTFS file system (backup boot sector)", ..found })
}

/// exFAT specification, section 3.1: name at 3, serial number at 100. The label is a directory
/// entry.
fn exfat(medium: &Medium<'_>) -> Option<Foreign> {
    if !medium.has(3, b"EXFAT   ") {
        return None;
    }
    let detail = medium.le32(100).map_or(String::new(), |serial| named("", &serial_text(serial)));
    Some(Foreign { what: "exFAT file system", detail, at: 3 })
}

/// Microsoft FAT specification 1.03, section 3: the type's name at 54 or 82 "is not used to
/// determine the type". So the BIOS parameter block must be plausible, and that suffices.
fn fat(medium: &Medium<'_>) -> Option<Foreign> {
    let jump = matches!(medium.bytes(0, 3)?, [0xEB, _, 0x90] | [0xE9, _, _]);
    let bytes_per_sector = medium.le16(11)?;
    let sectors_per_cluster = medium.byte(13)?;
    let geometry = [512, 1024, 2048, 4096].contains(&bytes_per_sector) && sectors_per_cluster.is_power_of_two();
    let tables = medium.le16(14)? > 0 && (1..=2).contains(&medium.byte(16)?) && medium.byte(21)? >= 0xF0;
    if !jump || !geometry || !tables || !medium.has(510, &[0x55, 0xAA]) {
        return None;
    }
    let fat32 = medium.le16(22)? == 0;
    let (what, at, serial_at, label_at) = match fat32 {
        true => ("FAT32 file system", 82, 67, 71),
        false => ("FAT file system", 54, 39, 43),
    };
    let label = medium.text(label_at, 11);
    let label = if label == "NO NAME" { "" } else { &label };
    Some(Foreign { what, detail: named(label, &serial_text(medium.le32(serial_at)?)), at })
}

fn serial_text(serial: u32) -> String {
    format!("{:04X}-{:04X}", serial >> 16, serial & 0xFFFF)
}

/// ECMA-167 part 3 section 9: the volume recognition sequence is 2 KiB descriptors from 32 KiB on.
fn udf(medium: &Medium<'_>) -> Option<Foreign> {
    let at = (0..64).map(|index| 32769 + 2048 * index);
    let at = at.into_iter().find(|&at| medium.has(at, b"NSR02") || medium.has(at, b"NSR03"))?;
    Some(Foreign { what: "UDF file system", detail: String::new(), at })
}

/// Linux's swap header: a signature in the last 10 bytes of the first page. Page sizes from 4 KiB
/// to 64 KiB are tried.
fn swap(medium: &Medium<'_>) -> Option<Foreign> {
    let signatures: [(&[u8], _); 6] = [
        (b"SWAPSPACE2", "Linux swap"),
        (b"SWAP-SPACE", "Linux swap"),
        (b"S1SUSPEND\0", "Linux swap with a hibernated system"),
        (b"S2SUSPEND\0", "Linux swap with a hibernated system"),
        (b"ULSUSPEND\0", "Linux swap with a hibernated system"),
        (b"LINHIB0001", "Linux swap with a hibernated system"),
    ];
    let places = [4096, 8192, 16384, 32768, 65536].map(|page: u64| page - 10);
    let (at, what) = places.into_iter().find_map(|at| {
        let (_, what) = signatures.iter().find(|(signature, _)| medium.has(at, signature))?;
        Some((at, *what))
    })?;
    Some(Foreign { what, detail: named(&medium.text(1052, 16), &medium.uuid(1036)), at })
}

/// Linux's `nilfs_super_block`, at 1024: the magic has only two bytes, so the revision must match
/// too.
fn nilfs2(medium: &Medium<'_>) -> Option<Foreign> {
    if medium.le16(1024 + 6)? != 0x3434 || medium.le32(1024)? != 2 {
        return None;
    }
    Some(Foreign {
        what: "NILFS2 file system",
        detail: named(&medium.text(1024 + 168, 80), &medium.uuid(1024 + 152)),
        at: 1030,
    })
}

/// Apple TN1150, "Volume Header": at 1024, signature and version.
fn hfs_plus(medium: &Medium<'_>) -> Option<Foreign> {
    let found = medium.has(1024, b"H+\0\x04") || medium.has(1024, b"HX\0\x05");
    found.then(|| Foreign { what: "HFS+ file system", detail: String::new(), at: 1024 })
}
