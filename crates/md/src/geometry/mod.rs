//! Location of each sector of an array.
//!
//! `docs/import-md.md` states the rules. All numbers are sectors of 512 bytes. Sectors on members
//! count from the start of the member's data.

mod copies;
mod parity;
mod stripes;

use std::fmt;

use smallvec::SmallVec;
use thiserror::Error;

pub use copies::Copies;
pub use parity::{Parity, ParityLayout, Row};
use stripes::Stripes;

/// The most sectors of a member, 2 PiB. With this limit, the size in bytes of an array with the
/// most members fits 64 bits.
const SECTORS_MAX: u64 = 1 << 42;

/// RAID levels that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Striping.
    Raid0,
    /// Mirroring.
    Raid1,
    /// Parity on the last disk.
    Raid4,
    /// One parity strip, rotating over all disks.
    Raid5,
    /// Two parity strips.
    Raid6,
    /// Striping over copies.
    Raid10,
}

impl Level {
    /// The level with this md number.
    pub fn of_md(level: i32) -> Option<Level> {
        Some(match level {
            0 => Level::Raid0,
            1 => Level::Raid1,
            4 => Level::Raid4,
            5 => Level::Raid5,
            6 => Level::Raid6,
            10 => Level::Raid10,
            _ => return None,
        })
    }

    /// Whether the level computes missing data from parity.
    pub fn has_parity(self) -> bool {
        matches!(self, Level::Raid4 | Level::Raid5 | Level::Raid6)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid4 => "raid4",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::Raid10 => "raid10",
        })
    }
}

/// The numbers in a superblock that describe the shape of its array.
#[derive(Debug, Clone)]
pub(crate) struct Numbers<'a> {
    pub level: Level,
    pub layout: u32,
    /// For RAID 0: whether `layout` is valid.
    pub raid0_layout: bool,
    pub disks: u32,
    pub chunk_sectors: u32,
    /// Sectors used of each member. Not used for RAID 0.
    pub size_sectors: u64,
    /// For RAID 0: the data sectors of each slot.
    pub data_sectors: &'a [u64],
}

/// Why the numbers do not describe a readable array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Fewer or more disks than the level allows.
    #[error("{level} of {disks} disks")]
    Disks {
        /// The level.
        level: Level,
        /// The number in the superblock.
        disks: u32,
    },
    /// RAID 6 with more disks than this program supports.
    #[error("raid6 of {disks} disks: it is read up to {max}")]
    TooManyForQ {
        /// The number in the superblock.
        disks: u32,
        /// The most disks that are supported.
        max: usize,
    },
    /// A chunk size that md does not allow.
    #[error("a chunk of {0} sectors")]
    Chunk(u32),
    /// A layout that this program does not know.
    #[error("the layout {layout:#x} of {level} is not known here")]
    Layout {
        /// The level.
        level: Level,
        /// The layout in the superblock.
        layout: u32,
    },
    /// Members of RAID 0 differ in size, and the superblock does not say which of two layouts the
    /// rest of the larger ones has.
    #[error(
        "members of different sizes, and nothing says how the larger ones were filled (md asks for its parameter \
         raid0.default_layout then)"
    )]
    Zones,
    /// No data, or more than the maximum.
    #[error("{0} sectors on each member")]
    Size(u64),
}

/// Location of one sector, and the number of contiguous sectors from there on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SectorPlace {
    /// On each of these disks, at this sector of its data.
    Copies {
        /// (disk, sector). The first is the one that md reads first.
        at: SmallVec<[(usize, u64); 4]>,
        /// Number of contiguous sectors, at least 1.
        sectors: u64,
    },
    /// On one disk, in a row with parity.
    Strip {
        /// The row (stripe), from 0.
        row: u64,
        /// Index of the data strip within the row.
        index: usize,
        /// Sector in the data of that disk, and of all disks of the row.
        sector: u64,
        /// Number of contiguous sectors, at least 1.
        sectors: u64,
    },
}

#[derive(Debug, Clone)]
enum Kind {
    Stripes(Stripes),
    Mirror,
    Parity(Parity),
    Copies(Copies),
}

/// Location of each sector of an array.
#[derive(Debug, Clone)]
pub struct Geometry {
    level: Level,
    disks: usize,
    chunk_sectors: u64,
    sectors: u64,
    /// Sectors used of each member for data.
    used_sectors: Vec<u64>,
    kind: Kind,
}

