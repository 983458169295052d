//! Accepts clients and hands them to shards.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use drive::{Nanos, Tasks, race, within};
use runtime::{Incoming, Listener, ShardEnv, ShardHandle, Stream};

use crate::budget::Budget;
use crate::limits::{BUDGET_BYTES, HANDSHAKE_MAX};
use crate::log_limiter::LogLimiter;
use crate::state::Alarm;
use crate::tls::TlsConfig;

/// Rules of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Encryption; `None` serves in the clear only.
    pub tls: Option<TlsConfig>,
    /// Connections at the same time; more are closed at once. A quarter of them may be
    /// *unidentified*: the client has not said yet what it wants. Another quarter may be clients
    /// that still have to authenticate. One more in either quarter, or a new one when all places
    /// are taken, ends the one that has waited longest. Each connection holds about 200 KiB when it
    /// is idle, inside of TLS about 100 KiB more, and up to 64 MiB of payload when it is busy.
    pub connections_max: usize,
    /// Memory for requests in flight, shared by all servers with the same budget.
    pub budget: Arc<Budget>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig { tls: None, connections_max: 1024, budget: Budget::new(BUDGET_BYTES) }
    }
}

/// Pause after a failed accept: the causes (too many open files, no memory) do not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of a peer, without its port: each connection of a host has another port.
pub(crate) fn address_of(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address)
}

