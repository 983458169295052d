//! Maps a volume's errors to those of the protocol.

use drive::BlockError;
use nbd::Errno;

/// The protocol's error for a volume's error ("Error values"). `changes`: the request writes.
/// Writes have their own error for ranges beyond the end of the export.
pub(crate) fn errno(error: &BlockError, changes: bool) -> Errno {
    match error {
        BlockError::OutOfRange { .. } if changes => Errno::NoSpc,
        BlockError::OutOfRange { .. } => Errno::Inval,
        BlockError::ReadOnly { .. } => Errno::Perm,
        BlockError::Lost { .. } | BlockError::Unknown { .. } => Errno::Io,
        BlockError::NoSpace => Errno::NoSpc,
        BlockError::NotFast => Errno::NotSup,
        BlockError::Stopped => Errno::Shutdown,
    }
}
