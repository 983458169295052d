//! An export and its connections as every thread may see them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::SystemTime;

use nvme::Access;
use nvme::target::AccessState;

use crate::counters::{Counters, LiveCounters};
use crate::limit::{Limit, Limiter, Limits, Waits};

/// A volume as it is exported. Shared by all shards; every handle is the same export.
#[derive(Debug)]
pub struct ExportState {
    name: String,
    description: String,
    read_only: bool,
    /// The rate limiter that all exports of the volume share.
    limiter: Arc<Limiter>,
    /// How NVMe hosts reach it: the code of the state in the low byte. The bits above count the
    /// states.
    access: AtomicU64,
    stopping: AtomicBool,
    handed_over: AtomicBool,
    next_id: AtomicU64,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    live: BTreeMap<u64, Arc<ConnectionState>>,
    /// Totals of connections that have ended.
    past: Counters,
    /// The same, by NVMe host.
    past_hosts: BTreeMap<String, Counters>,
    /// Limiters of NVMe hosts that have a limit, by name.
    limited_hosts: BTreeMap<String, Arc<Limiter>>,
    /// Woken when the last connection ends.
    waiting: Vec<Waker>,
}

/// The part of a connection that other threads may see.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    id: u64,
    peer: String,
    host: Option<String>,
    secure: bool,
    since: SystemTime,
    cut: AtomicBool,
    revoked: AtomicBool,
    alarm: Arc<Alarm>,
    pub limits: Limits,
    pub counters: LiveCounters,
}

/// Wakes the task of a connection, which sleeps in a receive, from any thread.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A connection as listed by [`ExportState::connections`].
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Number of the connection, unique within its export.
    pub id: u64,
    /// The client's address, or the name of a Unix socket and the process behind it.
    pub peer: String,
    /// The connection uses TLS.
    pub secure: bool,
    /// When it entered the transmission phase.
    pub since: SystemTime,
    /// Counters of the connection.
    pub counters: Counters,
}

/// How an NVMe host has used an export, on all its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Connected I/O queues that have used it.
    pub queues: u32,
    /// Counters since the export began.
    pub counters: Counters,
}

/// Most hosts whose counters an export keeps after they have gone: a host may choose any name.
const PAST_HOSTS_MAX: usize = 1024;

/// Position of the count in [`ExportState::access`].
const ACCESS_SHIFT: u32 = 8;

