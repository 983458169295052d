//! The ANA state of an export.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// How an export over NVMe/TCP reaches its volume, as reported to hosts with several paths: the
/// state of Asymmetric Namespace Access (ANA).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// The best path. Hosts spread their I/O over all optimized paths.
    Optimized,
    /// A path that hosts use only if none is optimized.
    NonOptimized,
    /// No path: commands for the namespace are refused, and hosts use another path or wait.
    Inaccessible,
    /// A state that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl AnaState {
    /// The name in Linux, nvme-cli and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            AnaState::Optimized => "optimized",
            AnaState::NonOptimized => "non-optimized",
            AnaState::Inaccessible => "inaccessible",
            AnaState::Unknown => "unknown",
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AnaState {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<AnaState, Invalid> {
        let states = [AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible];
        let state = states.into_iter().find(|state| state.as_str() == text);
        state.ok_or_else(|| {
            Invalid::new(format!("{text:?} is not an ANA state: choose optimized, non-optimized or inaccessible"))
        })
    }
}

/// `PATCH /v1/exports/{id}`: change an export while clients are connected. Fields that are omitted
/// or `null` stay unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportUpdate {
    /// How the export reaches its volume. For NVMe/TCP.
    #[serde(default)]
    pub ana: Option<AnaState>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl ExportUpdate {
    /// Checks the values, and returns the state.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<AnaState, Invalid> {
        match self.ana {
            None => Err(Invalid::new("there is nothing to change: name an ANA state")),
            Some(AnaState::Unknown) => {
                Err(Invalid::new("there is no such ANA state: choose optimized, non-optimized or inaccessible"))
            }
            Some(state) => Ok(state),
        }
    }
}
