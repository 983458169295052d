//! One connection, which is one queue, from its first byte to its last.

mod admission;
mod commands;
mod reads;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use drive::{Block, BufMut, Env, Input, Nanos, within};
use nvme::auth::{Hash, Refusal};
use nvme::tcp::{Digests, Limits, Receiver, Step, To, Violation};
use nvme::tls::TlsIdentity;
use runtime::{Closer, ShardEnv, Stream};

use self::admission::{Role, Unproven};
use self::reads::Read;
use super::asking::{Arriving, Asking};
use super::authentication::Authentication;
use super::fused::Pair;
use super::portal::{Portal, RefusalKind};
use super::queue::Queue;
use crate::budget::Budget;
use crate::limits::{
    BEFORE_DATA_BYTES, INPUT_BYTES, LINGER_MAX, LONG_DATA_BYTES, NVME_CAPSULE_DATA_BYTES, NVME_FIRST_INPUT_BYTES,
    NVME_PDU_DATA_BYTES,
};
use crate::link::{Link, drained, send_answers};
use crate::pace::Pace;
use crate::server::{NewConnection, address_of};
use crate::state::Alarm;
use crate::wire::{Received, WireReader, WireWriter, accept_tls, split};

/// The reason why a connection ended; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The host closed the stream.
    Host,
    /// The connection has to end at once.
    Cut,
    /// The host broke the protocol: it was told so.
    Violation(Violation),
    /// The host failed to authenticate: it was told so.
    Refused(Refusal),
    /// Another connection has taken the queue's place.
    Taken,
    /// The socket failed.
    Broken,
}

/// The receiving side.
struct Receiving<B> {
    env: ShardEnv,
    queue: Rc<Queue>,
    alarm: Arc<Alarm>,
    portal: Portal<B>,
    budget: Arc<Budget>,
    peer: String,
    local: Option<std::net::SocketAddr>,
    /// Identity of the key that encrypts the connection, if it is encrypted.
    identity: Option<TlsIdentity>,
    role: Role<B>,
    /// The transaction by which the host authenticates, for the first time or again.
    authentication: Option<Authentication>,
    machine: Receiver,
    reader: WireReader,
    input: Input,
    /// The command whose data follows in its capsule.
    capsule: Option<Arriving<B>>,
    /// A first fused command. The second has to be the next command.
    first: Option<Rc<Pair<B>>>,
    asking: Asking<B>,
    /// When the last bytes arrived.
    arrived: Nanos,
    pace: Pace,
    /// Commands since the last receive.
    commands_since: u32,
    /// Reads that wait for others that came with them.
    reads: Vec<Read<B>>,
    /// Bytes that those read.
    reads_bytes: u64,
    /// The last receive put long data directly into its buffer.
    after_long_data: bool,
}

/// A connection whose host has sent ICReq, after a TLS handshake if it uses TLS.
struct Initialized {
    peer: String,
    local: Option<std::net::SocketAddr>,
    identity: Option<TlsIdentity>,
    reader: WireReader,
    writer: WireWriter,
    input: Input,
    machine: Receiver,
    /// The answer to ICReq, which is not sent yet.
    response: nvme::tcp::Head,
}

/// Serves a host until it leaves or its connection has to end.
pub(super) async fn run<B: Block + 'static>(
    env: ShardEnv,
    stream: Stream,
    new_connection: NewConnection,
    portal: Portal<B>,
    budget: Arc<Budget>,
) {
    let Some(connection) = open(&env, stream, &new_connection, &portal).await else { return };
    let (peer, closer) = (connection.peer.clone(), connection.writer.closer());
    let mut receiving = Receiving::start(env, connection, portal, budget);
    let end = receiving.run(&new_connection).await;
    tracing::debug!(%peer, ?end, "an NVMe/TCP queue ends");
    receiving.abandon();
    // Without its admin queue a controller has no I/O queues. Aborts wait for those.
    if let Role::Admin(admin) = &receiving.role {
        admin.end();
    }
    receiving.send_pending_answers(end, &closer).await;
    receiving.leave().await;
}

