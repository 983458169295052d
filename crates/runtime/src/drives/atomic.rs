//! The bytes that a drive writes as a whole or not at all when the power fails:
//! [`DriveInfo::atomic_bytes`](drive::DriveInfo::atomic_bytes).
//!
//! Linux reports it as the device's `physical_block_size`. For an NVMe namespace it is no more than
//! its controller promises for a power failure (AWUPF, NAWUPF; `drivers/nvme/host/core.c`, which
//! says that file systems count on it). For a SATA or SAS drive it is the physical sector. A
//! stacked device reports the largest value of its lower devices, which promises nothing: for it
//! the sector counts.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// No on-disk structure and no export has larger blocks.
const ATOMIC_BYTES_MAX: u32 = 4096;

/// For the block device with this number.
pub(super) fn of_device(device: u64, sector_bytes: u32) -> u32 {
    let folder = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // Resolve the link: the folder of a partition is inside the folder of its disk.
    let told = fs::canonicalize(folder).ok().and_then(|folder| told_in(&folder));
    of(told, sector_bytes)
}

fn of(told: Option<u32>, sector_bytes: u32) -> u32 {
    told.unwrap_or(0).min(ATOMIC_BYTES_MAX).max(sector_bytes)
}

/// For a file: the value of the device under its file system, but no more than a block of the file
/// system. If there is no such device, or several, it is the sector.
pub(super) fn of_file(metadata: &Metadata, sector_bytes: u32) -> u32 {
    let blocks = u32::try_from(metadata.blksize()).unwrap_or(ATOMIC_BYTES_MAX);
    of_device(metadata.dev(), sector_bytes).min(blocks.max(sector_bytes))
}

/// The value in the sysfs folder of a block device, or `None` if sysfs has no value that can be
/// relied on.
fn told_in(folder: &Path) -> Option<u32> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
    let has_own_queue = folder.join("queue").exists();
    let disk = if has_own_queue { folder } else { folder.parent()? };
    let stands_on_others = fs::read_dir(disk.join("slaves")).ok()?.next().is_some();
    // A block that begins inside a physical one lies in two of them.
    let is_aligned = number(folder.join("alignment_offset"))? == 0;
    let physical = number(disk.join("queue/physical_block_size"))?;
    (!stands_on_others && is_aligned && physical.is_power_of_two()).then_some(physical)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with physical blocks of 4096 bytes and a partition of it, as sysfs shows them.
    struct Disk(PathBuf);

    impl Disk {
        fn new(name: &str) -> Disk {
            let disk = Disk(std::env::temp_dir().join(format!("purlin-atomic-{name}-{}", std::process::id())));
            for folder in ["queue", "slaves", "sda1"] {
                fs::create_dir_all(disk.0.join(folder)).expect("a folder");
            }
            disk.tells("queue/physical_block_size", "4096");
            disk.tells("alignment_offset", "0");
            disk.tells("sda1/alignment_offset", "0");
            disk
        }

        fn tells(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), format!("{text}\n")).expect("a file");
        }

        fn told(&self) -> (Option<u32>, Option<u32>) {
            (told_in(&self.0), told_in(&self.0.join("sda1")))
        }
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_physical_block_is_written_at_once_also_in_a_partition_that_begins_with_one() {
        let disk = Disk::new("partition");
        assert_eq!(disk.told(), (Some(4096), Some(4096)));
        disk.tells("sda1/alignment_offset", "3584");
        assert_eq!(disk.told(), (Some(4096), None));
    }

    #[test]
    fn of_a_device_that_stands_on_others_nothing_is_relied_on() {
        let disk = Disk::new("stacked");
        fs::create_dir(disk.0.join("slaves/sdb")).expect("a folder");
        assert_eq!(disk.told(), (None, None));
    }

    #[test]
    fn what_is_told_counts_between_a_sector_and_the_largest_block() {
        assert_eq!([None, Some(512), Some(4096), Some(16384)].map(|told| of(told, 512)), [512, 512, 4096, 4096]);
        assert_eq!([None, Some(512), Some(4096), Some(16384)].map(|told| of(told, 4096)), [4096; 4]);
    }
}
