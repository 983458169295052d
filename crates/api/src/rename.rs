//! New names for groups and volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::group::check_group_name;
use crate::{Invalid, check_name};

/// `PATCH /v1/groups/{group}/name` and `PATCH /v1/volumes/{group}/{volume}/name`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The new name. For a volume, its name in the group: a volume stays in its group.
    pub name: String,
    /// Rename even if NBD clients are connected. They know volumes by name and lose their
    /// connections. Block devices and NVMe hosts keep theirs in any case.
    #[serde(default)]
    pub force: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl Rename {
    /// Checks the new name of a group.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate_group(&self) -> Result<(), Invalid> {
        check_group_name(&self.name)
    }

    /// Checks the new name of a volume.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate_volume(&self) -> Result<(), Invalid> {
        check_name("volume", &self.name)
    }
}
