//! Reads and writes of an NVMe namespace as commands on its generic character device, past the
//! block layer.
//!
//! Invariants:
//! 1. The character device belongs to the open block device (`Passthrough::find`). It is looked up
//!    each time a drive is opened, and its name is not relied on: numbers change when drives are
//!    added and removed.
//! 2. A command moves exactly the bytes that its number of blocks says. The kernel does not compare
//!    the two.
//! 3. A command has one of two final results: it succeeded, or the drive reported a media error
//!    with Do Not Retry. In all other cases the operation is repeated on the block device, whose
//!    answer counts. Retries, other paths, resets and removal are the work of the block layer, and
//!    look the same.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ::drive::{BUF_ALIGN, DriveInfo};
use io_uring::{opcode, squeue};
use thiserror::Error;

use crate::files::{Target, on_target};
use crate::nvme::{self, Command};

/// Opcodes Write and Read, of the NVM Command Set Specification.
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// Force Unit Access, in dword 12 of Read and Write.
const FUA: u32 = 1 << 30;

/// Most blocks of one command: the field has 16 bits and holds the number less one.
const BLOCKS_MAX: u64 = 1 << 16;

/// Status codes as the kernel gives them: Status Code in bits 0 to 7, Status Code Type in bits 8 to
/// 10, Do Not Retry in bit 14.
const STATUS_TYPE: i32 = 0x700;
const STATUS_TYPE_MEDIA: i32 = 0x200;
const DO_NOT_RETRY: i32 = 0x4000;

/// Operations that go to the block device after a command was refused, before another command is
/// tried. If a drive refuses all commands for a while (a reset, no path), this costs little. When
/// the cause is gone, commands are used again.
const REST_OPERATIONS: u32 = 64;

/// The value of `rest` for a drive that takes no commands at all.
const FOR_EVER: u32 = u32::MAX;

/// Why reads and writes of a drive go to its block device.
#[derive(Debug, Error)]
pub(super) enum Unfit {
    #[error("it is no NVMe namespace")]
    NoNamespace,
    #[error("it is a partition, and commands are for whole namespaces")]
    Partition,
    #[error("the kernel has no generic character device for it")]
    NoNode,
    #[error("{0} is another namespace's")]
    Other(String),
    #[error("{0} went away meanwhile")]
    Gone(String),
    #[error("{node} cannot be opened: {source}")]
    Open { node: String, source: io::Error },
    #[error("its format is not known: {0}")]
    Identify(io::Error),
    #[error("its blocks have {0} bytes of metadata")]
    Metadata(u16),
    #[error("it protects its data end to end (type {0})")]
    Protected(u8),
    #[error("it is zoned")]
    Zoned,
    #[error(
        "it says {says_bytes} bytes in blocks of {says_sector_bytes}, and the kernel {is_bytes} in blocks of {is_sector_bytes}"
    )]
    OtherSize { says_bytes: u128, says_sector_bytes: u64, is_bytes: u64, is_sector_bytes: u32 },
    #[error("the page cache is used, which it would bypass")]
    Buffered,
    #[error("what others wrote to it cannot be made durable: {0}")]
    Sync(io::Error),
    #[error("the kernel does not say how much it transfers at once: {0}")]
    Limits(io::Error),
}

/// The character device of a namespace.
#[derive(Debug)]
pub(crate) struct Passthrough {
    pub(crate) file: File,
    /// Such as `/dev/ng0n1`.
    pub(super) node: String,
    namespace: u32,
    sector_bytes: u32,
    /// Most bytes that one command transfers.
    transfer_bytes_max: usize,
    /// Operations that still go to the block device.
    rest: AtomicU32,
    /// The kernel refuses commands with registered buffers.
    no_fixed: AtomicBool,
}

/// The direction of the data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    Read,
    Write { fua: bool },
}

/// The result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    /// The drive cannot read or write these blocks, and a retry would not help.
    Media,
    /// Repeat the operation on the block device.
    AskBlockDevice,
}

