//! A server of three exports and a client that feeds it bytes.
#![allow(dead_code, reason = "each test binary uses its part")]

use nbd::{
    Command, Directory, ExportInfo, Handshake, Listed, Progress, Refusal, Request, Step, TlsPolicy, Transmission,
    client,
};

pub const DISK_BYTES: u64 = 64 << 20;

/// `disk` is writable, `image` is read-only, `leaving` is being stopped. The default is `disk`.
pub struct Exports;

impl Directory for Exports {
    type Export = String;

    fn list(&self) -> Vec<Listed> {
        let listed = |name: &str, text: &str| Listed { name: name.into(), description: text.into() };
        vec![listed("disk", "a disk"), listed("image", "")]
    }

    fn find(&self, name: &str) -> Result<(String, ExportInfo), Refusal> {
        let name = match name {
            "" | "disk" => "disk",
            "image" => "image",
            "leaving" => return Err(Refusal::ShuttingDown),
            _ => return Err(Refusal::Unknown),
        };
        let info = ExportInfo {
            name: name.into(),
            description: format!("this is {name}"),
            size_bytes: DISK_BYTES,
            read_only: name == "image",
            multi_conn: true,
            block_bytes_preferred: 4096,
        };
        Ok((name.into(), info))
    }
}

/// The result of a connection, independent of how its bytes were cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// Bytes for the client in the handshake phase.
    pub sent: Vec<u8>,
    /// Events, one line each; the data of a write are one event.
    pub events: Vec<String>,
    /// The connection was ended by the server or by agreement.
    pub closed: bool,
    /// TLS was started: the state machines do not get the bytes from here on.
    pub tls: bool,
    /// Bytes that the state machines took.
    pub taken: usize,
}

enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
    Over,
}

/// A connection as a driver would run it.
pub struct Connection {
    phase: Phase,
    input: Vec<u8>,
    data: Vec<u8>,
    missing: u32,
    last_command: Option<Command>,
    /// Use direct receives for large payloads.
    pub direct: bool,
    pub trace: Trace,
}

impl Connection {
    pub fn new(tls: TlsPolicy) -> Connection {
        let mut trace = Trace::default();
        let phase = Phase::Handshake(Handshake::new(tls, &mut trace.sent));
        Connection { phase, input: Vec::new(), data: Vec::new(), missing: 0, last_command: None, direct: true, trace }
    }

    /// A connection in the transmission phase, on `name`.
    pub fn on(name: &str, structured: bool, allocation: bool) -> Connection {
        let mut connection = Connection::new(TlsPolicy::Off);
        let mut bytes = client::flags(true, true);
        if structured {
            bytes.extend(client::option(nbd::wire::opt::STRUCTURED_REPLY, &[]));
        }
        if allocation {
            bytes.extend(client::meta_context(true, name, &["base:allocation"]));
        }
        bytes.extend(client::go(name, &[]));
        connection.feed(&bytes);
        assert!(matches!(connection.phase, Phase::Transmission(_)), "{:?}", connection.trace);
        connection.trace = Trace::default();
        connection
    }

    /// Bytes arrive.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if matches!(self.phase, Phase::Over) {
                return;
            }
            // A direct receive takes the missing bytes and leaves the rest to the next receive.
            if self.missing > 0 && self.direct {
                let Phase::Transmission(machine) = &mut self.phase else { unreachable!("data in the handshake") };
                let len = bytes.len().min(self.missing as usize);
                self.data.extend_from_slice(&bytes[..len]);
                self.trace.taken += len;
                bytes = &bytes[len..];
                self.missing -= len as u32;
                if machine.received(len as u32) {
                    self.end_of_data();
                }
                if self.missing == 0 {
                    self.run();
                }
                continue;
            }
            self.input.extend_from_slice(bytes);
            bytes = &[];
            self.run();
        }
    }

    fn run(&mut self) {
        loop {
            match &mut self.phase {
                Phase::Over => return,
                Phase::Handshake(machine) => {
                    let (taken, progress) = machine.step(&self.input, &Exports, &mut self.trace.sent);
                    self.take(taken);
                    match progress {
                        Progress::Continue => {}
                        Progress::NeedMore => return,
                        Progress::StartTls => {
                            self.trace.tls = true;
                            return self.close("tls");
                        }
                        Progress::Entered(machine, name) => {
                            self.trace.events.push(format!("entered {name} {machine:?}"));
                            self.phase = Phase::Transmission(machine);
                        }
                        Progress::Ended => return self.close("ended"),
                        Progress::Close(violation) => return self.close(&violation.to_string()),
                    }
                }
                Phase::Transmission(machine) => {
                    let (taken, step) = machine.step(&self.input);
                    if let Step::Data { len, last } = step {
                        assert_eq!(taken, len);
                        self.data.extend_from_slice(&self.input[..len]);
                        self.take(taken);
                        if last {
                            self.end_of_data();
                        }
                        continue;
                    }
                    self.take(taken);
                    match step {
                        Step::Continue => {}
                        Step::NeedMore => return,
                        Step::Receive { len } => {
                            assert!(self.input.is_empty());
                            self.missing = len;
                            return;
                        }
                        Step::Request(Request { command, .. }) => {
                            self.trace.events.push(format!("{step:?}"));
                            self.last_command = Some(command);
                        }
                        Step::Refused { .. } => self.trace.events.push(format!("{step:?}")),
                        Step::Disconnect => return self.close("disconnect"),
                        Step::Close(violation) => return self.close(&violation.to_string()),
                        Step::Data { .. } => unreachable!("handled above"),
                    }
                }
            }
        }
    }

    fn take(&mut self, taken: usize) {
        self.input.drain(..taken);
        self.trace.taken += taken;
    }

    fn end_of_data(&mut self) {
        let Some(Command::Write { len, .. }) = self.last_command else { panic!("data without a write") };
        assert_eq!(self.data.len(), len as usize, "a write gets exactly its data");
        let sum = self.data.iter().fold(1u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        self.trace.events.push(format!("data {} {sum:x}", self.data.len()));
        self.data.clear();
    }

    fn close(&mut self, why: &str) {
        self.trace.events.push(format!("closed: {why}"));
        self.trace.closed = true;
        self.phase = Phase::Over;
    }
}

/// Feeds `bytes` in pieces of the given sizes, repeated.
pub fn run(tls: TlsPolicy, bytes: &[u8], pieces: &[usize], direct: bool) -> Trace {
    let mut connection = Connection::new(tls);
    connection.direct = direct;
    let mut left = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !left.is_empty() {
        let size = sizes.next().unwrap_or(usize::MAX).clamp(1, left.len());
        connection.feed(&left[..size]);
        left = &left[size..];
    }
    connection.trace
}

/// The replies in `sent`, after the greeting.
pub fn option_replies(sent: &[u8]) -> Vec<client::OptionReply> {
    let mut rest = &sent[18..];
    let mut replies = Vec::new();
    while let Some(reply) = client::option_reply(&mut rest) {
        replies.push(reply);
    }
    assert!(rest.is_empty(), "{} bytes are no reply", rest.len());
    replies
}

/// A small generator of pseudo-random numbers (xorshift64*), so that a seed repeats a run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

impl Connection {
    /// How replies of this session are encoded.
    pub fn replies(&self) -> nbd::Replies {
        let Phase::Transmission(machine) = &self.phase else { panic!("still in the handshake") };
        machine.replies()
    }
}
