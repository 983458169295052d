//! The superblock as bytes.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{
    CrashSafety, Features, MemberEntry, MemberState, NAME_BYTES_MAX, RUNS_BEFORE, Rebuild, Role, Run, Runs, SPARES_MAX,
    Superblock, SuperblockError,
};
use crate::BLOCK;
use crate::checksum::crc32c_without;
use crate::layout::{Layout, Region, RegionKind};
use crate::shape::{Level, MEMBERS_MAX, Shape};
use crate::uuid::Uuid;

/// Version of the superblock format that this crate writes and reads.
pub const SUPERBLOCK_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"PurlinSB";

/// Slots of the region table; at most five are used. The others are for regions of later versions.
const REGION_SLOTS: usize = 16;

/// Instead of a member index: this drive is a spare, or no member is being rebuilt.
const NO_MEMBER: u16 = 0xFFFF;

const FLAG_CLEAN: u16 = 1;

/// One slot of the region table. Kind 0 is an unused slot.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct DiskRegion {
    kind: U16,
    reserved: [u8; 6],
    offset: U64,
    len: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct DiskMember {
    uuid: [u8; 16],
    state: u8,
    reserved: [u8; 7],
}

/// First epoch 0: an unknown run.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct DiskRun {
    first_epoch: U64,
    members: U64,
}

/// The first 16 bytes have the same meaning in every version: magic, version, checksum over the
/// whole block.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskSuperblock {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    incompatible: U64,
    read_only_compatible: U64,
    compatible: U64,
    array: [u8; 16],
    drive: [u8; 16],
    epoch: U64,
    created_unix_s: U64,
    role: U16,
    flags: U16,
    member_count: U16,
    set_count: U16,
    level: u8,
    parity_count: u8,
    spare_count: u8,
    name_len: u8,
    strip_bytes: U32,
    chunk_bytes: U32,
    rebuild_member: U16,
    reserved_a: [u8; 2],
    chunk_count: U64,
    member_bytes: U64,
    rebuild_next_chunk: U64,
    name: [u8; NAME_BYTES_MAX],
    log_generation: U64,
    crash_safety: u8,
    reserved_b: [u8; 31],
    regions: [DiskRegion; REGION_SLOTS],
    members: [DiskMember; MEMBERS_MAX as usize],
    spares: [[u8; 16]; SPARES_MAX],
    runs: [DiskRun; 1 + RUNS_BEFORE],
    held_epoch: U64,
    reserved_c: [u8; 1416],
}

const _: () = {
    assert!(size_of::<DiskSuperblock>() == BLOCK);
    assert!(size_of::<DiskRegion>() == 24 && size_of::<DiskMember>() == 24);
    assert!(offset_of!(DiskSuperblock, version) == 8);
    assert!(offset_of!(DiskSuperblock, crc32c) == 12);
    assert!(offset_of!(DiskSuperblock, incompatible) == 16);
    assert!(offset_of!(DiskSuperblock, array) == 40);
    assert!(offset_of!(DiskSuperblock, drive) == 56);
    assert!(offset_of!(DiskSuperblock, epoch) == 72);
    assert!(offset_of!(DiskSuperblock, created_unix_s) == 80);
    assert!(offset_of!(DiskSuperblock, role) == 88);
    assert!(offset_of!(DiskSuperblock, flags) == 90);
    assert!(offset_of!(DiskSuperblock, member_count) == 92);
    assert!(offset_of!(DiskSuperblock, level) == 96);
    assert!(offset_of!(DiskSuperblock, strip_bytes) == 100);
    assert!(offset_of!(DiskSuperblock, chunk_bytes) == 104);
    assert!(offset_of!(DiskSuperblock, rebuild_member) == 108);
    assert!(offset_of!(DiskSuperblock, chunk_count) == 112);
    assert!(offset_of!(DiskSuperblock, member_bytes) == 120);
    assert!(offset_of!(DiskSuperblock, rebuild_next_chunk) == 128);
    assert!(offset_of!(DiskSuperblock, name) == 136);
    assert!(offset_of!(DiskSuperblock, log_generation) == 200);
    assert!(offset_of!(DiskSuperblock, crash_safety) == 208);
    assert!(offset_of!(DiskSuperblock, regions) == 240);
    assert!(offset_of!(DiskSuperblock, members) == 624);
    assert!(offset_of!(DiskSuperblock, spares) == 2160);
    assert!(offset_of!(DiskSuperblock, runs) == 2416);
    assert!(offset_of!(DiskSuperblock, held_epoch) == 2672);
    assert!(offset_of!(DiskSuperblock, reserved_c) == 2680);
};

