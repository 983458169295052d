//! The state directory: what the daemon remembers between runs.
//!
//! Of groups it only remembers where to look for drives. That is a hint: the drives hold the truth,
//! and `purlin group assemble` works without it. Of imports it remembers everything, because none
//! of that can be on their drives. Referrals are here as well, because they belong to this machine
//! and not to a group.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use format::ExportRecord;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The extension of the files with the warm-restart state of groups.
const KEPT: &str = "kept";

/// The mode of a document of the state directory: only its user may read it.
const PRIVATE: u32 = 0o600;

/// The mode of a state directory that the daemon makes: only its user may enter it.
const PRIVATE_FOLDER: u32 = 0o700;

/// A group and where its drives were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remembered {
    pub name: String,
    pub uuid: String,
    pub drives: Vec<DrivePlace>,
}

/// The path and identity of a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenPlace")]
pub(crate) struct DrivePlace {
    /// The drive in the form that an operator writes.
    pub drive: String,
    /// The identity under any name; `None` if the drive reports none.
    pub identity: Option<String>,
}

impl DrivePlace {
    pub fn is_memory(&self) -> bool {
        self.drive.starts_with("mem:")
    }

    /// Whether the other is the same drive: by identity if both have one, else by path.
    pub fn is_same(&self, other: &DrivePlace) -> bool {
        match (&self.identity, &other.identity) {
            (Some(this), Some(that)) => this == that,
            _ => self.drive == other.drive,
        }
    }

    /// Whether it is a drive of another machine.
    pub fn is_remote(&self) -> bool {
        self.drive.starts_with(api::NVME_TCP)
    }
}

/// A place in the current file format, or in the format before drives had identities.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenPlace {
    Drive(String),
    Identified { drive: String, identity: Option<String> },
}

impl From<WrittenPlace> for DrivePlace {
    fn from(written: WrittenPlace) -> DrivePlace {
        match written {
            WrittenPlace::Drive(drive) => DrivePlace { drive, identity: None },
            WrittenPlace::Identified { drive, identity } => DrivePlace { drive, identity },
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
pub(crate) struct Memory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Memory {
    /// Opens a directory and makes it if it does not exist.
    pub fn open(directory: &Path) -> io::Result<Memory> {
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(directory)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another purlind uses this state directory")
            }
            fs::TryLockError::Error(error) => error,
        })?;
        runtime::forget_warm(directory, KEPT)?;
        Ok(Memory { path: directory.join("groups.json"), _lock: lock })
    }

    /// The file with the warm-restart state of a group.
    pub fn warm_path(&self, group: &format::Uuid) -> PathBuf {
        self.path.with_file_name(format!("{group}.{KEPT}"))
    }

    /// The remembered groups; empty if none were saved. This is a hint: without it groups have to
    /// be assembled by hand.
    pub fn load(&self) -> io::Result<Vec<Remembered>> {
        Ok(read_hint::<Document>(&self.path, "groups have to be started by hand: purlin group assemble")?.groups)
    }

    /// Replaces the remembered groups atomically.
    pub fn save(&self, groups: Vec<Remembered>) -> io::Result<()> {
        replace(&self.path, &serde_json::to_vec_pretty(&Document { groups })?)
    }

    fn stopped_path(&self) -> PathBuf {
        self.path.with_file_name("stopped.json")
    }

    /// The groups that were stopped on request. This is a hint.
    pub fn load_stopped(&self) -> io::Result<Vec<Remembered>> {
        let then = "groups that were stopped have to be started by hand: purlin group assemble";
        Ok(read_hint::<Document>(&self.stopped_path(), then)?.groups)
    }

    /// Replaces the groups that were stopped, atomically.
    pub fn save_stopped(&self, groups: Vec<Remembered>) -> io::Result<()> {
        replace(&self.stopped_path(), &serde_json::to_vec_pretty(&Document { groups })?)
    }

    fn drives_path(&self) -> PathBuf {
        self.path.with_file_name("drives.json")
    }

    /// The identities of the drives that are not new; `None` if that was never written. This is a
    /// hint.
    pub fn load_drives(&self) -> io::Result<Option<BTreeSet<String>>> {
        let document: DrivesDocument = read_hint(&self.drives_path(), "no drive counts as new at this start")?;
        Ok(document.drives)
    }

    /// Replaces the drives that are not new, atomically.
    pub fn save_drives(&self, drives: BTreeSet<String>) -> io::Result<()> {
        let document = DrivesDocument { drives: Some(drives) };
        replace(&self.drives_path(), &serde_json::to_vec_pretty(&document)?)
    }

