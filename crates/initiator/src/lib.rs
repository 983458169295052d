//! NVMe/TCP hosts: what is above the protocol of the crate `nvme` and below a drive.
//!
//! - [`Network`]: what it runs on: time and tasks as `drive` has them, and connections. [`tokio`]
//!   is one, `runtime`'s shards are another (feature `runtime`).
//! - [`Controller`]: an admin queue and I/O queues over one connection each, kept alive, until the
//!   first of them ends.
//! - [`Namespace`]: a block device of a subsystem, over one or several [`Path`](PathStatus)s. It
//!   survives controllers: a path connects again, and commands that were not answered are sent
//!   again.
//! - [`this_host`]: who this machine is.
//! - [`discover`]: which subsystems an address offers.
//!
//! # What is promised
//! 1. A command is answered to its caller once, with what the controller said of it, or with
//!    [`IoError::Gone`] when all paths are lost for longer than [`Options::loss_timeout`].
//! 2. A write that was answered was executed by the controller, whole, at least once, and none of
//!    its copies is executed later. A command that was not answered before its connection ended is
//!    sent again. That is harmless for a block device: reads, writes, zeroes, deallocations,
//!    flushes and comparisons do the same when they are done twice, as long as nothing that was
//!    sent after the answer comes between. So, a command that changes something is sent again only
//!    when the controller that had it cannot execute it any more: it has ended the connection
//!    itself, or its keep alive timer has run out, whatever was still on its way to it
//!    ([`quiet_time`]). What a target still executes on behalf of a connection that it has ended is
//!    its own affair; Purlin's executes overlapping writes in the order in which they arrived.
//! 3. Commands in flight at the same time have no order. What is sent after an answer comes after
//!    what was answered.
//! 4. Nothing is sent to another namespace: after each connect, and after each event that tells of
//!    a change, it is compared with the first one: by EUI-64, NGUID and UUID, or by size and serial
//!    number where it has none of them; and by block size.
//! 5. Durable is what was flushed, or written with FUA. If a target loses power and forgets what it
//!    had in its cache, nobody notices when it comes back; a flush covers what was written through
//!    the connection to the same incarnation of the target.

#![forbid(unsafe_code)]

mod authentication;
mod connection;
mod controller;
mod discover;
mod error;
mod fate;
mod gate;
mod identity;
mod io;
mod known;
mod namespace;
mod network;
mod options;
mod outbox;
mod path;
mod queue;
#[cfg(target_os = "linux")]
mod session;
#[cfg(not(target_os = "linux"))]
#[path = "no_session.rs"]
mod session;
#[cfg(feature = "runtime")]
mod shard;
mod this_host;
#[cfg(feature = "tokio")]
pub mod tokio;
mod wire;

pub use controller::{Controller, Purpose};
pub use discover::{Discovered, discover};
pub use error::{ConnectError, IoError, Lost};
pub use known::Known;
pub use namespace::{Namespace, Selection};
pub use network::{Address, AddressError, DEFAULT_PORT, Network, Reader, Writer};
pub use options::{Options, quiet_time};
pub use path::{PathState, PathStatus};
pub use queue::{Call, Payload, Reply};
pub use this_host::{ThisHostError, parse_uuid, this_host};
