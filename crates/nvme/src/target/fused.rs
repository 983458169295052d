//! Fused operations: NVMe Base 2.0, clause 3.4.2. The only one is Compare and Write: NVM Command
//! Set 1.0, clause 2.1.5.

use super::{Io, Namespace};
use crate::{Command, Fuse, Status, nvm};

/// The operation of two fused commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompareAndWrite {
    /// First byte.
    pub offset: u64,
    /// Bytes: one block, as ACWU says.
    pub len: u32,
    /// Earlier writes to the block are made durable before the comparison.
    pub compare_fua: bool,
    /// The write is durable when it is answered.
    pub fua: bool,
}

impl CompareAndWrite {
    /// Combines the first and the second command of a fused operation, which arrived in this order.
    ///
    /// # Errors
    /// The status of both commands: they do not cover the same single block.
    pub fn of(first: &Io, second: &Io, namespace: &Namespace) -> Result<CompareAndWrite, Status> {
        match (*first, *second) {
            (Io::Compare { offset, len, fua: compare_fua }, Io::Write { offset: written, len: written_len, fua })
                if (offset, len) == (written, written_len) && len == namespace.block_bytes =>
            {
                Ok(CompareAndWrite { offset, len, compare_fua, fua })
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

/// Refuses a command that cannot be the part of a fused operation that it claims to be.
pub(super) fn check(command: &Command) -> Result<(), Status> {
    match (command.fuse(), command.opcode) {
        (Fuse::No, _) | (Fuse::First, nvm::COMPARE) | (Fuse::Second, nvm::WRITE) => Ok(()),
        _ => Err(Status::INVALID_FIELD),
    }
}
