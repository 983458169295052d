//! Get Log Page.

use crate::common::admin::{data, enabled, execute, failed, feature, log};
use crate::common::view::Memory;
use nvme::target::{Kind, Named, TRANSFER_BYTES_MAX};
use nvme::{Command, Status, admin, nvm};
use zerocopy::IntoBytes;

#[test]
fn the_pages_that_are_there_are_listed_and_no_other_is_given() {
    for (kind, pages) in [
        (Kind::Io, &[0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x0C, 0x0D, 0x12, 0x80][..]),
        (Kind::Discovery, &[0x00, 0x01, 0x70]),
    ] {
        let mut controller = enabled(kind);
        let list = data(execute(&mut controller, &log(0x00, 0, 1024))).expect("a log");
        for page in 0..=u8::MAX {
            let there = pages.contains(&page);
            assert_eq!(list[usize::from(page) * 4], u8::from(there), "{page:x}h");
            let mut command = log(page, 0, 16);
            if page == 0x0D {
                // It is read with a context only: established by this command.
                command.set_cdw(10, command.cdw(10) | 0b01 << 8);
            }
            let answer = data(execute(&mut controller, &command));
            assert_eq!(answer.map(|data| data.len()), if there { Ok(16) } else { Err(Status::INVALID_LOG_PAGE) });
        }
    }
}

#[test]
fn a_page_is_read_in_pieces_and_ends_in_zeroes() {
    let mut controller = enabled(Kind::Discovery);
    let whole = data(execute(&mut controller, &log(0x70, 0, 3072))).expect("a log");
    for (offset, len) in [(0, 16), (8, 1024), (1024, 2048), (3068, 4)] {
        let piece = data(execute(&mut controller, &log(0x70, offset as u64, len as u32))).expect("a log");
        assert_eq!(piece, whole[offset..offset + len]);
    }
    assert_eq!(data(execute(&mut controller, &log(0x70, 3068, 12))), Ok([&whole[3068..], &[0; 8]].concat()));
    assert_eq!(data(execute(&mut controller, &log(0x70, 3072, 4))), Ok(vec![0; 4]));
    // Behind the end; not at a dword; more than may be transferred; an index.
    let mut by_index = log(0x70, 0, 1024);
    by_index.set_cdw(14, 1 << 23);
    for wrong in [
        log(0x70, 3076, 4),
        log(0x70, u64::MAX - 3, 4),
        log(0x70, 2, 4),
        log(0x70, 0, TRANSFER_BYTES_MAX + 4),
        by_index,
    ] {
        assert_eq!(execute(&mut controller, &wrong), failed(Status::INVALID_FIELD));
    }
    assert!(data(execute(&mut controller, &log(0x70, 0, TRANSFER_BYTES_MAX))).is_ok());
}

#[test]
fn the_discovery_log_has_its_generation_and_entries() {
    let bytes = data(execute(&mut enabled(Kind::Discovery), &log(0x70, 0, 3072))).expect("a log");
    // GENCTR, NUMREC, RECFMT.
    assert_eq!(bytes[..18], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let entries = Memory::new().entries;
    assert_eq!((&bytes[1024..2048], &bytes[2048..]), (entries[0].as_bytes(), entries[1].as_bytes()));
    // TRTYPE, ADRFAM, SUBTYPE, TREQ, PORTID, CNTLID, ASQSZ; TRSVCID, SUBNQN and TRADDR.
    assert_eq!(bytes[1024..1034], [3, 1, 2, 2, 1, 0, 0xFF, 0xFF, 32, 0]);
    assert!(bytes[1024 + 32..].starts_with(b"4420  "));
    assert!(bytes[1024 + 256..].starts_with(b"nqn.2026-11.com.example:target\0"));
    assert!(bytes[1024 + 512..].starts_with(b"192.0.2.1  "));
}

#[test]
fn the_health_log_counts_what_was_done() {
    let mut controller = enabled(Kind::Io);
    execute(&mut controller, &log(0xFF, 0, 4));
    let bytes = data(execute(&mut controller, &log(0x02, 0, 512))).expect("a log");
    // Degraded; 298 K; spare, threshold, used.
    assert_eq!(bytes[..6], [0b100, 0x2A, 0x01, 100, 10, 0]);
    // Units of 512,000 bytes, rounded up; reads and writes; failed commands.
    let number = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().expect("16 bytes"));
    assert_eq!((number(32), number(48), number(64), number(80), number(176)), (2, 1, 3, 4, 1));
    assert_eq!(number(160), 5, "media errors");
    // Power cycles, and whole hours with power on.
    assert_eq!((number(112), number(128)), (3, 2));
}

