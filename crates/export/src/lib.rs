//! Exports: volumes served to clients over NBD and NVMe/TCP, and as local block devices.
//!
//! - [`serve`] accepts clients on a shard's [`runtime::Listener`] and serves them on one shard or
//!   several.
//! - [`Catalog`] lists the exports that exist; [`Exports`] is a catalog in memory.
//! - [`serve_nvme_tcp`] does the same for NVMe hosts; a [`Portal`] says which namespaces each host
//!   is offered.
//! - [`serve_queue`] serves a queue of a block device.
//! - [`ExportState`] is an export as every thread sees it: counters, connections,
//!   [`ExportState::stop`].
//! - [`Limiter`] is the rate limiter of a volume or of a host.
//! - [`Budget`] is the memory that all connections may use together.
//! - [`TlsConfig`] configures encryption. [`Ram`] is a volume in memory.
//!
//! # Invariants
//!
//! 1. A connection belongs to one shard. It has a receiving task, a sending task, and a task for
//!    each request that waits.
//! 2. The memory that a connection may hold is bounded, and so is the memory that all connections
//!    may hold together ([`Budget`]). The server does not read from a connection that is at its
//!    limit.
//! 3. A request that was handed to a volume runs to its end, even if its connection ends first. Its
//!    buffers live as long.
//! 4. A request that is over a rate limit waits before it is handed to a volume. If its connection
//!    ends meanwhile, the request is dropped.
//! 5. A client that misbehaves can end its own connection and no other.

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
