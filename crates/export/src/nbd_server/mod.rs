//! NBD on sockets: one connection each, from the handshake to the last answer.

mod catalog;
mod connection;
mod error;
mod serve;

use runtime::{Listener, ShardEnv, ShardHandle};

pub use catalog::{Catalog, Exports};

use crate::server::{ServerConfig, accept};

/// Accepts NBD clients until the listener is closed, and has them served by `shards` in turn;
/// without any, by the shard of the listener. `catalog` is asked on the serving shard, once for
/// every connection.
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
    let run =
        move |env, stream, newcomer| connection::run(env, stream, newcomer, catalog(), tls.clone(), budget.clone());
    accept(env, listener, shards, connections_max, "NBD", run).await;
}
