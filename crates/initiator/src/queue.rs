//! A queue: one connection, and the commands in flight on it.
//!
//! Invariants:
//! 1. A command keeps its buffers and its place in flight until it is answered or the controller
//!    has ended, even if its caller has stopped waiting. So a buffer into which data may still
//!    arrive is never used for another purpose.
//! 2. Commands that become ready in one turn leave in one gathered send.
//! 3. When the controller ends, every command in flight fails. No command begins after that.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use drive::{Buf, BufMut, Input, Nanos, Segments, Sender, oneshot, race, within};
use nvme::tcp::{Digests, HostReceiver, HostStep, Request, Transfer};
use nvme::{Command, Completion, DataPlace};
use smallvec::smallvec;

use crate::Lost;
use crate::connection::{Connection, receive};
use crate::gate::{Gate, Pass};
use crate::network::Network;
use crate::outbox::Outbox;
use crate::termination::Termination;
use crate::wire::{WireReader, WireWriter};

/// Time limit for the last message to a controller.
const FAREWELL_MAX: Duration = Duration::from_millis(100);

/// The data of a command.
#[derive(Debug)]
pub enum Payload {
    /// No data.
    None,
    /// Data from the controller, which fill this buffer.
    ToHost(BufMut),
    /// Data from the controller, which may be shorter than this buffer. The rest of the buffer
    /// stays as it is.
    ToHostUpTo(BufMut),
    /// Data for the controller: in the capsule if the command's descriptor says so, or otherwise
    /// when the controller requests them.
    ToController(Segments),
}

/// A command to execute. The queue sets its identifier.
#[derive(Debug)]
pub struct Call {
    /// The command, with a data descriptor that fits the payload.
    pub command: Command,
    /// Its data.
    pub payload: Payload,
    /// The command may wait without a time limit: an event request.
    pub is_patient: bool,
}

/// The result of a command.
#[derive(Debug)]
pub struct Reply {
    /// The controller's answer.
    pub completion: Completion,
    /// The buffer of [`Payload::ToHost`] or [`Payload::ToHostUpTo`]. After a success the first is
    /// full.
    pub data: Option<BufMut>,
    /// Whether the digests of the data were right, if there were any. Otherwise the data must not
    /// be used.
    pub is_intact: bool,
}

/// A command in flight.
struct Sent {
    /// `None` while data are received into it.
    reply: Option<BufMut>,
    /// Data for the controller, sent when it requests them.
    data: Segments,
    answer: Sender<Reply>,
    since: Nanos,
    is_patient: bool,
    was_aborted: bool,
    _pass: Pass,
}

struct State {
    machine: HostReceiver,
    /// By command identifier.
    sent: Vec<Option<Sent>>,
    outbox: Outbox,
    /// Time when the controller last answered a command of this queue, or requested or sent data
    /// for one. Answers to aborted commands do not count.
    heard: Nanos,
    /// The send time of the newest command that the controller has answered.
    newest_answered: Nanos,
    /// A message to the controller about its protocol violation. It replaces all other output.
    farewell: Vec<u8>,
    sender: Option<Waker>,
}

/// A queue. A handle.
pub(crate) struct Queue<N: Network> {
    inner: Rc<QueueShared<N>>,
}

/// State that the handles of a queue and its two tasks share.
struct QueueShared<N> {
    env: N,
    gate: Rc<Gate>,
    termination: Rc<Termination>,
    state: RefCell<State>,
}

impl<N: Network> Clone for Queue<N> {
    fn clone(&self) -> Self {
        Queue { inner: self.inner.clone() }
    }
}

impl<N: Network> Queue<N> {
    /// Takes over a connection, and sends and receives until the controller ends. `commands_max` is
    /// the limit of commands in flight.
    pub fn start(env: &N, connection: Connection<N>, commands_max: usize, termination: Rc<Termination>) -> Queue<N> {
        let Connection { reader, writer, machine, input } = connection;
        let state = State {
            machine,
            sent: Vec::new(),
            outbox: Outbox::default(),
            heard: env.now(),
            newest_answered: 0,
            farewell: Vec::new(),
            sender: None,
        };
        let gate = Gate::new(commands_max);
        let inner = Rc::new(QueueShared { env: env.clone(), gate, termination, state: RefCell::new(state) });
        env.spawn(send_all(inner.clone(), writer));
        env.spawn(receive_all(inner.clone(), reader, input));
        Queue { inner }
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.inner.state.borrow().machine.in_flight()
    }

