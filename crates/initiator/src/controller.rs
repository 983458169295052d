//! A controller: an admin queue and its I/O queues, from Connect until the first of them ends.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use drive::{Nanos, race, within};
use nvme::host::{
    AsyncEvent, Connected, Dialogue, Established, HostError, Next, Setup, Shutdown, Submission, Wish, admin,
    connect_admin, connect_io,
};
use nvme::target::Event;
use nvme::tcp::HostLimits;
use smallvec::smallvec;

use crate::authentication::authenticate;
use crate::connection::Connection;
use crate::network::{Address, Network};
use crate::options::{KEEP_ALIVE_MIN, Options, quiet_time};
use crate::queue::{Call, Payload, Queue, Reply};
use crate::termination::Termination;
use crate::{ConnectError, Lost};

/// Entries of the admin queue: the smallest allowed number (Base 2.0, figure 385), and more than
/// this host uses.
const ADMIN_ENTRIES: u16 = 32;

/// Fewest entries of a queue: Base 2.0, figure 36.
const ENTRIES_MIN: u16 = 2;

/// R2Ts that one command may have at the same time.
const REQUESTS_MAX: u32 = 4;

/// Longest interval between checks for late commands.
const WATCH_PERIOD_MAX: Duration = Duration::from_secs(1);

/// Longest time for a shutdown.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Most data of one command, in bytes, if the controller has no limit.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// The data that a controller reports about itself are damaged.
pub(crate) const DAMAGED: HostError = HostError::Malformed("the digest of the data is wrong");

/// The purpose of a connection to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Namespaces.
    Io,
    /// The discovery log.
    Discovery,
}

/// A working controller, until its end. A handle.
pub struct Controller<N: Network> {
    inner: Rc<ControllerState<N>>,
}

struct ControllerState<N: Network> {
    env: N,
    address: Rc<Address>,
    admin: Queue<N>,
    io: Vec<Queue<N>>,
    /// Index of the queue where the last search for a queue began.
    turn: Cell<usize>,
    established: Established,
    termination: Rc<Termination>,
    keep_alive: Duration,
    ended_at: Cell<Option<Nanos>>,
}

impl<N: Network> Clone for Controller<N> {
    fn clone(&self) -> Self {
        Controller { inner: self.inner.clone() }
    }
}

