//! Why an operation failed.

use std::io::{self, ErrorKind};

use thiserror::Error;

use crate::drive::plain;
use crate::lost::LostRange;

/// Each error is one sentence.
#[derive(Debug, Error)]
pub enum RescueError {
    /// No group on the drives has this name.
    #[error("there is no group \"{name}\" on these drives{}", only(.known))]
    NoGroup {
        /// The name that was requested.
        name: String,
        /// The names of the groups that exist.
        known: Vec<String>,
    },
    /// Several groups have this name.
    #[error("there are several groups named \"{name}\": say the UUID instead: {}", uuids.join(", "))]
    SeveralGroups {
        /// The name.
        name: String,
        /// Their UUIDs.
        uuids: Vec<String>,
    },
    /// No volume of the group has this name.
    #[error("there is no volume \"{name}\" in the group{}", only(.known))]
    NoVolume {
        /// The name that was requested.
        name: String,
        /// The names of the volumes that exist.
        known: Vec<String>,
    },
    /// The maps of thin volumes cannot be read.
    #[error("thin volumes cannot be read: {why}")]
    Thin {
        /// The damage.
        why: String,
    },
    /// The group was run twice, each time with other members.
    #[error("{drive} went on without {other} while that went on without it: leave out the drives of one half")]
    Divided {
        /// A drive of one half.
        drive: String,
        /// A drive of the other half.
        other: String,
    },
    /// Two drives have the same identity.
    #[error("{drive} carries the same identity as {other}: one of them is a copy, leave it out")]
    Duplicate {
        /// One drive.
        drive: String,
        /// The other.
        other: String,
    },
    /// There was a catalogue, but no copy of it can be used.
    #[error("the table of volumes cannot be read: {why}")]
    Catalogue {
        /// The damage.
        why: String,
    },
    /// Too much is missing, and a partial result was not allowed.
    #[error("{why}; --partial writes what can be read, and says what is lost")]
    Lost {
        /// The missing parts.
        why: String,
        /// The first ranges of the volume that are lost.
        lost: Vec<LostRange>,
    },
    /// The target exists already.
    #[error("{name} exists; --force overwrites it")]
    TargetExists {
        /// The target.
        name: String,
    },
    /// The target is one of the drives that are read.
    #[error("{name} is one of the drives that are read")]
    TargetIsDrive {
        /// The target.
        name: String,
    },
    /// The target cannot take a volume.
    #[error("{name}: {why}")]
    TargetUnfit {
        /// The target.
        name: String,
        /// The reason.
        why: String,
    },
    /// Writing to the target failed.
    #[error("cannot write {name}: {}", why_unwritten(source))]
    Write {
        /// The target.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
}

fn why_unwritten(source: &io::Error) -> String {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            format!("there is no room for the volume: {}", plain(source))
        }
        _ => plain(source),
    }
}

fn only(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(", only {}", names.join(", ")) }
}
