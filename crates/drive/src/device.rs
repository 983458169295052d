//! The drive as the engine sees it.

use std::future::Future;

use smallvec::SmallVec;
use thiserror::Error;

use crate::buf::{Buf, BufMut};
use crate::view::View;

/// The data of one write, in order of address: gathered requests stay where they arrived and are
/// not copied together.
pub type Segments = SmallVec<[Buf; 2]>;

/// What a drive says of itself when it is opened. It does not change while the drive is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveInfo {
    /// How people know the drive: a path, or `mem:NAME`.
    pub name: String,
    /// Capacity in bytes, a multiple of `sector_bytes`.
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096. Offsets and lengths of every operation are multiples of it.
    pub sector_bytes: u32,
    /// A write of this many bytes, at a multiple of as many, is there as a whole or not at all when
    /// the power fails during it. A power of two, at least `sector_bytes`, and no more where
    /// nothing else is known.
    pub atomic_bytes: u32,
    /// The drive forgets discarded ranges (TRIM, hole punching), so that passing discards down is
    /// worth an operation.
    pub discards: bool,
}

/// A drive: a block device, file, memory, remote namespace or simulated device.
///
/// Buffers are handed over and come back with the result, so that an operation whose future is
/// dropped stays safe: the implementation keeps the buffer until the device has finished with it.
///
/// Offsets and lengths are in bytes and multiples of [`DriveInfo::sector_bytes`]; anything else is
/// [`DriveError::Misaligned`], and whatever reaches past the end is [`DriveError::OutOfRange`].
/// Operations in flight at the same time have no order. A completed write is durable only after a
/// later [`Drive::flush`], or at once with `fua`.
pub trait Drive {
    /// Identity and limits.
    fn info(&self) -> &DriveInfo;

    /// Fills the whole of `buf` from `offset` and gives it back. A short read is an error.
    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>>;

    /// Fills the whole of `buf` from `offset` at once, if nothing has to be waited for. `None` says
    /// that something has, or that others are to go first, and that nothing was done:
    /// [`Drive::read`] will. Only drives that are memory do otherwise.
    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        let _ = (offset, buf);
        None
    }

    /// Has `look` see the bytes from `offset` on where they are, if they are in memory and nothing
    /// has to be waited for. `None` says that it was not called: [`Drive::read`] will give them, or
    /// say what is wrong.
    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let _ = (offset, len, look);
        None
    }

    /// Writes `data`, segment after segment, from `offset` on. With `fua` it is durable when this
    /// returns.
    fn write(&self, offset: u64, data: Segments, fua: bool) -> impl Future<Output = Result<(), DriveError>>;

    /// Writes `data` from `offset` on at once, if nothing has to be waited for. `None` as for
    /// [`Drive::read_now`]: [`Drive::write`] will.
    #[inline]
    fn write_now(&self, offset: u64, data: &Buf) -> Option<Result<(), DriveError>> {
        let _ = (offset, data);
        None
    }

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), DriveError>>;

    /// Says that the content of a range is no longer needed. Afterwards it reads as anything. A
    /// drive that cannot discard ([`DriveInfo::discards`] is false) does nothing.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>>;

    /// Makes a range read as zeroes, by whatever the device does fastest. Durable like a write
    /// without `fua`.
    fn write_zeroes(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>>;
}

/// Why a drive operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DriveError {
    /// The medium could not be read or written there; elsewhere the drive may be fine.
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
    /// The device is there, and has not answered for longer than anybody waits. What it was asked
    /// may still be done.
    #[error("the drive has not answered for {seconds} s")]
    Silent {
        /// How long it was waited for.
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
        /// What was tried.
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
