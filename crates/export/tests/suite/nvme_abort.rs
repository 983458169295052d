//! Abort: commands that have not begun end at once, others are not affected.

use std::sync::Arc;

use crate::common::eventually;
use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target};
use export::{ExportState, Limit};
use nvme::host::{Blocks, io};
use nvme::{Command, Fuse, Status, admin};

const LEN: usize = BLOCK as usize;
/// Results of Abort: bit 0 says that the command was not aborted.
const ABORTED: u64 = 0;
const NOT_ABORTED: u64 = 1;

fn write(block: u64, in_capsule: bool) -> Command {
    io::write(Blocks { nsid: 1, first: block, count: 1 }, BLOCK, in_capsule, false)
}

fn abort(queue: u16, cid: u16) -> Command {
    let mut command = Command::new(admin::ABORT, 0, 0);
    command.set_cdw(10, u32::from(queue) | u32::from(cid) << 16);
    command
}

/// Aborts a command of I/O queue 1, and returns the result.
fn abort_one(controller: &mut Controller, cid: u16) -> u64 {
    let answer = controller.admin.execute(abort(1, cid), &[], 0);
    assert_eq!(answer.status(), Status::SUCCESS);
    answer.completion.result.get()
}

/// A command that went on is answered in time.
fn read(queue: &mut Queue, block: u64) -> Vec<u8> {
    queue.execute(io::read(Blocks { nsid: 1, first: block, count: 1 }, BLOCK), &[], BLOCK).data()
}

/// The first request of a host goes, and those after it wait for longer than any test.
fn limit(state: &Arc<ExportState>, controller: &Controller) -> String {
    let name = controller.who.nqn.to_string();
    state.limit_host(&name, Some(Limit { iops: None, bytes_per_s: Some(1), burst_ms: 10 }));
    name
}

#[test]
fn a_command_that_waits_for_a_limit_is_aborted_and_changes_nothing() {
    let (target, _, state) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let name = limit(&state, &controller);
    let first = queue.send(write(0, true), &[1; LEN], 0);
    let [inside, outside] =
        [(1, true), (2, false)].map(|(block, inside)| queue.send(write(block, inside), &[9; LEN], 0));
    let waits = || state.limited_hosts()[&name].1.waiting;
    assert_eq!(queue.wait(first).status(), Status::SUCCESS);
    eventually("both wait", || waits() == 2);
    for (left, cid) in [(1, outside), (0, inside)] {
        assert_eq!(abort_one(&mut controller, cid), ABORTED);
        assert_eq!(queue.wait(cid).status(), Status::ABORT_REQUESTED);
        assert_eq!(waits(), left);
        assert_eq!(abort_one(&mut controller, cid), NOT_ABORTED, "it is over");
    }
    state.limit_host(&name, None);
    assert_eq!([0, 1, 2].map(|block| read(&mut queue, block)[0]), [1, 0, 0]);
    assert_eq!(queue.requests, 0, "data of what was aborted are not asked for");
    drop(queue);
    target.portal.remove(&crate::common::nvme::subsystem(), 1);
    state.stop();
    assert!(
        crate::common::nvme::within(crate::common::PATIENCE, state.stopped()).is_some(),
        "nothing is left in flight"
    );
}

