//! Which members of a group do not answer.

use std::collections::BTreeMap;
use std::time::Instant;

use array::DriveId;

/// Drives that do not answer, and why.
pub(crate) type Silent = BTreeMap<DriveId, String>;

/// The known state of a group's drives, including spares.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Drives that have not answered yet, and since when.
    pub(crate) asked: BTreeMap<DriveId, Instant>,
    /// Drives that do not answer, and why.
    pub(crate) silent: Silent,
}
