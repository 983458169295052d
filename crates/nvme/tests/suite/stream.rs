//! A host's bytes give the same steps however they are cut.

use crate::common::stream::{Stream, noise, read, write, write_in_capsule};
use crate::common::{Event, LIMITS, Link, run};
use nvme::tcp::{Digests, To};
use nvme::{Command, nvm};
use proptest::prelude::*;

const BOTH: Digests = Digests { header: true, data: true };

/// Commands with and without data, and the data of three writes mixed; the tags are those that
/// [`Link`] asks with.
fn a_session(digests: Digests) -> Vec<u8> {
    let mut stream = Stream::new(digests);
    stream
        .command(Command::new(nvm::FLUSH, 1, 1), &[])
        .command(write_in_capsule(2, 100), &noise(2, 100))
        .command(write(3, 300), &[])
        .command(read(4, 4096), &[])
        .command(write(5, 64), &[])
        .transfer(3, 0, 0, &noise(3, 100), false)
        .transfer(5, 1, 0, &noise(5, 64), true)
        .command(write(6, 40_000), &[])
        .transfer(3, 0, 100, &noise(3, 200), true)
        .transfer_with(6, 1, 0, &noise(6, 20_000), false, false)
        .command(Command::new(nvm::FLUSH, 7, 1), &[])
        .transfer(6, 1, 20_000, &noise(6, 20_000), true);
    stream.bytes
}

#[test]
fn a_session_gives_its_commands_and_data() {
    for digests in [Digests::default(), BOTH] {
        let link = run(LIMITS, &a_session(digests), &[], false);
        let commands: Vec<u8> = link
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Command { command, .. } => Some(command[2]),
                _ => None,
            })
            .collect();
        assert_eq!(commands, [1, 2, 3, 4, 5, 6, 7]);
        let received: Vec<&Event> =
            link.events.iter().filter(|event| matches!(event, Event::Received { .. })).collect();
        let whole = |to, data: Vec<u8>, intact| Event::Received { to, data, intact };
        let expected = [
            whole(To::Capsule, noise(2, 100), true),
            whole(To::Transfer(1), noise(5, 64), true),
            whole(To::Transfer(0), [noise(3, 100), noise(3, 200)].concat(), true),
            // One damaged PDU damages the transfer, and nothing else. Without digests it goes
            // unnoticed.
            whole(To::Transfer(1), [noise(6, 20_000), noise(6, 20_000)].concat(), !digests.data),
        ];
        assert_eq!(received, expected.iter().collect::<Vec<_>>());
        assert!(!link.over);
    }
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    for digests in [Digests::default(), BOTH] {
        let bytes = a_session(digests);
        let whole = run(LIMITS, &bytes, &[], false);
        // Every byte of all that is not the long data, and some of those.
        let cuts = (1..bytes.len()).filter(|cut| *cut < 2200 || *cut > bytes.len() - 300 || cut % 199 == 0);
        for cut in cuts {
            for direct in [false, true] {
                let link = run(LIMITS, &bytes, &[cut, bytes.len()], direct);
                assert_eq!(link.events, whole.events, "cut at {cut}, direct: {direct}");
            }
        }
        assert_eq!(run(LIMITS, &bytes, &[1], true).events, whole.events);
    }
}

#[test]
fn long_data_may_be_received_straight_into_place() {
    let bytes = a_session(BOTH);
    let link = run(LIMITS, &bytes, &[1500], true);
    assert!(link.receives >= 4, "{} direct receives", link.receives);
    assert_eq!(run(LIMITS, &bytes, &[1500], false).receives, 0);
}

