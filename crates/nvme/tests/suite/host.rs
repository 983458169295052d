//! A host with controllers that are slow, other than they should be, or hostile.

use crate::common::view::{HOST, SUBSYSTEM, host, subsystem};
use nvme::fabrics_data::{DiscoveryEntry, DiscoveryHead};
use nvme::host::{
    AsyncEvent, Blocks, ControllerInfo, DISCOVERY_ENTRIES_MAX, Dialogue, DiscoveredSubsystem, DiscoveryLog, HostError,
    NamespaceInfo, Next, Setup, Shutdown, Survey, Surveyed, Wish, io,
};
use nvme::identify::{IdentifyController, IdentifyNamespace};
use nvme::target::Event;
use nvme::{Completion, Status};
use zerocopy::{FromZeros, IntoBytes};

fn success(result: u64) -> Completion {
    Completion::new(0, Status::SUCCESS, result)
}

fn setup() -> Setup {
    Setup::new(Wish {
        host: host(),
        subsystem: subsystem(),
        queue_entries: 32,
        keep_alive_ms: 5000,
        queues: 8,
        events: 1 << 8,
    })
}

/// CAP of a controller that has 500 ms to become ready.
const CAPABILITIES: u64 = 31 | 1 << 24 | 1 << 37;

fn controller() -> IdentifyController {
    let mut data = IdentifyController::new_zeroed();
    (data.sqes, data.cqes, data.cntrltype) = (0x66, 0x44, 1);
    data.ioccsz = 4.into();
    data.subnqn = subsystem().field();
    data
}

/// Sends what the machine wants and answers with `results` in turn. Gives the opcodes and types of
/// what it sent.
fn answer_all(setup: &mut Setup, results: &[u64]) -> Result<Vec<u8>, HostError> {
    let mut sent = Vec::new();
    for result in results {
        loop {
            match setup.next() {
                Next::Send(submission) => {
                    let command = submission.command;
                    sent.push(if command.opcode == 0x7F { 0x70 | command.fabrics_type() } else { command.opcode });
                    break;
                }
                Next::Wait(ms) => assert!(ms > 0),
                Next::Done(_) => panic!("done before {result:x}h"),
            }
        }
        setup.answer(&success(*result), &[])?;
    }
    Ok(sent)
}

#[test]
fn a_controller_is_waited_for_as_long_as_it_says() {
    let mut setup = setup();
    // Connect, CAP, VS, CC, and CSTS until it is ready.
    let sent = answer_all(&mut setup, &[5, CAPABILITIES, 0x2_0000, 0, 0, 0, 1]).expect("it works");
    assert_eq!(sent, [0x71, 0x74, 0x74, 0x70, 0x74, 0x74, 0x74]);
    let mut slow = self::setup();
    answer_all(&mut slow, &[5, CAPABILITIES, 0x2_0000, 0]).expect("it works");
    let never = answer_all(&mut slow, &[0; 20]);
    assert_eq!(never, Err(HostError::Timeout { what: "the controller did not become ready", ms: 500 }));
}

#[test]
fn a_controller_that_cannot_be_used_is_given_up() {
    let after = |results: &[u64]| answer_all(&mut setup(), results).expect_err("it is given up");
    assert_eq!(after(&[5, CAPABILITIES, 0x2_0000, 0, 0b10]), HostError::Fatal);
    assert!(matches!(after(&[5, 31 | 1 << 24]), HostError::Unsupported(text) if text.contains("NVM command set")));
    assert!(matches!(after(&[5, CAPABILITIES | 1 << 48]), HostError::Unsupported(text) if text.contains("pages")));
    let mut refused = setup();
    let _connect = refused.next();
    let completion = Completion::new(0, Status::CONNECT_INVALID_HOST, 0);
    let failed = HostError::Failed { command: "Connect", status: Status::CONNECT_INVALID_HOST };
    assert_eq!(refused.answer(&completion, &[]), Err(failed));
}