impl Geometry {
    pub(crate) fn new(numbers: &Numbers<'_>) -> Result<Geometry, GeometryError> {
        let &Numbers { level, layout, disks, chunk_sectors, size_sectors, .. } = numbers;
        let least = match level {
            Level::Raid0 | Level::Raid1 => 1,
            Level::Raid4 | Level::Raid5 | Level::Raid10 => 2,
            Level::Raid6 => 4,
        };
        if disks < least || disks as usize > crate::ROLES_MAX {
            return Err(GeometryError::Disks { level, disks });
        }
        let fits = match level {
            Level::Raid0 => chunk_sectors > 0,
            // A mirror has no chunks; the field is ignored.
            Level::Raid1 => true,
            _ => chunk_sectors.is_power_of_two() && chunk_sectors >= 8,
        };
        if !fits {
            return Err(GeometryError::Chunk(chunk_sectors));
        }
        let chunk = u64::from(chunk_sectors);
        let disks = disks as usize;
        let used = if level == Level::Raid0 { 1 } else { size_sectors };
        if used == 0 || used > SECTORS_MAX {
            return Err(GeometryError::Size(size_sectors));
        }
        let whole = |sectors: u64| if level == Level::Raid1 { sectors } else { sectors - sectors % chunk };
        let mut used_sectors = vec![whole(size_sectors); disks];
        let (sectors, kind) = match level {
            Level::Raid0 => {
                let stripes = Stripes::new(numbers)?;
                used_sectors = numbers.data_sectors.iter().map(|&sectors| whole(sectors)).collect();
                (stripes.sectors(), Kind::Stripes(stripes))
            }
            Level::Raid1 => (size_sectors, Kind::Mirror),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => {
                let parity = Parity::new(level, layout, disks)?;
                (whole(size_sectors) * parity.data_count() as u64, Kind::Parity(parity))
            }
            Level::Raid10 => {
                let copies = Copies::new(layout, disks, chunk, size_sectors)?;
                (copies.sectors(), Kind::Copies(copies))
            }
        };
        if sectors == 0 {
            return Err(GeometryError::Size(size_sectors));
        }
        Ok(Geometry { level, disks, chunk_sectors: chunk, sectors, used_sectors, kind })
    }

    /// The level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Number of slots.
    pub fn disk_count(&self) -> usize {
        self.disks
    }

    /// Capacity of the array, in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Sectors of a chunk; 0 for a mirror.
    pub fn chunk_sectors(&self) -> u64 {
        if self.level == Level::Raid1 { 0 } else { self.chunk_sectors }
    }

    /// Data sectors that a disk must have.
    pub fn used_sectors(&self, disk: usize) -> u64 {
        self.used_sectors[disk]
    }

    /// The parity, for levels that have one.
    pub fn parity(&self) -> Option<&Parity> {
        match &self.kind {
            Kind::Parity(parity) => Some(parity),
            _ => None,
        }
    }

    /// The layout in mdadm's words; empty if the level has only one.
    pub fn layout_name(&self) -> String {
        match &self.kind {
            Kind::Stripes(_) | Kind::Mirror => String::new(),
            Kind::Parity(_) if self.level == Level::Raid4 => String::new(),
            Kind::Parity(parity) => parity.layout().to_string(),
            Kind::Copies(copies) => copies.to_string(),
        }
    }

    /// Data sectors of a full stripe.
    pub fn stripe_sectors(&self) -> u64 {
        match &self.kind {
            Kind::Stripes(_) => self.chunk_sectors * self.disks as u64,
            Kind::Mirror => 8,
            Kind::Parity(parity) => self.chunk_sectors * parity.data_count() as u64,
            Kind::Copies(copies) => self.chunk_sectors * (self.disks / copies.copy_count()).max(1) as u64,
        }
    }

    /// Location of a sector.
    ///
    /// # Panics
    /// If the array has no such sector.
    pub fn locate(&self, sector: u64) -> SectorPlace {
        assert!(sector < self.sectors, "sector {sector} of {}", self.sectors);
        let within = sector % self.chunk_sectors.max(1);
        let together = |sectors: u64| sectors.min(self.sectors - sector);
        match &self.kind {
            Kind::Stripes(stripes) => {
                let at = SmallVec::from_iter([stripes.locate(sector)]);
                SectorPlace::Copies { at, sectors: together(self.chunk_sectors - within) }
            }
            Kind::Mirror => {
                let at = (0..self.disks).map(|disk| (disk, sector)).collect();
                SectorPlace::Copies { at, sectors: self.sectors - sector }
            }
            Kind::Copies(copies) => {
                SectorPlace::Copies { at: copies.locate(sector), sectors: together(self.chunk_sectors - within) }
            }
            Kind::Parity(parity) => {
                let (data, chunk) = (parity.data_count() as u64, sector / self.chunk_sectors);
                let row = chunk / data;
                SectorPlace::Strip {
                    row,
                    index: (chunk % data) as usize,
                    sector: row * self.chunk_sectors + within,
                    sectors: together(self.chunk_sectors - within),
                }
            }
        }
    }

    /// Whether everything can be read with only the disks for which `is_there` is true.
    pub fn is_readable(&self, is_there: impl Fn(usize) -> bool) -> bool {
        let missing = (0..self.disks).filter(|&disk| !is_there(disk)).count();
        match &self.kind {
            Kind::Stripes(_) => missing == 0,
            Kind::Mirror => missing < self.disks,
            Kind::Parity(parity) => missing <= parity.survives(),
            Kind::Copies(copies) => copies.is_readable(is_there),
        }
    }
}
