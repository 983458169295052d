//! PDUs have the bytes of the specification: known answers, written out by hand from its figures.

use crate::common::crc32c;
use nvme::tcp::{Digests, Kind, Writer, pdu};
use nvme::{Command, Completion, Sgl, Status, nvm};

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

#[test]
fn the_reference_checksum_is_that_of_the_iscsi_examples() {
    // RFC 3720, appendix B.4.
    assert_eq!(crc32c(&[0; 32]), [0xAA, 0x36, 0x91, 0x8A]);
    assert_eq!(crc32c(&[0xFF; 32]), [0x43, 0xAB, 0xA8, 0x62]);
}

#[test]
fn connections_are_initialized_with_these_bytes() {
    let request = pdu::initialize(Kind::IcReq, 5, Digests { header: true, data: false }, 3);
    let mut expected = vec![0x00, 0, 128, 0, 128, 0, 0, 0, 0, 0, 5, 0b01, 3, 0, 0, 0];
    expected.resize(128, 0);
    assert_eq!(*request, expected);

    let response = pdu::initialize(Kind::IcResp, 0, BOTH, 0x0002_0000);
    let mut expected = vec![0x01, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0b11, 0, 0, 2, 0];
    expected.resize(128, 0);
    assert_eq!(*response, expected);
}

/// A command with a different byte in each place.
fn a_command() -> (Command, Vec<u8>) {
    let mut command = Command::new(nvm::WRITE, 0x0201, 0x0605_0403);
    command.cdw2_3 = [0x0A09_0807.into(), 0x0E0D_0C0B.into()];
    command.mptr = 0x1615_1413_1211_100F.into();
    command.dptr = Sgl::transport(0x2221_201F);
    (10..=15).for_each(|dword| command.set_cdw(dword, 0x3030_3000 + dword as u32));
    let bytes = [
        &[0x01, 0x40, 0x01, 0x02][..],
        &[0x03, 0x04, 0x05, 0x06],
        &[0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E],
        &[0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16],
        // A Transport SGL Data Block descriptor: no address, the length, the identifier.
        &[0, 0, 0, 0, 0, 0, 0, 0, 0x1F, 0x20, 0x21, 0x22, 0, 0, 0, 0x5A],
        &[10, 0x30, 0x30, 0x30, 11, 0x30, 0x30, 0x30, 12, 0x30, 0x30, 0x30],
        &[13, 0x30, 0x30, 0x30, 14, 0x30, 0x30, 0x30, 15, 0x30, 0x30, 0x30],
    ]
    .concat();
    (command, bytes)
}

#[test]
fn a_command_capsule_has_these_bytes() {
    let (command, sqe) = a_command();
    let header = |flags, data_offset, len: u8| [&[0x04, flags, 72, data_offset, len, 0, 0, 0], &sqe[..]].concat();
    // Without data and without digests; then with 16 bytes of data.
    assert_eq!(*Writer::new(NONE, 0).command(command, 0), header(0, 0, 72));
    assert_eq!(*Writer::new(NONE, 0).command(command, 16), header(0, 72, 88));
    // HDGSTF with a digest behind the header; DDGSTF only where there are data.
    let with_digest = |header: Vec<u8>| [&header[..], &crc32c(&header)].concat();
    assert_eq!(*Writer::new(BOTH, 0).command(command, 0), with_digest(header(0b01, 0, 76)));
    assert_eq!(*Writer::new(BOTH, 0).command(command, 16), with_digest(header(0b11, 76, 96)));
}

#[test]
fn data_begin_at_the_alignment_that_the_other_side_asks_for() {
    let (command, _) = a_command();
    // HPDA in dwords, one less: 4, 64 and 128 bytes; the longest pads a capsule with digest to 128
    // bytes.
    for (alignment, capsule, data) in [(0, 76, 28), (15, 128, 64), (31, 128, 128)] {
        let writer = Writer::new(BOTH, alignment);
        let head = writer.command(command, 512);
        assert_eq!((head.len(), head[3]), (usize::from(capsule), capsule));
        assert_eq!(head[4..8], (u32::from(capsule) + 512 + 4).to_le_bytes());
        assert!(head[76..].iter().all(|byte| *byte == 0), "padding is zeroes");
        let head = writer.data_to_host(1, 0, 512, true, true);
        assert_eq!((head.len(), head[3]), (usize::from(data), data));
        assert_eq!(head[24..28], crc32c(&head[..24]));
        // A PDU without data is not padded.
        assert_eq!(writer.response(Completion::new(1, Status::SUCCESS, 0)).len(), 28);
        assert_eq!(writer.command(command, 0).len(), 76);
    }
}

