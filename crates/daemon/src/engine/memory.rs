//! What the daemon remembers of its groups between runs: which drives to look at. Only a help: the truth is on the
//! drives, and `purlin group assemble` needs nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A group and where its drives were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remembered {
    pub name: String,
    pub uuid: String,
    pub drives: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    groups: Vec<Remembered>,
}

/// The state directory, locked for this process.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Memory {
    /// Opens a directory, making it if it is not there.
    pub fn open(directory: &Path) -> io::Result<Memory> {
        fs::create_dir_all(directory)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another purlind uses this state directory")
            }
            fs::TryLockError::Error(error) => error,
        })?;
        Ok(Memory { path: directory.join("groups.json"), _lock: lock })
    }

    /// What was remembered; nothing if nothing was.
    pub fn load(&self) -> io::Result<Vec<Remembered>> {
        match fs::read(&self.path) {
            Ok(bytes) => {
                let document: Document = serde_json::from_slice(&bytes)?;
                Ok(document.groups)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Replaces what is remembered: all of it or nothing.
    pub fn save(&self, groups: Vec<Remembered>) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(&Document { groups })?;
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        let directory = self.path.parent().expect("a file in the state directory has a parent");
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_a_second_daemon_is_refused() {
        let directory = std::env::temp_dir().join(format!("purlin-memory-{}", std::process::id()));
        let memory = Memory::open(&directory).unwrap();
        assert_eq!(memory.load().unwrap(), []);
        let groups = vec![Remembered { name: "tank".into(), uuid: "u".into(), drives: vec!["/dev/a".into()] }];
        memory.save(groups.clone()).unwrap();
        assert_eq!(memory.load().unwrap(), groups);
        let refused = Memory::open(&directory).unwrap_err();
        assert_eq!(refused.to_string(), "another purlind uses this state directory");
        drop(memory);
        assert_eq!(Memory::open(&directory).unwrap().load().unwrap(), groups);
        fs::remove_dir_all(&directory).unwrap();
    }
}
