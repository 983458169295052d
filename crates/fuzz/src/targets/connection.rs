//! An NBD server without sockets: how a driver uses the two state machines, and the properties on
//! which it relies.

use nbd::{
    Command, Descriptor, Directory, ExportInfo, Handshake, INPUT_BYTES_MIN, Listed, PAYLOAD_BYTES_MAX, Progress,
    Refusal, Request, Step, TlsPolicy, Transmission, client,
};

use crate::rng::Rng;

pub(super) const DISK_BYTES: u64 = 64 << 20;

/// Limit for the answer of one step of the handshake, with the exports of [`Exports`]: more than a
/// list of all of them.
const ANSWER_BYTES_MAX: usize = 6 << 10;

/// The greeting: two magics and flags.
const GREETING_BYTES: usize = 18;

/// `disk` is writable. `image` is read-only and has a description that is too long for the
/// protocol. `leaving` and `barred` are refused. The default is `disk`.
struct Exports;

impl Directory for Exports {
    type Export = ExportInfo;

    fn list(&self) -> Vec<Listed> {
        let names = ["disk", "image"];
        names.into_iter().map(|name| Listed { name: name.to_owned(), description: description(name) }).collect()
    }

    fn find(&self, name: &str) -> Result<(ExportInfo, ExportInfo), Refusal> {
        let name = match name {
            "" | "disk" => "disk",
            "image" => "image",
            "leaving" => return Err(Refusal::ShuttingDown),
            "barred" => return Err(Refusal::Forbidden),
            _ => return Err(Refusal::Unknown),
        };
        let info = ExportInfo {
            name: name.to_owned(),
            description: description(name),
            size_bytes: DISK_BYTES,
            read_only: name == "image",
            multi_conn: true,
            block_bytes_preferred: 4096,
        };
        Ok((info.clone(), info))
    }
}

fn description(name: &str) -> String {
    if name == "image" { "é".repeat(2500) } else { String::new() }
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Entered(String),
    Tls,
    Request(Request),
    Refused {
        cookie: u64,
        errno: nbd::Errno,
    },
    /// All data of a write, as its length and a checksum.
    Data {
        len: u32,
        sum: u64,
    },
    Ended(String),
}

/// Everything that a client can see and that the server was told. It must not depend on how the
/// bytes are cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Trace {
    sent: Vec<u8>,
    events: Vec<Event>,
    taken: usize,
}

enum Phase {
    Handshake(Handshake),
    Transmission(Transmission, ExportInfo),
    Over,
}

struct Connection {
    phase: Phase,
    input: Vec<u8>,
    /// Bytes of a write that are to be received past the input buffer; see [`Step::Receive`].
    missing: u32,
    direct: bool,
    write: Option<(u32, Event)>,
    steps: usize,
    trace: Trace,
}

impl Connection {
    fn new(tls: TlsPolicy, direct: bool) -> Connection {
        let mut trace = Trace::default();
        let phase = Phase::Handshake(Handshake::new(tls, &mut trace.sent));
        assert_eq!(trace.sent.len(), GREETING_BYTES);
        Connection { phase, input: Vec::new(), missing: 0, direct, write: None, steps: 0, trace }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while self.missing > 0 && self.direct && !bytes.is_empty() {
            let Phase::Transmission(machine, _) = &mut self.phase else { panic!("data outside of a transmission") };
            let (data, rest) = bytes.split_at(bytes.len().min(self.missing as usize));
            bytes = rest;
            self.missing -= data.len() as u32;
            let last = machine.received(data.len() as u32);
            self.data(data, last);
            self.trace.taken += data.len();
            if last {
                assert_eq!(self.missing, 0, "a write ends with the data that were asked for");
                self.run();
            }
        }
        self.missing = if self.direct { self.missing } else { 0 };
        self.input.extend_from_slice(bytes);
        if self.missing == 0 {
            self.run();
        }
    }

    fn run(&mut self) {
        while self.step() {
            self.steps += 1;
        }
    }

