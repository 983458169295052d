//! Groups that are on drives, whether they run or not.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::group::{MemoryDrives, check_drives};
use crate::{Invalid, Level};

/// `POST /v1/scan`: which groups are on which drives. Nothing is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupScan {
    /// The drives to read; empty: all block devices of the daemon's machine, and the drives of all
    /// groups that the daemon knows.
    #[serde(default)]
    pub drives: Vec<String>,
}

impl GroupScan {
    /// Checks what can be checked without looking at any drive.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
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
    /// How it protects its data.
    pub level: Level,
    /// Members that it has.
    pub member_count: u32,
    /// Members that were found and can be used.
    pub found_count: u32,
    /// Its drives that were found, spares and unusable ones too.
    pub drives: Vec<String>,
    /// Whether it runs, or could be started from these drives.
    pub state: ScannedState,
    /// Why it cannot be started, or what is wrong with its drives.
    pub reasons: Vec<String>,
    /// The command that starts it; `null` where it runs already, or cannot be started.
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
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}
