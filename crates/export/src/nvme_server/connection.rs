//! One connection, which is one queue, from its first byte to its last.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use drive::{Block, BufMut, Env, Nanos};
use nvme::target::{Admission, Io, Refused};
use nvme::tcp::{Digests, Limits, Receiver, Step, To, Violation};
use nvme::{Command, Direction, FABRICS, Place, Status, fabrics};
use runtime::{ShardEnv, Stream};

use super::admin::Admin;
use super::io::{self, Handle, Namespaces};
use super::portal::Portal;
use super::queue::Queue;
use crate::input::Input;
use crate::limits::{
    HANDSHAKE_MAX, INPUT_BYTES, LINGER_MAX, NVME_ADMIN_DATA_BYTES_MAX, NVME_ASKED_BYTES_MAX, NVME_CAPSULE_DATA_BYTES,
    NVME_FIRST_INPUT_BYTES, NVME_PDU_DATA_BYTES,
};
use crate::link::{Link, drained, send_answers};
use crate::pace::{self, Pace};
use crate::state::Alarm;
use crate::wire::{Received, WireReader, split};
use crate::within::within;

/// Why a connection ended; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The host closed the stream.
    Host,
    /// It has to end, at once.
    Cut,
    /// The host broke the protocol: it was told so.
    Violation(Violation),
    /// The socket failed.
    Broken,
}

/// What a queue is.
enum Role<B> {
    /// Nothing yet: it waits for Connect.
    New,
    Admin(Box<Admin<B>>),
    Io(Namespaces<B>),
}

/// What is to be done with a command once its data are there.
enum Plan<B> {
    /// A command of a new queue or an admin queue.
    Control,
    /// A command of an I/O queue.
    Io(Rc<Handle<B>>, Io),
    /// It fails.
    Fail(Status),
}

/// A command whose data are arriving.
struct Arriving<B> {
    command: Command,
    plan: Plan<B>,
    /// As many bytes as the command has; nothing where they are of no use.
    data: BufMut,
}

impl<B> Plan<B> {
    /// Bytes that the command holds once its data were asked for or are about to arrive.
    #[inline]
    fn held_bytes(&self) -> u64 {
        if let Plan::Io(_, io) = self { io::held_bytes(io) } else { 0 }
    }
}

/// Commands whose data travel outside of their capsules.
struct Asking<B> {
    /// Those whose data were asked for, by tag.
    asked: Vec<Option<Arriving<B>>>,
    /// Bytes of all that were asked for.
    bytes: u64,
    /// Those whose data are to be asked for when there is room.
    unasked: VecDeque<(Command, Plan<B>)>,
}

impl<B> Asking<B> {
    /// Asks for the data of commands that wait for that, as far as there is room.
    fn ask(&mut self, machine: &mut Receiver, queue: &Queue) {
        while let Some((command, plan)) = self.unasked.front() {
            let (len, held) = (command.dptr.length.get(), plan.held_bytes());
            let fits = self.bytes == 0 || self.bytes + u64::from(len) <= NVME_ASKED_BYTES_MAX;
            if !(fits && queue.link.has_room(held)) {
                return;
            }
            let Some((tag, request)) = machine.ask(command.cid.get(), len) else { return };
            let (command, plan) = self.unasked.pop_front().expect("it was looked at");
            let data = queue.link.env.alloc(len as usize);
            if self.asked.len() <= usize::from(tag) {
                self.asked.resize_with(usize::from(tag) + 1, || None);
            }
            self.asked[usize::from(tag)] = Some(Arriving { command, plan, data });
            self.bytes += u64::from(len);
            queue.link.grow(held);
            queue.say(&request);
        }
    }

    /// As [`Asking::ask`], and once more when the connection holds less.
    fn ask_when_released(&mut self, machine: &mut Receiver, queue: &Queue, context: &Context<'_>) {
        if !self.unasked.is_empty() {
            queue.link.wake_when_released(context.waker());
            self.ask(machine, queue);
        }
    }

    /// The data that were asked for with this tag are there.
    fn take(&mut self, tag: u16) -> Option<Arriving<B>> {
        let arriving = self.asked[usize::from(tag)].take();
        self.bytes -= arriving.as_ref().map_or(0, |arriving| arriving.data.len() as u64);
        arriving
    }
}

