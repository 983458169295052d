//! The interface of a volume for its exports.

use std::future::Future;

use thiserror::Error;

use crate::buf::{Buf, BufMut};
use crate::view::View;

/// A byte-addressed block device: a volume in the form in which exports use it.
///
/// Offsets and lengths are in bytes and need no alignment, although whole 4 KiB blocks are
/// cheapest. Requests in flight at the same time have no order. A request runs to its end even if
/// its future is dropped.
pub trait Block {
    /// Capacity in bytes. It may change while the volume is in use (resize).
    fn size_bytes(&self) -> u64;

    /// The write size that needs no read before it: one full stripe of data, in bytes.
    fn optimal_io_bytes(&self) -> u32;

    /// Fills the whole of `buf` from `offset` and returns it.
    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, BlockError>>;

    /// Fills the whole of `buf` from `offset` at once, if that needs no waiting. False means that
    /// it needs waiting or failed, and the content of `buf` is undefined: [`Block::read`] will do
    /// it, or report the error. Only volumes in memory can return true.
    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        let _ = (offset, buf);
        false
    }

    /// Calls `look` with the bytes from `offset` on in place, part after part, if they are in
    /// memory in plain form and no waiting is needed. `None` means that `look` was not called:
    /// [`Block::read_now`] or [`Block::read`] will do it. If `look` uses a part of a block of 4
    /// KiB, it must read the rest of that block before it returns. Otherwise the rest may come from
    /// another write.
    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        let _ = (offset, len, look);
        None
    }

    /// Writes `data` at `offset`. With `fua` it is durable when the call returns.
    fn write(&self, offset: u64, data: Buf, fua: bool) -> impl Future<Output = Result<(), BlockError>>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> impl Future<Output = Result<(), BlockError>>;

    /// Discards a range. Afterwards it reads as zeroes, or has undefined content if
    /// [`Block::discarded_reads_zeroes`] is false.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), BlockError>>;

    /// Whether discarded ranges read as zeroes.
    fn discarded_reads_zeroes(&self) -> bool {
        true
    }

    /// How much of a thin volume may have content, and has. `None`: it has all of its space.
    fn thin_use(&self) -> Option<ThinUse> {
        None
    }

    /// Whether the redundancy is reduced or data were lost: drives are missing or not fully
    /// rebuilt, or blocks were lost.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Makes every request that completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>>;

    /// The parts of a range that hold data. The extents are adjacent, start at `offset`, alternate,
    /// and cover at most `len` bytes. They cover less if the implementation limits its answer, but
    /// there is always at least one.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`].
    fn extents(&self, offset: u64, len: u64) -> impl Future<Output = Result<Vec<Extent>, BlockError>>;
}

/// How a range is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteZeroes {
    /// Durable when the call returns.
    pub fua: bool,
    /// Keep the space allocated instead of releasing it.
    pub keep_allocated: bool,
    /// Refuse with [`BlockError::NotFast`] if zeroing would be no faster than writing.
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

/// How much of a thin volume may have content, and has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinUse {
    /// Most bytes that may have content.
    pub quota_bytes: u64,
    /// Bytes with content, also if it was just accepted.
    pub written_bytes: u64,
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
    /// The volume or the group does not accept writes at present.
    #[error("read-only: {reason}")]
    ReadOnly {
        /// The cause.
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
    /// A write to these bytes was in progress when a crash also lost a member, so their content is
    /// unknown. They are readable again after they were written as a whole. The range is in bytes
    /// of the group.
    #[error("bytes {offset}+{len} of the group were lost in a crash: they can be written, not read")]
    Unknown {
        /// Start of the lost block, in bytes.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The drives have no space left.
    #[error("no space left")]
    NoSpace,
    /// Zeroing would be no faster than writing, and the caller accepts only the fast way.
    #[error("write zeroes would not be fast here")]
    NotFast,
    /// The group is being stopped, or is gone.
    #[error("the volume is going away")]
    Stopped,
}
