//! The pool of thin volumes, and how each of them uses it: version 3 of the document.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{CatalogueError, ExtentRecord, extents_bytes, is_default};
use crate::BLOCK;
use crate::thin::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// The space of the thin volumes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinPoolRecord {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The thin stores in it, at least one and at most [`THIN_STORES_MAX`].
    pub stores: Vec<ThinStoreRecord>,
}

/// A thin store ([`crate::thin`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinStoreRecord {
    /// Below [`THIN_STORES_MAX`]. Thin volumes refer to it.
    pub id: u16,
    /// Its extents. The first one has its anchors.
    pub extents: Vec<ExtentRecord>,
}

impl ThinPoolRecord {
    /// The store with this identity.
    pub fn store(&self, id: u16) -> Option<&ThinStoreRecord> {
        self.stores.iter().find(|store| store.id == id)
    }

    /// The extents of all stores.
    pub fn extents(&self) -> impl Iterator<Item = &ExtentRecord> {
        self.stores.iter().flat_map(|store| &store.extents)
    }
}

/// How a thin volume uses its pool. Fields are omitted at their defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinVolumeRecord {
    /// The store with its content.
    #[serde(default, skip_serializing_if = "is_default")]
    pub store: u16,
    /// How new blocks are stored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compression: CompressionRecord,
    /// Most bytes that may have content, not 0. None: all of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Bytes of the pool that are kept for the volume, not 0. None: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that a write waits for space before it fails, 1 to [`FULL_WAIT_MS_MAX`]. None:
    /// it fails at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_wait_ms: Option<u32>,
    /// Content that was not written for so many seconds is packed again, 1 to
    /// [`REPACK_AFTER_S_MAX`]. None: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repack_after_s: Option<u32>,
}

/// How a volume compresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CompressionRecord {
    /// Not at all.
    #[default]
    Off,
    /// With LZ4.
    Lz4,
    /// With Zstandard.
    Zstd {
        /// Its level, 1 to [`ZSTD_LEVEL_MAX`].
        level: u8,
    },
}

/// The highest level of Zstandard. Higher ones would hold up the shard for too long.
pub const ZSTD_LEVEL_MAX: u8 = 9;

/// Most milliseconds that a write waits for space. Linux gives an NVMe command up after 30 s.
pub const FULL_WAIT_MS_MAX: u32 = 20_000;

/// Most seconds after which content is packed again: ten years.
pub const REPACK_AFTER_S_MAX: u32 = 3650 * 86_400;

/// Most stores of a pool.
pub const THIN_STORES_MAX: usize = 16;

/// Most levels of use at which a pool warns.
pub const THIN_WARN_LEVELS_MAX: usize = 8;

/// The levels of use at which a pool warns unless the operator sets others, in percent.
pub const THIN_WARN_DEFAULT: [u8; 3] = [80, 90, 95];

pub(super) fn check_pool(pool: &ThinPoolRecord, capacity: u64) -> Result<(), CatalogueError> {
    for store in &pool.stores {
        extents_bytes("of the thin pool", &store.extents, capacity)?;
    }
    let is_possible = pool.segment_bytes.is_multiple_of(BLOCK as u64)
        && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&pool.segment_bytes);
    if !is_possible {
        return Err(CatalogueError::ThinPool { segment_bytes: pool.segment_bytes });
    }
    let ids: BTreeSet<u16> = pool.stores.iter().map(|store| store.id).collect();
    let are_possible = !ids.is_empty()
        && ids.len() == pool.stores.len()
        && ids.iter().all(|id| usize::from(*id) < THIN_STORES_MAX)
        && pool.stores.iter().all(|store| !store.extents.is_empty());
    if are_possible { Ok(()) } else { Err(CatalogueError::ThinStores) }
}

/// The first field of a thin volume that has an impossible value.
pub(super) fn bad_field(record: &ThinVolumeRecord) -> Option<&'static str> {
    let is_bad_level =
        matches!(record.compression, CompressionRecord::Zstd { level } if !(1..=ZSTD_LEVEL_MAX).contains(&level));
    let is_bad_wait = record.full_wait_ms.is_some_and(|wait| !(1..=FULL_WAIT_MS_MAX).contains(&wait));
    let is_bad_repack = record.repack_after_s.is_some_and(|after| !(1..=REPACK_AFTER_S_MAX).contains(&after));
    let fields = [
        (is_bad_level, "compression"),
        (record.quota_bytes == Some(0), "quota_bytes"),
        (record.reserve_bytes == Some(0), "reserve_bytes"),
        (is_bad_wait, "full_wait_ms"),
        (is_bad_repack, "repack_after_s"),
    ];
    fields.into_iter().find(|(is_bad, _)| *is_bad).map(|(_, field)| field)
}

/// Whether these levels of use can be kept: 1 to 99 percent, in ascending order.
pub(super) fn are_levels(levels: &[u8]) -> bool {
    levels.len() <= THIN_WARN_LEVELS_MAX
        && levels.iter().all(|level| (1..100).contains(level))
        && levels.is_sorted_by(|one, next| one < next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_cannot_be_kept_are_refused() {
        let usual = ThinVolumeRecord::default();
        let cases = [
            (ThinVolumeRecord { compression: CompressionRecord::Zstd { level: 0 }, ..usual }, "compression"),
            (ThinVolumeRecord { compression: CompressionRecord::Zstd { level: 10 }, ..usual }, "compression"),
            (ThinVolumeRecord { quota_bytes: Some(0), ..usual }, "quota_bytes"),
            (ThinVolumeRecord { reserve_bytes: Some(0), ..usual }, "reserve_bytes"),
            (ThinVolumeRecord { full_wait_ms: Some(20_001), ..usual }, "full_wait_ms"),
            (ThinVolumeRecord { repack_after_s: Some(0), ..usual }, "repack_after_s"),
        ];
        for (record, field) in cases {
            assert_eq!(bad_field(&record), Some(field));
        }
        assert_eq!(bad_field(&usual), None);
        assert!(are_levels(&[]) && are_levels(&THIN_WARN_DEFAULT));
        assert!(!are_levels(&[90, 80]) && !are_levels(&[100]) && !are_levels(&[0]) && !are_levels(&[80, 80]));
    }
}