#[test]
fn fewer_queues_and_events_are_taken_as_they_are_granted() {
    for (granted, queues) in [(0x0002_0002, 3), (0x0001_0005, 2), (0x00FF_00FF, 8), (0xFFFF_FFFF, 8)] {
        let mut setup = setup();
        answer_all(&mut setup, &[5, CAPABILITIES, 0x2_0000, 0, 1]).expect("it works");
        let _identify = setup.next();
        setup.answer(&success(0), controller().as_bytes()).expect("it is read");
        answer_all(&mut setup, &[granted]).expect("it works");
        // It has no events: nothing is asked for.
        let Next::Done(established) = setup.next() else { panic!("not done") };
        assert_eq!((established.queues, established.queue_entries_max), (queues, 32));
    }
}

#[test]
fn identify_controller_is_checked() {
    let info = |change: fn(&mut IdentifyController)| {
        let mut data = controller();
        change(&mut data);
        ControllerInfo::of(&data, 4096)
    };
    assert_eq!(info(|_| ()).map(|info| (info.transfer_bytes_max, info.capsule_data_bytes)), Ok((None, 0)));
    assert_eq!(info(|data| data.mdts = 5).map(|info| info.transfer_bytes_max), Ok(Some(128 << 10)));
    assert_eq!(info(|data| data.mdts = 255).map(|info| info.transfer_bytes_max), Ok(None));
    assert_eq!(info(|data| data.ioccsz = u32::MAX.into()).map(|info| info.capsule_data_bytes), Ok(u32::MAX));
    assert_eq!(info(|data| data.sn = *b"a\xFF c                ").map(|info| info.serial), Ok("a? c".to_owned()));
    assert!(matches!(info(|data| data.ioccsz = 3.into()), Err(HostError::Malformed(_))));
    assert!(matches!(info(|data| data.subnqn = [b'x'; 256]), Err(HostError::Malformed(_))));
    assert!(matches!(info(|data| data.icdoff = 1.into()), Err(HostError::Unsupported(_))));
    assert!(matches!(info(|data| data.sqes = 0x77), Err(HostError::Unsupported(_))));
    let mut setup = setup();
    answer_all(&mut setup, &[5, CAPABILITIES, 0x2_0000, 0, 1]).expect("it works");
    let _identify = setup.next();
    let short = setup.answer(&success(0), &controller().as_bytes()[1..]);
    assert_eq!(short, Err(HostError::Short { command: "Identify", len: 4095 }));
}

fn namespace() -> IdentifyNamespace {
    let mut data = IdentifyNamespace::new_zeroed();
    data.nsze = 1000.into();
    data.lbaf[0].lbads = 9;
    data
}

#[test]
fn identify_namespace_is_checked() {
    let info = |change: fn(&mut IdentifyNamespace)| {
        let mut data = namespace();
        change(&mut data);
        NamespaceInfo::of(1, &data)
    };
    let blocks = |info: Result<Option<NamespaceInfo>, _>| info.map(|info| info.map(|info| info.block_bytes));
    assert_eq!(blocks(info(|_| ())), Ok(Some(512)));
    assert_eq!(blocks(info(|data| data.nsze = 0.into())), Ok(None));
    // FLBAS: bits 3:0, and 6:5 above them.
    let formatted = |data: &mut IdentifyNamespace| {
        data.flbas = 0b0010_0011;
        data.lbaf[19].lbads = 12;
    };
    assert_eq!(blocks(info(formatted)), Ok(Some(4096)));
    assert!(matches!(info(|data| data.lbaf[0].ms = 8.into()), Err(HostError::Unsupported(_))));
    assert!(matches!(info(|data| data.lbaf[0].lbads = 0), Err(HostError::Unsupported(_))));
    assert!(matches!(info(|data| data.lbaf[0].lbads = 255), Err(HostError::Unsupported(_))));
    assert!(matches!(info(|data| data.nsze = u64::MAX.into()), Err(HostError::Malformed(_))));
}

#[test]
fn ranges_in_bytes_become_blocks_or_nothing() {
    let info = NamespaceInfo::of(7, &namespace()).expect("it is read").expect("there is one");
    assert_eq!(info.range(512, 1024), Some(Blocks { nsid: 7, first: 1, count: 2 }));
    assert_eq!(info.range(999 * 512, 512), Some(Blocks { nsid: 7, first: 999, count: 1 }));
    for (offset, len) in [(1, 512), (0, 513), (0, 0), (999 * 512, 1024), (512_000, 512), (u64::MAX - 511, 512)] {
        assert_eq!(info.range(offset, len), None, "{len} bytes from {offset} on");
    }
}