    /// One step. Returns false if there is nothing more to do with this input.
    fn step(&mut self) -> bool {
        match &mut self.phase {
            Phase::Over => false,
            Phase::Handshake(machine) => {
                let before = self.trace.sent.len();
                let (taken, progress) = machine.step(&self.input, &Exports, &mut self.trace.sent);
                assert!(self.trace.sent.len() - before <= ANSWER_BYTES_MAX, "an option is answered with little");
                self.handshake(taken, progress)
            }
            Phase::Transmission(machine, _) => {
                let (taken, step) = machine.step(&self.input);
                self.transmission(taken, step)
            }
        }
    }

    fn handshake(&mut self, taken: usize, progress: Progress<ExportInfo>) -> bool {
        let full = self.input.len() >= INPUT_BYTES_MIN;
        self.take(taken);
        match progress {
            Progress::Continue => assert!(taken > 0, "a message has bytes"),
            Progress::NeedMore => {
                assert!(taken > 0 || !full, "a receive buffer of the smallest size holds a whole message");
                return false;
            }
            Progress::StartTls => {
                let Phase::Handshake(machine) = &self.phase else { panic!("TLS starts in the handshake") };
                assert!(machine.secure());
                self.trace.events.push(Event::Tls);
            }
            Progress::Entered(machine, export) => {
                self.trace.events.push(Event::Entered(format!("{} {machine:?}", export.name)));
                self.phase = Phase::Transmission(machine, export);
            }
            Progress::Ended => return self.end("ended"),
            Progress::Close(violation) => return self.end(&violation.to_string()),
        }
        true
    }

    fn transmission(&mut self, taken: usize, step: Step) -> bool {
        if let Step::Data { len, last } = step {
            assert_eq!(taken, len);
            let data: Vec<u8> = self.input[..len].to_vec();
            self.data(&data, last);
        }
        self.take(taken);
        match step {
            Step::Continue => assert!(taken > 0, "a message has bytes"),
            Step::NeedMore => return false,
            Step::Request(request) => self.request(request),
            Step::Data { .. } => {}
            Step::Receive { len } => {
                assert!(self.input.is_empty() && len > 0, "what has arrived comes first");
                self.missing = len;
                return false;
            }
            Step::Refused { cookie, errno, reason } => {
                self.answer(cookie, |replies| replies.error(cookie, errno, reason), 0);
                self.trace.events.push(Event::Refused { cookie, errno });
            }
            Step::Disconnect => return self.end("disconnected"),
            Step::Close(violation) => return self.end(&violation.to_string()),
        }
        true
    }

    /// Invariant 2 of the transmission: every request that was handed out may be executed.
    fn request(&mut self, request: Request) {
        let Phase::Transmission(machine, export) = &self.phase else { panic!("a request outside of a transmission") };
        assert!(self.write.is_none(), "the data of a write follow it at once");
        let (changes, range, payload) = match request.command {
            Command::Read { offset, len, .. } => (false, Some((offset, len)), true),
            Command::Write { offset, len, .. } => (true, Some((offset, len)), true),
            Command::Flush => (false, None, false),
            Command::Trim { offset, len, .. } | Command::WriteZeroes { offset, len, .. } => {
                (true, Some((offset, len)), false)
            }
            Command::Cache { offset, len } | Command::BlockStatus { offset, len, .. } => {
                (false, Some((offset, len)), false)
            }
        };
        assert!(!(changes && export.read_only), "{request:?} on a read-only export");
        let (offset, len) = range.unwrap_or_default();
        assert!(offset.checked_add(len.into()).is_some_and(|end| end <= export.size_bytes), "{request:?} past the end");
        assert!(!payload || len <= PAYLOAD_BYTES_MAX, "{request:?} is too long");
        self.trace.events.push(Event::Request(request));
        if matches!(request.command, Command::Write { .. }) {
            assert_eq!(machine.data_left(), len);
            self.write = Some((len, Event::Data { len: 0, sum: 0 }));
        }
        self.reply(request, len);
    }

    /// Answers as a server would, and parses the answer as a client would.
    fn reply(&self, request: Request, len: u32) {
        let cookie = request.cookie;
        match request.command {
            Command::Read { offset, .. } if len > 0 => {
                let data = len.min(5000);
                let head =
                    |replies: nbd::Replies| [&replies.data(cookie, offset, data), &vec![7; data as usize][..]].concat();
                self.answer(cookie, head, data as usize);
            }
            Command::Read { .. } => self.answer(cookie, |replies| replies.done(cookie, true).to_vec(), 0),
            Command::BlockStatus { .. } => {
                let parts = [(len.div_ceil(2), true), (len / 2, false)];
                let parts = parts.into_iter().filter(|&(len, _)| len > 0);
                let parts: Vec<Descriptor> = parts.map(|(len, allocated)| Descriptor { len, allocated }).collect();
                self.answer(cookie, |replies| replies.block_status(cookie, parts), 0);
            }
            _ => self.answer(cookie, |replies| replies.done(cookie, false).to_vec(), 0),
        }
    }

