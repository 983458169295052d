//! Groups that are found on drives, whether they run or not.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::group::{MemoryDrives, check_drives};
use crate::{Invalid, Level};

/// `POST /v1/scan`: find the groups on drives. Nothing is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupScan {
    /// The drives to read; empty: all block devices of the daemon's machine, and the drives of all
    /// groups that the daemon knows.
    #[serde(default)]
    pub drives: Vec<String>,
}

impl GroupScan {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_drives(self.drives.iter(), MemoryDrives::Optional)
    }
}

/// The answer to [`GroupScan`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scanned {
    /// The groups that were found, by name and identity.
    pub groups: Vec<ScannedGroup>,
    /// The drives that are part of no group, and why.
    pub others: Vec<ScannedDrive>,
}

/// A group that was found on drives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScannedGroup {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its RAID level.
    pub level: Level,
    /// Number of members of the group.
    pub member_count: u32,
    /// Members that were found and are usable.
    pub found_count: u32,
    /// Its drives that were found, including spares and unusable ones.
    pub drives: Vec<String>,
    /// Whether it runs, or could be started from these drives.
    pub state: ScannedState,
    /// Why it cannot be started, or the problems of its drives.
    pub reasons: Vec<String>,
    /// The command that starts it; `null` if it runs already or cannot be started.
    pub command: Option<String>,
}

/// Whether a group could be started from the drives that were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScannedState {
    /// It runs in this daemon.
    Running,
    /// It would start with all of its members.
    Optimal,
    /// It would start without some of its members.
    Degraded,
    /// It cannot be started.
    CannotStart,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl ScannedState {
    /// The words in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            ScannedState::Running => "running",
            ScannedState::Optimal => "can start",
            ScannedState::Degraded => "can start degraded",
            ScannedState::CannotStart => "cannot start",
            ScannedState::Unknown => "unknown",
        }
    }
}

/// A drive that is part of no group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScannedDrive {
    /// Its name.
    pub drive: String,
    /// Its contents, or the reason why it could not be read.
    pub reason: String,
}

/// `POST /v1/groups/{group}/start`: start a group whose drives the daemon knows or finds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupStart {
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}
