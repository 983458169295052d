//! An NVMe/TCP controller's bytes, as a host reads them.

use nvme::tcp::{Digests, HostLimits, HostReceiver, HostStep, Kind, Request, Transfer, Writer, pdu};
use nvme::{Completion, Status};

use crate::rng::Rng;
use crate::target::{Memory, Seed, Target};

/// Bits of the first byte; the two lowest bits are the digests.
const DIRECT: u8 = 1 << 2;
const INITIALIZED: u8 = 1 << 3;
/// The input is a script that selects the controller's PDUs, most of them well formed.
const SCRIPT: u8 = 1 << 4;

/// Most PDUs of a script.
const PDUS_MAX: usize = 64;

/// MAXH2CDATA of the controller whose bytes these are.
const PDU_DATA_BYTES_MAX: u32 = 4096;

const LIMITS: HostLimits =
    HostLimits { digests: Digests { header: true, data: true }, alignment: 0, requests_max: 2, commands_max: 8 };

pub(super) const TARGET: Target = Target {
    name: "nvme-replies",
    checks: "an NVMe/TCP controller's bytes, cut in two ways: the same answers; data in order, in bounds, for commands in flight",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"\x01\x00\x80\x00\x80\x00\x00\x00",
        b"\x05\x00\x18\x00\x18\x00\x00\x00",
        b"\x07\x04\x18\x18\x18\x10\x00\x00",
        b"\x07\x0C\x18\x18\x18\x10\x00\x00",
        b"\x09\x00\x18\x00\x18\x00\x00\x00",
        b"\x03\x00\x18\x00\x18\x00\x00\x00",
        b"\x00\x10\x00\x00",
        b"\x10\x27\x00\x00",
        b"\xFF\xFF\xFF\xFF",
    ],
    input_bytes_max: 64 << 10,
    // The stream that a script makes, with data of up to 40 KB, twice; the list of events.
    memory: Memory { base_bytes: 12 << 20, per_input_byte: 32 },
};

/// The transfer of the command with this identifier: none, 4 KiB to the host, a long read, a write.
fn transfer(cid: u16) -> Transfer {
    match cid % 4 {
        0 => Transfer::None,
        1 => Transfer::ToHost(4096),
        2 => Transfer::ToHost(40_000),
        _ => Transfer::ToController(10_000),
    }
}

fn seeds() -> Vec<Seed> {
    let session = |digests: u8| {
        let digests = Digests::from_bits(digests);
        let writer = Writer::new(digests, 0);
        let mut bytes = Vec::new();
        let data = |bytes: &mut Vec<u8>, cid, offset, data: &[u8], last, success| {
            bytes.extend_from_slice(&writer.data_to_host(cid, offset, data.len() as u32, last, success));
            bytes.extend_from_slice(data);
            if digests.data {
                bytes.extend_from_slice(&gf::crc32c(data).to_le_bytes());
            }
        };
        data(&mut bytes, 1, 0, &[1; 4096], true, true);
        data(&mut bytes, 2, 0, &[2; 20_000], false, false);
        bytes.extend_from_slice(&writer.ready_to_transfer(3, 0, 0, 6000));
        bytes.extend_from_slice(&writer.response(Completion::new(0, Status::SUCCESS, 7)));
        bytes.extend_from_slice(&writer.ready_to_transfer(3, 1, 6000, 4000));
        data(&mut bytes, 2, 20_000, &[3; 20_000], true, false);
        bytes.extend_from_slice(&writer.response(Completion::new(2, Status::SUCCESS, 0)));
        bytes.extend_from_slice(&writer.response(Completion::new(3, Status::WRITE_FAULT, 0)));
        bytes.extend_from_slice(&writer.response(Completion::new(5, Status::INTERNAL_ERROR, 0)));
        bytes
    };
    let response = pdu::initialize(Kind::IcResp, 0, Digests::default(), 8192);
    let ended = pdu::terminate(Kind::C2hTermReq, 3, 1, &[4; 24]);
    vec![
        Seed::new("plain", [&[INITIALIZED, 3], &session(0)[..]].concat()),
        Seed::new("digests", [&[INITIALIZED | DIRECT | 3, 3], &session(3)[..]].concat()),
        // Correct data and requests; then one of them again, too long, too early, or for no
        // command.
        Seed::new("script", [&[SCRIPT | 3, 3][..], &PLAIN, &PLAIN].concat()),
        Seed::new("script-again", [&[SCRIPT, 2][..], &[0, 2, 0, 100, 0, 0], &[0, 2, 1, 100, 0, 0]].concat()),
        Seed::new("script-long", [&[SCRIPT, 5][..], &[0, 1, 0, 255, 1, 1]].concat()),
        Seed::new("script-asks-long", [&[SCRIPT, 3][..], &[3, 3, 0, 100, 0, 0], &[3, 3, 0, 255, 1, 0]].concat()),
        Seed::new("script-asks-again", [&[SCRIPT, 3][..], &[3, 3, 0, 100, 0, 0], &[3, 3, 1, 100, 0, 0]].concat()),
        Seed::new("script-asks-often", [&[SCRIPT, 2][..], &[3, 3, 0, 9, 0, 0].repeat(3)].concat()),
        Seed::new("script-short", [&[SCRIPT, 3][..], &[0, 2, 0, 100, 0, 0], &[5, 2, 0, 0, 0, 0]].concat()),
        Seed::new("handshake", [&[0, 1], &response[..], &ended].concat()),
    ]
}

