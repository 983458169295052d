//! A host's machines against a controller's, from the handshake to the shutdown, however the bytes
//! between them are cut.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::pair::{Pair, Rng};
use crate::common::view::{Memory, entry, host, subsystem};
use crate::common::{LIMITS, stream::noise};
use nvme::host::{
    AsyncEvent, Dialogue, DiscoveredSubsystem, DiscoveryLog, Established, HostError, Next, Setup, Shutdown, Survey,
    Surveyed, Wish, admin, connect_io, connected, io,
};
use nvme::target::{Event, Kind};
use nvme::tcp::{Digests, HostLimits, Limits, Transfer};
use nvme::{Completion, DISCOVERY_NQN, Status, admin as opcode};

const HOST: HostLimits =
    HostLimits { digests: Digests { header: true, data: true }, alignment: 0, requests_max: 1, commands_max: 32 };

/// Namespace 1 has 512 blocks of 4 KiB.
fn view() -> Memory {
    let mut view = Memory::new();
    view.namespaces[0].blocks = 512;
    view
}

fn wish() -> Wish {
    let (host, subsystem) = (host(), subsystem());
    Wish { host, subsystem, queue_entries: 32, keep_alive_ms: 5000, queues: 4, events: 0xFFFF_FFFF }
}

fn discovery() -> Wish {
    Wish { subsystem: DISCOVERY_NQN.parse().expect("a name"), ..wish() }
}

fn set_up(pair: &mut Pair, wish: Wish) -> Result<Box<Established>, HostError> {
    pair.drive(&mut Setup::new(wish))
}

fn survey(pair: &mut Pair) -> Result<Surveyed, HostError> {
    pair.drive(&mut Survey::new(1000))
}

/// Pairs in all ways in which a connection can be.
fn every_way() -> impl Iterator<Item = Pair> {
    (0..32_u64).map(|way| {
        let digests = Digests::from_bits(way as u8 & 3);
        let alignment = if way & 4 != 0 { 31 } else { 0 };
        let limits = Limits { pdu_data_bytes_max: 4096 << (way % 3), ..LIMITS };
        let mut pair = Pair::new(limits, HostLimits { digests, alignment, ..HOST }, view(), way & 8 != 0, way + 1);
        pair.target.success = way & 16 != 0;
        pair.target.piece_bytes = [4096, 20_000, 1 << 20][way as usize % 3];
        assert_eq!(pair.host.receiver.agreement().map(|agreed| agreed.digests), Some(digests));
        pair
    })
}

#[test]
fn a_controller_is_connected_enabled_and_says_what_it_is() {
    for mut pair in every_way() {
        let established = set_up(&mut pair, wish()).expect("it works");
        let info = &established.info;
        assert_eq!((established.cntlid, established.version, established.queues), (5, 0x0002_0000, 4));
        assert_eq!(established.queue_entries_max, 1024);
        assert_eq!((&info.serial[..], &info.model[..], &info.firmware[..]), ("SN-1", "Purlin", "0.1.0"));
        assert_eq!((&info.subsystem, info.is_discovery), (&subsystem(), false));
        assert_eq!((info.transfer_bytes_max, info.capsule_data_bytes), (Some(1 << 20), 8192));
        assert!(info.has_compare() && info.has_dataset_management() && info.has_write_zeroes() && info.has_verify());
        assert!(info.has_write_cache && info.has_access_states);

        let namespaces = survey(&mut pair).expect("it is answered");
        let [(1, Ok(disk)), (3, Ok(image))] = &namespaces[..] else { panic!("{namespaces:?}") };
        assert_eq!((disk.blocks, disk.block_bytes, disk.bytes(), disk.read_only), (512, 4096, 2 << 20, false));
        assert_eq!((disk.uuid, disk.nguid, disk.eui64), (Some([0x11; 16]), Some([0x11; 16]), None));
        assert_eq!((disk.optimal_write_bytes, disk.deallocated_reads_zeroes), (Some(256 << 10), true));
        assert_eq!((image.blocks, image.block_bytes, image.read_only), (1000, 512, true));

        assert_eq!(pair.drive(&mut Shutdown::new(1000)), Ok(()));
        assert!(pair.host.closed.is_none() && pair.target.closed.is_none());
        assert_eq!(pair.host.receiver.in_flight(), 0);
    }
}

