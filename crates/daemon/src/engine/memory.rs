//! What the daemon remembers of its groups between runs: which drives to look at. Only a help: the
//! truth is on the drives, and `purlin group assemble` needs nothing else. And all of its imports,
//! of which nothing can be on the drives, and of its referrals, which are this machine's and no
//! group's.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::import::RememberedImport;
use super::replace::Replacing;

/// Ending of the files that keep what groups have in memory.
const KEPT: &str = "kept";

/// Who may read a document of the state directory: its user.
const PRIVATE: u32 = 0o600;

/// Who may look into a state directory that the daemon makes: its user.
const PRIVATE_FOLDER: u32 = 0o700;

/// A group and where its drives were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remembered {
    pub name: String,
    pub uuid: String,
    pub drives: Vec<Place>,
}

/// Where a drive was, and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenPlace")]
pub(super) struct Place {
    /// As a person would write it.
    pub drive: String,
    /// What it is under any name; `None` where it does not say.
    pub identity: Option<String>,
}

impl Place {
    pub fn is_memory(&self) -> bool {
        self.drive.starts_with("mem:")
    }

    /// Whether the other is the same drive: by what they are, else by where they were.
    pub fn is_same(&self, other: &Place) -> bool {
        match (&self.identity, &other.identity) {
            (Some(this), Some(that)) => this == that,
            _ => self.drive == other.drive,
        }
    }

    /// A drive of another machine.
    pub fn is_remote(&self) -> bool {
        self.drive.starts_with(api::NVME_TCP)
    }
}

/// A place as it is written now, or as it was before drives had identities.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenPlace {
    Drive(String),
    Identified { drive: String, identity: Option<String> },
}