/// A list of these numbers.
fn list(nsids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes: Vec<u8> = nsids.flat_map(u32::to_le_bytes).collect();
    bytes.resize(bytes.len().max(4096), 0);
    bytes
}

/// Does a survey, with an answer to each CNS and NSID.
fn survey(most: usize, answer: impl Fn(u8, u32) -> (Completion, Vec<u8>)) -> Result<Surveyed, HostError> {
    let mut survey = Survey::new(most);
    loop {
        match survey.next() {
            Next::Send(submission) => {
                let (completion, data) = answer(submission.command.cdw(10) as u8, submission.command.nsid.get());
                survey.answer(&completion, &data)?;
            }
            Next::Wait(_) => panic!("nothing to wait for"),
            Next::Done(found) => return Ok(found),
        }
    }
}

#[test]
fn a_long_list_of_namespaces_goes_on() {
    let found = survey(3000, |cns, nsid| {
        let data = match cns {
            2 => list((nsid + 1..=2500).take(1024)),
            0 => namespace().as_bytes().to_vec(),
            _ => vec![0; 4096],
        };
        (success(0), data)
    });
    let found = found.expect("it is read");
    assert!(found.iter().map(|(nsid, _)| *nsid).eq(1..=2500) && found.iter().all(|(_, info)| info.is_ok()));
    // Exactly one list full.
    let found = survey(3000, |cns, nsid| match cns {
        2 => (success(0), list((nsid + 1..=1024).take(1024))),
        _ => (success(0), namespace().as_bytes().to_vec()),
    });
    assert_eq!(found.expect("it is read").len(), 1024);
}

#[test]
fn a_namespace_that_is_of_no_use_does_not_hide_the_others() {
    let found = survey(10, |cns, nsid| match (cns, nsid) {
        (2, _) => (success(0), list([1, 2, 3, 4, 5, 6].into_iter())),
        // 1 went; 2 fails; 3 is short; 4 has another command set; 5 a UUID that is none; 6 is
        // right, with what is not known yet.
        (0, 1) => (success(0), vec![0; 4096]),
        (0, 2) => (Completion::new(0, Status::INTERNAL_ERROR, 0), vec![0; 4096]),
        (0, 3) => (success(0), vec![0; 100]),
        (0, _) => (success(0), namespace().as_bytes().to_vec()),
        (_, 4) => (success(0), [&[4, 1, 0, 0, 2][..], &[0; 4091]].concat()),
        (_, 5) => (success(0), [&[3, 15, 0, 0][..], &[9; 15], &[0; 4077]].concat()),
        _ => (
            success(0),
            [&[1, 8, 0, 0][..], &[7; 8], &[77, 3, 0, 0, 1, 2, 3], &[3, 16, 0, 0], &[9; 16], &[0; 4057]].concat(),
        ),
    });
    let found = found.expect("the list is read");
    let usable: Vec<(u32, bool)> = found.iter().map(|(nsid, info)| (*nsid, info.is_ok())).collect();
    assert_eq!(usable, [(2, false), (3, false), (4, false), (5, false), (6, true)]);
    let last = found[4].1.as_ref().expect("of use");
    assert_eq!((last.eui64, last.uuid), (Some([7; 8]), Some([9; 16])));
}

#[test]
fn lists_that_do_not_ascend_or_do_not_end_are_refused() {
    let listed = |answer: fn(u32) -> Vec<u8>| survey(2000, |_, nsid| (success(0), answer(nsid)));
    let descends = Err(HostError::Malformed("the list of namespaces does not ascend"));
    assert_eq!(listed(|_| list([2, 1].into_iter())), descends);
    assert_eq!(listed(|_| list([2, 2].into_iter())), descends);
    assert_eq!(listed(|_| list(1..=2001)), Err(HostError::Short { command: "Identify", len: 8004 }));
    // The list goes round in circles.
    let circle = survey(5000, |cns, _| match cns {
        2 => (success(0), list(1..=1024)),
        _ => (success(0), vec![0; 4096]),
    });
    assert_eq!(circle, descends);
    assert_eq!(survey(1000, |_, _| (success(0), list(1..=1001))), Err(HostError::TooMany(1001)));
}

