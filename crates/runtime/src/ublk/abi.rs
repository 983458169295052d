//! Commands and structures of the interface to the kernel's ublk driver, as in
//! `include/uapi/linux/ublk_cmd.h` of Linux 6.12, or of 6.16 where noted.
//!
//! All structures are in the machine's byte order and have no implicit padding.

/// The device for control commands.
pub(super) const CONTROL_PATH: &str = "/dev/ublk-control";

/// The driver has one page table entry of memory for the descriptions of each queue's requests;
/// queues lie this many requests apart in the map (`UBLK_MAX_QUEUE_DEPTH`).
pub(super) const QUEUE_DEPTH_MAX: u16 = 4096;

/// Most queues of one device (`UBLK_MAX_NR_QUEUES`).
pub(super) const QUEUES_MAX: u16 = 4096;

/// Unit of sizes and positions (`SECTOR_SHIFT`).
pub(super) const SECTOR_SHIFT: u32 = 9;

/// `_IOC` of `asm-generic/ioctl.h`, for the type `u`: direction, size of the argument, number.
const fn ioctl(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

const fn control(direction: u32, number: u32) -> u32 {
    ioctl(direction, number, size_of::<ControlCommand>())
}
const fn io(number: u32) -> u32 {
    ioctl(READ_WRITE, number, size_of::<IoCommand>())
}

pub(super) const ADD_DEV: u32 = control(READ_WRITE, 0x04);
pub(super) const DEL_DEV: u32 = control(READ_WRITE, 0x05);
pub(super) const START_DEV: u32 = control(READ_WRITE, 0x06);
pub(super) const STOP_DEV: u32 = control(READ_WRITE, 0x07);
pub(super) const SET_PARAMS: u32 = control(READ_WRITE, 0x08);
pub(super) const START_USER_RECOVERY: u32 = control(READ_WRITE, 0x10);
pub(super) const END_USER_RECOVERY: u32 = control(READ_WRITE, 0x11);
pub(super) const GET_DEV_INFO2: u32 = control(READ, 0x12);
pub(super) const GET_FEATURES: u32 = control(READ, 0x13);
/// Since Linux 6.16. The size in sectors is the command's `data`.
pub(super) const UPDATE_SIZE: u32 = control(READ_WRITE, 0x15);

pub(super) const FETCH_REQ: u32 = io(0x20);
pub(super) const COMMIT_AND_FETCH_REQ: u32 = io(0x21);
pub(super) const NEED_GET_DATA: u32 = io(0x22);

/// A command for a queue was completed with a request.
pub(super) const IO_RES_OK: i32 = 0;
/// The request is a write, whose data must be requested.
pub(super) const IO_RES_NEED_GET_DATA: i32 = 1;

/// Features and flags of a device (`UBLK_F_*`).
pub(super) mod flag {
    /// The data of a write are requested by a command.
    pub const NEED_GET_DATA: u64 = 1 << 2;
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the server had not answered when it died are sent to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Created by a user without `CAP_SYS_ADMIN`.
    pub const UNPRIVILEGED_DEV: u64 = 1 << 5;
    /// Commands are encoded as by `_IOC`. Linux 6.1 lacks it.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Data are copied by `pread` and `pwrite`.
    pub const USER_COPY: u64 = 1 << 7;
    /// The size of a device can change while it is served. Since Linux 6.16.
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// States of a device (`UBLK_S_DEV_*`).
pub(super) mod state {
    pub const DEAD: u16 = 0;
    pub const LIVE: u16 = 1;
    pub const QUIESCED: u16 = 2;
}

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ControlCommand {
    pub device: u32,
    /// All ones if no queue is meant.
    pub queue: u16,
    pub len: u16,
    /// For a device of an unprivileged user: the device's path comes first.
    pub address: u64,
    pub data: u64,
    /// Includes the zero at its end.
    pub path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub io_bytes_max: u32,
    pub device: u32,
    pub server_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// The kernel keeps it for the server, and does not interpret it.
    pub server_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved: [u64; 2],
}

/// Attributes of a device (`UBLK_ATTR_*`).
pub(super) mod attribute {
    pub const READ_ONLY: u32 = 1 << 0;
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    pub const FUA: u32 = 1 << 3;
}

/// `UBLK_PARAM_TYPE_BASIC | UBLK_PARAM_TYPE_DISCARD`.
pub(super) const PARAMETERS_BASIC_AND_DISCARD: u32 = 1 << 0 | 1 << 1;

/// The part of `struct ublk_params` that is used here: header, `ublk_param_basic`,
/// `ublk_param_discard`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parameters {
    pub len: u32,
    pub types: u32,
    pub attributes: u32,
    pub logical_block_shift: u8,
    pub physical_block_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub io_sectors_max: u32,
    pub chunk_sectors: u32,
    pub sectors: u64,
    pub virtual_boundary_mask: u64,
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub discard_sectors_max: u32,
    pub write_zeroes_sectors_max: u32,
    pub discard_segments_max: u16,
    pub reserved0: u16,
    /// Rounds the size up to the alignment. The driver reads only `len` bytes.
    pub unused: u32,
}

/// Bytes of [`Parameters`] that the driver knows.
pub(super) const PARAMETERS_BYTES: u32 = (size_of::<Parameters>() - size_of::<u32>()) as u32;

/// `struct ublksrv_io_cmd`.
#[derive(Debug, Clone, Copy)]
pub(super) struct IoCommand {
    pub queue: u16,
    pub tag: u16,
    pub result: i32,
    pub address: u64,
}

impl IoCommand {
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_io_desc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IoDescriptor {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    pub sectors: u32,
    pub start_sector: u64,
    pub address: u64,
}

/// Operations (`UBLK_IO_OP_*`).
pub(super) mod operation {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;
}

/// Flags of a request (`UBLK_IO_F_*`).
pub(super) mod request_flag {
    pub const FUA: u32 = 1 << 13;
    /// Zeroed space must stay allocated.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// Position of the data of a request for `pread` and `pwrite` (`UBLKSRV_IO_BUF_OFFSET`,
/// `UBLK_TAG_OFF`, `UBLK_QID_OFF`).
pub(super) const fn data_offset(queue: u16, tag: u16) -> u64 {
    const BUFFERS: u64 = 0x8000_0000;
    BUFFERS + ((queue as u64) << (25 + 16)) + ((tag as u64) << 25)
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<IoDescriptor>() == 24);
const _: () = assert!(size_of::<IoCommand>() == 16);
// 8 of the header, 32 of `basic`, 20 of `discard`.
const _: () = assert!(PARAMETERS_BYTES == 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernel_s_header() {
        // Computed by a C compiler from the header of Linux 6.12.
        assert_eq!((ADD_DEV, GET_DEV_INFO2, GET_FEATURES), (0xc020_7504, 0x8020_7512, 0x8020_7513));
        assert_eq!((FETCH_REQ, COMMIT_AND_FETCH_REQ), (0xc010_7520, 0xc010_7521));
        // From the header of Linux 6.16.
        assert_eq!((UPDATE_SIZE, flag::UPDATE_SIZE), (0xc020_7515, 0x400));
    }

    #[test]
    fn data_of_each_request_lie_apart() {
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(0, 1) - data_offset(0, 0), 32 << 20);
        assert!(data_offset(0, u16::MAX) + (32 << 20) <= data_offset(1, 0));
    }
}
