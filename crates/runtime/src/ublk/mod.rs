//! Local block devices, served by shards: the driver's side is Linux's ublk
//! (`Documentation/block/ublk.rst`).
//!
//! - [`UblkControl`] makes, finds, starts and removes devices. It blocks: not for a shard's thread.
//! - [`UblkDevice`] is a device whose server this process is. Each of its queues belongs to one
//!   shard.
//! - [`UblkSlot`] is one place for a request in a queue: it waits for one, moves its data, and
//!   answers it.
//!
//! A request costs one entry on the shard's ring, which answers it and waits for the next, and one
//! copy of its data. The copy is made by `pread` and `pwrite` on the device, which the kernel
//! serves at once, or by the commands themselves where the kernel has no such copying (before Linux
//! 6.5) or does not allow it (to processes without `CAP_SYS_ADMIN`).
//!
//! # Invariants
//!
//! 1. All slots of a queue are used by one thread, from its first [`UblkSlot::fetch`] on: the
//!    driver takes commands from no other.
//! 2. A device whose server ends without [`UblkControl::stop`] stays, with everything that was
//!    asked of it and not answered: the kernel keeps it for the server that comes next
//!    ([`UblkControl::recover`]). Not so for devices made without privileges, which the kernel
//!    removes.
//! 3. A slot whose device was stopped gets nothing any more.
//! 4. Of each queue of a device that outlives its server one slot waits at any time: by its command
//!    the kernel notices the server's end.

mod abi;
mod control;
mod queue;

use std::io;

use thiserror::Error;

pub use control::{UblkControl, UblkDevice, UblkFound, UblkState};
pub use queue::{UblkOperation, UblkRequest, UblkSlot};

/// What a device is to be. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UblkSpec {
    /// Its number N in `/dev/ublkbN`; `None` takes the lowest that is free.
    pub number: Option<u32>,
    /// Queues. The kernel makes fewer if it has fewer cores.
    pub queues: u16,
    /// Requests that a queue takes at the same time, 4 to 4095: less is taken for 4, and more
    /// for 4095.
    pub depth: u16,
    /// The largest request; a multiple of 4096.
    pub io_bytes_max: u32,
    /// Kept by the kernel with the device; [`UblkFound::identity`] gives it back.
    pub identity: u64,
    /// Capacity: a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// What requests are multiples of: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// What is there as a whole or not at all after a power cut, a power of two, at least
    /// `block_bytes`. The kernel's `physical_block_size`, of which file systems expect that.
    pub physical_block_bytes: u32,
    /// The smallest request that is served well, a power of two.
    pub io_min_bytes: u32,
    /// The size of requests that is served best, a power of two.
    pub io_opt_bytes: u32,
    /// What discards are best multiples of.
    pub discard_granularity_bytes: u32,
    /// Ranges can be given back.
    pub has_discard: bool,
    /// Ranges can be made zeroes without sending any.
    pub has_write_zeroes: bool,
    /// Writes are refused by the kernel.
    pub read_only: bool,
}

/// Why something about a device failed.
#[derive(Debug, Error)]
pub enum UblkError {
    /// The kernel has no ublk, or the module is not loaded.
    #[error("this kernel has no block devices in user space: load its module ublk_drv (Linux 6.2 or newer)")]
    NoDriver,
    /// The driver is too old.
    #[error("the ublk driver of this kernel is too old: Linux 6.2 is needed")]
    TooOld,
    /// Somebody has this number.
    #[error("/dev/ublkb{0} is somebody else's device")]
    Taken(u32),
    /// The driver does not change the size of a device that is there.
    #[error("/dev/ublkb{0} keeps its size: Linux 6.16 is needed to change that of a block device that is there")]
    KeepsSize(u32),
    /// A device of that number was not there.
    #[error("there is no /dev/ublkb{0}")]
    Gone(u32),
    /// The kernel refused.
    #[error("{what}: {error}")]
    Os {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
}

impl UblkError {
    fn os(what: impl Into<String>, error: io::Error) -> UblkError {
        UblkError::Os { what: what.into(), error }
    }
}