impl Passthrough {
    /// The character device of the namespace of an open block device, which this process has
    /// claimed. Blocks the calling thread until the drive answers an Identify.
    pub(super) fn find(block: &File, direct: bool, info: &DriveInfo) -> Result<Passthrough, Unfit> {
        let namespace = nvme::namespace_id(block.as_fd()).map_err(|_| Unfit::NoNamespace)?;
        if !direct {
            return Err(Unfit::Buffered);
        }
        let device = block.metadata().map_err(|_| Unfit::NoNamespace)?.rdev();
        let folder = sysfs_folder(device).map_err(|_| Unfit::NoNamespace)?;
        if folder.join("partition").exists() {
            return Err(Unfit::Partition);
        }
        let (node, number) = node_beside(&folder).ok_or(Unfit::NoNode)?;
        let failed = |source| Unfit::Open { node: node.clone(), source };
        let file = OpenOptions::new().read(true).write(true).open(&node).map_err(failed)?;
        // A device keeps its number while it exists. The block device is open, so no other device
        // has its number, and the two devices are added and removed together. If the block device
        // is still there now, the character device was the same all the time.
        let is_same = file.metadata().map_err(failed)?.rdev() == number
            && nvme::namespace_id(file.as_fd()).is_ok_and(|id| id == namespace);
        if !is_same {
            return Err(Unfit::Other(node));
        }
        if !sysfs_folder(device).is_ok_and(|now| now == folder) || node_beside(&folder) != Some((node.clone(), number))
        {
            return Err(Unfit::Gone(node));
        }
        let format = nvme::identify_namespace(file.as_fd(), namespace).map_err(Unfit::Identify)?;
        Format::parse(&format).check(info)?;
        let limit = |name: &str| read_number(&folder.join("queue").join(name)).map_err(Unfit::Limits);
        if std::fs::read_to_string(folder.join("queue/zoned")).is_ok_and(|model| model.trim() != "none") {
            return Err(Unfit::Zoned);
        }
        let transfer_bytes_max =
            transfer_bytes_max(limit("max_hw_sectors_kb")?, limit("max_segments")?, info.sector_bytes);
        // Write back data in the page cache: commands would not see it.
        block.sync_all().map_err(Unfit::Sync)?;
        Ok(Passthrough {
            file,
            node,
            namespace,
            sector_bytes: info.sector_bytes,
            transfer_bytes_max,
            rest: AtomicU32::new(0),
            no_fixed: AtomicBool::new(false),
        })
    }

    /// Whether this transfer fits in one command, and commands are sent at present.
    fn takes(&self, offset: u64, len: usize) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest != 0 {
            if rest != FOR_EVER {
                // Two shards at once may count only one operation: the exact number does not
                // matter. The exchange fails if another shard has set `FOR_EVER` meanwhile.
                let _ = self.rest.compare_exchange(rest, rest - 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            return false;
        }
        let sector = u64::from(self.sector_bytes);
        len != 0
            && len <= self.transfer_bytes_max
            && offset.is_multiple_of(sector)
            && (len as u64).is_multiple_of(sector)
    }

    /// The command for a transfer, or `None` if it goes to the block device. `fixed` is the
    /// registered buffer that contains the range.
    pub(super) fn entry(
        &self,
        target: Target,
        transfer: Transfer,
        offset: u64,
        start: *const u8,
        len: usize,
        fixed: Option<u16>,
    ) -> Option<(squeue::Entry128, bool)> {
        if !self.takes(offset, len) {
            return None;
        }
        let fixed = fixed.filter(|_| !self.no_fixed.load(Ordering::Relaxed));
        let bytes = self.command(transfer, offset, start, len).entry_bytes();
        let entry = on_target!(target, |fd| opcode::UringCmd80::new(fd, nvme::RING_COMMAND)
            .cmd(bytes)
            .buf_index(fixed)
            .build());
        Some((entry, fixed.is_some()))
    }

    /// The command for a transfer that [`Passthrough::takes`] accepts.
    fn command(&self, transfer: Transfer, offset: u64, start: *const u8, len: usize) -> Command {
        let sector = u64::from(self.sector_bytes);
        let (block, blocks) = (offset / sector, len as u64 / sector);
        let (opcode, flags) = match transfer {
            Transfer::Read => (READ, 0),
            Transfer::Write { fua } => (WRITE, if fua { FUA } else { 0 }),
        };
        let dwords = [block as u32, (block >> 32) as u32, (blocks - 1) as u32 | flags];
        Command::transfer(opcode, self.namespace, start as u64, len as u32, dwords)
    }

    /// Judges the result of a command: 0, the drive's status, or a negated errno. `fixed` says that
    /// the command named a registered buffer.
    pub(super) fn judge(&self, result: i32, fixed: bool) -> Verdict {
        match result {
            0 => return Verdict::Done,
            // Without Do Not Retry the block layer repeats it, as often as its rules say.
            1.. if result & STATUS_TYPE == STATUS_TYPE_MEDIA => {
                return if result & DO_NOT_RETRY != 0 { Verdict::Media } else { Verdict::AskBlockDevice };
            }
            _ if result == -libc::EINVAL && fixed => {
                // A kernel may count all pages of the registered buffer after the range as segments
                // of the transfer.
                self.no_fixed.store(true, Ordering::Relaxed);
                tracing::debug!(node = self.node, "commands with registered buffers are refused");
                return Verdict::AskBlockDevice;
            }
            _ if is_never_taken(-result) => {
                if self.rest.swap(FOR_EVER, Ordering::Relaxed) != FOR_EVER {
                    let error = io::Error::from_raw_os_error(-result);
                    tracing::warn!(node = self.node, %error, "the kernel takes no commands; reads and writes go by the block device");
                }
                return Verdict::AskBlockDevice;
            }
            _ => {}
        }
        if result == -libc::EINVAL {
            // The registered buffer was not the cause: a multipath device without a path gives the
            // same error.
            self.no_fixed.store(false, Ordering::Relaxed);
        }
        // This also applies to an NVMe status, such as that of a namespace that is not ready.
        let _ = self.rest.compare_exchange(0, REST_OPERATIONS, Ordering::Relaxed, Ordering::Relaxed);
        tracing::debug!(node = self.node, result, "a command failed; the block device is asked");
        Verdict::AskBlockDevice
    }
}

/// Whether the kernel lacks support or the daemon lacks rights, which will not change.
fn is_never_taken(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EACCES | libc::EPERM)
}

