//! Violations of a host: each ends the connection with the right reason, and nothing else does.

use crate::common::stream::{Stream, noise, write, write_in_capsule};
use crate::common::{Event, LIMITS, Link, crc32c, run};
use nvme::tcp::{Digests, Kind, Limits, To, Violation, pdu};
use nvme::{Command, nvm};

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

/// Feeds `bytes`, and gives how the connection ended. It does not depend on the cut.
fn ended(limits: Limits, bytes: &[u8]) -> Option<(Violation, Vec<u8>)> {
    let whole = run(limits, bytes, &[], false);
    for pieces in [1, 7, 100] {
        assert_eq!(run(limits, bytes, &[pieces], true).events, whole.events, "in pieces of {pieces}");
    }
    match whole.events.last() {
        Some(Event::Closed { violation, farewell }) => Some((*violation, farewell.clone())),
        _ => None,
    }
}

/// The connection ends for `violation`, and with these FES, FEI and bytes of the wrong header.
#[track_caller]
fn ends(bytes: &[u8], violation: Violation, fes: u16, fei: u32, wrong: &[u8]) {
    let farewell = pdu::terminate(Kind::C2hTermReq, fes, fei, wrong);
    assert_eq!(ended(LIMITS, bytes), Some((violation, farewell)));
    assert_eq!(violation.fatal_error(), Some((fes, fei)));
}

/// After the handshake: what `change` makes of a PDU.
fn changed(digests: Digests, pdu: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    let mut pdu = pdu.to_vec();
    change(&mut pdu);
    ([Stream::new(digests).bytes, pdu.clone()].concat(), pdu)
}

fn flush(digests: Digests) -> Vec<u8> {
    let mut stream = Stream::new(digests);
    stream.command(Command::new(nvm::FLUSH, 1, 1), &[]);
    stream.bytes[128..].to_vec()
}

#[test]
fn a_type_that_nobody_knows_ends_the_connection() {
    for kind in [0x08, 0x0A, 0xFF] {
        let (bytes, pdu) = changed(NONE, &flush(NONE), |pdu| pdu[0] = kind);
        ends(&bytes, Violation::Kind(kind), 1, 0, &pdu[..8]);
    }
    let first = [0x0B, 0, 128, 0, 128, 0, 0, 0];
    ends(&first, Violation::Kind(0x0B), 1, 0, &first);
}

#[test]
fn a_pdu_of_another_time_or_side_ends_the_connection() {
    // A command before the handshake, a second handshake, and PDUs that only controllers send.
    let command = flush(NONE);
    ends(&command, Violation::Unexpected(Kind::CapsuleCmd), 2, 0, &command[..8]);
    for kind in [Kind::IcReq, Kind::IcResp, Kind::C2hTermReq, Kind::CapsuleResp, Kind::C2hData, Kind::R2t] {
        let (bytes, pdu) = changed(NONE, &command, |pdu| pdu[0] = kind as u8);
        ends(&bytes, Violation::Unexpected(kind), 2, 0, &pdu[..8]);
    }
}

#[test]
fn a_header_of_another_length_ends_the_connection() {
    for len in [0, 71, 73, 255] {
        let (bytes, pdu) = changed(NONE, &flush(NONE), |pdu| pdu[2] = len);
        ends(&bytes, Violation::HeaderLen { kind: Kind::CapsuleCmd, len }, 1, 2, &pdu[..8]);
    }
    let mut request = Stream::new(NONE).bytes;
    request[2] = 127;
    ends(&request, Violation::HeaderLen { kind: Kind::IcReq, len: 127 }, 1, 2, &request[..8]);
}

#[test]
fn lengths_that_do_not_fit_end_the_connection() {
    let mut capsule = Stream::new(NONE);
    capsule.command(write_in_capsule(1, 64), &noise(1, 64));
    let capsule = capsule.bytes[128..].to_vec();
    // PLEN, PDO: shorter than the header; data inside of the header, at no dword, behind the end,
    // and none.
    for (len, data_offset) in [(71_u32, 0_u8), (0, 0), (136, 68), (136, 73), (136, 200), (80, 80)] {
        let (bytes, pdu) = changed(NONE, &capsule, |pdu| {
            pdu[3] = data_offset;
            pdu[4..8].copy_from_slice(&len.to_le_bytes());
        });
        ends(&bytes, Violation::Len { kind: Kind::CapsuleCmd, len, data_offset }, 1, 4, &pdu[..8]);
    }
    let mut request = Stream::new(NONE).bytes;
    request[4] = 132;
    ends(&request, Violation::Len { kind: Kind::IcReq, len: 132, data_offset: 0 }, 1, 4, &request[..8]);
    // With digests there has to be room for them.
    let mut capsule = Stream::new(BOTH);
    capsule.command(write_in_capsule(1, 64), &noise(1, 64));
    let (bytes, pdu) = changed(BOTH, &capsule.bytes[128..], |pdu| pdu[4..8].copy_from_slice(&80_u32.to_le_bytes()));
    ends(&bytes, Violation::Len { kind: Kind::CapsuleCmd, len: 80, data_offset: 76 }, 1, 4, &pdu[..8]);
}