/// Accepts clients until the listener is closed. Each client is served by `run` on one of `shards`
/// in turn, or on the listener's shard if there are none. `protocol` is for the log.
pub(crate) async fn accept<F: Future<Output = ()> + 'static>(
    env: ShardEnv,
    listener: Listener,
    shards: Vec<ShardHandle>,
    connections_max: usize,
    protocol: &'static str,
    run: impl Fn(ShardEnv, Stream, NewConnection) -> F + Clone + Send + 'static,
) {
    let places = Arc::new(Places::new(connections_max));
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
        let (new_connection, too_many) = Places::take(&places, env.now());
        if let Some(count) = too_many {
            let peer = &incoming.peer;
            tracing::warn!(%peer, limit = connections_max, count, protocol, "too many connections, the last from there");
        }
        let Some(new_connection) = new_connection else { continue };
        let run = run.clone();
        let serve_on = move |env: ShardEnv, incoming: Incoming| async move {
            let stream = Stream::new(&env, incoming);
            run(env, stream, new_connection).await;
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

/// The connections that a server may have.
struct Places {
    max: usize,
    /// Most connections that wait in one list of [`Taken::waiting`].
    waiting_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    count: usize,
    next: u64,
    /// Connections that may be ended, oldest first: clients that have said nothing, and clients
    /// that still have to authenticate.
    waiting: [BTreeMap<u64, Arc<Alarm>>; 2],
    /// Limits the messages about connections that were ended or refused.
    too_many: LogLimiter<()>,
}

/// A connection's place. Its client is unidentified until it has said what it wants, and has
/// authenticated if it has to.
pub(crate) struct NewConnection {
    places: Arc<Places>,
    number: u64,
    /// Rung when the place is needed for another connection.
    alarm: Arc<Alarm>,
}

impl Places {
    fn new(max: usize) -> Places {
        Places { max, waiting_max: (max / 4).max(1), taken: Mutex::default() }
    }

    /// Nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, for which the client that has waited longest may have to go; `None` if there
    /// is none. The second value is the number of connections that were ended or refused, if that
    /// is to be logged.
    fn take(places: &Arc<Places>, now: Nanos) -> (Option<NewConnection>, Option<u64>) {
        let mut taken = places.lock();
        let is_full = taken.count >= places.max;
        // A client that has to go may take its time, so the places may be exceeded by a few. Some
        // clients stay after all, since they had just identified themselves or authenticated.
        let is_over = taken.count >= places.max + places.waiting_max;
        if is_over || is_full && taken.waiting.iter().all(BTreeMap::is_empty) {
            return (None, taken.too_many.happened((), now));
        }
        let goes = is_full || taken.waiting[0].len() >= places.waiting_max;
        if goes && let Some((_, alarm)) = taken.waiting.iter_mut().find_map(BTreeMap::pop_first) {
            alarm.ring();
        }
        let too_many = if goes { taken.too_many.happened((), now) } else { None };
        let (number, alarm) = (taken.next, Arc::new(Alarm::default()));
        taken.next += 1;
        taken.count += 1;
        taken.waiting[0].insert(number, alarm.clone());
        drop(taken);
        (Some(NewConnection { places: places.clone(), number, alarm }), too_many)
    }
}

impl Taken {
    fn forget(&mut self, number: u64) {
        for waiting in &mut self.waiting {
            waiting.remove(&number);
        }
    }
}

impl NewConnection {
    /// Runs a step of the client's identification. `None` if it took too long, or if the place is
    /// needed for another connection.
    pub async fn within<T>(&self, env: &ShardEnv, step: impl Future<Output = T>) -> Option<T> {
        let wanted = poll_fn(|context| {
            self.alarm.listen(context.waker());
            if self.alarm.take() { Poll::Ready(()) } else { Poll::Pending }
        });
        within(env, HANDSHAKE_MAX, race(step, wanted)).await.flatten()
    }

    /// The client has said what it wants, but still has to authenticate. When many do so at once,
    /// after a restart, unidentified connections do not push them out.
    pub fn proves(&self) {
        let mut taken = self.places.lock();
        let Some(alarm) = taken.waiting[0].remove(&self.number) else { return };
        taken.waiting[1].insert(self.number, alarm);
        if taken.waiting[1].len() > self.places.waiting_max {
            let (_, alarm) = taken.waiting[1].pop_first().expect("there is one");
            alarm.ring();
        }
    }

    /// The client keeps its place from now on.
    pub fn stays(&self) {
        let mut taken = self.places.lock();
        taken.forget(self.number);
    }
}

impl Drop for NewConnection {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.count -= 1;
        taken.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>) -> Option<NewConnection> {
        Places::take(places, 0).0
    }

    fn taken(places: &Arc<Places>, count: usize) -> Vec<NewConnection> {
        (0..count).map(|_| take(places).unwrap()).collect()
    }

    /// Clients that stay, and those that may have to go.
    fn counts(places: &Places) -> (usize, usize) {
        let taken = places.lock();
        let waiting = taken.waiting.iter().map(BTreeMap::len).sum();
        (taken.count - waiting, waiting)
    }

    #[test]
    fn newcomers_keep_nobody_out_and_clients_keep_their_places() {
        let places = Arc::new(Places::new(8));
        let first = take(&places).unwrap();
        first.stays();
        let second = take(&places).unwrap();
        let third = take(&places).unwrap();
        // A quarter of the places: the unidentified client that came first goes, and no other.
        let fourth = take(&places).unwrap();
        assert!(second.alarm.take() && !third.alarm.take() && !first.alarm.take());
        drop(second);
        assert_eq!(counts(&places), (1, 2));
        third.stays();
        fourth.stays();
        let clients = taken(&places, 5);
        clients.iter().for_each(NewConnection::stays);
        // Only clients that stay are left.
        assert!(take(&places).is_none());
        assert_eq!(counts(&places), (8, 0));
        drop(clients);
        assert!(take(&places).is_some());
        assert_eq!(counts(&places), (3, 0));
    }

    #[test]
    fn those_that_go_slowly_do_not_add_up() {
        let places = Arc::new(Places::new(8));
        let all: Vec<NewConnection> = std::iter::from_fn(|| take(&places)).take(100).collect();
        assert_eq!((all.len(), places.lock().waiting[0].len()), (10, 2));
    }

    #[test]
    fn newcomers_do_not_disturb_those_who_prove_who_they_are() {
        let places = Arc::new(Places::new(8));
        let proving = taken(&places, 2);
        proving.iter().for_each(NewConnection::proves);
        let new_connections = taken(&places, 4);
        assert!(proving.iter().all(|client| !client.alarm.take()));
        assert!(new_connections[0].alarm.take() && new_connections[1].alarm.take());
        // Clients that authenticate get no more than a quarter either: their identity is not proven
        // yet.
        new_connections[3].proves();
        assert!(proving[0].alarm.take() && !proving[1].alarm.take());
        drop(new_connections);
        // If other clients have all places, clients that authenticate have to go, too.
        let clients = taken(&places, 1);
        clients[0].stays();
        let others: Vec<NewConnection> = (0..5).map(|_| take(&places).unwrap()).inspect(NewConnection::stays).collect();
        let last = take(&places).unwrap();
        assert!(proving[1].alarm.take() && !last.alarm.take());
        drop(others);
    }
}
