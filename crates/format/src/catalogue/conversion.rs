//! A volume that gets another kind: version 3 of the document, as it needs a thin pool.

use serde::{Deserialize, Serialize};

use super::thin::bad_field;
use super::{
    CatalogueError, ExtentRecord, ThinPoolRecord, ThinVolumeRecord, VolumeKind, VolumeRecord, extents_bytes, is_default,
};
use crate::BLOCK;
use crate::thin::BLOCKS_MAX;
use crate::thin::line::LINE_MAX;

/// A conversion that is under way. Until it ends, the volume is as its kind and extents say, and
/// complete. A crash does not change that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversionRecord {
    /// Identity of the conversion in this catalogue.
    pub id: u64,
    /// The kind that the volume gets.
    pub to: VolumeKind,
    /// The extents that it gets: as many bytes as the volume, or none for a thin one.
    pub extents: Vec<ExtentRecord>,
    /// How it will use the pool, if it gets thin.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thin: ThinVolumeRecord,
    /// Bytes of the volume, from its start, that are copied, except those in `stale`.
    pub copied_bytes: u64,
    /// Ranges of the volume, in order, that have to be copied again after a restart.
    pub stale: Vec<ExtentRecord>,
}

impl VolumeRecord {
    /// The store of the thin pool in which the volume has content, or gets it.
    pub fn store(&self) -> Option<u16> {
        let to_thin = self.conversion.as_ref().filter(|conversion| conversion.to == VolumeKind::Thin);
        match self.kind {
            VolumeKind::Thin => Some(self.thin.store),
            VolumeKind::Direct => to_thin.map(|conversion| conversion.thin.store),
        }
    }
}

/// Checks the conversion of a volume.
pub(super) fn check(volume: &VolumeRecord, pool: Option<&ThinPoolRecord>, capacity: u64) -> Result<(), CatalogueError> {
    let Some(conversion) = &volume.conversion else { return Ok(()) };
    let broken = |field| Err(CatalogueError::Conversion { volume: volume.name.clone(), field });
    if conversion.to == volume.kind {
        return broken("to");
    }
    let of = format!("of the conversion of volume {:?}", volume.name);
    let extents = extents_bytes(&of, &conversion.extents, capacity)?;
    let size = volume.size_bytes;
    let is_right = match conversion.to {
        VolumeKind::Direct => size.checked_next_multiple_of(BLOCK as u64) == Some(extents),
        VolumeKind::Thin => {
            let is_possible = size <= BLOCKS_MAX * BLOCK as u64 && volume.id <= u64::from(LINE_MAX);
            let has_store = pool.is_some_and(|pool| pool.store(conversion.thin.store).is_some());
            conversion.extents.is_empty() && has_store && is_possible
        }
    };
    if !is_right {
        return broken("extents");
    }
    let is_plain = conversion.to == VolumeKind::Thin || is_default(&conversion.thin);
    if !is_plain || bad_field(&conversion.thin).is_some() {
        return broken("thin");
    }
    if conversion.copied_bytes > size {
        return broken("copied_bytes");
    }
    let mut end = 0;
    for range in &conversion.stale {
        let is_next = range.start_byte >= end && range.len_bytes > 0;
        match range.start_byte.checked_add(range.len_bytes) {
            Some(next) if is_next && next <= conversion.copied_bytes => end = next,
            _ => return broken("stale"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Catalogue;
    use super::*;

    fn sample() -> Catalogue {
        let conversion = ConversionRecord {
            id: 2,
            to: VolumeKind::Direct,
            extents: vec![ExtentRecord { start_byte: 65_536, len_bytes: 8192 }],
            thin: ThinVolumeRecord::default(),
            copied_bytes: 8192,
            stale: vec![ExtentRecord { start_byte: 0, len_bytes: 4096 }],
        };
        let volume = VolumeRecord {
            id: 1,
            name: "a".into(),
            kind: VolumeKind::Thin,
            size_bytes: 8192,
            created_unix_s: 0,
            extents: Vec::new(),
            thin: ThinVolumeRecord::default(),
            conversion: Some(conversion),
        };
        let extents = vec![ExtentRecord { start_byte: 0, len_bytes: 65_536 }];
        let stores = vec![super::super::ThinStoreRecord { id: 0, extents }];
        let pool = ThinPoolRecord { segment_bytes: 65_536, stores };
        Catalogue { next_id: 3, volumes: vec![volume], thin: Some(pool), ..Catalogue::default() }
    }

    fn conversion(catalogue: &mut Catalogue) -> &mut ConversionRecord {
        catalogue.volumes[0].conversion.as_mut().expect("it has one")
    }

    #[test]
    fn a_conversion_fits_its_volume() {
        assert_eq!(sample().check(1 << 20), Ok(()));
        assert_eq!(sample().version(), 3, "older readers are not given it");
        type Damage = fn(&mut Catalogue);
        let cases: [(Damage, &str); 6] = [
            (|c| conversion(c).to = VolumeKind::Thin, "to"),
            (|c| conversion(c).extents[0].len_bytes = 4096, "extents"),
            (|c| conversion(c).thin.quota_bytes = Some(4096), "thin"),
            (|c| conversion(c).copied_bytes = 8193, "copied_bytes"),
            (|c| conversion(c).stale[0].start_byte = 8192, "stale"),
            (|c| conversion(c).stale[0].len_bytes = 0, "stale"),
        ];
        for (damage, expected) in cases {
            let mut damaged = sample();
            damage(&mut damaged);
            let refused = damaged.check(1 << 20);
            assert!(
                matches!(&refused, Err(CatalogueError::Conversion { field, .. }) if *field == expected),
                "{expected}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_volume_and_a_conversion_are_in_a_store_of_the_pool() {
        let mut other = sample();
        other.volumes[0].thin.store = 1;
        let refused = other.check(1 << 20);
        assert!(matches!(refused, Err(CatalogueError::Size { .. })), "{refused:?}");
        let mut none = sample();
        none.thin.as_mut().expect("a pool").stores[0].id = 16;
        none.volumes[0].thin.store = 16;
        assert_eq!(none.check(1 << 20), Err(CatalogueError::ThinStores));
        let mut to_thin = sample();
        let volume = &mut to_thin.volumes[0];
        volume.kind = VolumeKind::Direct;
        volume.extents = std::mem::take(&mut volume.conversion.as_mut().expect("it has one").extents);
        conversion(&mut to_thin).to = VolumeKind::Thin;
        assert_eq!(to_thin.check(1 << 20), Ok(()));
        assert_eq!(to_thin.volumes[0].store(), Some(0));
        conversion(&mut to_thin).thin.store = 2;
        assert!(matches!(to_thin.check(1 << 20), Err(CatalogueError::Conversion { field: "extents", .. })));
    }

    #[test]
    fn its_extents_and_identity_are_used_by_nothing_else() {
        let mut overlapping = sample();
        conversion(&mut overlapping).extents[0].start_byte = 61_440;
        assert!(matches!(overlapping.check(1 << 20), Err(CatalogueError::Overlap { .. })));
        let mut twice = sample();
        conversion(&mut twice).id = 1;
        assert!(matches!(twice.check(1 << 20), Err(CatalogueError::Id { id: 1 })));
    }
}