/// The receiving side.
struct Receiving<B> {
    env: ShardEnv,
    queue: Rc<Queue>,
    alarm: Arc<Alarm>,
    portal: Portal<B>,
    peer: String,
    local: Option<std::net::SocketAddr>,
    role: Role<B>,
    machine: Receiver,
    reader: WireReader,
    input: Input,
    /// The command whose data follow in its capsule.
    capsule: Option<Arriving<B>>,
    asking: Asking<B>,
    /// When the last bytes arrived.
    arrived: Nanos,
    pace: Pace,
    /// Commands since the last receive.
    commands_since: u32,
}

/// Serves a host until it goes or has to.
pub(super) async fn run<B: Block + 'static>(env: ShardEnv, stream: Stream, portal: Portal<B>) {
    let (peer, local) = (stream.peer.to_string(), stream.local);
    let (mut reader, mut writer) = split(&env, stream);
    let mut input = Input::new(env.alloc(NVME_FIRST_INPUT_BYTES));
    let mut machine = Receiver::new(Limits {
        capsule_data_bytes_max: NVME_CAPSULE_DATA_BYTES,
        pdu_data_bytes_max: NVME_PDU_DATA_BYTES,
        transfers_max: nvme::target::QUEUE_ENTRIES_MAX,
        digests: Digests { header: true, data: true },
    });
    let initializing = initialize(&mut machine, &mut reader, &mut input);
    let response = match within(&env, HANDSHAKE_MAX, initializing).await {
        Some(Ok(response)) => response,
        ended => {
            tracing::debug!(%peer, "an NVMe/TCP connection was not initialized");
            if let Some(Err(Some(violation))) = ended {
                // A few bytes, which an empty socket takes at once; if it fails, nobody is there to hear it.
                let _ = writer.send_bytes(machine.farewell(&violation)).await;
            }
            return;
        }
    };
    let pdus = machine.writer().expect("the connection is initialized");
    let closer = writer.closer();
    let link = Link::new(env.clone());
    env.spawn(send_answers(link.clone(), writer));
    let queue = Queue::new(link.clone(), pdus);
    queue.say(&response);
    let arrived = env.now();
    let mut receiving = Receiving {
        env: env.clone(),
        queue,
        alarm: Arc::default(),
        portal,
        peer: peer.clone(),
        local,
        role: Role::New,
        machine,
        reader,
        input,
        capsule: None,
        asking: Asking { asked: Vec::new(), bytes: 0, unasked: VecDeque::new() },
        arrived,
        pace: Pace::new(arrived),
        commands_since: 0,
    };
    let end = receiving.run().await;
    tracing::debug!(%peer, ?end, "an NVMe/TCP queue ends");
    receiving.abandon();

    // Answers that are under way still go out, unless the host does not take them.
    let lingers = matches!(end, End::Host | End::Violation(_));
    if !(lingers && within(&env, LINGER_MAX, drained(&link)).await.is_some()) {
        link.die();
        closer.close();
        drained(&link).await;
    }
    link.finish();
    match &receiving.role {
        Role::New => {}
        Role::Admin(admin) => admin.leave(),
        Role::Io(namespaces) => namespaces.leave(),
    }
}

/// Waits for ICReq. Gives what answers it, or what the host did wrong, if it did something.
async fn initialize(
    machine: &mut Receiver,
    reader: &mut WireReader,
    input: &mut Input,
) -> Result<nvme::tcp::Head, Option<Violation>> {
    loop {
        let (taken, step) = machine.step(input.bytes());
        input.take(taken);
        match step {
            Step::Initialized(response) => return Ok(response),
            Step::Close(violation) => return Err(Some(violation)),
            // Nothing else comes before.
            _ => {}
        }
        let (buf, free) = input.lend();
        let (buf, received) = reader.recv(buf, free).await;
        let Received::Bytes(len) = received else { return Err(None) };
        input.give_back(buf, len);
    }
}

