//! A host's end and a controller's end of one queue, in memory, with every cut of the bytes between
//! them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nvme::host::{Dialogue, HostError, Next, Submission};
use nvme::target::{Admission, Answer, Controller, Io, SubsystemView, copied, ranges};
use nvme::tcp::{HostLimits, HostReceiver, HostStep, Limits, Receiver, Request, Step, To, Transfer};
use nvme::{Command, Completion, DataPlace, Direction, Status};

use super::crc32c;
use super::view::Memory;

/// Pseudo-random numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end.max(1)
    }
}

enum Queue {
    Fresh,
    Admin(Box<Controller>),
    Io,
}

/// The controller's end.
pub struct Target {
    receiver: Receiver,
    queue: Queue,
    pub view: Rc<RefCell<Memory>>,
    /// The content of namespace 1.
    pub disk: Rc<RefCell<Vec<u8>>>,
    input: Vec<u8>,
    pub output: Vec<u8>,
    commands: Vec<(To, Command, Vec<u8>)>,
    /// Data end with SUCCESS instead of a response.
    pub success: bool,
    /// Data to the host in one PDU at most.
    pub piece_bytes: usize,
    /// R2Ts that were sent.
    pub asked: usize,
    /// The next data to the host are damaged.
    pub damage: bool,
    pub closed: Option<nvme::tcp::Violation>,
}

impl Target {
    fn run(&mut self) {
        while self.closed.is_none() {
            let (taken, step) = self.receiver.step(&self.input);
            let bytes: Vec<u8> = self.input.drain(..taken).collect();
            match step {
                Step::Continue => {}
                // Data come into the input as ever.
                Step::NeedMore | Step::Receive { .. } => return,
                Step::Initialized(head) => self.output.extend_from_slice(&head),
                Step::Command { command, data_bytes } => self.command(command, data_bytes),
                Step::Data { to, .. } => {
                    let waiting = self.commands.iter_mut().find(|(whose, ..)| *whose == to).expect("a command");
                    waiting.2.extend_from_slice(&bytes);
                }
                Step::Received { to, intact } => {
                    let at = self.commands.iter().position(|(whose, ..)| *whose == to).expect("a command");
                    let (_, command, data) = self.commands.remove(at);
                    match intact {
                        true => self.execute(&command, &data),
                        false => self.respond(command.cid.get(), Status::TRANSIENT_TRANSPORT_ERROR, 0),
                    }
                }
                Step::Close(violation) => {
                    let farewell = self.receiver.farewell(&violation);
                    self.output.extend_from_slice(&farewell);
                    self.closed = Some(violation);
                }
            }
        }
    }

    fn command(&mut self, command: Command, data_bytes: u32) {
        let len = command.dptr.length.get();
        let asks = command.direction() == Direction::ToController && command.dptr.place() == Some(DataPlace::Transport);
        if data_bytes > 0 {
            self.commands.push((To::Capsule, command, Vec::new()));
        } else if asks && len > 0 {
            let (tag, head) = self.receiver.ask(command.cid.get(), len).expect("there are tags enough");
            self.output.extend_from_slice(&head);
            self.asked += 1;
            self.commands.push((To::Transfer(tag), command, Vec::new()));
        } else {
            self.execute(&command, &[]);
        }
    }

    fn execute(&mut self, command: &Command, data: &[u8]) {
        let cid = command.cid.get();
        match &mut self.queue {
            Queue::Fresh => match Admission::of(command, data) {
                Ok(admission)
                    if admission.subsystem == self.view.borrow().subsystem.nqn || admission.connect.queue == 0 =>
                {
                    self.queue = match admission.connect.queue {
                        0 => Queue::Admin(Box::new(Controller::new(
                            admission.kind(),
                            5,
                            admission.host,
                            admission.connect.keep_alive_ms,
                            8192,
                        ))),
                        _ => Queue::Io,
                    };
                    self.respond(cid, Status::SUCCESS, 5);
                }
                Ok(_) => self.respond(cid, Status::CONNECT_INVALID_PARAMETERS, 1 << 16 | 256),
                Err(refused) => self.respond(cid, refused.0, refused.1),
            },
            Queue::Admin(controller) => {
                let (answer, _) = controller.execute(command, data, &*self.view.borrow());
                match answer {
                    Answer::Done(status, result) => self.respond(cid, status, result),
                    Answer::Data(data, _) => {
                        self.give(cid, &data[..data.len().min(command.dptr.length.get() as usize)])
                    }
                    Answer::Later => {}
                    // Nothing is saved here.
                    // Nothing waits here.
                    Answer::Abort(..) => self.respond(cid, Status::SUCCESS, 1),
                    Answer::Persistence(..) => self.respond(cid, Status::SUCCESS, 0),
                }
                self.tell();
            }
            Queue::Io => self.io(command, data),
        }
    }

