//! The answer to a request that changes something.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The steps that were done (or, with `dry_run`, would be done), and the object as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Changed<T> {
    /// Nothing was changed; `steps` says what would be done.
    pub dry_run: bool,
    /// The steps that were or would be done, in order, one sentence without a full stop each:
    /// "write a superblock to /dev/sdb". For people; the words may change.
    pub steps: Vec<String>,
    /// Facts that the caller should know but that were no reason to refuse: "the group starts
    /// degraded: slot 2 is missing".
    pub warnings: Vec<String>,
    /// The object afterwards; `null` after a dry run, and if the object was removed.
    pub object: Option<T>,
}

impl<T> Changed<T> {
    /// The change is done; `object` is its result.
    pub fn done(steps: Vec<String>, object: T) -> Changed<T> {
        Changed { dry_run: false, steps, warnings: Vec::new(), object: Some(object) }
    }

    /// The change is done; the object was removed.
    pub fn gone(steps: Vec<String>) -> Changed<T> {
        Changed { dry_run: false, steps, warnings: Vec::new(), object: None }
    }

    /// Nothing was done, because a dry run was requested.
    pub fn planned(steps: Vec<String>) -> Changed<T> {
        Changed { dry_run: true, steps, warnings: Vec::new(), object: None }
    }

    /// Adds facts that the caller should know.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Changed<T> {
        self.warnings = warnings;
        self
    }
}
