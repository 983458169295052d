//! The superblock of version 1: `struct mdp_superblock_1` of the kernel's
//! `include/uapi/linux/raid/md_p.h`. All fields are little endian.
//!
//! ```text
//!   0 magic A92B4EFC    72 level            128 data_offset       200 events
//!   4 version 1         76 layout           136 data_size         208 resync_offset
//!   8 features          80 size             144 super_offset      216 checksum
//!  16 array's uuid      88 chunk            152 recovery_offset   220 number of roles
//!  32 array's name      92 disks            160 device's number   256 roles, two bytes each
//!  64 created           96 bitmap or PPL    168 device's uuid
//!                      100 reshape (28)     184 flags, bad blocks, 192 updated
//! ```

use std::fmt;

use thiserror::Error;

/// Bytes that a superblock may take, including the roles at its end.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Most roles that fit a superblock.
pub const ROLES_MAX: usize = (SUPERBLOCK_BYTES - FIXED_BYTES) / 2;

/// Bytes before the roles.
const FIXED_BYTES: usize = 256;

/// `MD_SB_MAGIC`.
pub(crate) const MAGIC: u32 = 0xA92B_4EFC;

/// `resync_offset` of an array whose redundancy fits its data.
const IN_SYNC: u64 = u64::MAX;

/// Location of the version 1 superblock: the minor version number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 1.0: near the end of the drive.
    V1_0,
    /// 1.1: at the start of the drive.
    V1_1,
    /// 1.2: 4 KiB from the start.
    V1_2,
}

impl Version {
    /// All of them, in the order of the search.
    pub const ALL: [Version; 3] = [Version::V1_2, Version::V1_1, Version::V1_0];

    /// The sector of the superblock on a drive of `drive_sectors` sectors, if there is room for
    /// one.
    pub fn sector(self, drive_sectors: u64) -> Option<u64> {
        match self {
            // At least 8 KiB before the end, at a multiple of 4 KiB.
            Version::V1_0 => Some(drive_sectors.checked_sub(16)? & !7),
            Version::V1_1 => (drive_sectors >= 8).then_some(0),
            Version::V1_2 => (drive_sectors >= 16).then_some(8),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Version::V1_0 => "1.0",
            Version::V1_1 => "1.1",
            Version::V1_2 => "1.2",
        })
    }
}

/// Identity of an array. Formatted as by mdadm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId(pub [u8; 16]);

/// Identity of a member. Formatted as by mdadm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub [u8; 16]);

fn show_id(bytes: &[u8; 16], formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 && index % 4 == 0 {
            formatter.write_str(":")?;
        }
        write!(formatter, "{byte:02x}")?;
    }
    Ok(())
}

impl fmt::Display for ArrayId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_id(&self.0, formatter)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_id(&self.0, formatter)
    }
}

/// `feature_map`: the features that the superblock uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u32);

impl Features {
    /// There is a write-intent bitmap.
    pub const BITMAP: Features = Features(1);
    /// The member is being rebuilt.
    pub const RECOVERY: Features = Features(2);
    /// The array is being reshaped.
    pub const RESHAPE: Features = Features(4);
    /// The list of bad blocks is not empty.
    pub const BAD_BLOCKS: Features = Features(8);
    /// The member replaces another one that is still present.
    pub const REPLACEMENT: Features = Features(16);
    /// The reshape runs backwards.
    pub const RESHAPE_BACKWARDS: Features = Features(32);
    /// The reshape moves the data.
    pub const NEW_OFFSET: Features = Features(64);
    /// The rebuild uses the bitmap.
    pub const RECOVERY_BITMAP: Features = Features(128);
    /// Several machines use the array at once.
    pub const CLUSTERED: Features = Features(256);
    /// A further drive is a journal.
    pub const JOURNAL: Features = Features(512);
    /// There is a partial parity log.
    pub const PPL: Features = Features(1024);
    /// There are several partial parity logs.
    pub const MULTIPLE_PPLS: Features = Features(2048);
    /// The layout is valid for RAID 0, too.
    pub const RAID0_LAYOUT: Features = Features(4096);
    /// All features that this program knows.
    pub const KNOWN: Features = Features((4096 << 1) - 1);

    /// Whether any of `other` is set.
    pub fn any(self, other: Features) -> bool {
        self.0 & other.0 != 0
    }

    /// The features that this program does not know.
    pub fn unknown(self) -> Features {
        Features(self.0 & !Features::KNOWN.0)
    }
}

/// Role of a device in its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The member of this slot.
    Member(u16),
    /// A spare, or unused.
    Spare,
    /// A member that failed.
    Faulty,
    /// The journal.
    Journal,
}

/// Location of the list of bad blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadBlocksPlace {
    /// First sector on the drive.
    pub sector: u64,
    /// Size in sectors.
    pub sectors: u16,
    /// Its entries count in units of 2^`shift` sectors.
    pub shift: u8,
}

/// A superblock whose checksum and location are right. No other field is checked yet: see
/// [`crate::assess`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Location of the superblock.
    pub version: Version,
    /// The features that it uses.
    pub features: Features,
    /// The array it belongs to.
    pub array: ArrayId,
    /// Name of the array, often prefixed with a host name and a colon. Without control characters.
    pub name: String,
    /// When the array was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// RAID level, as md numbers them: some are negative.
    pub level: i32,
    /// Layout of data and parity; the meaning depends on the level.
    pub layout: u32,
    /// Sectors that the array uses of each member.
    pub size_sectors: u64,
    /// Sectors of a chunk (a strip).
    pub chunk_sectors: u32,
    /// Number of slots.
    pub disks: u32,
    /// First sector of the data on this drive.
    pub data_offset: u64,
    /// Sectors that may be used for data on this drive.
    pub data_sectors: u64,
    /// Sectors of the data that are already rebuilt, if the member is being rebuilt.
    pub recovered_sectors: Option<u64>,
    /// The index of this device in the list of roles.
    pub device_number: u32,
    /// Identity of this device.
    pub device: DeviceId,
    /// Location of its list of bad blocks, if that is not empty.
    pub bad_blocks: Option<BadBlocksPlace>,
    /// When it was written last, in seconds since 1970.
    pub updated_unix_s: u64,
    /// Grows with each change of the array's state. The newest superblock counts.
    pub events: u64,
    /// Sectors of each member up to which redundancy fits the data; `None` if all of it does.
    pub resynced_sectors: Option<u64>,
    /// Roles of all devices, by device number, as on the drive.
    roles: Vec<u16>,
}