impl Superblock {
    /// The bytes on a drive. Unknown compatible features are cleared.
    ///
    /// # Panics
    /// If the superblock does not pass [`Superblock::check`], or if unknown features forbid
    /// writing.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert_eq!(self.check(), Ok(()), "a superblock is valid before it is written");
        assert_eq!(self.features.incompatible & !Features::KNOWN.incompatible, 0, "unknown features are never written");
        assert!(!self.is_read_only(), "an array with unknown features is never written");
        let mut disk = DiskSuperblock::new_zeroed();
        disk.magic = MAGIC;
        disk.version = self.version.into();
        disk.incompatible = self.features.incompatible.into();
        disk.read_only_compatible = self.features.read_only_compatible.into();
        disk.compatible = (self.features.compatible & Features::KNOWN.compatible).into();
        disk.array = *self.array.as_bytes();
        disk.drive = *self.drive.as_bytes();
        disk.epoch = self.epoch.into();
        disk.held_epoch = self.held_epoch.into();
        disk.created_unix_s = self.created_unix_s.into();
        disk.role = match self.role {
            Role::Member(slot) => slot,
            Role::Spare => NO_MEMBER,
        }
        .into();
        disk.flags = if self.clean { FLAG_CLEAN } else { 0 }.into();
        disk.log_generation = self.log_generation.into();
        disk.crash_safety = self.crash_safety as u8;
        disk.runs =
            self.runs.all().map(|run| DiskRun { first_epoch: run.first_epoch.into(), members: run.members.into() });
        encode_shape(&mut disk, &self.shape);
        encode_layout(&mut disk, &self.layout);
        disk.rebuild_member = self.rebuild.map_or(NO_MEMBER, |rebuild| rebuild.member).into();
        disk.rebuild_next_chunk = self.rebuild.map_or(0, |rebuild| rebuild.next_chunk).into();
        disk.name_len = self.name.len() as u8;
        disk.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        for (slot, entry) in disk.members.iter_mut().zip(&self.members) {
            slot.uuid = *entry.uuid.as_bytes();
            slot.state = entry.state as u8;
        }
        disk.spare_count = self.spares.len() as u8;
        for (slot, spare) in disk.spares.iter_mut().zip(&self.spares) {
            *slot = *spare.as_bytes();
        }
        disk.crc32c = crc32c_without(disk.as_bytes(), offset_of!(DiskSuperblock, crc32c)).into();
        zerocopy::transmute!(disk)
    }

    /// Reads a superblock from the first [`BLOCK`] bytes.
    ///
    /// # Errors
    /// [`SuperblockError`] for anything but a superblock that this program can use. Unknown
    /// read-only compatible features are no error: see [`Superblock::is_read_only`].
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let (disk, _) = DiskSuperblock::ref_from_prefix(bytes).map_err(|_| SuperblockError::NotPurlin)?;
        if disk.magic != MAGIC {
            return Err(SuperblockError::NotPurlin);
        }
        if disk.crc32c.get() != crc32c_without(disk.as_bytes(), offset_of!(DiskSuperblock, crc32c)) {
            return Err(SuperblockError::Checksum);
        }
        if disk.version.get() != SUPERBLOCK_VERSION {
            return Err(SuperblockError::UnknownVersion { found: disk.version.get() });
        }
        let unknown = disk.incompatible.get() & !Features::KNOWN.incompatible;
        if unknown != 0 {
            return Err(SuperblockError::UnknownFeatures { bits: unknown });
        }
        let superblock = Superblock {
            version: disk.version.get(),
            features: Features {
                incompatible: disk.incompatible.get(),
                read_only_compatible: disk.read_only_compatible.get(),
                compatible: disk.compatible.get(),
            },
            array: Uuid::from_bytes(disk.array),
            name: decode_name(disk)?,
            drive: Uuid::from_bytes(disk.drive),
            role: match disk.role.get() {
                NO_MEMBER => Role::Spare,
                slot => Role::Member(slot),
            },
            epoch: disk.epoch.get(),
            held_epoch: disk.held_epoch.get(),
            clean: disk.flags.get() & FLAG_CLEAN != 0,
            crash_safety: CrashSafety::from_number(disk.crash_safety)
                .ok_or(SuperblockError::Invalid { field: "crash_safety" })?,
            log_generation: disk.log_generation.get(),
            runs: Runs::from_all(disk.runs.map(DiskRun::decode)),
            shape: decode_shape(disk)?,
            members: decode_members(disk)?,
            spares: decode_spares(disk)?,
            layout: decode_layout(disk)?,
            rebuild: match disk.rebuild_member.get() {
                NO_MEMBER => None,
                member => Some(Rebuild { member, next_chunk: disk.rebuild_next_chunk.get() }),
            },
            created_unix_s: disk.created_unix_s.get(),
        };
        superblock.check()?;
        Ok(superblock)
    }
}

