//! PDUs that a controller may not send. How its bytes are cut makes no difference.

use crate::common::crc32c;
use crate::common::stream::noise;
use nvme::tcp::{
    Agreement, Digests, HostLimits, HostReceiver, HostStep, Kind, Request, Transfer, Violation, Writer, pdu,
};
use nvme::{Completion, Status};
use proptest::prelude::*;

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

const LIMITS: HostLimits = HostLimits { digests: BOTH, alignment: 0, requests_max: 2, commands_max: 4 };

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Initialized(Agreement),
    Requested(Request),
    Completed { completion: Completion, intact: bool, data: Vec<u8> },
    Closed { violation: Violation, farewell: Vec<u8> },
}

/// Commands 0 to 3: without data, a read of 100 bytes, one of 40,000, a write of 10,000.
const TRANSFERS: [Transfer; 4] =
    [Transfer::None, Transfer::ToHost(100), Transfer::ToHost(40_000), Transfer::ToController(10_000)];

fn receiver(limits: HostLimits) -> HostReceiver {
    let mut receiver = HostReceiver::new(limits);
    for (cid, transfer) in (0..).zip(TRANSFERS) {
        assert_eq!(receiver.begin(transfer), Some(cid));
    }
    assert_eq!(receiver.begin(Transfer::None), None, "the queue is full");
    receiver
}

/// Feeds bytes in pieces. Requests are answered at once if `answers`.
fn run_with(limits: HostLimits, bytes: &[u8], pieces: &[usize], direct: bool, answers: bool) -> Vec<Event> {
    let mut receiver = receiver(limits);
    let mut data: Vec<Vec<u8>> = vec![Vec::new(); TRANSFERS.len()];
    let (mut events, mut input, mut missing) = (Vec::new(), Vec::new(), None::<(u16, u32)>);
    let mut left = bytes;
    let mut sizes = pieces.iter().copied().cycle();
    while !left.is_empty() {
        let (mut now, later) = left.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, left.len()));
        left = later;
        if let Some((cid, len)) = missing.take().filter(|_| direct) {
            let taken = now.len().min(len as usize);
            let whose: &mut Vec<u8> = &mut data[usize::from(cid)];
            whose.extend_from_slice(&now[..taken]);
            receiver.received(&now[..taken]);
            now = &now[taken..];
        }
        input.extend_from_slice(now);
        loop {
            let (taken, step) = receiver.step(&input);
            let bytes: Vec<u8> = input.drain(..taken).collect();
            match step {
                HostStep::Continue => {}
                HostStep::NeedMore => break,
                HostStep::Initialized(agreement) => events.push(Event::Initialized(agreement)),
                HostStep::Data { cid, offset, len } => {
                    assert_eq!((data[usize::from(cid)].len(), len), (offset as usize, taken), "data come in order");
                    data[usize::from(cid)].extend_from_slice(&bytes);
                }
                HostStep::Receive { cid, len, .. } => {
                    assert!(input.is_empty());
                    missing = Some((cid, len));
                    break;
                }
                HostStep::Requested(request) => {
                    if answers {
                        let pieces = receiver.pieces(&request);
                        assert_eq!(pieces.map(|piece| piece.len).sum::<u32>(), request.len);
                    }
                    events.push(Event::Requested(request));
                }
                HostStep::Completed { completion, intact } => {
                    let data = std::mem::take(&mut data[usize::from(completion.cid.get())]);
                    events.push(Event::Completed { completion, intact, data });
                }
                HostStep::Close(violation) => {
                    events.push(Event::Closed { violation, farewell: receiver.farewell(&violation) });
                    return events;
                }
            }
        }
    }
    events
}

fn run(bytes: &[u8]) -> Vec<Event> {
    let whole = run_with(LIMITS, bytes, &[], false, false);
    for pieces in [1, 30, 1000] {
        assert_eq!(run_with(LIMITS, bytes, &[pieces], true, false), whole, "in pieces of {pieces}");
    }
    whole
}

