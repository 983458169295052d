//! A controller's properties, features and what its admin queue takes.

use crate::common::admin::{connected, data, done, enabled, execute, failed, feature, get, set};
use crate::common::view::Memory;
use nvme::target::{Answer, Effect, Kind, QUEUES_MAX};
use nvme::{Command, FABRICS, Status, admin, fabrics};

#[test]
fn a_controller_becomes_ready_when_it_is_enabled_and_gives_up_its_queues_when_it_is_not() {
    let mut controller = connected(Kind::Io);
    assert_eq!(get(&mut controller, 0x1C, false), done(0));
    assert!(!controller.is_ready());
    // EN, IOSQES 6, IOCQES 4.
    assert_eq!(set(&mut controller, 0x14, 0x0046_0001), (done(0), Effect::None));
    assert!(controller.is_ready());
    assert_eq!(get(&mut controller, 0x1C, false), done(1));
    assert_eq!(get(&mut controller, 0x14, false), done(0x0046_0001));
    // SHN 01b: shut down, SHST 10b when that is done. Told once.
    assert_eq!(set(&mut controller, 0x14, 0x0046_4001), (done(0), Effect::QueuesGone));
    assert_eq!(get(&mut controller, 0x1C, false), done(0b1001));
    assert_eq!(set(&mut controller, 0x14, 0x0046_4001), (done(0), Effect::None));
    // A reset, and again.
    assert_eq!(set(&mut controller, 0x14, 0x0046_0000), (done(0), Effect::Reset));
    assert!(!controller.is_ready());
    assert_eq!(set(&mut controller, 0x14, 0x0046_0001), (done(0), Effect::None));
    assert_eq!(get(&mut controller, 0x1C, false), done(1));
}

#[test]
fn a_controller_says_that_it_has_stopped_when_nothing_is_under_way_and_is_not_ready_before() {
    let mut controller = connected(Kind::Io);
    set(&mut controller, 0x14, 0x0046_0001);
    // Commands of a controller that is at work change nothing of what it says.
    controller.set_busy(true);
    assert!(controller.is_ready());
    assert_eq!(get(&mut controller, 0x1C, false), done(1));
    // Shut down, 01b: "occurring".
    assert_eq!(set(&mut controller, 0x14, 0x0046_4001), (done(0), Effect::QueuesGone));
    assert_eq!(get(&mut controller, 0x1C, false), done(0b0101));
    assert!(!controller.is_ready());
    controller.set_busy(false);
    assert_eq!(get(&mut controller, 0x1C, false), done(0b1001));
    // Reset.
    controller.set_busy(true);
    assert_eq!(set(&mut controller, 0x14, 0x0046_0000), (done(0), Effect::Reset));
    assert_eq!(get(&mut controller, 0x1C, false), done(1));
    assert!(!controller.is_ready());
    assert_eq!(
        execute(&mut controller, &Command::new(admin::KEEP_ALIVE, 1, 0)),
        failed(Status::COMMAND_SEQUENCE_ERROR)
    );
    assert_eq!(set(&mut controller, 0x14, 0x0046_0001), (done(0), Effect::None));
    assert_eq!(get(&mut controller, 0x1C, false), done(0));
    assert!(!controller.is_ready());
    controller.set_busy(false);
    assert_eq!(get(&mut controller, 0x1C, false), done(1));
    assert!(controller.is_ready());
}

#[test]
fn capabilities_say_what_there_is() {
    let Answer::Done(Status::SUCCESS, capabilities) = get(&mut connected(Kind::Io), 0x00, true) else { panic!() };
    // MQES, CQR, TO in 500 ms, CSS bit 0 for the NVM command set, MPSMIN and MPSMAX of 4 KiB, CRMS
    // "with media".
    assert_eq!(capabilities & 0xFFFF, 1023);
    assert_eq!(capabilities >> 16 & 1, 1);
    assert_eq!(capabilities >> 24 & 0xFF, 20);
    assert_eq!(capabilities >> 37 & 0xFF, 1);
    assert_eq!(capabilities >> 48, 1 << 11);
    // CRTO: the time that CAP.TO names.
    assert_eq!(get(&mut connected(Kind::Io), 0x68, false), done(20));
    assert_eq!(get(&mut connected(Kind::Io), 0x08, false), done(0x0002_0000));
}