impl DiskRun {
    fn decode(self) -> Run {
        Run { first_epoch: self.first_epoch.get(), members: self.members.get() }
    }
}

fn encode_shape(disk: &mut DiskSuperblock, shape: &Shape) {
    disk.level = shape.level as u8;
    disk.parity_count = shape.parity_count;
    disk.member_count = shape.members.into();
    disk.set_count = shape.sets.into();
    disk.strip_bytes = shape.strip_bytes.into();
}

fn decode_shape(disk: &DiskSuperblock) -> Result<Shape, SuperblockError> {
    Ok(Shape {
        level: Level::from_number(disk.level).ok_or(SuperblockError::Invalid { field: "level" })?,
        members: disk.member_count.get(),
        sets: disk.set_count.get(),
        parity_count: disk.parity_count,
        strip_bytes: disk.strip_bytes.get(),
    })
}

fn encode_layout(disk: &mut DiskSuperblock, layout: &Layout) {
    disk.chunk_bytes = layout.chunk_bytes.into();
    disk.chunk_count = layout.chunk_count.into();
    disk.member_bytes = layout.member_bytes.into();
    for (slot, (kind, region)) in disk.regions.iter_mut().zip(layout.regions()) {
        slot.kind = (kind as u16).into();
        slot.offset = region.offset.into();
        slot.len = region.len.into();
    }
}

/// Unknown kinds are skipped: a region that must not be ignored comes with a feature bit.
fn decode_layout(disk: &DiskSuperblock) -> Result<Layout, SuperblockError> {
    let region = |kind: RegionKind, field| {
        let mut slots = disk.regions.iter().filter(|slot| slot.kind.get() == kind as u16);
        match (slots.next(), slots.next()) {
            (Some(slot), None) => Ok(Region { offset: slot.offset.get(), len: slot.len.get() }),
            _ => Err(SuperblockError::Invalid { field }),
        }
    };
    let has_checksums = disk.regions.iter().any(|slot| slot.kind.get() == RegionKind::Checksums as u16);
    Ok(Layout {
        checksums: has_checksums.then(|| region(RegionKind::Checksums, "checksums")).transpose()?,
        map: region(RegionKind::Map, "map")?,
        log: region(RegionKind::Log, "log")?,
        catalogue: region(RegionKind::Catalogue, "catalogue")?,
        data: region(RegionKind::Data, "data")?,
        chunk_bytes: disk.chunk_bytes.get(),
        chunk_count: disk.chunk_count.get(),
        member_bytes: disk.member_bytes.get(),
    })
}

fn decode_name(disk: &DiskSuperblock) -> Result<String, SuperblockError> {
    let bytes = disk.name.get(..usize::from(disk.name_len));
    let name = bytes.and_then(|bytes| str::from_utf8(bytes).ok());
    name.map(str::to_owned).ok_or(SuperblockError::Invalid { field: "name" })
}

fn decode_members(disk: &DiskSuperblock) -> Result<Vec<MemberEntry>, SuperblockError> {
    let invalid = SuperblockError::Invalid { field: "members" };
    let slots = disk.members.get(..usize::from(disk.member_count.get())).ok_or(invalid.clone())?;
    let entry = |slot: &DiskMember| {
        let state = MemberState::from_number(slot.state).ok_or(invalid.clone())?;
        Ok(MemberEntry { uuid: Uuid::from_bytes(slot.uuid), state })
    };
    slots.iter().map(entry).collect()
}

