//! Members of arrays and pools, encrypted volumes, caches, and drives of storage systems.

use super::medium::Medium;
use super::{Foreign, named};
use crate::BLOCK;
use crate::superblock::{Superblock, SuperblockError, superblock_offsets};

const MD_MAGIC: u32 = 0xA92B_4EFC;

pub(super) fn inspect(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    purlin(medium, found);
    md(medium, found);
    luks(medium, found);
    zfs(medium, found);
    found.extend([lvm2(medium), drbd(medium), bluestore(medium), ddf(medium), imsm(medium)].into_iter().flatten());
    for (what, at, magic, label, uuid) in MAGICS {
        if !medium.has(at, magic) {
            continue;
        }
        let label = label.map_or(String::new(), |(at, len)| medium.text(at, len));
        let uuid = uuid.map_or(String::new(), |at| medium.uuid(at));
        found.push(Foreign { what, detail: named(&label, &uuid), at });
    }
}

/// Name, offset and bytes of a magic, offset and length of a label, offset of a UUID.
type Magic = (&'static str, u64, &'static [u8], Option<(u64, usize)>, Option<u64>);

const MAGICS: [Magic; 8] = [
    // Linux's `cache_sb`, in sector 8: magic at 24, uuid at 40, label at 72. bcachefs's `bch_sb`
    // begins the same way, with the user-visible uuid at 56.
    (
        "bcache device",
        4120,
        b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81",
        Some((4168, 32)),
        Some(4136),
    ),
    (
        "bcachefs file system",
        4120,
        b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF",
        Some((4168, 32)),
        Some(4152),
    ),
    // The logical volume manager of VMware; the file system itself starts beyond the inspected
    // head.
    ("VMFS volume member", 1 << 20, b"\x0D\xD0\x01\xC0", None, None),
    // Linux documentation: admin-guide/device-mapper (vdo, dm-integrity, verity).
    ("VDO volume", 0, b"dmvdo001", None, None),
    ("dm-integrity device", 0, b"integrt\0", None, None),
    ("dm-verity hashes", 0, b"verity\0\0", None, None),
    // Stratis software design, "Static header": the signature is in sector 1.
    ("Stratis pool member", 516, b"!Stra0tis\x86\xFF\x02^\x41rh", None, None),
    ("Oracle ASM disk", 32, b"ORCLDISK", Some((40, 24)), None),
];

/// Another Purlin array, found by either copy of its superblock.
fn purlin(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    let Some(last_block) = medium.before_end(BLOCK as u64, BLOCK as u64).filter(|&at| at > 0) else { return };
    debug_assert_eq!(superblock_offsets(last_block + BLOCK as u64), Some([0, last_block]));
    for at in [0, last_block] {
        let Some(bytes) = medium.bytes(at, BLOCK) else { continue };
        let detail = match Superblock::decode(bytes) {
            Ok(superblock) => format!("{} {}, {}", superblock.name, superblock.array, superblock.role),
            Err(SuperblockError::NotPurlin) => continue,
            Err(error) => error.to_string(),
        };
        found.push(Foreign { what: "Purlin superblock", detail, at });
    }
}

/// Linux's `md_p.h`: version 0.90 in the last whole 64 KiB but one, 1.0 at least 8 KiB before the
/// end, 1.1 at the start, 1.2 4 KiB from the start.
fn md(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    if let Some(at) = medium.before_end(65536, 65536) {
        found.extend(md_0_90(medium, at));
    }
    let version_1_0 = medium.before_end(8192, 512).map(|at| at & !4095);
    let places = [("Linux md 1.1", Some(0)), ("Linux md 1.2", Some(4096)), ("Linux md 1.0", version_1_0)];
    for (what, at) in places {
        found.extend(at.and_then(|at| md_1(medium, what, at)));
    }
}

fn md_0_90(medium: &Medium<'_>, at: u64) -> Option<Foreign> {
    let little = medium.le32(at)? == MD_MAGIC;
    if !little && medium.be32(at)? != MD_MAGIC {
        return None;
    }
    // Words are in the byte order of the machine that created the array.
    let word = |offset| if little { medium.le32(at + offset) } else { medium.be32(at + offset) };
    let (level, drives) = (word(28)? as i32, word(40)?);
    let uuid = format!("{:08x}:{:08x}:{:08x}:{:08x}", word(20)?, word(52)?, word(56)?, word(60)?);
    let detail = format!("{}, raid level {level}, {drives} drives", named("", &uuid));
    Some(Foreign { what: "Linux md 0.90 member", detail, at })
}

fn md_1(medium: &Medium<'_>, version: &'static str, at: u64) -> Option<Foreign> {
    // The superblock states its own location, so one version is not taken for another.
    if medium.le32(at)? != MD_MAGIC || medium.le32(at + 4)? != 1 || medium.le64(at + 144)? != at / 512 {
        return None;
    }
    let (level, drives) = (medium.le32(at + 72)? as i32, medium.le32(at + 92)?);
    let named = named(&medium.text(at + 32, 32), &medium.uuid(at + 16));
    let what = match version {
        "Linux md 1.0" => "Linux md 1.0 member",
        "Linux md 1.1" => "Linux md 1.1 member",
        _ => "Linux md 1.2 member",
    };
    Some(Foreign { what, detail: format!("{named}, raid level {level}, {drives} drives"), at })
}