    /// The digests that were agreed on.
    pub fn digests(&self) -> Digests {
        self.inner.state.borrow().machine.writer().expect("the connection is initialized").digests()
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The controller has ended. It is unknown whether it has executed the command.
    pub async fn execute(&self, call: Call) -> Result<Reply, Lost> {
        let QueueShared { env, gate, termination, state } = &*self.inner;
        let ended = || termination.lost().unwrap_or(Lost::Disconnected);
        let pass = gate.pass().await.map_err(|_| ended())?;
        if termination.is_sealed() {
            return Err(ended());
        }
        let (sender, receiver) = oneshot();
        let waker = state.borrow_mut().begin(call, pass, sender, env.now());
        if let Some(waker) = waker {
            waker.wake();
        }
        receiver.await.map_err(|_| ended())
    }

    /// Time when the controller last answered a command on this queue.
    pub fn heard(&self) -> Nanos {
        self.inner.state.borrow().heard
    }

    /// Late commands that must be aborted; each is returned only once. The second value is true if
    /// a late command has waited for more than 1.5 times the limit.
    ///
    /// A command is late if it has waited for longer than `limit` and one of these holds: the
    /// controller has answered no command for that time (`heard` is its last answer on any queue),
    /// or it has answered a command that was sent more than `limit` later. A controller that is
    /// only busy answers in order, and commands that wait there are not late.
    pub fn overdue(&self, limit: Duration, heard: Nanos) -> (Vec<u16>, bool) {
        let now = self.inner.env.now();
        let limit = limit.as_nanos() as u64;
        let (mut late, mut is_hopeless) = (Vec::new(), false);
        let mut state = self.inner.state.borrow_mut();
        let (is_silent, newest_answered) = (now.saturating_sub(heard) > limit, state.newest_answered);
        for (cid, sent) in state.sent.iter_mut().enumerate() {
            let Some(sent) = sent.as_mut().filter(|sent| !sent.is_patient) else { continue };
            if !is_silent && newest_answered.saturating_sub(sent.since) <= limit {
                continue;
            }
            let age = now.saturating_sub(sent.since);
            is_hopeless |= age > limit + limit / 2;
            if age > limit && !std::mem::replace(&mut sent.was_aborted, true) {
                late.push(cid as u16);
            }
        }
        (late, is_hopeless)
    }
}

impl State {
    /// Puts a command in the outbox. Returns the waker of the sending task.
    fn begin(&mut self, call: Call, pass: Pass, answer: Sender<Reply>, now: Nanos) -> Option<Waker> {
        let Call { mut command, payload, is_patient } = call;
        let in_capsule = matches!(command.dptr.place(), Some(DataPlace::InCapsule(_)));
        let (transfer, reply, data) = match payload {
            Payload::None => (Transfer::None, None, Segments::new()),
            Payload::ToHost(buf) => (Transfer::ToHost(buf.len() as u32), Some(buf), Segments::new()),
            Payload::ToHostUpTo(buf) => (Transfer::ToHostUpTo(buf.len() as u32), Some(buf), Segments::new()),
            Payload::ToController(data) if in_capsule => (Transfer::None, None, data),
            Payload::ToController(data) => (Transfer::ToController(bytes_of(&data) as u32), None, data),
        };
        let cid = self.machine.begin(transfer).expect("whoever has a pass finds a free identifier");
        command.cid = cid.into();
        let writer = self.machine.writer().expect("the connection is initialized");
        let inside = if in_capsule { bytes_of(&data) } else { 0 };
        self.outbox.put(&writer.command(command, inside));
        let data = if in_capsule {
            put_data(&mut self.outbox, &data, 0, inside, writer.digests().data);
            Segments::new()
        } else {
            data
        };
        let at = usize::from(cid);
        if self.sent.len() <= at {
            self.sent.resize_with(at + 1, || None);
        }
        self.sent[at] = Some(Sent { reply, data, answer, since: now, is_patient, was_aborted: false, _pass: pass });
        self.sender.take()
    }

    fn sent(&mut self, cid: u16) -> &mut Sent {
        self.sent[usize::from(cid)].as_mut().expect("the machine tells of commands in flight only")
    }

