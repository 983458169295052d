//! An admin queue and its controller.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use drive::{Block, BufMut, Env, Nanos, within};
use nvme::target::{ABORTS_MAX, Admission, Answer, Controller, Effect, Event, Kind};
use nvme::{Command, Status};

use super::association::{Association, ChangeNotification, Failed};
use super::portal::{Portal, View};
use super::queue::Queue;
use super::shared::SharedNamespace;
use crate::limits::NVME_CAPSULE_DATA_BYTES;

/// How long a discovery controller lives if its host has named no time (Base 2.0, clause 3.1.2.3).
/// It is also the maximum, because any host may have such a controller.
const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// KAS: the granularity of keep alive timers.
const KEEP_ALIVE_STEP: Duration = Duration::from_secs(1);

/// How long the association of a controller that is not ready stays when its host is silent. The
/// keep alive timer does not run then, and the association stays for at least two minutes (Base
/// 2.0, clauses 3.6.2 and 3.9).
const NOT_READY: Duration = Duration::from_secs(120);

/// How often a controller is checked whose host may be silent for long, in case it is gone.
const IDLE_LOOK: Duration = Duration::from_secs(60);

/// The admin queue of a controller.
pub(super) struct Admin<B> {
    portal: Portal<B>,
    pub association: Arc<Association>,
    controller: Controller,
    local: Option<SocketAddr>,
    pulse: Rc<Pulse>,
    /// Running Abort commands.
    aborting: Rc<Cell<u8>>,
}

/// Time of the last message from the host, for the keep alive timer.
struct Pulse {
    heard: Cell<Nanos>,
    /// How long the host may be silent; zero means forever.
    limit: Cell<Duration>,
    /// Woken when `limit` changes.
    watch: RefCell<Option<Waker>>,
}

impl Pulse {
    fn set_limit(&self, limit: Duration) {
        if self.limit.replace(limit) != limit
            && let Some(waker) = self.watch.take()
        {
            waker.wake();
        }
    }

