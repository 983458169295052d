//! Drives of other machines that a group has lost and looks for.

use std::time::Instant;

use crate::engine::memory::DrivePlace;

/// A drive of a group that could not be reached when the group looked for it.
#[derive(Debug, Clone)]
pub(crate) struct DisconnectedDrive {
    pub place: DrivePlace,
    pub(crate) not_before: Instant,
    /// The last reason that was logged.
    pub(crate) logged: String,
}

impl DisconnectedDrive {
    pub fn new(place: DrivePlace) -> DisconnectedDrive {
        DisconnectedDrive { place, not_before: Instant::now(), logged: String::new() }
    }
}
