//! Asymmetric Namespace Access: what a controller says of namespaces that it reaches in different
//! ways.

use crate::common::admin::{data, done, enabled, failed, log};
use crate::common::view::Memory;
use nvme::identify::cns;
use nvme::target::{AccessState, Answer, Controller, Kind, NAMESPACES_MAX, TRANSFER_BYTES_MAX};
use nvme::{Access, Command, Completion, Status, admin};

fn execute(controller: &mut Controller, view: &Memory, command: &Command) -> Answer {
    controller.execute(command, &[], view).0
}

fn access_log(controller: &mut Controller, view: &Memory) -> Vec<u8> {
    data(execute(controller, view, &log(0x0C, 0, 16 + 2 * 36))).expect("a log")
}

/// Namespace 3 has another state, by its third change.
fn view(state: Access) -> Memory {
    let mut view = Memory::new();
    view.access.insert(3, AccessState { state, count: 3 });
    view
}

#[test]
fn each_namespace_is_a_group_with_its_state() {
    let mut controller = enabled(Kind::Io);
    let mut bytes = access_log(&mut controller, &view(Access::NonOptimized));
    // Change count, groups.
    assert_eq!(bytes[..16], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    // Of each: the group, how many namespaces, change count, state; the namespaces.
    let group = |id, count, state| {
        [&[id, 0, 0, 0, 1, 0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0, state][..], &[0; 15], &[id, 0, 0, 0]].concat()
    };
    assert_eq!(bytes.split_off(16), [group(1, 1, 1), group(3, 3, 2)].concat());
    for (state, code) in [(Access::Inaccessible, 3), (Access::PersistentLoss, 4), (Access::Change, 15)] {
        assert_eq!(access_log(&mut controller, &view(state))[16 + 36 + 16], code);
    }

    // RGO: groups only.
    let mut groups = log(0x0C, 0, 16 + 2 * 36);
    groups.set_cdw(10, groups.cdw(10) | 1 << 8);
    let bytes = data(execute(&mut controller, &view(Access::Optimized), &groups)).expect("a log");
    assert_eq!((bytes[16], bytes[20], bytes[48], bytes[52], &bytes[80..]), (1, 0, 3, 0, &[0; 8][..]));

    let mut empty = Memory::new();
    empty.namespaces.clear();
    let bytes = access_log(&mut controller, &empty);
    assert_eq!((bytes[0], &bytes[1..]), (1, &[0; 16 + 2 * 36 - 1][..]));
}

/// Hosts reserve memory for the largest log that there can be: NANAGRPID groups and MNAN
/// namespaces.
#[test]
fn the_largest_log_is_read_with_one_command() {
    const _: () = assert!(16 + NAMESPACES_MAX * (32 + 4) <= TRANSFER_BYTES_MAX);
    let mut controller = enabled(Kind::Io);
    let mut identify = Command::new(admin::IDENTIFY, 1, 0);
    identify.set_cdw(10, cns::CONTROLLER.into());
    let identified = data(execute(&mut controller, &Memory::new(), &identify)).expect("data");
    let number = |at: usize| u32::from_le_bytes(identified[at..at + 4].try_into().expect("four bytes"));
    // CMIC says that there are states; ANACAP: optimized, non-optimized, inaccessible, and groups
    // that stay the same.
    assert_eq!((identified[76] & 1 << 3, identified[343]), (1 << 3, 0b100_0111));
    // ANAGRPMAX, NANAGRPID, MNAN.
    assert_eq!((number(344), number(348), number(540)), (65_535, NAMESPACES_MAX, NAMESPACES_MAX));
}

/// They take the log to be that long, and nvme-cli reads it in pieces: an offset behind a log's end
/// is an invalid field.
#[test]
fn the_log_can_be_read_in_pieces_to_the_length_that_hosts_expect() {
    let mut controller = enabled(Kind::Io);
    let longest = 16 + NAMESPACES_MAX * (32 + 4);
    let whole = access_log(&mut controller, &view(Access::Optimized));
    for offset in (0..longest).step_by(4096) {
        let mut piece = log(0x0C, 0, 4096);
        piece.set_cdw(12, offset);
        let piece = data(execute(&mut controller, &view(Access::Optimized), &piece)).expect("a piece");
        let begins = if offset == 0 { &whole[..] } else { &[] };
        assert_eq!(piece[..begins.len()], *begins);
        assert!(piece[begins.len()..].iter().all(|byte| *byte == 0), "offset {offset}");
    }
    let mut behind = log(0x0C, 0, 4096);
    behind.set_cdw(12, longest + 4);
    assert_eq!(execute(&mut controller, &view(Access::Optimized), &behind), failed(Status::INVALID_FIELD));
}

#[test]
fn a_change_is_told_and_counted() {
    let mut controller = enabled(Kind::Io);
    crate::common::admin::feature(&mut controller, admin::SET_FEATURES, 0x0B, 1 << 11);
    assert_eq!(
        execute(&mut controller, &Memory::new(), &Command::new(admin::ASYNC_EVENT_REQUEST, 7, 0)),
        Answer::Later
    );
    controller.access_changed();
    controller.access_changed();
    assert_eq!(controller.event(), Some(Completion::new(7, Status::SUCCESS, 0x0C_03_02)));
    assert_eq!(access_log(&mut controller, &Memory::new())[..8], 3_u64.to_le_bytes());
    // A group less, or one more.
    controller.namespace_changed(3);
    assert_eq!(access_log(&mut controller, &Memory::new())[..8], 4_u64.to_le_bytes());
    assert_eq!(controller.event(), None);
}

#[test]
fn a_thin_namespace_says_how_much_it_may_have_and_has() {
    let mut controller = enabled(Kind::Io);
    let mut command = Command::new(admin::IDENTIFY, 1, 3);
    command.set_cdw(10, cns::NAMESPACE.into());
    for (thin, capacity, used) in [((600, 20), 600_u64, 20_u64), ((600, 700), 600, 600), ((5000, 3), 1000, 3)] {
        let mut view = Memory::new();
        view.namespaces[1].thin_blocks = Some(thin);
        let found = data(execute(&mut controller, &view, &command)).expect("data");
        // NSZE, NCAP and NUSE; NSFEAT has THINP.
        assert_eq!(found[..8], 1000_u64.to_le_bytes());
        assert_eq!((&found[8..16], &found[16..24]), (&capacity.to_le_bytes()[..], &used.to_le_bytes()[..]));
        assert_eq!(found[24] & 1, 1);
    }
}

#[test]
fn a_namespace_that_cannot_be_reached_says_who_it_is_and_hides_what_is_in_it() {
    let mut controller = enabled(Kind::Io);
    let mut identify = |view: &Memory, cns: u8| {
        let mut command = Command::new(admin::IDENTIFY, 1, 3);
        command.set_cdw(10, cns.into());
        data(execute(&mut controller, view, &command)).expect("data")
    };
    for (state, used) in [
        (Access::Optimized, 1000_u64),
        (Access::NonOptimized, 1000),
        (Access::Inaccessible, 0),
        (Access::PersistentLoss, 0),
    ] {
        let view = view(state);
        let found = identify(&view, cns::NAMESPACE);
        // NSZE, NCAP and NUSE; ANAGRPID.
        assert_eq!((&found[..8], &found[8..16]), (&1000_u64.to_le_bytes()[..], &1000_u64.to_le_bytes()[..]));
        assert_eq!((&found[16..24], &found[92..96]), (&used.to_le_bytes()[..], &[3, 0, 0, 0][..]), "{state:?}");
        assert_eq!(identify(&view, cns::NAMESPACE_DESCRIPTORS)[4..20], [0x33; 16]);
        assert_eq!(identify(&view, cns::ACTIVE_NAMESPACES)[..4], [0; 4], "none above 3");
    }
}

#[test]
fn features_of_a_namespace_that_cannot_be_reached_are_not_available() {
    let mut controller = enabled(Kind::Io);
    let mut feature = |view: &Memory, opcode: u8, nsid: u32, feature: u32| {
        let mut command = Command::new(opcode, 1, nsid);
        command.set_cdw(10, feature);
        command.set_cdw(11, 0b10);
        execute(&mut controller, view, &command)
    };
    for (state, status) in [
        (Access::Inaccessible, Status::ACCESS_INACCESSIBLE),
        (Access::PersistentLoss, Status::ACCESS_PERSISTENT_LOSS),
        (Access::Change, Status::ACCESS_TRANSITION),
    ] {
        let view = view(state);
        for fid in [0x82, 0x83] {
            assert_eq!(feature(&view, admin::GET_FEATURES, 3, fid), failed(status));
            // All namespaces are 3, too.
            for nsid in [3, 0xFFFF_FFFF] {
                assert_eq!(feature(&view, admin::SET_FEATURES, nsid, fid), failed(status));
            }
        }
        assert_eq!(feature(&view, admin::GET_FEATURES, 1, 0x82), done(0), "what was refused changed nothing");
        // One of the controller.
        assert_eq!(feature(&view, admin::SET_FEATURES, 0, 0x05), done(0));
        assert_eq!((status.do_not_retry(), Access::of_refusal(status)), (false, Some(state)));
    }
    assert_eq!(feature(&view(Access::NonOptimized), admin::SET_FEATURES, 3, 0x82), done(0));
    assert_eq!(Access::of_refusal(Status::INVALID_FIELD), None);
}
