//! Reads from memory-backed drives are sent from where the data is, and arrive as if it had been
//! copied before.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, wish};
use drive::{Block, BlockError, Buf, BufMut, Extent, View, WriteZeroes};
use export::Hosts;
use nvme::Command;
use nvme::host::{Blocks, Wish, io};
use nvme::tcp::{Digests, Transfer};

const SIZE: u64 = 64 * MIB;

/// A volume whose bytes exist only during a view. Afterwards their memory has other content.
#[derive(Clone, Default)]
struct Fleeting {
    views: Arc<AtomicUsize>,
    /// Bytes in views now, and the most at a time.
    seen: Arc<AtomicUsize>,
    seen_most: Arc<AtomicUsize>,
}

/// The content of the volume at an offset.
fn content(at: u64) -> u8 {
    (at >> 12) as u8 ^ (at >> 20) as u8 ^ at as u8
}

fn contents(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(content).collect()
}

impl Block for Fleeting {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn optimal_io_bytes(&self) -> u32 {
        BLOCK
    }

    async fn read(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, BlockError> {
        let bytes = contents(offset, buf.len());
        buf.copy_from_slice(&bytes);
        Ok(buf)
    }

    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        // Some of it is not in memory.
        if offset / u64::from(BLOCK) % 7 == 3 {
            return None;
        }
        self.views.fetch_add(1, Ordering::SeqCst);
        // Parts like those of strips.
        let mut bytes = contents(offset, len);
        let parts: Vec<View<'_>> = bytes.chunks(40_960).map(View::from).collect();
        self.seen_most.fetch_max(self.seen.fetch_add(len, Ordering::SeqCst) + len, Ordering::SeqCst);
        let seen = look(&parts);
        self.seen.fetch_sub(len, Ordering::SeqCst);
        bytes.fill(0xEE);
        std::hint::black_box(&bytes);
        Some(seen)
    }

    async fn write(&self, _: u64, _: Buf, _: bool) -> Result<(), BlockError> {
        Err(BlockError::Stopped)
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: WriteZeroes) -> Result<(), BlockError> {
        Err(BlockError::Stopped)
    }

