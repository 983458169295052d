//! The Persistent Event Log: its bytes, its reporting context, and what is kept.

use std::collections::BTreeSet;

use crate::common::admin::{data, enabled, failed, log, set};
use crate::common::view::{HOST, Memory, SUBSYSTEM};
use nvme::target::{Answer, Controller, Happened, Happening, History, Kind};
use nvme::{Command, Status};

/// Values of the field Action.
const READ: u32 = 0b00;
const ESTABLISH: u32 = 0b01;
const RELEASE: u32 = 0b10;
const HEAD: u32 = 0b11;

const NOW: u64 = 1_800_000_000_123;

fn command(action: u32, offset: u64, len: u32) -> Command {
    let mut command = log(0x0D, offset, len);
    command.set_cdw(10, command.cdw(10) | action << 8);
    command
}

fn ask(controller: &mut Controller, view: &Memory, action: u32, offset: u64, len: u32) -> Answer {
    controller.execute(&command(action, offset, len), &[], view).0
}

fn note(view: &mut Memory, unix_ms: u64, what: Happening) -> bool {
    view.past.history.note(Happened { unix_ms, firmware: "0.1.0".to_owned(), what })
}

fn reset() -> Happening {
    Happening::ControllerReset { cntlid: 0x0102, port: 4421, power_cycles: 3, power_on_ms: 0x0A0B }
}

fn change(nsid: u32, created: bool, hosts: Option<&[&str]>) -> Happening {
    let hosts = hosts.map(|names| names.iter().map(|name| name.to_string()).collect::<BTreeSet<String>>());
    Happening::NamespaceChange { created, nsid, blocks: 0x0203, block_bytes: 4096, hosts }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(wide)
}

/// Type and number of the namespace (0 where it is none) of the events of a page.
fn events(page: &[u8]) -> Vec<(u8, u32)> {
    let mut at = 512;
    let mut events = Vec::new();
    while at < number(page, 8, 8) as usize {
        let head = usize::from(page[at + 2]) + 3;
        let len = number(page, at + 22, 2) as usize;
        let nsid = if page[at] == 6 { number(page, at + head + 44, 4) as u32 } else { 0 };
        events.push((page[at], nsid));
        at += head + len;
    }
    assert_eq!((at as u64, events.len() as u64), (number(page, 8, 8), number(page, 4, 4)), "TLL, TNEV");
    events
}

fn established(controller: &mut Controller, view: &Memory) -> Vec<u8> {
    let page = data(ask(controller, view, ESTABLISH, 0, 65_536)).expect("a page");
    assert_eq!(ask(controller, view, RELEASE, 0, 512), Answer::Done(Status::SUCCESS, 0));
    page
}

