//! Waiting for clients, and handing them to shards.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drive::Env;
use runtime::{Incoming, Listener, ShardEnv, ShardHandle, Stream};

use crate::tls::TlsConfig;

/// Rules of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Encryption; `None` serves in the clear only.
    pub tls: Option<TlsConfig>,
    /// Connections at the same time; more are closed at once. Each holds some 200 KiB when it is idle, inside of TLS some
    /// 100 KiB more, and up to 64 MiB of payload when it is not.
    pub connections_max: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig { tls: None, connections_max: 1024 }
    }
}

/// Pause after a failed accept: what fails it (too many open files, no memory) does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the listener is closed, and has `run` serve each on one of `shards` in turn; without any, on the shard
/// of the listener. `protocol` is for the log.
pub(crate) async fn accept<F: Future<Output = ()> + 'static>(
    env: ShardEnv,
    listener: Listener,
    shards: Vec<ShardHandle>,
    connections_max: usize,
    protocol: &'static str,
    run: impl Fn(ShardEnv, Stream) -> F + Clone + Send + 'static,
) {
    let connections = Arc::new(AtomicUsize::new(0));
    let mut turn = 0;
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return,
            Err(error) => {
                tracing::warn!(%error, protocol, "cannot accept a connection");
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = Place::take(&connections, connections_max) else {
            tracing::warn!(peer = %incoming.peer, limit = connections_max, protocol, "too many connections");
            continue;
        };
        let run = run.clone();
        let serve_on = move |env: ShardEnv, incoming: Incoming| async move {
            let stream = Stream::new(&env, incoming);
            run(env, stream).await;
            drop(place);
        };
        if shards.is_empty() {
            env.spawn(serve_on(env.clone(), incoming));
            continue;
        }
        let shard = &shards[turn % shards.len()];
        turn += 1;
        if shard.spawn(move || serve_on(ShardEnv::current(), incoming)).is_err() {
            tracing::warn!(shard = shard.index(), protocol, "a connection met a shard that has stopped");
        }
    }
}

/// One of the connections that a server may have.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(connections: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let place = Place(connections.clone());
        if connections.fetch_add(1, Ordering::Relaxed) < max { Some(place) } else { None }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
