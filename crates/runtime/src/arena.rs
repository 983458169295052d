//! The buffers of all shards: one mapping. Every ring registers the pieces of it that it uses
//! ([`crate::buffers`]).
//!
//! A buddy allocator behind a lock hands out blocks of 4 KiB to 4 MiB. Each shard keeps a few
//! blocks of the common sizes in a cache (a magazine), so an allocation usually takes no lock. A
//! block can be released on any thread: the one that drops the last handle to it.

use std::cell::RefCell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ::drive::BufMut;

use crate::buddy::Buddy;

/// Smallest block: a page, and the alignment that every buffer promises.
const UNIT_BYTES: usize = 4096;

/// Largest block, 4 MiB: a full stripe of a wide group. Larger buffers come from the heap.
const ORDER_MAX: u8 = 10;

/// Bytes of a block of the largest order; the arena is a multiple of it.
const BLOCK_BYTES_MAX: usize = UNIT_BYTES << ORDER_MAX;

/// A piece is registered as one buffer, and the kernel takes at most 1 GiB for a buffer
/// (`io_uring_register(2)`). The number of pieces is bounded so that their table fits in a few
/// pages.
const PIECE_BYTES_MAX: usize = 1 << 30;
const PIECES: usize = 1024;

/// Most blocks in a magazine, by order: 256 KiB for each of the sizes from 4 to 32 KiB, 512 KiB for
/// 64 and for 128 KiB. A magazine holds at most 2 MiB in all.
const MAGAZINE_BLOCKS: [usize; 6] = [64, 32, 16, 8, 8, 4];

/// The process's arena.
static ARENA: OnceLock<Arena> = OnceLock::new();

thread_local! {
    /// The magazine of a shard's thread. Other threads have none and take the lock: blocks in their
    /// magazines would be lost when the thread ends.
    static MAGAZINE: RefCell<Option<Magazine>> = const { RefCell::new(None) };
}

struct Magazine {
    arena: &'static Arena,
    blocks: [Vec<u32>; MAGAZINE_BLOCKS.len()],
}

pub(crate) struct Arena {
    start: NonNull<u8>,
    size_bytes: usize,
    /// A power of two, and a multiple of the largest block.
    piece_bytes: usize,
    buddy: Mutex<Buddy>,
    heap_fallbacks: AtomicU64,
}

// SAFETY: the arena's bytes are reached only through the `BufMut`s that it hands out, each to its
// own block; the bookkeeping is behind a lock.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`.
unsafe impl Sync for Arena {}

/// How much of the arena is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaStats {
    /// Size of the arena in bytes.
    pub size_bytes: usize,
    /// Bytes that are neither handed out nor kept by a shard for its next allocation.
    pub free_bytes: usize,
    /// Buffers that came from the heap because the arena had no block for them. If it grows, the
    /// arena is too small.
    pub heap_fallbacks: u64,
}

/// State of the arena of this process; `None` before the first runtime was started.
pub fn arena_stats() -> Option<ArenaStats> {
    ARENA.get().map(Arena::stats)
}

/// Releases its block when the last handle is dropped.
struct BlockOwner {
    arena: &'static Arena,
    unit: u32,
    order: u8,
}

impl Drop for BlockOwner {
    fn drop(&mut self) {
        self.arena.release(self.unit, self.order);
    }
}

/// The arena of the process. The first caller creates it with the size that it passes.
pub(crate) fn process_arena(size_bytes: usize) -> io::Result<&'static Arena> {
    // Two threads may both map an arena at first. The second one unmaps its own again.
    if ARENA.get().is_none() {
        let arena = Arena::map(size_bytes)?;
        if let Err(spare) = ARENA.set(arena) {
            spare.unmap();
        }
    }
    let arena = ARENA.get().expect("set above, or by somebody else");
    let wanted = round_up(size_bytes);
    if arena.size_bytes != wanted {
        tracing::info!(is = arena.size_bytes, wanted, "the arena of this process has its size already");
    }
    Ok(arena)
}

fn round_up(size_bytes: usize) -> usize {
    size_bytes.max(1).next_multiple_of(BLOCK_BYTES_MAX)
}

/// The order of the smallest block that holds `len` bytes.
fn order_of(len: usize) -> Option<u8> {
    let units = len.div_ceil(UNIT_BYTES).max(1).next_power_of_two();
    let order = units.trailing_zeros() as u8;
    (order <= ORDER_MAX).then_some(order)
}

