//! Reads the superblock of a drive.

use std::ops::Range;

use drive::{BufMut, Drive, DriveError};
use thiserror::Error;

use crate::bad_blocks::{self, LOG_SECTORS_MAX};
use crate::reason::LeftOut;
use crate::superblock::{BadBlocksPlace, SUPERBLOCK_BYTES, Superblock, SuperblockError, Version};
use crate::{BadBlocksError, SECTOR};

/// A drive with a superblock.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its superblock.
    pub superblock: Superblock,
    /// Size of the drive, in sectors.
    pub drive_sectors: u64,
    /// Sector size of the drive in bytes.
    pub sector_bytes: u32,
    /// Sectors of the drive whose content is not valid, or why they are unknown.
    pub bad: Result<Vec<Range<u64>>, LeftOut>,
}

/// Why a drive is not a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotMember {
    /// It has no superblock, or one that cannot be used.
    #[error("{0}")]
    Superblock(SuperblockError),
    /// It cannot be read.
    #[error("{0}")]
    Drive(DriveError),
}

/// Reads an arbitrary byte range of a drive, independent of its sector size.
pub(crate) async fn read_bytes<D: Drive>(drive: &D, offset: u64, mut buf: BufMut) -> Result<BufMut, DriveError> {
    let sector = u64::from(drive.info().sector_bytes);
    let len = buf.len() as u64;
    let overflow = DriveError::OutOfRange { offset, len, size: drive.info().size_bytes };
    let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(sector)).ok_or(overflow)?;
    let start = offset - offset % sector;
    if start == offset && end == offset + len {
        return drive.read(offset, buf).await;
    }
    let whole = drive.read(start, BufMut::zeroed((end - start) as usize)).await?;
    let at = (offset - start) as usize;
    buf.copy_from_slice(&whole[at..at + len as usize]);
    Ok(buf)
}

/// Looks for a superblock on a drive. If there are several, the one of the newest array counts, as
/// for mdadm; the others are remains of earlier uses.
///
/// # Errors
/// [`NotMember`].
pub async fn examine<D: Drive>(drive: &D) -> Result<Candidate, NotMember> {
    let drive_sectors = drive.info().size_bytes / SECTOR;
    let (mut best, mut reason): (Option<Superblock>, _) = (None, NotMember::Superblock(SuperblockError::NotMd));
    for version in Version::ALL {
        let Some(sector) = version.sector(drive_sectors) else { continue };
        let buf = BufMut::zeroed(SUPERBLOCK_BYTES);
        let bytes = match read_bytes(drive, sector * SECTOR, buf).await {
            Ok(bytes) => bytes,
            Err(error) => {
                // Another location may be readable and have a superblock.
                reason = NotMember::Drive(error);
                continue;
            }
        };
        match Superblock::decode(&bytes, version, sector) {
            Ok(found) if best.as_ref().is_none_or(|best| found.created_unix_s > best.created_unix_s) => {
                best = Some(found);
            }
            Ok(_) | Err(SuperblockError::NotMd) => {}
            Err(error) => reason = NotMember::Superblock(error),
        }
    }
    let superblock = best.ok_or(reason)?;
    let bad = match superblock.bad_blocks {
        None => Ok(Vec::new()),
        Some(place) => bad_sectors(drive, place).await,
    };
    Ok(Candidate { superblock, drive_sectors, sector_bytes: drive.info().sector_bytes, bad })
}

async fn bad_sectors<D: Drive>(drive: &D, place: BadBlocksPlace) -> Result<Vec<Range<u64>>, LeftOut> {
    if place.sectors == 0 || place.sectors > LOG_SECTORS_MAX {
        return Err(LeftOut::BadBlocks(BadBlocksError::Size(place.sectors)));
    }
    let at = place.sector.checked_mul(SECTOR).ok_or(LeftOut::BadBlocksUnreadable)?;
    let buf = BufMut::zeroed(usize::from(place.sectors) * SECTOR as usize);
    let bytes = read_bytes(drive, at, buf).await.map_err(|_| LeftOut::BadBlocksUnreadable)?;
    bad_blocks::decode(&bytes, place.shift).map_err(LeftOut::BadBlocks)
}
