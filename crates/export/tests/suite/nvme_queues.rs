//! The queues that a host may have, and what ends along with a queue or a controller.

use std::time::{Duration, Instant};

use crate::common::nvme::{BLOCK, Controller, ENABLED, MIB, Queue, Target, host, subsystem, wish, within};
use crate::common::{PATIENCE, Volume, eventually};
use export::Hosts;
use nvme::fabrics_data::property;
use nvme::host::{Blocks, HostError, Setup, Shutdown, Wish, admin, connect_io, connected, io};
use nvme::tcp::Digests;
use nvme::{Command, DISCOVERY_NQN, Sgl, Status};

/// The queue serves commands.
fn works(queue: &mut Queue) -> bool {
    let read = io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK);
    queue.execute(read, &[], BLOCK).status().is_success()
}

fn set_configuration(controller: &mut Controller, value: u32) {
    let answer = controller.admin.submit(admin::property_set(property::CC, value));
    assert_eq!(answer.status(), Status::SUCCESS);
}

/// CSTS.RDY.
const READY: u64 = 1;

fn status(controller: &mut Controller) -> u64 {
    controller.admin.submit(admin::property_get(property::CSTS, false)).completion.result.get()
}

const NO_QUEUE: &str = "the number of the queue, or it is connected already";
const NO_CONTROLLER: &str = "the controller's number";

fn parameter(parameter: &'static str) -> Option<HostError> {
    Some(HostError::Parameter { parameter })
}

#[test]
fn queues_end_with_their_admin_queue_and_others_stay() {
    let target: Target = Target::start(2, 64);
    let state = target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let other = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut staying = other.queue(1);
    let controller = Controller::connect(target.address);
    let (mut one, mut two) = (controller.queue(1), controller.queue(2));
    assert!(works(&mut one) && works(&mut two) && works(&mut staying));
    drop(controller);
    assert!(one.is_closed() && two.is_closed());
    eventually("both are forgotten", || state.connections().len() == 1);
    assert!(works(&mut staying));
}

