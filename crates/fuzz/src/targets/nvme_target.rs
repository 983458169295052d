//! An NVMe/TCP target without sockets: how a driver uses the controller's state machines, and the
//! properties on which it relies.

use std::collections::VecDeque;

use nvme::fabrics_data::DiscoveryEntry;
use nvme::target::{
    AccessState, Activity, Admission, Answer, CompareAndWrite, Controller, Event, Happened, Happening, History, Io,
    Kind, Namespace, Past, QUEUE_ENTRIES_MAX, QUEUES_MAX, Reservations, Subsystem, SubsystemView, TRANSFER_BYTES_MAX,
    copied, ranges,
};
use nvme::tcp::{Digests, Limits, Receiver, Step, To};
use nvme::{
    Access, Command, Completion, DISCOVERY_NQN, DataPlace, Direction, FABRICS, Fuse, Nqn, Status, admin, fabrics,
};
use zerocopy::FromZeros;

use crate::rng::Rng;

pub(super) const SUBSYSTEM: &str = "nqn.2026-11.com.example:view";

pub(super) const LIMITS: Limits = Limits {
    capsule_data_bytes_max: 8192,
    pdu_data_bytes_max: 64 << 10,
    transfers_max: 4,
    digests: Digests { header: true, data: true },
};

/// The longest terminate request: TCP Transport 1.0, figure 21.
const FAREWELL_BYTES_MAX: usize = 152;

/// Blocks of namespace 1, of 4 KiB; namespace 3 has as many of 512 bytes and is read-only.
pub(super) const BLOCKS: u64 = 1 << 20;

struct Memory(Subsystem);

impl Memory {
    fn new() -> Memory {
        let nqn: Nqn = SUBSYSTEM.parse().expect("a name");
        Memory(Subsystem { nqn, serial: "SN-1".to_owned(), firmware: "0.1.0".to_owned() })
    }
}

impl SubsystemView for Memory {
    fn subsystem(&self) -> &Subsystem {
        &self.0
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let block_bytes = match nsid {
            1 => 4096,
            3 => 512,
            _ => return None,
        };
        let read_only = nsid == 3;
        Some(Namespace {
            nsid,
            blocks: BLOCKS,
            block_bytes,
            optimal_write_bytes: 1 << 18,
            uuid: [7; 16],
            read_only,
            deallocated_reads_zeroes: true,
            thin_blocks: None,
        })
    }

    fn access(&self, nsid: u32) -> Option<AccessState> {
        self.namespace(nsid)?;
        let state = if nsid == 1 { Access::Optimized } else { Access::NonOptimized };
        Some(AccessState { state, count: 1 })
    }

    fn reservations_persist(&self, nsid: u32) -> bool {
        nsid == 3
    }

    fn namespaces_above(&self, nsid: u32) -> Vec<u32> {
        [1, 3].into_iter().filter(|above| *above > nsid).collect()
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        let mut entry = DiscoveryEntry::new_zeroed();
        (entry.trtype, entry.subtype, entry.subnqn) = (3, 2, self.0.nqn.field());
        (9, vec![entry; 3])
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }

