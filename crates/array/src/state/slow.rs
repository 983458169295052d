//! How long drives have been slow.

use std::collections::BTreeMap;

use drive::Nanos;

use crate::state::slot::DriveId;

/// The slow seconds of a drive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlowSeconds {
    pub(crate) count: u32,
    pub(crate) last: Option<Nanos>,
    pub(crate) reported: bool,
}

/// Slow seconds by drive, as the leader counts them.
pub(crate) type SlowDrives = BTreeMap<DriveId, SlowSeconds>;
