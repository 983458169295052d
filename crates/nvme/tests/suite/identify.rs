//! Identify: every field where the specification has it.

use std::mem::offset_of;

use crate::common::admin::{CAPSULE_DATA_BYTES, data, enabled, execute, identify, log};
use crate::common::view::SUBSYSTEM;
use nvme::identify::{IdentifyController, IdentifyNamespace, IndependentNamespace, cns};
use nvme::target::{EVENT_REQUESTS_MAX, Kind, NAMESPACE_MAX};
use nvme::{Command, DISCOVERY_NQN, Status, admin};

macro_rules! offsets {
    ($structure:ident: $($field:ident $offset:literal),* $(,)?) => {
        $(assert_eq!(offset_of!($structure, $field), $offset, stringify!($field));)*
    };
}

#[test]
fn fields_lie_where_the_specification_has_them() {
    offsets!(IdentifyController: vid 0, sn 4, mn 24, fr 64, cmic 76, mdts 77, cntlid 78, ver 80, oaes 92, ctratt 96,
        cntrltype 111, fguid 112, crdt 128, oacs 256, acl 258, aerl 259, frmw 260, lpa 261, elpe 262, wctemp 266,
        tnvmcap 280, kas 320, sanicap 328, anatt 342, anacap 343, anagrpmax 344, nanagrpid 348, pels 352, domain 356, megcap 368,
        sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520, fuses 522, vwc 525, awun 526, awupf 528, acwu 532, sgls 536,
        mnan 540, subnqn 768, ioccsz 1792, iorcsz 1796, icdoff 1800, fcatt 1802, msdbd 1803, ofcs 1804, psd 2048, vendor 3072);
    offsets!(IdentifyNamespace: nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf 25, flbas 26, nmic 30, rescap 31, dlfeat 33,
        nawun 34, nawupf 36, nacwu 38, nabo 42, noiob 46, nvmcap 48, npwg 64, npwa 66, npdg 68, npda 70, nows 72, mssrl 74,
        mcl 76, msrc 80, anagrpid 92, nsattr 99, nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128, vendor 384);
    offsets!(IndependentNamespace: nmic 1, rescap 2, anagrpid 4, nsattr 8, nvmsetid 10, endgid 12, nstat 14);
}

#[test]
fn an_io_controller_says_what_it_can() {
    let data = identify(&mut enabled(Kind::Io), cns::CONTROLLER, 0).expect("data");
    assert_eq!(&data[4..24], b"SN-1                ");
    assert_eq!(&data[24..64], b"Purlin                                  ");
    assert_eq!(&data[64..72], b"0.1.0   ");
    assert_eq!((data[77], &data[78..80], &data[80..84]), (8, &[5, 0][..], &[0, 0, 2, 0][..]));
    // An I/O controller that shares its namespaces and has access states.
    assert_eq!((data[111], data[76]), (1, 0b1011));
    assert_eq!(usize::from(data[259]), EVENT_REQUESTS_MAX - 1);
    assert_eq!(data[92..96], (1_u32 << 8 | 1 << 11).to_le_bytes());
    // Effects, long logs, persistent events; 64 KiB of events.
    assert_eq!((data[261], &data[352..356]), (0b1_0110, &[1, 0, 0, 0][..]));
    assert_eq!(data[512..514], [0x66, 0x44]);
    assert_eq!(data[516..520], NAMESPACE_MAX.to_le_bytes());
    // Compare, Dataset Management, Write Zeroes, reservations, Verify, Copy; Compare and Write; a
    // cache for each namespace.
    assert_eq!((&data[520..522], data[522], data[525]), (&[0b1010_1101, 1][..], 1, 0b101));
    // AWUN, AWUPF and ACWU say one less.
    assert_eq!(
        (&data[526..530], &data[532..534]),
        (&[0; 4][..], &[0; 2][..]),
        "one block is written whole, and compared and written"
    );
    assert_eq!(data[534..536], [1, 0], "descriptors of format 0");
    assert_eq!(data[536..540], (1_u32 | 1 << 20 | 1 << 21).to_le_bytes());
    assert!(data[768..].starts_with(SUBSYSTEM.as_bytes()) && data[768 + SUBSYSTEM.len()] == 0);
    assert_eq!(data[1792..1796], ((64 + CAPSULE_DATA_BYTES) / 16).to_le_bytes());
    assert_eq!((&data[1796..1800], data[1803]), (&[1, 0, 0, 0][..], 1));
}