    fn past(&self) -> Past {
        // One event of each kind, and a change of a namespace that the host may not access.
        let change =
            |hosts| Happening::NamespaceChange { created: true, nsid: 1, blocks: BLOCKS, block_bytes: 4096, hosts };
        let reset = Happening::ControllerReset { cntlid: 1, port: 4420, power_cycles: 2, power_on_ms: 3 };
        let what = [Happening::PowerOn, reset, change(None), change(Some(["nqn.another".to_owned()].into()))];
        let happened = what.map(|what| Happened { unix_ms: 1, firmware: "0.1.0".to_owned(), what });
        let history = History::restore(happened.into_iter(), 4);
        Past { history, power_cycles: 2, power_on_s: 7200, unix_ms: 4, port: 4420 }
    }
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Done {
    Initialized(Digests),
    Asked { tag: u16, cid: u16 },
    Data { to: To, len: u32, sum: u64, intact: bool },
    Answered { cid: u16, status: Status, result: u64 },
    Answer { cid: u16, len: usize, sum: u64 },
    Io(Io),
    Ended { why: String, farewell: Vec<u8> },
}

/// The kind of queue, once a Connect command was accepted.
#[derive(Debug)]
enum Queue {
    Fresh,
    Admin(Box<Controller>),
    Io,
}

/// Data that is arriving, for a command that waits for it.
struct Arriving {
    to: To,
    command: Command,
    len: u32,
    data: Vec<u8>,
}

struct Connection {
    receiver: Receiver,
    queue: Queue,
    view: Memory,
    reservations: Reservations,
    /// The first part of a fused operation, until another command is executed.
    first: Option<(u32, Io)>,
    input: Vec<u8>,
    direct: bool,
    missing: Option<(To, u32, u32)>,
    arriving: Vec<Arriving>,
    /// Commands whose data could not be requested yet.
    waiting: VecDeque<Command>,
    steps: usize,
    done: Vec<Done>,
    over: bool,
}

fn sum(data: &[u8]) -> u64 {
    data.iter().fold(1_u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

impl Connection {
    fn new(direct: bool) -> Connection {
        Connection {
            receiver: Receiver::new(LIMITS),
            queue: Queue::Fresh,
            view: Memory::new(),
            reservations: Reservations::default(),
            first: None,
            input: Vec::new(),
            direct,
            missing: None,
            arriving: Vec::new(),
            waiting: VecDeque::new(),
            steps: 0,
            done: Vec::new(),
            over: false,
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        if let Some((to, offset, len)) = self.missing.take().filter(|_| self.direct) {
            let (data, rest) = bytes.split_at(bytes.len().min(len as usize));
            self.receiver.received(data);
            self.data(to, offset, data);
            bytes = rest;
        }
        self.input.extend_from_slice(bytes);
        while !self.over && self.step() {
            self.steps += 1;
        }
    }

    /// One step. Returns false if there is nothing more to do with this input.
    fn step(&mut self) -> bool {
        let (taken, step) = self.receiver.step(&self.input);
        let bytes: Vec<u8> = self.input.drain(..taken).collect();
        match step {
            Step::Continue => {}
            Step::NeedMore => {
                assert!(self.input.len() <= 256, "a header is short, and {} bytes wait", self.input.len());
                return false;
            }
            Step::Initialized(head) => {
                let digests = self.receiver.writer().expect("it is initialized").digests();
                assert_eq!((head.len(), head[11]), (128, digests.bits()));
                self.done.push(Done::Initialized(digests));
            }
            Step::Command { command, data_bytes } => self.command(command, data_bytes),
            Step::Data { to, offset, len } => {
                assert_eq!(len, taken, "data are what was taken");
                self.data(to, offset, &bytes);
            }
            Step::Receive { to, offset, len } => {
                assert!(self.input.is_empty() && len > 0, "what has arrived comes first");
                self.missing = Some((to, offset, len));
                return false;
            }
            Step::Received { to, intact } => self.received(to, intact),
            Step::Close(violation) => {
                let farewell = self.receiver.farewell(&violation);
                assert_eq!(farewell.is_empty(), violation.fatal_error().is_none());
                assert!(farewell.len() <= FAREWELL_BYTES_MAX);
                self.done.push(Done::Ended { why: violation.to_string(), farewell });
                self.over = true;
            }
        }
        true
    }

    fn command(&mut self, command: Command, data_bytes: u32) {
        assert!(data_bytes <= LIMITS.capsule_data_bytes_max, "{data_bytes} bytes in a capsule");
        if data_bytes > 0 {
            assert!(self.arriving.iter().all(|arriving| arriving.to != To::Capsule), "one capsule after the other");
            self.arriving.push(Arriving { to: To::Capsule, command, len: data_bytes, data: Vec::new() });
            return;
        }
        let len = command.dptr.length.get();
        match (command.direction(), command.dptr.place()) {
            (Direction::ToController, Some(DataPlace::Transport)) if (1..=TRANSFER_BYTES_MAX).contains(&len) => {
                self.ask(command);
            }
            _ => self.execute(&command, &[], true),
        }
    }

    fn ask(&mut self, command: Command) {
        let (cid, len) = (command.cid.get(), command.dptr.length.get());
        let Some((tag, head)) = self.receiver.ask(cid, len) else {
            let transfers = self.arriving.iter().filter(|arriving| arriving.to != To::Capsule).count();
            assert_eq!(transfers, usize::from(LIMITS.transfers_max), "as many as there may be are asked");
            self.waiting.push_back(command);
            return;
        };
        assert!(tag < LIMITS.transfers_max && self.arriving.iter().all(|arriving| arriving.to != To::Transfer(tag)));
        assert!(head.len() >= 24);
        self.arriving.push(Arriving { to: To::Transfer(tag), command, len, data: Vec::new() });
        self.done.push(Done::Asked { tag, cid });
    }

    fn data(&mut self, to: To, offset: u32, data: &[u8]) {
        let arriving = self.arriving.iter_mut().find(|arriving| arriving.to == to).expect("somebody waits for them");
        assert_eq!(arriving.data.len(), offset as usize, "data come in order");
        assert!(data.len() <= (arriving.len - offset) as usize, "no more data than were asked for");
        arriving.data.extend_from_slice(data);
    }

    fn received(&mut self, to: To, intact: bool) {
        let at = self.arriving.iter().position(|arriving| arriving.to == to).expect("somebody waits for them");
        let Arriving { command, len, data, .. } = self.arriving.remove(at);
        assert_eq!(data.len(), len as usize, "all data are there");
        self.done.push(Done::Data { to, len, sum: sum(&data), intact });
        self.execute(&command, &data, intact);
        if to != To::Capsule
            && let Some(command) = self.waiting.pop_front()
        {
            self.ask(command);
        }
    }

    fn execute(&mut self, command: &Command, data: &[u8], intact: bool) {
        let cid = command.cid.get();
        if !intact {
            return self.answer(cid, Status::TRANSIENT_TRANSPORT_ERROR, 0);
        }
        match &mut self.queue {
            Queue::Fresh => {
                let connects = command.opcode == FABRICS && command.fabrics_type() == fabrics::CONNECT;
                if !connects {
                    return self.answer(cid, Status::COMMAND_SEQUENCE_ERROR, 0);
                }
                match Admission::of(command, data) {
                    Ok(admission) => self.admit(cid, admission),
                    Err(refused) => self.answer(cid, refused.0, refused.1),
                }
            }
            Queue::Admin(controller) => {
                let (answer, _) = controller.execute(command, data, &self.view);
                if command.opcode == admin::KEEP_ALIVE {
                    controller.namespace_changed(command.nsid.get() & 0xFFF);
                    controller.happened(Event::AccessChanged);
                }
                let events: Vec<Completion> = std::iter::from_fn(|| controller.event()).collect();
                match answer {
                    Answer::Done(status, result) => self.answer(cid, status, result),
                    Answer::Data(data, _) => {
                        assert!(data.len() <= TRANSFER_BYTES_MAX as usize && data.len() % 4 == 0);
                        self.done.push(Done::Answer { cid, len: data.len(), sum: sum(&data[..data.len().min(4096)]) });
                    }
                    Answer::Later => {}
                    Answer::Abort(queue, _) => {
                        assert!(queue != 0, "the controller knows its own queue");
                        self.answer(cid, Status::SUCCESS, 1);
                    }
                    Answer::Persistence(nsids, _) => {
                        assert!(nsids.iter().all(|nsid| self.view.namespace(*nsid).is_some()));
                        self.answer(cid, Status::SUCCESS, 0);
                    }
                }
                for event in events {
                    self.answer(event.cid.get(), event.status(), event.result.get());
                }
            }
            Queue::Io => self.io(command, data),
        }
    }

    fn admit(&mut self, cid: u16, admission: Admission) {
        assert!((1..QUEUE_ENTRIES_MAX).contains(&admission.connect.size) && admission.connect.queue <= QUEUES_MAX);
        let names = [SUBSYSTEM, DISCOVERY_NQN];
        if !names.contains(&admission.subsystem.as_str()) {
            let refused = nvme::target::Refused::SUBSYSTEM();
            return self.answer(cid, refused.0, refused.1);
        }
        let kind = admission.kind();
        self.queue = match admission.connect.queue {
            0 => {
                let keep_alive_ms = admission.connect.keep_alive_ms;
                Queue::Admin(Box::new(Controller::new(kind, 1, admission.host, keep_alive_ms, 8192)))
            }
            _ if kind == Kind::Io => Queue::Io,
            _ => Queue::Fresh,
        };
        self.answer(cid, Status::SUCCESS, 1);
    }

    fn io(&mut self, command: &Command, data: &[u8]) {
        let cid = command.cid.get();
        let Some(namespace) = self.view.namespace(command.nsid.get()) else {
            return self.answer(cid, Status::INVALID_NAMESPACE, 0);
        };
        let end = namespace.blocks * u64::from(namespace.block_bytes);
        let io = match Io::of(command, &namespace) {
            Ok(io) => io,
            Err(status) => return self.answer(cid, status, 0),
        };
        let (changes, range) = match io {
            Io::Flush | Io::Hint { .. } | Io::Reserve(_) | Io::Report { .. } => (false, None),
            Io::Deallocate { .. } | Io::Copy { .. } => (true, None),
            Io::Read { offset, len, .. } | Io::Compare { offset, len, .. } | Io::Verify { offset, len, .. } => {
                (false, Some((offset, len)))
            }
            Io::Write { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => (true, Some((offset, len))),
        };
        assert!(!(changes && namespace.read_only), "{io:?} on a read-only namespace");
        assert!(range.is_none_or(|(offset, len)| offset + u64::from(len) <= end), "{io:?} behind the end");
        assert!(io.data_bytes() <= TRANSFER_BYTES_MAX, "{io:?} is too long");
        self.done.push(Done::Io(io));
        let nsid = command.nsid.get();
        let first = self.first.take().filter(|first| first.0 == nsid);
        match (command.fuse(), first) {
            (Fuse::First, _) => self.first = Some((nsid, io)),
            (Fuse::Second, Some((_, first))) => {
                let Ok(pair) = CompareAndWrite::of(&first, &io, &namespace) else {
                    return self.answer(cid, Status::INVALID_FIELD, 0);
                };
                let is_block = pair.len == namespace.block_bytes && pair.offset.is_multiple_of(pair.len.into());
                assert!(is_block && pair.offset < end && !namespace.read_only, "{pair:?}");
            }
            _ => {}
        }
        if let Io::Reserve(reserve) = io {
            // Every fourth command is from another host.
            let host = [1 + u8::from(cid.is_multiple_of(4)); 16];
            let applied = reserve.request(data).and_then(|request| self.reservations.apply(&host, &request));
            let (registrants, held) = (self.reservations.registrants().clone(), self.reservations.held());
            let saved = Reservations::restore(registrants, held, self.reservations.generation());
            assert!(saved.is_some(), "{:?} cannot be restored", self.reservations);
            return self.answer(cid, applied.err().unwrap_or(Status::SUCCESS), self.reservations.generation().into());
        }
        if let Io::Copy { offset, .. } = io
            && let Some(data) = data.get(..io.data_bytes() as usize)
        {
            match copied(data, offset, &namespace) {
                Ok((from, to)) => assert!(from.iter().chain([&to]).all(|range| range.offset + range.len <= end)),
                Err(status) => return self.answer(cid, status, 0),
            }
        }
        // A driver checks that the data it received is as long as the command's data.
        if let Io::Deallocate { .. } = io
            && let Some(data) = data.get(..io.data_bytes() as usize)
        {
            match ranges(data, &namespace) {
                Ok(ranges) => assert!(ranges.iter().all(|range| range.len > 0 && range.offset + range.len <= end)),
                Err(status) => return self.answer(cid, status, 0),
            }
        }
        self.answer(cid, Status::SUCCESS, 0);
    }

    fn answer(&mut self, cid: u16, status: Status, result: u64) {
        let completion = Completion::new(cid, status, result);
        assert_eq!((completion.cid.get(), completion.status()), (cid, status));
        self.done.push(Done::Answered { cid, status, result });
    }
}

/// How a stream of bytes is cut and received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// 0: byte by byte; otherwise the seed for the sizes of the pieces.
    pub pieces: u8,
    /// Receive long data past the input buffer.
    pub direct: bool,
}

/// Feeds `bytes` as a whole and in pieces, and compares the results.
///
/// # Panics
/// If a promise is broken.
pub(super) fn check(bytes: &[u8], way: Way) {
    let whole = run(bytes, way.direct, |_| usize::MAX);
    let mut rng = Rng::new(way.pieces.into());
    let cut = run(bytes, !way.direct, |fed| match way.pieces {
        0 if fed < 4096 => 1,
        _ if rng.one_in(4) => 1 + rng.below(70_000),
        _ => 1 + rng.below(60),
    });
    assert_eq!(whole, cut, "the cut of the stream changes nothing");
}

fn run(bytes: &[u8], direct: bool, mut piece: impl FnMut(usize) -> usize) -> Vec<Done> {
    let mut connection = Connection::new(direct);
    let mut left = bytes;
    let mut feeds = 0;
    while !left.is_empty() && !connection.over {
        let (now, later) = left.split_at(piece(bytes.len() - left.len()).clamp(1, left.len()));
        connection.feed(now);
        left = later;
        feeds += 1;
    }
    // Each step takes bytes, or reports that data without a digest is complete.
    assert!(connection.steps <= 2 * (bytes.len() + feeds), "{} steps for {} bytes", connection.steps, bytes.len());
    connection.done
}
