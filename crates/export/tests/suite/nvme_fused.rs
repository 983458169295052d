//! Fused commands of NVMe hosts: Compare and Write is atomic with regard to all other commands of
//! the namespace.

use std::sync::Arc;

use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Saved, Target, copy, wish};
use crate::common::{Volume, eventually};
use export::Hosts;
use nvme::host::{Blocks, io};
use nvme::tcp::Digests;
use nvme::{Command, Sgl, Status, nvm};

const LEN: usize = BLOCK as usize;
const FIRST: u8 = 0b01;
const SECOND: u8 = 0b10;
const MISSING: Status = Status::ABORTED_MISSING_FUSED;
const FAILED: Status = Status::ABORTED_FAILED_FUSED;

fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { nsid: 1, first, count }
}

fn fused(part: u8, command: Command) -> Command {
    Command { flags: command.flags | part, ..command }
}

/// Sends both commands, one after the other.
fn send(queue: &mut Queue, block: u64, expected: &[u8], data: &[u8], in_capsule: bool) -> [u16; 2] {
    let compare = fused(FIRST, io::compare(blocks(block, 1), BLOCK, in_capsule));
    let write = fused(SECOND, io::write(blocks(block, 1), BLOCK, in_capsule, false));
    [queue.send(compare, expected, 0), queue.send(write, data, 0)]
}

fn compare_and_write(queue: &mut Queue, block: u64, expected: &[u8], data: &[u8]) -> [Status; 2] {
    send(queue, block, expected, data, true).map(|cid| queue.wait(cid).status())
}

fn read(queue: &mut Queue, block: u64) -> Vec<u8> {
    queue.execute(io::read(blocks(block, 1), BLOCK), &[], BLOCK).data()
}

fn write(queue: &mut Queue, block: u64, data: &[u8]) -> Status {
    queue.execute(io::write(blocks(block, 1), BLOCK, true, false), data, 0).status()
}

#[test]
fn a_block_is_written_if_it_is_what_it_should_be_and_otherwise_left_alone() {
    for digests in [Digests::default(), BOTH] {
        let (target, volume, state) = Target::disk(MIB);
        let controller = Controller::with(target.address, wish(1), digests).unwrap();
        let mut queue = controller.queue(1);
        let [zeroes, one, two] = [0, 1, 2].map(|byte| vec![byte; LEN]);
        for (in_capsule, block) in [(true, 3), (false, 4)] {
            let sent = send(&mut queue, block, &zeroes, &one, in_capsule);
            assert_eq!(sent.map(|cid| queue.wait(cid).status()), [Status::SUCCESS; 2]);
            assert_eq!(read(&mut queue, block), one);
            let sent = send(&mut queue, block, &zeroes, &two, in_capsule);
            let statuses = sent.map(|cid| queue.wait(cid).status());
            assert_eq!((statuses, read(&mut queue, block)), ([Status::COMPARE_FAILURE, FAILED], one.clone()));
        }
        assert_eq!(volume.ram.durable_writes(), 0, "without FUA");
        // The compare has its data in the capsule and the write by R2T, and the other way round.
        for (block, in_capsule) in [(5, [true, false]), (6, [false, true])] {
            let compare = fused(FIRST, io::compare(blocks(block, 1), BLOCK, in_capsule[0]));
            let first = queue.send(compare, &zeroes, 0);
            let second = queue.send(fused(SECOND, io::write(blocks(block, 1), BLOCK, in_capsule[1], true)), &two, 0);
            assert_eq!([first, second].map(|cid| queue.wait(cid).status()), [Status::SUCCESS; 2]);
            assert_eq!(read(&mut queue, block), two);
        }
        assert_eq!(volume.ram.durable_writes(), 2, "FUA");
        assert_eq!((state.counters().written_bytes, state.counters().errors), (4 * u64::from(BLOCK), 4));
    }
}