#[test]
fn a_controller_that_is_disabled_or_shut_down_loses_its_queues_and_may_have_new_ones() {
    let (target, _, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    assert!(works(&mut queue));
    set_configuration(&mut controller, ENABLED & !1);
    assert!(queue.is_closed());
    assert_eq!(controller.try_queue(1, 16).err(), parameter(NO_QUEUE), "before CSTS.RDY");
    set_configuration(&mut controller, ENABLED);
    // The old queue may still be ending on the target's side.
    eventually("the controller is ready", || status(&mut controller) == READY);
    let mut queue = controller.queue(1);
    assert!(works(&mut queue));

    controller.admin.lead(Shutdown::new(10_000)).unwrap();
    assert!(queue.is_closed());
    assert_eq!(controller.try_queue(1, 16).err(), parameter(NO_QUEUE), "after a shutdown");
    let identify = controller.admin.submit(admin::identify(1, 0));
    assert_eq!(identify.status(), Status::COMMAND_SEQUENCE_ERROR, "the admin queue is there for properties");
}

/// Puts a write into the volume, where it is held.
fn stuck_write(volume: &Volume, queue: &mut Queue) {
    volume.hold();
    let write = io::write(Blocks { nsid: 1, first: 3, count: 1 }, BLOCK, true, false);
    queue.send(write, &vec![9; BLOCK as usize], 0);
    eventually("the write is in the volume", || volume.in_flight() == 1);
}

#[test]
fn a_reset_is_done_when_nothing_of_before_is_under_way() {
    let (target, volume, state) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    stuck_write(&volume, &mut queue);
    set_configuration(&mut controller, ENABLED & !1);
    assert!(queue.is_closed());
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(status(&mut controller), READY, "it is not disabled yet: the write may still change something");
    // A host that does not wait for the disable is made to wait now.
    set_configuration(&mut controller, ENABLED);
    assert_eq!(status(&mut controller), 0);
    assert_eq!(controller.try_queue(1, 16).err(), parameter(NO_QUEUE), "before CSTS.RDY");
    assert_eq!(state.counters().in_flight, 1);
    volume.release();
    eventually("the controller is ready", || status(&mut controller) == READY);
    assert_eq!((state.counters().in_flight, volume.ram.allocated_bytes()), (0, u64::from(BLOCK)));
    assert!(works(&mut controller.queue(1)));
}

#[test]
fn a_shutdown_is_done_when_what_was_written_is_durable() {
    let (target, volume, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let write = io::write(Blocks { nsid: 1, first: 3, count: 1 }, BLOCK, false, false);
    assert!(queue.execute(write, &vec![9; BLOCK as usize], 0).status().is_success());
    volume.hold();
    set_configuration(&mut controller, ENABLED | 1 << 14);
    assert!(queue.is_closed());
    eventually("a flush is in the volume", || volume.in_flight() == 1);
    assert_eq!(status(&mut controller), READY | 0b01 << 2, "shutdown processing occurring");
    volume.release();
    eventually("the controller is shut down", || status(&mut controller) == READY | 0b10 << 2);
}

#[test]
fn a_host_that_comes_again_is_served_while_what_it_has_asked_for_before_is_under_way() {
    let (target, volume, state) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    stuck_write(&volume, &mut queue);
    drop((controller, queue));
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.send(io::flush(1), &[], 0);
    eventually("its next command is in the volume, too", || volume.in_flight() == 2);
    volume.release();
    eventually("both have ended", || state.counters().in_flight == 0);
    assert!(works(&mut queue));
}

#[test]
fn io_queues_are_connected_to_a_ready_controller_of_the_same_host_once_each() {
    let (target, _, _) = Target::disk(MIB);
    // The host is connected, and the controller is not enabled yet.
    let mut early = Queue::open(target.address, Digests::default());
    let mut setup = Setup::new(wish(1));
    let nvme::host::Next::Send(connect) = nvme::host::Dialogue::next(&mut setup) else { panic!() };
    let cntlid = connected(&early.submit(connect).completion).unwrap();
    let attempt = |number: u8, cntlid: u16, queue: u16, entries: u16| {
        let mut connection = Queue::open(target.address, Digests::default());
        let connect = connect_io(&host(number), &subsystem(), cntlid, queue, entries);
        connected(&connection.submit(connect).completion).err()
    };
    assert_eq!(attempt(1, cntlid, 1, 16), parameter(NO_QUEUE), "before CSTS.RDY");

    let controller = Controller::connect(target.address);
    let ours = controller.established.cntlid;
    assert_ne!(ours, cntlid, "every connection has a controller of its own");
    let mut queue = controller.queue(1);
    assert_eq!(attempt(1, ours, 1, 16), parameter(NO_QUEUE), "it is connected");
    assert_eq!(attempt(1, ours, 3, 16), parameter(NO_QUEUE), "two were granted");
    assert_eq!(attempt(1, ours, 2, 1), parameter("the size of the queue"));
    assert_eq!(attempt(1, ours, 2, 1025), parameter("the size of the queue"));
    let foreign = HostError::Failed { command: "Connect", status: Status::CONNECT_INVALID_HOST };
    assert_eq!(attempt(2, ours, 2, 16), Some(foreign), "another host's controller");
    assert_eq!(attempt(1, ours.wrapping_add(1000), 2, 16), parameter(NO_CONTROLLER));
    let again = connect_io(&host(1), &subsystem(), ours, 2, 16);
    assert_eq!(queue.submit(again).status(), Status::COMMAND_SEQUENCE_ERROR, "a queue is connected once");
    assert!(works(&mut queue));

    // A connection that was refused may retry, and a released queue number is free.
    let mut connection = Queue::open(target.address, Digests::default());
    let mut try_one = |queue| {
        let connect = connect_io(&host(1), &subsystem(), ours, queue, 16);
        connected(&connection.submit(connect).completion)
    };
    assert_eq!((try_one(1).err(), try_one(2)), (parameter(NO_QUEUE), Ok(ours)));
    drop(queue);
    eventually("the number is free again", || attempt(1, ours, 1, 16).is_none());
}

#[test]
fn a_discovery_controller_has_no_io_queues() {
    let (target, _, _) = Target::disk(MIB);
    let nqn: nvme::Nqn = DISCOVERY_NQN.parse().unwrap();
    let discovery = Wish { subsystem: nqn.clone(), queues: 0, ..wish(1) };
    let controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
    let mut connection = Queue::open(target.address, Digests::default());
    let connect = connect_io(&host(1), &nqn, controller.established.cntlid, 1, 16);
    assert_eq!(connected(&connection.submit(connect).completion).err(), parameter(NO_QUEUE));
}

#[test]
fn hosts_that_discover_take_no_places_of_those_that_use_namespaces() {
    const DISCOVERING_MAX: usize = 512;
    runtime::raise_descriptor_limit().unwrap();
    let target: Target = Target::start(1, 2 * DISCOVERING_MAX);
    target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let discover = || {
        let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(1) };
        Controller::with(target.address, discovery, Digests::default())
    };
    let mut discovering: Vec<Controller> = (0..DISCOVERING_MAX).map(|_| discover().unwrap()).collect();
    let refused = discover().err();
    let is_busy = matches!(refused, Some(HostError::Failed { status: Status::CONNECT_CONTROLLER_BUSY, .. }));
    assert!(is_busy, "{refused:?}");
    let user = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    assert!(works(&mut user.queue(1)));
    discovering.pop();
    eventually("there is a place again", || discover().is_ok());
}

#[test]
fn the_keep_alive_timer_ends_a_silent_host_only() {
    let (target, _, _) = Target::disk(MIB);
    let impatient = |number, keep_alive_ms| {
        let wish = Wish { keep_alive_ms, ..wish(number) };
        Controller::with(target.address, wish, Digests::default()).unwrap()
    };
    let mut patient = impatient(3, 0);
    // Twice the time of the silent host: this thread may be delayed on a busy machine.
    let mut living = impatient(1, 2000);
    let mut living_io = living.queue(1);
    let since = Instant::now();
    let mut silent = impatient(2, 1000);
    let mut silent_io = silent.queue(1);
    let ended = std::thread::spawn(move || {
        // Commands of I/O queues do not count: this controller has no traffic based keep alive.
        assert!(silent.admin.is_closed());
        let after = since.elapsed();
        assert!(silent_io.is_closed());
        after
    });
    while since.elapsed() < Duration::from_millis(2500) || !ended.is_finished() {
        assert!(since.elapsed() < PATIENCE, "the silent host is still there");
        assert_eq!(living.admin.submit(admin::keep_alive()).status(), Status::SUCCESS);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(works(&mut living_io));
    assert!(ended.join().unwrap() >= Duration::from_millis(1000), "not before its time");
    assert_eq!(patient.admin.submit(admin::keep_alive()).status(), Status::SUCCESS, "0 is never");
}

#[test]
fn an_export_stops_while_a_host_stays_connected() {
    let (target, _, state) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let (mut used, _unused) = (controller.queue(1), controller.queue(2));
    assert!(works(&mut used));
    state.stop();
    assert!(within(PATIENCE, state.stopped()).is_some());
    assert!(!works(&mut used), "and it is gone for whoever asks");
    assert_eq!(controller.admin.submit(admin::keep_alive()).status(), Status::SUCCESS);
}

#[test]
fn a_portal_that_is_closed_ends_all_queues_and_lets_nobody_in() {
    let target: Target = Target::start(2, 64);
    let state = target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let mut controller = Controller::connect(target.address);
    let (mut one, mut two) = (controller.queue(1), controller.queue(2));
    assert!(works(&mut one) && works(&mut two));
    target.portal.close();
    assert!(one.is_closed() && two.is_closed() && controller.admin.is_closed());
    eventually("nobody uses the volume", || state.connections().is_empty());
    let late = Controller::with(target.address, wish(1), Digests::default());
    let busy = HostError::Failed { command: "Connect", status: Status::CONNECT_CONTROLLER_BUSY };
    assert_eq!(late.err(), Some(busy));
}

#[test]
fn one_queue_can_be_cut() {
    let (target, _, state) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let (mut one, mut two) = (controller.queue(1), controller.queue(2));
    assert!(works(&mut one));
    let first = state.connections()[0].clone();
    assert!(first.peer.contains(host(1).nqn.as_str()) && first.peer.ends_with("queue 1"), "{}", first.peer);
    assert!(works(&mut two));
    assert!(state.cut(first.id));
    assert!(one.is_closed() && works(&mut two));
}

/// PSDT and FUSE: Base 2.0, figure 87.
#[test]
fn commands_with_prps_or_fused_where_none_are_have_an_invalid_field() {
    let (target, _, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let read = io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK);
    for (psdt, expected) in
        [(0b00, Status::INVALID_FIELD), (0b01, Status::SUCCESS), (0b10, Status::SUCCESS), (0b11, Status::INVALID_FIELD)]
    {
        let flags = psdt << 6;
        assert_eq!(queue.execute(nvme::Command { flags, ..read }, &[], BLOCK).status(), expected, "{psdt:02b}b");
        let identify = nvme::Command { flags, ..admin::identify(1, 0).command };
        assert_eq!(controller.admin.execute(identify, &[], 4096).status(), expected, "{psdt:02b}b");
    }
    for fuse in [0b01, 0b10, 0b11] {
        let identify = admin::identify(1, 0).command;
        let fused = nvme::Command { flags: identify.flags | fuse, ..identify };
        assert_eq!(controller.admin.execute(fused, &[], 4096).status(), Status::INVALID_FIELD);
    }
    // A Connect with a wrong flag is refused before the queue is connected.
    let mut new = Queue::open(target.address, Digests::default());
    let mut connect = connect_io(&host(1), &subsystem(), controller.established.cntlid, 2, 16);
    let right = connect.command.flags;
    connect.command.flags = 0;
    assert_eq!(new.execute(connect.command, &connect.data, 0).status(), Status::INVALID_FIELD);
    connect.command.flags = right;
    assert_eq!(new.execute(connect.command, &connect.data, 0).status(), Status::SUCCESS);
    assert!(works(&mut new) && works(&mut queue));
}

#[test]
fn an_admin_command_with_less_room_than_its_data_fails_instead_of_being_cut() {
    let (target, ..) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    // Identify, and the SMART / Health log.
    for (submission, room) in [(admin::identify(1, 0), 1024), (admin::get_log_page(2, 0, 512, true), 256)] {
        let whole = submission.reply_bytes;
        let command = Command { dptr: Sgl::transport(room), ..submission.command };
        assert_eq!(controller.admin.execute(command, &[], room).status(), Status::DATA_SGL_LENGTH_INVALID);
        let command = Command { dptr: Sgl::transport(whole), ..command };
        assert_eq!(controller.admin.execute(command, &[], whole).data().len(), whole as usize);
    }
}

#[test]
fn fabrics_commands_that_are_not_an_io_queues_are_invalid_there() {
    let (target, ..) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    for submission in [admin::property_get(0, true), admin::property_set(0x14, 0)] {
        assert_eq!(queue.submit(submission).status(), Status::INVALID_OPCODE);
    }
    assert!(works(&mut queue));
}

#[test]
fn a_host_that_keeps_to_its_keep_alive_time_exactly_is_not_ended() {
    let (target, ..) = Target::disk(MIB);
    let mut controller =
        Controller::with(target.address, Wish { keep_alive_ms: 1000, ..wish(1) }, Digests::default()).unwrap();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(controller.admin.submit(admin::keep_alive()).status(), Status::SUCCESS);
    }
}
