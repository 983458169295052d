//! NVMe/TCP hosts: the layer above the protocol of the crate `nvme` and below a drive.
//!
//! - [`Network`]: the environment: time and tasks as in `drive`, and connections. [`tokio`]
//!   implements it, and so do `runtime`'s shards (feature `runtime`).
//! - [`Controller`]: an admin queue and I/O queues over one connection each, kept alive until the
//!   first of them ends.
//! - [`Namespace`]: a block device of a subsystem, over one or several [`Path`](PathStatus)s. It
//!   survives controllers: a path connects again, and unanswered commands are sent again.
//! - [`this_host`]: the identity of this machine.
//! - [`discover`]: the subsystems that an address offers.
//!
//! # What is promised
//! 1. A command is answered to its caller once, with the answer of the controller, or with
//!    [`IoError::Gone`] when all paths are lost for longer than [`Options::loss_timeout`].
//! 2. A write that was answered was executed by the controller as a whole, at least once, and none
//!    of its copies is executed later. A command that was not answered before its connection ended
//!    is sent again. That is harmless for a block device: reads, writes, zeroes, deallocations,
//!    flushes and comparisons do the same when they are done twice, unless a command that was sent
//!    after the answer comes between. So a command that changes data is sent again only when the
//!    first controller cannot execute it any more. Either the controller has ended the connection
//!    itself, or its keep alive timer has expired, even if commands were still on their way to it
//!    ([`quiet_time`]). A target may still execute commands of a connection that it has ended;
//!    their order is up to the target. Purlin's target executes overlapping writes in the order of
//!    their arrival.
//! 3. Commands in flight at the same time have no order. A command that is sent after an answer
//!    comes after the answered one.
//! 4. No command goes to another namespace. After each connect, and after each event that reports a
//!    change, the namespace is compared with the first one: by EUI-64, NGUID and UUID, or by size
//!    and serial number if it has none of them; and by block size.
//! 5. Data are durable after a flush, or when written with FUA. If a target loses power and its
//!    cache, this host does not notice when the target comes back. A flush covers writes through
//!    the connection to the same incarnation of the target.

#![forbid(unsafe_code)]

mod authentication;
mod change_notifications;
mod connection;
mod controller;
mod discover;
mod error;
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
mod termination;
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