#[test]
fn properties_that_are_not_there_or_of_another_size_are_refused() {
    let mut controller = connected(Kind::Io);
    for (offset, eight) in
        [(0x00, false), (0x08, true), (0x14, true), (0x18, false), (0x30, true), (0xFFFF_FFFF, false)]
    {
        assert_eq!(get(&mut controller, offset, eight), failed(Status::INVALID_FIELD), "{offset:x}h");
    }
    for offset in [0x00, 0x08, 0x1C, 0x20] {
        assert_eq!(set(&mut controller, offset, 1).0, failed(Status::INVALID_FIELD), "{offset:x}h");
    }
    // Another command set, larger pages, weighted queues, entries of other sizes: refused, and
    // nothing has changed.
    let right = 0x0046_0001;
    for value in [right | 0b001 << 4, right | 0b111 << 4, right | 1 << 7, right | 1 << 11, 1, 0x0045_0001, 0x0056_0001]
    {
        assert_eq!(set(&mut controller, 0x14, value).0, failed(Status::INVALID_FIELD));
        assert_eq!(get(&mut controller, 0x14, false), done(0));
        assert!(!controller.is_ready());
    }
    // All command sets that there are.
    assert_eq!(set(&mut connected(Kind::Io), 0x14, right | 0b110 << 4), (done(0), Effect::None));
    // A discovery controller has no queues of such entries.
    assert_eq!(set(&mut connected(Kind::Discovery), 0x14, 1), (done(0), Effect::None));
}

#[test]
fn before_it_is_enabled_a_controller_takes_fabrics_commands_alone() {
    let mut controller = connected(Kind::Io);
    for opcode in [admin::IDENTIFY, admin::GET_LOG_PAGE, admin::KEEP_ALIVE, admin::SET_FEATURES, 0xFF] {
        let answer = execute(&mut controller, &Command::new(opcode, 1, 0));
        assert_eq!(answer, failed(Status::COMMAND_SEQUENCE_ERROR));
    }
}

#[test]
fn commands_that_a_controller_does_not_have_are_invalid() {
    let mut io = enabled(Kind::Io);
    // Create and delete queues, security, format: none of them over fabrics.
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x80, 0x81, 0x82, 0xC0] {
        assert_eq!(execute(&mut io, &Command::new(opcode, 1, 0)), failed(Status::INVALID_OPCODE), "{opcode:x}h");
    }
    let fabric = |kind: u8| Command::new(FABRICS, 1, kind.into());
    assert_eq!(execute(&mut io, &fabric(fabrics::CONNECT)), failed(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(execute(&mut io, &fabric(fabrics::DISCONNECT)), failed(Status::INVALID_OPCODE));
    assert_eq!(
        execute(&mut enabled(Kind::Discovery), &Command::new(admin::ABORT, 1, 0)),
        failed(Status::INVALID_OPCODE)
    );
    assert_eq!(execute(&mut io, &Command::new(admin::KEEP_ALIVE, 1, 0)), done(0));
}

#[test]
fn the_number_of_queues_is_not_changed_once_there_are_any() {
    let mut controller = enabled(Kind::Io);
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x07, 0x0003_0003), done(0x0003_0003));
    controller.set_busy(true);
    let refused = feature(&mut controller, admin::SET_FEATURES, 0x07, 0x0007_0007);
    assert_eq!(refused, failed(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(feature(&mut controller, admin::GET_FEATURES, 0x07, 0), done(0x0003_0003));
}

#[test]
fn queues_come_in_pairs_and_no_more_than_there_are() {
    let mut controller = enabled(Kind::Io);
    let most = u64::from(QUEUES_MAX - 1) * 0x1_0001;
    assert_eq!(feature(&mut controller, admin::GET_FEATURES, 0x07, 0), done(most));
    for (asked, granted) in [(0x0003_0003, 0x0003_0003), (0x0001_0007, 0x0007_0007), (0x03E7_03E7, most)] {
        assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x07, asked), done(granted));
        assert_eq!(feature(&mut controller, admin::GET_FEATURES, 0x07, 0), done(granted));
    }
    // "FFFFh is invalid".
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x07, 0xFFFF_0001), failed(Status::INVALID_FIELD));
}

