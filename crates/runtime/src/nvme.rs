//! NVMe commands through the kernel's pass-through (linux/nvme_ioctl.h): admin commands to a
//! controller, and the form of commands in a ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::system;

/// `struct nvme_passthru_cmd` and `struct nvme_uring_cmd` of linux/nvme_ioctl.h. They differ only
/// in the name of their last field.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Command {
    opcode: u8,
    flags: u8,
    reserved_1: u16,
    namespace: u32,
    dword_2: u32,
    dword_3: u32,
    metadata: u64,
    /// Address of the data.
    data: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    dword_10: u32,
    dword_11: u32,
    dword_12: u32,
    dword_13: u32,
    dword_14: u32,
    dword_15: u32,
    /// With 0 the kernel uses its default for the drive.
    timeout_ms: u32,
    result: u32,
}

const COMMAND_BYTES: usize = size_of::<Command>();
const _: () = assert!(COMMAND_BYTES == 72);

/// Bytes for a command in a ring's entry of 128 bytes.
pub(crate) const ENTRY_COMMAND_BYTES: usize = 80;

impl Command {
    /// A read or write of a namespace's blocks, by the NVM Command Set Specification. It takes the
    /// `opcode`, the data's address and length, and dwords 10 to 12, which give position and number
    /// of blocks.
    pub(crate) fn transfer(opcode: u8, namespace: u32, data: u64, data_bytes: u32, dwords: [u32; 3]) -> Command {
        let [dword_10, dword_11, dword_12] = dwords;
        Command { opcode, namespace, data, data_bytes, dword_10, dword_11, dword_12, ..Command::default() }
    }

    /// The bytes in a ring's entry: `struct nvme_uring_cmd`, then zeroes.
    pub(crate) fn entry_bytes(&self) -> [u8; ENTRY_COMMAND_BYTES] {
        let mut bytes = [0; ENTRY_COMMAND_BYTES];
        // SAFETY: the structure is 72 bytes of integers without a gap: 2 of 8 bits, 1 of 16, 13 of
        // 32 and 2 of 64.
        bytes[..COMMAND_BYTES].copy_from_slice(unsafe { &*ptr::from_ref(self).cast::<[u8; COMMAND_BYTES]>() });
        bytes
    }
}

/// `NVME_IOCTL_ID`: `_IO('N', 0x40)`.
const NAMESPACE_ID: u32 = (b'N' as u32) << 8 | 0x40;

/// `_IOWR('N', number, struct nvme_passthru_cmd)`.
const fn with_command(number: u32) -> u32 {
    3 << 30 | (COMMAND_BYTES as u32) << 16 | (b'N' as u32) << 8 | number
}

/// `NVME_IOCTL_ADMIN_CMD`.
const ADMIN_COMMAND: u32 = with_command(0x41);

/// `NVME_URING_CMD_IO`: a command of the I/O command set, in a ring's entry.
pub(crate) const RING_COMMAND: u32 = with_command(0x80);

/// Get Log Page and Identify, of the NVM Express Base Specification.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;

/// Addresses all namespaces of the controller.
const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// How long to wait for the answer of a drive.
const TIMEOUT_MS: u32 = 5000;

/// Bytes of the Identify data structures.
pub const NVME_IDENTIFY_BYTES: usize = 4096;

/// Bytes of the SMART / Health Information log.
pub const NVME_HEALTH_BYTES: usize = 512;

/// The Identify Controller data structure (CNS 01h) of the controller behind a block device. Blocks
/// the calling thread.
///
/// # Errors
/// `ENOTTY` if it is no NVMe drive; `EACCES` without the rights to send the command;
/// [`io::ErrorKind::Other`] with the status if the drive answers with an error.
pub fn nvme_identify(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let command = Command { opcode: IDENTIFY, dword_10: 1, ..Command::default() };
    ask(device, command, NVME_IDENTIFY_BYTES)
}

/// The SMART / Health Information log (LID 02h) of the controller behind a block device. Blocks the
/// calling thread.
///
/// # Errors
/// As for [`nvme_identify`].
pub fn nvme_health(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    // The number of dwords, less one, in the bits above the log's identifier.
    let dword_10 = ((NVME_HEALTH_BYTES / 4 - 1) as u32) << 16 | 2;
    let command = Command { opcode: GET_LOG_PAGE, namespace: ALL_NAMESPACES, dword_10, ..Command::default() };
    ask(device, command, NVME_HEALTH_BYTES)
}

/// The Identify Namespace data structure (CNS 00h) of a namespace. Blocks the calling thread.
pub(crate) fn identify_namespace(device: BorrowedFd<'_>, namespace: u32) -> io::Result<Vec<u8>> {
    ask(device, Command { opcode: IDENTIFY, namespace, ..Command::default() }, NVME_IDENTIFY_BYTES)
}

/// The identifier of the namespace behind a block device or a character device. `ENOTTY` if it is
/// no namespace.
pub(crate) fn namespace_id(device: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: no memory is involved.
    let id = system::check(unsafe { libc::ioctl(device.as_raw_fd(), NAMESPACE_ID as _) })?;
    // The only identifier that looks like an error stands for all namespaces, and no single
    // namespace has it.
    Ok(id.unsigned_abs())
}

fn ask(device: BorrowedFd<'_>, mut command: Command, bytes: usize) -> io::Result<Vec<u8>> {
    let mut answer = vec![0u8; bytes];
    command.data = answer.as_mut_ptr() as u64;
    command.data_bytes = bytes as u32;
    command.timeout_ms = TIMEOUT_MS;
    // SAFETY: the command is valid for reads and writes. It names a buffer that is valid for writes
    // of the given length until the call returns, and the call returns after the drive has
    // answered.
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
