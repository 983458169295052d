//! Removes the superblocks of a group from a drive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/drives/{drive}/wipe`: erase the superblocks of a drive that belongs to no running
/// group. The rest of the drive stays unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DriveWipe {
    /// Only report what would be done; change nothing.
    pub dry_run: bool,
}

/// A drive that belongs to no group any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WipedDrive {
    /// Its name.
    pub drive: String,
    /// The name of the group that it belonged to.
    pub group: String,
    /// The identity of that group.
    pub uuid: String,
}
