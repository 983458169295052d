//! Waiting for clients, and handing them to shards.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use drive::{Nanos, Tasks, race, within};
use runtime::{Incoming, Listener, ShardEnv, ShardHandle, Stream};

use crate::limits::HANDSHAKE_MAX;
use crate::state::Alarm;
use crate::tls::TlsConfig;

/// Rules of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Encryption; `None` serves in the clear only.
    pub tls: Option<TlsConfig>,
    /// Connections at the same time; more are closed at once. A quarter of them may be newcomers, who have not said yet what they want; a
    /// newcomer above that, or where all places are taken, ends the one that has waited longest. Each holds some 200 KiB when it is idle, inside of TLS some
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

/// How often at most it is said that connections are ended for want of places: whoever opens thousands shall not fill the log as well.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Accepts clients until the listener is closed, and has `run` serve each on one of `shards` in turn; without any, on the shard
/// of the listener. `protocol` is for the log.
pub(crate) async fn accept<F: Future<Output = ()> + 'static>(
    env: ShardEnv,
    listener: Listener,
    shards: Vec<ShardHandle>,
    connections_max: usize,
    protocol: &'static str,
    run: impl Fn(ShardEnv, Stream, Newcomer) -> F + Clone + Send + 'static,
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
        let newcomer = Places::take(&places);
        if let Some(Turned { away, ended }) = places.turned(env.now()) {
            let peer = &incoming.peer;
            tracing::warn!(%peer, limit = connections_max, away, ended, protocol, "too many connections, the last from there");
        }
        let Some(newcomer) = newcomer else { continue };
        let run = run.clone();
        let serve_on = move |env: ShardEnv, incoming: Incoming| async move {
            let stream = Stream::new(&env, incoming);
            run(env, stream, newcomer).await;
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
    newcomers_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    count: usize,
    next: u64,
    /// In the order in which they came.
    newcomers: BTreeMap<u64, Arc<Alarm>>,
    turned: Turned,
    /// When that was said last.
    said: Option<Nanos>,
}

/// Connections that there was no place for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Turned {
    /// They were closed at once.
    away: u64,
    /// They were newcomers, and had to go for others.
    ended: u64,
}

/// A connection's place. Its client is a newcomer until it has said what it wants.
pub(crate) struct Newcomer {
    places: Arc<Places>,
    number: u64,
    /// Rung when the place is wanted for another.
    alarm: Arc<Alarm>,
}

impl Places {
    fn new(max: usize) -> Places {
        Places { max, newcomers_max: (max / 4).max(1), taken: Mutex::default() }
    }

    /// Nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, for which the newcomer that has waited longest may have to go. `None` if there is none.
    fn take(places: &Arc<Places>) -> Option<Newcomer> {
        let mut taken = places.lock();
        let is_full = taken.count >= places.max;
        // Whoever has to go takes its time, and there are not many who do.
        if taken.count >= places.max + places.newcomers_max || (is_full && taken.newcomers.is_empty()) {
            taken.turned.away += 1;
            return None;
        }
        if is_full || taken.newcomers.len() >= places.newcomers_max {
            if let Some((_, alarm)) = taken.newcomers.pop_first() {
                taken.turned.ended += 1;
                alarm.ring();
            }
        }
        let (number, alarm) = (taken.next, Arc::new(Alarm::default()));
        taken.next += 1;
        taken.count += 1;
        taken.newcomers.insert(number, alarm.clone());
        drop(taken);
        Some(Newcomer { places: places.clone(), number, alarm })
    }

    /// Those that there was no place for, if there were any and it is time to say so.
    fn turned(&self, now: Nanos) -> Option<Turned> {
        let mut taken = self.lock();
        let is_time = taken.said.is_none_or(|said| now.saturating_sub(said) >= SAY_EVERY.as_nanos() as Nanos);
        if taken.turned == Turned::default() || !is_time {
            return None;
        }
        taken.said = Some(now);
        Some(std::mem::take(&mut taken.turned))
    }
}

impl Newcomer {
    /// A step of what a client has to do before it is one. `None` if it took too long, or the place is wanted for another.
    pub async fn within<T>(&self, env: &ShardEnv, step: impl Future<Output = T>) -> Option<T> {
        let wanted = poll_fn(|context| {
            self.alarm.listen(context.waker());
            if self.alarm.take() { Poll::Ready(()) } else { Poll::Pending }
        });
        within(env, HANDSHAKE_MAX, race(step, wanted)).await.flatten()
    }

    /// The client keeps its place from now on.
    pub fn stays(&self) {
        self.places.lock().newcomers.remove(&self.number);
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.count -= 1;
        taken.newcomers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that stay, newcomers, and those that have to go.
    fn counts(places: &Places) -> (usize, usize, Turned) {
        let taken = places.lock();
        (taken.count - taken.newcomers.len(), taken.newcomers.len(), taken.turned)
    }

    #[test]
    fn newcomers_keep_nobody_out_and_clients_keep_their_places() {
        let places = Arc::new(Places::new(8));
        let first = Places::take(&places).unwrap();
        first.stays();
        let second = Places::take(&places).unwrap();
        let third = Places::take(&places).unwrap();
        // A quarter of the places: the one that came first goes, and no client.
        let fourth = Places::take(&places).unwrap();
        assert!(second.alarm.take() && !third.alarm.take() && !first.alarm.take());
        drop(second);
        assert_eq!(counts(&places), (1, 2, Turned { away: 0, ended: 1 }));
        third.stays();
        fourth.stays();
        let clients: Vec<Newcomer> = (0..5).map(|_| Places::take(&places).unwrap()).inspect(Newcomer::stays).collect();
        // Only clients are left.
        assert!(Places::take(&places).is_none());
        assert_eq!(counts(&places), (8, 0, Turned { away: 1, ended: 1 }));
        drop(clients);
        assert!(Places::take(&places).is_some());
        assert_eq!(counts(&places), (3, 0, Turned { away: 1, ended: 1 }));
    }

    #[test]
    fn those_that_go_slowly_do_not_add_up() {
        let places = Arc::new(Places::new(8));
        let all: Vec<Newcomer> = std::iter::from_fn(|| Places::take(&places)).take(100).collect();
        assert_eq!(all.len(), 10);
        assert_eq!(places.lock().newcomers.len(), 2);
    }

    #[test]
    fn what_has_no_place_is_told_now_and_then_with_its_number() {
        let places = Arc::new(Places::new(1));
        assert_eq!(places.turned(0), None);
        let held = Places::take(&places).unwrap();
        held.stays();
        let turn_away = || assert!(Places::take(&places).is_none());
        turn_away();
        assert_eq!(places.turned(5), Some(Turned { away: 1, ended: 0 }));
        turn_away();
        turn_away();
        let again = 5 + SAY_EVERY.as_nanos() as Nanos;
        assert_eq!((places.turned(again - 1), places.turned(again)), (None, Some(Turned { away: 2, ended: 0 })));
    }
}