    /// Answers an R2T: puts the requested data in the outbox.
    fn supply(&mut self, request: &Request) -> Option<Waker> {
        let digests = self.machine.writer().expect("the connection is initialized").digests();
        let State { machine, sent, outbox, .. } = self;
        let sent = sent[usize::from(request.cid)].as_ref().expect("the machine tells of commands in flight only");
        for piece in machine.pieces(request) {
            outbox.put(&piece.head);
            put_data(outbox, &sent.data, piece.offset as usize, piece.len as usize, digests.data);
        }
        self.sender.take()
    }
}

fn bytes_of(data: &Segments) -> usize {
    data.iter().map(|segment| segment.len()).sum()
}

/// Adds `len` bytes of `data` from `offset` on, and their digest.
fn put_data(outbox: &mut Outbox, data: &[Buf], offset: usize, len: usize, digest: bool) {
    let (mut at, mut left, mut sum) = (offset, len, gf::crc32c(&[]));
    for segment in data {
        if left == 0 {
            break;
        }
        if at >= segment.len() {
            at -= segment.len();
            continue;
        }
        let part = segment.slice(at..segment.len().min(at + left));
        if digest {
            sum = gf::crc32c_append(sum, &part);
        }
        (at, left) = (0, left - part.len());
        outbox.put_body(part);
    }
    if digest && len > 0 {
        outbox.put(&sum.to_le_bytes());
    }
}

/// The sending task of a queue.
async fn send_all<N: Network>(inner: Rc<QueueShared<N>>, mut writer: WireWriter<N>) {
    let QueueShared { env, termination, state, .. } = &*inner;
    loop {
        let ready = poll_fn(|context| {
            let mut state = state.borrow_mut();
            if !state.outbox.is_empty() {
                return Poll::Ready(());
            }
            state.sender = Some(context.waker().clone());
            Poll::Pending
        });
        if race(ready, termination.ended()).await.is_none() {
            let farewell = std::mem::take(&mut state.borrow_mut().farewell);
            if !farewell.is_empty() {
                // An error is ignored: the connection may not accept it.
                let _ = within(env, FAREWELL_MAX, writer.send(smallvec![Buf::from(farewell)])).await;
            }
            let _ = within(env, FAREWELL_MAX, writer.goodbye()).await;
            return;
        }
        // Other commands that become ready in this turn are sent together.
        env.turn_end().await;
        let segments = state.borrow_mut().outbox.take(env);
        match race(writer.send(segments), termination.ended()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return termination.end(Lost::failed(&error)),
            None => return,
        }
    }
}

/// The receiving task of a queue.
async fn receive_all<N: Network>(inner: Rc<QueueShared<N>>, reader: WireReader<N>, input: Input) {
    let receiving = Receiving { inner: inner.clone(), reader, input };
    if let Some(lost) = race(receiving.run(), inner.termination.ended()).await {
        inner.termination.end(lost);
    }
    inner.gate.close();
    let sent = std::mem::take(&mut inner.state.borrow_mut().sent);
    // Dropping them wakes the waiting callers.
    drop(sent);
}

/// The next input that is needed.
enum Wants {
    Nothing,
    Input,
    /// `len` bytes into `reply`, from `offset` on.
    Data {
        cid: u16,
        reply: BufMut,
        offset: usize,
        len: usize,
    },
}

struct Receiving<N: Network> {
    inner: Rc<QueueShared<N>>,
    reader: WireReader<N>,
    input: Input,
}

impl<N: Network> Receiving<N> {
    async fn run(mut self) -> Lost {
        loop {
            let done = match self.step() {
                Ok(Wants::Nothing) => Ok(()),
                Ok(Wants::Input) => receive(&mut self.reader, &mut self.input).await,
                Ok(Wants::Data { cid, reply, offset, len }) => self.receive_data(cid, reply, offset, len).await,
                Err(lost) => Err(lost),
            };
            if let Err(lost) = done {
                return lost;
            }
        }
    }

    fn step(&mut self) -> Result<Wants, Lost> {
        let now = self.inner.env.now();
        let mut state = self.inner.state.borrow_mut();
        let (taken, step) = state.machine.step(self.input.bytes());
        let (mut waker, mut answered) = (None, None);
        match step {
            HostStep::Continue | HostStep::Initialized(_) => {}
            HostStep::NeedMore => {
                self.input.take(taken);
                return Ok(Wants::Input);
            }
            HostStep::Data { cid, offset, len } => {
                let reply = state.sent(cid).reply.as_mut().expect("data come for commands that wait for some");
                reply[offset as usize..offset as usize + len].copy_from_slice(&self.input.bytes()[..len]);
            }
            HostStep::Receive { cid, offset, len } => {
                let reply = state.sent(cid).reply.take().expect("data come for commands that wait for some");
                return Ok(Wants::Data { cid, reply, offset: offset as usize, len: len as usize });
            }
            HostStep::Requested(request) => {
                state.heard = now;
                waker = state.supply(&request);
            }
            HostStep::Completed { completion, intact } => {
                let sent = state.sent[usize::from(completion.cid.get())].take();
                let sent = sent.expect("the machine tells of commands in flight only");
                if !sent.was_aborted {
                    (state.heard, state.newest_answered) = (now, state.newest_answered.max(sent.since));
                }
                answered = Some((sent, completion, intact));
            }
            HostStep::Close(violation) => {
                state.farewell = state.machine.farewell(&violation);
                return Err(Lost::Violation(violation));
            }
        }
        drop(state);
        self.input.take(taken);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some((Sent { reply, answer, .. }, completion, is_intact)) = answered {
            answer.send(Reply { completion, data: reply, is_intact });
        }
        Ok(Wants::Nothing)
    }

    /// Receives directly into the command's buffer.
    async fn receive_data(&mut self, cid: u16, mut reply: BufMut, offset: usize, len: usize) -> Result<(), Lost> {
        let rest = reply.split_off(offset + len);
        let (received, mut reply) = self.reader.recv(reply, offset).await;
        let now = self.inner.env.now();
        let mut state = self.inner.state.borrow_mut();
        state.heard = now;
        match received {
            Ok(0) => return Err(Lost::Closed),
            Ok(len) => state.machine.received(&reply[offset..offset + len]),
            Err(error) => return Err(Lost::failed(&error)),
        }
        reply.unsplit(rest).expect("taken apart above");
        state.sent(cid).reply = Some(reply);
        Ok(())
    }
}
