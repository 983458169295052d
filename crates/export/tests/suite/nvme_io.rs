//! A host reads back what it wrote, with every kind of NVMe/TCP transfer.

use std::time::Duration;

use crate::common::eventually;
use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, pattern, subsystem, wish};
use drive::BlockError;
use export::{Hosts, Kind};
use nvme::host::{Blocks, DiscoveredSubsystem, DiscoveryLog, Shutdown, Wish, admin, io};
use nvme::tcp::Digests;
use nvme::{Command, DISCOVERY_NQN, Sgl, Status, nvm};

fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { nsid: 1, first, count }
}

fn write(queue: &mut Queue, first: u64, data: &[u8], in_capsule: bool) {
    let command = io::write(blocks(first, data.len() as u32 / BLOCK), data.len() as u32, in_capsule, false);
    assert_eq!(queue.execute(command, data, 0).status(), Status::SUCCESS);
}

fn read(queue: &mut Queue, first: u64, count: u32) -> Vec<u8> {
    queue.execute(io::read(blocks(first, count), count * BLOCK), &[], count * BLOCK).data()
}

#[test]
fn a_host_learns_what_it_has_connected_to() {
    let (target, _, _) = Target::disk(16 * MIB);
    let mut controller = Controller::connect(target.address);
    let established = &controller.established;
    assert_eq!((established.version, established.queue_entries_max, established.queues), (0x0002_0000, 1024, 2));
    let info = &established.info;
    assert_eq!((&info.subsystem, info.is_discovery, info.serial.as_str()), (&subsystem(), false, "TEST"));
    assert_eq!((info.transfer_bytes_max, info.capsule_data_bytes), (Some(MIB), 128 << 10));
    assert!(info.has_compare() && info.has_dataset_management() && info.has_write_zeroes() && info.has_verify());
    assert!(info.has_write_cache);
    assert_eq!(controller.namespaces(), [(1, 4096)]);
    controller.admin.lead(Shutdown::new(10_000)).unwrap();

    let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(1) };
    let mut controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
    let (_, entries) = controller.admin.lead(DiscoveryLog::new()).unwrap();
    let found = entries.iter().map(|entry| DiscoveredSubsystem::of(entry).unwrap());
    let named = found.into_iter().find(|found| found.subsystem == subsystem()).expect("the subsystem is in the log");
    assert_eq!((named.address.as_str(), named.port), ("127.0.0.1", target.address.port().to_string()));
}

#[test]
fn what_was_written_is_read_back_by_another_queue() {
    for digests in
        [Digests::default(), BOTH, Digests { header: true, data: false }, Digests { header: false, data: true }]
    {
        let (target, _, state) = Target::disk(16 * MIB);
        let controller = Controller::with(target.address, wish(1), digests).unwrap();
        let (mut one, mut other) = (controller.queue(1), controller.queue(2));
        let mut written = 0;
        for (index, (count, in_capsule)) in
            [(1, true), (32, true), (1, false), (3, false), (33, false), (256, false)].into_iter().enumerate()
        {
            let data = pattern((count * BLOCK) as usize, index);
            let requests = one.requests;
            write(&mut one, 7, &data, in_capsule);
            assert_eq!(one.requests - requests, u32::from(!in_capsule), "data outside of the capsule are asked for");
            assert!(read(&mut other, 7, count) == data, "{count} blocks, {digests:?}");
            written += data.len() as u64;
        }
        let counters = state.counters();
        assert_eq!((counters.written_bytes, counters.read_bytes), (written, written));
        assert_eq!((counters.requests[Kind::Write as usize], counters.requests[Kind::Read as usize]), (6, 6));
        assert_eq!((counters.errors, counters.in_flight, state.connections().len()), (0, 0, 2));
    }
}

