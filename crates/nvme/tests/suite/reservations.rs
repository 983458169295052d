//! Reservations of one namespace: what each command does, what it excludes, and who is told.

use std::collections::BTreeMap;

use crate::common::admin::{data, done, enabled, execute, failed, feature, log};
use crate::common::reservation_model::Model;
use crate::common::view::Memory;
use nvme::target::{
    Answer, Group, Held, HostId, Io, Kind, Notice, Permit, REGISTRANTS_MAX, RegisterAction, ReservationRequest,
    ReservationType, Reservations, SubsystemView,
};
use nvme::{Command, Completion, Sgl, Status, admin, nvm};
use proptest::prelude::*;

fn host(number: u8) -> HostId {
    [number; 16]
}

fn register(key: u64) -> ReservationRequest {
    ReservationRequest::Register { action: RegisterAction::Register(key), current: Some(0), persistence: None }
}

fn unregister(key: Option<u64>) -> ReservationRequest {
    ReservationRequest::Register { action: RegisterAction::Unregister, current: key, persistence: None }
}

fn replace(current: Option<u64>, key: u64) -> ReservationRequest {
    ReservationRequest::Register { action: RegisterAction::Replace(key), current, persistence: None }
}

fn acquire(kind: ReservationType, key: u64) -> ReservationRequest {
    ReservationRequest::Acquire { kind, key }
}

fn preempt(kind: ReservationType, key: u64, preempted: u64) -> ReservationRequest {
    ReservationRequest::Preempt { kind, key, preempted, abort: false }
}

fn release(kind: ReservationType, key: u64) -> ReservationRequest {
    ReservationRequest::Release { kind: Some(kind), key }
}

/// Hosts 1 to 3 are registered, each with its number as the key.
fn three() -> Reservations {
    let mut three = Reservations::default();
    for number in 1..=3 {
        assert_eq!(three.apply(&host(number), &register(number.into())), Ok(Vec::new()));
    }
    three
}

/// As [`three`], and host 1 has reserved it.
fn held(kind: ReservationType) -> Reservations {
    let mut held = three();
    assert_eq!(held.apply(&host(1), &acquire(kind, 1)), Ok(Vec::new()));
    held
}

use ReservationType::{
    ExclusiveAccess as EA, ExclusiveAccessAllRegistrants as EAAR, ExclusiveAccessRegistrantsOnly as EARO,
    WriteExclusive as WE, WriteExclusiveAllRegistrants as WEAR, WriteExclusiveRegistrantsOnly as WERO,
};

/// Base 2.0, clause 8.19, "Command Behavior in the Presence of a Reservation".
#[test]
fn each_type_excludes_whom_the_table_says() {
    let reader = Permit { reads: true, writes: false };
    let nothing = Permit { reads: false, writes: false };
    // The holder, another registrant, and a stranger.
    for (kind, registrant, stranger) in [
        (WE, reader, reader),
        (EA, nothing, nothing),
        (WERO, Permit::ALL, reader),
        (EARO, Permit::ALL, nothing),
        (WEAR, Permit::ALL, reader),
        (EAAR, Permit::ALL, nothing),
    ] {
        let held = held(kind);
        let permits = [1, 2, 9].map(|number| held.permit(&host(number)));
        assert_eq!(permits, [Permit::ALL, registrant, stranger], "{kind:?}");
        assert!(permits.iter().all(|permit| permit.reads || !permit.writes), "{kind:?}: who writes may read");
    }
    assert_eq!(three().permit(&host(9)), Permit::ALL, "registrations alone exclude nobody");
}

#[test]
fn commands_are_excluded_as_reads_or_as_writes_and_those_of_reservations_never() {
    let disk = Memory::new().namespace(1).expect("there is one");
    let group = |opcode, len: u32| {
        let mut command = Command::new(opcode, 1, 1);
        command.dptr = Sgl::transport(len);
        command.set_cdw(11, u32::from(opcode == nvm::RESERVATION_REPORT));
        Io::of(&command, &disk).map(|io| io.group())
    };
    for (opcode, len) in [(nvm::READ, 4096), (nvm::COMPARE, 4096), (nvm::VERIFY, 0)] {
        assert_eq!(group(opcode, len), Ok(Group::Read));
    }
    // A copy reads, too, and no type lets a host write that may not read.
    let writes =
        [(nvm::WRITE, 4096), (nvm::WRITE_ZEROES, 0), (nvm::DATASET_MANAGEMENT, 16), (nvm::COPY, 32), (nvm::FLUSH, 0)];
    for (opcode, len) in writes {
        assert_eq!(group(opcode, len), Ok(Group::Write));
    }
    let rules = [
        (nvm::RESERVATION_REGISTER, 16),
        (nvm::RESERVATION_ACQUIRE, 16),
        (nvm::RESERVATION_RELEASE, 8),
        (nvm::RESERVATION_REPORT, 4),
    ];
    for (opcode, len) in rules {
        assert_eq!(group(opcode, len), Ok(Group::Reservation));
        assert_eq!(group(opcode, len + 4), Err(Status::DATA_SGL_LENGTH_INVALID));
    }
    let reader = Permit { reads: true, writes: false };
    assert_eq!([Group::Read, Group::Write, Group::Reservation].map(|group| reader.covers(group)), [true, false, true]);
}

