//! A controller as other threads and its I/O queues see it, which do not own it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme::auth::Policy;
use nvme::target::{Admission, ERRORS_MAX, Host, Kind, Named, Notice, Refused};
use nvme::{Nqn, Status};

use super::abort::{AbortOutcome, Request};
use super::secrets::HostSecrets;
use crate::state::Alarm;

/// One host's use of one subsystem: a controller, its admin queue and its I/O queues.
#[derive(Debug)]
pub(super) struct Association {
    pub cntlid: u16,
    pub kind: Kind,
    pub host: Host,
    pub subsystem: Nqn,
    /// Secrets of the subsystem's hosts; a discovery controller has none.
    pub secrets: Option<HostSecrets>,
    /// The admin queue uses TLS, so the I/O queues have to use it, too.
    pub is_secure: bool,
    /// Alarm of the admin queue's connection.
    pub alarm: Arc<Alarm>,
    /// I/O queues may be connected.
    ready: AtomicBool,
    /// The admin queue has ended, or has to.
    gone: AtomicBool,
    /// Number of I/O queues that the host was granted.
    granted: AtomicU16,
    inner: Mutex<AssociationState>,
}

#[derive(Debug, Default)]
struct AssociationState {
    /// Connected I/O queues by their number.
    queues: BTreeMap<u16, Connected>,
    /// I/O queues that had to end, and whose commands are still in flight.
    unfinished: usize,
    /// Counts how often the I/O queues were dropped. Queues of an earlier count have ended.
    epoch: u64,
    /// Events that the admin queue has not taken yet.
    notifications: Vec<ChangeNotification>,
    failed: Failed,
}

/// Failed commands of I/O queues that the admin queue has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Failed {
    /// The failed commands with their queues, oldest first: at most as many as the error log holds.
    pub commands: VecDeque<(u16, Named, Status)>,
    /// Number of older ones that were discarded.
    pub lost: u64,
}

/// An I/O queue, as its admin queue knows it.
#[derive(Debug)]
struct Connected {
    alarm: Arc<Alarm>,
    /// Abort requests that the queue has not taken yet: no more than [`nvme::target::ABORTS_MAX`].
    aborts: Vec<Request>,
}

/// An event that an admin queue is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeNotification {
    /// A namespace was added or removed, or its size has changed.
    Namespace(u32),
    /// The access state of a namespace has changed.
    Access(u32),
    /// The discovery log has changed.
    Discovery,
    /// Another host has changed a reservation of a namespace.
    Reservation(u32, Notice),
}

/// Most events that an admin queue has not taken before reservation notifications are lost.
const NOTIFICATIONS_MAX: usize = 1024;

/// An I/O queue's place in its association.
#[derive(Debug)]
pub(super) struct Seat {
    association: Arc<Association>,
    number: u16,
    epoch: u64,
}

impl Association {
    /// An association for a host that was admitted.
    pub fn new(
        cntlid: u16,
        admission: &Admission,
        secrets: Option<HostSecrets>,
        is_secure: bool,
        alarm: Arc<Alarm>,
    ) -> Arc<Association> {
        Arc::new(Association {
            cntlid,
            kind: admission.kind(),
            host: admission.host.clone(),
            subsystem: admission.subsystem.clone(),
            secrets,
            is_secure,
            alarm,
            ready: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            granted: AtomicU16::new(nvme::target::QUEUES_MAX),
            inner: Mutex::default(),
        })
    }

    /// Number of connected I/O queues.
    pub fn queue_count(&self) -> usize {
        self.lock().queues.len()
    }

    /// Whether commands of its I/O queues may be in flight, also of queues that had to end.
    pub fn is_busy(&self) -> bool {
        let inner = self.lock();
        !inner.queues.is_empty() || inner.unfinished > 0
    }

    fn lock(&self) -> MutexGuard<'_, AssociationState> {
        // Nothing panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy by which a queue of the host has to authenticate, if it has to.
    ///
    /// # Errors
    /// The host is locked out.
    pub fn policy(&self) -> Result<Option<Policy>, Refused> {
        self.secrets.as_ref().map_or(Ok(None), |secrets| secrets.policy(&self.host.nqn, &self.subsystem))
    }

