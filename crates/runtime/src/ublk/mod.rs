//! Local block devices that shards serve. The driver's side is Linux's ublk
//! (`Documentation/block/ublk.rst`).
//!
//! - [`UblkControl`] creates, finds, starts and removes devices. It blocks, so it must not be used
//!   on a shard's thread.
//! - [`UblkDevice`] is a device whose server is this process. Each of its queues belongs to one
//!   shard.
//! - [`UblkSlot`] is a place for one request in a queue. It waits for a request, moves its data,
//!   and answers it.
//!
//! A request costs one entry on the shard's ring and one copy of its data. The entry answers the
//! request and waits for the next. The copy is made by `pread` and `pwrite` on the device, which
//! the kernel completes at once. The commands copy the data themselves if the kernel does not
//! support that (before Linux 6.5) or does not allow it (to processes without `CAP_SYS_ADMIN`).
//!
//! # Invariants
//!
//! 1. All slots of a queue are used by one thread, from its first [`UblkSlot::fetch`] on: the
//!    driver accepts commands from no other.
//! 2. If a server ends without [`UblkControl::stop`], its device stays. The kernel keeps all
//!    unanswered requests for the next server ([`UblkControl::recover`]). The kernel removes
//!    devices that were created without privileges when their server ends.
//! 3. A slot whose device was stopped gets no more requests.
//! 4. One slot of each queue is always waiting, if the device outlives its server: its command lets
//!    the kernel notice the server's end.

mod abi;
mod control;
mod queue;

use std::io;

use thiserror::Error;

pub use control::{UblkControl, UblkDevice, UblkFound, UblkState};
pub use queue::{UblkOperation, UblkRequest, UblkSlot};

/// The properties of a new device. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UblkSpec {
    /// Its number N in `/dev/ublkbN`; `None` takes the lowest free one.
    pub number: Option<u32>,
    /// Number of queues. The kernel creates fewer if it has fewer cores.
    pub queues: u16,
    /// Requests that a queue takes at the same time, 4 to 4095. Smaller values count as 4, larger
    /// ones as 4095.
    pub depth: u16,
    /// The largest request; a multiple of 4096.
    pub io_bytes_max: u32,
    /// The kernel keeps it with the device; [`UblkFound::identity`] returns it.
    pub identity: u64,
    /// Capacity: a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Requests are multiples of it: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Bytes that are written as a whole or not at all when the power fails: a power of two, at
    /// least `block_bytes`. It is the kernel's `physical_block_size`; file systems rely on it.
    pub physical_block_bytes: u32,
    /// The smallest efficient request, a power of two.
    pub io_min_bytes: u32,
    /// The most efficient size of requests, a power of two.
    pub io_opt_bytes: u32,
    /// Discards are best multiples of it.
    pub discard_granularity_bytes: u32,
    /// Whether ranges can be discarded.
    pub has_discard: bool,
    /// Whether ranges can be zeroed without sending zeroes.
    pub has_write_zeroes: bool,
    /// The kernel refuses writes.
    pub read_only: bool,
}

/// Why an operation on a device failed.
#[derive(Debug, Error)]
pub enum UblkError {
    /// The kernel has no ublk, or the module is not loaded.
    #[error("this kernel has no block devices in user space: load its module ublk_drv (Linux 6.2 or newer)")]
    NoDriver,
    /// The driver is too old.
    #[error("the ublk driver of this kernel is too old: Linux 6.2 is needed")]
    TooOld,
    /// Another device has this number.
    #[error("/dev/ublkb{0} is somebody else's device")]
    Taken(u32),
    /// The driver cannot change the size of an existing device.
    #[error("/dev/ublkb{0} keeps its size: Linux 6.16 is needed to change that of a block device that is there")]
    KeepsSize(u32),
    /// A device with that number did not exist.
    #[error("there is no /dev/ublkb{0}")]
    Gone(u32),
    /// The kernel refused.
    #[error("{what}: {error}")]
    Os {
        /// The operation that failed.
        what: String,
        /// The cause of the failure.
        error: io::Error,
    },
}

impl UblkError {
    fn os(what: impl Into<String>, error: io::Error) -> UblkError {
        UblkError::Os { what: what.into(), error }
    }
}