impl<B: Block + 'static> Receiving<B> {
    async fn run(&mut self) -> End {
        match self.connect().await {
            Ok(()) => self.input.move_to(self.env.alloc(INPUT_BYTES)),
            Err(end) => return self.farewell(end),
        }
        loop {
            if let Err(end) = self.step().await {
                return self.farewell(end);
            }
        }
    }

    /// Serves a new queue until it is connected, which must not take long.
    async fn connect(&mut self) -> Result<(), End> {
        let env = self.env.clone();
        let connecting = async {
            while matches!(self.role, Role::New) {
                self.step().await?;
            }
            Ok(())
        };
        within(&env, HANDSHAKE_MAX, connecting).await.unwrap_or(Err(End::Cut))
    }

    /// Tells a host what it did wrong.
    fn farewell(&self, end: End) -> End {
        if let End::Violation(violation) = end {
            tracing::debug!(peer = self.peer, %violation, "an NVMe host breaks the protocol");
            let terminate = self.machine.farewell(&violation);
            if !terminate.is_empty() {
                self.queue.say(&terminate);
            }
        }
        end
    }

    /// Takes one step of what has arrived.
    #[inline]
    async fn step(&mut self) -> Result<(), End> {
        let (taken, step) = self.machine.step(self.input.bytes());
        let done = match step {
            Step::Continue | Step::Initialized(_) => Ok(()),
            Step::NeedMore => {
                self.input.take(taken);
                return self.receive().await;
            }
            Step::Command { command, data_bytes } => self.command(command, data_bytes).await,
            Step::Data { to, offset, len } => {
                let arriving = match to {
                    To::Capsule => self.capsule.as_mut(),
                    To::Transfer(tag) => self.asking.asked[usize::from(tag)].as_mut(),
                };
                let data = &mut arriving.expect("data follow a command").data;
                let from = offset as usize;
                // What is longer than the command's data is of no use.
                if let Some(place) = data.get_mut(from..) {
                    let useful = len.min(place.len());
                    place[..useful].copy_from_slice(&self.input.bytes()[..useful]);
                }
                Ok(())
            }
            Step::Receive { to, offset, len } => self.receive_data(to, offset as usize, len as usize).await,
            Step::Received { to, intact } => self.received(to, intact),
            Step::Close(violation) => Err(End::Violation(violation)),
        };
        self.input.take(taken);
        done
    }

    /// A command has arrived, `data_bytes` of whose data follow in its capsule.
    #[inline]
    async fn command(&mut self, command: Command, data_bytes: u32) -> Result<(), End> {
        self.commands_since += 1;
        if !self.queue.took() {
            return Err(End::Violation(Violation::QueueFull(self.queue.entries())));
        }
        let mut plan = self.plan(&command);
        let wanted = if command.direction() == Direction::ToController { command.dptr.length.get() } else { 0 };
        let place = command.dptr.place();
        let fits = match place {
            _ if wanted == 0 => data_bytes == 0,
            Some(Place::InCapsule(offset)) => offset == 0 && wanted <= data_bytes,
            Some(Place::Transport) => data_bytes == 0,
            None => false,
        };
        if !fits && !matches!(plan, Plan::Fail(_)) {
            let status = if place.is_none() { Status::SGL_TYPE_INVALID } else { Status::DATA_SGL_LENGTH_INVALID };
            plan = Plan::Fail(status);
        }
        let transport = matches!(place, Some(Place::Transport));
        let will_wait = wanted > 0 && transport && !matches!(plan, Plan::Fail(_));
        if will_wait {
            self.queue.link.hold();
            self.asking.unasked.push_back((command, plan));
            self.asking.ask(&mut self.machine, &self.queue);
            return Ok(());
        }
        self.admitted(plan.held_bytes()).await?;
        if data_bytes == 0 {
            self.dispatch(command, plan, None);
            return Ok(());
        }
        let len = if matches!(plan, Plan::Fail(_)) { 0 } else { wanted as usize };
        self.capsule = Some(Arriving { command, plan, data: self.env.alloc(len) });
        Ok(())
    }

    /// What a command means.
    #[inline]
    fn plan(&self, command: &Command) -> Plan<B> {
        match &self.role {
            Role::Io(namespaces) if command.opcode != FABRICS => match namespaces.plan(command) {
                Ok((handle, io)) => Plan::Io(handle, io),
                Err(status) => Plan::Fail(status),
            },
            // Neither authentication nor a second Connect.
            Role::Io(_) => Plan::Fail(Status::COMMAND_SEQUENCE_ERROR),
            Role::New | Role::Admin(_) if command.dptr.length.get() <= NVME_ADMIN_DATA_BYTES_MAX => Plan::Control,
            Role::New | Role::Admin(_) if command.direction() == Direction::ToHost => Plan::Control,
            Role::New | Role::Admin(_) => Plan::Fail(Status::INVALID_FIELD),
        }
    }

    /// All data of a command are there.
    fn received(&mut self, to: To, intact: bool) -> Result<(), End> {
        let arriving = match to {
            To::Capsule => self.capsule.take(),
            To::Transfer(tag) => self.asking.take(tag),
        };
        let Arriving { command, mut plan, data } = arriving.expect("its data were arriving");
        if !intact {
            // "the controller shall abort the command with Transient Transport Error" (TCP Transport 1.0, clause 3.3.1.2).
            self.give_up(&mut plan, Status::TRANSIENT_TRANSPORT_ERROR);
        } else if let Plan::Io(handle, _) = &plan
            && handle.is_ending()
        {
            // The namespace went while they arrived, and may be gone: nobody waits for this command.
            self.give_up(&mut plan, Status::INVALID_NAMESPACE);
        }
        self.dispatch(command, plan, Some(data));
        self.asking.ask(&mut self.machine, &self.queue);
        Ok(())
    }

    /// A command that was let in with its bytes will be answered without them.
    fn give_up(&self, plan: &mut Plan<B>, status: Status) {
        self.queue.link.shrink(plan.held_bytes());
        *plan = Plan::Fail(status);
    }

    /// Does what a command says, up to the point where it waits; from there on it is a task of its own.
    #[inline]
    fn dispatch(&mut self, command: Command, plan: Plan<B>, data: Option<BufMut>) {
        let cid = command.cid.get();
        match plan {
            Plan::Fail(status) => self.queue.complete(cid, status, 0, 0),
            Plan::Control => self.control(&command, data.as_deref().unwrap_or(&[])),
            Plan::Io(handle, io) => {
                handle.accepted(&io);
                let (queue, alarm) = (self.queue.clone(), self.alarm.clone());
                let mut serving = Box::pin(io::serve(queue, handle, cid, io, data, self.arrived, alarm));
                let mut context = Context::from_waker(Waker::noop());
                if serving.as_mut().poll(&mut context).is_pending() {
                    // The task polls it again and leaves its own waker.
                    self.env.spawn(serving);
                }
            }
        }
    }

    fn control(&mut self, command: &Command, data: &[u8]) {
        let cid = command.cid.get();
        match &mut self.role {
            Role::Admin(admin) => admin.execute(&self.queue, command, data, self.arrived),
            Role::New if command.opcode == FABRICS && command.fabrics_type() == fabrics::CONNECT => {
                match self.admit(command, data) {
                    Ok(cntlid) => self.queue.complete(cid, Status::SUCCESS, u64::from(cntlid), 0),
                    Err(Refused(status, result)) => {
                        tracing::info!(peer = self.peer, %status, "an NVMe host was refused");
                        self.queue.complete(cid, status, result, 0);
                    }
                }
            }
            _ => self.queue.complete(cid, Status::COMMAND_SEQUENCE_ERROR, 0, 0),
        }
    }

    /// Connect: makes the queue what it is to be. Gives the controller's number.
    fn admit(&mut self, command: &Command, data: &[u8]) -> Result<u16, Refused> {
        let admission = Admission::of(command, data)?;
        let connect = admission.connect;
        let (cntlid, role) = if connect.queue == 0 {
            let association = self.portal.admit(&admission, self.alarm.clone())?;
            let admin = Admin::new(&self.env, self.portal.clone(), association, &admission, self.local);
            (admin.association.cntlid, Role::Admin(Box::new(admin)))
        } else {
            let association = self.portal.association(&admission)?;
            let seat = association.seat(connect.queue, self.alarm.clone()).ok_or_else(Refused::QUEUE)?;
            let peer = format!("{} at {}, queue {}", association.host.nqn, self.peer, connect.queue);
            let cntlid = association.cntlid;
            let namespaces = Namespaces::new(self.portal.clone(), association, seat, peer, self.alarm.clone());
            (cntlid, Role::Io(namespaces))
        };
        self.queue.connected(connect.size + 1, connect.no_flow_control);
        self.role = role;
        Ok(cntlid)
    }

    /// Waits until the queue may hold another command.
    async fn admitted(&mut self, bytes: u64) -> Result<(), End> {
        if self.queue.link.admit(bytes) {
            return Ok(());
        }
        poll_fn(|context| {
            self.alarm.listen(context.waker());
            if let Some(end) = look(&self.alarm, &mut self.role, &self.queue) {
                return Poll::Ready(Err(end));
            }
            if self.queue.link.admit(bytes) {
                return Poll::Ready(Ok(()));
            }
            self.queue.link.wake_when_released(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Receives into the input.
    async fn receive(&mut self) -> Result<(), End> {
        let commands = std::mem::take(&mut self.commands_since);
        if self.pace.waits(self.arrived, commands) {
            self.env.sleep(pace::WAIT).await;
        }
        let (buf, free) = self.input.lend();
        let (buf, len) = self.receive_into(buf, free).await?;
        self.input.give_back(buf, len);
        Ok(())
    }

    /// Receives `len` bytes of data into their place, or some of them.
    async fn receive_data(&mut self, to: To, from: usize, len: usize) -> Result<(), End> {
        let arriving = match to {
            To::Capsule => self.capsule.as_mut(),
            To::Transfer(tag) => self.asking.asked[usize::from(tag)].as_mut(),
        };
        let data = &mut arriving.expect("data follow a command").data;
        if from + len > data.len() {
            // They are of no use: through the input, as ever.
            return self.receive().await;
        }
        let mut buf = std::mem::replace(data, BufMut::zeroed(0));
        // Other PDUs' data belong behind it.
        let rest = buf.split_off(from + len);
        let (mut buf, received) = self.receive_into(buf, from).await?;
        self.machine.received(&buf[from..from + received]);
        buf.unsplit(rest).expect("it was split off above");
        let arriving = match to {
            To::Capsule => self.capsule.as_mut(),
            To::Transfer(tag) => self.asking.asked[usize::from(tag)].as_mut(),
        };
        arriving.expect("it is still arriving").data = buf;
        Ok(())
    }

    /// One receive, unless the connection has to end first.
    async fn receive_into(&mut self, buf: BufMut, from: usize) -> Result<(BufMut, usize), End> {
        let mut receive = pin!(self.reader.recv(buf, from));
        let (buf, received) = poll_fn(|context| {
            self.alarm.listen(context.waker());
            match look(&self.alarm, &mut self.role, &self.queue) {
                Some(end) => Poll::Ready(Err(end)),
                None => {
                    self.asking.ask_when_released(&mut self.machine, &self.queue, context);
                    receive.as_mut().poll(context).map(Ok)
                }
            }
        })
        .await?;
        self.arrived = self.env.now();
        match received {
            Received::Bytes(len) => Ok((buf, len)),
            Received::End => Err(End::Host),
            Received::Flush | Received::Broken => Err(End::Broken),
        }
    }

    /// Lets go of commands whose data will not come.
    fn abandon(&mut self) {
        let link = &self.queue.link;
        for Arriving { plan, .. } in self.capsule.take().into_iter().chain(self.asking.asked.drain(..).flatten()) {
            link.abandon(plan.held_bytes());
        }
        for _ in self.asking.unasked.drain(..) {
            link.abandon(0);
        }
    }
}

/// Looks at what the alarm was rung for, if it was. Gives how the queue has to end, if it has to.
fn look<B: Block + 'static>(alarm: &Alarm, role: &mut Role<B>, queue: &Queue) -> Option<End> {
    if !alarm.take() {
        return None;
    }
    match role {
        Role::New => None,
        Role::Admin(admin) if admin.association.is_gone() => Some(End::Cut),
        Role::Admin(admin) => {
            admin.tell(queue);
            None
        }
        Role::Io(namespaces) => namespaces.must_end().then_some(End::Cut),
    }
}