#[test]
fn digests_have_to_be_there_as_agreed() {
    let violation = |flags| Violation::DigestFlags { kind: Kind::CapsuleCmd, flags };
    let (bytes, pdu) = changed(NONE, &flush(NONE), |pdu| pdu[1] = 1);
    ends(&bytes, violation(1), 1, 1, &pdu[..8]);
    let (bytes, pdu) = changed(BOTH, &flush(BOTH), |pdu| pdu[1] = 0);
    ends(&bytes, violation(0), 1, 1, &pdu[..8]);
    // Of data: there are digests, but not behind these data.
    let mut capsule = Stream::new(BOTH);
    capsule.command(write_in_capsule(1, 64), &noise(1, 64));
    let (bytes, pdu) = changed(BOTH, &capsule.bytes[128..], |pdu| pdu[1] = 1);
    ends(&bytes, violation(1), 1, 1, &pdu[..8]);
}

#[test]
fn a_damaged_header_ends_the_connection() {
    let (bytes, pdu) = changed(BOTH, &flush(BOTH), |pdu| pdu[50] ^= 4);
    let said = u32::from_le_bytes(pdu[72..76].try_into().expect("four bytes"));
    let counted = u32::from_le_bytes(crc32c(&pdu[..72]));
    assert_ne!(said, counted);
    // FEI is the digest that was sent.
    ends(&bytes, Violation::HeaderDigest { said, counted }, 3, said, &pdu[..72]);
}

#[test]
fn damaged_data_are_told_and_the_connection_goes_on() {
    let mut stream = Stream::new(BOTH);
    stream.command(write_in_capsule(1, 64), &noise(1, 64)).command(write(2, 16), &[]);
    let digest = 128 + 76 + 64;
    stream.bytes[digest] ^= 1;
    stream.transfer_with(2, 0, 0, &[9; 8], false, false).transfer(2, 0, 8, &[9; 8], true);
    stream.command(write_in_capsule(3, 64), &noise(3, 64));
    let link = run(LIMITS, &stream.bytes, &[], false);
    let intact: Vec<(To, bool)> = link
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Received { to, intact, .. } => Some((*to, *intact)),
            _ => None,
        })
        .collect();
    assert_eq!(intact, [(To::Capsule, false), (To::Transfer(0), false), (To::Capsule, true)]);
    assert!(!link.over);
}

#[test]
fn a_handshake_of_another_version_or_alignment_is_refused() {
    let request = |change: fn(&mut Vec<u8>)| {
        let mut request = Stream::new(BOTH).bytes;
        change(&mut request);
        request
    };
    let newer = request(|request| request[8..10].copy_from_slice(&[1, 2]));
    ends(&newer, Violation::Version(0x0201), 6, 8, &newer);
    let wider = request(|request| request[10] = 32);
    ends(&wider, Violation::Alignment(32), 6, 10, &wider);
    let widest = request(|request| request[10] = 31);
    assert_eq!(ended(LIMITS, &widest), None);
}

#[test]
fn digests_are_used_if_both_sides_want_them() {
    for (offered, asked, agreed) in [(BOTH, 0b00, 0b00), (BOTH, 0b01, 0b01), (BOTH, 0b10, 0b10), (NONE, 0b11, 0b00)] {
        let request = pdu::initialize(Kind::IcReq, 0, Digests::from_bits(asked), 0);
        let link = run(Limits { digests: offered, ..LIMITS }, &request, &[], false);
        let Some(Event::Initialized(response)) = link.events.first() else { panic!("{:?}", link.events) };
        assert_eq!(response[11], agreed);
        assert_eq!(response[12..16], LIMITS.pdu_data_bytes_max.to_le_bytes());
        assert_eq!(link.receiver.writer().map(|writer| writer.digests().bits()), Some(agreed));
    }
}

