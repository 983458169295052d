//! Checksums of the blocks of members: a table in memory, and its use at reads and writes.

pub(crate) mod loading;
pub(crate) mod saving;
pub(crate) mod sums;
pub(crate) mod verify;