    /// Events that are due.
    fn tell(&mut self) {
        let Queue::Admin(controller) = &mut self.queue else { return };
        let events: Vec<Completion> = std::iter::from_fn(|| controller.event()).collect();
        for event in events {
            self.respond(event.cid.get(), event.status(), event.result.get());
        }
    }

    /// Something happens to the controller.
    pub fn happens(&mut self, what: impl FnOnce(&mut Controller)) {
        let Queue::Admin(controller) = &mut self.queue else { panic!("no admin queue") };
        what(controller);
        self.tell();
    }

    fn io(&mut self, command: &Command, data: &[u8]) {
        let cid = command.cid.get();
        let Some(namespace) = self.view.borrow().namespace(command.nsid.get()) else {
            return self.respond(cid, Status::INVALID_NAMESPACE, 0);
        };
        let io = match Io::of(command, &namespace) {
            Ok(io) => io,
            Err(status) => return self.respond(cid, status, 0),
        };
        let place = |offset: u64, len: u32| offset as usize..offset as usize + len as usize;
        let disk = Rc::clone(&self.disk);
        let mut disk = disk.borrow_mut();
        let status = match io {
            Io::Read { offset, len, .. } => return self.give(cid, &disk[place(offset, len)]),
            Io::Write { offset, len, .. } => {
                disk[place(offset, len)].copy_from_slice(data);
                Status::SUCCESS
            }
            Io::Compare { offset, len, .. } if disk[place(offset, len)] != *data => Status::COMPARE_FAILURE,
            Io::WriteZeroes { offset, len, .. } => {
                disk[place(offset, len)].fill(0);
                Status::SUCCESS
            }
            Io::Deallocate { .. } => match ranges(&data[..io.data_bytes() as usize], &namespace) {
                Ok(ranges) => {
                    ranges.iter().for_each(|range| disk[place(range.offset, range.len as u32)].fill(0));
                    Status::SUCCESS
                }
                Err(status) => status,
            },
            Io::Copy { offset, .. } => match copied(data, offset, &namespace) {
                Ok((sources, to)) => {
                    let parts: Vec<u8> =
                        sources.iter().flat_map(|range| disk[place(range.offset, range.len as u32)].to_vec()).collect();
                    disk[place(to.offset, to.len as u32)].copy_from_slice(&parts);
                    Status::SUCCESS
                }
                Err(status) => status,
            },
            _ => Status::SUCCESS,
        };
        self.respond(cid, status, 0);
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) {
        let writer = self.receiver.writer().expect("initialized");
        self.output.extend_from_slice(&writer.response(Completion::new(cid, status, result)));
    }

    fn give(&mut self, cid: u16, data: &[u8]) {
        let writer = self.receiver.writer().expect("initialized");
        let mut offset = 0;
        for piece in data.chunks(self.piece_bytes) {
            let last = offset + piece.len() == data.len();
            let head = writer.data_to_host(cid, offset as u32, piece.len() as u32, last, last && self.success);
            self.output.extend_from_slice(&head);
            self.output.extend_from_slice(piece);
            if writer.digests().data {
                let mut digest = crc32c(piece);
                digest[0] ^= u8::from(std::mem::take(&mut self.damage));
                self.output.extend_from_slice(&digest);
            }
            offset += piece.len();
        }
        if !self.success {
            self.respond(cid, Status::SUCCESS, 0);
        }
    }
}

/// A command that has ended, as its host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub completion: Completion,
    pub data: Vec<u8>,
    pub intact: bool,
}

/// The host's end.
pub struct Host {
    pub receiver: HostReceiver,
    input: Vec<u8>,
    pub output: Vec<u8>,
    direct: bool,
    missing: Option<(u16, u32, u32)>,
    /// Data of commands in flight: those that are to be sent, and those that came.
    data: BTreeMap<u16, Vec<u8>>,
    pub ended: BTreeMap<u16, Ended>,
    pub receives: usize,
    /// H2CData PDUs that were sent.
    pub pieces: usize,
    pub closed: Option<nvme::tcp::Violation>,
}

impl Host {
    fn feed(&mut self, mut bytes: &[u8]) {
        if let Some((cid, offset, len)) = self.missing.take().filter(|_| self.direct) {
            let taken = bytes.len().min(len as usize);
            self.receiver.received(&bytes[..taken]);
            self.place(cid, offset, &bytes[..taken]);
            self.receives += 1;
            bytes = &bytes[taken..];
        }
        self.input.extend_from_slice(bytes);
        while self.closed.is_none() {
            let (taken, step) = self.receiver.step(&self.input);
            let bytes: Vec<u8> = self.input.drain(..taken).collect();
            match step {
                HostStep::Continue | HostStep::Initialized(_) => {}
                HostStep::NeedMore => return,
                HostStep::Data { cid, offset, len } => {
                    assert_eq!(len, taken, "data are what was taken");
                    self.place(cid, offset, &bytes);
                }
                HostStep::Receive { cid, offset, len } => {
                    assert!(self.input.is_empty());
                    self.missing = Some((cid, offset, len));
                    return;
                }
                HostStep::Requested(request) => self.requested(&request),
                HostStep::Completed { completion, intact } => {
                    let data = self.data.remove(&completion.cid.get()).unwrap_or_default();
                    self.ended.insert(completion.cid.get(), Ended { completion, data, intact });
                }
                HostStep::Close(violation) => self.closed = Some(violation),
            }
        }
    }

