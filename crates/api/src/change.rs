//! The answer to a request that changes something.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What was done, or with `dry_run` what would be done, and the object as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Changed<T> {
    /// Nothing was changed; `steps` says what would have been.
    pub dry_run: bool,
    /// What was done or would be done, in order, one sentence without a full stop each: "write a
    /// superblock to /dev/sdb". For people; the words may change.
    pub steps: Vec<String>,
    /// What the caller should know, although it was no reason to refuse: "the group starts
    /// degraded: slot 2 is missing".
    pub warnings: Vec<String>,
    /// The object afterwards; `null` after a dry run and where the object is gone.
    pub object: Option<T>,
}

impl<T> Changed<T> {
    /// Done; the object is now this.
    pub fn done(steps: Vec<String>, object: T) -> Changed<T> {
        Changed { dry_run: false, steps, warnings: Vec::new(), object: Some(object) }
    }

    /// Done; the object is gone.
    pub fn gone(steps: Vec<String>) -> Changed<T> {
        Changed { dry_run: false, steps, warnings: Vec::new(), object: None }
    }

    /// Not done, because a dry run was asked for.
    pub fn planned(steps: Vec<String>) -> Changed<T> {
        Changed { dry_run: true, steps, warnings: Vec::new(), object: None }
    }

    /// Adds what the caller should know.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Changed<T> {
        self.warnings = warnings;
        self
    }
}
