//! RAID 0. If members differ in size, the sectors that all of them have are striped over all. The
//! next range is striped over the larger members, and so on. These ranges are zones.

use super::{GeometryError, Level, Numbers, SECTORS_MAX};

/// How the chunks of the second and later zones are assigned.
const LAYOUT_ORIGINAL: u32 = 1;
const LAYOUT_ALTERNATE: u32 = 2;

/// A zone of md's RAID 0.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Zone {
    /// The disks that it is striped over.
    disks: Vec<usize>,
    /// First sector of the zone on these disks.
    disk_start: u64,
    /// First sector of the zone in the array.
    start: u64,
    /// End of the zone in the array (exclusive), in sectors.
    end: u64,
}

/// RAID 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stripes {
    chunk_sectors: u64,
    zones: Vec<Zone>,
    /// Chunks are assigned by their number in the array, not by that in the zone.
    original: bool,
}

impl Stripes {
    pub(super) fn new(numbers: &Numbers<'_>) -> Result<Stripes, GeometryError> {
        let chunk = u64::from(numbers.chunk_sectors);
        if let Some(&sectors) = numbers.data_sectors.iter().find(|&&sectors| sectors < chunk || sectors > SECTORS_MAX) {
            return Err(GeometryError::Size(sectors));
        }
        let sizes: Vec<u64> = numbers.data_sectors.iter().map(|sectors| sectors - sectors % chunk).collect();
        let mut zones = Vec::new();
        let (mut disk_start, mut start) = (0, 0);
        loop {
            let disks: Vec<usize> = (0..sizes.len()).filter(|&disk| sizes[disk] > disk_start).collect();
            let Some(disk_end) = disks.iter().map(|&disk| sizes[disk]).min() else { break };
            let end = start + (disk_end - disk_start) * disks.len() as u64;
            zones.push(Zone { disks, disk_start, start, end });
            (disk_start, start) = (disk_end, end);
        }
        let original = match numbers.layout {
            _ if zones.len() == 1 => false,
            _ if !numbers.raid0_layout => return Err(GeometryError::Zones),
            LAYOUT_ORIGINAL => true,
            LAYOUT_ALTERNATE => false,
            layout => return Err(GeometryError::Layout { level: Level::Raid0, layout }),
        };
        Ok(Stripes { chunk_sectors: chunk, zones, original })
    }

    /// Capacity in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.zones.last().map_or(0, |zone| zone.end)
    }

    /// The disk of a sector, and the sector on that disk.
    pub(super) fn locate(&self, sector: u64) -> (usize, u64) {
        let zone = self.zones.iter().find(|zone| sector < zone.end).expect("the sector is one of the array");
        let (in_zone, disks) = (sector - zone.start, zone.disks.len() as u64);
        let (chunk, within) = (in_zone / self.chunk_sectors, in_zone % self.chunk_sectors);
        let dealt = if self.original { sector / self.chunk_sectors } else { chunk };
        let disk = zone.disks[(dealt % disks) as usize];
        (disk, zone.disk_start + chunk / disks * self.chunk_sectors + within)
    }
}
