//! RAID 10: near copies, far copies, or both.

use std::fmt;

use smallvec::SmallVec;

use super::{GeometryError, Level};

/// RAID 10 over `disks` disks.
///
/// Chunks are assigned to the disks in turn, each `near` times; `disks` such chunks form a row.
/// With `far` copies, each row is repeated with every chunk `near` disks further. The repeated row
/// is the following one (`offset`), or lies in a further part of every disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    disks: usize,
    near: usize,
    far: usize,
    offset: bool,
    chunk_sectors: u64,
    /// Sectors from one far copy to the next.
    stride_sectors: u64,
    sectors: u64,
}

impl Copies {
    /// The lowest byte of `layout` is the number of near copies, the next byte that of far copies.
    /// Bit 16 says that far copies are in the following rows. Bits 17 and 18 confine copies to sets
    /// of disks, which mdadm never does.
    pub(super) fn new(
        layout: u32,
        disks: usize,
        chunk_sectors: u64,
        size_sectors: u64,
    ) -> Result<Copies, GeometryError> {
        let (near, far) = ((layout & 0xFF) as usize, (layout >> 8 & 0xFF) as usize);
        let offset = layout >> 16 == 1;
        if layout >> 17 != 0 || near == 0 || far == 0 || near * far > disks {
            return Err(GeometryError::Layout { level: Level::Raid10, layout });
        }
        let chunks = size_sectors / chunk_sectors / far as u64 * disks as u64 / near as u64;
        // Chunks of each disk that all copies together use, with the last row filled up.
        let used_chunks = (chunks * (near * far) as u64).div_ceil(disks as u64);
        let stride_chunks = if offset { 1 } else { used_chunks / far as u64 };
        Ok(Copies {
            disks,
            near,
            far,
            offset,
            chunk_sectors,
            stride_sectors: stride_chunks * chunk_sectors,
            sectors: chunks * chunk_sectors,
        })
    }

    /// Capacity in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Copies of each chunk.
    pub fn copy_count(&self) -> usize {
        self.near * self.far
    }

    /// The copies of a sector as (disk, sector on the disk).
    pub(super) fn locate(&self, sector: u64) -> SmallVec<[(usize, u64); 4]> {
        let (chunk, within) = (sector / self.chunk_sectors, sector % self.chunk_sectors);
        let disks = self.disks as u64;
        let mut copies = SmallVec::new();
        for near in 0..self.near as u64 {
            let dealt = chunk * self.near as u64 + near;
            let (row, disk) = (dealt / disks, (dealt % disks) as usize);
            let row = if self.offset { row * self.far as u64 } else { row };
            for far in 0..self.far {
                let disk = (disk + far * self.near) % self.disks;
                let sector = row * self.chunk_sectors + within + far as u64 * self.stride_sectors;
                copies.push((disk, sector));
            }
        }
        copies
    }

    /// Whether every chunk has a copy on a present disk. The pattern of disks repeats every `disks`
    /// chunks.
    pub(super) fn is_readable(&self, is_there: impl Fn(usize) -> bool) -> bool {
        let chunks = (self.sectors / self.chunk_sectors).min(self.disks as u64);
        (0..chunks).all(|chunk| self.locate(chunk * self.chunk_sectors).iter().any(|&(disk, _)| is_there(disk)))
    }
}

impl fmt::Display for Copies {
    /// As mdadm: `near=2`, `far=2`, `offset=2`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let far = if self.offset { "offset" } else { "far" };
        match (self.near, self.far) {
            (near, 1) => write!(formatter, "near={near}"),
            (1, copies) => write!(formatter, "{far}={copies}"),
            (near, copies) => write!(formatter, "near={near}, {far}={copies}"),
        }
    }
}
