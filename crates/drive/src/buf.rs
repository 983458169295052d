//! Owned memory for I/O.
//!
//! Invariants:
//! 1. A [`BufMut`] is the only handle to its bytes. A [`Buf`] shares bytes that no longer change.
//! 2. The bytes are initialized, and stay at their address until the last handle to their owner is
//!    dropped.
//! 3. The owner decides how they are released: heap memory is freed, a pool takes its block back.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, OnceLock};

/// Alignment of a fresh buffer's address: the largest logical block size of a drive, and a page.
pub const BUF_ALIGN: usize = 4096;

/// Length of the process-wide block of zeroes behind [`Buf::zeroes`].
const ZERO_BYTES: usize = 1 << 20;

type Owner = Arc<dyn Any + Send + Sync>;

/// Memory that one holder may change. [`BufMut::freeze`] turns it into a [`Buf`].
pub struct BufMut {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Memory that no longer changes. Clones share it.
#[derive(Clone)]
pub struct Buf {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: by invariant 1 a `BufMut` is the only handle to its bytes, and the owner is
// `Send + Sync`.
unsafe impl Send for BufMut {}
// SAFETY: a shared `BufMut` only gives shared access to its bytes.
unsafe impl Sync for BufMut {}
// SAFETY: the bytes of a `Buf` do not change, and the owner is `Send + Sync`.
unsafe impl Send for Buf {}
// SAFETY: as for `Send`.
unsafe impl Sync for Buf {}

/// Heap memory that is freed with its last handle.
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Heap` only frees the memory; access goes through `Buf` and `BufMut`.
unsafe impl Send for Heap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `BufMut::zeroed`, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl BufMut {
    /// Zeroed memory from the heap, aligned to [`BUF_ALIGN`].
    pub fn zeroed(len: usize) -> Self {
        let layout =
            Layout::from_size_align(len.max(1), BUF_ALIGN).expect("a buffer is smaller than the address space");
        // SAFETY: the layout has a size of at least 1.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        BufMut { start, len, owner: Arc::new(Heap { start, layout }) }
    }

    /// A heap copy of `bytes`, aligned to [`BUF_ALIGN`].
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = BufMut::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Wraps memory that has another owner: a pool's block, a mapped device queue.
    ///
    /// # Safety
    /// The `len` bytes at `start` are initialized, stay valid and in place until `owner` is
    /// dropped, and no other code reads or writes them until then.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        BufMut { start, len, owner }
    }

    /// Keeps the first `at` bytes and returns the rest.
    ///
    /// # Panics
    /// If `at` is larger than the length.
    #[must_use = "the rest is lost otherwise"]
    pub fn split_off(&mut self, at: usize) -> BufMut {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        // SAFETY: `at` is within the buffer (checked above), so the address is in bounds or one
        // past the end.
        let start = unsafe { self.start.add(at) };
        let rest = BufMut { start, len: self.len - at, owner: self.owner.clone() };
        self.len = at;
        rest
    }

    /// Joins two parts that [`BufMut::split_off`] separated.
    ///
    /// # Errors
    /// Returns `rest` if it does not directly follow `self` in the same allocation.
    pub fn unsplit(&mut self, rest: BufMut) -> Result<(), BufMut> {
        // SAFETY: one past the end of the same allocation at most.
        let end = unsafe { self.start.add(self.len) };
        if end != rest.start || !Arc::ptr_eq(&self.owner, &rest.owner) {
            return Err(rest);
        }
        self.len += rest.len;
        Ok(())
    }

    /// Removes all bytes past `len`. Does nothing if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ends the changes: the bytes can now be shared.
    pub fn freeze(self) -> Buf {
        Buf { start: self.start, len: self.len, owner: self.owner }
    }
}

impl Buf {
    /// `len` zeroes. Up to 1 MiB they cost no memory.
    pub fn zeroes(len: usize) -> Self {
        static ZEROES: OnceLock<Buf> = OnceLock::new();
        if len > ZERO_BYTES {
            return BufMut::zeroed(len).freeze();
        }
        ZEROES.get_or_init(|| BufMut::zeroed(ZERO_BYTES).freeze()).slice(0..len)
    }

    /// A part of this buffer, sharing its memory.
    ///
    /// # Panics
    /// If the range is not within the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {}", self.len);
        // SAFETY: the start is within the buffer (checked above).
        let start = unsafe { self.start.add(range.start) };
        Buf { start, len: range.end - range.start, owner: self.owner.clone() }
    }

    /// Returns exclusive access if this is the only handle to the whole allocation.
    ///
    /// # Errors
    /// Returns the buffer if another handle shares it.
    pub fn try_into_mut(mut self) -> Result<BufMut, Buf> {
        // A weak handle cannot exist: the owner never leaves this module as an `Arc`, except at its
        // creator.
        if Arc::get_mut(&mut self.owner).is_some() {
            return Ok(BufMut { start: self.start, len: self.len, owner: self.owner });
        }
        Err(self)
    }
}

impl Deref for BufMut {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: invariant 2; the lifetime of the slice is bound to `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: invariants 1 and 2; the lifetime of the slice is bound to `self`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: invariants 1 and 2; the lifetime of the slice is bound to `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for BufMut {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Buf {
        BufMut::copy_of(&bytes).freeze()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buf({} bytes)", self.len)
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BufMut({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parts_are_disjoint_and_join_again() {
        let mut head = BufMut::zeroed(8192);
        let mut tail = head.split_off(4096);
        head.fill(1);
        tail.fill(2);
        assert!(head.iter().all(|&byte| byte == 1) && tail.iter().all(|&byte| byte == 2));
        head.unsplit(tail).expect("adjacent parts of one allocation");
        assert_eq!(head.len(), 8192);
        assert_eq!((head[4095], head[4096]), (1, 2));
    }

    #[test]
    fn parts_of_different_allocations_do_not_join() {
        let mut one = BufMut::zeroed(4096);
        let other = BufMut::zeroed(4096);
        assert!(one.unsplit(other).is_err());
        let mut whole = BufMut::zeroed(3);
        let middle_and_end = whole.split_off(1);
        let mut start = whole;
        let mut middle = middle_and_end;
        let end = middle.split_off(1);
        assert!(start.unsplit(end).is_err(), "a gap is between them");
    }

    #[test]
    fn a_fresh_buffer_is_aligned_and_zero() {
        for len in [0, 1, 511, 4096, 1 << 20] {
            let buf = BufMut::zeroed(len);
            assert_eq!(buf.as_ptr() as usize % BUF_ALIGN, 0);
            assert!(buf.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_shared_buffer_cannot_become_mutable() {
        let buf = BufMut::copy_of(&[1, 2, 3]).freeze();
        let part = buf.slice(1..2);
        let buf = buf.try_into_mut().expect_err("a slice is alive");
        drop(part);
        assert_eq!(&*buf.try_into_mut().expect("alone again"), &[1, 2, 3]);
    }

    #[test]
    fn zeroes_of_any_length_are_zero() {
        for len in [0, 4096, ZERO_BYTES, ZERO_BYTES + 1] {
            assert!(Buf::zeroes(len).len() == len && Buf::zeroes(len).iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn buffers_cross_threads() {
        let buf = BufMut::copy_of(b"abc").freeze();
        let copy = buf.clone();
        std::thread::spawn(move || assert_eq!(&*copy, b"abc")).join().expect("the thread saw the bytes");
        assert_eq!(&*buf, b"abc");
    }
}