impl<N: Network> Controller<N> {
    /// Connects an admin queue and I/O queues, and keeps the controller alive from then on. It ends
    /// by itself when one of its queues does, or by [`Controller::shutdown`]. Dropping the handle
    /// does not end it.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn open(
        env: &N,
        address: &Address,
        options: &Options,
        purpose: Purpose,
    ) -> Result<Controller<N>, ConnectError> {
        let guard = Guard(Some(Rc::new(Termination::default())));
        let termination = guard.0.clone().expect("it is there until the end");
        let address = Rc::new(address.clone());
        let opening = Opening { env, address: address.clone(), options, purpose, termination: &termination }.open();
        let ms = options.connect_timeout.as_millis();
        let too_late = || ConnectError::Timeout { address: (*address).clone(), ms };
        let opened = within(env, options.connect_timeout, opening).await.ok_or_else(too_late)??;
        guard.disarm();
        Ok(opened)
    }

    /// Properties of the controller.
    pub fn established(&self) -> &Established {
        &self.inner.established
    }

    /// Its address.
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// The number of I/O queues.
    pub fn queues(&self) -> usize {
        self.inner.io.len()
    }

    /// Most data of one command, in bytes.
    pub fn transfer_bytes_max(&self) -> u64 {
        self.inner.established.info.transfer_bytes_max.unwrap_or(TRANSFER_BYTES_MAX).min(TRANSFER_BYTES_MAX)
    }

    /// Why it has ended, or `None`.
    pub fn lost(&self) -> Option<Lost> {
        self.inner.termination.lost()
    }

    /// Returns when it has ended.
    pub async fn ended(&self) -> Lost {
        self.inner.termination.ended().await;
        self.lost().expect("it has ended")
    }

    /// Ends the controller: connections are closed, and commands in flight fail.
    pub fn give_up(&self, reason: Lost) {
        self.inner.termination.end(reason);
    }

    /// Runs a dialogue over the admin queue.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], [`ConnectError::Ended`].
    pub async fn lead<D: Dialogue>(&self, dialogue: D) -> Result<D::Outcome, ConnectError> {
        let led = lead(&self.inner.env, &self.inner.admin, dialogue).await;
        led.map_err(|error| error.at(&self.inner.address))
    }

    /// Sends an admin command and waits for its answer.
    ///
    /// # Errors
    /// The controller has ended.
    pub async fn execute_admin(&self, submission: Submission) -> Result<Reply, Lost> {
        self.inner.admin.execute(call(submission)).await
    }

    /// Sends a command through the I/O queue with the fewest in flight, and waits for its answer.
    ///
    /// # Errors
    /// The controller has ended. It is unknown whether it has executed the command.
    ///
    /// # Panics
    /// If it has no I/O queues.
    pub async fn execute(&self, call: Call) -> Result<Reply, Lost> {
        let ControllerState { io, turn, .. } = &*self.inner;
        let first = (turn.get() + 1) % io.len();
        turn.set(first);
        let around = (0..io.len()).map(|step| &io[(first + step) % io.len()]);
        let queue = around.min_by_key(|queue| queue.in_flight()).expect("an I/O controller has queues");
        queue.execute(call).await
    }

    /// The next event that matters to this host. Other events before it are acknowledged.
    ///
    /// # Errors
    /// The controller has ended, or does not accept requests for events.
    pub async fn next_event(&self) -> Result<Event, Lost> {
        loop {
            let call = Call { is_patient: true, ..call(admin::event_request()) };
            let reply = self.inner.admin.execute(call).await?;
            if !reply.completion.status().is_success() {
                let status = reply.completion.status();
                tracing::debug!(address = %self.inner.address, %status, "a request for events was refused");
                return Err(self.ended().await);
            }
            let event = AsyncEvent::of(reply.completion.result.get());
            if let Some(notice) = event.notice() {
                return Ok(notice);
            }
            // The event is not reported again before its log was read. A few of its first bytes are
            // enough.
            let log = admin::get_log_page(event.log_page, 0, 16, false);
            self.execute_admin(log).await?;
        }
    }

    /// Tells the controller that it is not used any more, and ends it. Commands in flight fail.
    /// Returns whether the controller has shut down: then it executes no more commands.
    pub async fn shutdown(&self) -> bool {
        let ControllerState { env, admin, termination, .. } = &*self.inner;
        let mut is_down = false;
        if !termination.is_sealed() {
            let dialogue = Shutdown::new(SHUTDOWN_MAX.as_millis() as u32);
            // If it does not answer, its keep alive timer ends it.
            is_down = within(env, SHUTDOWN_MAX, lead(env, admin, dialogue)).await.is_some_and(|led| led.is_ok());
        }
        termination.end(Lost::Disconnected);
        is_down
    }

    /// Time until a controller that has ended can execute no more of the commands that it was sent.
    /// `None` if it has not ended.
    fn unsettled_for(&self) -> Option<Duration> {
        let ControllerState { env, established, termination, ended_at, keep_alive, .. } = &*self.inner;
        if termination.lost()?.is_ended_by_target() {
            return Some(Duration::ZERO);
        }
        let quiet = quiet_time(*keep_alive, established.info.has_traffic_based_keep_alive);
        let until = ended_at.get().unwrap_or_else(|| env.now()) + quiet.as_nanos() as u64;
        Some(Duration::from_nanos(until.saturating_sub(env.now())))
    }

    /// Whether it has ended, and can execute no more of the commands that it was sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled_for() == Some(Duration::ZERO)
    }

    /// Returns when a controller that has ended can execute no more of the commands that it was
    /// sent.
    pub(crate) async fn settled(&self) {
        let ControllerState { env, termination, .. } = &*self.inner;
        termination.ended().await;
        if let Some(left) = self.unsettled_for().filter(|left| !left.is_zero()) {
            env.sleep(left).await;
        }
    }

    async fn note_end(self) {
        let ControllerState { env, termination, ended_at, .. } = &*self.inner;
        termination.ended().await;
        ended_at.set(Some(env.now()));
    }

    /// Base 2.0, clause 3.9: the timer runs from the last Keep Alive that the controller received.
    async fn keep_alive(self) {
        let ControllerState { env, admin, termination, keep_alive, .. } = &*self.inner;
        while race(env.sleep(*keep_alive / 2), termination.ended()).await.is_some() {
            match within(env, *keep_alive, admin.execute(call(admin::keep_alive()))).await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return,
                None => termination.end(Lost::Silent { what: "Keep Alive", ms: keep_alive.as_millis() as u64 }),
            }
        }
    }

    /// Aborts late commands, and ends the controller if that does not help.
    async fn watch(self, limit: Duration) {
        let ControllerState { env, admin, io, termination, .. } = &*self.inner;
        let period = (limit / 4).min(WATCH_PERIOD_MAX);
        while race(env.sleep(period), termination.ended()).await.is_some() {
            // Controllers whose drives are dead still answer Keep Alive, so the admin queue says
            // nothing about the I/O queues.
            let heard = io.iter().map(Queue::heard).max().unwrap_or_default();
            let (_, mut is_hopeless) = admin.overdue(limit, admin.heard());
            for (index, queue) in io.iter().enumerate() {
                let (late, too_late) = queue.overdue(limit, heard);
                is_hopeless |= too_late;
                for cid in late {
                    tracing::warn!(address = %self.inner.address, queue = index + 1, cid, "a command is late: aborting it");
                    let (admin, abort) = (admin.clone(), call(admin::abort(index as u16 + 1, cid)));
                    // The command's own answer shows whether it was aborted.
                    env.spawn(async move { drop(admin.execute(abort).await) });
                }
            }
            if is_hopeless {
                let ms = (limit + limit / 2).as_millis() as u64;
                termination.end(Lost::Silent { what: "a command", ms });
            }
        }
    }
}