    async fn discard(&self, _: u64, _: u64) -> Result<(), BlockError> {
        Err(BlockError::Stopped)
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    async fn extents(&self, _: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        Ok(vec![Extent { len, allocated: true }])
    }
}

/// Sends reads in rounds, with these numbers of blocks. Does not receive until the target has sent
/// all that the socket takes. Returns how many were sent from where the data was.
fn read_in_rounds(digests: Digests, lens: &[u32]) -> usize {
    let target = Target::start(1, 16);
    let volume = Fleeting::default();
    target.offer(1, volume.clone(), Hosts::Any, false);
    let wish = Wish { queue_entries: 128, ..wish(1) };
    let controller = Controller::with(target.address, wish, digests).unwrap();
    let mut queue = controller.queue(1);
    for round in 0..60_u64 {
        let reads = (0..1 + round * 11 % 127).map(|nth| {
            let count = lens[(round + nth) as usize % lens.len()];
            let first = (round * 257 + nth * 401) % (SIZE / u64::from(BLOCK) - 256);
            let read = io::read(Blocks { nsid: 1, first, count }, count * BLOCK);
            (queue.send(read, &[], count * BLOCK), first, count)
        });
        let reads: Vec<(u16, u64, u32)> = reads.collect();
        std::thread::sleep(Duration::from_millis(2));
        for (cid, first, count) in reads {
            let data = queue.wait(cid).data();
            let is_right = data == contents(first * u64::from(BLOCK), (count * BLOCK) as usize);
            assert!(is_right, "{count} blocks from {first} on, round {round}, {digests:?}");
        }
    }
    volume.views.load(Ordering::SeqCst)
}

#[test]
fn what_is_sent_from_memory_arrives_whole_whatever_becomes_of_that_memory() {
    for (what, lens) in
        [("short", &[1, 1, 2, 1][..]), ("long", &[32, 256, 100]), ("mixed", &[1, 32, 1, 1, 1, 16, 2, 256, 1])]
    {
        for digests in [Digests::default(), Digests { header: true, data: false }] {
            let seen = read_in_rounds(digests, lens);
            assert!(seen > 50, "{seen} of {what} reads were sent from memory");
        }
        assert_eq!(read_in_rounds(BOTH, lens), 0, "a digest would be of what others may overwrite meanwhile");
    }
}

/// Sends reads in one piece, so that they arrive together. Returns their identifiers.
fn send_together(queue: &mut Queue, reads: &[(u64, u32)]) -> Vec<u16> {
    let mut bytes = Vec::new();
    let one = |(first, count): &(u64, u32)| {
        let cid = queue.machine.begin(Transfer::ToHost(count * BLOCK)).unwrap();
        let read = io::read(Blocks { nsid: 1, first: *first, count: *count }, count * BLOCK);
        bytes.extend_from_slice(&queue.capsule(Command { cid: cid.into(), ..read }, &[]));
        cid
    };
    let cids = reads.iter().map(one).collect();
    queue.stream.write_all(&bytes).unwrap();
    cids
}

/// The next PDU with data: the command, where its data begins in the PDU and in the whole read, and
/// the data.
fn next_data(queue: &mut Queue, digests: Digests) -> (u16, usize, usize, Vec<u8>) {
    let mut header = [0; 8];
    queue.stream.read_exact(&mut header).unwrap();
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let (kind, len) = (header[0], number(&header[4..]));
    if kind == 5 {
        // A response, which has SQHD.
        let mut response = [0; 16];
        queue.stream.read_exact(&mut response).unwrap();
        assert_eq!(number(&response[12..]) >> 17, 0, "the status");
        return next_data(queue, digests);
    }
    assert_eq!((kind, header[2]), (7, 24), "C2HData");
    let mut pdu = vec![0; len];
    pdu[..8].copy_from_slice(&header);
    queue.stream.read_exact(&mut pdu[8..]).unwrap();
    let (cid, at, offset, data_bytes) =
        (u16::from_le_bytes([pdu[8], pdu[9]]), usize::from(header[3]), number(&pdu[12..16]), number(&pdu[16..20]));
    assert_eq!(len, at + data_bytes + if digests.data { 4 } else { 0 });
    let in_front = if digests.header { 28 } else { 24 };
    assert!(pdu[in_front..at].iter().all(|byte| *byte == 0), "what lies between is nothing");
    (cid, at, offset, pdu[at..at + data_bytes].to_vec())
}

/// Receives and checks the data of reads that were sent together. `look` gets the offset of the
/// data in each PDU.
fn receive_together(queue: &mut Queue, digests: Digests, cids: &[u16], reads: &[(u64, u32)], look: impl Fn(usize)) {
    let mut got: Vec<Vec<u8>> = reads.iter().map(|_| Vec::new()).collect();
    let lens = reads.iter().map(|(_, count)| (count * BLOCK) as usize);
    while got.iter().map(Vec::len).ne(lens.clone()) {
        let (cid, at, offset, data) = next_data(queue, digests);
        look(at);
        let of = &mut got[cids.iter().position(|sent| *sent == cid).unwrap()];
        assert_eq!(offset, of.len());
        of.extend_from_slice(&data);
    }
    for ((first, _), data) in reads.iter().zip(got) {
        assert!(data == contents(first * u64::from(BLOCK), data.len()), "{first} of {reads:?}, {digests:?}");
    }
}

/// HPDA: TCP Transport 1.0, clause 3.6.2.2. The padding before the data is right for every way of
/// sending.
#[test]
fn data_begin_where_the_host_wants_them_however_they_are_sent() {
    for (alignment, digests) in [
        (31, Digests::default()),
        (31, Digests { header: true, data: false }),
        (31, BOTH),
        (6, BOTH),
        (7, Digests::default()),
    ] {
        let target = Target::start(1, 16);
        let volume = Fleeting::default();
        target.offer(1, volume.clone(), Hosts::Any, false);
        let mut controller = Controller::with(target.address, wish(1), digests).unwrap();
        controller.alignment = alignment;
        let mut queue = controller.queue(1);
        // A single read, and two lengths together; long reads; both, with blocks that are not in
        // memory (3 and 10).
        for reads in [
            &[(5, 1)][..],
            &[(4, 16)],
            &[(0, 1), (1, 2), (8, 1), (9, 1), (11, 2)],
            &[(4, 256)],
            &[(1, 1), (256, 100), (2, 1), (3, 1), (10, 64), (4, 1), (5, 16), (6, 1)],
        ] {
            let seen = volume.views.load(Ordering::SeqCst);
            let cids = send_together(&mut queue, reads);
            receive_together(&mut queue, digests, &cids, reads, |at| {
                let aligned = (usize::from(alignment) + 1) * 4;
                assert!(at.is_multiple_of(aligned), "data at {at}, HPDA {alignment}, {digests:?}");
            });
            let seen = volume.views.load(Ordering::SeqCst) - seen;
            assert_eq!(seen > 0, !digests.data, "{seen} of {reads:?} were sent from memory, {digests:?}");
        }
    }
}

#[test]
fn reads_that_came_together_are_sent_together_up_to_a_mebibyte() {
    let target = Target::start(1, 16);
    let volume = Fleeting::default();
    target.offer(1, volume.clone(), Hosts::Any, false);
    for (what, reads, together) in [
        ("short", vec![(4, 1); 40], 40 * BLOCK),
        ("of 64 KiB", vec![(32, 16); 5], 5 * 16 * BLOCK),
        ("of 128 KiB", vec![(32, 32); 20], MIB as u32),
        ("of 1 MiB", vec![(0, 256); 3], MIB as u32),
    ] {
        let wish = Wish { queue_entries: 128, ..wish(1) };
        let controller = Controller::with(target.address, wish, Digests::default()).unwrap();
        // A queue without earlier answers: while answers are being sent, others are copied.
        let mut queue = controller.queue(1);
        volume.seen_most.store(0, Ordering::SeqCst);
        let cids = send_together(&mut queue, &reads);
        receive_together(&mut queue, Digests::default(), &cids, &reads, |_| {});
        assert_eq!(volume.seen_most.load(Ordering::SeqCst), together as usize, "{what}");
    }
}