#[test]
fn the_error_log_has_the_newest_first() {
    let mut controller = enabled(Kind::Io);
    for cid in 0..70 {
        let mut command = Command::new(0xC0, cid, 9);
        command.set_cdw(10, 1);
        execute(&mut controller, &command);
    }
    let bytes = data(execute(&mut controller, &log(0x01, 0, 64 * 64))).expect("a log");
    // Count, SQID, CID, status above the phase tag, location, LBA, NSID, vendor, transport type.
    let newest =
        [&[70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 69, 0, 0x02, 0x80, 0xFF, 0xFF][..], &[0; 8], &[9, 0, 0, 0, 0, 3]].concat();
    assert_eq!(bytes[..newest.len()], newest);
    assert_eq!((bytes[63 * 64], bytes[63 * 64 + 10]), (7, 6), "the oldest that is kept");
}

#[test]
fn the_error_log_has_what_failed_on_io_queues_and_counts_what_it_has_not() {
    let mut controller = enabled(Kind::Io);
    execute(&mut controller, &log(0xFF, 0, 4));
    let mut read = Command::new(nvm::READ, 0x1234, 3);
    read.set_slba(0x1_0000_0005);
    // Of a command without an LBA these dwords are something else.
    let mut report = Command::new(nvm::RESERVATION_REPORT, 7, 1);
    report.set_slba(9);
    let failed =
        [(2, Named::of(&read), Status::UNRECOVERED_READ_ERROR), (1, Named::of(&report), Status::INVALID_FIELD)];
    controller.io_failed(failed, 10);
    let bytes = data(execute(&mut controller, &log(0x01, 0, 4 * 64))).expect("a log");
    let entry = |at: usize| (bytes[at * 64], &bytes[at * 64 + 8..at * 64 + 12], &bytes[at * 64 + 16..at * 64 + 28]);
    assert_eq!(entry(0), (13, &[1, 0, 7, 0][..], &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0][..]));
    assert_eq!(entry(1), (12, &[2, 0, 0x34, 0x12][..], &[5, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0][..]));
    assert_eq!((entry(2).0, entry(3).0), (1, 0), "of those between nothing is known but that they were");
}

#[test]
fn changed_namespaces_are_listed_in_order_and_more_than_fit_are_all() {
    let mut controller = enabled(Kind::Io);
    for nsid in [5, 2, 5, 9] {
        controller.namespace_changed(nsid);
    }
    let list = data(execute(&mut controller, &log(0x04, 0, 4096))).expect("a log");
    assert_eq!(list[..16], [2, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    (1..=1024).for_each(|nsid| controller.namespace_changed(nsid));
    let full = data(execute(&mut controller, &log(0x04, 0, 4096))).expect("a log");
    assert_eq!((&full[..4], &full[4092..]), (&[1, 0, 0, 0][..], &[0, 4, 0, 0][..]));
    (1..=1025).for_each(|nsid| controller.namespace_changed(nsid));
    let many = data(execute(&mut controller, &log(0x04, 0, 4096))).expect("a log");
    assert_eq!(many[..8], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
}

#[test]
fn effects_say_which_commands_there_are() {
    let bytes = data(execute(&mut enabled(Kind::Io), &log(0x05, 0, 4096))).expect("a log");
    let listed: Vec<(usize, u8)> = bytes
        .chunks(4)
        .enumerate()
        .filter(|(_, entry)| entry[0] != 0)
        .map(|(opcode, entry)| (opcode, entry[0]))
        .collect();
    let admin = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18].map(|opcode| (opcode, 1));
    // CSUPP, and LBCC where blocks change.
    let nvm = [(0x00, 1), (0x01, 3), (0x02, 1), (0x05, 1), (0x08, 3), (0x09, 3), (0x0C, 1)];
    let reservations = [0x0D, 0x0E, 0x11, 0x15].map(|opcode| (256 + opcode, 1));
    let nvm = nvm.map(|(opcode, effect)| (256 + opcode, effect));
    assert_eq!(listed, [&admin[..], &nvm, &reservations, &[(256 + 0x19, 3)]].concat());
}

#[test]
fn features_that_are_there_are_listed_with_their_scope() {
    let mut controller = enabled(Kind::Io);
    let bytes = data(execute(&mut controller, &log(0x12, 0, 1024))).expect("a log");
    for (fid, entry) in bytes.chunks(4).enumerate() {
        // Those with an argument of their own are asked with one that they take.
        let dword11 = u32::from(fid == 0x81);
        let there = feature(&mut controller, admin::GET_FEATURES, fid as u32, dword11) != failed(Status::INVALID_FIELD);
        // FSUPP is bit 0; FSP begins at bit 20, its bit 0 is "Namespace Scope", its bit 1
        // "Controller Scope".
        let scope = if matches!(fid, 0x82 | 0x83) { 1 << 20 } else { 1 << 21 };
        assert_eq!(entry, if there { 1_u32 | scope } else { 0 }.to_le_bytes(), "{fid:x}h");
    }
}

#[test]
fn the_firmware_log_names_the_running_version() {
    let bytes = data(execute(&mut enabled(Kind::Io), &log(0x03, 0, 512))).expect("a log");
    assert_eq!((bytes[0], &bytes[8..16]), (1, &b"0.1.0   "[..]));
}