/// An I/O queue that is connected.
fn queue(pair: &mut Pair) {
    let submission = connect_io(&host(), &subsystem(), 5, 1, 32);
    let ended = pair.call(submission.command, submission.transfer(), &submission.data);
    assert_eq!(connected(&ended.completion), Ok(5));
}

#[test]
fn what_is_written_is_read_in_every_way() {
    let (mut asked, mut pieces, mut receives) = (0, 0, 0);
    for mut pair in every_way() {
        queue(&mut pair);
        let mut model = pair.target.disk.borrow().clone();
        let mut rng = Rng(pair.rng.0 ^ 0x5EED);
        for round in 0..12_u16 {
            // Several at the same time, at different places.
            let mut writes = Vec::new();
            for lane in 0..3_u64 {
                let count = 1 + rng.below(20) as u32;
                let first = lane * 100 + rng.below(80) as u64;
                let (len, data) = (count * 4096, noise(round * 3 + lane as u16, count as usize * 4096));
                model[first as usize * 4096..][..len as usize].copy_from_slice(&data);
                let in_capsule = len <= 8192 && rng.below(2) == 0;
                let command = io::write(io::Blocks { nsid: 1, first, count }, len, in_capsule, false);
                let transfer = if in_capsule { Transfer::None } else { Transfer::ToController(len) };
                writes.push(pair.host.send(command, transfer, &data));
            }
            let (first, count) = (300 + rng.below(100) as u64, 1 + rng.below(30) as u32);
            let read = io::read(io::Blocks { nsid: 1, first, count }, count * 4096);
            let read = pair.host.send(read, Transfer::ToHost(count * 4096), &[]);
            pair.pump();
            for cid in writes {
                let ended = pair.host.ended.remove(&cid).expect("answered");
                assert!(ended.completion.status().is_success(), "{ended:?}");
            }
            let ended = pair.host.ended.remove(&read).expect("answered");
            assert!(ended.completion.status().is_success() && ended.intact);
            assert!(ended.data == model[first as usize * 4096..][..ended.data.len()], "other data were read");
        }
        assert!(*pair.target.disk.borrow() == model, "other data were written");
        let agreed = pair.host.receiver.agreement().expect("agreed").pdu_data_bytes_max;
        assert!(pair.host.pieces > pair.target.asked, "long data go in several PDUs of up to {agreed} bytes");
        (asked, pieces, receives) =
            (asked + pair.target.asked, pieces + pair.host.pieces, receives + pair.host.receives);
    }
    println!("{asked} requests for data, {pieces} PDUs of data, {receives} direct receives");
    assert!(asked > 500 && receives > 100);
}