#[test]
fn a_discovery_controller_has_no_namespaces() {
    let mut controller = enabled(Kind::Discovery);
    let data = identify(&mut controller, cns::CONTROLLER, 0).expect("data");
    assert_eq!((data[111], &data[516..520], &data[92..96]), (2, &[0; 4][..], &(1_u32 << 31).to_le_bytes()[..]));
    assert_eq!((data[261], &data[352..356]), (0b100, &[0; 4][..]), "neither effects nor persistent events");
    for cns in [cns::NAMESPACE, cns::ACTIVE_NAMESPACES, cns::NAMESPACE_DESCRIPTORS] {
        assert_eq!(identify(&mut controller, cns, 1), Err(Status::INVALID_FIELD));
    }
    assert!(DISCOVERY_NQN.len() < 224);
}

/// LPA: Base 2.0, figure 275.
#[test]
fn logs_that_are_claimed_are_given() {
    for kind in [Kind::Io, Kind::Discovery] {
        let mut controller = enabled(kind);
        let claimed = identify(&mut controller, cns::CONTROLLER, 0).expect("data")[261];
        let mut read = |page: u8, len| {
            let mut command = log(page, 0, len);
            if page == 0x0D {
                // Establishes a context.
                command.set_cdw(10, command.cdw(10) | 0b01 << 8);
            }
            data(execute(&mut controller, &command))
        };
        let has = |bit: u8| claimed & 1 << bit != 0;
        assert_eq!(read(0x05, 4096).is_ok(), has(1), "effects, {kind:?}");
        assert_eq!(read(0x0D, 512).is_ok(), has(4), "persistent events, {kind:?}");
        let has_scopes = read(0x05, 4096).is_ok_and(|effects| {
            effects.chunks(4).all(|entry| (entry[0] == 0) == (u16::from(entry[2] >> 4) | u16::from(entry[3]) << 4 == 0))
        });
        let has_all = has_scopes && read(0x00, 1024).is_ok() && read(0x12, 1024).is_ok() && read(0x13, 4096).is_ok();
        assert_eq!(has_all, has(5), "lists of logs, scopes, features, NVMe-MI commands; {kind:?}");
        // Telemetry; the health of each namespace.
        assert_eq!((read(0x07, 512).is_ok(), has(3), has(0)), (false, false, false));
        assert!(has(2), "offsets, {kind:?}");
    }
}