/// A host may send requested data. The command identifier is in use until then.
#[test]
fn a_command_whose_data_were_asked_for_is_aborted_when_they_are_there() {
    let (target, _, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    let [one, other] = [3, 4].map(|block| queue.send(write(block, false), &[7; LEN], 0));
    let requests = [queue.wait_for_request(), queue.wait_for_request()];
    let aborting = controller.admin.send(abort(1, one), &[], 0);
    // The queue answers this before the first Abort, which waits: a second Abort of the same
    // command is not needed.
    assert_eq!(abort_one(&mut controller, one), NOT_ABORTED);
    queue.requested.extend(requests);
    queue.supply();
    assert_eq!([one, other].map(|cid| queue.wait(cid).status()), [Status::ABORT_REQUESTED, Status::SUCCESS]);
    assert_eq!(controller.admin.wait(aborting).completion.result.get(), ABORTED);
    assert_eq!([3, 4].map(|block| read(&mut queue, block)[0]), [0, 7]);
}

#[test]
fn a_command_whose_data_were_not_asked_for_yet_is_aborted_at_once() {
    let (target, _, _) = Target::disk(64 * MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    // More than a connection requests at a time.
    let many = |first| io::write(Blocks { nsid: 1, first, count: 256 }, 256 * BLOCK, false, false);
    let sent: Vec<u16> = (0..20).map(|index| queue.send(many(index * 256), &[5; 256 * LEN], 0)).collect();
    let last = *sent.last().unwrap();
    // The flush is behind them, so they have all been taken.
    assert_eq!(queue.execute(io::flush(1), &[], 0).status(), Status::SUCCESS);
    assert_eq!(queue.requests, 16);
    assert_eq!(abort_one(&mut controller, last), ABORTED);
    assert_eq!(queue.wait(last).status(), Status::ABORT_REQUESTED);
    queue.withholds = false;
    queue.supply();
    for cid in &sent[..19] {
        assert_eq!(queue.wait(*cid).status(), Status::SUCCESS);
    }
    assert_eq!([18, 19].map(|index| read(&mut queue, index * 256)[0]), [5, 0]);
}

#[test]
fn a_command_that_runs_goes_on() {
    let (target, volume, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    volume.hold();
    let cid = queue.send(write(0, true), &[3; LEN], 0);
    eventually("it has begun", || volume.in_flight() == 1);
    assert_eq!(abort_one(&mut controller, cid), NOT_ABORTED);
    volume.release();
    assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
    assert_eq!(read(&mut queue, 0)[0], 3);
}

#[test]
fn aborts_of_what_is_not_there_change_nothing() {
    let (target, _, state) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let (mut queue, mut other) = (controller.queue(1), controller.queue(2));
    let name = limit(&state, &controller);
    let first = queue.send(write(0, true), &[1; LEN], 0);
    let waiting = queue.send(write(1, true), &[2; LEN], 0);
    assert_eq!(queue.wait(first).status(), Status::SUCCESS);
    eventually("it waits", || state.limited_hosts()[&name].1.waiting == 1);
    // The Abort's own identifier and its neighbors, an absent queue, an invalid queue number, and a
    // command of another queue.
    let own = controller.admin.send(abort(0, 0), &[], 0);
    assert_eq!(controller.admin.wait(own).completion.result.get(), NOT_ABORTED);
    for (number, cid) in
        [(0, own), (0, own + 1), (1, 0xFFFF), (9, waiting), (0xFFFF, waiting), (2, waiting), (0, waiting)]
    {
        let answer = controller.admin.execute(abort(number, cid), &[], 0);
        let said = (answer.status(), answer.completion.result.get());
        assert_eq!(said, (Status::SUCCESS, NOT_ABORTED), "{cid} of queue {number}");
    }
    // The first of two fused commands, which waits for the second.
    other.withholds = true;
    let compare = Command { flags: 0x41, ..io::compare(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK, true) };
    assert_eq!(compare.fuse(), Fuse::First);
    let fused = other.send(compare, &[1; LEN], 0);
    let answer = controller.admin.execute(abort(2, fused), &[], 0);
    assert_eq!(answer.completion.result.get(), NOT_ABORTED);
    state.limit_host(&name, None);
    assert_eq!(queue.wait(waiting).status(), Status::SUCCESS);
    assert_eq!(read(&mut queue, 1)[0], 2);
}

#[test]
fn a_host_that_hangs_up_with_an_abort_under_way_loses_its_queues() {
    let (target, _, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    let sent = queue.send(write(0, false), &[7; LEN], 0);
    assert_eq!(queue.wait_for_request().cid, sent);
    // The result would be known when the data arrives, which it never does.
    controller.admin.send(abort(1, sent), &[], 0);
    drop(controller);
    assert!(queue.is_closed());
}

#[test]
fn no_more_aborts_run_than_may_and_they_end_with_the_queue() {
    let (target, _, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    let sent: Vec<u16> = (0..6).map(|block| queue.send(write(block, false), &[7; LEN], 0)).collect();
    let asked: Vec<u16> = sent.iter().map(|_| queue.wait_for_request().cid).collect();
    assert_eq!(asked, sent);
    let aborts: Vec<u16> = sent[..4].iter().map(|cid| controller.admin.send(abort(1, *cid), &[], 0)).collect();
    for cid in &sent[4..] {
        let answer = controller.admin.execute(abort(1, *cid), &[], 0);
        assert_eq!(answer.status(), Status::ABORT_LIMIT_EXCEEDED);
    }
    // The data never arrives.
    drop(queue);
    for abort in aborts {
        assert_eq!(controller.admin.wait(abort).completion.result.get(), NOT_ABORTED);
    }
    assert_eq!(abort_one(&mut controller, sent[4]), NOT_ABORTED, "there is room again");
}