/// A controller that is being connected.
struct Opening<'a, N: Network> {
    env: &'a N,
    address: Rc<Address>,
    options: &'a Options,
    purpose: Purpose,
    termination: &'a Rc<Termination>,
}

impl<N: Network> Opening<'_, N> {
    async fn open(self) -> Result<Controller<N>, ConnectError> {
        let (admin, established) = self.connect_admin_queue().await?;
        self.check_purpose(&established)?;
        let io = self.connect_io_queues(&established).await?;
        self.warn_of_missing_digests(io.iter().chain([&admin]));
        Ok(self.start(admin, io, established))
    }

    /// Connects the admin queue, and enables the controller over it.
    async fn connect_admin_queue(&self) -> Result<(Queue<N>, Established), ConnectError> {
        let queue = self.open_queue(ADMIN_ENTRIES).await?;
        let events = match self.purpose {
            Purpose::Io => Event::NamespaceChanged.bit() | Event::AccessChanged.bit(),
            Purpose::Discovery => 0,
        };
        let wish = Wish {
            host: self.options.host.clone(),
            subsystem: self.options.subsystem.clone(),
            queue_entries: ADMIN_ENTRIES,
            keep_alive_ms: u32::try_from(self.keep_alive().as_millis()).unwrap_or(u32::MAX),
            queues: if self.purpose == Purpose::Io { self.options.queues.max(1) } else { 0 },
            events,
        };
        let connected = self.connect_queue(&queue, connect_admin(&wish)).await?;
        let setup = Setup::of_connected(wish, connected);
        let established = lead(self.env, &queue, setup).await.map_err(|error| self.failed(error))?;
        Ok((queue, *established))
    }

    /// The subsystem has to be one of the kind that the connection is for.
    fn check_purpose(&self, established: &Established) -> Result<(), ConnectError> {
        let what = match (self.purpose, established.info.is_discovery) {
            (Purpose::Io, false) | (Purpose::Discovery, true) => return Ok(()),
            (Purpose::Io, true) => "this is a discovery subsystem: it has no namespaces",
            (Purpose::Discovery, false) => "this is no discovery subsystem",
        };
        Err(ConnectError::Unfit { address: (*self.address).clone(), what: what.to_owned() })
    }

    async fn connect_io_queues(&self, established: &Established) -> Result<Vec<Queue<N>>, ConnectError> {
        let Options { host, subsystem, .. } = self.options;
        let entries = entries(self.options, established);
        let mut queues = Vec::new();
        for number in 1..=established.queues {
            let queue = self.open_queue(entries).await?;
            self.connect_queue(&queue, connect_io(host, subsystem, established.cntlid, number, entries)).await?;
            queues.push(queue);
        }
        Ok(queues)
    }

    fn warn_of_missing_digests<'q>(&self, mut queues: impl Iterator<Item = &'q Queue<N>>)
    where
        N: 'q,
    {
        let asked = self.options.digests;
        if let Some(queue) = queues.find(|queue| queue.digests() != asked) {
            let (address, agreed) = (&self.address, queue.digests());
            tracing::warn!(%address, ?asked, ?agreed, "the target does not want the digests: what the network damages may go unnoticed");
        }
    }

    /// Starts the tasks of a controller whose queues are connected.
    fn start(self, admin: Queue<N>, io: Vec<Queue<N>>, established: Established) -> Controller<N> {
        let keep_alive = self.keep_alive();
        let state = ControllerState {
            env: self.env.clone(),
            address: self.address,
            admin,
            io,
            turn: Cell::new(0),
            established,
            termination: self.termination.clone(),
            keep_alive,
            ended_at: Cell::new(None),
        };
        let controller = Controller { inner: Rc::new(state) };
        self.env.spawn(controller.clone().note_end());
        self.env.spawn(controller.clone().keep_alive());
        self.env.spawn(controller.clone().watch(self.options.command_timeout));
        controller
    }

    async fn open_queue(&self, entries: u16) -> Result<Queue<N>, ConnectError> {
        // A queue is full with one entry less than it has: Base 2.0, clause 3.3.1.5.
        let commands_max = entries - 1;
        let digests = self.options.digests;
        let limits = HostLimits { digests, alignment: 0, requests_max: REQUESTS_MAX, commands_max };
        let connection = Connection::open(self.env, &self.address, self.options, limits).await?;
        Ok(Queue::start(self.env, connection, commands_max.into(), self.termination.clone()))
    }

    /// Sends Connect, and authenticates if the controller asks for that.
    async fn connect_queue(&self, queue: &Queue<N>, connect: Submission) -> Result<Connected, ConnectError> {
        let reply = queue.execute(call(connect)).await.map_err(|reason| self.failed(Led::Lost(reason)))?;
        let connected = Connected::of(&reply.completion).map_err(|source| self.failed(Led::Host(source)))?;
        authenticate(queue, self.options, connected).await.map_err(|error| self.failed(error))?;
        Ok(connected)
    }

    fn keep_alive(&self) -> Duration {
        self.options.keep_alive.max(KEEP_ALIVE_MIN)
    }

    fn failed(&self, error: Led) -> ConnectError {
        error.at(&self.address)
    }
}