#[test]
fn the_other_commands_do_what_they_say() {
    for mut pair in every_way() {
        queue(&mut pair);
        let blocks = |first, count| io::Blocks { nsid: 1, first, count };
        let mut model = pair.target.disk.borrow().clone();
        let call = |pair: &mut Pair, command, data: &[u8], in_capsule| {
            let transfer = match data.len() as u32 {
                0 => Transfer::None,
                _ if in_capsule => Transfer::None,
                len => Transfer::ToController(len),
            };
            pair.call(command, transfer, data).completion.status()
        };
        for in_capsule in [false, true] {
            assert_eq!(
                call(&mut pair, io::compare(blocks(7, 1), 4096, in_capsule), &[0xDD; 4096], in_capsule),
                Status::SUCCESS
            );
            let other = call(&mut pair, io::compare(blocks(7, 1), 4096, in_capsule), &[0xDC; 4096], in_capsule);
            assert_eq!(other, Status::COMPARE_FAILURE);
            let (command, data) = io::deallocate(1, &[(20, 2), (30, 1)], in_capsule);
            assert_eq!(call(&mut pair, command, &data, in_capsule), Status::SUCCESS);
        }
        assert_eq!(call(&mut pair, io::write_zeroes(blocks(1, 3), true, true), &[], false), Status::SUCCESS);
        assert_eq!(call(&mut pair, io::flush(1), &[], false), Status::SUCCESS);
        assert_eq!(call(&mut pair, io::verify(blocks(256, 256)), &[], false), Status::SUCCESS);
        assert_eq!(call(&mut pair, io::verify(blocks(0, 513)), &[], false), Status::LBA_OUT_OF_RANGE);
        assert_eq!(call(&mut pair, io::flush(2), &[], false), Status::INVALID_NAMESPACE);
        for range in [4096..4 * 4096, 20 * 4096..22 * 4096, 30 * 4096..31 * 4096] {
            model[range].fill(0);
        }
        assert!(*pair.target.disk.borrow() == model);
    }
}

#[test]
fn damaged_data_are_told_and_the_queue_goes_on() {
    for success in [false, true] {
        let mut pair = Pair::new(LIMITS, HOST, view(), true, 9);
        (pair.target.success, pair.target.piece_bytes) = (success, 8192);
        queue(&mut pair);
        let read = io::read(io::Blocks { nsid: 1, first: 0, count: 8 }, 32_768);
        pair.target.damage = true;
        let ended = pair.call(read, Transfer::ToHost(32_768), &[]);
        assert!(ended.completion.status().is_success() && !ended.intact);
        let ended = pair.call(read, Transfer::ToHost(32_768), &[]);
        assert!(ended.intact && ended.data == [0xDD; 32_768]);
    }
}

#[test]
fn the_discovery_log_is_read_in_pieces() {
    for count in [0, 1, 16, 17, 100] {
        let mut view = view();
        view.entries = (0..count).map(entry).collect();
        let mut pair = Pair::new(LIMITS, HOST, view, true, 3);
        let established = set_up(&mut pair, discovery()).expect("it works");
        assert_eq!((established.info.is_discovery, established.queues), (true, 0));
        let (generation, entries) = pair.drive(&mut DiscoveryLog::new()).expect("a log");
        assert_eq!((generation, entries.len()), (7, usize::from(count)));
        for (port_id, entry) in (0..count).zip(&entries) {
            let found = DiscoveredSubsystem::of(entry).expect("an entry");
            let expected = DiscoveredSubsystem {
                transport: 3,
                kind: 2,
                subsystem: subsystem(),
                address: "192.0.2.1".to_owned(),
                port: "4420".to_owned(),
                port_id,
                needs_secure_channel: false,
            };
            assert_eq!(found, expected);
        }
    }
}

/// A log that changes while it is read.
struct Changing {
    log: DiscoveryLog,
    view: Rc<RefCell<Memory>>,
    /// Changes that are still to come, one after each answer.
    left: u32,
}

impl Dialogue for Changing {
    type Outcome = <DiscoveryLog as Dialogue>::Outcome;

    fn next(&mut self) -> Next<Self::Outcome> {
        self.log.next()
    }

    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError> {
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            let mut view = self.view.borrow_mut();
            view.generation += 1;
            view.entries = (100..120).map(entry).collect();
        }
        self.log.answer(completion, data)
    }
}

#[test]
fn a_discovery_log_that_changes_is_read_anew() {
    let mut view = view();
    view.entries = (0..40).map(entry).collect();
    let mut pair = Pair::new(LIMITS, HOST, view, true, 3);
    set_up(&mut pair, discovery()).expect("it works");
    let view = Rc::clone(&pair.target.view);
    // `changes`: how many of the answers are followed by a change.
    let mut read = |left| pair.drive(&mut Changing { log: DiscoveryLog::new(), view: view.clone(), left });
    // It becomes shorter, so that the next piece lies behind its end.
    let (generation, entries) = read(1).expect("a log");
    assert_eq!((generation, entries.len(), entries[0].portid.get()), (8, 20, 100));
    assert_eq!(read(u32::MAX).map(|(generation, _)| generation), Err(HostError::Restless));
}