    /// Returns when the limit is no longer `from`.
    async fn changed(&self, from: Duration) {
        poll_fn(|context| {
            if self.limit.get() != from {
                return Poll::Ready(());
            }
            *self.watch.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl<B: Block + 'static> Admin<B> {
    /// A controller for a host that was admitted.
    pub fn new<E: Env>(
        env: &E,
        portal: Portal<B>,
        association: Arc<Association>,
        admission: &Admission,
        local: Option<SocketAddr>,
    ) -> Admin<B> {
        let controller = Controller::new(
            association.kind,
            association.cntlid,
            association.host.clone(),
            admission.connect.keep_alive_ms,
            NVME_CAPSULE_DATA_BYTES,
        );
        let (heard, limit) = (Cell::new(env.now()), Cell::new(NOT_READY));
        let pulse = Rc::new(Pulse { heard, limit, watch: RefCell::default() });
        env.spawn(watch(env.clone(), pulse.clone(), association.clone()));
        Admin { portal, association, controller, local, pulse, aborting: Rc::default() }
    }

    fn set_limit(&self) {
        // In steps of KAS: rounded up, plus one step, for a host that sends just before the time is
        // over.
        let limit = match self.controller.keep_alive_ms() {
            0 => Duration::ZERO,
            ms => Duration::from_secs(ms.div_ceil(1000).into()) + KEEP_ALIVE_STEP,
        };
        let is_long = limit.is_zero() || limit > DISCOVERY_KEEP_ALIVE;
        self.pulse.set_limit(match self.association.kind {
            _ if !self.controller.is_ready() => NOT_READY,
            Kind::Discovery if is_long => DISCOVERY_KEEP_ALIVE,
            _ => limit,
        });
    }

    /// The host has sent something.
    pub fn heard(&self, now: Nanos) {
        self.pulse.heard.set(now);
    }

    /// Executes a command and puts its answer in the outbox.
    pub fn execute(&mut self, queue: &Rc<Queue>, command: &Command, data: &[u8], now: Nanos) {
        self.heard(now);
        // First of all, so that the change counts in the logs match their content.
        self.hear();
        self.controller.set_busy(self.association.is_busy());
        let view = View::new(&self.portal, &self.association, self.local);
        let (answer, effect) = self.controller.execute(command, data, &view);
        self.set_limit();
        let cid = command.cid.get();
        // Before the answer: the host may act on the answer at once.
        self.association.set_ready(self.controller.is_ready());
        self.association.grant(self.controller.io_queues());
        if effect == Effect::Reset {
            view.controller_reset(self.association.cntlid);
        }
        if effect != Effect::None {
            self.association.drop_queues();
        }
        match answer {
            Answer::Done(status, result) => queue.complete(cid, status, result, 0),
            // Base 2.0, clause 4.3.2: a descriptor of fewer bytes than the command transfers.
            Answer::Data(data, _) if data.len() > command.dptr.length.get() as usize => {
                queue.complete(cid, Status::DATA_SGL_LENGTH_INVALID, 0, 0);
            }
            Answer::Data(data, result) => match data.is_empty() {
                true => queue.complete(cid, Status::SUCCESS, result, 0),
                false => queue.deliver(cid, BufMut::copy_of(&data).freeze(), result, 0),
            },
            Answer::Later => queue.deferred(),
            Answer::Abort(..) if self.aborting.get() >= ABORTS_MAX => {
                queue.complete(cid, Status::ABORT_LIMIT_EXCEEDED, 0, 0);
            }
            Answer::Abort(number, target) => {
                self.aborting.set(self.aborting.get() + 1);
                let outcome = self.association.abort(number, target);
                let (queue, aborting) = (queue.clone(), self.aborting.clone());
                queue.link.env.clone().spawn(async move {
                    let aborted = outcome.await;
                    aborting.set(aborting.get() - 1);
                    queue.complete(cid, Status::SUCCESS, u64::from(!aborted), 0);
                });
            }
            Answer::Persistence(nsids, persists) => {
                let (subsystem, host) = (&self.association.subsystem, &self.association.host.nqn);
                let offers = nsids.into_iter().filter_map(|nsid| self.portal.find(subsystem, host, nsid));
                let shared = offers.map(|offer| offer.shared).collect();
                queue.link.env.spawn(set_persistence(queue.clone(), cid, shared, persists));
            }
        }
        self.tell(queue);
    }

    /// Takes events that happened to the controller elsewhere.
    fn hear(&mut self) {
        let Failed { commands, lost } = self.association.take_failed();
        self.controller.io_failed(commands, lost);
        for notification in self.association.take_notifications() {
            match notification {
                ChangeNotification::Namespace(nsid) => self.controller.namespace_changed(nsid),
                ChangeNotification::Access(_) => self.controller.access_changed(),
                ChangeNotification::Reservation(nsid, notice) => self.controller.reservation_changed(nsid, notice),
                ChangeNotification::Discovery => self.controller.happened(Event::DiscoveryChanged),
            }
        }
    }

    /// Takes events that happened elsewhere, and completes the host's Asynchronous Event Requests
    /// for them.
    pub fn tell(&mut self, queue: &Queue) {
        self.hear();
        while let Some(completion) = self.controller.event() {
            queue.complete_deferred(completion);
        }
    }

    /// Ends the controller's I/O queues, before the last answers of this queue are sent.
    pub fn end(&self) {
        self.association.end();
    }

    /// The queue has ended.
    pub fn leave(&self) {
        self.portal.leave(&self.association);
    }
}

/// Sets the feature Reservation Persistence of some namespaces, and answers the command.
async fn set_persistence(queue: Rc<Queue>, cid: u16, namespaces: Vec<Arc<SharedNamespace>>, persists: bool) {
    let mut status = Status::SUCCESS;
    for shared in namespaces {
        if let Err(error) = shared.set_persistence(persists).await {
            status = error;
        }
    }
    queue.complete(cid, status, 0, 0);
}

/// The keep alive timer: Base 2.0, clause 3.9. Ends the association of a host that is silent for
/// too long.
async fn watch<E: Env>(env: E, pulse: Rc<Pulse>, association: Arc<Association>) {
    while !association.is_gone() {
        let limit = pulse.limit.get();
        let mut wait = IDLE_LOOK;
        if !limit.is_zero() {
            let silent = Duration::from_nanos(env.now().saturating_sub(pulse.heard.get()));
            if silent >= limit {
                tracing::info!(host = %association.host.nqn, seconds = silent.as_secs(), "an NVMe host was silent for too long");
                association.end();
                return;
            }
            // In steps, so that the task of a gone association ends soon.
            wait = wait.min(limit - silent);
        }
        within(&env, wait, pulse.changed(limit)).await;
    }
}
