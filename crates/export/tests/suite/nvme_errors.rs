//! Reports of failed commands for a host: the error log of its controller, and the SMART log.

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target, wish};
use drive::BlockError;
use export::Limit;
use nvme::host::{Blocks, admin, io};
use nvme::target::ERRORS_MAX;
use nvme::tcp::Digests;
use nvme::{Command, Fuse, Status};

const LOST: BlockError = BlockError::Lost { lost: 2, survives: 1 };

fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { nsid: 1, first, count }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// An entry of the error log: Base 2.0, figure 206.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    count: u64,
    queue: u16,
    cid: u16,
    status: Status,
    lba: u64,
    nsid: u32,
}

fn errors(controller: &mut Controller) -> Vec<Entry> {
    let log = controller.admin.submit(admin::get_log_page(1, 0, ERRORS_MAX as u32 * 64, false)).data();
    let entry = |bytes: &[u8]| Entry {
        count: number(&bytes[..8]),
        queue: number(&bytes[8..10]) as u16,
        cid: number(&bytes[10..12]) as u16,
        status: Status((number(&bytes[12..14]) >> 1) as u16),
        lba: number(&bytes[16..24]),
        nsid: number(&bytes[24..28]) as u32,
    };
    log.chunks_exact(64).map(entry).take_while(|entry| entry.count > 0).collect()
}

/// Critical warning, media errors, and entries of the error log so far.
fn health(controller: &mut Controller) -> (u8, u64, u64) {
    let log = controller.admin.submit(admin::get_log_page(2, 0, 512, false)).data();
    (log[0], number(&log[160..168]), number(&log[176..184]))
}

/// Sends a command with its data, if any. Returns its identifier and its status.
fn ends(queue: &mut Queue, command: Command, data: &[u8], reply_bytes: u32) -> (u16, Status) {
    let cid = queue.send(command, data, reply_bytes);
    (cid, queue.wait(cid).status())
}

