//! Partition tables: GPT (UEFI 2.10 section 5.3), MBR (section 5.2), Apple's partition map.

use super::filesystems::is_boot_sector_of_file_system;
use super::medium::Medium;
use super::{Foreign, named};

const SECTORS: [u64; 2] = [512, 4096];

const MBR_SIGNATURE_AT: u64 = 510;
const MBR_TABLE_AT: u64 = 446;
/// Type of the partition that protects a GPT from programs that know only the MBR.
const MBR_TYPE_PROTECTIVE: u8 = 0xEE;

pub(super) fn inspect(medium: &Medium<'_>, found: &mut Vec<Foreign>) {
    let mut has_gpt = false;
    for sector in SECTORS {
        has_gpt |= gpt(medium, found, "GPT partition table", sector, sector);
        if let Some(at) = medium.before_end(sector, sector) {
            has_gpt |= gpt(medium, found, "GPT partition table (backup)", at, sector);
        }
    }
    mbr(medium, found, has_gpt);
    if medium.has(0, b"ER") && medium.has(512, b"PM") {
        found.push(Foreign { what: "Apple partition map", detail: String::new(), at: 512 });
    }
}

fn gpt(medium: &Medium<'_>, found: &mut Vec<Foreign>, what: &'static str, at: u64, sector: u64) -> bool {
    if !medium.has(at, b"EFI PART") {
        return false;
    }
    let mut detail = named("", &medium.guid(at + 56));
    if let Some(count) = gpt_partitions(medium, at, sector) {
        detail += &format!(", {}", partitions(count));
    }
    found.push(Foreign { what, detail, at });
    true
}

/// Entries in use, or `None` if the table was not read completely or is implausible.
fn gpt_partitions(medium: &Medium<'_>, at: u64, sector: u64) -> Option<usize> {
    let table = medium.le64(at + 72)?.checked_mul(sector)?;
    let (count, size) = (u64::from(medium.le32(at + 80)?), u64::from(medium.le32(at + 84)?));
    // UEFI: an entry is 128 * 2^n bytes. Tables with more than 1024 entries do not occur, and would
    // not fit in the head.
    if count > 1024 || !(128..=4096).contains(&size) {
        return None;
    }
    let types: Option<Vec<&[u8]>> =
        (0..count).map(|index| medium.bytes(table.checked_add(index * size)?, 16)).collect();
    Some(types?.into_iter().filter(|kind| **kind != [0; 16]).count())
}

fn partitions(count: usize) -> String {
    format!("{count} partition{}", if count == 1 { "" } else { "s" })
}

/// A boot sector ends with the same signature as an MBR. The sector is an MBR only if its table has
/// used entries and the sector holds no file system.
fn mbr(medium: &Medium<'_>, found: &mut Vec<Foreign>, has_gpt: bool) {
    if !medium.has(MBR_SIGNATURE_AT, &[0x55, 0xAA]) || is_boot_sector_of_file_system(medium) {
        return;
    }
    let Some(table) = medium.bytes(MBR_TABLE_AT, 64) else { return };
    let entries: Vec<&[u8]> = table.chunks_exact(16).collect();
    let used: Vec<&&[u8]> = entries.iter().filter(|entry| entry[4] != 0 && entry[12..16] != [0; 4]).collect();
    let protective = used.iter().any(|entry| entry[4] == MBR_TYPE_PROTECTIVE);
    if entries.iter().any(|entry| entry[0] & 0x7F != 0) || used.is_empty() || (protective && has_gpt) {
        return;
    }
    let what = if protective { "protective MBR of a GPT" } else { "MBR partition table" };
    let types: Vec<String> = used.iter().map(|entry| format!("{:#04x}", entry[4])).collect();
    let detail = format!("{}, type {}", partitions(used.len()), types.join(", "));
    found.push(Foreign { what, detail, at: MBR_SIGNATURE_AT });
}
