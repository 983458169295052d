//! A volume in memory that knows which of its blocks were written.
//!
//! Invariants:
//! 1. A block that is not marked as allocated is zero, or its chunk has no memory.
//! 2. A chunk without an allocated block has no memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drive::{Block, BlockError, Buf, BufMut, Extent, WriteZeroes};

/// Unit of allocation in bytes.
const BLOCK_BYTES: usize = 4096;
/// Unit of memory and of locking in bytes: 16 blocks, so that the marks fit into 16 bits.
const CHUNK_BYTES: usize = 16 * BLOCK_BYTES;
/// Most extents in one answer.
const EXTENTS_MAX: usize = 4096;

/// A volatile volume. Clones share its content; it may be used on every shard. For tests,
/// measurements and scratch space.
#[derive(Clone)]
pub struct Ram {
    inner: Arc<RamContent>,
}

struct RamContent {
    size_bytes: u64,
    chunks: Vec<Mutex<Chunk>>,
    flushes: AtomicU64,
    durable_writes: AtomicU64,
}

#[derive(Default)]
struct Chunk {
    data: Option<Box<[u8]>>,
    allocated: u16,
}

impl Chunk {
    fn data(&mut self) -> &mut [u8] {
        self.data.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice())
    }

    fn zero(&mut self, start: usize, end: usize, keep_allocated: bool) {
        if keep_allocated {
            self.data()[start..end].fill(0);
            self.allocated |= marks(start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
            return;
        }
        let Some(data) = &mut self.data else { return };
        data[start..end].fill(0);
        self.allocated &= !marks(start.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        if self.allocated == 0 {
            self.data = None;
        }
    }
}

/// The bits of the blocks from `first` to before `end`.
fn marks(first: usize, end: usize) -> u16 {
    if first >= end {
        return 0;
    }
    (((1u32 << (end - first)) - 1) << first) as u16
}

impl Ram {
    /// A volume of zeroes. Takes memory only for what is written.
    pub fn new(size_bytes: u64) -> Ram {
        let count = size_bytes.div_ceil(CHUNK_BYTES as u64);
        let chunks = (0..count).map(|_| Mutex::default()).collect();
        let inner = RamContent { size_bytes, chunks, flushes: AtomicU64::new(0), durable_writes: AtomicU64::new(0) };
        Ram { inner: Arc::new(inner) }
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.inner.flushes.load(Ordering::Relaxed)
    }

    /// Writes and zeroings so far that asked for durability (FUA).
    pub fn durable_writes(&self) -> u64 {
        self.inner.durable_writes.load(Ordering::Relaxed)
    }

    /// Bytes of blocks that were written and not given back.
    pub fn allocated_bytes(&self) -> u64 {
        let blocks: u32 = self.inner.chunks.iter().map(|chunk| lock(chunk).allocated.count_ones()).sum();
        u64::from(blocks) * BLOCK_BYTES as u64
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.inner.size_bytes;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, size }),
        }
    }

    /// Calls `each` with the chunks of a checked range: the chunk, start and end in the chunk, and
    /// the position in the range.
    #[inline]
    fn each(&self, offset: u64, len: u64, mut each: impl FnMut(&mut Chunk, usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let start = (at % CHUNK_BYTES as u64) as usize;
            let part = (CHUNK_BYTES - start).min(usize::try_from(len - done).unwrap_or(usize::MAX));
            let chunk = &self.inner.chunks[(at / CHUNK_BYTES as u64) as usize];
            each(&mut lock(chunk), start, start + part, done as usize);
            done += part as u64;
        }
    }
}