#[test]
fn data_that_were_not_asked_for_end_the_connection() {
    let start = || {
        let mut stream = Stream::new(BOTH);
        stream.command(write(1, 100), &[]).command(write(2, 50), &[]);
        stream
    };
    // Tag, command, offset, length, whether it is the last: each is wrong in one way.
    for (tag, cid, offset, len, last) in [
        (2, 1, 0, 100, true),
        (0, 2, 0, 100, true),
        (0, 1, 4, 96, true),
        (0, 1, 0, 104, true),
        (0, 1, 0, 100, false),
        (0, 1, 0, 96, true),
        (0xFFFF, 1, 0, 100, true),
        (0, 1, u32::MAX, 100, true),
    ] {
        let mut stream = start();
        let at = stream.bytes.len();
        stream.transfer(cid, tag, offset, &noise(0, len as usize), last);
        let wrong = stream.bytes[at..at + 24].to_vec();
        ends(&stream.bytes, Violation::Data { tag, cid, offset, len }, 4, 0, &wrong);
    }
    // Twice; and behind the last.
    for again in [0, 100] {
        let mut stream = start();
        stream.transfer(1, 0, 0, &noise(1, 100), true);
        let at = stream.bytes.len();
        stream.transfer(1, 0, again, &noise(1, 100), true);
        let wrong = stream.bytes[at..at + 24].to_vec();
        ends(&stream.bytes, Violation::Data { tag: 0, cid: 1, offset: again, len: 100 }, 4, 0, &wrong);
    }
    // DATAL says something else than PLEN.
    let mut stream = start();
    let at = stream.bytes.len();
    stream.writer = nvme::tcp::Writer::new(BOTH, 0);
    let head = stream.writer.data_to_controller(1, 0, 0, 100, true);
    let mut head = head.to_vec();
    head[4..8].copy_from_slice(&(28_u32 + 96 + 4).to_le_bytes());
    let digest = crc32c(&head[..24]);
    head[24..28].copy_from_slice(&digest);
    stream.bytes.extend_from_slice(&head);
    let wrong = stream.bytes[at..at + 24].to_vec();
    ends(&stream.bytes, Violation::Data { tag: 0, cid: 1, offset: 0, len: 100 }, 4, 0, &wrong);
}

#[test]
fn more_data_than_agreed_end_the_connection() {
    let len = LIMITS.capsule_data_bytes_max + 4;
    let mut stream = Stream::new(NONE);
    stream.command(write_in_capsule(1, len), &noise(1, len as usize));
    let wrong = stream.bytes[128..128 + 72].to_vec();
    ends(&stream.bytes, Violation::DataLimit { len, max: LIMITS.capsule_data_bytes_max }, 5, 0, &wrong);

    let len = LIMITS.pdu_data_bytes_max + 4;
    let mut stream = Stream::new(NONE);
    stream.command(write(1, len), &[]).transfer(1, 0, 0, &noise(1, len as usize), true);
    let wrong = stream.bytes[200..224].to_vec();
    ends(&stream.bytes, Violation::DataLimit { len, max: LIMITS.pdu_data_bytes_max }, 5, 0, &wrong);
}

#[test]
fn a_length_of_gigabytes_costs_no_memory_and_ends_the_connection() {
    let head = nvme::tcp::Writer::default().command(write_in_capsule(1, u32::MAX - 200), (u32::MAX - 200) as usize);
    let bytes = [Stream::new(NONE).bytes, head.to_vec()].concat();
    let max = LIMITS.capsule_data_bytes_max;
    ends(&bytes, Violation::DataLimit { len: u32::MAX - 200, max }, 5, 0, &head);
}

#[test]
fn a_host_that_ends_the_connection_gets_no_answer() {
    let request = pdu::terminate(Kind::H2cTermReq, 3, 0xDEAD_BEEF, &[1; 24]);
    let violation = Violation::Terminated { status: 3, information: 0xDEAD_BEEF };
    assert_eq!(violation.fatal_error(), None);
    for before in [Vec::new(), Stream::new(NONE).bytes, Stream::new(BOTH).bytes] {
        assert_eq!(ended(LIMITS, &[before, request.clone()].concat()), Some((violation, Vec::new())));
    }
}

#[test]
fn a_truncated_session_waits_for_the_rest() {
    let mut stream = Stream::new(BOTH);
    stream.command(write(1, 100), &[]).transfer(1, 0, 0, &noise(1, 100), true);
    for len in 0..stream.bytes.len() {
        let link = run(LIMITS, &stream.bytes[..len], &[], false);
        assert!(!link.over && !link.events.iter().any(|event| matches!(event, Event::Received { .. })), "{len} bytes");
    }
}

#[test]
fn nothing_is_asked_for_before_the_handshake() {
    assert!(Link::new(LIMITS, false).receiver.ask(1, 100).is_none());
}

#[test]
fn the_limit_of_a_pdu_and_of_a_queue_have_their_reasons() {
    assert_eq!(Violation::DataMaximum(4095).fatal_error(), Some((1, 12)));
    assert_eq!(Violation::QueueFull(32).fatal_error(), Some((2, 0)));
}