#[test]
fn commands_that_fail_on_io_queues_are_in_the_error_log_of_their_controller() {
    let (target, volume, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut other = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut queues = [controller.queue(1), controller.queue(2)];
    let data = vec![1; BLOCK as usize];
    let before = errors(&mut controller).len();
    assert_eq!(before, 0);

    volume.fail(Some(LOST));
    let (read, status) = ends(&mut queues[1], io::read(blocks(7, 2), 2 * BLOCK), &[], 2 * BLOCK);
    assert_eq!(status, Status::UNRECOVERED_READ_ERROR);
    // Data in the capsule, and data by R2T.
    let [near, far] = [true, false].map(|inside| {
        let (cid, status) = ends(&mut queues[0], io::write(blocks(9, 1), BLOCK, inside, false), &data, 0);
        assert_eq!(status, Status::WRITE_FAULT);
        cid
    });
    let (flush, _) = ends(&mut queues[0], io::flush(1), &[], 0);
    volume.fail(None);
    // A read out of range, one of an absent namespace, and a command of the admin queue.
    let (behind, _) = ends(&mut queues[0], io::read(blocks(255, 2), 2 * BLOCK), &[], 2 * BLOCK);
    let absent = io::read(Blocks { nsid: 3, first: 5, count: 1 }, BLOCK);
    let (absent, _) = ends(&mut queues[0], absent, &[], BLOCK);
    let (missing, _) = ends(&mut controller.admin, admin::get_log_page(0x42, 0, 512, false).command, &[], 512);
    assert_eq!(ends(&mut queues[0], io::read(blocks(7, 1), BLOCK), &[], BLOCK).1, Status::SUCCESS);

    let entry = |count, queue, cid, status, lba, nsid| Entry { count, queue, cid, status, lba, nsid };
    let expected = [
        entry(7, 0, missing, Status::INVALID_LOG_PAGE, 0, 0xFFFF_FFFF),
        entry(6, 1, absent, Status::INVALID_NAMESPACE, 5, 3),
        entry(5, 1, behind, Status::LBA_OUT_OF_RANGE, 255, 1),
        entry(4, 1, flush, Status::WRITE_FAULT, 0, 1),
        entry(3, 1, far, Status::WRITE_FAULT, 9, 1),
        entry(2, 1, near, Status::WRITE_FAULT, 9, 1),
        entry(1, 2, read, Status::UNRECOVERED_READ_ERROR, 7, 1),
    ];
    assert_eq!(errors(&mut controller), expected);
    assert_eq!(health(&mut controller).2, 7);
    assert_eq!((errors(&mut other), health(&mut other).2), (Vec::new(), 0), "another host's is another log");
}

#[test]
fn an_error_log_that_nobody_reads_keeps_the_newest_and_counts_all() {
    let (target, volume, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    volume.fail(Some(LOST));
    for first in 0..100 {
        ends(&mut queue, io::read(blocks(first, 1), BLOCK), &[], BLOCK);
    }
    let kept: Vec<(u64, u64)> = errors(&mut controller).iter().map(|entry| (entry.count, entry.lba)).collect();
    let newest: Vec<(u64, u64)> = (100 - ERRORS_MAX as u64..100).rev().map(|lba| (lba + 1, lba)).collect();
    assert_eq!(kept, newest);
    assert_eq!(health(&mut controller).2, 100);
}

#[test]
fn fused_limited_and_aborted_commands_are_in_the_error_log_as_well() {
    let (target, _, state) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = vec![1; BLOCK as usize];
    let [mut compare, mut write] =
        [io::compare(blocks(4, 1), BLOCK, true), io::write(blocks(4, 1), BLOCK, true, false)];
    (compare.flags, write.flags) = (compare.flags | 0b01, write.flags | 0b10);
    assert_eq!((compare.fuse(), write.fuse()), (Fuse::First, Fuse::Second));
    let pair = [queue.send(compare, &data, 0), queue.send(write, &data, 0)];
    let statuses = pair.map(|cid| queue.wait(cid).status());
    assert_eq!(statuses, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);

    // The first write goes, and the ones after it wait until they are aborted: with data in the
    // capsule, and outside of it.
    state.limit_host(host_name(&controller), Some(Limit { iops: None, bytes_per_s: Some(1), burst_ms: 10 }));
    ends(&mut queue, io::write(blocks(0, 1), BLOCK, true, false), &data, 0);
    let waiting = [(1, true), (2, false)]
        .map(|(at, inside)| queue.send(io::write(blocks(at, 1), BLOCK, inside, false), &data, 0));
    crate::common::eventually("both wait", || state.limited_hosts()[host_name(&controller)].1.waiting == 2);
    for cid in waiting {
        controller.admin.submit(admin::abort(1, cid));
        assert_eq!(queue.wait(cid).status(), Status::ABORT_REQUESTED);
    }
    let found = errors(&mut controller);
    let found: Vec<(u16, Status, u64)> = found.iter().rev().map(|entry| (entry.cid, entry.status, entry.lba)).collect();
    let expected = [
        (pair[0], Status::COMPARE_FAILURE, 4),
        (pair[1], Status::ABORTED_FAILED_FUSED, 4),
        (waiting[0], Status::ABORT_REQUESTED, 1),
        (waiting[1], Status::ABORT_REQUESTED, 2),
    ];
    assert_eq!(found, expected);
}

fn host_name(controller: &Controller) -> &str {
    controller.who.nqn.as_str()
}

#[test]
fn reads_that_nothing_can_give_are_media_errors() {
    let (target, volume, _) = Target::disk(MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = vec![1; BLOCK as usize];
    volume.fail(Some(LOST));
    for command in [io::read(blocks(0, 1), BLOCK), io::verify(blocks(0, 4))] {
        let reply_bytes = if command.opcode == nvme::nvm::READ { BLOCK } else { 0 };
        assert_eq!(ends(&mut queue, command, &[], reply_bytes).1, Status::UNRECOVERED_READ_ERROR);
    }
    let compare = io::compare(blocks(0, 1), BLOCK, true);
    assert_eq!(ends(&mut queue, compare, &data, 0).1, Status::UNRECOVERED_READ_ERROR);
    // A failed write is no media error, nor is a miscompare or a block out of range.
    ends(&mut queue, io::write(blocks(0, 1), BLOCK, true, false), &data, 0);
    volume.fail(None);
    ends(&mut queue, compare, &data, 0);
    ends(&mut queue, io::read(blocks(256, 1), BLOCK), &[], BLOCK);
    assert_eq!(health(&mut controller), (0, 3, 6));
    // The counts belong to the subsystem, and outlive the host that met the errors.
    drop((queue, controller));
    assert_eq!(health(&mut Controller::with(target.address, wish(2), Digests::default()).unwrap()), (0, 3, 0));
}
