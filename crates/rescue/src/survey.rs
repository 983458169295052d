//! Identifies a set of drives.

use std::path::Path;

use crate::drive::{Drive, plain};
use crate::error::RescueError;
use crate::group::Group;
use crate::probe::Probe;

/// A drive and its superblocks.
pub struct SurveyedDrive {
    /// The drive.
    pub drive: Drive,
    /// Its content.
    pub probe: Probe,
}

/// A path that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The name that was given.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// Some drives, and the groups on them.
pub struct Survey {
    /// The drives, in the order they were named.
    pub drives: Vec<SurveyedDrive>,
    /// Paths that could not be opened.
    pub unopened: Vec<Unopened>,
    /// The groups, by name.
    pub groups: Vec<Group>,
}

impl Survey {
    /// Opens drives and images for reading, and probes each.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Survey {
        let mut drives: Vec<Drive> = Vec::new();
        let mut unopened = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let name = path.display().to_string();
            match Drive::open(path) {
                Ok(drive) => match drives.iter().find(|other| other.node() == drive.node()) {
                    Some(other) => unopened.push(Unopened { name, why: format!("is {}, named twice", other.name()) }),
                    None => drives.push(drive),
                },
                Err(error) => unopened.push(Unopened { name, why: plain(&error) }),
            }
        }
        Survey { unopened, ..Survey::of(drives) }
    }

    /// Probes drives that are already open.
    pub fn of(drives: Vec<Drive>) -> Survey {
        let look = |drive| SurveyedDrive { probe: Probe::of(&drive), drive };
        let drives: Vec<SurveyedDrive> = drives.into_iter().map(look).collect();
        let mut groups = Group::find(&drives);
        groups.sort_by(|a, b| (a.name(), a.superblock.array).cmp(&(b.name(), b.superblock.array)));
        Survey { drives, unopened: Vec::new(), groups }
    }

    /// The group with this name or UUID.
    ///
    /// # Errors
    /// [`RescueError::NoGroup`], [`RescueError::SeveralGroups`].
    pub fn group(&self, name: &str) -> Result<&Group, RescueError> {
        let named: Vec<&Group> = self
            .groups
            .iter()
            .filter(|group| group.name() == name || group.superblock.array.to_string() == name)
            .collect();
        match named[..] {
            [group] => Ok(group),
            [] => {
                let known = self.groups.iter().map(|group| group.name().to_owned()).collect();
                Err(RescueError::NoGroup { name: name.to_owned(), known })
            }
            _ => {
                let uuids = named.iter().map(|group| group.superblock.array.to_string()).collect();
                Err(RescueError::SeveralGroups { name: name.to_owned(), uuids })
            }
        }
    }
}