/// Correct PDUs of a script, of all kinds: six bytes each.
const PLAIN: [u8; 36] = [
    0, 1, 0, 255, 0, 8, 3, 3, 0, 100, 0, 0, 0, 2, 0, 100, 0, 0, 5, 4, 0, 0, 0, 0, 3, 3, 0, 255, 0, 0, 5, 3, 0, 0, 0, 0,
];

/// The bytes of the PDUs in a script. Six bytes select a PDU: kind, command, whether it begins at
/// the right place, the part of the rest that it has, how much more it has, and flags that are
/// wrong.
fn scripted(digests: Digests, script: &[u8]) -> Vec<u8> {
    let writer = Writer::new(digests, 0);
    let mut bytes = Vec::new();
    let mut done = vec![0_u32; usize::from(LIMITS.commands_max) + 1];
    for (&[kind, cid, place, part, more, flags], _) in script.as_chunks().0.iter().zip(0..PDUS_MAX) {
        let cid = u16::from(cid) % (LIMITS.commands_max + 1);
        let at = &mut done[usize::from(cid)];
        let (Transfer::ToHost(all) | Transfer::ToController(all)) = transfer(cid) else {
            bytes.extend_from_slice(&writer.response(Completion::new(cid, Status::SUCCESS, 0)));
            continue;
        };
        let offset = match place % 4 {
            0 => *at,
            1 => at.saturating_sub(4),
            2 => *at + 4,
            _ => 0,
        };
        let rest = all.saturating_sub(*at);
        let len = (u64::from(rest) * u64::from(part) / 255) as u32 + u32::from(more % 8) * 4;
        match kind % 8 {
            0..3 => {
                let last = (offset + len == all) != (flags & 1 != 0);
                let head = writer.data_to_host(cid, offset, len, last, (last && flags & 8 != 0) != (flags & 2 != 0));
                bytes.extend_from_slice(&head);
                let data = vec![part; len as usize];
                bytes.extend_from_slice(&data);
                if digests.data && len > 0 {
                    bytes.extend_from_slice(&(gf::crc32c(&data) ^ u32::from(flags & 4)).to_le_bytes());
                }
                *at = if last && flags & 8 != 0 { 0 } else { offset + len };
            }
            3..5 => {
                bytes.extend_from_slice(&writer.ready_to_transfer(cid, more.into(), offset, len));
                *at = offset + len;
            }
            5..7 => {
                let status = if place % 4 == 3 { Status::INTERNAL_ERROR } else { Status::SUCCESS };
                bytes.extend_from_slice(&writer.response(Completion::new(cid, status, part.into())));
                *at = 0;
            }
            _ => bytes.extend_from_slice(&[cid as u8, place, part, more, flags]),
        }
    }
    bytes
}

/// An event of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Done {
    Initialized,
    Requested(Request),
    Completed { cid: u16, status: Status, len: usize, sum: u64, intact: bool },
    Ended { why: String, farewell: Vec<u8> },
}

struct Host {
    receiver: HostReceiver,
    input: Vec<u8>,
    direct: bool,
    /// Requests are answered when they arrive; otherwise never.
    answers: bool,
    missing: Option<(u16, u32, u32)>,
    /// Number of data bytes of each command so far, and a checksum of them.
    data: Vec<(usize, u64)>,
    steps: usize,
    done: Vec<Done>,
    over: bool,
}

impl Host {
    fn new(direct: bool, answers: bool) -> Host {
        let mut receiver = HostReceiver::new(LIMITS);
        for cid in 0..LIMITS.commands_max {
            assert_eq!(receiver.begin(transfer(cid)), Some(cid));
        }
        let data = vec![(0, 1); usize::from(LIMITS.commands_max)];
        let (input, missing, done) = (Vec::new(), None, Vec::new());
        Host { receiver, input, direct, answers, missing, data, steps: 0, done, over: false }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        if let Some((cid, offset, len)) = self.missing.take().filter(|_| self.direct) {
            let (data, rest) = bytes.split_at(bytes.len().min(len as usize));
            self.receiver.received(data);
            self.data(cid, offset, data);
            bytes = rest;
        }
        self.input.extend_from_slice(bytes);
        while !self.over && self.step() {
            self.steps += 1;
        }
    }

