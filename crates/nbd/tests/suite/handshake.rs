//! Option haggling, clause by clause.

use crate::common::{Connection, option_replies, run};
use nbd::wire::{info, opt, rep};
use nbd::{TlsPolicy, client};

fn haggle(tls: TlsPolicy, options: &[Vec<u8>]) -> crate::common::Trace {
    let mut bytes = client::flags(true, true);
    bytes.extend(options.concat());
    run(tls, &bytes, &[usize::MAX], true)
}

fn kinds(trace: &crate::common::Trace) -> Vec<(u32, u32)> {
    option_replies(&trace.sent).iter().map(|reply| (reply.option, reply.kind)).collect()
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let trace = run(TlsPolicy::Off, &[], &[1], true);
    assert_eq!(trace.sent, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let trace = run(TlsPolicy::Off, &[0, 0, 0, 7], &[1], true);
    assert!(trace.closed && trace.events[0].contains("client flags 0x7"), "{trace:?}");
}

#[test]
fn go_describes_the_export_and_enters_it() {
    let trace = haggle(TlsPolicy::Off, &[client::go("disk", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99])]);
    let replies = option_replies(&trace.sent);
    assert!(replies[..4].iter().all(|reply| (reply.option, reply.kind) == (opt::GO, rep::INFO)));
    assert_eq!(replies[0].payload[..10], [[0, 0].as_slice(), &(64u64 << 20).to_be_bytes()].concat());
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO; DF only with
    // structured replies.
    assert_eq!(replies[0].payload[10..], 0b1101_0110_1101u16.to_be_bytes());
    assert_eq!(replies[1].payload, b"\0\x01disk");
    assert_eq!(replies[2].payload, b"\0\x02this is disk");
    assert_eq!(replies[3].payload, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!((replies.len(), replies[4].kind), (5, rep::ACK));
    assert!(trace.events[0].starts_with("entered disk"));
}

#[test]
fn a_read_only_export_says_so_and_offers_no_changes() {
    let trace = haggle(TlsPolicy::Off, &[client::option(opt::STRUCTURED_REPLY, &[]), client::info("image", &[])]);
    assert_eq!(option_replies(&trace.sent)[1].payload[10..], 0b0101_1000_1111u16.to_be_bytes());
    assert!(trace.events.is_empty(), "info does not enter");
}

#[test]
fn a_list_names_every_export() {
    let trace = haggle(TlsPolicy::Off, &[client::option(opt::LIST, &[])]);
    let replies = option_replies(&trace.sent);
    assert_eq!(replies[0].payload, b"\0\0\0\x04diska disk");
    assert_eq!(replies[1].payload, b"\0\0\0\x05image");
    assert_eq!(kinds(&trace), [(3, rep::SERVER), (3, rep::SERVER), (3, rep::ACK)]);
}

#[test]
fn export_name_enters_with_or_without_zeroes() {
    for (no_zeroes, reply_bytes) in [(true, 10), (false, 134)] {
        let bytes = [client::flags(true, no_zeroes), client::option(opt::EXPORT_NAME, b"disk")].concat();
        let trace = run(TlsPolicy::Off, &bytes, &[usize::MAX], true);
        assert_eq!(trace.sent.len(), 18 + reply_bytes);
        assert!(trace.events[0].starts_with("entered disk"));
    }
}

#[test]
fn export_name_of_nothing_ends_the_connection() {
    for name in [b"nothing".as_slice(), b"leaving", b"\xff\xfe", b"di\0sk"] {
        let trace = haggle(TlsPolicy::Off, &[client::option(opt::EXPORT_NAME, name)]);
        assert!(trace.closed && trace.sent.len() == 18, "{trace:?}");
    }
}

#[test]
fn refusals_leave_the_connection_usable() {
    let long_name = "n".repeat(5000);
    let cases: Vec<(Vec<u8>, u32)> = vec![
        (client::go("nothing", &[]), rep::ERR_UNKNOWN),
        (client::info("leaving", &[]), rep::ERR_SHUTDOWN),
        (client::go(&long_name, &[]), rep::ERR_TOO_BIG),
        (client::go("a\0b", &[]), rep::ERR_INVALID),
        (client::option(opt::GO, &[]), rep::ERR_INVALID),
        (client::option(opt::GO, &[0, 0, 0, 9, b'x', 0, 0]), rep::ERR_INVALID),
        (client::option(opt::GO, &[0, 0, 0, 1, b'x', 0, 1]), rep::ERR_INVALID),
        (client::option(opt::GO, &[0, 0, 0, 1, b'x', 0, 0, 0]), rep::ERR_INVALID),
        (client::option(opt::LIST, b"x"), rep::ERR_INVALID),
        (client::option(opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID),
        (client::option(opt::STARTTLS, &[]), rep::ERR_POLICY),
        (client::option(4, b"peek"), rep::ERR_UNSUP),
        (client::option(11, &[]), rep::ERR_UNSUP),
        (client::option(0xdead_beef, &[7; 100]), rep::ERR_UNSUP),
        (client::option(opt::INFO, &vec![0; 100_000]), rep::ERR_TOO_BIG),
        (client::meta_context(true, "disk", &["base:allocation"]), rep::ERR_INVALID),
    ];
    for (option, kind) in cases {
        let trace = haggle(TlsPolicy::Off, &[option.clone(), client::go("disk", &[])]);
        assert_eq!(kinds(&trace)[0].1, kind, "{:?}", &option[..option.len().min(40)]);
        assert!(trace.events[0].starts_with("entered disk"), "{trace:?}");
    }
}

#[test]
fn abort_is_acknowledged_whatever_it_carries() {
    let trace = haggle(TlsPolicy::Off, &[client::option(opt::ABORT, b"bye")]);
    assert_eq!((kinds(&trace), trace.events), (vec![(2, rep::ACK)], vec!["closed: ended".to_owned()]));
}

#[test]
fn without_fixed_newstyle_only_export_name_is_served() {
    let bytes = [client::flags(false, false), client::option(opt::LIST, &[])].concat();
    assert!(run(TlsPolicy::Off, &bytes, &[3], true).closed);
}

#[test]
fn a_connection_out_of_step_or_without_end_is_closed() {
    let mut wrong_magic = client::option(opt::LIST, &[]);
    wrong_magic[0] ^= 1;
    let mut huge = client::option(opt::INFO, &[]);
    huge[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    let endless = client::option(opt::STRUCTURED_REPLY, &[]).repeat(nbd::OPTIONS_MAX as usize + 1);
    for bytes in [wrong_magic, huge, endless] {
        assert!(haggle(TlsPolicy::Off, &[bytes]).closed);
    }
}

#[test]
fn metadata_contexts_are_listed_and_chosen() {
    let structured = client::option(opt::STRUCTURED_REPLY, &[]);
    let context = |set, name, queries: &[&str]| {
        let trace = haggle(TlsPolicy::Off, &[structured.clone(), client::meta_context(set, name, queries)]);
        option_replies(&trace.sent)[1..].iter().map(|reply| reply.kind).collect::<Vec<_>>()
    };
    let (found, nothing) = ([rep::META_CONTEXT, rep::ACK], [rep::ACK]);
    assert_eq!(context(false, "disk", &[]), found, "a list without a query is of everything");
    assert_eq!(context(false, "disk", &["base:"]), found);
    assert_eq!(context(false, "disk", &["qemu:x", "base:allocation"]), found);
    assert_eq!(context(false, "disk", &["base:other"]), nothing);
    assert_eq!(context(true, "disk", &["base:allocation"]), found);
    assert_eq!(context(true, "disk", &[]), nothing, "a choice without a query is of nothing");
    assert_eq!(context(true, "disk", &["base:"]), nothing, "wildcards choose nothing");
    assert_eq!(context(true, "disk", &["x-foo:bar"]), nothing);
    assert_eq!(context(true, "disk", &["nocolon"]), [rep::ERR_INVALID]);
    assert_eq!(context(true, "nothing", &["base:allocation"]), [rep::ERR_UNKNOWN]);
}

#[test]
fn a_context_counts_only_for_the_export_it_was_chosen_for() {
    let structured = client::option(opt::STRUCTURED_REPLY, &[]);
    let choose = |name: &str| client::meta_context(true, name, &["base:allocation"]);
    let go = client::go("disk", &[]);
    let cases = [
        (vec![choose("disk")], true),
        (vec![choose("image")], false),
        (vec![choose("disk"), choose("image")], false),
        (vec![choose("disk"), client::meta_context(true, "disk", &[])], false),
        (vec![choose("disk"), choose("nothing")], false),
        (vec![choose("disk"), client::option(opt::SET_META_CONTEXT, &vec![0; 40_000])], false),
    ];
    for (choices, active) in cases {
        let trace = haggle(TlsPolicy::Off, &[vec![structured.clone()], choices, vec![go.clone()]].concat());
        assert!(trace.events[0].contains(&format!("allocation: {active}")), "{trace:?}");
    }
}

#[test]
fn required_tls_serves_nothing_in_the_clear() {
    for option in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, 8, 9, 10, 4, 77] {
        let trace = haggle(TlsPolicy::Required, &[client::option(option, &[1, 2, 3])]);
        assert_eq!(kinds(&trace), [(option, rep::ERR_TLS_REQD)]);
    }
    let trace = haggle(TlsPolicy::Required, &[client::option(opt::EXPORT_NAME, b"disk")]);
    assert!(trace.closed && trace.sent.len() == 18);
    let trace = haggle(TlsPolicy::Required, &[client::option(opt::ABORT, &[])]);
    assert_eq!(kinds(&trace), [(2, rep::ACK)]);
}

#[test]
fn starttls_hands_the_rest_of_the_stream_to_tls() {
    for policy in [TlsPolicy::Optional, TlsPolicy::Required] {
        let injected = client::go("disk", &[]);
        let trace = haggle(policy, &[client::option(opt::STARTTLS, &[]), injected]);
        assert!(trace.tls && trace.taken == 4 + 16, "nothing after STARTTLS is read as an option: {trace:?}");
        assert_eq!(kinds(&trace), [(5, rep::ACK)]);
    }
}

#[test]
fn tls_forgets_what_was_negotiated_in_the_clear_and_starts_once() {
    let mut sent = Vec::new();
    let mut machine = nbd::Handshake::new(TlsPolicy::Optional, &mut sent);
    let clear = [
        client::flags(true, true),
        client::option(opt::STRUCTURED_REPLY, &[]),
        client::meta_context(true, "disk", &["base:allocation"]),
        client::option(opt::STARTTLS, &[]),
    ]
    .concat();
    let mut rest = clear.as_slice();
    loop {
        let (taken, progress) = machine.step(rest, &crate::common::Exports, &mut sent);
        rest = &rest[taken..];
        if matches!(progress, nbd::Progress::StartTls) {
            break;
        }
    }
    assert!(machine.secure());
    let secret = [client::option(opt::STARTTLS, &[]), client::go("disk", &[])].concat();
    let (taken, _) = machine.step(&secret, &crate::common::Exports, &mut sent);
    let again = option_replies(&sent).pop().expect("a reply");
    assert_eq!((again.option, again.kind), (opt::STARTTLS, rep::ERR_INVALID));
    let (_, progress) = machine.step(&secret[taken..], &crate::common::Exports, &mut sent);
    let nbd::Progress::Entered(transmission, _) = progress else { panic!("{progress:?}") };
    assert!(!transmission.replies().structured());
}

#[test]
fn the_documentation_shows_the_rules_as_they_are() {
    let path = "../../docs/protocols/nbd.md";
    let page = std::fs::read_to_string(path).expect("the page is there");
    assert!(page.contains(&nbd::tables()), "docs/protocols/nbd.md should hold:\n{}", nbd::tables());
}

#[test]
fn data_of_a_large_write_need_not_pass_through_the_input() {
    let mut connection = Connection::on("disk", false, false);
    connection.feed(&client::write(1, 0, &vec![7; 1 << 20], 0));
    assert_eq!(connection.trace.events.len(), 2, "{:?}", connection.trace.events);
    assert!(connection.trace.events[1].starts_with("data 1048576"));
}