#[test]
fn a_host_has_one_key_and_changes_it_if_it_knows_it_or_ignores_it() {
    let mut some = three();
    assert_eq!(some.apply(&host(1), &register(1)), Ok(Vec::new()), "again");
    assert_eq!(some.apply(&host(1), &register(7)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(1), &replace(Some(2), 7)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(1), &replace(Some(1), 7)), Ok(Vec::new()));
    assert_eq!(some.apply(&host(1), &replace(None, 8)), Ok(Vec::new()));
    assert_eq!(some.apply(&host(4), &replace(Some(0), 4)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(4), &replace(None, 4)), Ok(Vec::new()), "it registers");
    assert_eq!(some.apply(&host(5), &unregister(None)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(2), &unregister(Some(1))), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(2), &unregister(Some(2))), Ok(Vec::new()));
    for zero in [register(0), replace(None, 0)] {
        assert_eq!(some.apply(&host(6), &zero), Err(Status::INVALID_FIELD));
    }
    assert_eq!(some.apply(&[0; 16], &register(1)), Err(Status::INVALID_FIELD), "a host that is nobody");
    let keys: Vec<(u8, u64)> = some.registrants().iter().map(|(host, key)| (host[0], *key)).collect();
    assert_eq!(keys, [(1, 8), (3, 3), (4, 4)]);
    // Three, one again, two replaced, one registered, one gone.
    assert_eq!(some.generation(), 8);
}

#[test]
fn registrants_are_bounded_and_those_that_are_there_go_on() {
    let mut full = Reservations::default();
    let number = |number: usize| (number as u128 + 1).to_le_bytes();
    for index in 0..REGISTRANTS_MAX {
        assert_eq!(full.apply(&number(index), &register(1)), Ok(Vec::new()));
    }
    assert_eq!(full.apply(&number(REGISTRANTS_MAX), &register(1)), Err(Status::INTERNAL_ERROR));
    assert_eq!(full.apply(&number(0), &replace(Some(1), 2)), Ok(Vec::new()));
    assert_eq!(full.registrants().len(), REGISTRANTS_MAX);
}

#[test]
fn only_a_registrant_acquires_and_only_one_does() {
    for kind in ReservationType::ALL {
        let mut held = held(kind);
        assert_eq!(held.apply(&host(1), &acquire(kind, 1)), Ok(Vec::new()), "it has it already");
        let other = if kind == WE { EA } else { WE };
        assert_eq!(held.apply(&host(1), &acquire(other, 1)), Err(Status::RESERVATION_CONFLICT));
        let all = matches!(kind, WEAR | EAAR);
        let second = held.apply(&host(2), &acquire(kind, 2));
        assert_eq!(second, if all { Ok(Vec::new()) } else { Err(Status::RESERVATION_CONFLICT) });
        for (number, key) in [(9, 9), (9, 1), (1, 2)] {
            assert_eq!(held.apply(&host(number), &acquire(kind, key)), Err(Status::RESERVATION_CONFLICT));
        }
        assert_eq!(held.held(), Some(Held { kind, holder: (!all).then(|| host(1)) }));
    }
}