impl Arena {
    pub(crate) fn map(size_bytes: usize) -> io::Result<Arena> {
        let size_bytes = round_up(size_bytes);
        // One block more than needed, to find a start that is a multiple of the largest block: then
        // huge pages cover the whole arena. The excess is never touched.
        let mapped = size_bytes + BLOCK_BYTES_MAX;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = address.cast::<u8>();
        // SAFETY: the offset is below `BLOCK_BYTES_MAX`, so start and start + size lie within the
        // mapping.
        let start = unsafe { address.add(address.align_offset(BLOCK_BYTES_MAX)) };
        // SAFETY: the range is ours. A refusal costs speed only.
        unsafe { libc::madvise(start.cast(), size_bytes, libc::MADV_HUGEPAGE) };
        Ok(Arena {
            start: NonNull::new(start).expect("the kernel maps nothing at address zero"),
            size_bytes,
            piece_bytes: (size_bytes / PIECES).next_power_of_two().clamp(BLOCK_BYTES_MAX, PIECE_BYTES_MAX),
            buddy: Mutex::new(Buddy::new(size_bytes / BLOCK_BYTES_MAX, ORDER_MAX)),
            heap_fallbacks: AtomicU64::new(0),
        })
    }

    /// Unmaps an arena that was never published. (The part in front of the aligned start stays
    /// mapped: it was never touched.)
    fn unmap(self) {
        // SAFETY: the range was mapped in `map`, and no block of it was handed out.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size_bytes) };
    }

    fn buddy(&self) -> MutexGuard<'_, Buddy> {
        // A panic in the allocator is an assertion about its state; going on would hand out memory
        // twice.
        self.buddy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> ArenaStats {
        ArenaStats {
            size_bytes: self.size_bytes,
            free_bytes: self.buddy().free_units() * UNIT_BYTES,
            heap_fallbacks: self.heap_fallbacks.load(Ordering::Relaxed),
        }
    }

    /// The number of pieces that a ring can register. It is capped because a piece's number is a
    /// `u16`.
    pub(crate) fn piece_count(&self) -> u16 {
        u16::try_from(self.size_bytes.div_ceil(self.piece_bytes)).unwrap_or(u16::MAX)
    }

    /// A piece in the form in which the kernel registers it.
    ///
    /// # Panics
    /// If there is no piece with this number.
    pub(crate) fn piece(&self, index: u16) -> libc::iovec {
        assert!(index < self.piece_count(), "piece {index} of {}", self.piece_count());
        let offset = usize::from(index) * self.piece_bytes;
        let len = self.piece_bytes.min(self.size_bytes - offset);
        // SAFETY: the offset is within the arena.
        libc::iovec { iov_base: unsafe { self.start.as_ptr().add(offset) }.cast(), iov_len: len }
    }

    /// The piece that contains a whole range.
    #[inline]
    pub(crate) fn piece_of(&self, start: *const u8, len: usize) -> Option<u16> {
        let offset = (start as usize).wrapping_sub(self.start.as_ptr() as usize);
        if offset >= self.size_bytes || len == 0 || len > self.size_bytes - offset {
            return None;
        }
        let shift = self.piece_bytes.trailing_zeros();
        let (first, last) = (offset >> shift, (offset + len - 1) >> shift);
        if first == last { u16::try_from(first).ok() } else { None }
    }

    /// A buffer of `len` bytes from the arena, or from the heap if the arena has no block for it.
    pub(crate) fn alloc(&'static self, len: usize) -> BufMut {
        let block = order_of(len).and_then(|order| Some((self.take(order)?, order)));
        let Some((unit, order)) = block else {
            self.heap_fallbacks.fetch_add(1, Ordering::Relaxed);
            return BufMut::zeroed(len);
        };
        // SAFETY: the unit lies within the arena.
        let start = unsafe { self.start.add(unit as usize * UNIT_BYTES) };
        // SAFETY: the block has at least `len` bytes (`order_of`). It is handed out to no other
        // caller until its owner is dropped (`Buddy`). It is initialized: the mapping began as
        // zeroes.
        unsafe { BufMut::from_raw(start, len, Arc::new(BlockOwner { arena: self, unit, order })) }
    }

    fn take(&'static self, order: u8) -> Option<u32> {
        self.with_magazine(order, |blocks, limit| {
            if blocks.is_empty() {
                // Half a magazine at once, so that many allocations share one lock.
                let mut buddy = self.buddy();
                blocks.extend((0..limit.div_ceil(2)).map_while(|_| buddy.alloc(order)));
            }
            blocks.pop()
        })
        .unwrap_or_else(|| self.buddy().alloc(order))
    }

    fn release(&'static self, unit: u32, order: u8) {
        let kept = self.with_magazine(order, |blocks, limit| {
            if blocks.len() >= limit {
                let mut buddy = self.buddy();
                for unit in blocks.drain(limit / 2..) {
                    buddy.free(unit, order);
                }
            }
            blocks.push(unit);
        });
        if kept.is_none() {
            self.buddy().free(unit, order);
        }
    }