    fn answer(&self, cookie: u64, make: impl FnOnce(nbd::Replies) -> Vec<u8>, read_bytes: usize) {
        let Phase::Transmission(machine, _) = &self.phase else { panic!("an answer outside of a transmission") };
        let bytes = make(machine.replies());
        let mut rest = &bytes[..];
        let got = match client::reply(&mut rest, |_| read_bytes) {
            Some(client::Reply::Simple { cookie, .. } | client::Reply::Chunk { cookie, .. }) => cookie,
            None => panic!("the client does not understand {bytes:02x?}"),
        };
        assert!(got == cookie && rest.is_empty(), "one answer to one request");
    }

    fn data(&mut self, data: &[u8], last: bool) {
        let Some((len, Event::Data { len: got, sum })) = &mut self.write else { panic!("data without a write") };
        *got += data.len() as u32;
        *sum = data.iter().fold(*sum, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        assert!(*got <= *len && last == (*got == *len), "{got} bytes of {len}, last: {last}");
        if last && let Some((_, event)) = self.write.take() {
            self.trace.events.push(event);
        }
    }

    fn take(&mut self, taken: usize) {
        self.input.drain(..taken);
        self.trace.taken += taken;
    }

    fn end(&mut self, why: &str) -> bool {
        self.trace.events.push(Event::Ended(why.to_owned()));
        self.phase = Phase::Over;
        false
    }
}

/// How a stream of bytes is cut and received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub tls: TlsPolicy,
    /// 0: byte by byte; otherwise the seed for the sizes of the pieces.
    pub pieces: u8,
    /// Receive long payloads past the input buffer.
    pub direct: bool,
}

/// Feeds `bytes` as a whole and in pieces, and compares the results.
///
/// # Panics
/// If a promise is broken.
pub(super) fn check(bytes: &[u8], way: Way) {
    let whole = run(bytes, way.tls, way.direct, |_| usize::MAX);
    let mut rng = Rng::new(way.pieces.into());
    let cut = run(bytes, way.tls, !way.direct, |fed| match way.pieces {
        0 if fed < 4096 => 1,
        _ if rng.one_in(4) => 1 + rng.below(70_000),
        _ => 1 + rng.below(60),
    });
    assert_eq!(whole, cut, "the cut of the stream changes nothing");
    let exported = whole.events.iter().any(|event| matches!(event, Event::Entered(_)));
    let mut rest = &whole.sent[GREETING_BYTES..];
    while client::option_reply(&mut rest).is_some() {}
    // `NBD_OPT_EXPORT_NAME` is answered without a header by size, flags and zeroes, and nothing
    // follows.
    assert!(rest.is_empty() || (exported && [10, 134].contains(&rest.len())), "{} bytes are no reply", rest.len());
}

fn run(bytes: &[u8], tls: TlsPolicy, direct: bool, mut piece: impl FnMut(usize) -> usize) -> Trace {
    let mut connection = Connection::new(tls, direct);
    let mut left = bytes;
    let mut feeds = 0;
    while !left.is_empty() && !matches!(connection.phase, Phase::Over) {
        let (now, later) = left.split_at(piece(bytes.len() - left.len()).clamp(1, left.len()));
        connection.feed(now);
        left = later;
        feeds += 1;
    }
    assert!(connection.trace.taken <= bytes.len());
    // Each step takes bytes, or is the last of its turn, or returns the empty data of an empty
    // write.
    assert!(connection.steps <= 2 * bytes.len() + 2 * feeds, "{} steps for {} bytes", connection.steps, bytes.len());
    connection.trace
}

/// The three policies, by number.
pub(super) fn policy(number: u8) -> TlsPolicy {
    match number % 4 {
        1 => TlsPolicy::Optional,
        2 => TlsPolicy::Required,
        _ => TlsPolicy::Off,
    }
}