#[test]
fn a_release_is_the_holders_and_registrants_hear_of_it_where_it_is_theirs_too() {
    let heard: Vec<(HostId, Notice)> = [2, 3].map(|number| (host(number), Notice::ReservationReleased)).to_vec();
    for kind in ReservationType::ALL {
        let mut held = held(kind);
        let all = matches!(kind, WEAR | EAAR);
        let other = if kind == WE { EA } else { WE };
        assert_eq!(held.apply(&host(1), &release(other, 1)), Err(Status::INVALID_FIELD));
        assert_eq!(held.apply(&host(9), &release(kind, 9)), Err(Status::RESERVATION_CONFLICT));
        if !all {
            assert_eq!(held.apply(&host(2), &release(kind, 2)), Ok(Vec::new()), "nothing of its own");
            assert!(held.held().is_some());
        }
        let told = held.apply(&host(1), &release(kind, 1)).expect("it is the holder");
        assert_eq!(told, if matches!(kind, WE | EA) { Vec::new() } else { heard.clone() });
        assert_eq!((held.held(), held.registrants().len(), held.generation()), (None, 3, 3));
    }
}

#[test]
fn a_reservation_ends_with_the_registration_of_its_last_holder() {
    for kind in ReservationType::ALL {
        let mut held = held(kind);
        let told = held.apply(&host(1), &unregister(Some(1))).expect("it is registered");
        let heard = if matches!(kind, WERO | EARO) { 2 } else { 0 };
        assert_eq!(told.len(), heard, "{kind:?}");
        assert_eq!(held.held().is_some(), matches!(kind, WEAR | EAAR));
        for number in [2, 3] {
            held.apply(&host(number), &unregister(Some(number.into()))).expect("it is registered");
        }
        assert_eq!(held.held(), None);
    }
}

