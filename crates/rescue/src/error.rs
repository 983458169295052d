//! Why something could not be done.

use std::io;

use thiserror::Error;

use crate::drive::plain;
use crate::extract::LostRange;

/// One sentence.
#[derive(Debug, Error)]
pub enum RescueError {
    /// No group on the drives has this name.
    #[error("there is no group \"{name}\" on these drives{}", only(.known))]
    NoGroup {
        /// What was asked for.
        name: String,
        /// The names of those that are there.
        known: Vec<String>,
    },
    /// Several groups have this name.
    #[error("there are several groups named \"{name}\": say the UUID instead: {}", uuids.join(", "))]
    SeveralGroups {
        /// The name.
        name: String,
        /// Which they are.
        uuids: Vec<String>,
    },
    /// No volume of the group has this name.
    #[error("there is no volume \"{name}\" in the group{}", only(.known))]
    NoVolume {
        /// What was asked for.
        name: String,
        /// The names of those that are there.
        known: Vec<String>,
    },
    /// The group was run twice, each time with other members.
    #[error("{drive} went on without {other} while that went on without it: leave out the drives of one half")]
    Divided {
        /// A drive of one half.
        drive: String,
        /// One of the other.
        other: String,
    },
    /// Two drives are the same one.
    #[error("{drive} carries the same identity as {other}: one of them is a copy, leave it out")]
    Duplicate {
        /// One drive.
        drive: String,
        /// The other.
        other: String,
    },
    /// No copy of the catalogue can be used, though there was one.
    #[error("the table of volumes cannot be read: {why}")]
    Catalogue {
        /// What is wrong with it.
        why: String,
    },
    /// Too much is missing, and nobody said that a part is enough.
    #[error("{why}; --partial writes what can be read, and says what is lost")]
    Lost {
        /// What is missing.
        why: String,
        /// The first ranges of the volume that are lost.
        lost: Vec<LostRange>,
    },
    /// The target is there already.
    #[error("{name} exists; --force overwrites it")]
    TargetExists {
        /// The target.
        name: String,
    },
    /// The target is one of the drives.
    #[error("{name} is one of the drives that are read")]
    TargetIsDrive {
        /// The target.
        name: String,
    },
    /// The target is no place for a volume.
    #[error("{name}: {why}")]
    TargetUnfit {
        /// The target.
        name: String,
        /// Why not.
        why: String,
    },
    /// The target did not take the bytes.
    #[error("cannot write {name}: {}", plain(source))]
    Write {
        /// The target.
        name: String,
        /// Why.
        source: io::Error,
    },
}

fn only(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(", only {}", names.join(", ")) }
}
