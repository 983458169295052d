//! Reservations of NVMe hosts: what one host reserves is kept from the others, on every queue,
//! shard and address.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Saved, Target, copy, host, pattern, wish};
use crate::common::{Volume, eventually};
use drive::Block;
use export::{Hosts, Kind, SharedNamespace};
use nvme::host::{AsyncEvent, Blocks, admin as ask, io};
use nvme::target::{Event, Held, ReservationType};
use nvme::tcp::Digests;
use nvme::{Command, Sgl, Status, admin, nvm};

const BLOCK_0: Blocks = Blocks { nsid: 1, first: 0, count: 1 };

/// Write Exclusive, Exclusive Access, and Write Exclusive - Registrants Only.
const WE: u32 = 1;
const EA: u32 = 2;
const WERO: u32 = 3;

/// A reservation command with up to two keys.
fn reserve(queue: &mut Queue, opcode: u8, dword10: u32, keys: &[u64]) -> Status {
    let cid = send(queue, opcode, dword10, keys);
    queue.wait(cid).status()
}

fn send(queue: &mut Queue, opcode: u8, dword10: u32, keys: &[u64]) -> u16 {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let mut command = Command::new(opcode, 0, 1);
    command.set_cdw(10, dword10);
    command.dptr = Sgl::in_capsule(data.len() as u32);
    queue.send(command, &data, 0)
}

fn register(queue: &mut Queue, key: u64) -> Status {
    reserve(queue, nvm::RESERVATION_REGISTER, 0, &[0, key])
}

/// As [`register`], and reservations persist through power loss from now on.
fn register_for_good(queue: &mut Queue, key: u64) -> Status {
    reserve(queue, nvm::RESERVATION_REGISTER, 0b11 << 30, &[0, key])
}

fn acquire(queue: &mut Queue, kind: u32, key: u64) -> Status {
    reserve(queue, nvm::RESERVATION_ACQUIRE, kind << 8, &[key, 0])
}

fn preempt(queue: &mut Queue, kind: u32, key: u64, preempted: u64) -> Status {
    reserve(queue, nvm::RESERVATION_ACQUIRE, kind << 8 | 1, &[key, preempted])
}

fn release(queue: &mut Queue, kind: u32, key: u64) -> Status {
    reserve(queue, nvm::RESERVATION_RELEASE, kind << 8, &[key])
}

/// RTYPE, and for each registrant whether it holds the reservation, its key and the first byte of
/// its identifier.
fn report(queue: &mut Queue) -> (u8, Vec<(bool, u64, u8)>) {
    let mut command = Command::new(nvm::RESERVATION_REPORT, 0, 1);
    command.set_cdw(10, 1023);
    command.set_cdw(11, 1);
    command.dptr = Sgl::transport(4096);
    let data = queue.execute(command, &[], 4096).data();
    let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
    let registrants = data[64..].chunks(64).take(count);
    let one = |entry: &[u8]| (entry[2] == 1, u64::from_le_bytes(entry[8..16].try_into().unwrap()), entry[16]);
    (data[4], registrants.map(one).collect())
}

/// The results of commands that read, and of those that write.
type Tries = ([Status; 3], [Status; 5]);

/// Results of a read, compare and verify, and of a write, flush, write zeroes, deallocate and copy.
fn tries(queue: &mut Queue) -> Tries {
    let data = queue.execute(io::read(BLOCK_0, BLOCK), &[], BLOCK);
    let (read, data) = (data.status(), if data.status().is_success() { data.data } else { vec![0; BLOCK as usize] });
    let mut is = |command, data: &[u8]| queue.execute(command, data, 0).status();
    let reads = [read, is(io::compare(BLOCK_0, BLOCK, true), &data), is(io::verify(BLOCK_0), &[])];
    let (deallocate, ranges) = io::deallocate(1, &[(9, 1)], true);
    let (copy, sources) = copy(1, 8, &[(0, 1)], true, false);
    let writes = [
        is(io::write(BLOCK_0, BLOCK, false, false), &data),
        is(io::flush(1), &[]),
        is(io::write_zeroes(Blocks { first: 9, ..BLOCK_0 }, false, false), &[]),
        is(deallocate, &ranges),
        is(copy, &sources),
    ];
    (reads, writes)
}

/// The status of a refused command, and of an allowed one.
const NO: Status = Status::RESERVATION_CONFLICT;
const YES: Status = Status::SUCCESS;

/// One volume at two addresses, each of which is served by two shards.
struct Pair {
    targets: [Target; 2],
    volume: Volume,
    shared: Arc<SharedNamespace>,
    saved: Saved,
}