#[test]
fn a_preempting_host_takes_the_reservation_and_the_others_hear_what_they_lost() {
    // The holder's key: reservation and registration go, in one step.
    let mut some = held(WE);
    assert_eq!(some.apply(&host(2), &preempt(WE, 2, 1)), Ok(vec![(host(1), Notice::RegistrationPreempted)]));
    assert_eq!(some.held(), Some(Held { kind: WE, holder: Some(host(2)) }));
    assert_eq!(some.permit(&host(1)), Permit { reads: true, writes: false });
    // With another type, those who stay hear that the old one is gone.
    let mut some = held(WE);
    let told = some.apply(&host(2), &preempt(EARO, 2, 1));
    assert_eq!(told, Ok(vec![(host(1), Notice::RegistrationPreempted), (host(3), Notice::ReservationReleased)]));
    // Another registrant's key: the reservation stays whose it is.
    let mut some = held(WE);
    assert_eq!(some.apply(&host(2), &preempt(EA, 2, 3)), Ok(vec![(host(3), Notice::RegistrationPreempted)]));
    assert_eq!(some.held(), Some(Held { kind: WE, holder: Some(host(1)) }));
    // Its own: another type, and it stays registered.
    let mut some = held(WE);
    assert_eq!(some.apply(&host(1), &preempt(EA, 1, 1)).map(|told| told.len()), Ok(2));
    assert_eq!(some.held(), Some(Held { kind: EA, holder: Some(host(1)) }));
    // A key without a registrant; all of them, where not all hold it; and a stranger's command.
    let mut some = held(WE);
    assert_eq!(some.apply(&host(2), &preempt(EA, 2, 99)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some.apply(&host(2), &preempt(EA, 2, 0)), Err(Status::INVALID_FIELD));
    assert_eq!(some.apply(&host(9), &preempt(EA, 9, 1)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(some, held(WE), "what is refused changes nothing");
    // Without a reservation, registrations go and none is made.
    let mut some = three();
    assert_eq!(some.apply(&host(2), &preempt(EA, 2, 3)), Ok(vec![(host(3), Notice::RegistrationPreempted)]));
    assert_eq!((some.held(), some.registrants().len()), (None, 2));
}

#[test]
fn all_registrants_are_preempted_at_once_or_by_their_key() {
    let mut some = held(EAAR);
    let told = [1, 3].map(|number| (host(number), Notice::RegistrationPreempted)).to_vec();
    assert_eq!(some.apply(&host(2), &preempt(EAAR, 2, 0)), Ok(told));
    assert_eq!((some.held(), some.registrants().len()), (Some(Held { kind: EAAR, holder: None }), 1));
    let mut some = held(EAAR);
    assert_eq!(some.apply(&host(2), &preempt(WE, 2, 3)), Ok(vec![(host(3), Notice::RegistrationPreempted)]));
    assert_eq!(some.held(), Some(Held { kind: EAAR, holder: None }), "as it was");
}

#[test]
fn clearing_removes_everything_and_tells_the_others() {
    let mut some = held(WERO);
    let clear = |key| ReservationRequest::Clear { key };
    assert_eq!(some.apply(&host(2), &clear(1)), Err(Status::RESERVATION_CONFLICT));
    let told = [1, 3].map(|number| (host(number), Notice::ReservationPreempted)).to_vec();
    assert_eq!(some.apply(&host(2), &clear(2)), Ok(told));
    assert_eq!((some.held(), some.registrants().len(), some.generation()), (None, 0, 4));
}

#[test]
fn what_persists_outlives_a_loss_of_power_and_nothing_else_does() {
    let mut some = held(WE);
    assert_eq!(some.after_power_loss(), Reservations::default());
    let persists = |on| ReservationRequest::Register {
        action: RegisterAction::Register(1),
        current: Some(0),
        persistence: Some(on),
    };
    some.apply(&host(1), &persists(true)).expect("it is registered");
    assert!(some.persists() && some.after_power_loss() == some);
    let restored = Reservations::restore(some.registrants().clone(), some.held(), some.generation());
    assert_eq!(restored, Some(some.clone()));
    some.apply(&host(1), &persists(false)).expect("it is registered");
    assert_eq!(some.after_power_loss(), Reservations::default());
    // A state that no history leads to is not restored.
    let one = BTreeMap::from([(host(1), 1)]);
    for (registrants, held) in [
        (BTreeMap::from([(host(1), 0)]), None),
        (one.clone(), Some(Held { kind: WE, holder: Some(host(2)) })),
        (one.clone(), Some(Held { kind: WE, holder: None })),
        (one, Some(Held { kind: WEAR, holder: Some(host(1)) })),
        (BTreeMap::new(), Some(Held { kind: WEAR, holder: None })),
    ] {
        assert_eq!(Reservations::restore(registrants, held, 1), None);
    }
}

#[test]
fn a_report_has_every_registrant_with_its_identifier_of_128_bits() {
    let mut some = held(EARO);
    some.set_persistence(true);
    let report = some.report();
    // GEN, RTYPE, REGSTRNT, reserved, PTPLS.
    assert_eq!(report[..10], [3, 0, 0, 0, 4, 3, 0, 0, 0, 1]);
    assert_eq!((report[10..64].iter().all(|byte| *byte == 0), report.len()), (true, 64 * 4));
    for (number, registrant) in (1..=3).zip(report[64..].chunks(64)) {
        // CNTLID of dynamic controllers, RCSTS, RKEY, HOSTID.
        assert_eq!(registrant[..8], [0xFF, 0xFF, u8::from(number == 1), 0, 0, 0, 0, 0]);
        assert_eq!((registrant[8], &registrant[16..32]), (number, &host(number)[..]));
    }
    assert!(held(EAAR).report()[64..].chunks(64).all(|registrant| registrant[2] == 1), "all hold it");
    let mut short = Command::new(nvm::RESERVATION_REPORT, 1, 1);
    short.dptr = Sgl::transport(4);
    let disk = Memory::new().namespace(1).expect("there is one");
    assert_eq!(Io::of(&short, &disk), Err(Status::HOST_ID_INCONSISTENT), "no room for 128 bits");
}

#[test]
fn requests_are_read_from_dword_10_and_two_keys() {
    let disk = Memory::new().namespace(1).expect("there is one");
    let read = |opcode, dword10: u32| {
        let mut command = Command::new(opcode, 1, 1);
        command.dptr = Sgl::transport(if opcode == nvm::RESERVATION_RELEASE { 8 } else { 16 });
        command.set_cdw(10, dword10);
        let Ok(Io::Reserve(reserve)) = Io::of(&command, &disk) else { panic!("it is one of reservations") };
        let data = [0x11_u64.to_le_bytes(), 0x22_u64.to_le_bytes()].concat();
        assert_eq!(reserve.request(&data[..4]), Err(Status::DATA_SGL_LENGTH_INVALID));
        reserve.request(&data[..reserve.data_bytes() as usize])
    };
    use ReservationRequest::{Acquire, Clear, Preempt, Register, Release};
    let (first, second) = (0x11, 0x22);
    let registers = |action, current, persistence| Ok(Register { action, current, persistence });
    let register = |dword10| read(nvm::RESERVATION_REGISTER, dword10);
    assert_eq!(register(0), registers(RegisterAction::Register(second), Some(first), None));
    assert_eq!(register(1), registers(RegisterAction::Unregister, Some(first), None));
    assert_eq!(register(2 | 1 << 3), registers(RegisterAction::Replace(second), None, None));
    assert_eq!(register(0b10 << 30), registers(RegisterAction::Register(second), Some(first), Some(false)));
    assert_eq!(register(0b11 << 30), registers(RegisterAction::Register(second), Some(first), Some(true)));
    let acquire = |dword10| read(nvm::RESERVATION_ACQUIRE, dword10);
    let preempts = |kind, abort| Ok(Preempt { kind, key: first, preempted: second, abort });
    assert_eq!(acquire(1 << 8), Ok(Acquire { kind: WE, key: first }));
    assert_eq!(acquire(6 << 8 | 1), preempts(EAAR, false));
    assert_eq!(acquire(2 << 8 | 2), preempts(EA, true));
    let release = |dword10| read(nvm::RESERVATION_RELEASE, dword10);
    assert_eq!(release(3 << 8), Ok(Release { kind: Some(WERO), key: first }));
    assert_eq!(release(7 << 8), Ok(Release { kind: None, key: first }));
    assert_eq!(release(1), Ok(Clear { key: first }));
    for wrong in [
        register(3),
        register(0b01 << 30),
        acquire(0),
        acquire(7 << 8),
        acquire(1 << 8 | 3),
        acquire(1 << 8 | 1 << 3),
        release(1 << 8 | 2),
        release(1 << 8 | 1 << 3),
    ] {
        assert_eq!(wrong, Err(Status::INVALID_FIELD));
    }
}

fn of_namespace(opcode: u8, fid: u32, nsid: u32, value: u32) -> Command {
    let mut command = Command::new(opcode, 1, nsid);
    command.set_cdw(10, fid);
    command.set_cdw(11, value);
    command
}

#[test]
fn a_controller_tells_of_notices_one_by_one_unless_they_are_masked() {
    let mut controller = enabled(Kind::Io);
    let page = |controller: &mut _| data(execute(controller, &log(0x80, 0, 64))).expect("a log");
    assert_eq!(page(&mut controller), [0; 64], "none yet");
    for cid in [10, 11] {
        assert_eq!(execute(&mut controller, &Command::new(admin::ASYNC_EVENT_REQUEST, cid, 0)), Answer::Later);
    }
    controller.reservation_changed(1, Notice::RegistrationPreempted);
    controller.reservation_changed(3, Notice::ReservationReleased);
    // Type 6, information 0, log page 80h; the feature 0Bh does not have to be set for it.
    assert_eq!(controller.event(), Some(Completion::new(10, Status::SUCCESS, 0x80_00_06)));
    assert_eq!(controller.event(), None, "the first was not looked up");
    // LPC, RNLPT, NALP, NSID.
    assert_eq!(page(&mut controller)[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]);
    assert_eq!(controller.event(), Some(Completion::new(11, Status::SUCCESS, 0x80_00_06)), "there is another");
    assert_eq!(page(&mut controller)[..16], [2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(page(&mut controller), [0; 64]);

    // RESREL of namespace 1.
    let mask =
        |controller: &mut _, nsid, value| execute(controller, &of_namespace(admin::SET_FEATURES, 0x82, nsid, value));
    let masked = |controller: &mut _, nsid| execute(controller, &of_namespace(admin::GET_FEATURES, 0x82, nsid, 0));
    assert_eq!(mask(&mut controller, 1, 1 << 2), done(0));
    assert_eq!((masked(&mut controller, 1), masked(&mut controller, 3)), (done(4), done(0)));
    controller.reservation_changed(1, Notice::ReservationReleased);
    assert_eq!(page(&mut controller), [0; 64], "masked");
    controller.reservation_changed(1, Notice::ReservationPreempted);
    controller.reservation_changed(3, Notice::ReservationReleased);
    assert_eq!((page(&mut controller)[8], page(&mut controller)[8]), (3, 2));
    // Of all that the host sees, and no others.
    assert_eq!(mask(&mut controller, 0xFFFF_FFFF, 0xF), done(0));
    assert_eq!((masked(&mut controller, 1), masked(&mut controller, 3)), (done(0xE), done(0xE)));
    for nsid in [0, 2, 0xFFFF_FFFF] {
        assert_eq!(masked(&mut controller, nsid), failed(Status::INVALID_NAMESPACE));
    }
    assert_eq!(mask(&mut controller, 2, 1 << 2), failed(Status::INVALID_NAMESPACE));
}

#[test]
fn notices_that_nobody_reads_are_bounded_and_their_numbers_show_what_is_missing() {
    let mut controller = enabled(Kind::Io);
    (0..300).for_each(|_| controller.reservation_changed(1, Notice::ReservationReleased));
    let mut page = || data(execute(&mut controller, &log(0x80, 0, 64))).expect("a log");
    assert_eq!((0..256).map(|_| page()).filter(|page| page[8] == 2).count(), 256);
    assert_eq!(page(), [0; 64]);
    controller.reservation_changed(1, Notice::ReservationReleased);
    let page = data(execute(&mut controller, &log(0x80, 0, 64))).expect("a log");
    assert_eq!(page[..8], 301_u64.to_le_bytes());
    // RAE, or a part that is not the last: it is still there.
    controller.reservation_changed(1, Notice::ReservationReleased);
    let mut retaining = log(0x80, 0, 64);
    retaining.set_cdw(10, retaining.cdw(10) | 1 << 15);
    for command in [retaining, log(0x80, 0, 32), log(0x80, 32, 32)] {
        data(execute(&mut controller, &command)).expect("a log");
        let left = data(execute(&mut controller, &retaining)).expect("a log")[8];
        assert_eq!(left, if command == log(0x80, 32, 32) { 0 } else { 2 });
    }
}

#[test]
fn the_feature_reservation_persistence_is_one_of_each_namespace() {
    let mut controller = enabled(Kind::Io);
    let mut is = |opcode, nsid, value| execute(&mut controller, &of_namespace(opcode, 0x83, nsid, value));
    assert_eq!(is(admin::GET_FEATURES, 1, 0), done(0));
    assert_eq!(is(admin::GET_FEATURES, 3, 0), done(1), "as the subsystem says");
    assert_eq!(is(admin::SET_FEATURES, 1, 1), Answer::Persistence(vec![1], true));
    assert_eq!(is(admin::SET_FEATURES, 0xFFFF_FFFF, 0), Answer::Persistence(vec![1, 3], false));
    assert_eq!(is(admin::SET_FEATURES, 2, 1), failed(Status::INVALID_NAMESPACE));
    assert_eq!(is(admin::GET_FEATURES, 2, 0), failed(Status::INVALID_NAMESPACE));
    assert_eq!(feature(&mut enabled(Kind::Discovery), admin::GET_FEATURES, 0x83, 0), failed(Status::INVALID_FIELD));
}

fn requests() -> impl Strategy<Value = ReservationRequest> {
    let key = || 0..4_u64;
    let kind = || (1..=6_u8).prop_map(|number| ReservationType::of(number).expect("there is one"));
    let action = prop_oneof![
        3 => key().prop_map(RegisterAction::Register),
        1 => Just(RegisterAction::Unregister),
        1 => key().prop_map(RegisterAction::Replace)
    ];
    let persistence = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    prop_oneof![
        4 => (action, proptest::option::of(key()), persistence)
            .prop_map(|(action, current, persistence)| ReservationRequest::Register { action, current, persistence }),
        3 => (kind(), key()).prop_map(|(kind, key)| ReservationRequest::Acquire { kind, key }),
        3 => (kind(), key(), key(), any::<bool>())
            .prop_map(|(kind, key, preempted, abort)| ReservationRequest::Preempt { kind, key, preempted, abort }),
        2 => (proptest::option::of(kind()), key()).prop_map(|(kind, key)| ReservationRequest::Release { kind, key }),
        1 => key().prop_map(|key| ReservationRequest::Clear { key })
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Beside a second writing of the rules, which has holders in a list and every access in a
    /// table.
    #[test]
    fn whatever_hosts_ask_for_is_what_the_model_says(script in prop::collection::vec((1..5_u8, requests()), 1..40)) {
        let (mut state, mut model) = (Reservations::default(), Model::default());
        for (number, request) in script {
            let before = state.clone();
            let told = state.apply(&host(number), &request);
            if told.is_err() {
                prop_assert_eq!(&state, &before);
            }
            let told = told.map(|mut told| {
                told.sort_unstable();
                told.into_iter().map(|(host, notice)| (host[0], notice as u8)).collect::<Vec<_>>()
            });
            prop_assert_eq!(told, model.ask(number, &request), "{:?}", request);
            for number in 0..6 {
                let Permit { reads, writes } = state.permit(&host(number));
                prop_assert_eq!((reads, writes), model.access(number), "{:?}", model);
            }
            prop_assert_eq!(state.report(), model.report());
        }
    }
}
