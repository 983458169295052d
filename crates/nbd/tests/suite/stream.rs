//! Arbitrary bytes, cut anywhere.

use crate::common::{DISK_BYTES, Rng, run};
use nbd::wire::{cmd, cmd_flag, info, opt};
use nbd::{TlsPolicy, client};
use proptest::prelude::*;

fn an_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("disk"), Just(""), Just("image"), Just("nothing"), Just("leaving")];
    prop_oneof![
        Just(client::option(opt::STRUCTURED_REPLY, &[])),
        Just(client::option(opt::LIST, &[])),
        Just(client::option(opt::ABORT, b"x")),
        name.clone().prop_map(|name| client::info(name, &[info::NAME, info::BLOCK_SIZE])),
        (any::<bool>(), name.clone()).prop_map(|(set, name)| client::meta_context(set, name, &["base:allocation"])),
        name.clone().prop_map(|name| client::option(opt::EXPORT_NAME, name.as_bytes())),
        name.prop_map(|name| client::go(name, &[info::DESCRIPTION])),
        (0u32..14, proptest::collection::vec(any::<u8>(), 0..60)).prop_map(|(kind, data)| client::option(kind, &data)),
        (0u32..14, 32_000usize..40_000).prop_map(|(kind, len)| client::option(kind, &vec![1; len])),
    ]
}

fn a_request() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..DISK_BYTES, Just(DISK_BYTES - 4096), any::<u64>()];
    prop_oneof![
        4 => (any::<u64>(), offset.clone(), 0usize..100_000, 0u16..4)
            .prop_map(|(cookie, offset, len, flags)| client::write(cookie, offset, &vec![cookie as u8; len], flags)),
        4 => (0u16..32, 0u16..9, any::<u64>(), offset, any::<u32>())
            .prop_filter("writes carry data", |(_, command, ..)| *command != cmd::WRITE)
            .prop_map(|(flags, command, cookie, offset, len)| client::request(flags, command, cookie, offset, len)),
    ]
}

fn a_session() -> impl Strategy<Value = Vec<u8>> {
    let options = proptest::collection::vec(an_option(), 0..6);
    let requests = proptest::collection::vec(a_request(), 0..12);
    (any::<bool>(), options, requests).prop_map(|(fixed, options, requests)| {
        [client::flags(fixed, true), options.concat(), client::go("disk", &[]), requests.concat()].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_cut_of_the_stream_changes_nothing(
        bytes in a_session(),
        pieces in proptest::collection::vec(prop_oneof![1usize..40, 1000usize..70_000], 1..8),
        direct in any::<bool>(),
        tls in prop_oneof![Just(TlsPolicy::Off), Just(TlsPolicy::Optional), Just(TlsPolicy::Required)],
    ) {
        let whole = run(tls, &bytes, &[usize::MAX], true);
        let cut = run(tls, &bytes, &pieces, direct);
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn arbitrary_bytes_are_answered_or_end_the_connection(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        run(TlsPolicy::Optional, &bytes, &[usize::MAX], true);
        let mut after_flags = client::flags(true, false);
        after_flags.extend(&bytes);
        run(TlsPolicy::Off, &after_flags, &[7], true);
        let mut in_transmission = [client::flags(true, true), client::go("disk", &[])].concat();
        in_transmission.extend(&bytes);
        run(TlsPolicy::Off, &in_transmission, &[7], true);
    }

    #[test]
    fn requests_are_read_as_they_were_written(
        cookie in any::<u64>(), offset in 0..DISK_BYTES, len in 0u32..1 << 20, fua in any::<bool>(),
    ) {
        prop_assume!(offset + u64::from(len) <= DISK_BYTES);
        let mut connection = crate::common::Connection::on("disk", true, true);
        let flags = if fua { cmd_flag::FUA } else { 0 };
        connection.feed(&client::write(cookie, offset, &vec![1; len as usize], flags));
        connection.feed(&client::request(flags, cmd::TRIM, cookie, offset, len));
        let command = nbd::Command::Write { offset, len, fua };
        prop_assert_eq!(
            &connection.trace.events[0],
            &format!("{:?}", nbd::Step::Request(nbd::Request { cookie, command }))
        );
        let command = nbd::Command::Trim { offset, len, fua };
        prop_assert_eq!(
            &connection.trace.events[2],
            &format!("{:?}", nbd::Step::Request(nbd::Request { cookie, command }))
        );
    }
}

/// A session that reaches every option and every request.
fn full_session() -> Vec<u8> {
    let requests = [
        client::read(1, 0, 4096),
        client::write(2, 4096, &[9; 5000], cmd_flag::FUA),
        client::request(0, cmd::TRIM, 3, 0, 1 << 20),
        client::request(cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO, cmd::WRITE_ZEROES, 4, 0, 1 << 20),
        client::request(cmd_flag::REQ_ONE, cmd::BLOCK_STATUS, 5, 0, 1 << 20),
        client::request(0, cmd::CACHE, 6, 0, 1 << 20),
        client::write(7, 0, &[8; 40_000], 0),
        client::flush(8),
        client::disconnect(),
    ];
    [
        client::flags(true, true),
        client::option(opt::LIST, &[]),
        client::option(opt::STRUCTURED_REPLY, &[]),
        client::info("disk", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE]),
        client::meta_context(false, "disk", &[]),
        client::meta_context(true, "disk", &["base:allocation"]),
        client::go("disk", &[info::BLOCK_SIZE]),
        requests.concat(),
    ]
    .concat()
}

#[test]
fn mutated_sessions_never_panic_and_never_depend_on_the_cut() {
    let original = full_session();
    let mut rng = Rng(0x5eed_0001);
    let (mut closed, mut entered) = (0, 0);
    const ROUNDS: usize = 20_000;
    for _ in 0..ROUNDS {
        let mut bytes = original.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len());
            match rng.below(6) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.next() as u8,
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + rng.below(64)).min(bytes.len());
                    bytes.drain(at..end);
                }
                4 => {
                    let noise: Vec<u8> = (0..rng.below(40)).map(|_| rng.next() as u8).collect();
                    bytes.splice(at..at, noise);
                }
                _ => {
                    // Header fields are the sensitive ones: the first 700 bytes hold the handshake.
                    let at = rng.below(bytes.len().min(700));
                    bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)];
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        let whole = run(TlsPolicy::Off, &bytes, &[usize::MAX], true);
        let cut = run(TlsPolicy::Off, &bytes, &[1 + rng.below(3000), 1 + rng.below(50)], false);
        assert_eq!(whole, cut, "{bytes:02x?}");
        closed += usize::from(whole.closed);
        entered += usize::from(whole.events.iter().any(|event| event.starts_with("entered")));
    }
    println!("{ROUNDS} mutated sessions: {entered} reached transmission, {closed} ended");
    assert!(entered > ROUNDS / 10 && closed > ROUNDS / 10, "the mutations reach both phases");
}

#[test]
fn the_unchanged_session_is_served_to_its_end() {
    let trace = run(TlsPolicy::Off, &full_session(), &[usize::MAX], true);
    assert!(trace.closed && trace.taken == full_session().len(), "{trace:?}");
    assert!(!trace.events.iter().any(|event| event.starts_with("Refused")), "{trace:?}");
}