#[test]
fn many_commands_at_once_on_two_queues_are_all_answered() {
    let target = Target::start(2, 1024);
    target.offer(1, crate::common::Volume::new(64 * MIB), Hosts::Any, false);
    let controller = Controller::with(target.address, wish(1), BOTH).unwrap();
    let queues = [controller.queue(1), controller.queue(2)];
    std::thread::scope(|scope| {
        for (index, mut queue) in queues.into_iter().enumerate() {
            scope.spawn(move || {
                // 4 KiB in capsules, 16 KiB by R2T, and 1 MiB.
                let base = index as u64 * 8192;
                let sizes = |at: u64| [(1, true), (4, false)][(at % 2) as usize];
                let mut cids: Vec<u16> = (0..120)
                    .map(|at| {
                        let (count, in_capsule) = sizes(at);
                        let data = pattern((count * BLOCK) as usize, at as usize);
                        let command = io::write(blocks(base + at * 4, count), count * BLOCK, in_capsule, false);
                        queue.send(command, &data, 0)
                    })
                    .collect();
                for at in 0..4 {
                    let command = io::write(blocks(base + 1024 + at * 256, 256), MIB as u32, false, false);
                    cids.push(queue.send(command, &pattern(MIB as usize, at as usize), 0));
                }
                cids.into_iter().for_each(|cid| assert_eq!(queue.wait(cid).status(), Status::SUCCESS));
                let reads: Vec<u16> = (0..120)
                    .map(|at| {
                        let len = sizes(at).0 * BLOCK;
                        queue.send(io::read(blocks(base + at * 4, len / BLOCK), len), &[], len)
                    })
                    .collect();
                for (at, cid) in reads.into_iter().enumerate() {
                    let len = (sizes(at as u64).0 * BLOCK) as usize;
                    assert!(queue.wait(cid).data() == pattern(len, at), "read {at}");
                }
                for at in 0..4 {
                    assert!(read(&mut queue, base + 1024 + at * 256, 256) == pattern(MIB as usize, at as usize));
                }
            });
        }
    });
}

#[test]
fn flush_zeroes_deallocate_compare_and_verify_do_what_they_say() {
    let (target, volume, _) = Target::disk(16 * MIB);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = pattern(8 * BLOCK as usize, 1);
    write(&mut queue, 0, &data, true);
    let mut is = |command, data: &[u8]| queue.execute(command, data, 0).status();

    assert_eq!((is(io::flush(1), &[]), volume.ram.flushes()), (Status::SUCCESS, 1));
    assert_eq!(is(io::write(blocks(8, 1), BLOCK, true, true), &data[..BLOCK as usize]), Status::SUCCESS);
    assert_eq!(volume.ram.durable_writes(), 1, "FUA");
    // VWC says that flushing all namespaces at once is not supported.
    assert_eq!((is(io::flush(0xFFFF_FFFF), &[]), volume.ram.flushes()), (Status::INVALID_NAMESPACE, 1));
    assert_eq!(controller.admin.submit(admin::identify(1, 0)).data()[525], 0b101);

    for in_capsule in [true, false] {
        assert_eq!(is(io::compare(blocks(0, 8), 8 * BLOCK, in_capsule), &data), Status::SUCCESS);
        assert_eq!(is(io::compare(blocks(1, 8), 8 * BLOCK, in_capsule), &data), Status::COMPARE_FAILURE);
    }
    assert_eq!(is(io::verify(blocks(0, 256)), &[]), Status::SUCCESS);
    assert_eq!(is(io::verify(blocks(0, 257)), &[]), Status::INVALID_FIELD, "VSL");

    assert_eq!(volume.ram.allocated_bytes(), 9 * u64::from(BLOCK));
    assert_eq!(is(io::write_zeroes(blocks(0, 1), false, false), &[]), Status::SUCCESS);
    assert_eq!(volume.ram.allocated_bytes(), 9 * u64::from(BLOCK), "zeroes that keep their place");
    assert_eq!(is(io::write_zeroes(blocks(1, 1), true, true), &[]), Status::SUCCESS);
    assert_eq!(volume.ram.allocated_bytes(), 8 * u64::from(BLOCK));
    assert_eq!(volume.ram.durable_writes(), 2, "FUA");
    for in_capsule in [true, false] {
        let first = if in_capsule { 2 } else { 4 };
        let (command, ranges) = io::deallocate(1, &[(first, 1), (first + 1, 1)], in_capsule);
        assert_eq!(is(command, &ranges), Status::SUCCESS);
    }
    assert_eq!(volume.ram.allocated_bytes(), 4 * u64::from(BLOCK));
    let now = read(&mut queue, 0, 9);
    let (zeroed, kept) = now.split_at(6 * BLOCK as usize);
    assert!(zeroed.iter().all(|byte| *byte == 0));
    assert!(
        kept[..2 * BLOCK as usize] == data[6 * BLOCK as usize..]
            && kept[2 * BLOCK as usize..] == data[..BLOCK as usize]
    );
}

