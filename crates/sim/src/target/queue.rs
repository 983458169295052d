//! A queue: one connection, from its first byte to its last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ::drive::{BufMut, Env, Input, Segments, race};
use initiator::{Reader, Writer};
use nvme::target::{Admission, Answer, Controller, Effect, Refused};
use nvme::tcp::{Digests, Limits, Receiver, Step, To, Writer as Pdus};
use nvme::{Command, Completion, DataPlace, Direction, FABRICS, Status, fabrics};

use super::command::Arrived;
use super::{Association, TargetState};
use crate::net::{SimReader, SimWriter};
use crate::world::SimEnv;

/// Maximum data in a capsule: small, so that the data of many commands have to be requested.
const CAPSULE_DATA_BYTES: u32 = 8 << 10;

/// Bytes that are received at once.
const INPUT_BYTES: usize = 64 << 10;

/// Answers to be sent.
#[derive(Default)]
struct Outbox {
    bytes: RefCell<Vec<u8>>,
    is_closed: Cell<bool>,
    sender: RefCell<Option<Waker>>,
}

impl Outbox {
    fn put(&self, parts: &[&[u8]]) {
        if !self.is_closed.get() {
            parts.iter().for_each(|part| self.bytes.borrow_mut().extend_from_slice(part));
            self.wake();
        }
    }

