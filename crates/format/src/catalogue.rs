//! The catalogue: volumes and exports of a group, its maintenance settings, and the progress of its
//! scrub.
//!
//! Invariants of a [`Catalogue`] (verified by [`Catalogue::check`]):
//! 1. Names of volumes are valid and unique; identities of volumes and exports are unique and below
//!    `next_id`.
//! 2. Extents are whole blocks within the group and do not overlap. The extents of a direct volume
//!    hold exactly its size rounded up to a block. A thin volume has none: it is in the thin pool.
//! 3. Each export belongs to a volume of the catalogue, and no export is listed twice.
//! 4. Reservations belong to a volume of the catalogue and obey the rules of NVMe.
//! 5. Limits belong to a volume or an export of the catalogue, and have values that can be
//!    enforced.
//! 6. Each host has at most one secret record and one record of TLS keys. Both lists are sorted by
//!    host name.
//! 7. A conversion gives its volume the other kind, with extents of its own.
//! 8. No interval or target is 0. A scrub repairs no more than it found, and its position is within
//!    the group.

mod conversion;
mod error;
mod exports;
mod limits;
mod maintenance;
mod reservations;
mod secrets;
mod slot;
mod thin;
mod tls_keys;

use serde::{Deserialize, Serialize};

use crate::superblock::check_name;
use crate::thin::BLOCKS_MAX;
use crate::thin::line::LINE_MAX;
use crate::{BLOCK, COUNTER_MAX};

pub use conversion::ConversionRecord;
pub use error::CatalogueError;
pub use limits::{LIMIT_BURST_MS, LIMIT_BYTES_PER_S, LIMIT_IOPS, LimitOf, LimitRecord};
pub use maintenance::{SCRUB_EVERY_S_DEFAULT, ScrubEnd, ScrubPoint, ScrubRecord, SettingsRecord};
pub use reservations::{HeldRecord, RegistrantRecord, ReservationRecord};
pub use secrets::SecretRecord;
pub use slot::{
    CATALOGUE_SLOTS, CATALOGUE_VERSION, SlotError, TooLarge, catalogue_slot_bytes, catalogue_slot_offset, decode_slot,
    encode_slot,
};
pub use thin::{
    CompressionRecord, FULL_WAIT_MS_MAX, THIN_STORES_MAX, THIN_WARN_DEFAULT, THIN_WARN_LEVELS_MAX, ThinPoolRecord,
    ThinStoreRecord, ThinVolumeRecord, ZSTD_LEVEL_MAX,
};
pub use tls_keys::TlsKeyRecord;

/// Volumes and exports of a group, and its maintenance. The field names are those of the JSON
/// document on the drives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// The identity that the next volume or export gets. Identities are never reused.
    pub next_id: u64,
    /// Volumes.
    pub volumes: Vec<VolumeRecord>,
    /// Exports.
    pub exports: Vec<ExportRecord>,
    /// Settings that an operator chose. Omitted if all are defaults.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: SettingsRecord,
    /// The scrubs of the group. Omitted if there was none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scrub: ScrubRecord,
    /// Persistent reservations of NVMe hosts. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<ReservationRecord>,
    /// Rate limits of volumes and exports. Omitted if nothing is limited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitRecord>,
    /// Secrets of NVMe hosts. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRecord>,
    /// TLS keys of NVMe hosts. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_keys: Vec<TlsKeyRecord>,
    /// The space of all thin volumes. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin: Option<ThinPoolRecord>,
}

/// Most requests that a queue of a block device takes at the same time.
pub const DEVICE_DEPTH_MAX: u16 = 4096;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// Identity in this catalogue.
    pub id: u64,
    /// Name for people; see [`check_name`].
    pub name: String,
    /// How the volume keeps its data.
    pub kind: VolumeKind,
    /// Capacity that exports see, in bytes, at least 1.
    pub size_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// Its extents, in order of the volume's own addresses.
    pub extents: Vec<ExtentRecord>,
    /// How a thin volume uses its pool. Omitted if that is as usual, and of other volumes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thin: ThinVolumeRecord,
    /// The conversion to another kind that is under way. Omitted if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversion: Option<ConversionRecord>,
}

/// How a volume keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// In place: each address of the volume has a fixed place in the group.
    Direct,
    /// In the thin pool. The volume's identity is the number of its [line](crate::thin::line).
    Thin,
}