#[test]
fn events_are_told_and_looked_up() {
    let mut pair = Pair::new(LIMITS, HOST, view(), true, 4);
    let established = set_up(&mut pair, wish()).expect("it works");
    assert_eq!(established.info.event_requests_max, 4);
    let waiting = pair.host.submit(&admin::event_request());
    pair.pump();
    assert!(pair.host.ended.is_empty());
    pair.target.happens(|controller| {
        assert_eq!(controller.kind(), Kind::Io);
        controller.namespace_changed(3);
    });
    pair.pump();
    let ended = pair.host.ended.remove(&waiting).expect("told");
    let event = AsyncEvent::of(ended.completion.result.get());
    assert_eq!((event.notice(), event.log_page), (Some(Event::NamespaceChanged), 0x04));
    let log = admin::get_log_page(event.log_page, 0, 4096, false);
    let ended = pair.call(log.command, log.transfer(), &[]);
    assert_eq!(ended.data[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
    // One that is aborted.
    let waiting = pair.host.submit(&admin::event_request());
    let ended = pair.call(admin::abort(0, waiting).command, Transfer::None, &[]);
    assert_eq!(ended.completion.result.get() & 1, 0);
    assert_eq!(pair.host.ended.remove(&waiting).expect("aborted").completion.status(), Status::ABORT_REQUESTED);
    assert!(pair.call(admin::keep_alive().command, Transfer::None, &[]).completion.status().is_success());
}

#[test]
fn features_and_commands_are_built_as_the_specification_has_them() {
    let mut pair = Pair::new(LIMITS, HOST, view(), true, 4);
    set_up(&mut pair, wish()).expect("it works");
    let mut call =
        |submission: nvme::host::Submission| pair.call(submission.command, submission.transfer(), &[]).completion;
    assert_eq!(call(admin::get_features(admin::NUMBER_OF_QUEUES)).result.get(), 0x0003_0003);
    assert_eq!(call(admin::get_features(admin::ASYNCHRONOUS_EVENTS)).result.get(), 0x0900);
    assert!(call(admin::set_features(admin::KEEP_ALIVE_TIMER, 9000)).status().is_success());
    assert_eq!(call(admin::get_features(admin::KEEP_ALIVE_TIMER)).result.get(), 9000);
    assert_eq!(admin::identify(1, 0).command.opcode, opcode::IDENTIFY);
}

#[test]
fn a_refusal_says_what_was_refused() {
    let mut pair = Pair::new(LIMITS, HOST, view(), true, 4);
    let small = set_up(&mut pair, Wish { queue_entries: 1, ..wish() });
    assert_eq!(small, Err(HostError::Parameter { parameter: "the size of the queue" }));
    let elsewhere = connect_io(&host(), &"nqn.2026-11.com.example:other".parse().expect("a name"), 5, 1, 32);
    let ended = pair.call(elsewhere.command, elsewhere.transfer(), &elsewhere.data);
    let Err(HostError::Parameter { parameter }) = connected(&ended.completion) else { panic!("{ended:?}") };
    assert!(parameter.starts_with("the name of the subsystem"));
    let busy = connected(&Completion::new(1, Status::CONNECT_CONTROLLER_BUSY, 0));
    assert_eq!(busy, Err(HostError::Failed { command: "Connect", status: Status::CONNECT_CONTROLLER_BUSY }));
    // AUTHREQ.
    assert_eq!(connected(&Completion::new(1, Status::SUCCESS, 5 | 1 << 17)), Err(HostError::Authentication));
}
