//! Operations of a drive that are tried twice.

use drive::{Buf, BufMut, Drive, DriveError, Segments};
use smallvec::smallvec;

/// Flushes a drive. Tries again once after an error.
pub(crate) async fn flush_retried<D: Drive>(drive: &D) -> Result<(), DriveError> {
    twice(async || drive.flush().await).await
}

/// Tries a flush again after an error, unless the drive is gone.
pub(crate) async fn twice(flush: impl AsyncFn() -> Result<(), DriveError>) -> Result<(), DriveError> {
    match flush().await {
        Ok(()) => Ok(()),
        Err(DriveError::Gone) => Err(DriveError::Gone),
        Err(_) => flush().await,
    }
}

/// Reads from a drive into memory that `alloc` gives. Tries again once after an error: an error of
/// the path to the drive is no reason to go on with less data than there is.
pub(crate) async fn read_retried<D: Drive>(
    drive: &D,
    offset: u64,
    alloc: impl Fn() -> BufMut,
) -> Result<BufMut, DriveError> {
    match drive.read(offset, alloc()).await {
        Ok(bytes) => Ok(bytes),
        Err(DriveError::Gone) => Err(DriveError::Gone),
        Err(_) => drive.read(offset, alloc()).await,
    }
}

pub(crate) async fn write_retried<D: Drive>(drive: &D, offset: u64, bytes: Buf, fua: bool) -> Result<(), DriveError> {
    let data: Segments = smallvec![bytes];
    match drive.write(offset, data.clone(), fua).await {
        Ok(()) => Ok(()),
        Err(DriveError::Gone) => Err(DriveError::Gone),
        Err(_) => drive.write(offset, data, fua).await,
    }
}