/// A range of the group's logical space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtentRecord {
    /// Start in the group's logical space, in bytes, a multiple of [`BLOCK`].
    pub start_byte: u64,
    /// Length in bytes, a multiple of [`BLOCK`], not zero.
    pub len_bytes: u64,
}

/// A volume offered to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRecord {
    /// Identity in this catalogue.
    pub id: u64,
    /// Identity of the volume.
    pub volume: u64,
    /// Protocol and address.
    pub kind: ExportKind,
}

/// Protocol and address of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ExportKind {
    /// Network block device.
    Nbd {
        /// Where it listens: `unix:PATH` or `HOST:PORT`.
        address: String,
        /// Clients may not write.
        read_only: bool,
        /// Certificate and key files for encryption and authentication. None: no TLS.
        tls: Option<TlsFiles>,
    },
    /// Block device of the serving host. At most one per volume.
    Ublk {
        /// N in `/dev/ublkbN`.
        number: u32,
        /// Logical block size in bytes, 512 or 4096: requests are multiples of it.
        block_bytes: u32,
        /// Requests that each queue takes at the same time, 1 to 4096.
        depth: u16,
        /// Programs may not write.
        read_only: bool,
    },
    /// Namespace of the group's NVM subsystem, over NVMe/TCP. A volume has the same namespace
    /// number at all addresses.
    NvmeTcp {
        /// Where it listens: `HOST:PORT`.
        address: String,
        /// Namespace number (NSID), 1 to 65,535.
        nsid: u32,
        /// Block size of the namespace in bytes: 512 or 4096.
        block_bytes: u32,
        /// Hosts may not write.
        read_only: bool,
        /// NVMe qualified names of the hosts that may use it; `None` allows any host.
        hosts: Option<Vec<String>>,
        /// ANA state of the volume at this address. Omitted if it is optimized.
        #[serde(default, skip_serializing_if = "is_default")]
        ana: AnaRecord,
    },
}

/// How an address reaches a namespace: the states of Asymmetric Namespace Access (ANA) that an
/// operator may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnaRecord {
    /// The best path.
    #[default]
    Optimized,
    /// A usable path, but there may be better ones.
    NonOptimized,
    /// No path.
    Inaccessible,
}

impl ExportKind {
    /// Clients may not write.
    pub fn read_only(&self) -> bool {
        match self {
            ExportKind::Nbd { read_only, .. }
            | ExportKind::Ublk { read_only, .. }
            | ExportKind::NvmeTcp { read_only, .. } => *read_only,
        }
    }

    /// The protocol, as the document names it.
    pub fn protocol(&self) -> &'static str {
        match self {
            ExportKind::Nbd { .. } => "nbd",
            ExportKind::Ublk { .. } => "ublk",
            ExportKind::NvmeTcp { .. } => "nvme-tcp",
        }
    }

    /// Where clients find it: `unix:PATH`, `HOST:PORT`, or the path of a block device.
    pub fn address(&self) -> String {
        match self {
            ExportKind::Nbd { address, .. } | ExportKind::NvmeTcp { address, .. } => address.clone(),
            ExportKind::Ublk { number, .. } => format!("/dev/ublkb{number}"),
        }
    }
}

/// Files for TLS, as paths on the host that serves the export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificate chain of the server (PEM).
    pub certificate: String,
    /// Private key of the server (PEM).
    pub key: String,
    /// Authority that client certificates must come from (PEM). None: clients need no certificate.
    pub client_ca: Option<String>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Catalogue {
            next_id: 1,
            volumes: Vec::new(),
            exports: Vec::new(),
            settings: SettingsRecord::default(),
            scrub: ScrubRecord::default(),
            reservations: Vec::new(),
            limits: Vec::new(),
            secrets: Vec::new(),
            tls_keys: Vec::new(),
            thin: None,
        }
    }
}

