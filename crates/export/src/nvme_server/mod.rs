//! NVMe/TCP: hosts on sockets, controllers, and their namespaces.
//!
//! - [`Portal`] is what is offered at one address, as every thread sees it: namespaces of
//!   subsystems, and the controllers that hosts have there.
//! - [`SharedNamespace`] is what all addresses have in common of a namespace: reservations, and
//!   what runs there.
//! - [`HostSecrets`] are those of a subsystem's hosts; a queue of a host that has one takes nothing
//!   else before it has authenticated.
//! - [`SubsystemHistory`] is what has happened to a subsystem, for the Persistent Event Log.
//! - A connection is one queue. It begins as nothing, becomes an admin queue or an I/O queue by its
//!   Connect command, and lives on one shard. An admin queue owns its controller; I/O queues know
//!   it as an [`association::Association`].

mod abort;
mod admin;
mod asking;
mod association;
mod authentication;
mod connection;
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

/// Accepts hosts until the listener is closed, and has their queues served by `shards` in turn;
/// without any, by the shard of the listener. More than `connections_max` at the same time are
/// closed at once, see [`crate::ServerConfig::connections_max`]. Memory for requests in flight
/// comes from `budget`.
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
    let run = move |env, stream, newcomer| connection::run(env, stream, newcomer, portal.clone(), budget.clone());
    accept(env, listener, shards, connections_max, "NVMe/TCP", run).await;
}