/// Initializes a connection. `None` if that fails, and the host is told if it broke the protocol.
async fn open<B: Block + 'static>(
    env: &ShardEnv,
    stream: Stream,
    new_connection: &NewConnection,
    portal: &Portal<B>,
) -> Option<Initialized> {
    let (peer, local) = (stream.peer.to_string(), stream.local);
    let (mut reader, mut writer) = split(env, stream);
    let mut input = Input::new(env.alloc(NVME_FIRST_INPUT_BYTES));
    let mut machine = Receiver::new(Limits {
        capsule_data_bytes_max: NVME_CAPSULE_DATA_BYTES,
        pdu_data_bytes_max: NVME_PDU_DATA_BYTES,
        transfers_max: nvme::target::QUEUE_ENTRIES_MAX,
        digests: Digests { header: true, data: true },
    });
    let initializing = async {
        let identity = secure(env, portal, &peer, &mut reader, &mut writer, &mut input).await?;
        Ok((identity, initialize(&mut machine, &mut reader, &mut input).await?))
    };
    match new_connection.within(env, initializing).await {
        Some(Ok((identity, response))) => {
            Some(Initialized { peer, local, identity, reader, writer, input, machine, response })
        }
        ended => {
            tracing::debug!(%peer, "an NVMe/TCP connection was not initialized");
            if let Some(Err(Some(violation))) = ended {
                // A few bytes, which an empty socket takes at once. If it fails, the host is gone.
                let _ = writer.send_bytes(machine.farewell(&violation)).await;
            }
            None
        }
    }
}

/// ContentType of a TLS record with a handshake: RFC 8446, clause 5.1. PDUs begin with their type,
/// and no type has this number.
const TLS_HANDSHAKE: u8 = 22;

/// Waits for the first bytes. If they begin a TLS handshake and the portal has TLS, completes the
/// handshake. Returns the identity of its key.
async fn secure<B: Block + 'static>(
    env: &ShardEnv,
    portal: &Portal<B>,
    peer: &str,
    reader: &mut WireReader,
    writer: &mut WireWriter,
    input: &mut Input,
) -> Result<Option<TlsIdentity>, Option<Violation>> {
    receive(reader, input).await?;
    if input.bytes().first() != Some(&TLS_HANDSHAKE) || !portal.has_tls() {
        return Ok(None);
    }
    let known = portal.clone();
    let find: psk::Find = Arc::new(move |name| {
        let psk = known.psk(&TlsIdentity::parse(name)?)?;
        let hash = if psk.identity.hash == Hash::Sha256 { psk::Hash::Sha256 } else { psk::Hash::Sha384 };
        Some(psk::Key { identity: name.to_vec(), secret: psk.secret().to_vec().into(), hash })
    });
    let arrived = input.bytes();
    match accept_tls(reader, writer, find, arrived).await {
        Ok(name) => {
            input.take(input.bytes().len());
            let identity = TlsIdentity::parse(&name).expect("the key was found by its identity");
            tracing::debug!(peer, identity = identity.text(), "an NVMe host encrypts");
            Ok(Some(identity))
        }
        Err(error) => {
            if let Some(count) = portal.refused(RefusalKind::Tls, address_of(peer), env.now()) {
                tracing::warn!(peer, %error, count, "an NVMe host was not let in by TLS");
            }
            Err(None)
        }
    }
}

/// Receives the next bytes.
async fn receive(reader: &mut WireReader, input: &mut Input) -> Result<(), Option<Violation>> {
    let (buf, free) = input.lend();
    let (buf, received) = reader.recv(buf, free).await;
    let Received::Bytes(len) = received else { return Err(None) };
    input.give_back(buf, len);
    Ok(())
}