impl Pair {
    fn new() -> Pair {
        let (saved, volume) = (Saved::default(), Volume::new(MIB));
        let (targets, shared) = ([Target::start(2, 64), Target::start(2, 64)], saved.namespace());
        for target in &targets {
            target.offer_shared(1, volume.clone(), Hosts::Any, false, &shared);
        }
        Pair { targets, volume, shared, saved }
    }

    /// A host that is connected to one of the addresses, and two of its queues.
    fn host(&self, number: u8, at: usize) -> (Controller, [Queue; 2]) {
        let controller = Controller::with(self.targets[at].address, wish(number), Digests::default()).unwrap();
        let queues = [controller.queue(1), controller.queue(2)];
        (controller, queues)
    }
}

#[test]
fn what_a_host_has_reserved_is_kept_from_others_on_every_queue_and_address() {
    let pair = Pair::new();
    let (_one, mut own) = pair.host(1, 0);
    let (_near, mut near) = pair.host(2, 0);
    let (_far, mut far) = pair.host(3, 1);
    let mut others = || near.iter_mut().chain(far.iter_mut()).map(tries).collect::<Vec<_>>();
    assert_eq!(others(), [([YES; 3], [YES; 5]); 4]);

    assert_eq!(register(&mut own[0], 7), YES);
    assert_eq!(others(), [([YES; 3], [YES; 5]); 4], "a registration excludes nobody");
    assert_eq!(acquire(&mut own[0], WE, 7), YES);
    assert_eq!(others(), [([YES; 3], [NO; 5]); 4]);
    assert_eq!(own.each_mut().map(tries), [([YES; 3], [YES; 5]); 2], "the holder's other queue, too");
    assert_eq!((release(&mut own[1], WE, 7), acquire(&mut own[1], EA, 7)), (YES, YES));
    assert_eq!(others(), [([NO; 3], [NO; 5]); 4]);
    assert_eq!(own.each_mut().map(tries), [([YES; 3], [YES; 5]); 2]);
    assert_eq!(release(&mut own[0], EA, 7), YES);
    assert_eq!(others(), [([YES; 3], [YES; 5]); 4]);
}

#[test]
fn registrants_write_where_the_type_lets_them_in() {
    let pair = Pair::new();
    let (_one, [mut one, _]) = pair.host(1, 0);
    let (_two, [mut two, mut second]) = pair.host(2, 1);
    assert_eq!((register(&mut one, 1), acquire(&mut one, WERO, 1)), (YES, YES));
    assert_eq!(tries(&mut two), ([YES; 3], [NO; 5]));
    assert_eq!((register(&mut two, 2), acquire(&mut two, WERO, 2)), (YES, NO));
    assert_eq!(tries(&mut second), ([YES; 3], [YES; 5]));
    assert_eq!(report(&mut second), (3, vec![(true, 1, 1), (false, 2, 2)]));
}

/// The commands that the holder, another registrant and a stranger may execute, by the type of the
/// reservation: Base 2.0, clause 8.19.
const TYPES: [(u32, [Tries; 3]); 6] = {
    let (all, reads, none) = (([YES; 3], [YES; 5]), ([YES; 3], [NO; 5]), ([NO; 3], [NO; 5]));
    [
        (1, [all, reads, reads]),
        (2, [all, none, none]),
        (3, [all, all, reads]),
        (4, [all, all, none]),
        (5, [all, all, reads]),
        (6, [all, all, none]),
    ]
};

#[test]
fn every_type_lets_in_whom_it_should_and_ends_with_its_last_holder() {
    for (kind, expected) in TYPES {
        let pair = Pair::new();
        let (_one, [mut one, _]) = pair.host(1, 0);
        let (_two, [mut two, _]) = pair.host(2, 1);
        let (_three, [mut three, _]) = pair.host(3, 0);
        assert_eq!((register(&mut one, 1), register(&mut two, 2), acquire(&mut one, kind, 1)), (YES, YES, YES));
        assert_eq!([&mut one, &mut two, &mut three].map(tries), expected, "type {kind}");
        // With types 5 and 6 every registrant is a holder, and stays one when the first one
        // unregisters.
        let is_of_all = kind >= 5;
        assert_eq!(report(&mut two), (kind as u8, vec![(true, 1, 1), (is_of_all, 2, 2)]));
        assert_eq!(reserve(&mut one, nvm::RESERVATION_REGISTER, 1, &[1, 0]), YES);
        if is_of_all {
            assert_eq!(report(&mut two), (kind as u8, vec![(true, 2, 2)]));
            assert_eq!([&mut two, &mut one, &mut three].map(tries), [expected[0], expected[2], expected[2]]);
            assert_eq!(release(&mut two, kind, 2), YES);
        }
        assert_eq!(report(&mut two), (0, vec![(false, 2, 2)]));
        assert_eq!([&mut one, &mut two, &mut three].map(tries), [([YES; 3], [YES; 5]); 3]);
    }
}

