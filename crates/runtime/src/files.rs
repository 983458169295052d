//! Descriptors that are registered with one ring. They save the kernel a look-up with every
//! operation.

use std::os::fd::RawFd;

/// Empties a slot of the table (`io_uring_register_files_update`).
const EMPTY_SLOT: RawFd = -1;

/// How an operation refers to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A slot of the ring's table.
    Fixed(u32),
    /// A plain descriptor: the table is full or was refused.
    Plain(RawFd),
}

/// Builds an entry for either kind of target.
macro_rules! on_target {
    ($target:expr, |$fd:ident| $build:expr) => {
        match $target {
            $crate::files::Target::Fixed(slot) => {
                let $fd = io_uring::types::Fixed(slot);
                $build
            }
            $crate::files::Target::Plain(raw) => {
                let $fd = io_uring::types::Fd(raw);
                $build
            }
        }
    };
}
pub(crate) use on_target;

/// Free slots of the table.
pub(crate) struct FileTable {
    free: Vec<u32>,
}

impl FileTable {
    /// A table of `slots` free slots; 0 if the kernel refused the table.
    pub(crate) fn new(slots: u32) -> FileTable {
        FileTable { free: (0..slots).rev().collect() }
    }

    /// Puts a descriptor in a free slot.
    pub(crate) fn insert(&mut self, submitter: &io_uring::Submitter<'_>, fd: RawFd) -> Target {
        let Some(slot) = self.free.pop() else { return Target::Plain(fd) };
        match submitter.register_files_update(slot, &[fd]) {
            Ok(_) => Target::Fixed(slot),
            Err(error) => {
                tracing::debug!(%error, "a descriptor was not registered with the ring");
                self.free.push(slot);
                Target::Plain(fd)
            }
        }
    }

    /// Frees the slot. Operations in flight keep the file.
    pub(crate) fn remove(&mut self, submitter: &io_uring::Submitter<'_>, target: Target) {
        let Target::Fixed(slot) = target else { return };
        match submitter.register_files_update(slot, &[EMPTY_SLOT]) {
            Ok(_) => self.free.push(slot),
            // The slot is lost for this ring, and keeps the file open until the ring ends.
            Err(error) => tracing::warn!(%error, slot, "a descriptor was not removed from the ring"),
        }
    }
}