/// Waits for ICReq. Returns the answer to it, or the host's violation if there was one.
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
            // Nothing else can arrive before ICReq.
            _ => {}
        }
        receive(reader, input).await?;
    }
}

impl<B: Block + 'static> Receiving<B> {
    /// Answers ICReq, and starts the task that sends answers.
    fn start(env: ShardEnv, connection: Initialized, portal: Portal<B>, budget: Arc<Budget>) -> Receiving<B> {
        let Initialized { peer, local, identity, reader, writer, input, machine, response } = connection;
        let pdus = machine.writer().expect("the connection is initialized");
        let link = Link::new(env.clone(), &writer);
        env.spawn(send_answers(link.clone(), writer));
        let queue = Queue::new(link, pdus);
        queue.say(&response);
        let arrived = env.now();
        Receiving {
            env,
            queue,
            alarm: Arc::default(),
            portal,
            budget,
            peer,
            local,
            identity,
            role: Role::New,
            authentication: None,
            machine,
            reader,
            input,
            capsule: None,
            first: None,
            asking: Asking { asked: Vec::new(), bytes: 0, unasked: VecDeque::new(), over: Rc::default() },
            arrived,
            pace: Pace::new(arrived),
            commands_since: 0,
            reads: Vec::new(),
            reads_bytes: 0,
            after_long_data: false,
        }
    }

    async fn run(&mut self, new_connection: &NewConnection) -> End {
        match self.connect(new_connection).await {
            Ok(()) => self.input.move_to(self.env.alloc(INPUT_BYTES)),
            Err(end) => return self.farewell(end),
        }
        loop {
            if let Err(end) = self.step().await {
                self.begin_reads();
                return self.farewell(end);
            }
        }
    }

    /// Serves a new queue until it is connected, and its host has authenticated if it has to. The
    /// time for this is limited.
    async fn connect(&mut self, new_connection: &NewConnection) -> Result<(), End> {
        let env = self.env.clone();
        let connecting = async {
            while matches!(self.role, Role::New | Role::Unproven(_)) {
                self.step().await?;
                if matches!(self.role, Role::Unproven(_)) {
                    new_connection.proves();
                }
            }
            new_connection.stays();
            Ok(())
        };
        new_connection.within(&env, connecting).await.unwrap_or(Err(End::Cut))
    }

    /// Tells a host about its violation.
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

    /// Processes one step of the data that has arrived.
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
                // Bytes beyond the command's data are of no use.
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

    /// Waits until the queue may hold another command.
    async fn admitted(&mut self, bytes: u64) -> Result<(), End> {
        if self.queue.link.admit(bytes) {
            return Ok(());
        }
        self.begin_reads();
        poll_fn(|context| {
            self.alarm.listen(context.waker());
            if let Some(end) = look(&self.alarm, &mut self.role, &self.queue, &mut self.asking, &mut self.capsule) {
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

    /// Receives into the input buffer.
    async fn receive(&mut self) -> Result<(), End> {
        self.begin_reads();
        self.queue.link.send_at_once();
        let commands = std::mem::take(&mut self.commands_since);
        match self.pace.wait(self.arrived, commands) {
            Some(wait) => self.env.sleep(wait).await,
            None => self.queue.link.answers_go_first().await,
        }
        let (mut buf, free) = self.input.lend();
        let is_short = std::mem::take(&mut self.after_long_data) && buf.len() - free > BEFORE_DATA_BYTES;
        let rest = is_short.then(|| buf.split_off(free + BEFORE_DATA_BYTES));
        let (mut buf, len) = self.receive_into(buf, free).await?;
        rest.map_or(Ok(()), |rest| buf.unsplit(rest)).expect("it was split off above");
        self.input.give_back(buf, len);
        Ok(())
    }

    /// Receives up to `len` bytes of data directly into their buffer.
    async fn receive_data(&mut self, to: To, from: usize, len: usize) -> Result<(), End> {
        let arriving = match to {
            To::Capsule => self.capsule.as_mut(),
            To::Transfer(tag) => self.asking.asked[usize::from(tag)].as_mut(),
        };
        let data = &mut arriving.expect("data follow a command").data;
        if from + len > data.len() {
            // The data is of no use: it goes through the input buffer.
            return self.receive().await;
        }
        let mut buf = std::mem::replace(data, BufMut::zeroed(0));
        self.begin_reads();
        // Data of later PDUs belongs behind it.
        let rest = buf.split_off(from + len);
        let (mut buf, received) = self.receive_into(buf, from).await?;
        self.machine.received(&buf[from..from + received]);
        buf.unsplit(rest).expect("it was split off above");
        self.after_long_data = buf.len() >= LONG_DATA_BYTES;
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
            match look(&self.alarm, &mut self.role, &self.queue, &mut self.asking, &mut self.capsule) {
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

    /// Pending answers are still sent, unless the host does not take them.
    async fn send_pending_answers(&self, end: End, closer: &Closer) {
        let link = &self.queue.link;
        let lingers = matches!(end, End::Host | End::Violation(_) | End::Refused(_) | End::Taken);
        if !(lingers && within(&self.env, LINGER_MAX, drained(link)).await.is_some()) {
            link.die();
            closer.close();
            drained(link).await;
        }
        link.finish();
    }

    /// Leaves the association, and makes the changes of an I/O queue durable.
    async fn leave(&self) {
        match &self.role {
            Role::New | Role::Unproven(Unproven::Io(..)) => {}
            Role::Admin(admin) | Role::Unproven(Unproven::Admin(admin)) => admin.leave(),
            Role::Io(namespaces) => {
                namespaces.flush().await;
                namespaces.leave();
            }
        }
    }

    /// Releases commands whose data will not come.
    fn abandon(&mut self) {
        if let Role::Io(namespaces) = &self.role {
            namespaces.drop_waiting();
        }
        self.queue.link.drop_waiting();
        self.asking.unasked.append(&mut self.asking.over.end());
        let link = &self.queue.link;
        let mut pairs: Vec<Rc<Pair<B>>> = self.first.take().into_iter().collect();
        for Arriving { job, .. } in self.capsule.take().into_iter().chain(self.asking.asked.drain(..).flatten()) {
            link.abandon(job.plan.held_bytes());
            pairs.extend(job.fused.map(|(pair, _)| pair));
        }
        for job in self.asking.unasked.drain(..) {
            link.abandon(0);
            pairs.extend(job.fused.map(|(pair, _)| pair));
        }
        // Parts that have arrived wait for others that will not come.
        for bytes in pairs.iter().flat_map(|pair| pair.abandon()) {
            link.abandon(bytes);
        }
    }
}

/// Handles the causes of a rung alarm. Returns how the queue has to end, if it has to.
fn look<B: Block + 'static>(
    alarm: &Alarm,
    role: &mut Role<B>,
    queue: &Queue,
    asking: &mut Asking<B>,
    capsule: &mut Option<Arriving<B>>,
) -> Option<End> {
    if !alarm.take() {
        return None;
    }
    match role {
        Role::New => None,
        Role::Unproven(unproven) => unproven.association().is_gone().then_some(End::Cut),
        Role::Admin(admin) if admin.association.is_gone() => Some(End::Cut),
        Role::Admin(admin) => {
            admin.tell(queue);
            None
        }
        Role::Io(namespaces) => {
            for request in namespaces.take_aborts() {
                match capsule {
                    Some(Arriving { job, .. }) if job.may_be_aborted(request.cid) => job.abort = Some(request),
                    _ => {
                        if let Some(request) = asking.abort(request, queue) {
                            queue.waiting.abort(request);
                        }
                    }
                }
            }
            namespaces.must_end().then_some(End::Cut)
        }
    }
}