/// Nothing panics while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExportState {
    /// A new export without connections.
    pub fn new(name: impl Into<String>, description: impl Into<String>, read_only: bool) -> Arc<ExportState> {
        ExportState::limited(name, description, read_only, Arc::default())
    }

    /// As [`ExportState::new`], with the rate limiter that all exports of the volume share.
    pub fn limited(
        name: impl Into<String>,
        description: impl Into<String>,
        read_only: bool,
        limiter: Arc<Limiter>,
    ) -> Arc<ExportState> {
        Arc::new(ExportState {
            name: name.into(),
            description: description.into(),
            read_only,
            limiter,
            access: AtomicU64::new(1 << ACCESS_SHIFT | u64::from(Access::Optimized.code())),
            stopping: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            connections: Mutex::default(),
        })
    }

    /// The name by which clients choose it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Text for people.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether every change is refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Sets how NVMe hosts reach the export. It applies to new commands and to those that have not
    /// begun. [`crate::Portal::access_changed`] tells hosts.
    pub fn set_access(&self, state: Access) {
        let changed = |word: u64| {
            let is_other = word as u8 != state.code();
            is_other.then(|| ((word >> ACCESS_SHIFT) + 1) << ACCESS_SHIFT | u64::from(state.code()))
        };
        // Fails if the state is the same already.
        let _ = self.access.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    }

    /// How NVMe hosts reach it: Base 2.0, clause 8.1.
    #[inline]
    pub fn access(&self) -> AccessState {
        let word = self.access.load(Ordering::Relaxed);
        let state = Access::of(word as u8).expect("only codes of states are stored");
        AccessState { state, count: word >> ACCESS_SHIFT }
    }

    /// The sum over all connections, live and ended.
    pub fn counters(&self) -> Counters {
        let connections = lock(&self.connections);
        let mut sum = connections.past.clone();
        for connection in connections.live.values() {
            sum.add(&connection.counters.snapshot());
        }
        sum
    }

    /// The live connections, oldest first.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        lock(&self.connections).live.values().map(|connection| connection.info()).collect()
    }

    /// How NVMe hosts use the export, by name. If there were many hosts, some that have gone may be
    /// forgotten.
    pub fn hosts(&self) -> BTreeMap<String, HostUse> {
        let connections = lock(&self.connections);
        let past = connections.past_hosts.iter();
        let mut hosts: BTreeMap<String, HostUse> =
            past.map(|(host, counters)| (host.clone(), HostUse { queues: 0, counters: counters.clone() })).collect();
        for connection in connections.live.values() {
            let Some(host) = &connection.host else { continue };
            let usage = hosts.entry(host.clone()).or_default();
            usage.queues += 1;
            usage.counters.add(&connection.counters.snapshot());
        }
        hosts
    }

    /// Limits the rate of an NVMe host on all its queues; `None` removes the limit. It takes effect
    /// at once, for hosts that are connected and for those that come later.
    pub fn limit_host(&self, host: &str, limit: Option<Limit>) {
        let limiter = {
            let mut connections = lock(&self.connections);
            let limiter = connections.limiter(host);
            match limit {
                Some(_) => connections.limited_hosts.insert(host.to_owned(), limiter.clone()),
                None => connections.limited_hosts.remove(host),
            };
            limiter
        };
        limiter.set(limit);
    }

    /// The NVMe hosts that are limited, and how their requests have waited.
    pub fn limited_hosts(&self) -> BTreeMap<String, (Limit, Waits)> {
        let connections = lock(&self.connections);
        let limited = connections.limited_hosts.iter();
        limited.filter_map(|(host, limiter)| Some((host.clone(), (limiter.limit()?, limiter.waits())))).collect()
    }

    /// Lets all requests of its connections, now and later, pass their rate limit at once: the
    /// export is about to end.
    pub fn hurry(&self) {
        let connections: Vec<_> = lock(&self.connections).live.values().cloned().collect();
        connections.iter().for_each(|connection| connection.limits.hurry());
    }

    /// Ends the access of NVMe hosts that are not allowed any more. Commands in flight are
    /// answered, later commands fail.
    pub(crate) fn revoke(&self, is_allowed: impl Fn(&str) -> bool) {
        let connections: Vec<_> = lock(&self.connections).live.values().cloned().collect();
        for connection in connections {
            if connection.host.as_ref().is_some_and(|host| !is_allowed(host)) {
                connection.revoked.store(true, Ordering::SeqCst);
                connection.limits.hurry();
                connection.alarm.ring();
            }
        }
    }

    /// Ends one connection at once. Its requests in flight run to their end, and their answers are
    /// not sent. Returns whether it existed.
    pub fn cut(&self, id: u64) -> bool {
        let connection = lock(&self.connections).live.get(&id).cloned();
        if let Some(connection) = &connection {
            connection.cut.store(true, Ordering::Release);
            connection.alarm.ring();
        }
        connection.is_some()
    }

    /// Stops the export for good. New connections and requests are refused with "shutting down".
    /// Requests in flight are answered, those that waited for a rate limit among them. Then the
    /// connections are closed. [`ExportState::stopped`] waits for the end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let connections: Vec<_> = lock(&self.connections).live.values().cloned().collect();
        for connection in connections {
            connection.limits.hurry();
            connection.alarm.ring();
        }
    }

    /// As [`ExportState::stop`], for an export that another server takes over at once: requests
    /// that come now get no answer. Clients that reconnect send them again, whereas "shutting down"
    /// would be an error to them.
    pub fn hand_over(&self) {
        self.handed_over.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Whether [`ExportState::hand_over`] was called.
    #[inline]
    pub(crate) fn handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }

    /// Whether [`ExportState::stop`] was called.
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Returns when the export has no connection. After [`ExportState::stop`] none will come. May
    /// be awaited on any thread.
    pub async fn stopped(&self) {
        std::future::poll_fn(|context| {
            let mut connections = lock(&self.connections);
            if connections.live.is_empty() {
                return std::task::Poll::Ready(());
            }
            if !connections.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                connections.waiting.push(context.waker().clone());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    /// Adds a connection whose task `alarm` wakes. An NVMe host also gives its name. `None` if the
    /// export is being stopped.
    pub(crate) fn enter(
        &self,
        peer: String,
        host: Option<String>,
        secure: bool,
        alarm: Arc<Alarm>,
    ) -> Option<Arc<ConnectionState>> {
        let mut connections = lock(&self.connections);
        // Checked under the lock: `stop` either finds the connection in the list, or its effect is
        // seen here.
        if self.stopping() {
            return None;
        }
        let (volume, owner) = (self.limiter.clone(), Arc::default());
        let limits =
            Limits { volume, host: host.as_ref().map_or_else(Arc::default, |host| connections.limiter(host)), owner };
        let connection = Arc::new(ConnectionState {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            peer,
            host,
            secure,
            since: SystemTime::now(),
            cut: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            alarm,
            limits,
            counters: LiveCounters::default(),
        });
        connections.live.insert(connection.id, connection.clone());
        Some(connection)
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, connection: &ConnectionState) {
        let waiting = {
            let mut connections = lock(&self.connections);
            connections.live.remove(&connection.id);
            let counters = connection.counters.snapshot();
            connections.past.add(&counters);
            if let Some(host) = &connection.host {
                let known = &mut connections.past_hosts;
                if known.len() >= PAST_HOSTS_MAX && !known.contains_key(host) {
                    known.pop_first();
                }
                known.entry(host.clone()).or_default().add(&counters);
            }
            if connections.live.is_empty() { std::mem::take(&mut connections.waiting) } else { Vec::new() }
        };
        for waker in waiting {
            waker.wake();
        }
    }
}

impl Connections {
    /// The rate limiter of an NVMe host, shared by all its queues.
    fn limiter(&self, host: &str) -> Arc<Limiter> {
        let is_its = |connection: &&Arc<ConnectionState>| connection.host.as_deref() == Some(host);
        let known = || Some(self.live.values().find(is_its)?.limits.host.clone());
        self.limited_hosts.get(host).cloned().or_else(known).unwrap_or_default()
    }
}

impl Alarm {
    /// Registers the task to wake. Call it before looking at the state that the alarm announces.
    pub fn listen(&self, waker: &Waker) {
        let mut slot = lock(&self.waker);
        if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    /// Wakes the task that listens.
    pub fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it was rung since the last call.
    pub fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst)
    }
}

impl ConnectionState {
    /// Whether the connection shall end at once.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Whether its host may not use the export any more.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::SeqCst)
    }

    /// Registers the task to wake when the export stops or the connection is cut. Call it before
    /// looking at either.
    pub fn listen(&self, waker: &Waker) {
        self.alarm.listen(waker);
    }

    fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            id: self.id,
            peer: self.peer.clone(),
            secure: self.secure,
            since: self.since,
            counters: self.counters.snapshot(),
        }
    }
}
