//! Superblocks on a drive: reading and writing both copies.

use drive::{BufMut, Drive, DriveError};
use format::{BLOCK, Superblock, newest, superblock_offsets};

use crate::drives::retry::{read_retried, write_retried};
use crate::state::cause::Failure;

/// The offsets of the two copies of a drive's superblock.
///
/// # Errors
/// [`DriveError::OutOfRange`] if the drive is too small for two.
pub(crate) fn superblock_places<D: Drive>(drive: &D) -> Result<[u64; 2], DriveError> {
    let size = drive.info().size_bytes;
    superblock_offsets(size).ok_or(DriveError::OutOfRange { offset: 0, len: 2 * BLOCK as u64, size })
}

/// Writes a superblock at the tail and the head of a drive, durably, one after the other. The older
/// or damaged copy is first, since a crash may tear the copy that is being written.
pub(crate) async fn write_superblock<D: Drive>(drive: &D, superblock: &Superblock) -> Result<(), Failure> {
    let bytes = BufMut::copy_of(&superblock.encode()).freeze();
    debug_assert_eq!(bytes.len(), BLOCK);
    let [head, tail] = superblock_places(drive).map_err(|error| Failure::write(0, error))?;
    let read = |offset| read_retried(drive, offset, || BufMut::zeroed(BLOCK));
    let mut copies = [Vec::new(), Vec::new()];
    for (copy, offset) in copies.iter_mut().zip([head, tail]) {
        match read(offset).await {
            Ok(read) => copy.extend_from_slice(&read),
            Err(DriveError::Gone) => return Err(Failure::read(offset, DriveError::Gone)),
            // A damaged copy is written first, which restores it.
            Err(_) => {}
        }
    }
    let head_first = newest(&copies[0], &copies[1]).is_ok_and(|copies| copies.head_stale);
    for offset in if head_first { [head, tail] } else { [tail, head] } {
        let written = write_retried(drive, offset, bytes.clone(), true).await;
        written.map_err(|error| Failure::write(offset, error))?;
    }
    Ok(())
}

/// A drive's superblock: the newer of its copies.
pub(crate) async fn read_superblock<D: Drive>(drive: &D) -> Option<Superblock> {
    let mut copies = [Vec::new(), Vec::new()];
    for (copy, offset) in copies.iter_mut().zip(superblock_places(drive).ok()?) {
        if let Ok(read) = read_retried(drive, offset, || BufMut::zeroed(BLOCK)).await {
            copy.extend_from_slice(&read);
        }
    }
    newest(&copies[0], &copies[1]).ok().map(|copies| copies.superblock)
}