    fn step(&mut self) -> bool {
        let (taken, step) = self.receiver.step(&self.input);
        let bytes: Vec<u8> = self.input.drain(..taken).collect();
        match step {
            HostStep::Continue => assert!(taken > 0 || !self.over),
            HostStep::NeedMore => {
                assert!(self.input.len() <= 256, "a header is short, and {} bytes wait", self.input.len());
                return false;
            }
            HostStep::Initialized(agreement) => {
                assert!(agreement.pdu_data_bytes_max >= 4096 && agreement.alignment <= 31);
                self.done.push(Done::Initialized);
            }
            HostStep::Data { cid, offset, len } => {
                assert_eq!(len, taken, "data are what was taken");
                self.data(cid, offset, &bytes);
            }
            HostStep::Receive { cid, offset, len } => {
                assert!(self.input.is_empty() && len > 0, "what has arrived comes first");
                self.missing = Some((cid, offset, len));
                return false;
            }
            HostStep::Requested(request) => self.requested(request),
            HostStep::Completed { completion, intact } => self.completed(&completion, intact),
            HostStep::Close(violation) => {
                let farewell = self.receiver.farewell(&violation);
                assert_eq!(farewell.is_empty(), violation.fatal_error().is_none());
                assert!(farewell.len() <= 152);
                self.done.push(Done::Ended { why: violation.to_string(), farewell });
                self.over = true;
            }
        }
        true
    }

    fn data(&mut self, cid: u16, offset: u32, data: &[u8]) {
        let Transfer::ToHost(all) = transfer(cid) else { panic!("command {cid} has no data for the host") };
        let (len, sum) = &mut self.data[usize::from(cid)];
        assert_eq!(*len, offset as usize, "data come in order");
        *len += data.len();
        assert!(*len <= all as usize, "no more data than there is room for");
        *sum = data.iter().fold(*sum, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    }

    fn requested(&mut self, request: Request) {
        let Transfer::ToController(all) = transfer(request.cid) else { panic!("{request:?} of no write") };
        assert!(
            request.len > 0 && request.offset.checked_add(request.len).is_some_and(|end| end <= all),
            "{request:?}"
        );
        if self.answers {
            let most = self.receiver.agreement().expect("it is initialized").pdu_data_bytes_max;
            let mut at = request.offset;
            for piece in self.receiver.pieces(&request) {
                assert!(piece.offset == at && (1..=most).contains(&piece.len) && piece.head.len() >= 24);
                at += piece.len;
            }
            assert_eq!(at, request.offset + request.len, "everything that is asked for is sent");
        }
        self.done.push(Done::Requested(request));
    }

    fn completed(&mut self, completion: &Completion, intact: bool) {
        let (cid, status) = (completion.cid.get(), completion.status());
        let (len, sum) = std::mem::replace(&mut self.data[usize::from(cid)], (0, 1));
        if let Transfer::ToHost(all) = transfer(cid) {
            assert!(!status.is_success() || len == all as usize, "a success has its data");
        }
        self.done.push(Done::Completed { cid, status, len, sum, intact });
        // The queue was full, so this identifier is the only free one.
        assert_eq!(self.receiver.in_flight(), usize::from(LIMITS.commands_max) - 1);
        assert_eq!(self.receiver.begin(transfer(cid)), Some(cid));
    }
}

fn feed(bytes: &[u8], direct: bool, answers: bool, mut piece: impl FnMut(usize) -> usize) -> Vec<Done> {
    let mut host = Host::new(direct, answers);
    let mut left = bytes;
    let mut feeds = 0;
    while !left.is_empty() && !host.over {
        let (now, later) = left.split_at(piece(bytes.len() - left.len()).clamp(1, left.len()));
        host.feed(now);
        left = later;
        feeds += 1;
    }
    assert!(host.steps <= 2 * (bytes.len() + feeds), "{} steps for {} bytes", host.steps, bytes.len());
    host.done
}

/// `[mode, pieces, bytes of the controller or script]`.
fn run(input: &[u8]) {
    let Some((&[mode, pieces], bytes)) = input.split_first_chunk::<2>() else { return };
    let mut stream = Vec::new();
    let digests = Digests::from_bits(mode & 3);
    if mode & (INITIALIZED | SCRIPT) != 0 {
        stream.extend_from_slice(&pdu::initialize(Kind::IcResp, 0, digests, PDU_DATA_BYTES_MAX));
    }
    if mode & SCRIPT != 0 {
        stream.extend(scripted(digests, bytes));
    } else {
        stream.extend_from_slice(bytes);
    }
    let (direct, answers) = (mode & DIRECT != 0, pieces % 2 == 1);
    let whole = feed(&stream, direct, answers, |_| usize::MAX);
    let mut rng = Rng::new(pieces.into());
    let cut = feed(&stream, !direct, answers, |fed| match pieces {
        0 if fed < 4096 => 1,
        _ if rng.one_in(4) => 1 + rng.below(70_000),
        _ => 1 + rng.below(60),
    });
    assert_eq!(whole, cut, "the cut of the stream changes nothing");
}
