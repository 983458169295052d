//! NBD on sockets: one connection per client, from the handshake to the last answer.

mod catalog;
mod connection;
mod error;
mod serve;

use runtime::{Listener, ShardEnv, ShardHandle};

pub use catalog::{Catalog, Exports};

use crate::server::{ServerConfig, accept};

/// Accepts NBD clients until the listener is closed. Clients are served by `shards` in turn, or by
/// the listener's shard if there are none. `catalog` is called on the serving shard, once per
/// connection.
///
/// Connections outlive this: [`crate::ExportState::stop`] ends them.
pub async fn serve<C: Catalog>(
    env: ShardEnv,
    listener: Listener,
    shards: Vec<ShardHandle>,
    config: ServerConfig,
    catalog: impl Fn() -> C + Clone + Send + 'static,
) {
    let ServerConfig { tls, connections_max, budget } = config;
    let run = move |env, stream, new_connection| {
        connection::run(env, stream, new_connection, catalog(), tls.clone(), budget.clone())
    };
    accept(env, listener, shards, connections_max, "NBD", run).await;
}
