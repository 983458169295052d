//! Taking a group's mark off a drive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/drives/{drive}/wipe`: erase the superblocks of a drive that no running group has. The
/// rest of the drive stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DriveWipe {
    /// Only say what would be done.
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