/// Entries of the I/O queues.
fn entries(options: &Options, established: &Established) -> u16 {
    let most = u16::try_from(established.queue_entries_max).unwrap_or(u16::MAX);
    let entries = options.queue_entries.clamp(ENTRIES_MIN, most.max(ENTRIES_MIN));
    match established.info.commands_max {
        0 => entries,
        // This number of commands needs one entry more.
        commands => entries.min(commands.saturating_add(1)).max(ENTRIES_MIN),
    }
}

/// Ends the tasks of connections whose setup failed.
struct Guard(Option<Rc<Termination>>);

impl Guard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(termination) = &self.0 {
            termination.end(Lost::Disconnected);
        }
    }
}

/// A submission of the protocol, as a call.
pub(crate) fn call(submission: Submission) -> Call {
    let Submission { command, data, reply_bytes } = submission;
    let payload = match reply_bytes {
        0 if data.is_empty() => Payload::None,
        0 => Payload::ToController(smallvec![data.into()]),
        len => Payload::ToHost(drive::BufMut::zeroed(len as usize)),
    };
    Call { command, payload, is_patient: false }
}

/// Why a dialogue failed.
pub(crate) enum Led {
    Host(HostError),
    Lost(Lost),
}

impl Led {
    fn at(self, address: &Address) -> ConnectError {
        let address = address.clone();
        match self {
            Led::Host(source) => ConnectError::Refused { address, source },
            Led::Lost(reason) => ConnectError::Ended { address, reason },
        }
    }
}

async fn lead<N: Network, D: Dialogue>(env: &N, queue: &Queue<N>, mut dialogue: D) -> Result<D::Outcome, Led> {
    loop {
        match dialogue.next() {
            Next::Done(outcome) => return Ok(outcome),
            Next::Wait(ms) => env.sleep(Duration::from_millis(ms.into())).await,
            Next::Send(submission) => {
                let reply = queue.execute(call(submission)).await.map_err(Led::Lost)?;
                if !reply.is_intact {
                    return Err(Led::Host(DAMAGED));
                }
                let data = reply.data.as_ref().map_or(&[][..], |data| data);
                dialogue.answer(&reply.completion, data).map_err(Led::Host)?;
            }
        }
    }
}
