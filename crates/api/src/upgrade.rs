//! Another program in the place of the running daemon.

use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// `POST /v1/upgrade`: another program takes the daemon's place, and its listening sockets with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// The program, on the daemon's machine; default: what now lies where the daemon was started
    /// from. It must belong to root or to the daemon's user, and nobody else may be able to change
    /// it.
    #[serde(default)]
    pub program: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl UpgradeRequest {
    /// Checks what can be checked without looking at the program.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        match &self.program {
            Some(program) if !Path::new(program).is_absolute() => Err(Invalid::new(format!(
                "the path {program:?} is relative: the daemon needs one that begins with '/'"
            ))),
            _ => Ok(()),
        }
    }
}

/// `GET /v1/upgrade`: the upgrade that is under way, or the one that this daemon came from. Other
/// starts know of none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgrade {
    /// How it stands.
    pub state: UpgradeState,
    /// The program; `null` where there was none.
    pub program: Option<String>,
    /// Version of the daemon before; `null` where there was none.
    pub from_version: Option<String>,
    /// Version of the program; `null` where there was none.
    pub to_version: Option<String>,
    /// Microseconds from the moment when the daemon stopped taking connections until all was served
    /// again: no client waited longer. `null` before.
    pub pause_us: Option<u64>,
    /// Why it failed; `null` otherwise.
    pub message: Option<String>,
}

/// How an upgrade stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeState {
    /// There was none since the daemon was started.
    #[default]
    None,
    /// Under way.
    Running,
    /// The daemon is the new program.
    Done,
    /// The program could not be executed: the daemon is the one from before.
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