/// The description of the blocks in Identify Namespace (CNS 00h), by the NVM Command Set
/// Specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Format {
    /// Namespace Size, in blocks.
    blocks: u64,
    sector_bytes: u64,
    metadata_bytes: u16,
    /// Type of protection information; 0 means none.
    protection: u8,
}

impl Format {
    fn parse(identify: &[u8]) -> Format {
        let u16_at = |at: usize| u16::from_le_bytes([identify[at], identify[at + 1]]);
        let blocks = u64::from_le_bytes(std::array::from_fn(|at| identify[at]));
        // FLBAS: the format in use. Its low part is in bits 0 to 3, its high part in bits 5 and 6.
        let used = identify[26];
        let at = 128 + 4 * usize::from(used & 0xf | used >> 1 & 0x30);
        let sector_shift = u32::from(identify[at + 2]);
        Format {
            blocks,
            sector_bytes: 1u64.checked_shl(sector_shift).unwrap_or(0),
            metadata_bytes: u16_at(at),
            protection: identify[29] & 7,
        }
    }

    /// Refuses formats that are not plain blocks, and those that do not match the drive as the
    /// kernel shows it.
    fn check(&self, info: &DriveInfo) -> Result<(), Unfit> {
        // This comes before the metadata, because protection information is in the metadata.
        if self.protection != 0 {
            return Err(Unfit::Protected(self.protection));
        }
        if self.metadata_bytes != 0 {
            return Err(Unfit::Metadata(self.metadata_bytes));
        }
        let says_bytes = u128::from(self.blocks) * u128::from(self.sector_bytes);
        if self.sector_bytes != u64::from(info.sector_bytes) || says_bytes != u128::from(info.size_bytes) {
            return Err(Unfit::OtherSize {
                says_bytes,
                says_sector_bytes: self.sector_bytes,
                is_bytes: info.size_bytes,
                is_sector_bytes: info.sector_bytes,
            });
        }
        Ok(())
    }
}

/// Most bytes that one command transfers, by the limits of the device's queue. The kernel refuses
/// more than `hw_kib`, and more than `segments` segments. Memory that is contiguous here may need a
/// segment for each page, and one more if it begins inside a page.
fn transfer_bytes_max(hw_kib: u64, segments: u64, sector_bytes: u32) -> usize {
    let sector = u64::from(sector_bytes);
    let by_segments = segments.saturating_sub(1).saturating_mul(BUF_ALIGN as u64);
    let bytes = hw_kib.saturating_mul(1024).min(by_segments).min(BLOCKS_MAX * sector).min(1 << 30);
    (bytes - bytes % sector) as usize
}

/// The sysfs folder of a block device, by its number.
fn sysfs_folder(device: u64) -> io::Result<PathBuf> {
    Path::new(&format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device))).canonicalize()
}