#[test]
fn the_answer_of_the_first_command_comes_first() {
    let (target, _, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    for _ in 0..50 {
        let sent = send(&mut queue, 0, &[0; LEN], &[0; LEN], true);
        assert_eq!([(); 2].map(|()| queue.next().unwrap().completion.cid.get()), sent);
    }
}

#[test]
fn commands_that_are_no_pair_fail_and_those_beside_them_do_not() {
    let (target, volume, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = vec![7; LEN];
    let compare = |block| fused(FIRST, io::compare(blocks(block, 1), BLOCK, true));
    let second = |block| fused(SECOND, io::write(blocks(block, 1), BLOCK, true, false));
    // A second command alone.
    assert_eq!(queue.execute(second(0), &data, 0).status(), MISSING);
    // A first command before another command, and before another first one. The data may be
    // requested only then.
    for in_capsule in [true, false] {
        let first = queue.send(fused(FIRST, io::compare(blocks(0, 1), BLOCK, in_capsule)), &data, 0);
        let flush = queue.send(io::flush(1), &[], 0);
        assert_eq!([first, flush].map(|cid| queue.wait(cid).status()), [MISSING, Status::SUCCESS]);
    }
    let again =
        [queue.send(compare(0), &[0; LEN], 0), queue.send(compare(0), &[0; LEN], 0), queue.send(second(0), &data, 0)];
    assert_eq!(again.map(|cid| queue.wait(cid).status()), [MISSING, Status::SUCCESS, Status::SUCCESS]);
    assert_eq!(queue.execute(second(0), &data, 0).status(), MISSING, "that pair is over");

    // Two commands that do not fit each other.
    let two = |part, command: Command| (fused(part, command), vec![9; 2 * LEN]);
    let one = |command| (command, vec![9; LEN]);
    let invalid = [Status::INVALID_FIELD; 2];
    for ((first, expected), (second, data), statuses) in [
        (one(compare(1)), one(second(2)), invalid),
        (one(compare(1)), two(SECOND, io::write(blocks(1, 2), 2 * BLOCK, true, false)), invalid),
        (
            two(FIRST, io::compare(blocks(1, 2), 2 * BLOCK, true)),
            two(SECOND, io::write(blocks(1, 2), 2 * BLOCK, true, false)),
            invalid,
        ),
        (one(compare(256)), one(second(1)), [Status::LBA_OUT_OF_RANGE, FAILED]),
        (one(compare(1)), one(second(256)), [FAILED, Status::LBA_OUT_OF_RANGE]),
        (one(compare(256)), one(second(256)), [Status::LBA_OUT_OF_RANGE; 2]),
        (
            one(fused(FIRST, io::write(blocks(1, 1), BLOCK, true, false))),
            one(second(1)),
            [Status::INVALID_FIELD, FAILED],
        ),
        (one(compare(1)), one(fused(SECOND, io::compare(blocks(1, 1), BLOCK, true))), [FAILED, Status::INVALID_FIELD]),
    ] {
        let sent = [queue.send(first, &expected, 0), queue.send(second, &data, 0)];
        assert_eq!(sent.map(|cid| queue.wait(cid).status()), statuses);
    }
    // An invalid first command is answered before the second one comes.
    assert_eq!(queue.execute(compare(256), &data, 0).status(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(queue.execute(second(1), &data, 0).status(), FAILED);
    let reserved = fused(0b11, io::write(blocks(1, 1), BLOCK, true, false));
    assert_eq!(queue.execute(reserved, &data, 0).status(), Status::INVALID_FIELD);
    assert_eq!((volume.ram.allocated_bytes(), read(&mut queue, 0)), (u64::from(BLOCK), data), "block 0 only");
}

/// Two addresses, each served by two shards.
fn targets() -> ([Target; 2], Volume) {
    let (volume, shared) = (Volume::new(MIB), Saved::default().namespace());
    let targets = [Target::start(2, 64), Target::start(2, 64)];
    for target in &targets {
        target.offer_shared(1, volume.clone(), Hosts::Any, false, &shared);
    }
    (targets, volume)
}

#[test]
fn counting_hosts_on_all_shards_and_addresses_lose_no_count() {
    const ROUNDS: u64 = 100;
    let (targets, _) = targets();
    let controllers: Vec<Controller> = (1..=4)
        .map(|number| {
            Controller::with(targets[usize::from(number % 2)].address, wish(number), Digests::default()).unwrap()
        })
        .collect();
    let block = |count: u64| [count.to_le_bytes(), (!count).to_le_bytes()].concat().repeat(LEN / 16);
    let mut check = controllers[0].queue(2);
    assert_eq!(write(&mut check, 0, &block(0)), Status::SUCCESS);
    std::thread::scope(|scope| {
        for mut queue in controllers.iter().map(|controller| controller.queue(1)) {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    loop {
                        let known = read(&mut queue, 0);
                        let count = u64::from_le_bytes(known[..8].try_into().unwrap());
                        assert!(known == block(count), "one block is never a mixture");
                        // Another write of the same queue is in flight, which has nothing to do
                        // with the fused operation.
                        let beside = queue.send(io::write(blocks(9, 1), BLOCK, true, false), &known, 0);
                        let done = compare_and_write(&mut queue, 0, &known, &block(count + 1));
                        assert_eq!(queue.wait(beside).status(), Status::SUCCESS);
                        match done {
                            [Status::SUCCESS, Status::SUCCESS] => break,
                            [Status::COMPARE_FAILURE, FAILED] => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            });
        }
    });
    assert!(read(&mut check, 0) == block(4 * ROUNDS), "each host has counted to {ROUNDS}");
}

#[test]
fn what_others_change_meanwhile_waits_and_what_they_change_elsewhere_does_not() {
    let (targets, volume) = targets();
    let one = Controller::with(targets[0].address, wish(1), Digests::default()).unwrap();
    let two = Controller::with(targets[1].address, wish(2), Digests::default()).unwrap();
    let (mut fusing, mut others) = (one.queue(1), [one.queue(2), two.queue(1), two.queue(2)]);
    others.iter_mut().for_each(|queue| drop(read(queue, 0)));
    volume.hold();
    let pair = send(&mut fusing, 3, &[0; LEN], &[1; LEN], true);
    eventually("the block is being read", || volume.in_flight() == 1);
    let [near, far, third] = &mut others;
    let changes = [
        near.send(io::write(blocks(2, 3), 3 * BLOCK, true, false), &[2; 3 * LEN], 0),
        far.send(io::write_zeroes(blocks(3, 1), false, false), &[], 0),
    ];
    let (deallocate, ranges) = io::deallocate(1, &[(0, 1), (3, 1)], true);
    let (copy, sources) = copy(1, 2, &[(10, 1), (11, 1)], true, false);
    let behind = [third.send(deallocate, &ranges, 0), third.send(copy, &sources, 0)];
    let elsewhere = far.send(io::write(blocks(4, 1), BLOCK, true, false), &[4; LEN], 0);
    eventually("what is elsewhere is in the volume", || volume.in_flight() == 2);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(volume.in_flight(), 2, "the four others wait outside, a copy with what it reads");
    volume.release();
    assert_eq!(pair.map(|cid| fusing.wait(cid).status()), [Status::SUCCESS; 2]);
    assert_eq!(
        [near.wait(changes[0]), far.wait(changes[1]), far.wait(elsewhere)].map(|answer| answer.status()),
        [Status::SUCCESS; 3]
    );
    assert_eq!(behind.map(|cid| third.wait(cid).status()), [Status::SUCCESS; 2]);
    assert!(read(far, 3) != [1; LEN], "they came after it");
}

#[test]
fn what_was_let_in_before_has_ended_when_a_block_is_compared() {
    let (targets, volume) = targets();
    let one = Controller::with(targets[0].address, wish(1), Digests::default()).unwrap();
    let two = Controller::with(targets[1].address, wish(2), Digests::default()).unwrap();
    let (mut fusing, mut other) = (one.queue(1), two.queue(1));
    volume.hold();
    let writing = other.send(io::write(blocks(3, 1), BLOCK, true, false), &[5; LEN], 0);
    eventually("the write is in the volume", || volume.in_flight() == 1);
    let pair = send(&mut fusing, 3, &[5; LEN], &[6; LEN], true);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(volume.in_flight(), 1, "it waits for the write");
    volume.release();
    assert_eq!(other.wait(writing).status(), Status::SUCCESS);
    assert_eq!(pair.map(|cid| fusing.wait(cid).status()), [Status::SUCCESS; 2]);
    assert_eq!(read(&mut other, 3), [6; LEN]);
}

#[test]
fn a_reservation_of_another_host_excludes_both() {
    let (targets, _) = targets();
    let one = Controller::with(targets[0].address, wish(1), Digests::default()).unwrap();
    let two = Controller::with(targets[1].address, wish(2), Digests::default()).unwrap();
    let (mut holder, mut other) = (one.queue(1), two.queue(1));
    let reserve = |queue: &mut Queue, opcode, dword10, keys: [u64; 2]| {
        let mut command = Command::new(opcode, 0, 1);
        command.set_cdw(10, dword10);
        command.dptr = Sgl::in_capsule(16);
        queue.execute(command, &keys.map(u64::to_le_bytes).concat(), 0).status()
    };
    assert_eq!(reserve(&mut holder, nvm::RESERVATION_REGISTER, 0, [0, 1]), Status::SUCCESS);
    for (kind, expected) in [(1, [FAILED, Status::RESERVATION_CONFLICT]), (2, [Status::RESERVATION_CONFLICT, FAILED])] {
        assert_eq!(
            reserve(&mut holder, nvm::RESERVATION_ACQUIRE, kind << 8 | u32::from(kind == 2), [1, 1]),
            Status::SUCCESS
        );
        assert_eq!(compare_and_write(&mut other, 0, &[0; LEN], &[1; LEN]), expected);
        assert_eq!(compare_and_write(&mut holder, 1, &[kind as u8 - 1; LEN], &[kind as u8; LEN]), [Status::SUCCESS; 2]);
    }
}

#[test]
fn a_host_that_goes_between_the_two_holds_nothing() {
    let (target, _, state) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    for withholds in [false, true] {
        let mut queue = controller.queue(1);
        queue.withholds = withholds;
        queue.send(fused(FIRST, io::compare(blocks(0, 1), BLOCK, true)), &[0; LEN], 0);
        if withholds {
            // The second command has arrived, but its data has not.
            queue.send(fused(SECOND, io::write(blocks(0, 1), BLOCK, false, false)), &[1; LEN], 0);
            queue.wait_for_request();
        }
        eventually("the namespace is used", || state.connections().len() == 1);
        drop(queue);
        eventually("nothing is left of the queue", || state.connections().is_empty());
    }
    let mut queue = controller.queue(1);
    assert_eq!(compare_and_write(&mut queue, 0, &[0; LEN], &[2; LEN]), [Status::SUCCESS; 2]);
    // A live queue does not keep a removed namespace either.
    queue.send(fused(FIRST, io::compare(blocks(0, 1), BLOCK, true)), &[2; LEN], 0);
    let mut other = controller.queue(2);
    assert_eq!(read(&mut other, 0), [2; LEN]);
    Arc::clone(&state).stop();
    eventually("the namespace is gone", || state.connections().is_empty());
    let late = queue.send(fused(SECOND, io::write(blocks(0, 1), BLOCK, true, false)), &[3; LEN], 0);
    assert_eq!(queue.wait(late).status(), Status::INVALID_NAMESPACE);
}
