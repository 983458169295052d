//! A controller's side of a connection and a host that feeds it bytes; a subsystem in memory.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod admin;
pub mod pair;
pub mod reservation_model;
pub mod stream;
pub mod view;

use nvme::tcp::{Limits, Receiver, Step, To, Violation};
use nvme::{Command, DataPlace, Direction};
use zerocopy::IntoBytes;

/// The limits that the controllers of these tests offer.
pub const LIMITS: Limits = Limits {
    capsule_data_bytes_max: 8192,
    pdu_data_bytes_max: 128 << 10,
    transfers_max: 4,
    digests: nvme::tcp::Digests { header: true, data: true },
};

/// Something that a connection did, the same however its bytes were cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Initialized(Vec<u8>),
    Command { command: Vec<u8>, data_bytes: u32 },
    Asked { tag: u16, cid: u16, pdu: Vec<u8> },
    Received { to: To, data: Vec<u8>, intact: bool },
    Closed { violation: Violation, farewell: Vec<u8> },
}

/// A connection as a driver would run it: every write whose data are not in its capsule is asked
/// for them at once.
pub struct Link {
    pub receiver: Receiver,
    pub events: Vec<Event>,
    /// Receive long data straight into place.
    direct: bool,
    /// How often that was done.
    pub receives: usize,
    input: Vec<u8>,
    missing: Option<(To, u32, u32)>,
    /// The data that has arrived, by its transfer.
    arrived: Vec<(To, Vec<u8>)>,
    /// Writes that could not be asked yet.
    waiting: std::collections::VecDeque<(u16, u32)>,
    pub over: bool,
}

impl Link {
    pub fn new(limits: Limits, direct: bool) -> Link {
        Link {
            receiver: Receiver::new(limits),
            events: Vec::new(),
            direct,
            receives: 0,
            input: Vec::new(),
            missing: None,
            arrived: Vec::new(),
            waiting: std::collections::VecDeque::new(),
            over: false,
        }
    }

    /// Bytes arrive.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if self.over {
            return;
        }
        if let Some((to, offset, len)) = self.missing.take().filter(|_| self.direct) {
            let taken = bytes.len().min(len as usize);
            self.receiver.received(&bytes[..taken]);
            self.data(to, offset, &bytes[..taken]);
            self.receives += 1;
            bytes = &bytes[taken..];
        }
        self.input.extend_from_slice(bytes);
        self.run();
    }

    fn run(&mut self) {
        while !self.over {
            let (taken, step) = self.receiver.step(&self.input);
            let head: Vec<u8> = self.input.drain(..taken).collect();
            match step {
                Step::Continue => {}
                Step::NeedMore => return,
                Step::Initialized(head) => self.events.push(Event::Initialized(head.to_vec())),
                Step::Command { command, data_bytes } => self.command(command, data_bytes),
                Step::Data { to, offset, len } => {
                    assert_eq!(len, taken, "data are what was taken");
                    self.data(to, offset, &head);
                }
                Step::Receive { to, offset, len } => {
                    assert!(self.input.is_empty() && len > 0, "what has arrived comes first");
                    self.missing = Some((to, offset, len));
                    return;
                }
                Step::Received { to, intact } => {
                    let at = self.arrived.iter().position(|(whose, _)| *whose == to).expect("data have arrived");
                    let (_, data) = self.arrived.remove(at);
                    self.events.push(Event::Received { to, data, intact });
                    if let Some((cid, len)) = self.waiting.pop_front() {
                        self.ask(cid, len);
                    }
                }
                Step::Close(violation) => {
                    let farewell = self.receiver.farewell(&violation);
                    self.events.push(Event::Closed { violation, farewell });
                    self.over = true;
                }
            }
        }
    }

    fn command(&mut self, command: Command, data_bytes: u32) {
        self.events.push(Event::Command { command: command.as_bytes().to_vec(), data_bytes });
        let len = command.dptr.length.get();
        let travels =
            command.direction() == Direction::ToController && command.dptr.place() == Some(DataPlace::Transport);
        if travels && len > 0 {
            self.ask(command.cid.get(), len);
        }
    }

    fn ask(&mut self, cid: u16, len: u32) {
        match self.receiver.ask(cid, len) {
            Some((tag, head)) => self.events.push(Event::Asked { tag, cid, pdu: head.to_vec() }),
            None => self.waiting.push_back((cid, len)),
        }
    }

    fn data(&mut self, to: To, offset: u32, data: &[u8]) {
        let at = self.arrived.iter().position(|(whose, _)| *whose == to).unwrap_or_else(|| {
            self.arrived.push((to, Vec::new()));
            self.arrived.len() - 1
        });
        let arrived = &mut self.arrived[at].1;
        assert_eq!(arrived.len(), offset as usize, "data come in order");
        arrived.extend_from_slice(data);
    }
}

/// Feeds `bytes` in pieces of the given sizes, repeated; none are one piece.
pub fn run(limits: Limits, bytes: &[u8], pieces: &[usize], direct: bool) -> Link {
    let mut link = Link::new(limits, direct);
    let mut left = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !left.is_empty() {
        let size = sizes.next().unwrap_or(usize::MAX).clamp(1, left.len());
        link.feed(&left[..size]);
        left = &left[size..];
    }
    link
}

/// CRC-32C bit by bit, with nothing in common with the crate's.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 != 0 { sum >> 1 ^ 0x82F6_3B78 } else { sum >> 1 };
        }
    }
    (!sum).to_le_bytes()
}
