//! From a volume's errors to the protocol's.

use drive::BlockError;
use nbd::Errno;

/// The error of the protocol for a volume's error ("Error values"). `changes`: the request was one
/// that writes, which has its own error for the end of the export.
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