fn decode_spares(disk: &DiskSuperblock) -> Result<Vec<Uuid>, SuperblockError> {
    let slots = disk.spares.get(..usize::from(disk.spare_count));
    let slots = slots.ok_or(SuperblockError::Invalid { field: "spares" })?;
    Ok(slots.iter().map(|bytes| Uuid::from_bytes(*bytes)).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Changes bytes of an encoded superblock and makes its checksum right again.
    pub(crate) fn reseal(bytes: &mut [u8; BLOCK], change: impl FnOnce(&mut [u8; BLOCK])) {
        change(bytes);
        let sum = crc32c_without(bytes, 12);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }

    pub(crate) fn sample() -> Superblock {
        let shape = Shape::of(Level::Raid5, 3).strip_bytes(4096).build().unwrap();
        let layout = Layout::plan(&shape, 1 << 20, false).unwrap();
        let uuid = |n| Uuid::from_bytes([n; 16]);
        let entry = |n| MemberEntry { uuid: uuid(n), state: MemberState::InSync };
        Superblock {
            version: SUPERBLOCK_VERSION,
            features: Features::default(),
            array: uuid(9),
            name: "tank".into(),
            drive: uuid(2),
            role: Role::Member(1),
            epoch: 1,
            held_epoch: 0,
            clean: true,
            crash_safety: CrashSafety::Off,
            log_generation: 0,
            runs: Runs::default(),
            shape,
            members: vec![entry(1), entry(2), entry(3)],
            spares: vec![],
            layout,
            rebuild: None,
            created_unix_s: 0,
        }
    }

    #[test]
    fn a_later_version_and_unknown_incompatible_features_are_refused_and_named() {
        let mut bytes = sample().encode();
        reseal(&mut bytes, |bytes| bytes[8] = 2);
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::UnknownVersion { found: 2 }));
        let mut bytes = sample().encode();
        reseal(&mut bytes, |bytes| bytes[17] = 1);
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::UnknownFeatures { bits: 256 }));
    }

    #[test]
    fn unknown_read_only_features_make_the_array_read_only() {
        assert!(!sample().is_read_only());
        let mut bytes = sample().encode();
        reseal(&mut bytes, |bytes| bytes[24] = 1);
        let superblock = Superblock::decode(&bytes).unwrap();
        assert!(superblock.is_read_only());
        assert!(std::panic::catch_unwind(|| superblock.encode()).is_err(), "it is never written");
    }

    #[test]
    fn a_copy_from_before_an_epoch_that_all_had_is_not_up_to_date() {
        let of = |epoch, held_epoch| Superblock { epoch, held_epoch, ..sample() };
        let newest = Superblock::decode(&of(12, 11).encode()).unwrap();
        assert_eq!(newest.held_epoch, 11);
        assert!(newest.is_up_to_date(&of(12, 11)) && newest.is_up_to_date(&of(11, 8)));
        assert!(!newest.is_up_to_date(&of(10, 8)));
        assert!(of(12, 0).is_up_to_date(&of(1, 0)), "older writers leave it unknown");
    }

    #[test]
    fn unknown_compatible_features_are_cleared_by_the_next_write() {
        let mut bytes = sample().encode();
        reseal(&mut bytes, |bytes| bytes[39] = 0x80);
        let superblock = Superblock::decode(&bytes).unwrap();
        assert_eq!(superblock.features.compatible, 1 << 63);
        assert_eq!(superblock.encode(), sample().encode());
    }

    #[test]
    fn a_field_that_cannot_be_is_named_even_under_a_right_checksum() {
        let cases: [(&str, usize, &[u8]); 21] = [
            ("array", 40, &[0; 16]),
            ("drive", 56, &[0; 16]),
            ("epoch", 72, &[0; 8]),
            ("epoch", 72, &[0xFF; 8]),
            ("held_epoch", 2672, &[1]),
            ("log_generation", 200, &[0xFF; 8]),
            ("role", 88, &[0]),
            ("members", 92, &[65]),
            ("shape", 94, &[0]),
            ("level", 96, &[77]),
            ("spares", 98, &[17]),
            ("name", 99, &[65]),
            ("zone_bytes", 104, &[0; 4]),
            ("rebuild", 108, &[1, 0]),
            ("zone_count", 112, &[0]),
            ("member_bytes", 120, &[0xFF; 8]),
            ("name", 136, b"T"),
            ("crash_safety", 208, &[3]),
            ("crash_safety", 208, &[1]),
            ("map", 240, &[0]),
            ("members", 640, &[9]),
        ];
        for (field, offset, value) in cases {
            let mut bytes = sample().encode();
            reseal(&mut bytes, |bytes| bytes[offset..offset + value.len()].copy_from_slice(value));
            assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Invalid { field }), "offset {offset}");
        }
    }

    #[test]
    fn overlapping_or_outside_regions_are_refused() {
        for (slot, offset, len) in [(0, 0, 8192), (1, 4096, 65536), (3, u64::MAX - 4095, 4096), (3, 1 << 19, 1 << 63)] {
            let mut bytes = sample().encode();
            reseal(&mut bytes, |bytes| {
                let at = 240 + slot * 24;
                bytes[at + 8..at + 16].copy_from_slice(&u64::to_le_bytes(offset));
                bytes[at + 16..at + 24].copy_from_slice(&u64::to_le_bytes(len));
            });
            assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Invalid { field: "regions" }));
        }
    }

    #[test]
    fn one_identity_in_two_slots_is_refused() {
        let mut bytes = sample().encode();
        reseal(&mut bytes, |bytes| bytes.copy_within(624..640, 672));
        assert_eq!(Superblock::decode(&bytes), Err(SuperblockError::Invalid { field: "members" }));
    }
}
