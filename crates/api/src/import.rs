//! What is used where it lies: arrays of other software, read so that their data can be copied
//! over, and namespaces of other machines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::group::{MemoryDrives, check_drives};
use crate::{GroupHealth, Invalid, IoCounters, check_name};

/// `GET /v1/imports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ImportList {
    /// All imports, by name.
    pub imports: Vec<Import>,
}

/// A Linux md array that is read in place, to whose drives nothing is ever written; or a namespace
/// of another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Import {
    /// Its name; groups and imports have different ones.
    pub name: String,
    /// Full name of its one volume, which can be exported.
    pub volume: String,
    /// How it does: `failed` while it cannot be read, `degraded` while drives or ways to it are
    /// missing.
    pub health: GroupHealth,
    /// Why it cannot be read; `null` while it can.
    pub message: Option<String>,
    /// Identity of the array, as mdadm shows it, or of the namespace, as Linux shows it (`wwid`).
    pub uuid: String,
    /// What the array is; `null` while it cannot be read, and for a namespace.
    pub array: Option<MdArray>,
    /// What the namespace is; `null` for an array.
    pub namespace: Option<ImportedNamespace>,
    /// Drives that it was imported with, and that are looked at when the daemon starts.
    pub drives: Vec<String>,
    /// What was being written when the array was last used may be computed wrongly, as was
    /// consented to.
    pub allow_inconsistent: bool,
    /// Identities of its exports.
    pub exports: Vec<String>,
    /// Traffic of clients.
    pub io: IoCounters,
}

/// A namespace of another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedNamespace {
    /// Name of its subsystem.
    pub subsystem: String,
    /// Its number there.
    pub nsid: u32,
    /// Its size in bytes when it was connected; `null` while it was not since the daemon started.
    /// So the next one.
    pub size_bytes: Option<u64>,
    /// Size of its blocks in bytes.
    pub block_bytes: Option<u32>,
    /// It is write protected.
    pub read_only: bool,
    /// The ways to it; none while it was not connected since the daemon started.
    pub paths: Vec<NamespacePath>,
}

/// A way to a namespace of another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespacePath {
    /// Where it leads to.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`, the ANA states;
    /// `connecting`; `lost`.
    pub state: String,
    /// How often it was connected.
    pub connect_count: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
}

/// `POST /v1/imports/nvme`: connect to a namespace of another machine, to make it a block device of
/// this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportNvme {
    /// The namespace, as a drive of another machine is written:
    /// `nvme-tcp://HOST[:PORT]/NQN?nsid=N[&path=HOST[:PORT]]...[&dhchap-secret=FILE[&dhchap-ctrl-secret=FILE]][&tls-key=FILE][&loss=TIME]`.
    /// Without `loss` it is waited for 10 minutes until what is asked of it fails.
    pub drive: String,
    /// What the import is to be called; `null`: `remote1`, or the next number that is free.
    #[serde(default)]
    pub name: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl ImportNvme {
    /// Checks what can be checked without looking at the namespace.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            check_import_name(name)?;
        }
        let parsed = self.drive.parse::<crate::NvmeDrive>();
        parsed.map(drop).map_err(|error| Invalid::new(error.to_string()))
    }
}

/// Checks the name of an import. One is a word of the API.
fn check_import_name(name: &str) -> Result<(), Invalid> {
    check_name("import", name)?;
    if name == "nvme" { Err(Invalid::new("an import cannot be called \"nvme\"")) } else { Ok(()) }
}

/// What Linux md arrays say of themselves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MdArray {
    /// Identity, as mdadm shows it.
    pub uuid: String,
    /// Its name, as mdadm shows it: often with the name of a machine and a colon before it.
    pub name: String,
    /// Version of its metadata, such as `1.2`.
    pub metadata: String,
    /// Its level in mdadm's words, such as `raid5`.
    pub level: String,
    /// Its layout in mdadm's words, such as `left-symmetric`; `null` where there is only one.
    pub layout: Option<String>,
    /// Bytes of a chunk (a strip); `null` where there is none.
    pub chunk_bytes: Option<u64>,
    /// Capacity in bytes; `null` where it is not known.
    pub size_bytes: Option<u64>,
    /// It was stopped in order, and its redundancy fits its data.
    pub clean: bool,
    /// Grows with every change of its state.
    pub event_count: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// When its metadata were written last, in seconds since 1970.
    pub updated_unix_s: u64,
    /// Its members by slot.
    pub members: Vec<MdMember>,
    /// Drives that belong to it and are not read.
    pub left_out: Vec<DriveReason>,
    /// Why it cannot be read; `null` if it can.
    pub refusal: Option<String>,
}