/// The bytes that a controller sends.
struct Stream {
    bytes: Vec<u8>,
    writer: Writer,
}

impl Stream {
    fn new(digests: Digests) -> Stream {
        Stream { bytes: pdu::initialize(Kind::IcResp, 0, digests, 8192).to_vec(), writer: Writer::new(digests, 0) }
    }

    fn data(&mut self, cid: u16, offset: u32, len: usize, last: bool, success: bool) -> &mut Stream {
        self.damaged(cid, offset, len, last, success, false)
    }

    fn damaged(&mut self, cid: u16, offset: u32, len: usize, last: bool, success: bool, damaged: bool) -> &mut Stream {
        self.bytes.extend_from_slice(&self.writer.data_to_host(cid, offset, len as u32, last, success));
        let data = noise(cid, len);
        self.bytes.extend_from_slice(&data);
        if self.writer.digests().data && len > 0 {
            let mut digest = crc32c(&data);
            digest[3] ^= u8::from(damaged);
            self.bytes.extend_from_slice(&digest);
        }
        self
    }

    fn response(&mut self, cid: u16, status: Status) -> &mut Stream {
        self.bytes.extend_from_slice(&self.writer.response(Completion::new(cid, status, 7)));
        self
    }

    fn ask(&mut self, cid: u16, tag: u16, offset: u32, len: u32) -> &mut Stream {
        self.bytes.extend_from_slice(&self.writer.ready_to_transfer(cid, tag, offset, len));
        self
    }
}

/// The connection ends for `violation` in the last PDU that `wrong` adds, with these FES and FEI
/// and that PDU's header.
#[track_caller]
fn ends(stream: &mut Stream, wrong: impl FnOnce(&mut Stream), violation: Violation, fes: u16, fei: u32) {
    let at = stream.bytes.len();
    wrong(stream);
    let header = &stream.bytes[at..at + 24];
    let farewell = pdu::terminate(Kind::H2cTermReq, fes, fei, header);
    assert_eq!(run(&stream.bytes).last(), Some(&Event::Closed { violation, farewell }));
}

#[test]
fn the_handshake_asks_for_what_the_host_wants_and_takes_what_it_gets() {
    let wanted = HostLimits { digests: Digests { header: false, data: true }, alignment: 3, requests_max: 5, ..LIMITS };
    let request = HostReceiver::new(wanted).request();
    // HPDA, DGST, MAXR2T (one less).
    assert_eq!(
        (&request[..4], request[10], request[11], &request[12..16]),
        (&[0, 0, 128, 0][..], 3, 0b10, &[4, 0, 0, 0][..])
    );
    for digests in [NONE, Digests { header: true, data: false }, BOTH] {
        let agreement = Agreement { digests, alignment: 7, pdu_data_bytes_max: 4096 };
        let response = pdu::initialize(Kind::IcResp, 7, digests, 4096);
        assert_eq!(run(&response), [Event::Initialized(agreement)]);
    }
}

#[test]
fn a_handshake_that_was_not_asked_for_is_refused() {
    let refused = |response: &[u8], limits, violation: Violation, fes, fei| {
        let farewell = pdu::terminate(Kind::H2cTermReq, fes, fei, response);
        let events = run_with(limits, response, &[], false, false);
        assert_eq!(events, [Event::Closed { violation, farewell }]);
    };
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut response = Stream::new(NONE).bytes;
        change(&mut response);
        response
    };
    refused(&changed(|response| response[8] = 1), LIMITS, Violation::Version(1), 6, 8);
    refused(&changed(|response| response[10] = 32), LIMITS, Violation::Alignment(32), 6, 10);
    for (bytes, maximum) in [([0xFC, 0x0F, 0, 0], 4092), ([2, 0x10, 0, 0], 4098), ([0; 4], 0)] {
        let mut response = Stream::new(NONE).bytes;
        response[12..16].copy_from_slice(&bytes);
        refused(&response, LIMITS, Violation::DataMaximum(maximum), 1, 12);
    }
    let plain = HostLimits { digests: NONE, ..LIMITS };
    refused(&Stream::new(BOTH).bytes, plain, Violation::Digests(0b11), 1, 11);
}

