//! Requests and replies, clause by clause.

use crate::common::{Connection, DISK_BYTES};
use nbd::client::{self, Reply};
use nbd::wire::{chunk, cmd, cmd_flag};
use nbd::{Command, Descriptor, Errno};

fn answers(name: &str, structured: bool, allocation: bool, bytes: &[u8]) -> Vec<String> {
    let mut connection = Connection::on(name, structured, allocation);
    connection.feed(bytes);
    connection.trace.events
}

fn refused(cookie: u64, errno: Errno, events: &[String]) -> bool {
    events[0].starts_with(&format!("Refused {{ cookie: {cookie}, errno: {errno:?},"))
}

#[test]
fn every_command_is_understood() {
    let all = cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO | cmd_flag::FUA;
    let cases: Vec<(Vec<u8>, Command)> = vec![
        (client::read(1, 4096, 512), Command::Read { offset: 4096, len: 512, unfragmented: false }),
        (client::request(cmd_flag::DF, cmd::READ, 1, 0, 1), Command::Read { offset: 0, len: 1, unfragmented: true }),
        (client::request(cmd_flag::FUA, cmd::FLUSH, 1, 0, 0), Command::Flush),
        (client::request(0, cmd::TRIM, 1, 8, 16), Command::Trim { offset: 8, len: 16, fua: false }),
        (client::request(0, cmd::CACHE, 1, 8, 16), Command::Cache { offset: 8, len: 16 }),
        (
            client::request(all, cmd::WRITE_ZEROES, 1, 0, DISK_BYTES as u32),
            Command::WriteZeroes {
                offset: 0,
                len: DISK_BYTES as u32,
                fua: true,
                keep_allocated: true,
                only_fast: true,
            },
        ),
        (
            client::request(cmd_flag::REQ_ONE, cmd::BLOCK_STATUS, 1, 0, 9),
            Command::BlockStatus { offset: 0, len: 9, one: true },
        ),
    ];
    for (bytes, command) in cases {
        let events = answers("disk", true, true, &bytes);
        assert_eq!(events, [format!("{:?}", nbd::Step::Request(nbd::Request { cookie: 1, command }))]);
    }
}

#[test]
fn a_write_brings_its_data_and_the_next_request_follows() {
    for len in [0usize, 1, 4096, 16 << 10, 200_000, 32 << 20] {
        let mut bytes = client::write(5, 0, &vec![3; len], cmd_flag::FUA);
        bytes.extend(client::flush(6));
        let events = answers("disk", false, false, &bytes);
        assert!(events[0].contains(&format!("Write {{ offset: 0, len: {len}, fua: true }}")), "{events:?}");
        assert!(events[1].starts_with(&format!("data {len} ")), "{events:?}");
        assert!(events[2].contains("cookie: 6, command: Flush"), "{events:?}");
    }
}

#[test]
fn a_refused_write_is_drained_and_the_connection_goes_on() {
    let past = client::write(5, DISK_BYTES - 1, &[1; 4096], 0);
    let flagged = client::write(5, 0, &[1; 4096], cmd_flag::DF);
    let oversized = client::write(5, 0, &vec![1; (32 << 20) + 1], 0);
    let wrapping = client::write(5, u64::MAX, &[1; 2], 0);
    for (bytes, errno) in
        [(past, Errno::NoSpc), (flagged, Errno::Inval), (oversized, Errno::Inval), (wrapping, Errno::NoSpc)]
    {
        let events = answers("disk", false, false, &[bytes, client::flush(6)].concat());
        assert!(refused(5, errno, &events), "{events:?}");
        assert!(events[1].contains("cookie: 6, command: Flush"), "{events:?}");
    }
}

#[test]
fn refusals_carry_the_error_of_the_specification() {
    let end = DISK_BYTES;
    let cases = [
        (client::read(1, end, 1), Errno::Inval),
        (client::read(1, 0, (32 << 20) + 1), Errno::Inval),
        (client::request(cmd_flag::DF, cmd::READ, 1, 0, 1), Errno::Inval),
        (client::request(0, cmd::TRIM, 1, end, 1), Errno::Inval),
        (client::request(0, cmd::CACHE, 1, end, 1), Errno::Inval),
        (client::request(cmd_flag::NO_HOLE, cmd::CACHE, 1, 0, 1), Errno::Inval),
        (client::request(0, cmd::WRITE_ZEROES, 1, end, 1), Errno::NoSpc),
        (client::request(0, cmd::BLOCK_STATUS, 1, 0, 1), Errno::Inval),
        (client::request(0, 8, 1, 0, 1), Errno::Inval),
        (client::request(1 << 9, cmd::READ, 1, 0, 1), Errno::Inval),
    ];
    for (bytes, errno) in cases {
        let events = answers("disk", false, false, &bytes);
        assert!(refused(1, errno, &events), "{events:?}");
    }
    let events = answers("disk", true, false, &client::read(1, 0, (32 << 20) + 1));
    assert!(refused(1, Errno::Overflow, &events), "{events:?}");
    let events = answers("disk", true, true, &client::request(0, cmd::BLOCK_STATUS, 1, 0, 0));
    assert!(refused(1, Errno::Inval, &events), "{events:?}");
}

