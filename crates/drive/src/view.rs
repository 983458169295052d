//! Memory that other code may overwrite at any time.

use std::marker::PhantomData;
use std::ptr;

/// Bytes that other code may overwrite at the same time. No reference to them may be made. A copy
/// of them may hold the old content, the new content, or a mixture.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> View<'a> {
    /// `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes can be read for as long as `'a` lasts.
    pub unsafe fn new(start: *const u8, len: usize) -> View<'a> {
        View { start, len, memory: PhantomData }
    }

    /// Their address: for the operating system, which reads `len` bytes from there.
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody looks at nothing")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Fills `buf` with the bytes.
    ///
    /// # Panics
    /// If `buf` has another length.
    #[inline]
    pub fn copy_to(self, buf: &mut [u8]) {
        assert_eq!(self.len, buf.len(), "bytes that are looked at, and room for them");
        // SAFETY: the bytes can be read (the promise of `new`), and no buffer overlaps with memory
        // that other code may overwrite.
        unsafe { ptr::copy_nonoverlapping(self.start, buf.as_mut_ptr(), self.len) };
    }

    /// Copies the bytes after the first `skip` ones to the same place in `buf`. Copies none if
    /// there are not more than `skip` bytes.
    ///
    /// # Panics
    /// If `buf` has another length.
    pub fn copy_behind(self, skip: usize, buf: &mut [u8]) {
        let skip = skip.min(self.len);
        // SAFETY: `skip` is at most the number of bytes.
        let rest = unsafe { View::new(self.start.add(skip), self.len - skip) };
        rest.copy_to(&mut buf[skip..]);
    }

    /// Fills `buf` with the bytes of several views, one after the other.
    ///
    /// # Panics
    /// If their total length is another one.
    pub fn copy_all(views: &[View<'_>], buf: &mut [u8]) {
        let mut rest = buf;
        for view in views {
            let part = rest.split_off_mut(..view.len).expect("room for bytes that are looked at");
            view.copy_to(part);
        }
        assert!(rest.is_empty(), "room for more than is looked at");
    }
}

impl<'a> From<&'a [u8]> for View<'a> {
    fn from(bytes: &'a [u8]) -> View<'a> {
        View { start: bytes.as_ptr(), len: bytes.len(), memory: PhantomData }
    }
}