/// A slot of an md array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MdMember {
    /// Its number, from 0.
    pub slot: u32,
    /// The drive in it; `null` where it is missing.
    pub drive: Option<String>,
}

/// A drive, and why it is not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveReason {
    /// The drive.
    pub drive: String,
    /// Why, as a clause: "a spare".
    pub reason: String,
}

/// `POST /v1/imports`: find the Linux md array on some drives and read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportMd {
    /// The drives to look at: block devices or files.
    pub drives: Vec<String>,
    /// What the import is to be called; `null`: as the array, without the name of its machine.
    #[serde(default)]
    pub name: Option<String>,
    /// UUID or name of the array, as mdadm shows them; needed where the drives hold several.
    #[serde(default)]
    pub array: Option<String>,
    /// Read an array that was not stopped cleanly although members are missing, or although members
    /// cannot be read everywhere: what was being written then may be computed wrongly.
    #[serde(default)]
    pub allow_inconsistent: bool,
    /// Only say what is there and what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl ImportMd {
    /// Checks what can be checked without looking at any drive.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            check_import_name(name)?;
        }
        if self.drives.is_empty() {
            return Err(Invalid::new("an import needs drives"));
        }
        check_drives(self.drives.iter(), MemoryDrives::Refused)
    }
}

/// What was imported, or with `dry_run` what is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Nothing was changed; `steps` says what would have been.
    pub dry_run: bool,
    /// What was done or would be done, one sentence each; empty where nothing can be imported.
    pub steps: Vec<String>,
    /// What the caller should know, although it was no reason to refuse.
    pub warnings: Vec<String>,
    /// The arrays that the drives hold, whether they can be read or not.
    pub found: Vec<MdArray>,
    /// Drives that hold no md array.
    pub others: Vec<DriveReason>,
    /// The import; `null` after a dry run.
    pub object: Option<Import>,
}

/// `POST /v1/imports/{import}/forget`: let go of an import's drives, which stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportForget {
    /// Although clients are connected.
    #[serde(default)]
    pub force: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_imported_by_its_name() {
        let refusal = |json: &str| {
            let request: ImportNvme = serde_json::from_str(json).unwrap();
            request.validate().map_err(|error| error.to_string())
        };
        let drive = "nvme-tcp://shelf-1/nqn.2026-11.com.example:shelf?nsid=1";
        assert_eq!(refusal(&format!(r#"{{"drive":"{drive}","name":"disk"}}"#)), Ok(()));
        assert!(refusal(r#"{"drive":"/dev/sda"}"#).unwrap_err().contains("it begins with nvme-tcp://"));
        // Its import could not be asked for: `GET /v1/imports/nvme` is another word.
        let named = refusal(&format!(r#"{{"drive":"{drive}","name":"nvme"}}"#));
        assert_eq!(named, Err("an import cannot be called \"nvme\"".into()));
    }

    #[test]
    fn an_import_needs_drives_that_can_hold_an_array() {
        let refusal = |json: &str| {
            let request: ImportMd = serde_json::from_str(json).unwrap();
            request.validate().map_err(|error| error.to_string())
        };
        assert_eq!(refusal(r#"{"drives":["/dev/sda","/dev/sdb"],"name":"old"}"#), Ok(()));
        assert_eq!(refusal(r#"{"drives":[]}"#), Err("an import needs drives".into()));
        assert_eq!(
            refusal(r#"{"drives":["/a","mem:b:1GiB"]}"#),
            Err("mem:b is memory of the daemon, which holds no array of another program".into())
        );
        assert_eq!(refusal(r#"{"drives":["/a","/a"]}"#), Err("the drive \"/a\" is named twice".into()));
        assert!(refusal(r#"{"drives":["/a"],"name":"Old"}"#).is_err());
    }
}