#[test]
fn a_read_only_export_takes_no_change() {
    for (command, data) in [(cmd::WRITE, 8), (cmd::TRIM, 0), (cmd::WRITE_ZEROES, 0)] {
        let bytes = [client::request(0, command, 1, 0, 8), vec![0; data], client::read(2, 0, 8)].concat();
        let events = answers("image", false, false, &bytes);
        assert!(refused(1, Errno::Perm, &events) && events[1].contains("Read"), "{events:?}");
    }
}

#[test]
fn a_broken_stream_is_closed_and_a_disconnect_ends_it() {
    let mut wrong = client::read(1, 0, 1);
    wrong[0] ^= 0x40;
    assert!(answers("disk", false, false, &wrong)[0].contains("a request begins with 0x65609513"));
    let huge = client::request(0, cmd::WRITE, 1, 0, nbd::DRAIN_BYTES_MAX + 1);
    assert!(answers("disk", false, false, &huge)[0].contains("closed: a write of"));
    assert_eq!(answers("disk", false, false, &client::disconnect()), ["closed: disconnect"]);
}

fn parsed(bytes: &[u8], read_bytes: usize) -> Reply {
    let mut rest = bytes;
    let reply = client::reply(&mut rest, |_| read_bytes).expect("a whole reply");
    assert!(rest.is_empty());
    reply
}

#[test]
fn replies_are_read_back_as_they_were_written() {
    let simple = Connection::on("disk", false, false).replies();
    let structured = Connection::on("disk", true, true).replies();

    let ok = |error, data: &[u8]| Reply::Simple { error, cookie: 9, data: data.to_vec() };
    assert_eq!(parsed(&simple.done(9, true), 0), ok(0, &[]));
    assert_eq!(parsed(&structured.done(9, false), 0), ok(0, &[]));
    assert_eq!(parsed(&[&simple.data(9, 0, 3)[..], b"abc"].concat(), 3), ok(0, b"abc"));
    assert_eq!(parsed(&simple.error(9, Errno::NotSup, "why"), 3), ok(95, &[]));

    let of = |done, kind, payload: &[u8]| Reply::Chunk { done, kind, cookie: 9, payload: payload.to_vec() };
    assert_eq!(parsed(&structured.done(9, true), 0), of(true, chunk::NONE, &[]));
    let data = [&structured.data(9, 7, 3)[..], b"abc"].concat();
    assert_eq!(parsed(&data, 0), of(true, chunk::OFFSET_DATA, b"\0\0\0\0\0\0\0\x07abc"));
    let part = [&structured.data_chunk(9, 7, 1, false)[..], b"a"].concat();
    assert_eq!(parsed(&part, 0), of(false, chunk::OFFSET_DATA, b"\0\0\0\0\0\0\0\x07a"));
    let hole = structured.hole_chunk(9, 7, 2, true);
    assert_eq!(parsed(&hole, 0), of(true, chunk::OFFSET_HOLE, b"\0\0\0\0\0\0\0\x07\0\0\0\x02"));
    let error = structured.error(9, Errno::Shutdown, "bye");
    assert_eq!(parsed(&error, 0), of(true, chunk::ERROR, b"\0\0\0\x6c\0\x03bye"));
}

#[test]
fn a_block_status_joins_neighbours_and_is_bounded() {
    let replies = Connection::on("disk", true, true).replies();
    let of = |len, allocated| Descriptor { len, allocated };
    let joined = replies.block_status(9, [of(1, true), of(2, true), of(4, false), of(8, false), of(16, true)]);
    let Reply::Chunk { kind, payload, .. } = parsed(&joined, 0) else { panic!("a chunk") };
    assert_eq!(kind, chunk::BLOCK_STATUS);
    let words: Vec<u32> = payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [1, 3, 0, 12, 3, 16, 0]);

    let endless = (0..).map(|index| of(512, index % 2 == 0));
    let Reply::Chunk { payload, .. } = parsed(&replies.block_status(9, endless), 0) else { panic!("a chunk") };
    assert_eq!(payload.len(), 4 + 8 * nbd::STATUS_DESCRIPTORS_MAX);

    let whole = replies.block_status(9, [of(u32::MAX, true), of(1, true)]);
    let Reply::Chunk { payload, .. } = parsed(&whole, 0) else { panic!("a chunk") };
    assert_eq!(payload.len(), 4 + 16, "a length does not overflow by joining");
}

#[test]
fn a_reason_longer_than_a_string_may_be_is_cut() {
    let replies = Connection::on("disk", true, false).replies();
    let Reply::Chunk { payload, .. } = parsed(&replies.error(1, Errno::Io, &"ä".repeat(4000)), 0) else { panic!() };
    assert_eq!(payload.len(), 6 + 4096);
}