    fn place(&mut self, cid: u16, offset: u32, data: &[u8]) {
        let place = self.data.get_mut(&cid).expect("the command has room for data");
        place[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }

    fn requested(&mut self, request: &Request) {
        for piece in self.receiver.pieces(request) {
            self.output.extend_from_slice(&piece.head);
            let data = &self.data[&request.cid][piece.offset as usize..(piece.offset + piece.len) as usize];
            self.output.extend_from_slice(data);
            if self.receiver.writer().expect("initialized").digests().data {
                self.output.extend_from_slice(&crc32c(data));
            }
            self.pieces += 1;
        }
    }

    /// Sends a command. `data` go in the capsule, if its SGL says so; otherwise they are asked for
    /// or, of a read, come there.
    pub fn send(&mut self, mut command: Command, transfer: Transfer, data: &[u8]) -> u16 {
        let cid = self.receiver.begin(transfer).expect("the queue has room");
        command.cid = cid.into();
        let writer = self.receiver.writer().expect("initialized");
        let in_capsule = if transfer == Transfer::None { data } else { &[] };
        self.output.extend_from_slice(&writer.command(command, in_capsule.len()));
        self.output.extend_from_slice(in_capsule);
        if !in_capsule.is_empty() && writer.digests().data {
            self.output.extend_from_slice(&crc32c(in_capsule));
        }
        match transfer {
            Transfer::ToHost(len) => drop(self.data.insert(cid, vec![0xEE; len as usize])),
            _ => drop(self.data.insert(cid, data.to_vec())),
        }
        cid
    }

    pub fn submit(&mut self, submission: &Submission) -> u16 {
        self.send(submission.command, submission.transfer(), &submission.data)
    }
}

/// Both ends.
pub struct Pair {
    pub host: Host,
    pub target: Target,
    pub rng: Rng,
    /// Milliseconds that the host has waited.
    pub waited_ms: u32,
}

impl Pair {
    /// Ends that have shaken hands.
    pub fn new(target: Limits, host: HostLimits, view: Memory, direct: bool, seed: u64) -> Pair {
        let host = HostReceiver::new(host);
        let output = host.request().to_vec();
        let bytes = view.namespaces.first().map_or(0, |one| one.blocks * u64::from(one.block_bytes));
        let mut pair = Pair {
            host: Host {
                receiver: host,
                input: Vec::new(),
                output,
                direct,
                missing: None,
                data: BTreeMap::new(),
                ended: BTreeMap::new(),
                receives: 0,
                pieces: 0,
                closed: None,
            },
            target: Target {
                receiver: Receiver::new(target),
                queue: Queue::Fresh,
                view: Rc::new(RefCell::new(view)),
                disk: Rc::new(RefCell::new(vec![0xDD; bytes as usize])),
                input: Vec::new(),
                output: Vec::new(),
                commands: Vec::new(),
                success: false,
                piece_bytes: 1 << 20,
                asked: 0,
                damage: false,
                closed: None,
            },
            rng: Rng(seed | 1),
            waited_ms: 0,
        };
        pair.pump();
        pair
    }

    /// Carries bytes to and fro, cut at random, until nothing is left.
    pub fn pump(&mut self) {
        while !self.host.output.is_empty() || !self.target.output.is_empty() {
            let most = [3, 100, 5000, 100_000][self.rng.below(4)];
            let len = (1 + self.rng.below(most)).min(self.host.output.len());
            let bytes: Vec<u8> = self.host.output.drain(..len).collect();
            self.target.input.extend_from_slice(&bytes);
            self.target.run();
            let len = (1 + self.rng.below(most)).min(self.target.output.len());
            let bytes: Vec<u8> = self.target.output.drain(..len).collect();
            if !bytes.is_empty() {
                self.host.feed(&bytes);
            }
        }
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, command: Command, transfer: Transfer, data: &[u8]) -> Ended {
        let cid = self.host.send(command, transfer, data);
        self.pump();
        self.host.ended.remove(&cid).expect("the command is answered")
    }

    /// Carries a dialogue on until it is done.
    pub fn drive<D: Dialogue>(&mut self, dialogue: &mut D) -> Result<D::Outcome, HostError> {
        loop {
            match dialogue.next() {
                Next::Send(submission) => {
                    let ended = self.call(submission.command, submission.transfer(), &submission.data);
                    dialogue.answer(&ended.completion, &ended.data)?;
                }
                Next::Wait(ms) => self.waited_ms += ms,
                Next::Done(done) => return Ok(done),
            }
        }
    }
}
