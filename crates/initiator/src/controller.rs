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
use crate::fate::Fate;
use crate::network::{Address, Network};
use crate::options::{KEEP_ALIVE_MIN, Options, quiet_time};
use crate::queue::{Call, Payload, Queue, Reply};
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
    inner: Rc<Inner<N>>,
}

struct Inner<N: Network> {
    env: N,
    address: Rc<Address>,
    admin: Queue<N>,
    io: Vec<Queue<N>>,
    /// Index of the queue where the last search for a queue began.
    turn: Cell<usize>,
    established: Established,
    fate: Rc<Fate>,
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
        let guard = Guard(Some(Rc::new(Fate::default())));
        let fate = guard.0.clone().expect("it is there until the end");
        let opening = Controller::open_within(env, address, options, purpose, &fate);
        let ms = options.connect_timeout.as_millis();
        let too_late = || ConnectError::Timeout { address: address.clone(), ms };
        let opened = within(env, options.connect_timeout, opening).await.ok_or_else(too_late)??;
        guard.disarm();
        Ok(opened)
    }

    async fn open_within(
        env: &N,
        address: &Address,
        options: &Options,
        purpose: Purpose,
        fate: &Rc<Fate>,
    ) -> Result<Controller<N>, ConnectError> {
        let address = Rc::new(address.clone());
        let refused = |source| ConnectError::Refused { address: (*address).clone(), source };
        let ended = |reason| ConnectError::Ended { address: (*address).clone(), reason };
        let keep_alive = options.keep_alive.max(KEEP_ALIVE_MIN);
        let admin = open_queue(env, &address, options, ADMIN_ENTRIES, fate).await?;
        let events = match purpose {
            Purpose::Io => Event::NamespaceChanged.bit() | Event::AccessChanged.bit(),
            Purpose::Discovery => 0,
        };
        let wish = Wish {
            host: options.host.clone(),
            subsystem: options.subsystem.clone(),
            queue_entries: ADMIN_ENTRIES,
            keep_alive_ms: u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX),
            queues: if purpose == Purpose::Io { options.queues.max(1) } else { 0 },
            events,
        };
        let failed = |error| match error {
            Led::Host(source) => refused(source),
            Led::Lost(reason) => ended(reason),
        };
        let reply = admin.execute(call(connect_admin(&wish))).await.map_err(ended)?;
        let connected = Connected::of(&reply.completion).map_err(refused)?;
        authenticate(&admin, options, connected).await.map_err(failed)?;
        let established = *lead(env, &admin, Setup::of_connected(wish, connected)).await.map_err(failed)?;
        let is_discovery = established.info.is_discovery;
        if is_discovery != (purpose == Purpose::Discovery) {
            let what = if is_discovery {
                "this is a discovery subsystem: it has no namespaces"
            } else {
                "this is no discovery subsystem"
            };
            return Err(ConnectError::Unfit { address: (*address).clone(), what: what.to_owned() });
        }

        let entries = entries(options, &established);
        let mut io = Vec::new();
        for number in 1..=established.queues {
            let queue = open_queue(env, &address, options, entries, fate).await?;
            let connect = connect_io(&options.host, &options.subsystem, established.cntlid, number, entries);
            let reply = queue.execute(call(connect)).await.map_err(ended)?;
            let connected = Connected::of(&reply.completion).map_err(refused)?;
            authenticate(&queue, options, connected).await.map_err(failed)?;
            io.push(queue);
        }
        if let Some(queue) = io.iter().chain([&admin]).find(|queue| queue.digests() != options.digests) {
            let (asked, agreed) = (options.digests, queue.digests());
            tracing::warn!(%address, ?asked, ?agreed, "the target does not want the digests: what the network damages may go unnoticed");
        }
        let inner = Inner {
            env: env.clone(),
            address: address.clone(),
            admin,
            io,
            turn: Cell::new(0),
            established,
            fate: fate.clone(),
            keep_alive,
            ended_at: Cell::new(None),
        };
        let controller = Controller { inner: Rc::new(inner) };
        env.spawn(controller.clone().note_end());
        env.spawn(controller.clone().keep_alive());
        env.spawn(controller.clone().watch(options.command_timeout));
        Ok(controller)
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
        self.inner.fate.lost()
    }

    /// Returns when it has ended.
    pub async fn ended(&self) -> Lost {
        self.inner.fate.ended().await;
        self.lost().expect("it has ended")
    }

    /// Ends the controller: connections are closed, and commands in flight fail.
    pub fn give_up(&self, reason: Lost) {
        self.inner.fate.end(reason);
    }

    /// Runs a dialogue over the admin queue.
    ///
    /// # Errors
    /// [`ConnectError::Refused`], [`ConnectError::Ended`].
    pub async fn lead<D: Dialogue>(&self, dialogue: D) -> Result<D::Outcome, ConnectError> {
        let address = || (*self.inner.address).clone();
        lead(&self.inner.env, &self.inner.admin, dialogue).await.map_err(|error| match error {
            Led::Host(source) => ConnectError::Refused { address: address(), source },
            Led::Lost(reason) => ConnectError::Ended { address: address(), reason },
        })
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
        let Inner { io, turn, .. } = &*self.inner;
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
        let Inner { env, admin, fate, .. } = &*self.inner;
        let mut is_down = false;
        if !fate.is_sealed() {
            let dialogue = Shutdown::new(SHUTDOWN_MAX.as_millis() as u32);
            // If it does not answer, its keep alive timer ends it.
            is_down = within(env, SHUTDOWN_MAX, lead(env, admin, dialogue)).await.is_some_and(|led| led.is_ok());
        }
        fate.end(Lost::Disconnected);
        is_down
    }

    /// Time until a controller that has ended can execute no more of the commands that it was sent.
    /// `None` if it has not ended.
    fn unsettled_for(&self) -> Option<Duration> {
        let Inner { env, established, fate, ended_at, keep_alive, .. } = &*self.inner;
        if fate.lost()?.is_ended_by_target() {
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
        let Inner { env, fate, .. } = &*self.inner;
        fate.ended().await;
        if let Some(left) = self.unsettled_for().filter(|left| !left.is_zero()) {
            env.sleep(left).await;
        }
    }

    async fn note_end(self) {
        let Inner { env, fate, ended_at, .. } = &*self.inner;
        fate.ended().await;
        ended_at.set(Some(env.now()));
    }

    /// Base 2.0, clause 3.9: the timer runs from the last Keep Alive that the controller received.
    async fn keep_alive(self) {
        let Inner { env, admin, fate, keep_alive, .. } = &*self.inner;
        while race(env.sleep(*keep_alive / 2), fate.ended()).await.is_some() {
            match within(env, *keep_alive, admin.execute(call(admin::keep_alive()))).await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return,
                None => fate.end(Lost::Silent { what: "Keep Alive", ms: keep_alive.as_millis() as u64 }),
            }
        }
    }

    /// Aborts late commands, and ends the controller if that does not help.
    async fn watch(self, limit: Duration) {
        let Inner { env, admin, io, fate, .. } = &*self.inner;
        let period = (limit / 4).min(WATCH_PERIOD_MAX);
        while race(env.sleep(period), fate.ended()).await.is_some() {
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
                fate.end(Lost::Silent { what: "a command", ms });
            }
        }
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

async fn open_queue<N: Network>(
    env: &N,
    address: &Rc<Address>,
    options: &Options,
    entries: u16,
    fate: &Rc<Fate>,
) -> Result<Queue<N>, ConnectError> {
    // A queue is full with one entry less than it has: Base 2.0, clause 3.3.1.5.
    let commands_max = entries - 1;
    let limits = HostLimits { digests: options.digests, alignment: 0, requests_max: REQUESTS_MAX, commands_max };
    let connection = Connection::open(env, address, options, limits).await?;
    Ok(Queue::start(env, connection, commands_max.into(), fate.clone()))
}

/// Ends the tasks of connections whose setup failed.
struct Guard(Option<Rc<Fate>>);

impl Guard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(fate) = &self.0 {
            fate.end(Lost::Disconnected);
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