#[test]
fn every_type_persists_if_it_is_wished() {
    for (kind, expected) in TYPES {
        let pair = Pair::new();
        let (_one, [mut one, _]) = pair.host(1, 0);
        let (_two, [mut two, _]) = pair.host(2, 1);
        assert_eq!((register_for_good(&mut one, 1), register(&mut two, 2)), (YES, YES));
        assert_eq!(acquire(&mut one, kind, 1), YES);
        let known = report(&mut one);

        // After a power loss only the saved state is left.
        let again = Target::start(1, 16);
        again.offer_shared(1, pair.volume.clone(), Hosts::Any, false, &pair.saved.namespace());
        let hosts = [1, 2, 3].map(|number| Controller::with(again.address, wish(number), Digests::default()).unwrap());
        let mut queues = hosts.each_ref().map(|host| host.queue(1));
        assert_eq!(report(&mut queues[1]), known, "type {kind}");
        assert_eq!(queues.each_mut().map(tries), expected, "type {kind}");
    }
}

#[test]
fn a_host_that_goes_away_keeps_its_registration_and_its_reservation() {
    let pair = Pair::new();
    {
        let (_gone, [mut queue, _]) = pair.host(1, 0);
        assert_eq!((register(&mut queue, 7), acquire(&mut queue, WE, 7)), (YES, YES));
    }
    let (_other, [mut other, _]) = pair.host(2, 0);
    assert_eq!(tries(&mut other), ([YES; 3], [NO; 5]));
    let (_back, [mut back, _]) = pair.host(1, 1);
    assert_eq!(report(&mut back), (1, vec![(true, 7, 1)]));
    assert_eq!(tries(&mut back), ([YES; 3], [YES; 5]));
    assert_eq!(register(&mut back, 8), NO, "it has another key");
}

