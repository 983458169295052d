//! Volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Compression, Conversion, Invalid, IoCounters, Limit, ThinSettings, ThinUpdate, VolumeName, check_name, format_bytes,
};

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
    /// Identity in its group, never reused.
    pub id: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// How it is stored.
    pub kind: VolumeKind,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Bytes that were ever written and not discarded, in whole allocation chunks. Of a thin volume
    /// in whole blocks of 4 KiB, without those of the last moment.
    pub used_bytes: u64,
    /// Bytes that a thin volume takes of its pool, without its map; `null` of other volumes.
    pub stored_bytes: Option<u64>,
    /// How a thin volume uses the pool; `null` of other volumes.
    pub thin: Option<ThinSettings>,
    /// The conversion to another kind that is under way; `null` if there is none.
    pub conversion: Option<Conversion>,
    /// Identities of its exports.
    pub exports: Vec<String>,
    /// Traffic of clients.
    pub io: IoCounters,
    /// Rate limit for all its exports together; `null` if nothing is limited.
    pub limit: Option<Limit>,
}

/// How a volume is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// At a fixed place in its group.
    Direct,
    /// In the pool of thin volumes of its group: it takes the space of what was written.
    Thin,
    /// An imported Linux md array, read-only.
    Md,
    /// An imported namespace of another machine.
    Nvme,
    /// A kind that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// `POST /v1/volumes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// The group of the volume.
    pub group: String,
    /// Its name there.
    pub volume: String,
    /// Capacity in bytes, at least 1; rounded up to whole 4 KiB blocks. The answer has the actual
    /// capacity.
    #[schema(minimum = 1)]
    pub size_bytes: u64,
    /// Make a thin volume. It takes space when it is written, and may be larger than its group.
    #[serde(default)]
    pub thin: bool,
    /// How blocks of a thin volume are stored: `off`, `lz4`, `zstd` or `zstd:LEVEL`; default `off`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "zstd:3")]
    pub compression: Option<Compression>,
    /// Most bytes that may be written to a thin volume, uncompressed; default: all.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Bytes of the pool that are kept for a thin volume; default: none.
    #[serde(default)]
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that a write to a thin volume waits for space, up to 20 000; default 0: it
    /// fails at once.
    #[serde(default)]
    pub full_wait_ms: Option<u64>,
    /// Content of a thin volume that was not written for so many seconds, to twice that, is packed
    /// again in larger pieces with Zstandard; default: never.
    #[serde(default)]
    pub repack_after_s: Option<u64>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl VolumeCreate {
    /// Checks everything that does not need the group.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_name("group", &self.group)?;
        check_name("volume", &self.volume)?;
        check_size(self.size_bytes)?;
        if self.thin && self.size_bytes > THIN_BYTES_MAX {
            let most = format_bytes(THIN_BYTES_MAX);
            return Err(Invalid::new(format!("a thin volume has at most {most}: give it a smaller size")));
        }
        let settings = self.thin_settings();
        if !self.thin && !settings.is_empty() {
            let message = "settings of thin volumes are for thin volumes: make it thin as well";
            return Err(Invalid::new(message));
        }
        settings.check_values()?;
        settings.validate_for(self.size_bytes, 0)
    }

    /// How a thin volume is to use the pool.
    pub fn thin_settings(&self) -> ThinUpdate {
        let VolumeCreate { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run, .. } = *self;
        ThinUpdate { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run }
    }

    /// Its full name.
    pub fn name(&self) -> VolumeName {
        VolumeName { group: self.group.clone(), volume: self.volume.clone() }
    }
}

/// A volume has whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;

/// The capacity of a volume for a requested size: whole blocks. `None` if it exceeds 64 bits.
pub fn volume_bytes(asked_bytes: u64) -> Option<u64> {
    asked_bytes.checked_next_multiple_of(BLOCK_BYTES)
}

/// Most bytes of a thin volume: its map has 2^40 blocks.
pub const THIN_BYTES_MAX: u64 = BLOCK_BYTES << 40;

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
    /// The volume's full name; required when it shrinks, because data after the new end is lost.
    #[serde(default)]
    pub confirm: Option<String>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl VolumeUpdate {
    /// Checks everything that does not need the volume.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        check_size(self.size_bytes)
    }
}