#[test]
fn features_are_kept_until_a_reset_and_saved_never() {
    let mut controller = enabled(Kind::Io);
    for (fid, value) in [(0x01, 0x0102_0303), (0x04, 300), (0x05, 7), (0x0A, 1), (0x0B, 0x100), (0x0F, 60_000)] {
        assert_eq!(feature(&mut controller, admin::SET_FEATURES, fid, value), done(0), "{fid:x}h");
        assert_eq!(feature(&mut controller, admin::GET_FEATURES, fid, 0), done(value.into()), "{fid:x}h");
        let saved = feature(&mut controller, admin::SET_FEATURES, fid | 1 << 31, value);
        assert_eq!(saved, failed(Status::FEATURE_NOT_SAVEABLE), "{fid:x}h");
    }
    assert_eq!(controller.keep_alive_ms(), 60_000);
    // Reserved bits are not kept.
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x01, 0xFA), done(0));
    assert_eq!(feature(&mut controller, admin::GET_FEATURES, 0x01, 0), done(2));
    set(&mut controller, 0x14, 0);
    set(&mut controller, 0x14, 0x0046_0001);
    // Of arbitration: no limit of a burst.
    for (fid, value) in [(0x01, 7), (0x04, 343), (0x05, 0), (0x0A, 0), (0x0B, 0)] {
        assert_eq!(feature(&mut controller, admin::GET_FEATURES, fid, 0), done(value), "{fid:x}h");
    }
}

#[test]
fn features_that_cannot_be_set_say_why() {
    let mut controller = enabled(Kind::Io);
    assert_eq!(feature(&mut controller, admin::GET_FEATURES, 0x06, 0), done(1));
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x06, 1), done(0));
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x06, 0), failed(Status::FEATURE_NOT_CHANGEABLE));
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x02, 1), failed(Status::INVALID_FIELD));
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x04, 5 << 16), failed(Status::INVALID_FIELD));
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x81, 1), failed(Status::COMMAND_SEQUENCE_ERROR));
    for fid in [0x00, 0x03, 0x08, 0x10, 0x84, 0xFF] {
        assert_eq!(feature(&mut controller, admin::GET_FEATURES, fid, 0), failed(Status::INVALID_FIELD), "{fid:x}h");
        assert_eq!(feature(&mut controller, admin::SET_FEATURES, fid, 0), failed(Status::INVALID_FIELD), "{fid:x}h");
    }
    // A discovery controller has few.
    let mut discovery = enabled(Kind::Discovery);
    assert_eq!(feature(&mut discovery, admin::GET_FEATURES, 0x07, 0), failed(Status::INVALID_FIELD));
    assert_eq!(feature(&mut discovery, admin::GET_FEATURES, 0x0F, 0), done(5000));
}

#[test]
fn features_with_data_carry_them() {
    let mut controller = enabled(Kind::Io);
    let get = |controller: &mut _, fid, dword11| data(feature(controller, admin::GET_FEATURES, fid, dword11));
    // EXHID: 128 bits, as all identifiers of fabrics hosts.
    assert_eq!(get(&mut controller, 0x81, 1), Ok(vec![0xAB; 16]));
    assert_eq!(get(&mut controller, 0x81, 0), Err(Status::INVALID_FIELD));
    let mut command = Command::new(admin::SET_FEATURES, 1, 0);
    command.set_cdw(10, 0x16);
    let short = controller.execute(&command, &[1; 511], &Memory::new()).0;
    assert_eq!(short, failed(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(controller.execute(&command, &[1; 512], &Memory::new()).0, done(0));
    assert_eq!(get(&mut controller, 0x16, 0), Ok(vec![1; 512]));
}
