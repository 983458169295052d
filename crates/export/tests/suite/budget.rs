//! Memory for requests in flight, and hosts that request more than their share.

use std::time::Duration;

use export::{Budget, Hosts, ServerConfig};
use nbd::client;
use nvme::Status;
use nvme::host::{Blocks, io};
use nvme::tcp::Digests;

use crate::common::nvme::{BLOCK, Controller, Queue, Target, wish, within};
use crate::common::{Raw, Served, Volume, eventually};

const MIB: u64 = 1 << 20;

/// `NBD_CMD_TRIM`, `NBD_CMD_WRITE_ZEROES`, and the latter's flag to keep the space.
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const NO_HOLE: u16 = 2;

fn mebibyte(number: u64) -> Blocks {
    let count = (MIB / u64::from(BLOCK)) as u32;
    Blocks { nsid: 1, first: number * u64::from(count), count }
}

/// I/O queues of one host.
fn queues(controller: &Controller, count: u16) -> Vec<Queue> {
    (1..=count).map(|number| controller.queue(number)).collect()
}

#[test]
fn writes_whose_data_never_arrive_hold_no_more_than_the_budget_and_stop_no_other_host() {
    let budget = Budget::new(32 * MIB);
    let target: Target = Target::start_with(1, 64, budget.clone());
    target.offer(1, Volume::new(64 * MIB), Hosts::Any, false);
    let mut many = wish(1);
    many.queues = 16;
    let greedy = Controller::with(target.address, many, Digests::default()).unwrap();
    let mut stalled = queues(&greedy, 16);
    for queue in &mut stalled {
        queue.withholds = true;
        for number in 0..32 {
            queue.send(io::write(mebibyte(number), MIB as u32, false, false), &[1; MIB as usize], 0);
        }
    }
    // The first queue may have got all that one queue may hold.
    eventually("all queues wait", || budget.stats().waiting >= 15);
    let held = budget.stats().held_bytes;
    assert!((14 * MIB..=17 * MIB).contains(&held), "a half of the budget: {held}");
    // Another host has its share.
    let other = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut queue = other.queue(1);
    for number in 0..32 {
        let write = io::write(mebibyte(number), MIB as u32, false, false);
        assert_eq!(queue.execute(write, &[2; MIB as usize], 0).status(), Status::SUCCESS);
    }
    assert!(budget.stats().held_bytes <= 32 * MIB);
    // Waiting requests are served as soon as there is memory.
    let mut last = stalled.pop().unwrap();
    drop(stalled);
    last.withholds = false;
    (0..32).for_each(|_| assert_eq!(last.next().unwrap().status(), Status::SUCCESS));
    drop((last, queue));
    eventually("nothing is held", || budget.stats().held_bytes == 0 && budget.stats().waiting == 0);
}

#[test]
fn requests_that_move_no_data_count_as_well() {
    let budget = Budget::new(MIB);
    let served = Served::start(ServerConfig { budget: budget.clone(), ..ServerConfig::default() }, false, 1);
    let (volume, _) = served.add("disk", 64 * MIB, false);
    volume.hold();
    let mut raw = Raw::on(&served.socket(), "disk", false);
    let trims: Vec<u8> = (0..1000).flat_map(|cookie| client::request(0, TRIM, cookie, 0, MIB as u32)).collect();
    raw.send(&trims);
    eventually("the client waits for memory", || budget.stats().waiting == 1);
    assert!(budget.stats().held_bytes <= MIB && volume.in_flight() < 100, "{} trims", volume.in_flight());
    volume.release();
    (0..1000).for_each(|_| assert_eq!(raw.error(), 0));
    eventually("nothing is held", || budget.stats().held_bytes == 0);
}

#[test]
fn what_a_host_has_asked_for_and_was_not_begun_is_not_done_once_it_is_gone() {
    let target: Target = Target::start(1, 64);
    let volume = Volume::new(64 * MIB);
    let state = target.offer(1, volume.clone(), Hosts::Any, false);
    volume.hold();
    let controller = Controller::connect(target.address);
    let mut both = queues(&controller, 2);
    for queue in &mut both {
        for number in 0..60 {
            queue.send(io::verify(mebibyte(number)), &[], 0);
        }
    }
    // The service window of a single active host is 32 MiB.
    eventually("the window is full", || volume.in_flight() == 32);
    drop((both, controller));
    // Its queues end when none of their requests is in the volume any more, which is soon.
    std::thread::sleep(Duration::from_millis(100));
    volume.release();
    eventually("it is gone", || state.connections().is_empty());
    assert_eq!(volume.entered(), 32);
}

#[test]
fn zeroes_over_a_long_range_end_when_their_client_is_gone() {
    let (served, volume, state) = Served::disk(1 << 30);
    volume.hold();
    let mut raw = Raw::on(&served.socket(), "disk", false);
    raw.send(&client::request(NO_HOLE, WRITE_ZEROES, 1, 0, 1 << 30));
    eventually("the first part is written", || volume.in_flight() == 1);
    drop(raw);
    std::thread::sleep(Duration::from_millis(100));
    volume.release();
    eventually("it is gone", || state.connections().is_empty());
    assert_eq!(volume.entered(), 1);
}

#[test]
fn one_hosts_long_commands_leave_the_volume_to_others() {
    let target: Target = Target::start(1, 64);
    let volume = Volume::new(64 * MIB);
    target.offer(1, volume.clone(), Hosts::Any, false);
    let (greedy, other) = (Controller::connect(target.address), wish(2));
    let other = Controller::with(target.address, other, Digests::default()).unwrap();
    let (mut long, mut short) = (greedy.queue(1), other.queue(1));
    // Both hosts are active.
    let read = |queue: &mut Queue| queue.execute(io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK), &[], BLOCK);
    for _ in 0..3 {
        assert_eq!(read(&mut short).status(), Status::SUCCESS);
        assert_eq!(read(&mut long).status(), Status::SUCCESS);
        std::thread::sleep(Duration::from_millis(30));
    }
    volume.hold();
    let sent: Vec<u16> = (0..40).map(|number| long.send(io::verify(mebibyte(number)), &[], 0)).collect();
    eventually("one is in the volume", || volume.in_flight() == 1);
    // The others wait before the volume, and the other host's reads do not.
    let reads: Vec<u16> =
        (0..16).map(|first| short.send(io::read(Blocks { nsid: 1, first, count: 1 }, BLOCK), &[], BLOCK)).collect();
    eventually("the reads are in the volume", || volume.in_flight() == 17);
    volume.release();
    reads.into_iter().for_each(|cid| assert_eq!(short.wait(cid).status(), Status::SUCCESS));
    sent.into_iter().for_each(|cid| assert_eq!(long.wait(cid).status(), Status::SUCCESS));
}

#[test]
fn an_export_ends_although_its_host_takes_no_answers() {
    let target: Target = Target::start(1, 64);
    let state = target.offer(1, Volume::new(64 * MIB), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    for number in 0..60 {
        queue.send(io::read(mebibyte(number), MIB as u32), &[], MIB as u32);
    }
    eventually("answers fill the socket", || state.counters().requests[export::Kind::Read as usize] > 1);
    std::thread::sleep(Duration::from_millis(200));
    state.stop();
    within(Duration::from_secs(10), state.stopped()).expect("the end does not wait for the host");
}
