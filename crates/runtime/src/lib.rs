//! One shard per core, each with its own io_uring.
//!
//! The main types:
//!
//! - [`Runtime`]: the shards of a process. A **shard** is a pinned thread with one ring for drives
//!   and sockets, a task list and timers. A [`ShardHandle`] gives other threads access to it.
//! - [`ShardEnv`]: the environment of a shard for the code on it. It implements [`::drive::Env`],
//!   and gives access to drives and sockets.
//! - [`OpenDrive`], [`Drive`]: a file, block device or memory that this process owns, and the
//!   handle of one shard to it. A [`Backend`] is a drive that another crate implements. An NVMe
//!   namespace may be accessed past the block layer ([`OpenDrive::open_passthrough`]).
//! - [`Listener`], [`Stream`]: sockets on the same ring. A [`Bound`] socket can become a listener.
//!   [`UblkSlot`]: requests of local block devices on the same ring. [`mailbox()`]: messages
//!   between shards.
//! - [`UeventSocket`]: the kernel's events about devices that are added and removed.
//! - [`nvme_identify`], [`nvme_health`]: data that an NVMe drive reports about itself.
//! - [`inherited`], [`replace_process`], [`raise_descriptor_limit`]: descriptors from and for other
//!   processes.
//!
//! # Invariants of the loop
//!
//! 1. A turn runs every task that is ready, then the tasks that waited for
//!    [`turn_end`](::drive::Env::turn_end). Then one system call submits all their operations to
//!    the kernel and collects completions.
//! 2. A turn is bounded. After [`POLLS_PER_TURN`] polls the ring gets its turn even if tasks are
//!    still ready. In one poll a task gets at most [`READY_OPS_PER_POLL`] operations that need no
//!    waiting (memory drives).
//! 3. The kernel accesses memory only for an operation slot that owns it. The slot lives until its
//!    completion is reaped, even if the future was dropped. So no buffer is freed while the device
//!    uses it.
//! 4. A shard announces that it will sleep, then checks that its inbox is empty, and only then
//!    sleeps. A sender fills the inbox first and then reads the announcement. One of the two sees
//!    the other, so no wake-up is lost ([`remote`](self) has the proof).
//! 5. Only the shard's own thread accesses its ring, tasks, timers and drive handles.
//! 6. An idle shard uses no processor time: with no task ready and no completion due, the thread is
//!    blocked in the kernel.
//! 7. A panic on a shard is reported and then ends the process at once, without unwinding. The work
//!    that the task left half done could break promises that a restart keeps.

mod answer;
mod arena;
mod buddy;
mod buffers;
mod clock;
mod config;
mod drives;
mod env;
mod files;
mod mailbox;
mod net;
mod nvme;
mod op;
mod polling;
mod process;
mod remote;
mod ring;
mod shard;
mod short_wait;
mod system;
mod task;
mod timer;
mod ublk;
mod uevent;
mod warm;

pub use answer::{Call, Stopped};
pub use arena::{ArenaStats, arena_stats};
pub use config::{Config, Runtime, StartError};
pub use drives::{
    Backend, BackendDrive, Drive, DriveFuture, DriveKind, DriveSpec, DriveStats, LATENCY_BUCKETS, OpenDrive, OpenError,
    SpecError, create_file, forget_memory,
};
pub use env::ShardEnv;
pub use mailbox::{Mailbox, MailboxGone, MailboxSender, mailbox};
pub use net::{
    Bound, Closer, Incoming, ListenOn, Listener, Peer, Piece, SendsAtOnce, Stream, StreamReader, StreamWriter,
};
pub use nvme::{NVME_HEALTH_BYTES, NVME_IDENTIFY_BYTES, nvme_health, nvme_identify};
pub use process::{
    DefaultSignals, inherited, monotonic_us, raise_descriptor_limit, replace_process, take_memory_without_io,
};
pub use remote::{ShardHandle, ShardStats};
pub use shard::{POLLS_PER_TURN, READY_OPS_PER_POLL};
pub use ublk::{
    UblkControl, UblkDevice, UblkError, UblkFound, UblkOperation, UblkRequest, UblkSlot, UblkSpec, UblkState,
};
pub use uevent::{UEVENT_BYTES_MAX, UeventSocket};
pub use warm::{forget_warm, warm_file};