impl From<WrittenPlace> for Place {
    fn from(written: WrittenPlace) -> Place {
        match written {
            WrittenPlace::Drive(drive) => Place { drive, identity: None },
            WrittenPlace::Identified { drive, identity } => Place { drive, identity },
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    groups: Vec<Remembered>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrivesDocument {
    drives: Option<BTreeSet<String>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplacementsDocument {
    replacements: Vec<Replacing>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportsDocument {
    imports: Vec<RememberedImport>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferralsDocument {
    referrals: BTreeSet<SocketAddr>,
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
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(directory)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another purlind uses this state directory")
            }
            fs::TryLockError::Error(error) => error,
        })?;
        runtime::forget_kept(directory, KEPT)?;
        Ok(Memory { path: directory.join("groups.json"), _lock: lock })
    }

    /// The file that keeps what a group has in memory over a kill.
    pub fn kept_path(&self, group: &format::Uuid) -> PathBuf {
        self.path.with_file_name(format!("{group}.{KEPT}"))
    }

    /// What was remembered; nothing if nothing was. It is a hint: without it groups have to be
    /// assembled by hand.
    pub fn load(&self) -> io::Result<Vec<Remembered>> {
        Ok(read_hint::<Document>(&self.path, "groups have to be started by hand: purlin group assemble")?.groups)
    }

    /// Replaces what is remembered: all of it or nothing.
    pub fn save(&self, groups: Vec<Remembered>) -> io::Result<()> {
        replace(&self.path, &serde_json::to_vec_pretty(&Document { groups })?)
    }

    fn stopped_path(&self) -> PathBuf {
        self.path.with_file_name("stopped.json")
    }

    /// The groups that were stopped on request. It is a hint.
    pub fn load_stopped(&self) -> io::Result<Vec<Remembered>> {
        let then = "groups that were stopped have to be started by hand: purlin group assemble";
        Ok(read_hint::<Document>(&self.stopped_path(), then)?.groups)
    }

    /// Replaces the groups that were stopped: all or nothing.
    pub fn save_stopped(&self, groups: Vec<Remembered>) -> io::Result<()> {
        replace(&self.stopped_path(), &serde_json::to_vec_pretty(&Document { groups })?)
    }

    fn drives_path(&self) -> PathBuf {
        self.path.with_file_name("drives.json")
    }

    /// What the drives were that were there and nothing new; `None` if that was never written. It
    /// is a hint.
    pub fn load_drives(&self) -> io::Result<Option<BTreeSet<String>>> {
        let document: DrivesDocument = read_hint(&self.drives_path(), "no drive counts as new at this start")?;
        Ok(document.drives)
    }

    /// Replaces the drives that are nothing new: all or nothing.
    pub fn save_drives(&self, drives: BTreeSet<String>) -> io::Result<()> {
        let document = DrivesDocument { drives: Some(drives) };
        replace(&self.drives_path(), &serde_json::to_vec_pretty(&document)?)
    }

    fn replacements_path(&self) -> PathBuf {
        self.path.with_file_name("replacements.json")
    }

    /// The members that were being copied to other drives. It is a hint.
    pub fn load_replacements(&self) -> io::Result<Vec<Replacing>> {
        let then = "members that were being copied to other drives are not: purlin drive replace";
        Ok(read_hint::<ReplacementsDocument>(&self.replacements_path(), then)?.replacements)
    }

    /// Replaces the members that are being copied: all or nothing.
    pub fn save_replacements(&self, replacements: Vec<Replacing>) -> io::Result<()> {
        replace(&self.replacements_path(), &serde_json::to_vec_pretty(&ReplacementsDocument { replacements })?)
    }

    fn imports_path(&self) -> PathBuf {
        self.path.with_file_name("imports.json")
    }

    /// The imports that were remembered. All that is known of them is here.
    pub fn load_imports(&self) -> io::Result<Vec<RememberedImport>> {
        let document: ImportsDocument = read(&self.imports_path(), "the imports that it lists are imported again")?;
        Ok(document.imports)
    }

    /// Replaces the imports that are remembered: all or nothing.
    pub fn save_imports(&self, imports: Vec<RememberedImport>) -> io::Result<()> {
        replace(&self.imports_path(), &serde_json::to_vec_pretty(&ImportsDocument { imports })?)
    }

    fn referrals_path(&self) -> PathBuf {
        self.path.with_file_name("referrals.json")
    }

    /// The discovery services that NVMe hosts are told of.
    pub fn load_referrals(&self) -> io::Result<BTreeSet<SocketAddr>> {
        let document: ReferralsDocument = read(&self.referrals_path(), "the referrals that it lists are added again")?;
        Ok(document.referrals)
    }

    /// Replaces the referrals that are remembered: all or nothing.
    pub fn save_referrals(&self, referrals: &BTreeSet<SocketAddr>) -> io::Result<()> {
        let document = ReferralsDocument { referrals: referrals.clone() };
        replace(&self.referrals_path(), &serde_json::to_vec_pretty(&document)?)
    }
}

/// A document of the state directory that nothing else can tell; an empty one if it was never
/// written. `then` is what has to be done where it is moved away.
///
/// # Errors
/// If it is there and cannot be read: the message names the file and the way out.
pub(super) fn read<T: Default + DeserializeOwned>(path: &Path, then: &str) -> io::Result<T> {
    parse(path).map_err(|error| {
        let file = path.display();
        io::Error::new(
            error.kind(),
            format!("{file} cannot be read: {error}; repair it, or move it away and start again: {then}"),
        )
    })
}

/// A document of the state directory that only helps. One that cannot be read is put aside, with a
/// warning, and counts as never written: `then` is what that costs.
///
/// # Errors
/// If it can neither be read nor put aside: it would be overwritten.
fn read_hint<T: Default + DeserializeOwned>(path: &Path, then: &str) -> io::Result<T> {
    parse(path).or_else(|error| {
        let aside = path.with_extension("unreadable");
        let (file, kept) = (path.display(), aside.display());
        tracing::error!(%file, %error, %kept, then, "a file of the state directory cannot be read, and is put aside");
        fs::rename(path, &aside)?;
        Ok(T::default())
    })
}

fn parse<T: Default + DeserializeOwned>(path: &Path) -> io::Result<T> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Replaces a file of the state directory: all of it or nothing. Secrets may be in it: only the
/// daemon's user reads it.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(PRIVATE).open(&fresh)?;
    // One that was left behind may be anybody's to read.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let directory = path.parent().expect("a file in the state directory has a parent");
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(drive: &str, identity: Option<&str>) -> Place {
        Place { drive: drive.into(), identity: identity.map(Into::into) }
    }

    #[test]
    fn what_was_remembered_before_drives_had_identities_is_read() {
        let document: Document = serde_json::from_str(
            r#"{ "groups": [ { "name": "tank", "uuid": "u", "drives": ["/dev/a", "mem:b:4096"] } ] }"#,
        )
        .unwrap();
        assert_eq!(document.groups[0].drives, [place("/dev/a", None), place("mem:b:4096", None)]);
    }

    #[test]
    fn a_hint_that_cannot_be_read_is_put_aside_and_anything_else_is_named_with_the_way_out() {
        let directory = std::env::temp_dir().join(format!("purlin-damaged-{}", std::process::id()));
        let memory = Memory::open(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, PRIVATE_FOLDER);
        for damaged in ["", "{", "[]", "{\"groups\": 3}"] {
            for file in ["groups.json", "drives.json", "imports.json", "referrals.json"] {
                fs::write(directory.join(file), damaged).unwrap();
            }
            assert_eq!(memory.load().unwrap(), []);
            assert_eq!(memory.load_drives().unwrap(), None);
            for file in ["groups", "drives"] {
                assert!(!directory.join(format!("{file}.json")).exists());
                assert_eq!(fs::read_to_string(directory.join(format!("{file}.unreadable"))).unwrap(), damaged);
            }
            let refusals = [memory.load_imports().unwrap_err(), memory.load_referrals().unwrap_err()];
            for (refused, file) in refusals.into_iter().zip(["imports.json", "referrals.json"]) {
                let message = refused.to_string();
                assert!(message.contains(file) && message.contains("move it away"), "{message}");
            }
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_saved_is_loaded_and_a_second_daemon_is_refused() {
        let directory = std::env::temp_dir().join(format!("purlin-memory-{}", std::process::id()));
        let memory = Memory::open(&directory).unwrap();
        assert_eq!(memory.load().unwrap(), []);
        let groups = vec![Remembered {
            name: "tank".into(),
            uuid: "u".into(),
            drives: vec![place("/dev/a", Some("eui.1")), place("/f", None)],
        }];
        memory.save(groups.clone()).unwrap();
        assert_eq!(memory.load().unwrap(), groups);
        let refused = Memory::open(&directory).unwrap_err();
        assert_eq!(refused.to_string(), "another purlind uses this state directory");
        drop(memory);
        assert_eq!(Memory::open(&directory).unwrap().load().unwrap(), groups);
        fs::remove_dir_all(&directory).unwrap();
    }
}
