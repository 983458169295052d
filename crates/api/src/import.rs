//! Imports: data that is used in place. Arrays of other software, read so that their data can be
//! copied over, and namespaces of other machines.

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

/// A Linux md array that is read in place and whose drives are never written, or a namespace of
/// another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Import {
    /// Its name, unique among groups and imports.
    pub name: String,
    /// Full name of its one volume, which can be exported.
    pub volume: String,
    /// Its health: `failed` while it cannot be read, `degraded` while drives or paths are missing.
    pub health: GroupHealth,
    /// Why it cannot be read; `null` while it can.
    pub message: Option<String>,
    /// Identity of the array, as mdadm shows it, or of the namespace, as Linux shows it (`wwid`).
    pub uuid: String,
    /// The array; `null` while it cannot be read, and for a namespace.
    pub array: Option<MdArray>,
    /// The namespace; `null` for an array.
    pub namespace: Option<ImportedNamespace>,
    /// Drives that it was imported with. The daemon examines them when it starts.
    pub drives: Vec<String>,
    /// Whether it was allowed that data may be computed wrongly if it was being written when the
    /// array was last used.
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
    /// Namespace number in the subsystem.
    pub nsid: u32,
    /// Size in bytes when it was last connected; `null` if it was not connected since the daemon
    /// started. The same applies to `block_bytes`.
    pub size_bytes: Option<u64>,
    /// Block size in bytes.
    pub block_bytes: Option<u32>,
    /// Whether it is write protected.
    pub read_only: bool,
    /// The paths to it; empty if it was not connected since the daemon started.
    pub paths: Vec<NamespacePath>,
}

/// A path to a namespace of another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamespacePath {
    /// Address of the target.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change` (the ANA
    /// states), `connecting`, or `lost`.
    pub state: String,
    /// Number of times that it was connected.
    pub connect_count: u64,
    /// The last error.
    pub last_error: Option<String>,
}

/// `POST /v1/imports/nvme`: connect to a namespace of another machine, to make it a block device on
/// this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportNvme {
    /// The namespace, in the notation for a drive of another machine:
    /// `nvme-tcp://HOST[:PORT]/NQN?nsid=N[&path=HOST[:PORT]]...[&dhchap-secret=FILE[&dhchap-ctrl-secret=FILE]][&tls-key=FILE][&loss=TIME]`.
    /// Without `loss`, requests wait up to 10 minutes for it before they fail.
    pub drive: String,
    /// Name of the import; `null`: `remote1`, or the next free number.
    #[serde(default)]
    pub name: Option<String>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl ImportNvme {
    /// Checks everything that does not need access to the namespace.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            check_import_name(name)?;
        }
        let parsed = self.drive.parse::<crate::NvmeDrive>();
        parsed.map(drop).map_err(|error| Invalid::new(error.to_string()))
    }
}

/// Checks the name of an import. The name `nvme` is reserved for the API.
fn check_import_name(name: &str) -> Result<(), Invalid> {
    check_name("import", name)?;
    if name == "nvme" { Err(Invalid::new("an import cannot be called \"nvme\"")) } else { Ok(()) }
}

/// Properties of a Linux md array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MdArray {
    /// Identity, as mdadm shows it.
    pub uuid: String,
    /// Its name, as mdadm shows it: often prefixed with a host name and a colon.
    pub name: String,
    /// Version of its metadata, such as `1.2`.
    pub metadata: String,
    /// Its level in mdadm's words, such as `raid5`.
    pub level: String,
    /// Its layout in mdadm's words, such as `left-symmetric`; `null` if the level has only one.
    pub layout: Option<String>,
    /// Bytes of a chunk (a strip); `null` if the level has none.
    pub chunk_bytes: Option<u64>,
    /// Capacity in bytes; `null` if unknown.
    pub size_bytes: Option<u64>,
    /// Whether it was stopped in order, so its redundancy fits its data.
    pub clean: bool,
    /// Grows with every change of its state.
    pub event_count: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// When its metadata was last written, in seconds since 1970.
    pub updated_unix_s: u64,
    /// Its members by slot.
    pub members: Vec<MdMember>,
    /// Drives that belong to it but are not read.
    pub left_out: Vec<DriveReason>,
    /// Why it cannot be read; `null` if it can.
    pub refusal: Option<String>,
}

/// A slot of an md array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MdMember {
    /// Its number, from 0.
    pub slot: u32,
    /// The drive in it; `null` if it is missing.
    pub drive: Option<String>,
}

/// A drive, and why it is not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveReason {
    /// The drive.
    pub drive: String,
    /// The reason as a clause: "a spare".
    pub reason: String,
}

/// `POST /v1/imports`: find the Linux md array on some drives and read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportMd {
    /// The drives to examine: block devices or files.
    pub drives: Vec<String>,
    /// Name of the import; `null`: the name of the array, without its host name.
    #[serde(default)]
    pub name: Option<String>,
    /// UUID or name of the array, as mdadm shows them; required if the drives hold several arrays.
    #[serde(default)]
    pub array: Option<String>,
    /// Read an array that was not stopped cleanly even if members are missing, or cannot be read
    /// everywhere. Data that was being written then may be computed wrongly.
    #[serde(default)]
    pub allow_inconsistent: bool,
    /// Only report what was found and what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl ImportMd {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
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

/// The import, or with `dry_run` the arrays that were found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Nothing was changed; `steps` says what would be done.
    pub dry_run: bool,
    /// The steps that were or would be done, one sentence each; empty if nothing can be imported.
    pub steps: Vec<String>,
    /// Facts that the caller should know but that were no reason to refuse.
    pub warnings: Vec<String>,
    /// The arrays on the drives, whether they can be read or not.
    pub found: Vec<MdArray>,
    /// Drives that hold no md array.
    pub others: Vec<DriveReason>,
    /// The import; `null` after a dry run.
    pub object: Option<Import>,
}

/// `POST /v1/imports/{import}/forget`: release an import's drives, which stay unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportForget {
    /// Forget it even if clients are connected.
    #[serde(default)]
    pub force: bool,
    /// Only report what would be done; change nothing.
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
        let drive = "nvme-tcp://target-1/nqn.2026-11.com.example:target?nsid=1";
        assert_eq!(refusal(&format!(r#"{{"drive":"{drive}","name":"disk"}}"#)), Ok(()));
        assert!(refusal(r#"{"drive":"/dev/sda"}"#).unwrap_err().contains("it begins with nvme-tcp://"));
        // The API could not address this import: `GET /v1/imports/nvme` has another meaning.
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