#[test]
fn no_more_transfers_are_asked_for_than_there_may_be() {
    let mut stream = Stream::new(BOTH);
    for cid in 0..6 {
        stream.command(write(cid, 8), &[]);
    }
    let mut link = run(LIMITS, &stream.bytes, &[], false);
    let asked = |link: &Link| link.events.iter().filter(|event| matches!(event, Event::Asked { .. })).count();
    assert_eq!(asked(&link), usize::from(LIMITS.transfers_max));
    // A tag is free again when its data are there.
    let mut data = Stream::new(BOTH);
    data.bytes.clear();
    link.feed(&data.transfer(2, 2, 0, &[1; 8], true).bytes);
    assert!(matches!(link.events.last(), Some(Event::Asked { tag: 2, cid: 4, .. })), "{:?}", link.events.last());
    assert_eq!(asked(&link), usize::from(LIMITS.transfers_max) + 1);
}

/// One thing that a host does.
#[derive(Debug, Clone)]
enum Act {
    Plain,
    InCapsule(usize),
    Write(usize),
    /// So many bytes of one of the transfers that are on their way.
    Data {
        which: usize,
        len: usize,
        intact: bool,
    },
    Noise(Vec<u8>),
}

fn an_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Plain),
        2 => (1_usize..2000).prop_map(Act::InCapsule),
        4 => prop_oneof![1_usize..100, 10_000_usize..60_000].prop_map(Act::Write),
        8 => (any::<usize>(), prop_oneof![1_usize..200, 4000_usize..40_000], prop::bool::weighted(0.9))
            .prop_map(|(which, len, intact)| Act::Data { which, len, intact }),
        1 => prop::collection::vec(any::<u8>(), 1..30).prop_map(Act::Noise),
    ]
}

/// The bytes of these acts. Keeps account of tags as the controller does.
fn acted(digests: Digests, acts: &[Act]) -> Vec<u8> {
    let mut stream = Stream::new(digests);
    let mut transfers: Vec<Option<(u16, usize, usize)>> = vec![None; usize::from(LIMITS.transfers_max)];
    for (cid, act) in (0_u16..).zip(acts) {
        match act {
            Act::Plain => {
                stream.command(Command::new(nvm::FLUSH, cid, 1), &[]);
            }
            Act::InCapsule(len) => {
                stream.command(write_in_capsule(cid, *len as u32), &noise(cid, *len));
            }
            Act::Write(len) => {
                let Some(free) = transfers.iter_mut().find(|transfer| transfer.is_none()) else { continue };
                *free = Some((cid, *len, 0));
                stream.command(write(cid, *len as u32), &[]);
            }
            Act::Data { which, len, intact } => {
                let under_way: Vec<usize> = (0..transfers.len()).filter(|tag| transfers[*tag].is_some()).collect();
                let Some(&tag) = under_way.get(which % under_way.len().max(1)) else { continue };
                let Some((cid, all, sent)) = transfers[tag] else { continue };
                let len = (*len).min(all - sent);
                let last = sent + len == all;
                stream.transfer_with(cid, tag as u16, sent as u32, &noise(cid, len), last, *intact);
                transfers[tag] = (!last).then_some((cid, all, sent + len));
            }
            Act::Noise(bytes) => stream.bytes.extend_from_slice(bytes),
        }
    }
    stream.bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_cut_of_a_session_changes_nothing(
        acts in prop::collection::vec(an_act(), 1..24),
        header in any::<bool>(),
        data in any::<bool>(),
        pieces in prop::collection::vec(prop_oneof![1_usize..100, 1000_usize..50_000], 1..8),
        direct in any::<bool>(),
    ) {
        let bytes = acted(Digests { header, data }, &acts);
        let whole = run(LIMITS, &bytes, &[], false);
        let cut = run(LIMITS, &bytes, &pieces, direct);
        prop_assert_eq!(whole.events, cut.events);
    }

    #[test]
    fn sessions_without_noise_are_served_to_their_end(
        acts in prop::collection::vec(an_act().prop_filter("no noise", |act| !matches!(act, Act::Noise(_))), 1..24),
        data in any::<bool>(),
    ) {
        let link = run(LIMITS, &acted(Digests { header: true, data }, &acts), &[], true);
        prop_assert!(!link.over, "{:?}", link.events.last());
    }
}