#[test]
fn pdus_of_another_time_or_side_end_the_connection() {
    let response = Writer::default().response(Completion::new(0, Status::SUCCESS, 0));
    let unexpected = |kind, bytes: &[u8], wrong: &[u8]| {
        let violation = Violation::Unexpected(kind);
        let farewell = pdu::terminate(Kind::H2cTermReq, 2, 0, &wrong[..8]);
        assert_eq!(run(bytes).last(), Some(&Event::Closed { violation, farewell }));
    };
    unexpected(Kind::CapsuleResp, &response, &response);
    for kind in [Kind::IcReq, Kind::IcResp, Kind::H2cTermReq, Kind::CapsuleCmd, Kind::H2cData] {
        let mut wrong = response.to_vec();
        wrong[0] = kind as u8;
        unexpected(kind, &[Stream::new(NONE).bytes, wrong.clone()].concat(), &wrong);
    }
    let ended = pdu::terminate(Kind::C2hTermReq, 4, 9, b"");
    let violation = Violation::Terminated { status: 4, information: 9 };
    for before in [Vec::new(), Stream::new(BOTH).bytes] {
        let events = run(&[before, ended.clone()].concat());
        assert_eq!(events.last(), Some(&Event::Closed { violation, farewell: Vec::new() }));
    }
}

