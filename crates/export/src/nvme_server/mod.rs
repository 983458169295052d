//! NVMe/TCP: hosts on sockets, controllers, and their namespaces.
//!
//! - [`Portal`] is the offer at one address, as every thread sees it: namespaces of subsystems, and
//!   the controllers that hosts have there.
//! - [`SharedNamespace`] is the state that all addresses share of a namespace: reservations and
//!   running commands.
//! - [`HostSecrets`] are the secrets of a subsystem's hosts. If a host has one, its queues take no
//!   other command before it has authenticated.
//! - [`SubsystemHistory`] is the history of a subsystem, for the Persistent Event Log.
//! - A connection is one queue and lives on one shard. Its Connect command makes it an admin queue
//!   or an I/O queue. An admin queue owns its controller; I/O queues know it as an
//!   [`association::Association`].

mod abort;
mod admin;
mod asking;
mod association;
mod authentication;
mod connection;
mod execution;
mod fused;
mod gate;
mod history;
mod io;
mod portal;
mod queue;
mod secrets;
mod shared;

use std::sync::Arc;

use drive::Block;
use runtime::{Listener, ShardEnv, ShardHandle};

pub use history::{SavedHistory, SubsystemHistory};
pub use portal::{HostConnections, Hosts, NamespaceOffer, Opener, Portal};
pub use secrets::{HostSecret, HostSecrets};
pub use shared::{Keep, Keeping, SharedNamespace};

use crate::budget::Budget;
use crate::server::accept;

/// Accepts hosts until the listener is closed. Their queues are served by `shards` in turn, or by
/// the listener's shard if there are none. Connections beyond `connections_max` are closed at once,
/// see [`crate::ServerConfig::connections_max`]. Memory for requests in flight comes from `budget`.
///
/// Queues outlive this: [`Portal::close`] ends them.
pub async fn serve_nvme_tcp<B: Block + 'static>(
    env: ShardEnv,
    listener: Listener,
    shards: Vec<ShardHandle>,
    connections_max: usize,
    budget: Arc<Budget>,
    portal: Portal<B>,
) {
    let run =
        move |env, stream, new_connection| connection::run(env, stream, new_connection, portal.clone(), budget.clone());
    accept(env, listener, shards, connections_max, "NVMe/TCP", run).await;
}
