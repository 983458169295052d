//! Replaces the running daemon with another program.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// `POST /v1/upgrade`: another program replaces the daemon and takes over its listening sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// The program, on the daemon's machine. Default: the file that is now at the path from which
    /// the daemon was started. It must belong to root or to the daemon's user, and no other user
    /// may be able to change it.
    #[serde(default)]
    pub program: Option<String>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl UpgradeRequest {
    /// Checks everything that does not need access to the program.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        match &self.program {
            Some(program) if !Path::new(program).is_absolute() => Err(Invalid::new(format!(
                "the path {program:?} is relative: the daemon needs one that begins with '/'"
            ))),
            _ => Ok(()),
        }
    }
}

/// `GET /v1/upgrade`: the upgrade in progress, or the one that started this daemon. There is none
/// after other starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgrade {
    /// Its state.
    pub state: UpgradeState,
    /// The program; `null` if there was no upgrade.
    pub program: Option<String>,
    /// Version of the previous daemon; `null` if there was no upgrade.
    pub from_version: Option<String>,
    /// Version of the program; `null` if there was no upgrade.
    pub to_version: Option<String>,
    /// Microseconds from the moment when the daemon stopped accepting connections until all clients
    /// were served again: no client waited longer. `null` before that.
    pub pause_us: Option<u64>,
    /// Why it failed; `null` otherwise.
    pub message: Option<String>,
}

/// State of an upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeState {
    /// There was no upgrade since the daemon was started.
    #[default]
    None,
    /// In progress.
    Running,
    /// The daemon runs the new program.
    Done,
    /// The program could not be executed: the previous daemon continues.
    Failed,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_program_is_refused() {
        let request = |program: &str| UpgradeRequest { program: Some(program.to_owned()), dry_run: false };
        let refused = request("purlind").validate().unwrap_err();
        assert_eq!(refused.to_string(), "the path \"purlind\" is relative: the daemon needs one that begins with '/'");
        assert_eq!(request("/usr/bin/purlind").validate(), Ok(()));
        assert_eq!(UpgradeRequest::default().validate(), Ok(()));
    }
}