#[test]
fn responses_are_for_commands_in_flight_that_have_their_data() {
    let response = |cid| Violation::Response { cid };
    for cid in [4, 0xFFFF] {
        ends(&mut Stream::new(BOTH), |stream| _ = stream.response(cid, Status::SUCCESS), response(cid), 1, 20);
    }
    // Twice; after SUCCESS; without data, or with a part of them.
    let again = |stream: &mut Stream| _ = stream.response(0, Status::SUCCESS);
    ends(Stream::new(BOTH).response(0, Status::SUCCESS), again, response(0), 1, 20);
    let one = |stream: &mut Stream| _ = stream.response(1, Status::SUCCESS);
    ends(Stream::new(BOTH).data(1, 0, 100, true, true), one, response(1), 1, 20);
    ends(&mut Stream::new(BOTH), one, response(1), 1, 20);
    ends(Stream::new(BOTH).data(1, 0, 96, false, false), one, response(1), 1, 20);
    // An error may come at any time, and a write may succeed without its data.
    let mut stream = Stream::new(BOTH);
    stream.data(1, 0, 96, false, false).response(1, Status::UNRECOVERED_READ_ERROR).response(3, Status::SUCCESS);
    let events = run(&stream.bytes);
    let [_, Event::Completed { completion, data, .. }, Event::Completed { .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((completion.status(), data.len()), (Status::UNRECOVERED_READ_ERROR, 96));
}

#[test]
fn data_are_for_reads_in_flight_and_in_order() {
    // Command, offset, length, LAST, SUCCESS: each is wrong in one way.
    for (cid, offset, len, last, success) in [
        (0, 0, 100, true, false),
        (3, 0, 100, true, false),
        (9, 0, 100, true, false),
        (1, 0, 100, false, false),
        (1, 0, 96, true, false),
        (1, 0, 96, false, true),
        (1, 4, 96, true, false),
        (1, 0, 104, true, false),
        (1, u32::MAX, 100, true, false),
        (1, 0, 0, false, false),
    ] {
        let violation = Violation::Data { tag: 0, cid, offset, len: len as u32 };
        let wrong = |stream: &mut Stream| _ = stream.data(cid, offset, len, last, success);
        ends(&mut Stream::new(BOTH), wrong, violation, 4, 0);
    }
    let violation = |offset, len| Violation::Data { tag: 0, cid: 1, offset, len };
    // Twice, behind the end, and after the command is answered.
    let again = |stream: &mut Stream| _ = stream.data(1, 0, 96, false, false);
    ends(Stream::new(BOTH).data(1, 0, 96, false, false), again, violation(0, 96), 4, 0);
    let more = |stream: &mut Stream| _ = stream.data(1, 100, 4, true, false);
    ends(Stream::new(BOTH).data(1, 0, 100, true, false), more, violation(100, 4), 4, 0);
    let late = |stream: &mut Stream| _ = stream.data(1, 0, 100, true, false);
    ends(Stream::new(BOTH).response(1, Status::INTERNAL_ERROR), late, violation(0, 100), 4, 0);
}

#[test]
fn requests_are_for_writes_in_flight_and_in_order() {
    for (cid, offset, len) in [
        (0, 0, 100),
        (1, 0, 100),
        (9, 0, 100),
        (3, 4, 100),
        (3, 0, 10_004),
        (3, 0, 0),
        (3, u32::MAX, 100),
        (3, 0, u32::MAX),
    ] {
        let violation = Violation::Request { tag: 5, cid, offset, len };
        let wrong = |stream: &mut Stream| _ = stream.ask(cid, 5, offset, len);
        ends(&mut Stream::new(BOTH), wrong, violation, 4, 0);
    }
    let again = Violation::Request { tag: 2, cid: 3, offset: 0, len: 4000 };
    let wrong = |stream: &mut Stream| _ = stream.ask(3, 2, 0, 4000);
    ends(Stream::new(BOTH).ask(3, 1, 0, 4000), wrong, again, 4, 0);
    // No more at the same time than MAXR2T says; those that were answered do not count.
    let mut stream = Stream::new(BOTH);
    stream.ask(3, 0, 0, 4).ask(3, 1, 4, 4);
    let third = |stream: &mut Stream| _ = stream.ask(3, 2, 8, 4);
    ends(&mut stream, third, Violation::RequestLimit(2), 5, 0);
    let answered = run_with(LIMITS, &stream.bytes, &[], false, true);
    assert_eq!(answered.last(), Some(&Event::Requested(Request { cid: 3, tag: 2, offset: 8, len: 4 })));
}

#[test]
fn a_request_is_answered_in_pieces_as_long_as_a_pdu_may_be() {
    let mut receiver = receiver(LIMITS);
    let request = Request { cid: 3, tag: 9, offset: 1000, len: 9000 };
    assert_eq!(receiver.pieces(&request).count(), 0, "nothing is agreed on yet");
    let response = pdu::initialize(Kind::IcResp, 0, NONE, 4096);
    assert!(matches!(receiver.step(&response), (128, HostStep::Initialized(_))));
    let pieces: Vec<(u32, u32, Vec<u8>)> =
        receiver.pieces(&request).map(|piece| (piece.offset, piece.len, piece.head.to_vec())).collect();
    let expected = [(1000, 4096, false), (5096, 4096, false), (9192, 808, true)];
    let head = |offset, len, last| Writer::new(NONE, 0).data_to_controller(3, 9, offset, len, last).to_vec();
    assert_eq!(pieces, expected.map(|(offset, len, last)| (offset, len, head(offset, len, last))));
}

#[test]
fn identifiers_come_back_in_the_order_in_which_they_became_free() {
    let mut receiver = receiver(LIMITS);
    let mut stream = Stream::new(NONE);
    stream.response(3, Status::SUCCESS).response(0, Status::SUCCESS);
    let mut input = &stream.bytes[..];
    while !input.is_empty() {
        let (taken, step) = receiver.step(input);
        assert!(!matches!(step, HostStep::Close(_)));
        input = &input[taken..];
    }
    assert_eq!(receiver.in_flight(), 2);
    assert_eq!([(); 3].map(|()| receiver.begin(Transfer::None)), [Some(3), Some(0), None]);
}

/// One thing that a controller does, or nonsense.
fn a_pdu() -> impl Strategy<Value = (u8, u16, usize, bool)> {
    (0_u8..10, 0_u16..5, prop_oneof![1_usize..100, 10_000_usize..40_000], prop::bool::weighted(0.8))
}

fn sent(digests: Digests, pdus: &[(u8, u16, usize, bool)]) -> Vec<u8> {
    let mut stream = Stream::new(digests);
    let mut done = [0_u32; TRANSFERS.len()];
    for (what, cid, len, well) in pdus {
        let Some(at) = done.get_mut(usize::from(*cid)) else {
            stream.response(*cid, Status::SUCCESS);
            continue;
        };
        match (what, TRANSFERS[usize::from(*cid)]) {
            (0..=6, Transfer::ToHost(all)) => {
                let len = (*len).min((all - *at) as usize);
                let last = *at as usize + len == all as usize;
                stream.damaged(*cid, *at, len, last, last && *what == 0, !well);
                *at += len as u32;
            }
            (0..=6, Transfer::ToController(all)) => {
                let len = (*len as u32).min(all - *at);
                stream.ask(*cid, u16::from(*what), *at, len);
                *at += len;
            }
            (7..=8, _) => {
                stream.response(*cid, if *well { Status::SUCCESS } else { Status::INTERNAL_ERROR });
            }
            (9, _) if !well => stream.bytes.extend(noise(*cid, *len % 50)),
            _ => {}
        }
    }
    stream.bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_cut_changes_nothing(
        pdus in prop::collection::vec(a_pdu(), 1..16),
        digests in 0_u8..4,
        pieces in prop::collection::vec(prop_oneof![1_usize..100, 1000_usize..50_000], 1..8),
        direct in any::<bool>(),
        answers in any::<bool>(),
    ) {
        let bytes = sent(Digests::from_bits(digests), &pdus);
        let whole = run_with(LIMITS, &bytes, &[], false, answers);
        prop_assert_eq!(whole, run_with(LIMITS, &bytes, &pieces, direct, answers));
    }
}

#[test]
fn a_controller_may_send_less_only_where_a_command_lets_it() {
    let begin = || {
        let mut receiver = HostReceiver::new(LIMITS);
        assert_eq!(receiver.begin(Transfer::ToHostUpTo(100)), Some(0));
        assert!(matches!(
            receiver.step(&pdu::initialize(Kind::IcResp, 0, NONE, 4096)),
            (128, HostStep::Initialized(_))
        ));
        receiver
    };
    let writer = Writer::new(NONE, 0);
    let data = |offset: u32, len: u32, last: bool, success: bool| {
        [&writer.data_to_host(0, offset, len, last, success)[..], &vec![7; len as usize]].concat()
    };
    // All steps, up to the first that closes or completes.
    let end = |bytes: Vec<u8>| {
        let (mut receiver, mut input) = (begin(), &bytes[..]);
        loop {
            let (taken, step) = receiver.step(input);
            input = &input[taken..];
            match step {
                HostStep::Close(violation) => return Err(violation),
                HostStep::Completed { completion, .. } => return Ok(completion.status()),
                HostStep::NeedMore => panic!("it ends"),
                _ => {}
            }
        }
    };
    let response = |status| writer.response(Completion::new(0, status, 0)).to_vec();
    for good in [
        data(0, 40, true, true),
        data(0, 100, true, true),
        [data(0, 40, false, false), data(40, 8, true, true)].concat(),
        [data(0, 40, true, false), response(Status::SUCCESS)].concat(),
    ] {
        assert_eq!(end(good), Ok(Status::SUCCESS));
    }
    assert_eq!(end(response(Status::INVALID_FIELD)), Ok(Status::INVALID_FIELD));
    for bad in [
        response(Status::SUCCESS),
        [data(0, 40, false, false), response(Status::SUCCESS)].concat(),
        [data(0, 40, true, false), data(40, 8, true, true)].concat(),
        data(0, 104, true, true),
        data(0, 100, false, false),
        data(0, 40, false, true),
    ] {
        assert!(end(bad).is_err());
    }
}