/// Why bytes are not a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// Other content, or none.
    #[error("there is no md superblock")]
    NotMd,
    /// An unknown version.
    #[error("its md superblock has version {0}, which is not known here")]
    Version(u32),
    /// It states another location: it is a copy, or a remainder of a partition.
    #[error("its md superblock is for sector {says} and lies in sector {lies}")]
    SectorPlace {
        /// The sector that it states.
        says: u64,
        /// The sector where it was found.
        lies: u64,
    },
    /// More roles than there is room for.
    #[error("its md superblock lists {0} devices, more than there is room for")]
    TooManyRoles(u32),
    /// It is damaged.
    #[error("the checksum of its md superblock is wrong")]
    Checksum,
}

/// Seconds of a timestamp: its lower 40 bits.
fn seconds(time: u64) -> u64 {
    time & ((1 << 40) - 1)
}

/// The fields by offset. Needs a slice of at least [`SUPERBLOCK_BYTES`].
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// The sum of all words except the checksum, with the overflow added once. A half word at the
    /// end counts as a word.
    fn checksum(&self, role_count: usize) -> u32 {
        let words = self.0[..FIXED_BYTES + 2 * role_count].chunks(4).enumerate();
        let sum: u64 = words
            .filter(|(index, _)| *index != 216 / 4)
            .map(|(_, word)| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            .sum();
        ((sum & 0xFFFF_FFFF) + (sum >> 32)) as u32
    }
}

impl Superblock {
    /// Reads a superblock that lies at sector `sector`. Only the first [`SUPERBLOCK_BYTES`] count.
    ///
    /// # Errors
    /// [`SuperblockError`]; [`SuperblockError::NotMd`] if there are too few bytes.
    pub fn decode(bytes: &[u8], version: Version, sector: u64) -> Result<Superblock, SuperblockError> {
        let Some(bytes) = bytes.get(..SUPERBLOCK_BYTES) else { return Err(SuperblockError::NotMd) };
        let fields = Fields(bytes);
        if fields.u32(0) != MAGIC {
            return Err(SuperblockError::NotMd);
        }
        if fields.u32(4) != 1 {
            return Err(SuperblockError::Version(fields.u32(4)));
        }
        let role_count = fields.u32(220) as usize;
        if role_count > ROLES_MAX {
            return Err(SuperblockError::TooManyRoles(fields.u32(220)));
        }
        if fields.checksum(role_count) != fields.u32(216) {
            return Err(SuperblockError::Checksum);
        }
        if fields.u64(144) != sector {
            return Err(SuperblockError::SectorPlace { says: fields.u64(144), lies: sector });
        }
        let features = Features(fields.u32(8));
        Ok(Superblock {
            version,
            features,
            array: ArrayId(fields.array(16)),
            name: text(&bytes[32..64]),
            created_unix_s: seconds(fields.u64(64)),
            level: fields.u32(72).cast_signed(),
            layout: fields.u32(76),
            size_sectors: fields.u64(80),
            chunk_sectors: fields.u32(88),
            disks: fields.u32(92),
            data_offset: fields.u64(128),
            data_sectors: fields.u64(136),
            recovered_sectors: features.any(Features::RECOVERY).then(|| fields.u64(152)),
            device_number: fields.u32(160),
            device: DeviceId(fields.array(168)),
            bad_blocks: bad_blocks(&fields, features, sector),
            updated_unix_s: seconds(fields.u64(192)),
            events: fields.u64(200),
            resynced_sectors: Some(fields.u64(208)).filter(|&sectors| sectors != IN_SYNC),
            roles: (0..role_count).map(|index| fields.u16(FIXED_BYTES + 2 * index)).collect(),
        })
    }

    /// The role that this superblock assigns to a device. An unlisted device is a spare, as for the
    /// kernel.
    pub fn role_of(&self, device_number: u32) -> Role {
        match self.roles.get(device_number as usize) {
            None | Some(0xFFFF) => Role::Spare,
            Some(0xFFFE) => Role::Faulty,
            Some(0xFFFD) => Role::Journal,
            Some(&slot) => Role::Member(slot),
        }
    }

    /// Whether the redundancy of the array fits its data.
    pub fn is_clean(&self) -> bool {
        self.resynced_sectors.is_none()
    }
}

/// Location of the list of bad blocks. If the offset leads before the start of the drive or
/// overflows, the list cannot be read: the sector is then `u64::MAX`, which no drive has.
fn bad_blocks(fields: &Fields<'_>, features: Features, sector: u64) -> Option<BadBlocksPlace> {
    if !features.any(Features::BAD_BLOCKS) {
        return None;
    }
    let offset = i64::from(fields.u32(188).cast_signed());
    let sector = sector.checked_add_signed(offset).unwrap_or(u64::MAX);
    Some(BadBlocksPlace { sector, sectors: fields.u16(186), shift: fields.0[185] })
}

/// Text up to the first zero. Control characters and invalid UTF-8 are replaced.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(&bytes[..end]).chars().map(shown).collect()
}
