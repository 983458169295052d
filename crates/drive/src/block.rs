//! What an export sees of a volume.

use std::future::Future;

use thiserror::Error;

use crate::buf::{Buf, BufMut};
use crate::view::View;

/// A byte-addressed block device: a volume as its exports see it.
///
/// Offsets and lengths are in bytes and need no alignment, although whole 4 KiB blocks are
/// cheapest. Requests in flight at the same time have no order. A request runs to its end even if
/// its future is dropped.
pub trait Block {
    /// Capacity in bytes. May change while the volume is in use (resize).
    fn size_bytes(&self) -> u64;

    /// The write size that needs no read in front of it: one full stripe of data, in bytes.
    fn optimal_io_bytes(&self) -> u32;

    /// Fills the whole of `buf` from `offset` and gives it back.
    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, BlockError>>;

    /// Fills the whole of `buf` from `offset` at once, if nothing has to be waited for. False says
    /// that something has, or that it did not go well, and that `buf` holds anything:
    /// [`Block::read`] will do it, or say what is wrong. Only what lies in memory does otherwise.
    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        let _ = (offset, buf);
        false
    }

    /// Has `look` see the bytes from `offset` on where they are, part after part, if they lie in
    /// memory as they are, and nothing has to be waited for. `None` says that it was not called:
    /// [`Block::read_now`] or [`Block::read`] will do it. Whoever takes some of a block of 4 KiB
    /// must take the rest of it before `look` returns, or it may be that of another write.
    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        let _ = (offset, len, look);
        None
    }

    /// Writes `data` at `offset`. With `fua` it is durable when this returns.
    fn write(&self, offset: u64, data: Buf, fua: bool) -> impl Future<Output = Result<(), BlockError>>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> impl Future<Output = Result<(), BlockError>>;

    /// Gives a range back. Afterwards it reads as zeroes, or as anything where
    /// [`Block::discarded_reads_zeroes`] says no.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), BlockError>>;

    /// Ranges that were given back read as zeroes.
    fn discarded_reads_zeroes(&self) -> bool {
        true
    }

    /// Fewer failures would cost data than should, or have: drives are missing, or hold not
    /// everything yet, or blocks were lost.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Makes every request that completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>>;

    /// Which parts of a range hold data. The extents are adjacent, start at `offset`, alternate,
    /// and cover at most `len` bytes; fewer where the implementation limits its answer, but always
    /// at least one.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`].
    fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError>;
}

/// How a range is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteZeroes {
    /// Durable when the call returns.
    pub fua: bool,
    /// Keep the space allocated instead of giving it back.
    pub keep_allocated: bool,
    /// Refuse with [`BlockError::NotFast`] where zeroing would be no faster than writing.
    pub only_fast: bool,
}

/// A part of a volume with one allocation state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, at least 1.
    pub len: u64,
    /// The extent was written. Otherwise it reads as zeroes and takes no space.
    pub allocated: bool,
}

/// Why a request to a volume failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The range reaches past the end of the volume.
    #[error("range {offset}+{len} lies outside of a volume of {size} bytes")]
    OutOfRange {
        /// Start of the refused range, in bytes.
        offset: u64,
        /// Length of the refused range, in bytes.
        len: u64,
        /// Capacity of the volume, in bytes.
        size: u64,
    },
    /// The volume or the group does not take writes now.
    #[error("read-only: {reason}")]
    ReadOnly {
        /// Why.
        reason: &'static str,
    },
    /// More members are lost than the level survives, or too many strips of one stripe cannot be
    /// read.
    #[error("data lost: {lost} strips of a stripe are unreadable, the group survives {survives}")]
    Lost {
        /// Strips of the stripe that could not be read.
        lost: usize,
        /// Strips that may be lost without losing data.
        survives: usize,
    },
    /// The bytes were being written when a crash took a member along, and nobody knows them any
    /// more. Written again as a whole, they are readable again. The range is the group's.
    #[error("bytes {offset}+{len} of the group were lost in a crash: they can be written, not read")]
    Unknown {
        /// Start of the lost block, in bytes.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The drives have no room left.
    #[error("no space left")]
    NoSpace,
    /// Zeroing would be no faster than writing, and the caller wanted only the fast way.
    #[error("write zeroes would not be fast here")]
    NotFast,
    /// The group is being stopped, or is gone.
    #[error("the volume is going away")]
    Stopped,
}