#[test]
fn a_preempted_host_is_told_and_writes_no_more() {
    let pair = Pair::new();
    let (mut one, [mut own, _]) = pair.host(1, 0);
    let (_two, [mut other, _]) = pair.host(2, 1);
    assert_eq!((register(&mut own, 1), acquire(&mut own, WE, 1), register(&mut other, 2)), (YES, YES, YES));
    let asked = one.ask();
    assert_eq!(preempt(&mut other, WE, 2, 1), YES);
    let event = AsyncEvent::of(one.admin.wait(asked).completion.result.get());
    assert_eq!((event.notice(), event.log_page), (Some(Event::ReservationNotice), 0x80));
    let page = one.admin.submit(ask::get_log_page(0x80, 0, 64, false)).data();
    // LPC, RNLPT "registration preempted", NALP, NSID.
    assert_eq!(page[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(tries(&mut own), ([YES; 3], [NO; 5]));
    assert_eq!(acquire(&mut own, WE, 1), NO, "it is registered no more");
    assert_eq!(report(&mut own), (1, vec![(true, 2, 2)]));

    // A host that has masked the notifications does not get them.
    let mut mask = Command::new(admin::SET_FEATURES, 0, 1);
    mask.set_cdw(10, 0x82);
    mask.set_cdw(11, 0b1110);
    assert_eq!((register(&mut own, 1), one.admin.execute(mask, &[], 0).status()), (YES, YES));
    assert_eq!(preempt(&mut other, WE, 2, 1), YES);
    let page = one.admin.submit(ask::get_log_page(0x80, 0, 64, false)).data();
    assert_eq!(page, [0; 64]);
}

#[test]
fn preempt_and_abort_is_answered_when_nothing_of_before_is_in_flight() {
    let pair = Pair::new();
    let (_one, mut own) = pair.host(1, 0);
    let (_two, [mut other, _]) = pair.host(2, 1);
    assert_eq!((register(&mut own[0], 1), acquire(&mut own[0], WE, 1), register(&mut other, 2)), (YES, YES, YES));
    pair.volume.hold();
    let data = pattern(BLOCK as usize, 1);
    let writing = own.each_mut().map(|queue| queue.send(io::write(BLOCK_0, BLOCK, true, false), &data, 0));
    eventually("both writes are in the volume", || pair.volume.in_flight() == 2);
    let aborting = send(&mut other, nvm::RESERVATION_ACQUIRE, WE << 8 | 2, &[2, 1]);
    eventually("it is host 2's", || pair.shared.reservations().held().unwrap().holder == Some(host(2).id));
    // Later commands are refused at once. The preempt waits for commands that are in flight.
    assert_eq!(own[0].execute(io::write(BLOCK_0, BLOCK, true, false), &data, 0).status(), NO);
    other.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(other.stream.peek(&mut [0]).is_err(), "not answered yet");
    other.stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    pair.volume.release();
    assert_eq!(other.wait(aborting).status(), YES);
    for (queue, cid) in own.iter_mut().zip(writing) {
        assert_eq!(queue.wait(cid).status(), YES, "it was let in before");
    }
    // Without anything in flight, and without a wait where none is requested.
    assert_eq!(register(&mut own[0], 1), YES);
    assert_eq!(reserve(&mut other, nvm::RESERVATION_ACQUIRE, WE << 8 | 2, &[2, 1]), YES);
    pair.volume.hold();
    let writing = other.send(io::write(BLOCK_0, BLOCK, true, false), &data, 0);
    eventually("the write is in the volume", || pair.volume.in_flight() == 1);
    assert_eq!((register(&mut own[0], 1), preempt(&mut own[0], WE, 1, 2)), (YES, YES));
    pair.volume.release();
    assert_eq!(other.wait(writing).status(), YES);
}

#[test]
fn what_persists_is_saved_before_it_is_answered_and_is_there_again() {
    let pair = Pair::new();
    let saved = || pair.saved.reservations.lock().unwrap().clone();
    let (mut one, [mut own, _]) = pair.host(1, 0);
    assert_eq!((register(&mut own, 7), acquire(&mut own, WE, 7)), (YES, YES));
    assert_eq!(saved(), None, "it does not persist");
    assert_eq!(register_for_good(&mut own, 7), YES);
    let held = Some(Held { kind: ReservationType::WriteExclusive, holder: Some(host(1).id) });
    assert_eq!(saved().map(|saved| saved.held()), Some(held));

    // After a power loss only the saved state is left.
    let again = Target::start(1, 16);
    again.offer_shared(1, pair.volume.clone(), Hosts::Any, false, &pair.saved.namespace());
    let other = Controller::with(again.address, wish(2), Digests::default()).unwrap();
    assert_eq!(tries(&mut other.queue(1)), ([YES; 3], [NO; 5]));
    let back = Controller::connect(again.address);
    assert_eq!(report(&mut back.queue(1)), (1, vec![(true, 7, 1)]));

    // The feature reports the same, and changes it.
    let feature = |opcode, value| {
        let mut command = Command::new(opcode, 0, 1);
        command.set_cdw(10, 0x83);
        command.set_cdw(11, value);
        command
    };
    let persists = |controller: &mut Controller| {
        let answer = controller.admin.execute(feature(admin::GET_FEATURES, 0), &[], 0);
        (answer.status(), answer.completion.result.get())
    };
    assert_eq!(persists(&mut one), (YES, 1));
    assert_eq!(one.admin.execute(feature(admin::SET_FEATURES, 0), &[], 0).status(), YES);
    assert_eq!((persists(&mut one), saved()), ((YES, 0), None));
    assert_eq!(report(&mut own), (1, vec![(true, 7, 1)]), "it is reserved until then");
}

#[test]
fn what_cannot_be_saved_is_refused_and_changes_nothing() {
    let pair = Pair::new();
    let (_one, [mut own, _]) = pair.host(1, 0);
    let (_two, [mut other, _]) = pair.host(2, 1);
    assert_eq!(register_for_good(&mut own, 7), YES);
    pair.saved.fails.store(true, Ordering::SeqCst);
    assert_eq!(acquire(&mut own, EA, 7), Status::INTERNAL_ERROR);
    assert_eq!((report(&mut own), tries(&mut other)), ((0, vec![(false, 7, 1)]), ([YES; 3], [YES; 5])));
    pair.saved.fails.store(false, Ordering::SeqCst);
    assert_eq!(acquire(&mut own, EA, 7), YES);
}

#[test]
fn a_conflict_is_counted_and_reservations_are_commands_of_their_own_kind() {
    let target = Target::start(1, 16);
    let volume = Volume::new(MIB);
    let state = target.offer(1, volume.clone(), Hosts::Any, false);
    let (one, two) = (wish(1), wish(2));
    let [one, two] = [one, two].map(|wish| Controller::with(target.address, wish, Digests::default()).unwrap());
    let (mut own, mut other) = (one.queue(1), two.queue(1));
    assert_eq!((register(&mut own, 1), acquire(&mut own, WE, 1), report(&mut own).0), (YES, YES, 1));
    let data = pattern(BLOCK as usize, 3);
    assert_eq!(other.execute(io::write(BLOCK_0, BLOCK, true, false), &data, 0).status(), NO);
    let counters = state.counters();
    assert_eq!((counters.requests[Kind::Reservation as usize], counters.errors, counters.written_bytes), (3, 1, 0));
    assert_eq!((volume.ram.allocated_bytes(), volume.size_bytes()), (0, MIB), "nothing of it has come through");
}
