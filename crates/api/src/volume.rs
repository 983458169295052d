//! Volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, IoCounters, Limit, VolumeName, check_name};

/// `GET /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// All volumes, by full name.
    pub volumes: Vec<Volume>,
}

/// A virtual drive in a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Full name, `GROUP/VOLUME`.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Its name in the group.
    pub volume: String,
    /// Identity in its group, never used again.
    pub id: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// How it lies in the group.
    pub kind: VolumeKind,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Bytes that were ever written and not discarded, in whole allocation units.
    pub used_bytes: u64,
    /// Identities of its exports.
    pub exports: Vec<String>,
    /// Traffic of clients.
    pub io: IoCounters,
    /// How fast it may be used, all its exports together; `null` where nothing is limited.
    pub limit: Option<Limit>,
}

/// How a volume lies in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// In place.
    Direct,
    /// A Linux md array that was imported, for reading.
    Md,
    /// A namespace of another machine that was imported.
    Nvme,
    /// A kind that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// `POST /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// The group that it is to lie in.
    pub group: String,
    /// Its name there.
    pub volume: String,
    /// Capacity in bytes, at least 1; rounded up to whole 4 KiB blocks. The answer says what it
    /// became.
    #[schema(minimum = 1)]
    pub size_bytes: u64,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl VolumeCreate {
    /// Checks what can be checked without the group.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_name("group", &self.group)?;
        check_name("volume", &self.volume)?;
        check_size(self.size_bytes)
    }

    /// Its full name.
    pub fn name(&self) -> VolumeName {
        VolumeName { group: self.group.clone(), volume: self.volume.clone() }
    }
}

/// A volume has whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;

/// The capacity of a volume for which this much is asked: whole blocks. `None` beyond what 64 bits
/// hold.
pub fn volume_bytes(asked_bytes: u64) -> Option<u64> {
    asked_bytes.checked_next_multiple_of(BLOCK_BYTES)
}

fn check_size(size_bytes: u64) -> Result<(), Invalid> {
    if size_bytes == 0 {
        return Err(Invalid::new("a volume of 0 bytes holds nothing: give it a size"));
    }
    Ok(())
}

/// `PATCH /v1/volumes/{group}/{volume}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeUpdate {
    /// The new capacity in bytes, at least 1; rounded up to whole 4 KiB blocks.
    #[schema(minimum = 1)]
    pub size_bytes: u64,
    /// The volume's full name, needed when it shrinks: what lies behind the new end is lost.
    #[serde(default)]
    pub confirm: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl VolumeUpdate {
    /// Checks what can be checked without the volume.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_size(self.size_bytes)
    }
}
