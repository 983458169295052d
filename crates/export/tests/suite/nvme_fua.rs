//! Force Unit Access of commands that read data: NVM Command Set 1.0, clauses 3.2.1, 3.2.4 and
//! 3.2.6. Cached data is durable before it is read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target, pattern};
use drive::{Block, BlockError, Buf, BufMut, Extent, View, WriteZeroes};
use export::Hosts;
use nvme::host::{Blocks, io};
use nvme::{Command, Status};

const SIZE: u64 = 4 * MIB;

/// How data was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Without waiting.
    AtOnce,
    /// While the cache held data that no flush had made durable.
    Cached,
    /// While all data was durable.
    Durable,
}

/// A volume that reports how it was read since the last query.
#[derive(Clone)]
struct Disk(Arc<DiskState>);

struct DiskState {
    bytes: Mutex<Vec<u8>>,
    is_dirty: AtomicBool,
    cannot_flush: AtomicBool,
    looks: Mutex<Vec<Look>>,
}

impl Disk {
    fn new() -> Disk {
        Disk(Arc::new(DiskState {
            bytes: Mutex::new(vec![0; SIZE as usize]),
            is_dirty: AtomicBool::new(false),
            cannot_flush: AtomicBool::new(false),
            looks: Mutex::default(),
        }))
    }

    fn looks(&self) -> Vec<Look> {
        std::mem::take(&mut self.0.looks.lock().unwrap())
    }

    fn looked(&self, look: Look) {
        self.0.looks.lock().unwrap().push(look);
    }
}

impl Block for Disk {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn optimal_io_bytes(&self) -> u32 {
        BLOCK
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.looked(Look::AtOnce);
        let len = buf.len();
        buf.copy_from_slice(&self.0.bytes.lock().unwrap()[offset as usize..][..len]);
        true
    }

    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        self.looked(Look::AtOnce);
        let bytes = self.0.bytes.lock().unwrap()[offset as usize..][..len].to_vec();
        Some(look(&[View::from(&bytes[..])]))
    }

    async fn read(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, BlockError> {
        self.looked(if self.0.is_dirty.load(Ordering::SeqCst) { Look::Cached } else { Look::Durable });
        let len = buf.len();
        buf.copy_from_slice(&self.0.bytes.lock().unwrap()[offset as usize..][..len]);
        Ok(buf)
    }

    async fn write(&self, offset: u64, data: Buf, _: bool) -> Result<(), BlockError> {
        self.0.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(&data);
        self.0.is_dirty.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: WriteZeroes) -> Result<(), BlockError> {
        Err(BlockError::Stopped)
    }

    async fn discard(&self, _: u64, _: u64) -> Result<(), BlockError> {
        Err(BlockError::Stopped)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        if self.0.cannot_flush.load(Ordering::SeqCst) {
            return Err(BlockError::Lost { lost: 2, survives: 1 });
        }
        self.0.is_dirty.store(false, Ordering::SeqCst);
        Ok(())
    }

    async fn extents(&self, _: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        Ok(vec![Extent { len, allocated: true }])
    }
}

fn blocks(first: u64, count: u32) -> Blocks {
    Blocks { nsid: 1, first, count }
}

fn with_fua(mut command: Command) -> Command {
    command.set_cdw(12, command.cdw(12) | 1 << 30);
    command
}

fn write(queue: &mut Queue, first: u64, data: &[u8]) {
    let len = data.len() as u32;
    let write = io::write(blocks(first, len / BLOCK), len, false, false);
    assert_eq!(queue.execute(write, data, 0).status(), Status::SUCCESS);
}

fn connect() -> (Target<Disk>, Disk, Controller) {
    let (target, disk) = (Target::start(1, 16), Disk::new());
    target.offer(1, disk.clone(), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    (target, disk, controller)
}

#[test]
fn what_is_read_with_fua_is_durable_first_however_long_it_is() {
    let (_target, disk, controller) = connect();
    let mut queue = controller.queue(1);
    for count in [1, 2, 3, 16, 32, 256] {
        let (data, len) = (pattern((count * BLOCK) as usize, count as usize), count * BLOCK);
        write(&mut queue, 5, &data);
        let read = io::read(blocks(5, count), len);
        assert!(queue.execute(read, &[], len).data() == data);
        assert_eq!(disk.looks(), [Look::AtOnce], "{count} blocks, which need not be durable");
        assert!(queue.execute(with_fua(read), &[], len).data() == data);
        assert_eq!(disk.looks(), [Look::Durable], "{count} blocks");
    }
}

#[test]
fn reads_with_fua_among_others_are_looked_at_by_themselves() {
    let (_target, disk, controller) = connect();
    let mut queue = controller.queue(1);
    let data = pattern(16 * BLOCK as usize, 3);
    for _ in 0..20 {
        write(&mut queue, 0, &data);
        let sent = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|first| {
            let read = io::read(blocks(first, 1), BLOCK);
            queue.send(if first % 2 == 0 { read } else { with_fua(read) }, &[], BLOCK)
        });
        for (at, cid) in sent.into_iter().enumerate() {
            assert!(queue.wait(cid).data() == data[at * BLOCK as usize..][..BLOCK as usize], "read {at}");
        }
        let looks = disk.looks();
        let count = |look| looks.iter().filter(|seen| **seen == look).count();
        assert_eq!((count(Look::AtOnce), count(Look::Durable), looks.len()), (5, 5, 10), "{looks:?}");
    }
}

#[test]
fn what_is_compared_or_verified_with_fua_is_durable_first() {
    let (_target, disk, controller) = connect();
    let mut queue = controller.queue(1);
    let data = pattern(2 * BLOCK as usize, 1);
    let compare = io::compare(blocks(7, 2), 2 * BLOCK, true);
    let verify = io::verify(blocks(0, 256));
    for (command, brought) in [(compare, &data[..]), (verify, &[])] {
        write(&mut queue, 7, &data);
        assert_eq!(queue.execute(command, brought, 0).status(), Status::SUCCESS);
        assert_eq!(disk.looks(), vec![Look::Cached]);
        assert_eq!(queue.execute(with_fua(command), brought, 0).status(), Status::SUCCESS);
        assert_eq!(disk.looks(), vec![Look::Durable]);
    }
    // Fused with a write that has no FUA of its own.
    write(&mut queue, 7, &data);
    let compare = io::compare(blocks(7, 1), BLOCK, true);
    for (compare, look) in [(compare, Look::Cached), (with_fua(compare), Look::Durable)] {
        let first = Command { flags: compare.flags | 0b01, ..compare };
        let second = io::write(blocks(7, 1), BLOCK, true, false);
        let second = Command { flags: second.flags | 0b10, ..second };
        let same = &data[..BLOCK as usize];
        let sent = [queue.send(first, same, 0), queue.send(second, same, 0)];
        assert_eq!(sent.map(|cid| queue.wait(cid).status()), [Status::SUCCESS; 2]);
        assert_eq!(disk.looks(), [look]);
    }
}

#[test]
fn what_cannot_be_made_durable_is_not_given_with_fua() {
    let (_target, disk, controller) = connect();
    let mut queue = controller.queue(1);
    disk.0.cannot_flush.store(true, Ordering::SeqCst);
    let read = io::read(blocks(0, 1), BLOCK);
    assert_eq!(queue.execute(read, &[], BLOCK).status(), Status::SUCCESS);
    disk.looks();
    assert_eq!(queue.execute(with_fua(read), &[], BLOCK).status(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(queue.execute(with_fua(io::verify(blocks(0, 1))), &[], 0).status(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(disk.looks(), []);
}