impl Catalogue {
    /// The oldest format version that can hold this catalogue: 1 for volumes and NBD exports alone,
    /// 3 with a thin pool or settings of one, else 2. A later version needs a bit in the
    /// superblocks first: [`crate::Features::CATALOGUE_2`], [`crate::Features::THIN`].
    pub fn version(&self) -> u32 {
        let only_nbd = self.exports.iter().all(|export| matches!(export.kind, ExportKind::Nbd { .. }));
        let is_plain = is_default(&self.settings) && is_default(&self.scrub);
        let is_plain = is_plain && self.reservations.is_empty() && self.limits.is_empty();
        let is_plain = is_plain && self.secrets.is_empty() && self.tls_keys.is_empty();
        let has_thin = self.thin.is_some() || self.settings.thin_warn.is_some();
        match (only_nbd && is_plain, has_thin) {
            (_, true) => 3,
            (true, false) => 1,
            (false, false) => 2,
        }
    }

    /// Verifies the invariants for a group of `capacity_bytes`.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn check(&self, capacity_bytes: u64) -> Result<(), CatalogueError> {
        self.check_ids()?;
        self.check_names()?;
        for volume in &self.volumes {
            self.check_size_of(volume, capacity_bytes)?;
            conversion::check(volume, self.thin.as_ref(), capacity_bytes)?;
        }
        if let Some(pool) = &self.thin {
            thin::check_pool(pool, capacity_bytes)?;
        }
        self.check_overlap()?;
        self.check_exports()?;
        self.check_reservations()?;
        self.check_limits()?;
        self.check_secrets()?;
        self.check_tls_keys()?;
        maintenance::check(&self.settings, &self.scrub, capacity_bytes)
    }

    fn check_ids(&self) -> Result<(), CatalogueError> {
        let conversions = self.volumes.iter().filter_map(|volume| Some(volume.conversion.as_ref()?.id));
        let volumes = self.volumes.iter().map(|volume| volume.id).chain(conversions);
        let mut ids: Vec<u64> = volumes.chain(self.exports.iter().map(|export| export.id)).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let largest = ids.last().copied().filter(|&last| last >= self.next_id);
        match twice.or(largest).or(Some(self.next_id).filter(|&next| next > COUNTER_MAX)) {
            Some(id) => Err(CatalogueError::Id { id }),
            None => Ok(()),
        }
    }

    fn check_names(&self) -> Result<(), CatalogueError> {
        let mut names: Vec<&str> = self.volumes.iter().map(|volume| volume.name.as_str()).collect();
        for name in &names {
            check_name(name).map_err(|reason| CatalogueError::Name { name: (*name).to_owned(), reason })?;
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(CatalogueError::NameTwice { name: pair[0].to_owned() }),
            None => Ok(()),
        }
    }

    fn check_size_of(&self, volume: &VolumeRecord, capacity: u64) -> Result<(), CatalogueError> {
        let (size, name) = (volume.size_bytes, || volume.name.clone());
        if size == 0 {
            return Err(CatalogueError::NoSize { volume: name() });
        }
        if let Some(field) = thin::bad_field(&volume.thin) {
            return Err(CatalogueError::ThinVolume { volume: name(), field });
        }
        let extents = extents_bytes(&format!("of volume {:?}", volume.name), &volume.extents, capacity)?;
        let is_right = match volume.kind {
            VolumeKind::Direct => {
                size.checked_next_multiple_of(BLOCK as u64) == Some(extents) && is_default(&volume.thin)
            }
            VolumeKind::Thin => {
                let is_possible = size <= BLOCKS_MAX * BLOCK as u64 && volume.id <= u64::from(LINE_MAX);
                let has_store = self.thin.as_ref().is_some_and(|pool| pool.store(volume.thin.store).is_some());
                volume.extents.is_empty() && has_store && is_possible
            }
        };
        if is_right { Ok(()) } else { Err(CatalogueError::Size { volume: name(), extents, size }) }
    }

    /// All extents in use: of direct volumes, of conversions, and of the thin pool.
    pub fn extents(&self) -> impl Iterator<Item = &ExtentRecord> {
        let pool = self.thin.iter().flat_map(ThinPoolRecord::extents);
        let conversions = self.volumes.iter().filter_map(|volume| volume.conversion.as_ref());
        let volumes = self.volumes.iter().flat_map(|volume| &volume.extents);
        volumes.chain(conversions.flat_map(|conversion| &conversion.extents)).chain(pool)
    }

    fn check_overlap(&self) -> Result<(), CatalogueError> {
        let mut extents: Vec<&ExtentRecord> = self.extents().collect();
        extents.sort_unstable_by_key(|extent| extent.start_byte);
        match extents.windows(2).find(|pair| pair[1].start_byte - pair[0].start_byte < pair[0].len_bytes) {
            Some(pair) => Err(CatalogueError::Overlap { at: pair[1].start_byte }),
            None => Ok(()),
        }
    }
}