    fn close(&self) {
        self.is_closed.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    /// Waits for bytes to send. `None`: the outbox is closed.
    async fn take(&self) -> Option<Vec<u8>> {
        poll_fn(|context| {
            if self.is_closed.get() {
                return Poll::Ready(None);
            }
            let bytes = self.bytes.take();
            if !bytes.is_empty() {
                return Poll::Ready(Some(bytes));
            }
            *self.sender.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// The kind of a queue.
enum Role {
    New,
    Admin(Box<Controller>, Rc<Association>),
    Io(Rc<Association>, u64),
}

struct Queue {
    env: SimEnv,
    inner: Rc<TargetState>,
    machine: Receiver,
    outbox: Rc<Outbox>,
    role: Role,
    /// Commands whose data are arriving: in a capsule, or by tag.
    capsule: Option<(Command, Vec<u8>)>,
    asked: BTreeMap<u16, (Command, Vec<u8>)>,
}

/// The queue has to end.
struct Ended;

/// Serves a host that has connected.
pub(super) fn serve(env: &SimEnv, inner: &Rc<TargetState>, reader: SimReader, writer: SimWriter) {
    let machine = Receiver::new(Limits {
        capsule_data_bytes_max: CAPSULE_DATA_BYTES,
        pdu_data_bytes_max: 1 << 20,
        transfers_max: nvme::target::QUEUE_ENTRIES_MAX,
        digests: Digests { header: true, data: true },
    });
    let outbox = Rc::new(Outbox::default());
    let queue = Queue {
        env: env.clone(),
        inner: inner.clone(),
        machine,
        outbox: outbox.clone(),
        role: Role::New,
        capsule: None,
        asked: BTreeMap::new(),
    };
    Env::spawn(env, send(outbox, writer));
    Env::spawn(env, queue.run(reader));
}

async fn send(outbox: Rc<Outbox>, mut writer: SimWriter) {
    while let Some(bytes) = outbox.take().await {
        if writer.send(Segments::from_iter([BufMut::copy_of(&bytes).freeze()])).await.is_err() {
            return outbox.close();
        }
    }
}

impl Queue {
    async fn run(mut self, mut reader: SimReader) {
        let mut input = Input::new(Env::alloc(&self.env, INPUT_BYTES));
        let mut ended: Pin<Box<dyn Future<Output = ()>>> = Box::pin(self.ended());
        let mut was_new = true;
        while let Ok(needs_more) = self.step(&mut input) {
            if was_new && !matches!(self.role, Role::New) {
                (was_new, ended) = (false, Box::pin(self.ended()));
            }
            if !needs_more {
                continue;
            }
            let (buf, free) = input.lend();
            let received = race(reader.recv(buf, free), ended.as_mut()).await;
            match received {
                Some((Ok(len), buf)) if len > 0 => input.give_back(buf, len),
                _ => break,
            }
        }
        // Received commands are executed to their end, but their answers are not sent.
        self.outbox.close();
        if let Role::Admin(controller, association) = &self.role {
            association.end(true);
            self.inner.associations.borrow_mut().remove(&controller.cntlid());
        }
    }

    /// Returns when the queue has to end.
    fn ended(&self) -> impl Future<Output = ()> + 'static {
        let association = match &self.role {
            Role::New => None,
            Role::Admin(_, association) => Some((association.clone(), None)),
            Role::Io(association, epoch) => Some((association.clone(), Some(*epoch))),
        };
        async move {
            let Some((association, epoch)) = association else { return std::future::pending().await };
            loop {
                let news = association.ended();
                if association.is_gone.get() || epoch.is_some_and(|epoch| association.epoch.get() != epoch) {
                    return;
                }
                let _ = news.await;
            }
        }
    }

    /// Processes one step of the received bytes. True: more bytes are needed.
    fn step(&mut self, input: &mut Input) -> Result<bool, Ended> {
        let (taken, step) = self.machine.step(input.bytes());
        match step {
            Step::Continue => {}
            Step::NeedMore | Step::Receive { .. } => {
                input.take(taken);
                return Ok(true);
            }
            Step::Initialized(head) => self.outbox.put(&[&head]),
            Step::Command { command, data_bytes } => self.command(command, data_bytes)?,
            Step::Data { to, len, .. } => {
                let data = match to {
                    To::Capsule => self.capsule.as_mut(),
                    To::Transfer(tag) => self.asked.get_mut(&tag),
                };
                data.expect("data follow a command").1.extend_from_slice(&input.bytes()[..len]);
            }
            Step::Received { to, intact } => {
                let arrived = match to {
                    To::Capsule => self.capsule.take(),
                    To::Transfer(tag) => self.asked.remove(&tag),
                };
                let (command, data) = arrived.expect("its data were arriving");
                assert!(intact, "this network damages nothing");
                self.execute(&command, data)?;
            }
            Step::Close(violation) => panic!("the initiator breaks the protocol: {violation}"),
        }
        input.take(taken);
        Ok(false)
    }

    fn command(&mut self, command: Command, data_bytes: u32) -> Result<(), Ended> {
        let wanted = if command.direction() == Direction::ToController { command.dptr.length.get() } else { 0 };
        if data_bytes > 0 {
            self.capsule = Some((command, Vec::new()));
        } else if wanted > 0 && command.dptr.place() == Some(DataPlace::Transport) {
            let (tag, request) = self.machine.ask(command.cid.get(), wanted).expect("a queue has no more commands");
            self.asked.insert(tag, (command, Vec::new()));
            self.outbox.put(&[&request]);
        } else {
            self.execute(&command, Vec::new())?;
        }
        Ok(())
    }

    /// A command has arrived with all its data.
    fn execute(&mut self, command: &Command, data: Vec<u8>) -> Result<(), Ended> {
        let cid = command.cid.get();
        let answers = Answers {
            pdus: self.machine.writer().expect("the connection is initialized"),
            outbox: self.outbox.clone(),
        };
        match &mut self.role {
            Role::New if command.opcode == FABRICS && command.fabrics_type() == fabrics::CONNECT => {
                match self.admit(command, &data) {
                    Ok(cntlid) => answers.complete(cid, Status::SUCCESS, u64::from(cntlid)),
                    Err(Refused(status, result)) => answers.complete(cid, status, result),
                }
            }
            Role::New => return Err(Ended),
            Role::Admin(controller, association) => {
                association.heard.set(Env::now(&self.env));
                let (answer, effect) = controller.execute(command, &data, &*self.inner);
                association.keep_alive.set(Duration::from_millis(controller.keep_alive_ms().into()));
                if effect != Effect::None {
                    association.end(false);
                }
                association.is_ready.set(controller.is_ready());
                match answer {
                    Answer::Done(status, result) => answers.complete(cid, status, result),
                    Answer::Data(mut data, result) => {
                        data.truncate(command.dptr.length.get() as usize);
                        answers.deliver(cid, &data, result);
                    }
                    Answer::Later => {}
                    Answer::Abort(..) => answers.complete(cid, Status::SUCCESS, 1),
                    Answer::Persistence(..) => answers.complete(cid, Status::INVALID_FIELD, 0),
                }
                while let Some(event) = controller.event() {
                    answers.respond(event);
                }
            }
            Role::Io(..) => {
                let (inner, arrived) = (self.inner.clone(), Arrived::new(&self.inner, command, data));
                Env::spawn(&self.env, async move {
                    let done = match arrived {
                        Ok(arrived) => arrived.execute(&inner).await,
                        Err(status) => Err(status),
                    };
                    match done {
                        Ok(Some(data)) => answers.deliver(cid, &data, 0),
                        Ok(None) => answers.complete(cid, Status::SUCCESS, 0),
                        Err(status) => answers.complete(cid, status, 0),
                    }
                });
            }
        }
        Ok(())
    }

    /// Connect. Gives the controller's ID.
    fn admit(&mut self, command: &Command, data: &[u8]) -> Result<u16, Refused> {
        let admission = Admission::of(command, data)?;
        let TargetState { subsystem, associations, next_cntlid, .. } = &*self.inner;
        if admission.subsystem != subsystem.nqn {
            return Err(Refused::SUBSYSTEM());
        }
        if admission.connect.queue != 0 {
            let association = associations.borrow().get(&admission.cntlid).cloned();
            let ready = association.filter(|association| association.is_ready.get() && !association.is_gone.get());
            let association = ready.ok_or_else(Refused::CONTROLLER)?;
            let epoch = association.epoch.get();
            self.role = Role::Io(association, epoch);
            return Ok(admission.cntlid);
        }
        let cntlid = next_cntlid.get();
        next_cntlid.set(cntlid % 0xFF00 + 1);
        let keep_alive = Duration::from_millis(admission.connect.keep_alive_ms.into());
        let association = Rc::new(Association {
            heard: Cell::new(Env::now(&self.env)),
            keep_alive: Cell::new(keep_alive),
            is_ready: Cell::new(false),
            is_gone: Cell::new(false),
            epoch: Cell::new(0),
            ending: RefCell::default(),
        });
        associations.borrow_mut().insert(cntlid, association.clone());
        Env::spawn(&self.env, watch(self.env.clone(), association.clone()));
        let (kind, ms) = (admission.kind(), admission.connect.keep_alive_ms);
        let controller = Controller::new(kind, cntlid, admission.host, ms, CAPSULE_DATA_BYTES);
        self.role = Role::Admin(Box::new(controller), association);
        Ok(cntlid)
    }
}

/// The keep alive timer: Base 2.0, clause 3.9.
async fn watch(env: SimEnv, association: Rc<Association>) {
    while !association.is_gone.get() {
        let limit = association.keep_alive.get();
        let silent = Duration::from_nanos(Env::now(&env) - association.heard.get());
        if limit.is_zero() || silent < limit {
            let wait = if limit.is_zero() { Duration::from_secs(60) } else { limit - silent };
            // The wait ends with the association, too.
            let _ = race(Env::sleep(&env, wait), ended(&association)).await;
            continue;
        }
        association.end(true);
    }
}

async fn ended(association: &Association) {
    let _ = association.ended().await;
}

/// Answers of one connection.
struct Answers {
    pdus: Pdus,
    outbox: Rc<Outbox>,
}

impl Answers {
    fn respond(&self, mut completion: Completion) {
        completion.sq_head = Completion::NO_FLOW_CONTROL.into();
        self.outbox.put(&[&self.pdus.response(completion)]);
    }

    fn complete(&self, cid: u16, status: Status, result: u64) {
        self.respond(Completion::new(cid, status, result));
    }

    fn deliver(&self, cid: u16, data: &[u8], result: u64) {
        let succeeds = result == 0;
        if !data.is_empty() {
            let head = self.pdus.data_to_host(cid, 0, data.len() as u32, true, succeeds);
            let digest = self.pdus.digests().data.then(|| gf::crc32c(data).to_le_bytes());
            self.outbox.put(&[&head, data, digest.as_ref().map_or(&[], |digest| digest)]);
        }
        if data.is_empty() || !succeeds {
            self.complete(cid, Status::SUCCESS, result);
        }
    }
}