#[test]
fn a_descriptor_list_may_be_anything() {
    for byte in 0..=u8::MAX {
        let found = survey(10, |cns, _| match cns {
            2 => (success(0), list([1].into_iter())),
            0 => (success(0), namespace().as_bytes().to_vec()),
            _ => (success(0), vec![byte; 4096]),
        });
        assert_eq!(found.expect("the list is read").len(), 1);
    }
}

#[test]
fn a_discovery_log_of_lies_is_refused() {
    let head = |change: fn(&mut DiscoveryHead)| {
        let mut head = DiscoveryHead::new_zeroed();
        change(&mut head);
        DiscoveryLog::new().answer(&success(0), head.as_bytes())
    };
    assert_eq!(head(|head| head.numrec = DISCOVERY_ENTRIES_MAX.into()), Ok(()));
    let many = DISCOVERY_ENTRIES_MAX + 1;
    assert_eq!(head(|head| head.numrec = (DISCOVERY_ENTRIES_MAX + 1).into()), Err(HostError::TooMany(many)));
    assert_eq!(head(|head| head.numrec = u64::MAX.into()), Err(HostError::TooMany(u64::MAX)));
    assert!(matches!(head(|head| head.recfmt = 1.into()), Err(HostError::Unsupported(_))));
    let short = HostError::Short { command: "Get Log Page", len: 16 };
    assert_eq!(DiscoveryLog::new().answer(&success(0), &[0; 16]), Err(short));
    assert!(matches!(DiscoveredSubsystem::of(&DiscoveryEntry::new_zeroed()), Err(HostError::Malformed(_))));
    // Entries that cannot be read, of a log that did not change.
    let mut log = DiscoveryLog::new();
    let mut one = DiscoveryHead::new_zeroed();
    one.numrec = 1.into();
    log.answer(&success(0), one.as_bytes()).expect("it is read");
    log.answer(&Completion::new(0, Status::INVALID_FIELD, 0), &[]).expect("it is looked at again");
    let failed = HostError::Failed { command: "Get Log Page", status: Status::INVALID_FIELD };
    assert_eq!(log.answer(&success(0), one.as_bytes()), Err(failed));
}

#[test]
fn a_shutdown_is_waited_for_as_long_as_one_likes() {
    let mut shutdown = Shutdown::new(300);
    let mut waited = 0;
    let result = loop {
        match shutdown.next() {
            Next::Send(_) => {
                if let Err(error) = shutdown.answer(&success(0b0101), &[]) {
                    break error;
                }
            }
            Next::Wait(ms) => waited += ms,
            Next::Done(()) => panic!("it is not shut down"),
        }
    };
    assert_eq!((result, waited), (HostError::Timeout { what: "the controller did not shut down", ms: 300 }, 300));
}

#[test]
fn events_of_other_kinds_are_no_notices() {
    assert_eq!(AsyncEvent::of(0x02_01_01), AsyncEvent { kind: 1, information: 1, log_page: 2 });
    assert_eq!(AsyncEvent::of(0x02_01_01).notice(), None);
    assert_eq!(AsyncEvent::of(0x70_F0_02).notice(), Some(Event::DiscoveryChanged));
    assert!(HOST.len() < 224 && SUBSYSTEM.len() < 224);
}

#[test]
fn commands_have_their_fields() {
    let blocks = Blocks { nsid: 9, first: 0x1_2345_6789, count: 65_536 };
    let command = io::write(blocks, 4096, true, true);
    assert_eq!((command.opcode, command.nsid.get(), command.cdw(10), command.cdw(11)), (1, 9, 0x2345_6789, 1));
    assert_eq!((command.cdw(12), command.dptr.identifier, command.dptr.length.get()), (1 << 30 | 0xFFFF, 0x01, 4096));
    let command = io::write_zeroes(blocks, true, true);
    assert_eq!((command.opcode, command.cdw(12)), (8, 1 << 30 | 1 << 25 | 0xFFFF));
    let (command, data) = io::deallocate(9, &[(0x0102, 0x0304)], false);
    assert_eq!((command.cdw(10), command.cdw(11), command.dptr.length.get()), (0, 4, 16));
    assert_eq!(data, [0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
}
