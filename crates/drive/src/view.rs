//! Memory that others may overwrite at any time.

use std::marker::PhantomData;
use std::ptr;

/// Bytes that others may overwrite meanwhile: no reference to them may be made, and whoever copies
/// them may get what was there, what is there now, or a mixture.
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
    /// They can be read for as long as `'a` lasts.
    pub unsafe fn new(start: *const u8, len: usize) -> View<'a> {
        View { start, len, memory: PhantomData }
    }

    /// Where they begin: for the operating system, which reads `len` bytes from there.
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody looks at nothing")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Fills `buf` with what is there.
    ///
    /// # Panics
    /// If that is not as long.
    #[inline]
    pub fn copy_to(self, buf: &mut [u8]) {
        assert_eq!(self.len, buf.len(), "bytes that are looked at, and room for them");
        // SAFETY: the bytes are there (the promise of `new`), and no buffer overlaps with what
        // others may overwrite.
        unsafe { ptr::copy_nonoverlapping(self.start, buf.as_mut_ptr(), self.len) };
    }

    /// Copies what is behind the first `skip` bytes to the same place in `buf`; nothing if there
    /// are not so many.
    ///
    /// # Panics
    /// If `buf` is not as long.
    pub fn copy_behind(self, skip: usize, buf: &mut [u8]) {
        let skip = skip.min(self.len);
        // SAFETY: not more than there are bytes.
        let rest = unsafe { View::new(self.start.add(skip), self.len - skip) };
        rest.copy_to(&mut buf[skip..]);
    }

    /// Fills `buf` with what is there in several, one after the other.
    ///
    /// # Panics
    /// If they are together not as long.
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