#[test]
fn errors_of_the_volume_become_errors_of_the_protocol() {
    let (target, volume, state) = Target::disk(MIB);
    let readonly = target.offer(2, volume.clone(), Hosts::Any, true);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let (reading, data) = (io::read(blocks(0, 1), BLOCK), vec![1; BLOCK as usize]);
    let writing = |nsid| io::write(Blocks { nsid, first: 0, count: 1 }, BLOCK, true, false);
    for (error, on_read, on_write) in [
        (BlockError::Lost { lost: 2, survives: 1 }, Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        (BlockError::NoSpace, Status::CAPACITY_EXCEEDED, Status::CAPACITY_EXCEEDED),
        (BlockError::ReadOnly { reason: "a test" }, Status::WRITE_PROTECTED, Status::WRITE_PROTECTED),
        (BlockError::Stopped, Status::NAMESPACE_NOT_READY, Status::NAMESPACE_NOT_READY),
    ] {
        volume.fail(Some(error));
        assert_eq!(queue.execute(reading, &[], BLOCK).status(), on_read);
        assert_eq!(queue.execute(writing(1), &data, 0).status(), on_write);
    }
    volume.fail(None);
    assert_eq!(state.counters().errors, 8);
    assert_eq!(queue.execute(writing(2), &data, 0).status(), Status::WRITE_PROTECTED);
    assert_eq!((volume.ram.allocated_bytes(), readonly.counters().written_bytes), (0, 0));
    let behind = queue.execute(io::read(blocks(255, 2), 2 * BLOCK), &[], 2 * BLOCK);
    assert_eq!(behind.status(), Status::LBA_OUT_OF_RANGE);
    let other = io::read(Blocks { nsid: 3, first: 0, count: 1 }, BLOCK);
    assert_eq!(queue.execute(other, &[], BLOCK).status(), Status::INVALID_NAMESPACE);
    assert_eq!(read(&mut queue, 0, 1), [0; BLOCK as usize], "the queue goes on");
}

#[test]
fn commands_are_served_at_the_same_time_and_answered_out_of_order() {
    let (target, volume, _) = Target::disk(MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    volume.hold();
    let mut held: Vec<u16> = (0..100).map(|at| queue.send(io::read(blocks(at, 1), BLOCK), &[], BLOCK)).collect();
    eventually("all reads are in the volume", || volume.in_flight() == 100);
    // A refused read overtakes them.
    let refused = queue.execute(io::read(blocks(256, 1), BLOCK), &[], BLOCK);
    assert_eq!(refused.status(), Status::LBA_OUT_OF_RANGE);
    volume.release();
    let mut answered: Vec<u16> = (0..100).map(|_| queue.next().unwrap().completion.cid.get()).collect();
    answered.sort_unstable();
    held.sort_unstable();
    assert_eq!(answered, held);
}

#[test]
fn what_a_queue_holds_for_a_slow_volume_is_bounded_in_bytes() {
    let (target, volume, _) = Target::disk(MIB);
    let len = MIB as u32;
    // 100 commands of 1 MiB each, whose capsules are small. A queue may hold 64 MiB. 32 MiB of them
    // are in the volume.
    for (command, brings) in [
        (io::write(blocks(0, 256), len, false, false), true),
        // Compare also has data from the host.
        (io::compare(blocks(0, 256), len, false), true),
        (io::verify(blocks(0, 256)), false),
    ] {
        let controller = Controller::connect(target.address);
        let mut queue = controller.queue(1);
        volume.hold();
        let answered = std::thread::spawn(move || {
            let data = vec![3; if brings { MIB as usize } else { 0 }];
            let cids: Vec<u16> = (0..100).map(|_| queue.send(command, &data, 0)).collect();
            cids.into_iter().filter(|cid| queue.wait(*cid).status().is_success()).count()
        });
        eventually("the bound is reached", || volume.in_flight() >= 24);
        std::thread::sleep(Duration::from_millis(100));
        let held = volume.in_flight();
        volume.release();
        assert_eq!(answered.join().unwrap(), 100, "the others are taken in when there is room");
        assert!(held <= 32, "{held} commands of 1 MiB, of which 32 are allowed: {command:?}");
    }
}

/// Copies ranges to a block, all in one command.
fn copy(queue: &mut Queue, to: u64, ranges: &[(u64, u16)], in_capsule: bool, fua: bool) -> Status {
    let (command, data) = crate::common::nvme::copy(1, to, ranges, in_capsule, fua);
    queue.execute(command, &data, 0).status()
}

#[test]
fn a_copy_is_what_was_there_before_it_began() {
    let (target, volume, state) = Target::disk(4 * MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = pattern(512 * BLOCK as usize, 5);
    write(&mut queue, 0, &data[..256 * BLOCK as usize], false);
    write(&mut queue, 256, &data[256 * BLOCK as usize..], false);
    let at = |first: usize, count: usize| &data[first * BLOCK as usize..(first + count) * BLOCK as usize];
    for in_capsule in [true, false] {
        let to = if in_capsule { 600 } else { 700 };
        assert_eq!(copy(&mut queue, to, &[(5, 3), (500, 12), (0, 1)], in_capsule, false), Status::SUCCESS);
        assert!(read(&mut queue, to, 16) == [at(5, 3), at(500, 12), at(0, 1)].concat());
    }
    // The largest copy, in one range and in 256, and a larger one.
    let single: Vec<(u64, u16)> = (0..256).rev().map(|block| (block, 1)).collect();
    assert_eq!(copy(&mut queue, 768, &single, false, false), Status::SUCCESS);
    assert!(read(&mut queue, 768, 256).chunks(BLOCK as usize).eq(at(0, 256).chunks(BLOCK as usize).rev()));
    assert_eq!(copy(&mut queue, 768, &[(0, 257)], true, false), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    assert_eq!(copy(&mut queue, 769, &[(0, 256)], true, false), Status::LBA_OUT_OF_RANGE);
    // The source and the destination overlap.
    let durable = volume.ram.durable_writes();
    assert_eq!(copy(&mut queue, 1, &[(0, 256)], true, true), Status::SUCCESS);
    assert!(read(&mut queue, 1, 256) == at(0, 256));
    assert_eq!((volume.ram.durable_writes() - durable, state.counters().errors), (1, 2), "FUA");

    volume.fail(Some(BlockError::Lost { lost: 2, survives: 1 }));
    assert_eq!(copy(&mut queue, 1, &[(0, 1)], true, false), Status::UNRECOVERED_READ_ERROR);
    volume.fail(None);
    let readonly = target.offer(2, volume.clone(), Hosts::Any, true);
    let mut command = Command::new(nvm::COPY, 0, 2);
    command.dptr = Sgl::in_capsule(32);
    assert_eq!(queue.execute(command, &[0; 32], 0).status(), Status::WRITE_PROTECTED);
    assert_eq!(readonly.counters().requests[Kind::Write as usize], 0);
}

/// SGLS bit 20: the data of a command may begin at an offset in its capsule.
#[test]
fn data_may_begin_anywhere_in_their_capsule() {
    let (target, _, _) = Target::disk(MIB);
    for digests in [Digests::default(), BOTH] {
        let controller = Controller::with(target.address, wish(1), digests).unwrap();
        let mut queue = controller.queue(1);
        for (at, (offset, behind, count)) in
            [(0, 512, 1), (1, 0, 1), (4096, 0, 2), (100, 7, 1), (61_440, 0, 16)].into_iter().enumerate()
        {
            let data = pattern((count * BLOCK) as usize, at);
            let capsule = [&vec![0xEE; offset][..], &data, &vec![0xDD; behind]].concat();
            let mut write = io::write(blocks(at as u64 * 16, count), count * BLOCK, true, false);
            write.dptr.address = (offset as u64).into();
            assert_eq!(queue.execute(write, &capsule, 0).status(), Status::SUCCESS, "{offset}");
            assert!(read(&mut queue, at as u64 * 16, count) == data, "{offset}, {digests:?}");
        }
        for (offset, expected) in [
            (1, Status::DATA_SGL_LENGTH_INVALID),
            (u64::from(BLOCK), Status::DATA_SGL_LENGTH_INVALID),
            (u64::from(BLOCK) + 1, Status::SGL_OFFSET_INVALID),
            (u64::MAX, Status::SGL_OFFSET_INVALID),
        ] {
            let mut write = io::write(blocks(0, 1), BLOCK, true, false);
            write.dptr.address = offset.into();
            assert_eq!(queue.execute(write, &pattern(BLOCK as usize, 9), 0).status(), expected, "{offset}");
        }
        assert!(read(&mut queue, 0, 1) == pattern(BLOCK as usize, 0), "nothing was written");
    }
}