/// The sum of these extents, if they are whole blocks within the group.
fn extents_bytes(of: &str, extents: &[ExtentRecord], capacity: u64) -> Result<u64, CatalogueError> {
    let mut sum = 0u64;
    for &ExtentRecord { start_byte: start, len_bytes: len } in extents {
        let whole = len > 0 && start.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK as u64);
        if !whole || start > capacity || len > capacity - start {
            return Err(CatalogueError::Extent { of: of.to_owned(), start, len, capacity });
        }
        sum = sum.saturating_add(len);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: u64, name: &str, start_byte: u64, len_bytes: u64) -> VolumeRecord {
        let extents = vec![ExtentRecord { start_byte, len_bytes }];
        let name = name.to_owned();
        VolumeRecord {
            id,
            name,
            kind: VolumeKind::Direct,
            size_bytes: len_bytes,
            created_unix_s: 0,
            extents,
            thin: ThinVolumeRecord::default(),
            conversion: None,
        }
    }

    fn export(id: u64, volume: u64, address: &str) -> ExportRecord {
        ExportRecord { id, volume, kind: ExportKind::Nbd { address: address.to_owned(), read_only: false, tls: None } }
    }

    fn device(id: u64, volume: u64, number: u32) -> ExportRecord {
        let kind = ExportKind::Ublk { number, block_bytes: 512, depth: 128, read_only: false };
        ExportRecord { id, volume, kind }
    }

    fn sample() -> Catalogue {
        Catalogue {
            next_id: 10,
            volumes: vec![volume(1, "a", 8192, 8192), volume(2, "b", 0, 8192)],
            exports: vec![
                export(3, 1, "unix:/run/a.sock"),
                export(4, 1, "[::1]:10809"),
                export(5, 2, "localhost:0"),
                device(6, 1, 0),
                device(7, 2, 3),
            ],
            settings: SettingsRecord { client_p99_us: Some(5000), ..SettingsRecord::default() },
            scrub: ScrubRecord {
                last: Some(ScrubEnd { ended_unix_s: 1, repair: true, found: 2, repaired: 1, unchecked: 0 }),
                skipped_unix_s: None,
                current: Some(ScrubPoint {
                    started_unix_s: 2,
                    repair: true,
                    paused: false,
                    next_byte: 8192,
                    compared_bytes: 0,
                    found: 1,
                    repaired: 1,
                    unchecked: 0,
                }),
            },
            reservations: Vec::new(),
            limits: Vec::new(),
            secrets: Vec::new(),
            tls_keys: Vec::new(),
            thin: None,
        }
    }

    const CAPACITY: u64 = 16384;

    fn last(catalogue: &mut Catalogue) -> &mut ScrubEnd {
        catalogue.scrub.last.as_mut().unwrap()
    }

    fn current(catalogue: &mut Catalogue) -> &mut ScrubPoint {
        catalogue.scrub.current.as_mut().unwrap()
    }

    fn block_bytes(catalogue: &mut Catalogue) -> &mut u32 {
        let ExportKind::Ublk { block_bytes, .. } = &mut catalogue.exports[4].kind else { unreachable!("a device") };
        block_bytes
    }

    fn depth(catalogue: &mut Catalogue) -> &mut u16 {
        let ExportKind::Ublk { depth, .. } = &mut catalogue.exports[4].kind else { unreachable!("a device") };
        depth
    }

    fn is_maintenance(error: &CatalogueError, name: &str) -> bool {
        matches!(error, CatalogueError::Maintenance { field } if *field == name)
    }

    #[test]
    fn a_good_catalogue_passes_and_fills_the_group_to_the_last_byte() {
        assert_eq!(sample().check(CAPACITY), Ok(()));
        assert!(matches!(sample().check(CAPACITY - 4096), Err(CatalogueError::Extent { .. })));
        assert_eq!(Catalogue::default().check(0), Ok(()));
    }

    #[test]
    fn each_broken_invariant_is_named() {
        type Expect = fn(&CatalogueError) -> bool;
        type Damage = fn(&mut Catalogue);
        let cases: [(Damage, Expect); 25] = [
            (|c| c.volumes[1].id = 1, |e| matches!(e, CatalogueError::Id { id: 1 })),
            (|c| c.exports[0].id = 1, |e| matches!(e, CatalogueError::Id { id: 1 })),
            (|c| c.next_id = 7, |e| matches!(e, CatalogueError::Id { id: 7 })),
            (|c| c.volumes[0].name = "b".into(), |e| matches!(e, CatalogueError::NameTwice { .. })),
            (|c| c.volumes[0].name = "B".into(), |e| matches!(e, CatalogueError::Name { .. })),
            (|c| c.volumes[0].size_bytes = 0, |e| matches!(e, CatalogueError::NoSize { .. })),
            (|c| c.volumes[0].size_bytes = 4096, |e| matches!(e, CatalogueError::Size { .. })),
            (|c| c.volumes[0].size_bytes = u64::MAX, |e| matches!(e, CatalogueError::Size { .. })),
            (|c| c.volumes[0].extents[0].start_byte = 4096, |e| matches!(e, CatalogueError::Overlap { at: 4096 })),
            (|c| c.volumes[0].extents[0].start_byte = 1, |e| matches!(e, CatalogueError::Extent { .. })),
            (|c| c.volumes[0].extents[0].len_bytes = 0, |e| matches!(e, CatalogueError::Extent { .. })),
            (|c| c.volumes[0].extents[0].len_bytes = u64::MAX - 4095, |e| matches!(e, CatalogueError::Extent { .. })),
            (|c| c.exports[0].volume = 7, |e| matches!(e, CatalogueError::NoVolume { export: 3, volume: 7 })),
            (|c| c.exports[0] = export(3, 1, "[::1]:10809"), |e| matches!(e, CatalogueError::ExportTwice { .. })),
            (|c| c.exports[0] = export(3, 1, "unix:"), |e| matches!(e, CatalogueError::Address { .. })),
            (|c| c.exports[0] = export(3, 1, "host:66000"), |e| matches!(e, CatalogueError::Address { .. })),
            (|c| c.exports[4] = device(7, 2, 0), |e| matches!(e, CatalogueError::DeviceTwice { number: 0 })),
            (|c| c.exports[4] = device(7, 1, 3), |e| matches!(e, CatalogueError::ExportTwice { volume: 1, .. })),
            (|c| *block_bytes(c) = 1024, |e| matches!(e, CatalogueError::Device { block_bytes: 1024, .. })),
            (|c| *depth(c) = 0, |e| matches!(e, CatalogueError::Device { depth: 0, .. })),
            (|c| c.settings.client_p99_us = Some(0), |e| is_maintenance(e, "client_p99_us")),
            (|c| c.settings.scrub_every_s = Some(0), |e| is_maintenance(e, "scrub_every_s")),
            (|c| last(c).repaired = 3, |e| is_maintenance(e, "repaired")),
            (|c| current(c).repaired = 2, |e| is_maintenance(e, "repaired")),
            (|c| current(c).next_byte = CAPACITY + 1, |e| is_maintenance(e, "next_byte")),
        ];
        for (index, (damage, expected)) in cases.into_iter().enumerate() {
            let mut catalogue = sample();
            damage(&mut catalogue);
            let error = catalogue.check(CAPACITY).expect_err("an invariant is broken");
            assert!(expected(&error), "case {index}: {error}");
        }
    }

    #[test]
    fn older_readers_are_given_only_what_they_know() {
        let plain = Catalogue { settings: SettingsRecord::default(), scrub: ScrubRecord::default(), ..sample() };
        let mut only_nbd = plain.clone();
        only_nbd.exports.truncate(3);
        assert_eq!((only_nbd.version(), plain.version(), sample().version()), (1, 2, 2));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let json = serde_json::to_value(sample()).unwrap();
        assert!(serde_json::from_value::<Catalogue>(json.clone()).is_ok());
        let pointers =
            ["", "/volumes/0", "/volumes/0/extents/0", "/exports/0", "/exports/0/kind/nbd", "/exports/3/kind/ublk"];
        for pointer in pointers.into_iter().chain(["/settings", "/scrub", "/scrub/last", "/scrub/current"]) {
            let mut changed = json.clone();
            changed.pointer_mut(pointer).unwrap()["surprise"] = 1.into();
            assert!(serde_json::from_value::<Catalogue>(changed).is_err(), "{pointer}");
        }
    }
}