    /// The controller was enabled, or disabled: then its I/O queues end.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::SeqCst);
    }

    /// Sets the number of I/O queues that may be connected.
    pub fn grant(&self, queues: u16) {
        self.granted.store(queues, Ordering::SeqCst);
    }

    /// Ends the I/O queues.
    pub fn drop_queues(&self) {
        let queues = {
            let mut inner = self.lock();
            inner.epoch += 1;
            inner.unfinished += inner.queues.len();
            std::mem::take(&mut inner.queues)
        };
        queues.values().for_each(|queue| queue.alarm.ring());
    }

    /// Ends all queues.
    pub fn end(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.drop_queues();
        self.alarm.ring();
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Tells the admin queue about an event.
    pub fn tell(&self, notification: ChangeNotification) {
        let mut inner = self.lock();
        let is_new = match notification {
            // Each has a log page of its own. Those above the bound are lost, as they would be in
            // the log.
            ChangeNotification::Reservation(..) => inner.notifications.len() < NOTIFICATIONS_MAX,
            _ => !inner.notifications.contains(&notification),
        };
        if is_new {
            inner.notifications.push(notification);
        }
        drop(inner);
        self.alarm.ring();
    }

    pub fn take_notifications(&self) -> Vec<ChangeNotification> {
        std::mem::take(&mut self.lock().notifications)
    }

    /// A command of an I/O queue has failed.
    pub fn note_failed(&self, queue: u16, command: Named, status: Status) {
        let Failed { commands, lost } = &mut self.lock().failed;
        if commands.len() == ERRORS_MAX {
            commands.pop_front();
            *lost += 1;
        }
        commands.push_back((queue, command, status));
    }

    pub fn take_failed(&self) -> Failed {
        std::mem::take(&mut self.lock().failed)
    }

    /// Asks an I/O queue to abort a command.
    pub fn abort(&self, queue: u16, cid: u16) -> AbortOutcome {
        let (request, outcome) = Request::new(cid);
        let alarm = self.lock().queues.get_mut(&queue).map(|connected| {
            connected.aborts.push(request);
            connected.alarm.clone()
        });
        if let Some(alarm) = alarm {
            alarm.ring();
        }
        outcome
    }

    /// Whether an I/O queue of this number could be connected now.
    pub fn has_place(&self, number: u16) -> bool {
        self.is_free(&self.lock(), number)
    }

    fn is_free(&self, inner: &AssociationState, number: u16) -> bool {
        self.ready.load(Ordering::SeqCst)
            && !self.is_gone()
            && number <= self.granted.load(Ordering::SeqCst)
            && !inner.queues.contains_key(&number)
    }

    /// Connects an I/O queue. `None` if no queue of this number may be connected now.
    pub fn seat(self: &Arc<Self>, number: u16, alarm: Arc<Alarm>) -> Option<Seat> {
        let mut inner = self.lock();
        if !self.is_free(&inner, number) {
            return None;
        }
        inner.queues.insert(number, Connected { alarm, aborts: Vec::new() });
        Some(Seat { association: self.clone(), number, epoch: inner.epoch })
    }
}

impl Seat {
    /// Abort requests since the last call.
    pub fn take_aborts(&self) -> Vec<Request> {
        let mut inner = self.association.lock();
        if inner.epoch != self.epoch {
            return Vec::new();
        }
        inner.queues.get_mut(&self.number).map(|queue| std::mem::take(&mut queue.aborts)).unwrap_or_default()
    }

    /// Whether the queue has to end.
    pub fn is_lost(&self) -> bool {
        self.association.is_gone() || self.association.lock().epoch != self.epoch
    }
}

/// The queue has ended, and with it its abort requests.
impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.association.lock();
        if inner.epoch == self.epoch {
            inner.queues.remove(&self.number);
        } else {
            inner.unfinished -= 1;
        }
    }
}