    /// Runs `use_it` with this thread's blocks of an order and their limit, if the thread has a
    /// magazine for that order.
    fn with_magazine<R>(&self, order: u8, use_it: impl FnOnce(&mut Vec<u32>, usize) -> R) -> Option<R> {
        let limit = *MAGAZINE_BLOCKS.get(usize::from(order))?;
        // A buffer may be dropped while thread-locals are being destroyed.
        MAGAZINE
            .try_with(|magazine| {
                let mut magazine = magazine.borrow_mut();
                let magazine = magazine.as_mut().filter(|magazine| ptr::eq(magazine.arena, self))?;
                Some(use_it(&mut magazine.blocks[usize::from(order)], limit))
            })
            .ok()
            .flatten()
    }

    /// Gives the calling thread a magazine, until [`flush_magazines`].
    pub(crate) fn keep_magazine(&'static self) {
        MAGAZINE.with(|magazine| {
            *magazine.borrow_mut() = Some(Magazine { arena: self, blocks: Default::default() });
        });
    }
}

/// Returns the blocks in the calling thread's magazine to the arena. Called at the end of a shard.
pub(crate) fn flush_magazines() {
    let Some(magazine) = MAGAZINE.with(|magazine| magazine.borrow_mut().take()) else { return };
    let mut buddy = magazine.arena.buddy();
    for (order, blocks) in magazine.blocks.into_iter().enumerate() {
        for unit in blocks {
            buddy.free(unit, order as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_arena() -> &'static Arena {
        Box::leak(Box::new(Arena::map(2 * BLOCK_BYTES_MAX).expect("8 MiB can be mapped")))
    }

    fn is_inside(arena: &Arena, buf: &[u8]) -> bool {
        arena.piece_of(buf.as_ptr(), buf.len()).is_some()
    }

    #[test]
    fn an_exhausted_arena_gives_heap_and_later_its_own_again() {
        let arena = small_arena();
        let held: Vec<BufMut> = (0..arena.size_bytes / UNIT_BYTES).map(|_| arena.alloc(UNIT_BYTES)).collect();
        assert!(held.iter().all(|buf| is_inside(arena, buf)));
        assert_eq!(arena.stats(), ArenaStats { size_bytes: arena.size_bytes, free_bytes: 0, heap_fallbacks: 0 });
        let extra = arena.alloc(UNIT_BYTES);
        assert!(!is_inside(arena, &extra) && extra.len() == UNIT_BYTES);
        assert_eq!(arena.stats().heap_fallbacks, 1);
        // From another thread, as a control plane or another shard would.
        std::thread::spawn(move || drop(held)).join().expect("dropping does not panic");
        assert_eq!(arena.stats().free_bytes, arena.size_bytes);
        assert_eq!(arena.alloc(BLOCK_BYTES_MAX).len(), BLOCK_BYTES_MAX);
        assert_eq!(arena.stats().heap_fallbacks, 1);
    }

    #[test]
    fn every_length_gets_an_aligned_buffer_of_its_own() {
        let arena = small_arena();
        for len in [0, 1, 512, 4096, 4097, 24 + 131_072, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1] {
            let mut one = arena.alloc(len);
            let mut other = arena.alloc(len);
            one.fill(1);
            other.fill(2);
            assert!(one.len() == len && one.iter().all(|&byte| byte == 1));
            assert_eq!(one.as_ptr() as usize % ::drive::BUF_ALIGN, 0);
        }
        assert_eq!(arena.stats().free_bytes, arena.size_bytes);
    }

    #[test]
    fn a_magazine_keeps_blocks_and_gives_them_back_at_the_end() {
        let arena = small_arena();
        std::thread::spawn(move || {
            arena.keep_magazine();
            for _ in 0..3 {
                let held: Vec<BufMut> = (0..500).map(|_| arena.alloc(UNIT_BYTES)).collect();
                assert!(held.iter().all(|buf| is_inside(arena, buf)));
            }
            assert!(arena.stats().free_bytes < arena.size_bytes, "the thread keeps some");
            flush_magazines();
        })
        .join()
        .expect("no assertion failed");
        assert_eq!(arena.stats().free_bytes, arena.size_bytes);
    }

    #[test]
    fn a_range_lies_in_a_piece_only_if_it_does_so_whole() {
        let arena = small_arena();
        let (start, piece) = (arena.start.as_ptr(), arena.piece_bytes);
        assert_eq!((arena.piece_count(), 2 * piece), (2, arena.size_bytes));
        assert_eq!(arena.piece_of(start, piece), Some(0));
        assert_eq!(arena.piece_of(start.wrapping_add(piece), piece), Some(1));
        assert_eq!(arena.piece_of(start, piece + 1), None);
        assert_eq!(arena.piece_of(start.wrapping_add(piece), piece + 1), None);
        assert_eq!(arena.piece_of(start.wrapping_sub(1), 2), None);
        assert_eq!(arena.piece_of(start.wrapping_add(arena.size_bytes), 1), None);
        assert_eq!(arena.piece_of(start, 0), None);
        for index in 0..2 {
            let vector = arena.piece(index);
            assert_eq!(arena.piece_of(vector.iov_base.cast(), vector.iov_len), Some(index));
        }
    }
}
