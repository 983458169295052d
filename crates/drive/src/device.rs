//! The drive interface of the engine.

use std::future::Future;

use smallvec::SmallVec;
use thiserror::Error;

use crate::buf::{Buf, BufMut};
use crate::view::View;

/// The data of one write, in order of address. Gathered requests stay where they arrived and are
/// not copied together.
pub type Segments = SmallVec<[Buf; 2]>;

/// Properties that a drive reports when it is opened. They do not change while the drive is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveInfo {
    /// The name of the drive for users: a path, or `mem:NAME`.
    pub name: String,
    /// Capacity in bytes, a multiple of `sector_bytes`.
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096. Offsets and lengths of every operation are multiples of it.
    pub sector_bytes: u32,
    /// A write of this many bytes, at a multiple of this size, is stored as a whole or not at all
    /// when the power fails during it. A power of two, at least `sector_bytes`, and equal to it if
    /// no larger value is known.
    pub atomic_bytes: u32,
    /// The drive releases discarded ranges (TRIM, hole punching), so it is worthwhile to pass
    /// discards down.
    pub discards: bool,
}

/// A drive: a block device, file, memory, remote namespace or simulated device.
///
/// Buffers are handed over and come back with the result. So an operation whose future is dropped
/// stays safe: the implementation keeps the buffer until the device has finished with it.
///
/// Offsets and lengths are in bytes and multiples of [`DriveInfo::sector_bytes`]. Other values give
/// [`DriveError::Misaligned`], and ranges past the end give [`DriveError::OutOfRange`]. Operations
/// in flight at the same time have no order. A completed write is durable only after a later
/// [`Drive::flush`], or at once with `fua`.
pub trait Drive {
    /// Identity and limits.
    fn info(&self) -> &DriveInfo;

    /// Fills the whole of `buf` from `offset` and returns it. A short read is an error.
    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>>;

    /// Fills the whole of `buf` from `offset` at once, if that needs no waiting. `None` means that
    /// it needs waiting, or that other tasks must go first, and that nothing was read: use
    /// [`Drive::read`]. Only memory drives can return a result.
    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        let _ = (offset, buf);
        None
    }

    /// Calls `look` with the bytes from `offset` on in place, if they are in memory and no waiting
    /// is needed. `None` means that `look` was not called: [`Drive::read`] will return the bytes,
    /// or report the error.
    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let _ = (offset, len, look);
        None
    }

    /// Writes `data`, segment after segment, from `offset` on. With `fua` it is durable when the
    /// call returns.
    fn write(&self, offset: u64, data: Segments, fua: bool) -> impl Future<Output = Result<(), DriveError>>;

    /// Writes `data` from `offset` on at once, if that needs no waiting. `None` as for
    /// [`Drive::read_now`]: use [`Drive::write`].
    #[inline]
    fn write_now(&self, offset: u64, data: &Buf) -> Option<Result<(), DriveError>> {
        let _ = (offset, data);
        None
    }

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), DriveError>>;

    /// Tells the drive that the content of a range is no longer needed. Afterwards the content is
    /// undefined. A drive that cannot discard ([`DriveInfo::discards`] is false) does nothing.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>>;

    /// Makes a range read as zeroes, in the way that is fastest on the device. Durable like a write
    /// without `fua`.
    fn write_zeroes(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>>;
}

/// Why a drive operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DriveError {
    /// The medium could not be read or written there. Other ranges of the drive may be fine.
    #[error("media error at offset {offset}, length {len}")]
    Media {
        /// Start of the failed range, in bytes.
        offset: u64,
        /// Length of the failed range, in bytes.
        len: u64,
    },
    /// The device is no longer there.
    #[error("the drive is gone")]
    Gone,
    /// The device exists, but has not answered within the time limit. The operation may still take
    /// effect.
    #[error("the drive has not answered for {seconds} s")]
    Silent {
        /// How long the caller waited.
        seconds: u32,
    },
    /// The drive has no room for the write (thin devices, files on a full file system).
    #[error("no space left on the drive")]
    NoSpace,
    /// The range reaches past the end of the drive.
    #[error("range {offset}+{len} lies outside of a drive of {size} bytes")]
    OutOfRange {
        /// Start of the refused range, in bytes.
        offset: u64,
        /// Length of the refused range, in bytes.
        len: u64,
        /// Capacity of the drive, in bytes.
        size: u64,
    },
    /// Offset or length is not a multiple of the logical block size.
    #[error("range {offset}+{len} is not aligned to {sector} bytes")]
    Misaligned {
        /// Start of the refused range, in bytes.
        offset: u64,
        /// Length of the refused range, in bytes.
        len: u64,
        /// Logical block size of the drive, in bytes.
        sector: u32,
    },
    /// The drive was opened for reading only.
    #[error("the drive is read-only")]
    ReadOnly,
    /// Any other error of the operating system.
    #[error("{operation} failed with errno {errno}")]
    Os {
        /// The operation that failed.
        operation: &'static str,
        /// `errno` as the kernel gave it.
        errno: i32,
    },
}

impl DriveInfo {
    /// Checks a range against this drive.
    ///
    /// # Errors
    /// [`DriveError::Misaligned`] or [`DriveError::OutOfRange`].
    #[inline]
    pub fn check(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        let sector = u64::from(self.sector_bytes);
        if (offset | len) & (sector - 1) != 0 {
            return Err(DriveError::Misaligned { offset, len, sector: self.sector_bytes });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(DriveError::OutOfRange { offset, len, size: self.size_bytes }),
        }
    }
}
