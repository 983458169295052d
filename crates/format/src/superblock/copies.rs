//! The two copies of a superblock on one drive.

use super::{Superblock, SuperblockError};
use crate::BLOCK;

/// Offsets of the head and the tail copy on a drive of `drive_bytes`: its first and its last whole
/// block. `None` for a drive of fewer than two blocks: it has no room for two copies, so it cannot
/// be a member.
pub fn superblock_offsets(drive_bytes: u64) -> Option<[u64; 2]> {
    let blocks = drive_bytes / BLOCK as u64;
    (blocks >= 2).then(|| [0, (blocks - 1) * BLOCK as u64])
}

/// The result of reading both copies of one drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// The newest valid copy.
    pub superblock: Superblock,
    /// The copy at the head is damaged, absent or older. Write it again, unless the array is
    /// read-only.
    pub head_stale: bool,
    /// The same for the copy at the tail.
    pub tail_stale: bool,
}

/// Reads both copies of a drive: the bytes at [`superblock_offsets`]. An unreadable copy is passed
/// as an empty slice.
///
/// The valid copy with the higher epoch counts. With equal epochs the head counts, which is written
/// last.
///
/// # Errors
/// If both copies are bad: the more telling error of the two. If one copy is good and the other has
/// an unknown version or unknown features: that error, since the unknown copy may be the newer.
/// [`SuperblockError::TwoArrays`] if both are good but belong to different arrays or drives.
pub fn newest(head: &[u8], tail: &[u8]) -> Result<Copies, SuperblockError> {
    match (Superblock::decode(head), Superblock::decode(tail)) {
        (Ok(head), Ok(tail)) if (head.array, head.drive) != (tail.array, tail.drive) => {
            Err(SuperblockError::TwoArrays { head: head.array, tail: tail.array })
        }
        (Ok(head), Ok(tail)) if tail.epoch > head.epoch => {
            Ok(Copies { superblock: tail, head_stale: true, tail_stale: false })
        }
        (Ok(head), Ok(tail)) => {
            let tail_stale = tail != head;
            Ok(Copies { superblock: head, head_stale: false, tail_stale })
        }
        (Ok(_), Err(error)) | (Err(error), Ok(_)) if is_unknown(&error) => Err(error),
        (Ok(superblock), Err(_)) => Ok(Copies { superblock, head_stale: false, tail_stale: true }),
        (Err(_), Ok(superblock)) => Ok(Copies { superblock, head_stale: true, tail_stale: false }),
        (Err(head), Err(tail)) => Err(if telling(&tail) > telling(&head) { tail } else { head }),
    }
}

fn is_unknown(error: &SuperblockError) -> bool {
    matches!(error, SuperblockError::UnknownVersion { .. } | SuperblockError::UnknownFeatures { .. })
}

/// Orders errors by how much they tell about the content of the drive.
fn telling(error: &SuperblockError) -> u8 {
    match error {
        SuperblockError::NotPurlin => 0,
        SuperblockError::Checksum => 1,
        SuperblockError::Invalid { .. } | SuperblockError::TwoArrays { .. } => 2,
        SuperblockError::UnknownVersion { .. } | SuperblockError::UnknownFeatures { .. } => 3,
    }
}