    fn replacements_path(&self) -> PathBuf {
        self.path.with_file_name("replacements.json")
    }

    /// The members that were being copied to other drives. This is a hint.
    pub fn load_replacements(&self) -> io::Result<Vec<Replacing>> {
        let then = "members that were being copied to other drives are not: purlin drive replace";
        Ok(read_hint::<ReplacementsDocument>(&self.replacements_path(), then)?.replacements)
    }

    /// Replaces the members that are being copied, atomically.
    pub fn save_replacements(&self, replacements: Vec<Replacing>) -> io::Result<()> {
        replace(&self.replacements_path(), &serde_json::to_vec_pretty(&ReplacementsDocument { replacements })?)
    }

    fn imports_path(&self) -> PathBuf {
        self.path.with_file_name("imports.json")
    }

    /// The remembered imports. Everything that is known of them is here.
    pub fn load_imports(&self) -> io::Result<Vec<RememberedImport>> {
        let document: ImportsDocument = read(&self.imports_path(), "the imports that it lists are imported again")?;
        Ok(document.imports)
    }

    /// Replaces the remembered imports, atomically.
    pub fn save_imports(&self, imports: Vec<RememberedImport>) -> io::Result<()> {
        replace(&self.imports_path(), &serde_json::to_vec_pretty(&ImportsDocument { imports })?)
    }

    fn referrals_path(&self) -> PathBuf {
        self.path.with_file_name("referrals.json")
    }

    /// The discovery services to which NVMe hosts are referred.
    pub fn load_referrals(&self) -> io::Result<BTreeSet<SocketAddr>> {
        let document: ReferralsDocument = read(&self.referrals_path(), "the referrals that it lists are added again")?;
        Ok(document.referrals)
    }

    /// Replaces the remembered referrals, atomically.
    pub fn save_referrals(&self, referrals: &BTreeSet<SocketAddr>) -> io::Result<()> {
        let document = ReferralsDocument { referrals: referrals.clone() };
        replace(&self.referrals_path(), &serde_json::to_vec_pretty(&document)?)
    }
}

/// Reads a document of the state directory that has no other source; empty if it was never written.
/// `then` is what the operator has to do after moving it away.
///
/// # Errors
/// If it exists and cannot be read: the message names the file and the way out.
pub(crate) fn read<T: Default + DeserializeOwned>(path: &Path, then: &str) -> io::Result<T> {
    parse(path).map_err(|error| {
        let file = path.display();
        io::Error::new(
            error.kind(),
            format!("{file} cannot be read: {error}; repair it, or move it away and start again: {then}"),
        )
    })
}

/// Reads a document of the state directory that is only a hint. If it cannot be read, it is renamed
/// with a warning, and counts as never written. `then` is the consequence.
///
/// # Errors
/// If it can neither be read nor renamed: it would be overwritten.
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

/// Replaces a file of the state directory atomically. Only the daemon's user may read it: it may
/// hold secrets.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(PRIVATE).open(&fresh)?;
    // A file that was left behind may be readable by everyone.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let directory = path.parent().expect("a file in the state directory has a parent");
    File::open(directory)?.sync_all()
}

/// The record of an import in the state directory. None of it can be on the drives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RememberedImport {
    pub name: String,
    /// The UUID of the array, as mdadm writes it; or the identity that a namespace reports.
    pub uuid: String,
    /// The UUID that identifies its block devices; `None` if it was imported by a version without
    /// block devices.
    #[serde(default)]
    pub owner: Option<String>,
    pub drives: Vec<String>,
    pub allow_inconsistent: bool,
    /// The number of the next export.
    pub next_id: u64,
    pub exports: Vec<ExportRecord>,
    /// Set for a namespace of another machine. `drives` has one entry then.
    #[serde(default)]
    pub namespace: Option<RememberedNamespace>,
}

/// Additional data about a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RememberedNamespace {
    /// When it was imported.
    pub connected_unix_s: u64,
}

/// A member that is copied to another drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replacing {
    /// The UUID of the group.
    pub(crate) group: String,
    pub(crate) slot: u32,
    pub(crate) old: Option<DrivePlace>,
    pub(crate) new: DrivePlace,
    /// This process has started the copy.
    #[serde(skip)]
    pub(crate) begun: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(drive: &str, identity: Option<&str>) -> DrivePlace {
        DrivePlace { drive: drive.into(), identity: identity.map(Into::into) }
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