/// Nothing panics while a chunk is locked.
fn lock(chunk: &Mutex<Chunk>) -> MutexGuard<'_, Chunk> {
    chunk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Block for Ram {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes
    }

    fn optimal_io_bytes(&self) -> u32 {
        CHUNK_BYTES as u32
    }

    async fn read(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, BlockError> {
        let len = buf.len() as u64;
        self.check(offset, len)?;
        self.each(offset, len, |chunk, start, end, at| {
            let into = &mut buf[at..at + (end - start)];
            match &chunk.data {
                Some(data) => into.copy_from_slice(&data[start..end]),
                None => into.fill(0),
            }
        });
        Ok(buf)
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        self.each(offset, len, |chunk, start, end, at| {
            chunk.data()[start..end].copy_from_slice(&data[at..at + (end - start)]);
            chunk.allocated |= marks(start / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        });
        if fua {
            self.inner.durable_writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.check(offset, len)?;
        if how.only_fast && how.keep_allocated {
            // To keep the blocks allocated they are filled, which is as slow as a write.
            return Err(BlockError::NotFast);
        }
        self.each(offset, len, |chunk, start, end, _| chunk.zero(start, end, how.keep_allocated));
        if how.fua {
            self.inner.durable_writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(offset, len)?;
        self.each(offset, len, |chunk, start, end, _| chunk.zero(start, end, false));
        Ok(())
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.inner.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check(offset, len)?;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let chunk = &self.inner.chunks[(at / CHUNK_BYTES as u64) as usize];
            let bits = lock(chunk).allocated;
            let chunk_end = (at / CHUNK_BYTES as u64 + 1) * CHUNK_BYTES as u64;
            while at < end.min(chunk_end) {
                let index = at % CHUNK_BYTES as u64 / BLOCK_BYTES as u64;
                let allocated = bits & (1 << index) != 0;
                let next = ((at / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64).min(end);
                let full = extents.len() == EXTENTS_MAX;
                match extents.last_mut() {
                    Some(last) if last.allocated == allocated => last.len += next - at,
                    _ if full => return Ok(extents),
                    _ => extents.push(Extent { len: next - at, allocated }),
                }
                at = next;
            }
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory never waits"),
        }
    }

    #[test]
    fn blocks_are_allocated_by_writes_and_freed_by_discards() {
        let ram = Ram::new(1 << 20);
        now(ram.write(CHUNK_BYTES as u64 - 100, Buf::from(vec![7; 200]), false)).unwrap();
        assert_eq!(ram.allocated_bytes(), 8192);
        let extents = now(ram.extents(0, 1 << 20)).unwrap();
        let of = |len: usize, allocated| Extent { len: len as u64, allocated };
        let hole = CHUNK_BYTES - 4096;
        assert_eq!(extents, [of(hole, false), of(8192, true), of((1 << 20) - hole - 8192, false)]);
        assert_eq!(now(ram.extents(CHUNK_BYTES as u64 - 4097, 2)).unwrap(), [of(1, false), of(1, true)]);

        let read = now(ram.read(CHUNK_BYTES as u64 - 101, BufMut::zeroed(202))).unwrap();
        assert!(read[0] == 0 && read[201] == 0 && read[1..201].iter().all(|&byte| byte == 7));

        // Half of a block is zeroed but stays allocated.
        now(ram.discard(CHUNK_BYTES as u64 - 4096, 4096 + 50)).unwrap();
        assert_eq!(ram.allocated_bytes(), 4096);
        let read = now(ram.read(CHUNK_BYTES as u64, BufMut::zeroed(101))).unwrap();
        assert!(read[..50].iter().all(|&byte| byte == 0) && read[50..100].iter().all(|&byte| byte == 7));
        now(ram.discard(0, 1 << 20)).unwrap();
        assert!(ram.allocated_bytes() == 0 && lock(&ram.inner.chunks[1]).data.is_none());
    }

    #[test]
    fn zeroing_keeps_blocks_where_asked_and_is_then_not_fast() {
        let ram = Ram::new(1 << 20);
        let keep = WriteZeroes { keep_allocated: true, ..WriteZeroes::default() };
        now(ram.write_zeroes(4096, 4096, keep)).unwrap();
        assert_eq!(ram.allocated_bytes(), 4096);
        let fast = WriteZeroes { only_fast: true, ..keep };
        assert_eq!(now(ram.write_zeroes(0, 4096, fast)), Err(BlockError::NotFast));
    }

    #[test]
    fn nothing_lies_behind_the_end() {
        let ram = Ram::new(5000);
        assert!(now(ram.read(4999, BufMut::zeroed(1))).is_ok());
        assert!(now(ram.read(4999, BufMut::zeroed(2))).is_err());
        assert!(now(ram.write(u64::MAX, Buf::zeroes(2), false)).is_err());
        assert!(now(ram.extents(5000, 1)).is_err());
    }
}
