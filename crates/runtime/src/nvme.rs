//! Two questions to an NVMe controller, through the kernel's passthrough (linux/nvme_ioctl.h): who it is, and how it does.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::system;

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Debug, Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved_1: u16,
    namespace: u32,
    dword_2: u32,
    dword_3: u32,
    metadata: u64,
    data: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    dword_10: u32,
    dword_11: u32,
    dword_12: u32,
    dword_13: u32,
    dword_14: u32,
    dword_15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: u32 = 3 << 30 | (size_of::<AdminCommand>() as u32) << 16 | (b'N' as u32) << 8 | 0x41;

/// Get Log Page and Identify, of the NVM Express Base Specification.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;

/// For all namespaces of the controller.
const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// A drive that does not answer this is not waited for longer.
const TIMEOUT_MS: u32 = 5000;

/// Bytes of the Identify Controller data structure.
pub const NVME_IDENTIFY_BYTES: usize = 4096;

/// Bytes of the SMART / Health Information log.
pub const NVME_HEALTH_BYTES: usize = 512;

/// The Identify Controller data structure (CNS 01h) of the controller behind a block device. Blocks the calling thread.
///
/// # Errors
/// `ENOTTY` where it is no NVMe drive; `EACCES` without the rights to ask; what the drive answers, as `EIO`.
pub fn nvme_identify(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let command = AdminCommand { opcode: IDENTIFY, dword_10: 1, ..AdminCommand::default() };
    ask(device, command, NVME_IDENTIFY_BYTES)
}

/// The SMART / Health Information log (LID 02h) of the controller behind a block device. Blocks the calling thread.
///
/// # Errors
/// As for [`nvme_identify`].
pub fn nvme_health(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // The number of dwords, less one, above the log's identifier.
    let dword_10 = ((NVME_HEALTH_BYTES / 4 - 1) as u32) << 16 | 2;
    let command = AdminCommand { opcode: GET_LOG_PAGE, namespace: ALL_NAMESPACES, dword_10, ..AdminCommand::default() };
    ask(device, command, NVME_HEALTH_BYTES)
}

fn ask(device: BorrowedFd<'_>, mut command: AdminCommand, bytes: usize) -> io::Result<Vec<u8>> {
    let mut answer = vec![0u8; bytes];
    command.data = answer.as_mut_ptr() as u64;
    command.data_bytes = bytes as u32;
    command.timeout_ms = TIMEOUT_MS;
    // SAFETY: the command is valid for reads and writes, and names a buffer that is valid for writes of the length it gives until the
    // call returns, which it does when the drive has answered.
    let status = system::check(unsafe { libc::ioctl(device.as_raw_fd(), ADMIN_COMMAND as _, &raw mut command) })?;
    match status {
        0 => Ok(answer),
        status => Err(io::Error::other(format!("the drive answered with status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_no_nvme_drive_says_so() {
        let file = std::fs::File::open("/dev/null").expect("it is there");
        for answer in [nvme_identify(file.as_fd()), nvme_health(file.as_fd())] {
            assert_eq!(answer.expect_err("not a drive").raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
