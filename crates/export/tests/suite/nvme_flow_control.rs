//! SQ flow control: the SQHD values that a host with flow control gets.

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target, subsystem};
use nvme::host::{Blocks, connect_io, connected, io};
use nvme::tcp::Digests;
use nvme::{Command, Completion};

/// CATTR bit 2 of Connect, in dword 11: no flow control.
const DISABLED: u32 = 1 << 18;

/// An I/O queue that uses flow control, and SQHD of the answer to Connect.
fn queue(target: &Target, controller: &Controller, number: u16, entries: u16) -> (Queue, u16) {
    let mut queue = Queue::open(target.address, Digests::default());
    let mut connect = connect_io(&controller.who, &subsystem(), controller.established.cntlid, number, entries);
    connect.command.set_cdw(11, connect.command.cdw(11) & !DISABLED);
    let completion = queue.submit(connect).completion;
    connected(&completion).unwrap();
    (queue, completion.sq_head.get())
}

fn read() -> Command {
    io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK)
}

/// SQHD of the answer, if it was reported.
fn head(queue: &mut Queue, command: Command, reply_bytes: u32) -> Option<u16> {
    let answer = queue.execute(command, &[], reply_bytes);
    assert!(answer.status().is_success());
    // If a data PDU replaces the response capsule, the host's machine makes this value up.
    Some(answer.completion.sq_head.get()).filter(|head| *head != Completion::NO_FLOW_CONTROL)
}

/// Base 2.0, clause 3.3.1.2.1: SQHD counts entries, and wraps after the last one.
#[test]
fn sqhd_says_how_many_commands_were_taken_modulo_the_entries() {
    let (target, _, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    for (number, entries) in [(1, 16), (2, 5)] {
        let (mut queue, first) = queue(&target, &controller, number, entries);
        assert_eq!(first, 1, "Connect is the first command");
        for taken in 2..50 {
            assert_eq!(head(&mut queue, io::flush(1), 0), Some(taken % entries), "{taken} of {entries}");
        }
    }
}

/// TCP Transport 1.0, clause 3.3.2.1: data with the SUCCESS flag has no SQHD, and a host without
/// free entries sends nothing.
#[test]
fn a_host_that_only_reads_hears_of_sqhd_before_a_quarter_of_its_queue_is_used() {
    let (target, _, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    for (number, entries, quarter) in [(1, 16, 4), (2, 2, 1)] {
        let (mut queue, _) = queue(&target, &controller, number, entries);
        for taken in 2..50 {
            let told = (taken - 1) % quarter == 0;
            assert_eq!(head(&mut queue, read(), BLOCK), told.then_some(taken % entries), "{taken} of {entries}");
        }
    }
}

#[test]
fn a_host_that_does_not_use_flow_control_is_told_so_in_every_answer() {
    let (target, _, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    for _ in 0..20 {
        assert_eq!((head(&mut queue, io::flush(1), 0), head(&mut queue, read(), BLOCK)), (None, None));
    }
}
