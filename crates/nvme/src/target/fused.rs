//! Fused operations: NVMe Base 2.0, clause 3.4.2. There is one, Compare and Write: NVM Command Set
//! 1.0, clause 2.1.5.

use super::{Io, Namespace};
use crate::{Command, Fuse, Status, nvm};

/// The one operation that two fused commands are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompareAndWrite {
    /// First byte.
    pub offset: u64,
    /// Bytes: one block, which is what ACWU promises.
    pub len: u32,
    /// What was written there before is durable when it is compared.
    pub compare_fua: bool,
    /// What is written is durable when it is answered.
    pub fua: bool,
}

impl CompareAndWrite {
    /// What two commands are together that came one after the other, the first and the second of a
    /// fused operation.
    ///
    /// # Errors
    /// The status of both: they are not of the same one block.
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

/// Refuses commands that cannot be that part of a fused operation which they say they are.
pub(super) fn check(command: &Command) -> Result<(), Status> {
    match (command.fuse(), command.opcode) {
        (Fuse::No, _) | (Fuse::First, nvm::COMPARE) | (Fuse::Second, nvm::WRITE) => Ok(()),
        _ => Err(Status::INVALID_FIELD),
    }
}
