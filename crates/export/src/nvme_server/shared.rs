//! State of a namespace that all addresses and shards share: its reservations and its running
//! commands.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use drive::Env;
use nvme::Nqn;
use nvme::Status;
use nvme::target::{Group, Host, HostId, Notice, Permit, Range, ReservationRequest, Reservations};

use super::gate::{Gate, Hold, Inside, Way};

/// Makes the state of a namespace's reservations that survives a loss of power durable: all of them
/// if they persist, otherwise `None`. The error is for the log.
pub type Keep = Box<dyn Fn(Option<Reservations>) -> Keeping + Send + Sync>;

/// The future that [`Keep`] returns.
pub type Keeping = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Receives the hosts to notify, with their notices.
type Listener = Arc<dyn Fn(&[(HostId, Notice)]) + Send + Sync>;

/// The state of a namespace that all its addresses share. There must be one for each volume, even
/// if the volume is offered several times.
pub struct SharedNamespace {
    gate: Arc<Gate>,
    reserved: Mutex<Reserved>,
    keep: Keep,
}

struct Reserved {
    reservations: Reservations,
    /// Names of registered hosts that were seen since this was made.
    names: BTreeMap<HostId, Nqn>,
    /// A change is being saved; other changes wait.
    changing: bool,
    waiting: Vec<Waker>,
    listeners: BTreeMap<u64, Listener>,
    next_listener: u64,
}

/// A subscription to changes. Dropping it ends the subscription.
pub(super) struct Listening {
    shared: Arc<SharedNamespace>,
    number: u64,
}

/// A queue's use of a namespace.
pub(super) struct Use {
    shared: Arc<SharedNamespace>,
    host: Host,
    way: Way,
    /// The host's permissions, and the version at which they were looked up.
    permit: Cell<(u64, Permit)>,
}