/// The generic character device, and its number, of the namespace whose block device has this
/// folder. Both devices are in the folder of their controller, or of their subsystem if several
/// controllers lead to them. Their names end with the same number of the namespace. The numbers
/// before it may differ.
fn node_beside(folder: &Path) -> Option<(String, u64)> {
    let name = folder.file_name()?.to_str()?;
    let (_, instance) = name.strip_prefix("nvme")?.rsplit_once('n')?;
    let mut found = std::fs::read_dir(folder.parent()?).ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let (_, its) = name.strip_prefix("ng")?.rsplit_once('n')?;
        let text = (its == instance).then(|| std::fs::read_to_string(entry.path().join("dev")).ok())??;
        let (major, minor) = text.trim().split_once(':')?;
        Some((format!("/dev/{name}"), libc::makedev(major.parse().ok()?, minor.parse().ok()?)))
    });
    let node = found.next()?;
    // Two matches mean that the names are not understood.
    found.next().is_none().then_some(node)
}

fn read_number(path: &Path) -> io::Result<u64> {
    std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::ENTRY_COMMAND_BYTES;

    fn passthrough(sector_bytes: u32) -> Passthrough {
        Passthrough {
            file: File::open("/dev/null").expect("it is there"),
            node: "/dev/ng0n1".to_owned(),
            namespace: 7,
            sector_bytes,
            transfer_bytes_max: 512 << 10,
            rest: AtomicU32::new(0),
            no_fixed: AtomicBool::new(false),
        }
    }

    /// The non-zero bytes of a command, with their positions.
    fn bytes_of(passthrough: &Passthrough, transfer: Transfer, offset: u64, len: usize) -> Vec<(usize, u8)> {
        let start = 0x1122_3344_5566_7000 as *const u8;
        let bytes: [u8; ENTRY_COMMAND_BYTES] = passthrough.command(transfer, offset, start, len).entry_bytes();
        bytes.into_iter().enumerate().filter(|(_, byte)| *byte != 0).collect()
    }

    const ADDRESS: [(usize, u8); 7] =
        [(25, 0x70), (26, 0x66), (27, 0x55), (28, 0x44), (29, 0x33), (30, 0x22), (31, 0x11)];

    #[test]
    fn a_command_has_every_field_where_the_kernel_reads_it() {
        let with_address = |before: &[(usize, u8)], behind: &[(usize, u8)]| [before, &ADDRESS, behind].concat();
        // 8 KiB at block 0x0000_0002_0000_0003 of 4096 bytes: two blocks, so the field holds 1.
        let offset = 0x2_0000_0003 * 4096;
        assert_eq!(
            bytes_of(&passthrough(4096), Transfer::Read, offset, 8192),
            with_address(&[(0, 0x02), (4, 7)], &[(37, 0x20), (40, 3), (44, 2), (48, 1)])
        );
        // One block of 512 bytes: the field holds 0.
        assert_eq!(
            bytes_of(&passthrough(512), Transfer::Write { fua: false }, 512 * 5, 512),
            with_address(&[(0, 0x01), (4, 7)], &[(37, 2), (40, 5)])
        );
        assert_eq!(
            bytes_of(&passthrough(512), Transfer::Write { fua: true }, 0, 4096),
            with_address(&[(0, 0x01), (4, 7)], &[(37, 0x10), (48, 7), (51, 0x40)])
        );
    }

    #[test]
    fn only_whole_blocks_that_fit_one_command_are_sent() {
        let passthrough = passthrough(4096);
        assert!(passthrough.takes(8192, 4096) && passthrough.takes(0, 512 << 10));
        for (offset, len) in [(512, 4096), (0, 512), (0, 4096 + 512), (0, 0), (0, (512 << 10) + 4096)] {
            assert!(!passthrough.takes(offset, len), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn the_largest_command_is_what_every_limit_allows() {
        assert_eq!(transfer_bytes_max(512, 128, 4096), 127 * 4096);
        assert_eq!(transfer_bytes_max(128, 128, 4096), 128 << 10);
        assert_eq!(transfer_bytes_max(1 << 20, 1 << 16, 512), 32 << 20);
        assert_eq!(transfer_bytes_max(u64::MAX, u64::MAX, 4096), 256 << 20);
        assert_eq!(transfer_bytes_max(512, 0, 4096), 0);
    }

    #[test]
    fn a_media_error_is_final_only_if_the_drive_says_so_and_the_block_device_is_asked_about_all_else() {
        let passthrough = passthrough(4096);
        assert_eq!(passthrough.judge(0, true), Verdict::Done);
        // Write fault, unrecovered read error, guard, application and reference tag, compare,
        // access denied, never written.
        for code in 0x280..=0x287 {
            assert_eq!(passthrough.judge(0x4000 | code, false), Verdict::Media, "{code:#x}");
            assert_eq!(passthrough.judge(code, false), Verdict::AskBlockDevice, "{code:#x}");
        }
        assert!(passthrough.takes(0, 4096), "a bad block says nothing about the others");
        // Namespace not ready, LBA out of range, aborted on request, path error, capacity exceeded;
        // canceled by a reset, gone.
        for result in [0x4082, 0x4080, 0x4007, 0x4370, 0x4081, -libc::EINTR, -libc::ENODEV, -libc::EAGAIN, -libc::EIO] {
            assert_eq!(passthrough.judge(result, false), Verdict::AskBlockDevice, "{result:#x}");
            assert!(!passthrough.takes(0, 4096), "{result:#x}");
            passthrough.rest.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_refused_command_is_followed_by_others_after_a_rest_unless_none_will_ever_be_taken() {
        let passthrough = passthrough(4096);
        // If the command had a registered buffer, the buffer was refused.
        passthrough.judge(-libc::EINVAL, true);
        assert!(passthrough.no_fixed.load(Ordering::Relaxed) && passthrough.takes(0, 4096));
        let entry = passthrough.entry(Target::Fixed(0), Transfer::Read, 0, std::ptr::null(), 4096, Some(0));
        assert!(entry.is_some_and(|(_, fixed)| !fixed));
        passthrough.judge(-libc::EINVAL, false);
        assert!(!passthrough.no_fixed.load(Ordering::Relaxed), "without one it was refused as well");
        let refused = (0..2 * REST_OPERATIONS).filter(|_| !passthrough.takes(0, 4096)).count();
        assert_eq!(refused, REST_OPERATIONS as usize);
        passthrough.judge(-libc::EOPNOTSUPP, false);
        passthrough.judge(-libc::EINTR, false);
        assert!((0..2 * REST_OPERATIONS).all(|_| !passthrough.takes(0, 4096)));
        assert_eq!(passthrough.rest.load(Ordering::Relaxed), FOR_EVER, "it is not counted down");
    }

    #[test]
    fn a_namespace_with_metadata_protection_or_another_size_is_not_reached_so() {
        let identify = |change: fn(&mut Vec<u8>)| {
            let mut bytes = vec![0u8; 4096];
            bytes[..8].copy_from_slice(&1000u64.to_le_bytes());
            // Format 0 has 512 bytes, format 1 4096, format 17 4096 and 8 of metadata.
            bytes[128 + 2] = 9;
            bytes[132 + 2] = 12;
            bytes[128 + 4 * 17] = 8;
            bytes[128 + 4 * 17 + 2] = 12;
            bytes[26] = 1;
            change(&mut bytes);
            Format::parse(&bytes)
        };
        let info = DriveInfo {
            name: "x".to_owned(),
            size_bytes: 4_096_000,
            sector_bytes: 4096,
            atomic_bytes: 4096,
            discards: false,
        };
        assert!(identify(|_| {}).check(&info).is_ok());
        assert!(matches!(identify(|bytes| bytes[26] = 0x21).check(&info), Err(Unfit::Metadata(8))));
        let protected = identify(|bytes| (bytes[26], bytes[29]) = (0x21, 2));
        assert!(matches!(protected.check(&info), Err(Unfit::Protected(2))));
        assert!(matches!(identify(|bytes| bytes[26] = 0).check(&info), Err(Unfit::OtherSize { .. })));
        assert!(matches!(identify(|bytes| bytes[1] = 9).check(&info), Err(Unfit::OtherSize { .. })));
        assert!(matches!(identify(|bytes| bytes[134] = 0xff).check(&info), Err(Unfit::OtherSize { .. })));
    }

    #[test]
    fn what_is_no_namespace_is_not_reached_so() {
        let info = DriveInfo {
            name: "x".to_owned(),
            size_bytes: 4096,
            sector_bytes: 4096,
            atomic_bytes: 4096,
            discards: false,
        };
        let file = File::open("/dev/null").expect("it is there");
        assert!(matches!(Passthrough::find(&file, true, &info), Err(Unfit::NoNamespace)));
    }
}