#[test]
fn every_field_of_the_page_is_where_the_specification_has_it() {
    let mut view = Memory::new();
    note(&mut view, NOW - 3000, Happening::PowerOn);
    note(&mut view, NOW - 2000, change(7, true, None));
    note(&mut view, NOW - 1500, change(7, false, None));
    note(&mut view, NOW - 1000, reset());
    let page = data(ask(&mut enabled(Kind::Io), &view, ESTABLISH, 0, 65_536)).expect("a page");

    // Page, events, length.
    assert_eq!((page[0], number(&page, 4, 4), number(&page, 8, 8)), (0x0D, 4, 512 + 68 + 72 + 72 + 32));
    // Revision, length of the header behind byte 20, timestamp.
    assert_eq!((page[16], number(&page, 18, 2), number(&page, 20, 8)), (2, 492, NOW));
    // Power on hours and cycles; no PCI vendor.
    assert_eq!((number(&page, 28, 8), number(&page, 36, 8), number(&page, 44, 8)), (2, 0, 3));
    assert_eq!(number(&page, 52, 4), 0);
    assert_eq!(&page[56..76], b"SN-1                ");
    assert_eq!(&page[76..82], b"Purlin");
    assert!(page[116..].starts_with(SUBSYSTEM.as_bytes()) && page[116 + SUBSYSTEM.len()] == 0);
    // Generation; no context was there before; reserved.
    assert_eq!((number(&page, 372, 2), number(&page, 374, 4)), (4, 0));
    assert!(page[378..480].iter().all(|byte| *byte == 0));
    // Power-on or Reset, Change Namespace.
    assert_eq!((page[480], &page[481..512]), (1 << 4 | 1 << 6, &[0; 31][..]));

    let stamp = |ago: u64| (NOW - ago).to_le_bytes();
    // Type, revision, EHL, EHAI, CNTLID, timestamp, port, reserved, VSIL, EL; firmware; the
    // controller.
    let reset = [
        &[4, 1, 21, 1, 2, 1][..],
        &stamp(1000),
        &[0x45, 0x11, 0, 0, 0, 0, 0, 0, 44, 0],
        b"0.1.0   ",
        &[2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0x0B, 0x0A, 0, 0, 0, 0, 0, 0],
        &stamp(1000),
    ];
    let changed = |ago: u64, select: u8, flbas: u8| {
        [
            &[6, 1, 21, 3, 0xFF, 0xFF][..],
            &stamp(ago),
            &[0, 0, 0, 0, 0, 0, 0, 0, 48, 0],
            &[select, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0],
            &[flbas, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0],
        ]
        .concat()
    };
    let power = [&[4, 1, 21, 3, 0xFF, 0xFF][..], &stamp(3000), &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0], b"0.1.0   "];
    // The newest first. Of a namespace to be created the format is one that all have to choose
    // from, the second for 4 KiB.
    let expected = [reset.concat(), changed(1500, 1, 0), changed(2000, 0, 1), power.concat()].concat();
    assert_eq!(page[512..512 + expected.len()], expected);
    assert!(page[512 + expected.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_context_is_established_once_read_in_pieces_and_released() {
    let mut view = Memory::new();
    let mut controller = enabled(Kind::Io);
    note(&mut view, NOW, Happening::PowerOn);
    let out_of_order = failed(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(ask(&mut controller, &view, READ, 0, 512), out_of_order, "nothing was established");
    // One that is not there can be released, without data.
    assert_eq!(ask(&mut controller, &view, RELEASE, 0, 512), Answer::Done(Status::SUCCESS, 0));
    let whole = data(ask(&mut controller, &view, ESTABLISH, 0, 544)).expect("a page");
    assert_eq!(ask(&mut controller, &view, ESTABLISH, 0, 512), out_of_order, "there is one");

    // Later events are in the next context, and do not disturb this one.
    note(&mut view, NOW + 1, change(1, true, None));
    let again = data(ask(&mut controller, &view, READ, 0, 544)).expect("a page");
    assert_eq!((&again[..374], &again[378..]), (&whole[..374], &whole[378..]));
    // RCI: one exists, which came by a port of the subsystem, 4420.
    assert_eq!(number(&again, 374, 4), 1 << 18 | 1 << 16 | 4420);
    for (offset, len) in [(0, 16), (8, 512), (500, 40), (540, 4)] {
        let piece = data(ask(&mut controller, &view, READ, offset as u64, len as u32)).expect("a piece");
        assert_eq!(piece, again[offset..offset + len]);
    }
    assert_eq!(data(ask(&mut controller, &view, READ, 544, 8)), Ok(vec![0; 8]));
    assert_eq!(ask(&mut controller, &view, READ, 548, 4), failed(Status::INVALID_FIELD), "behind the end");

    assert_eq!(ask(&mut controller, &view, RELEASE, 0, 512), Answer::Done(Status::SUCCESS, 0));
    assert_eq!(ask(&mut controller, &view, READ, 0, 512), out_of_order);
    let next = data(ask(&mut controller, &view, ESTABLISH, 0, 1024)).expect("a page");
    assert_eq!(events(&next), [(6, 1), (4, 0)]);
    assert_ne!(next[372..374], whole[372..374], "another generation");
}

#[test]
fn a_context_ends_with_a_reset_of_its_controller_and_is_no_other_controllers() {
    let view = Memory::new();
    let (mut one, mut two) = (enabled(Kind::Io), enabled(Kind::Io));
    assert!(data(ask(&mut one, &view, ESTABLISH, 0, 512)).is_ok());
    assert_eq!(ask(&mut two, &view, READ, 0, 512), failed(Status::COMMAND_SEQUENCE_ERROR));
    assert!(data(ask(&mut two, &view, ESTABLISH, 0, 512)).is_ok());
    set(&mut one, 0x14, 0x0046_0000);
    set(&mut one, 0x14, 0x0046_0001);
    assert_eq!(ask(&mut one, &view, READ, 0, 512), failed(Status::COMMAND_SEQUENCE_ERROR));
    assert!(data(ask(&mut two, &view, READ, 0, 512)).is_ok());
}

#[test]
fn the_header_is_given_with_a_context_or_without_and_says_which() {
    let mut view = Memory::new();
    let mut controller = enabled(Kind::Io);
    note(&mut view, NOW, Happening::PowerOn);
    // The offset of the command is ignored.
    for context in [0, 1 << 18 | 1 << 16 | 4420] {
        let head = data(ask(&mut controller, &view, HEAD, 512, 512)).expect("a header");
        assert_eq!((head[0], number(&head, 4, 4), number(&head, 374, 4)), (0x0D, 1, context));
    }
    let more = data(ask(&mut controller, &view, HEAD, 0, 544)).expect("a header");
    assert_eq!(more[512..], [0; 32], "the header, and no event");
    assert_eq!(events(&data(ask(&mut controller, &view, READ, 0, 544)).expect("a page")), [(4, 0)]);
    // The page says that the action is there (ECRH).
    let supported = data(controller.execute(&log(0x00, 0, 1024), &[], &view).0).expect("a page");
    assert_eq!(supported[0x0D * 4..][..4], [1, 0, 1, 0]);
}

#[test]
fn hosts_hear_nothing_of_namespaces_that_they_were_not_allowed_to_use() {
    let mut view = Memory::new();
    note(&mut view, NOW, Happening::PowerOn);
    note(&mut view, NOW, change(1, true, None));
    note(&mut view, NOW, change(2, true, Some(&["nqn.2026-11.com.example:other"])));
    note(&mut view, NOW, change(3, true, Some(&["nqn.2026-11.com.example:other", HOST])));
    note(&mut view, NOW, change(2, false, Some(&[])));
    assert_eq!(events(&established(&mut enabled(Kind::Io), &view)), [(6, 3), (6, 1), (4, 0)]);
}

#[test]
fn the_newest_of_each_kind_are_kept_within_the_length_that_is_said() {
    let mut view = Memory::new();
    note(&mut view, NOW, Happening::PowerOn);
    for nsid in 1..=1000 {
        note(&mut view, NOW, change(nsid, true, None));
        // Not so often that they are left out.
        assert!(note(&mut view, NOW + u64::from(nsid) * 10_000, reset()));
    }
    let page = established(&mut enabled(Kind::Io), &view);
    assert!(number(&page, 8, 8) <= 65_536);
    let kept = events(&page);
    let changes: Vec<u32> = kept.iter().filter(|event| event.0 == 6).map(|event| event.1).collect();
    assert_eq!(changes, (489..=1000).rev().collect::<Vec<u32>>());
    assert_eq!((kept.len(), kept.last()), (512 + 128 + 1, Some(&(4, 0))), "the one power on is still there");
    assert_eq!(number(&page, 372, 2), 2001);
    // As it is written down and read again.
    let history = &view.past.history;
    assert_eq!(History::restore(history.happened().cloned(), history.noted()), *history);
}

#[test]
fn long_lists_of_hosts_leave_room_for_fewer_changes() {
    let mut view = Memory::new();
    note(&mut view, NOW, Happening::PowerOn);
    let hosts: BTreeSet<String> = (0..5000).map(|number| format!("nqn.2026-11.com.example:{number}")).collect();
    let long = |nsid| {
        let hosts = Some(hosts.clone());
        Happening::NamespaceChange { created: true, nsid, blocks: 1, block_bytes: 512, hosts }
    };
    note(&mut view, NOW, change(1, true, None));
    for nsid in 2..=6 {
        note(&mut view, NOW, long(nsid));
    }
    let kept = |view: &Memory| -> Vec<u32> {
        let number = |what: &Happening| match what {
            Happening::NamespaceChange { nsid, .. } => *nsid,
            _ => 0,
        };
        view.past.history.happened().map(|happened| number(&happened.what)).collect()
    };
    assert_eq!(kept(&view), [6, 5, 4, 1, 0], "the newest, and what names nobody");
    let all: BTreeSet<String> = (0..20_000).map(|number| format!("nqn.2026-11.com.example:{number}")).collect();
    let what = Happening::NamespaceChange { created: false, nsid: 7, blocks: 1, block_bytes: 512, hosts: Some(all) };
    note(&mut view, NOW, what);
    assert_eq!(kept(&view), [7, 1, 0]);
}

#[test]
fn a_host_that_resets_without_end_is_noted_sixteen_times_a_minute() {
    let mut view = Memory::new();
    let noted = (0..100).filter(|ms| note(&mut view, NOW + ms, reset())).count();
    assert_eq!(noted, 16);
    assert!(!note(&mut view, NOW - 50_000, reset()), "the clock was set back");
    assert!(note(&mut view, NOW + 60_016, reset()));
    assert_eq!(view.past.history.noted(), 17);
}