/// The right to change reservations, one at a time.
struct Turn<'a>(&'a SharedNamespace);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut reserved = self.0.lock();
            reserved.changing = false;
            std::mem::take(&mut reserved.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl SharedNamespace {
    /// A namespace with its saved reservations, which `keep` saves from now on.
    pub fn new(reservations: Reservations, keep: Keep) -> Arc<SharedNamespace> {
        let (names, listeners) = (BTreeMap::new(), BTreeMap::new());
        let reserved =
            Reserved { reservations, names, changing: false, waiting: Vec::new(), listeners, next_listener: 0 };
        let shared = SharedNamespace { gate: Arc::default(), reserved: Mutex::new(reserved), keep };
        // Version 0 means: permissions were never looked up.
        shared.gate.renew();
        Arc::new(shared)
    }

    fn lock(&self) -> MutexGuard<'_, Reserved> {
        // Nothing panics while the lock is held.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its reservations.
    pub fn reservations(&self) -> Reservations {
        self.lock().reservations.clone()
    }

    /// The name of a registered host; `None` if it was not seen since the daemon started.
    pub fn name_of(&self, host: &HostId) -> Option<Nqn> {
        self.lock().names.get(host).cloned()
    }

    async fn turn(&self) -> Turn<'_> {
        poll_fn(|context| {
            let mut reserved = self.lock();
            if !reserved.changing {
                reserved.changing = true;
                return Poll::Ready(Turn(self));
            }
            reserved.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Executes a host's request. Changes that have to survive a loss of power are durable before
    /// this returns. If it was asked for, the commands in flight of preempted hosts have ended.
    pub(super) async fn change(&self, host: &Host, request: &ReservationRequest) -> Result<(), Status> {
        let told = {
            let _turn = self.turn().await;
            let mut next = self.reservations();
            let told = next.apply(&host.id, request)?;
            self.install(next).await?;
            self.lock().know(host);
            told
        };
        let listeners: Vec<Listener> =
            if told.is_empty() { Vec::new() } else { self.lock().listeners.values().cloned().collect() };
        listeners.iter().for_each(|listener| listener(&told));
        if matches!(request, ReservationRequest::Preempt { abort: true, .. }) {
            self.gate.drained().await;
        }
        Ok(())
    }

    /// Sets the feature Reservation Persistence.
    pub(super) async fn set_persistence(&self, persists: bool) -> Result<(), Status> {
        let _turn = self.turn().await;
        let mut next = self.reservations();
        next.set_persistence(persists);
        self.install(next).await
    }

    /// Saves the part that has to survive, and then applies the change. The caller has the turn.
    async fn install(&self, next: Reservations) -> Result<(), Status> {
        let saved = |reservations: &Reservations| reservations.persists().then(|| reservations.clone());
        let (old, new) = (saved(&self.lock().reservations), saved(&next));
        if old != new {
            (self.keep)(new).await.map_err(|error| {
                tracing::error!(error, "a reservation could not be saved: it stays as it was");
                Status::INTERNAL_ERROR
            })?;
        }
        self.lock().reservations = next;
        self.gate.renew();
        Ok(())
    }

    /// Registers `listener` for notices to hosts.
    pub(super) fn listen(
        self: &Arc<Self>,
        listener: impl Fn(&[(HostId, Notice)]) + Send + Sync + 'static,
    ) -> Listening {
        let mut reserved = self.lock();
        let number = reserved.next_listener;
        reserved.next_listener += 1;
        reserved.listeners.insert(number, Arc::new(listener));
        Listening { shared: self.clone(), number }
    }

    /// A queue of the calling shard begins to use the namespace.
    pub(super) fn enter<E: Env>(self: &Arc<Self>, env: &E, host: Host) -> Use {
        self.lock().know(&host);
        let way = self.gate.open(env);
        Use { shared: self.clone(), host, way, permit: Cell::new((0, Permit::ALL)) }
    }
}

impl Reserved {
    /// A host was seen.
    fn know(&mut self, host: &Host) {
        let registrants = self.reservations.registrants();
        if registrants.contains_key(&host.id) {
            self.names.insert(host.id, host.nqn.clone());
        }
        // There are never more names than registrants.
        self.names.retain(|id, _| registrants.contains_key(id));
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.lock().listeners.remove(&self.number);
    }
}

impl Use {
    pub fn shared(&self) -> &SharedNamespace {
        &self.shared
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Lets a command in, unless a reservation excludes it.
    #[inline]
    pub fn begin(&self, group: Group) -> Result<Inside<'_>, Status> {
        let inside = self.way.enter();
        let version = self.shared.gate.version();
        let (known, permit) = self.permit.get();
        let permit = if known == version { permit } else { self.look(version) };
        if permit.covers(group) { Ok(inside) } else { Err(Status::RESERVATION_CONFLICT) }
    }

    /// As [`Use::begin`], for a command that changes these ranges: waits until none of them is
    /// held.
    #[inline]
    pub async fn begin_change(&self, ranges: &[Range]) -> Result<Inside<'_>, Status> {
        loop {
            let inside = self.begin(Group::Write)?;
            if !inside.may_be_held() || !self.shared.gate.is_held(ranges) {
                return Ok(inside);
            }
            drop(inside);
            self.shared.gate.released(ranges).await;
        }
    }

    /// Holds a range: from the time this returns, no command of any queue changes it until the
    /// result is dropped.
    pub async fn hold(&self, offset: u64, len: u64) -> Hold<'_> {
        self.shared.gate.hold(Range { offset, len }).await
    }

    /// Whether reservations allow commands of a group, for a command that was let in as another
    /// group.
    pub fn allows(&self, group: Group) -> Result<(), Status> {
        self.begin(group).map(drop)
    }

    #[cold]
    fn look(&self, version: u64) -> Permit {
        let permit = self.shared.lock().reservations.permit(&self.host.id);
        self.permit.set((version, permit));
        permit
    }
}
