//! Exports: NBD and NVMe/TCP on sockets, and local block devices, speaking to volumes.
//!
//! - [`serve`] accepts clients on a shard's [`runtime::Listener`] and has them served, by one shard
//!   or by several.
//! - [`Catalog`] says which exports there are; [`Exports`] is one in memory.
//! - [`serve_nvme_tcp`] does the same with NVMe hosts; a [`Portal`] says what is offered to whom.
//! - [`serve_queue`] serves a queue of a block device.
//! - [`ExportState`] is an export as every thread sees it: counters, connections,
//!   [`ExportState::stop`].
//! - [`Limiter`] says how fast a volume, or a host, may be used.
//! - [`Budget`] is the memory that all connections may use together.
//! - [`TlsConfig`] encrypts. [`Ram`] is a volume in memory.
//!
//! # Invariants
//!
//! 1. A connection belongs to one shard. It has a receiving task, a sending task, and a task for
//!    each request that waits.
//! 2. What a connection may hold is bounded, and so is what all of them may hold together
//!    ([`Budget`]). A connection that is at its limit is not read from.
//! 3. A request that was handed to a volume runs to its end, whatever happens to its connection.
//!    Its buffers live as long.
//! 4. A request that is over a limit waits before it is handed to a volume. It ends with its
//!    connection.
//! 5. Whatever a client sends ends at most its own connection.

#![forbid(unsafe_code)]

mod budget;
mod counters;
mod limit;
mod limits;
mod link;
mod log_limiter;
mod nbd_server;
mod nvme_server;
mod pace;
mod ram;
mod server;
mod state;
mod tls;
mod ublk;
mod window;
mod wire;

pub use budget::{Budget, BudgetStats};
pub use counters::{Counters, KINDS, Kind, LATENCY_BUCKETS, Latencies};
pub use limit::{Limit, Limiter, Waits};
pub use log_limiter::LogLimiter;
pub use nbd::{Listed, Refusal};
pub use nbd_server::{Catalog, Exports, serve};
pub use nvme_server::{
    HostConnections, HostSecret, HostSecrets, Hosts, Keep, Keeping, NamespaceOffer, Opener, Portal, SavedHistory,
    SharedNamespace, SubsystemHistory, serve_nvme_tcp,
};
pub use ram::Ram;
pub use server::ServerConfig;
pub use state::{ConnectionInfo, ExportState, HostUse};
pub use tls::{TlsConfig, TlsConfigError};
pub use ublk::serve_queue;