#[test]
fn a_namespace_says_its_size_blocks_and_names() {
    let mut controller = enabled(Kind::Io);
    let disk = identify(&mut controller, cns::NAMESPACE, 1).expect("data");
    for field in [0, 8, 16] {
        assert_eq!(disk[field..field + 8], (1_u64 << 20).to_le_bytes());
    }
    // One format of 4 KiB blocks; no further one; writes that need no read have 64 blocks.
    assert_eq!((disk[130], disk[25], disk[26], &disk[72..74]), (12, 0, 0, &[63, 0][..]));
    assert_eq!((disk[24], disk[30], disk[33], disk[99]), (1 << 4, 1, 0b1001, 0));
    // NAWUN, NAWUPF and NACWU: no more than the controller says. NPWG, NPWA, NPDG and NPDA: the
    // grain of 4 KiB is a block.
    assert_eq!((&disk[34..40], &disk[64..72]), (&[0; 6][..], &[0; 8][..]));
    // Copy: MSSRL, MCL and MSRC.
    assert_eq!((&disk[74..80], disk[80]), (&[0, 1, 0, 1, 0, 0][..], 255));
    // Reservations of all types, that persist if wished.
    assert_eq!(disk[31], 0xFF);
    assert_eq!((&disk[92..96], &disk[104..120]), (&[1, 0, 0, 0][..], &[0x11; 16][..]));

    let image = identify(&mut controller, cns::NAMESPACE, 3).expect("data");
    assert_eq!((&image[..8], image[130], image[99]), (&1000_u64.to_le_bytes()[..], 9, 1));
    // Grain of 4 KiB, in blocks of 512 bytes, one less; optimal writes of 256 KiB.
    assert_eq!((&image[64..72], &image[72..74]), (&[7, 0, 7, 0, 7, 0, 7, 0][..], &[0xFF, 0x01][..]));
    assert_eq!((image[24], &image[34..40]), (1 << 4, &[0; 6][..]), "one block, however small");
    assert_eq!((&image[74..80], image[80]), (&[0, 8, 0, 8, 0, 0][..], 255));
    let independent = identify(&mut controller, cns::INDEPENDENT_NAMESPACE, 3).expect("data");
    assert_eq!((&independent[1..3], &independent[4..9], independent[14]), (&[1, 0xFF][..], &[3, 0, 0, 0, 1][..], 1));

    let names = identify(&mut controller, cns::NAMESPACE_DESCRIPTORS, 1).expect("data");
    let expected = [&[2, 16, 0, 0][..], &[0x11; 16], &[3, 16, 0, 0], &[0x11; 16], &[4, 1, 0, 0, 0]].concat();
    assert_eq!(names[..expected.len()], expected);
    assert!(names[expected.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_active_list_goes_on_behind_a_number() {
    let mut controller = enabled(Kind::Io);
    let mut list = |cns, nsid| identify(&mut controller, cns, nsid).map(|data| data[..12].to_vec());
    for cns in [cns::ACTIVE_NAMESPACES, cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        assert_eq!(list(cns, 0), Ok(vec![1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(list(cns, 1), Ok(vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(list(cns, 0xFFFF_FFFD), Ok(vec![0; 12]));
        assert_eq!(list(cns, 0xFFFF_FFFE), Err(Status::INVALID_NAMESPACE));
        assert_eq!(list(cns, 0xFFFF_FFFF), Err(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn numbers_without_a_namespace_are_told_apart_from_those_that_cannot_be() {
    let mut controller = enabled(Kind::Io);
    assert_eq!(identify(&mut controller, cns::NAMESPACE, 2), Ok(vec![0; 4096]), "inactive");
    // FFFFFFFFh is for controllers that manage namespaces: Base 2.0, figure 273.
    for nsid in [0, NAMESPACE_MAX + 1, 0xFFFF_FFFE, 0xFFFF_FFFF] {
        assert_eq!(identify(&mut controller, cns::NAMESPACE, nsid), Err(Status::INVALID_NAMESPACE));
    }
    for cns in [cns::NAMESPACE_DESCRIPTORS, cns::COMMAND_SET_NAMESPACE, cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(identify(&mut controller, cns, 2), Err(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn structures_of_other_command_sets_are_not_there() {
    let mut controller = enabled(Kind::Io);
    let mut of_set = |cns: u8, set: u32| {
        let mut command = Command::new(admin::IDENTIFY, 1, 1);
        command.set_cdw(10, cns.into());
        command.set_cdw(11, set << 24);
        data(execute(&mut controller, &command)).map(|data| data.len())
    };
    for cns in [cns::COMMAND_SET_NAMESPACE, cns::COMMAND_SET_CONTROLLER, cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        assert_eq!((of_set(cns, 0), of_set(cns, 2)), (Ok(4096), Err(Status::INVALID_FIELD)));
    }
    assert_eq!(of_set(cns::COMMAND_SETS, 0), Ok(4096));
    // VSL: a Verify looks at 1 MiB at most.
    let mut command = Command::new(admin::IDENTIFY, 1, 1);
    command.set_cdw(10, cns::COMMAND_SET_CONTROLLER.into());
    let limits = data(execute(&mut enabled(Kind::Io), &command)).unwrap();
    assert!(limits[0] == 8 && limits[1..].iter().all(|byte| *byte == 0));
    for cns in [0x04, 0x09, 0x10, 0x13, 0xFF] {
        assert_eq!(of_set(cns, 0), Err(Status::INVALID_FIELD));
    }
}