/// LUKS1 specification 1.2.3 section 2, LUKS2 specification section 2: the second header of LUKS2
/// is at one of nine places, from 16 KiB on.
fn luks(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    let second = (0..9).map(|power| (0x4000 << power, b"SKUL\xBA\xBE"));
    for (at, magic) in std::iter::once((0, b"LUKS\xBA\xBE")).chain(second) {
        if !medium.has(at, magic) {
            continue;
        }
        let Some(version) = medium.be16(at + 6) else { continue };
        let label = if version == 2 { medium.text(at + 24, 48) } else { String::new() };
        let what = match (at, version) {
            (0, 1) => "LUKS1 encrypted volume",
            (0, _) => "LUKS2 encrypted volume",
            _ => "LUKS2 encrypted volume (second header)",
        };
        found.push(Foreign { what, detail: named(&label, &medium.text(at + 168, 40)), at });
    }
}

/// LVM2's `label_header` is in one of the first four sectors. It states where the identity of the
/// volume is.
fn lvm2(medium: &Medium<'_>) -> Option<Foreign> {
    let at =
        [0, 512, 1024, 1536].into_iter().find(|at| medium.has(*at, b"LABELONE") && medium.has(at + 24, b"LVM2 001"))?;
    let identity = medium.text(at + u64::from(medium.le32(at + 20)?), 32);
    let mut uuid = String::new();
    for (index, character) in identity.chars().enumerate() {
        if [6, 10, 14, 18, 22, 26].contains(&index) {
            uuid.push('-');
        }
        uuid.push(character);
    }
    Some(Foreign { what: "LVM2 physical volume", detail: named("", &uuid), at })
}

/// ZFS On-Disk Specification, section 1.2: four labels of 256 KiB, two at each end. Each label has
/// a list of names and values at 16 KiB, and uberblocks in its second half, one per KiB or per
/// larger power of two.
fn zfs(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    const LABEL_BYTES: u64 = 256 << 10;
    const UBERBLOCK_MAGIC: u64 = 0x00BA_B10C;
    let back = [2, 1].map(|labels| medium.before_end(labels * LABEL_BYTES, LABEL_BYTES));
    let mut labels: Vec<u64> = [Some(0), Some(LABEL_BYTES)].into_iter().chain(back).flatten().collect();
    labels.dedup();
    for label in labels {
        let mut uberblocks = (LABEL_BYTES / 2..LABEL_BYTES).step_by(1024).map(|offset| label + offset);
        let is_uberblock = |at: &u64| {
            medium.le64(*at).is_some_and(|magic| magic == UBERBLOCK_MAGIC || magic.swap_bytes() == UBERBLOCK_MAGIC)
        };
        if let Some(at) = uberblocks.find(is_uberblock) {
            let pool = zfs_pool_name(medium, label).unwrap_or_default();
            let detail = if pool.is_empty() { String::new() } else { format!("pool \"{pool}\"") };
            found.push(Foreign { what: "ZFS pool member", detail, at });
        }
    }
}

/// The list is XDR with big-endian words. A pair is two sizes, the name preceded by its length,
/// type 9 for a string, count 1, and the string preceded by its length.
fn zfs_pool_name(medium: &Medium<'_>, label: u64) -> Option<String> {
    const PAIR: &[u8] = b"\0\0\0\x04name\0\0\0\x09\0\0\0\x01";
    let list = medium.bytes(label + (16 << 10), 112 << 10)?;
    let value = list.windows(PAIR.len()).position(|window| window == PAIR)? + PAIR.len();
    let at = label + (16 << 10) + value as u64;
    let len = medium.be32(at)?.min(256) as usize;
    Some(medium.text(at + 4, len))
}

/// DRBD's internal metadata, `md_on_disk_08` and `_09`, big endian, in the last 4 KiB.
fn drbd(medium: &Medium<'_>) -> Option<Foreign> {
    let at = medium.before_end(4096, 4096)? + 60;
    let what = match medium.be32(at)? {
        0x8374_026B => "DRBD 8 backing device",
        0x8374_026D => "DRBD 9 backing device",
        _ => return None,
    };
    Some(Foreign { what, detail: String::new(), at })
}

/// Ceph's BlueStore label: a line of text, then a line with the identity.
fn bluestore(medium: &Medium<'_>) -> Option<Foreign> {
    const LINE: &[u8] = b"bluestore block device\n";
    let found = medium.has(0, LINE);
    found.then(|| Foreign {
        what: "Ceph BlueStore device",
        detail: named("", &medium.text(LINE.len() as u64, 36)),
        at: 0,
    })
}

/// SNIA Common RAID DDF specification 2.0 section 4.1: the anchor header is the last sector.
fn ddf(medium: &Medium<'_>) -> Option<Foreign> {
    let places = [512, 4096].into_iter().filter_map(|sector| medium.before_end(sector, sector));
    let at = places.into_iter().find(|&at| medium.be32(at) == Some(0xDE11_DE11))?;
    Some(Foreign { what: "DDF RAID member", detail: format!("vendor {}", medium.text(at + 8, 8)), at })
}

/// Intel Matrix Storage: the anchor is the second to last sector.
fn imsm(medium: &Medium<'_>) -> Option<Foreign> {
    let places = [512, 4096].into_iter().filter_map(|sector| medium.before_end(2 * sector, sector));
    let at = places.into_iter().find(|&at| medium.has(at, b"Intel Raid ISM Cfg Sig. "))?;
    Some(Foreign { what: "Intel Matrix RAID member", detail: String::new(), at })
}