#[test]
fn a_writer_that_agreed_on_nothing_pads_to_dwords() {
    let head = Writer::default().data_to_host(1, 0, 512, true, false);
    assert_eq!((head.len(), head[3]), (24, 24));
}

#[test]
fn a_response_capsule_has_these_bytes() {
    let mut completion = Completion::new(0x0605, Status::LBA_OUT_OF_RANGE, 0x0807_0605_0403_0201);
    completion.sq_head = 0x0A09.into();
    // Status: LBA Out of Range is code 80h of type 0, do not retry is bit 14; all of it above the
    // phase tag.
    let cqe = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 5, 6, 0x00, 0x81];
    let header = [&[0x05, 0, 24, 0, 24, 0, 0, 0][..], &cqe].concat();
    assert_eq!(*Writer::new(NONE, 0).response(completion), header);
    let header = [&[0x05, 1, 24, 0, 28, 0, 0, 0][..], &cqe].concat();
    assert_eq!(*Writer::new(BOTH, 0).response(completion), [&header[..], &crc32c(&header)].concat());
}

#[test]
fn data_to_the_controller_have_these_bytes() {
    let fields = [0x01, 0x02, 0x03, 0x04, 0x00, 0x10, 0, 0, 0x00, 0x02, 0, 0, 0, 0, 0, 0];
    let header = [&[0x06, 0, 24, 24, 0x18, 0x02, 0, 0][..], &fields].concat();
    assert_eq!(*Writer::new(NONE, 0).data_to_controller(0x0201, 0x0403, 4096, 512, false), header);
    // LAST_PDU is bit 2.
    let header = [&[0x06, 0b111, 24, 28, 0x20, 0x02, 0, 0][..], &fields].concat();
    let head = Writer::new(BOTH, 0).data_to_controller(0x0201, 0x0403, 4096, 512, true);
    assert_eq!(*head, [&header[..], &crc32c(&header)].concat());
}

#[test]
fn data_to_the_host_have_these_bytes() {
    // The place of the tag is reserved.
    let fields = [0x01, 0x02, 0, 0, 0x00, 0x10, 0, 0, 0x00, 0x02, 0, 0, 0, 0, 0, 0];
    // LAST_PDU is bit 2, SUCCESS is bit 3.
    for (last, success, flags) in [(false, false, 0), (true, false, 0b100), (true, true, 0b1100)] {
        let header = [&[0x07, flags, 24, 24, 0x18, 0x02, 0, 0][..], &fields].concat();
        assert_eq!(*Writer::new(NONE, 0).data_to_host(0x0201, 4096, 512, last, success), header);
        let header = [&[0x07, flags | 0b11, 24, 28, 0x20, 0x02, 0, 0][..], &fields].concat();
        let head = Writer::new(BOTH, 0).data_to_host(0x0201, 4096, 512, last, success);
        assert_eq!(*head, [&header[..], &crc32c(&header)].concat());
    }
}

#[test]
fn a_request_for_data_has_these_bytes() {
    let fields = [0x01, 0x02, 0x03, 0x04, 0x00, 0x10, 0, 0, 0x00, 0x02, 0, 0, 0, 0, 0, 0];
    let header = [&[0x09, 0, 24, 0, 24, 0, 0, 0][..], &fields].concat();
    assert_eq!(*Writer::new(NONE, 0).ready_to_transfer(0x0201, 0x0403, 4096, 512), header);
    let header = [&[0x09, 1, 24, 0, 28, 0, 0, 0][..], &fields].concat();
    let head = Writer::new(BOTH, 0).ready_to_transfer(0x0201, 0x0403, 4096, 512);
    assert_eq!(*head, [&header[..], &crc32c(&header)].concat());
}

#[test]
fn requests_to_terminate_have_these_bytes() {
    for (kind, number) in [(Kind::H2cTermReq, 0x02), (Kind::C2hTermReq, 0x03)] {
        // PDO is reserved, and no digest follows.
        let mut expected = vec![number, 0, 24, 0, 29, 0, 0, 0, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06];
        expected.resize(24, 0);
        expected.extend_from_slice(b"wrong");
        assert_eq!(pdu::terminate(kind, 0x0201, 0x0605_0403, b"wrong"), expected);
        // "Shall not exceed 152 bytes".
        let longest = pdu::terminate(kind, 1, 0, &[7; 1000]);
        assert_eq!((longest.len(), &longest[4..8]), (152, &152_u32.to_le_bytes()[..]));
        assert_eq!(pdu::terminate(kind, 1, 0, &[]).len(), 24);
    }
}
