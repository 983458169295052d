//! Finds out what is on a drive.

use drive::{BufMut, Drive, DriveError, Env};
use format::foreign::{self, Foreign};
use format::{BLOCK, Superblock, SuperblockError, newest, superblock_offsets};

use crate::drives::bounded::Bounded;
use crate::drives::retry::read_retried;

/// The content of a drive.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Its Purlin superblock, or why there is none to use.
    pub superblock: Result<Superblock, SuperblockError>,
    /// File systems, partition tables and other arrays found on it.
    pub foreign: Vec<Foreign>,
    /// Whether its first block has only zeroes, like that of a drive that is new or was erased.
    pub starts_blank: bool,
}

/// Reads the places of a drive that show its content: one MiB at each end.
///
/// # Errors
/// [`DriveError`] if both ends of the drive cannot be read; [`DriveError::Silent`] if it does not
/// answer.
pub async fn probe<E: Env>(env: &E, drive: &E::Drive) -> Result<Probe, DriveError> {
    let drive = Bounded::new(env, drive);
    let superblock = superblock_on(&drive).await?;
    let (foreign, starts_blank) = inspect(&drive).await?;
    Ok(Probe { superblock, foreign, starts_blank })
}

/// Reads the superblock of a drive, and nothing else.
///
/// # Errors
/// As [`probe`].
pub async fn read_superblock<E: Env>(
    env: &E,
    drive: &E::Drive,
) -> Result<Result<Superblock, SuperblockError>, DriveError> {
    superblock_on(&Bounded::new(env, drive)).await
}

/// Like [`read_superblock`], of a drive that is used further.
pub(crate) async fn superblock_on<E: Env>(
    drive: &Bounded<'_, E>,
) -> Result<Result<Superblock, SuperblockError>, DriveError> {
    let Some([head_at, tail_at]) = superblock_offsets(drive.info().size_bytes) else {
        return Ok(Err(SuperblockError::NotPurlin));
    };
    // A single copy may be the one that a crash tore.
    let head = read_retried(drive, head_at, || BufMut::zeroed(BLOCK)).await;
    let tail = read_retried(drive, tail_at, || BufMut::zeroed(BLOCK)).await;
    if let (Err(error), Err(_)) = (&head, &tail) {
        return Err(error.clone());
    }
    if let Some(silence) = drive.silence() {
        return Err(silence); // It may answer some of what it is asked.
    }
    let bytes = |copy: &Result<BufMut, DriveError>| copy.as_ref().map_or(Vec::new(), |buf| buf.to_vec());
    Ok(newest(&bytes(&head), &bytes(&tail)).map(|copies| copies.superblock))
}

/// Looks for signatures of other programs on a drive.
///
/// # Errors
/// [`DriveError::Silent`].
pub(crate) async fn foreign_on<E: Env>(drive: &Bounded<'_, E>) -> Result<Vec<Foreign>, DriveError> {
    inspect(drive).await.map(|(foreign, _)| foreign)
}

/// Like [`foreign_on`], and returns whether the first block has only zeroes.
async fn inspect<E: Env>(drive: &Bounded<'_, E>) -> Result<(Vec<Foreign>, bool), DriveError> {
    let size = drive.info().size_bytes;
    let sector = u64::from(drive.info().sector_bytes);
    let span = (foreign::INSPECT_BYTES as u64).min(size / sector * sector);
    let head = read_in_parts(drive, 0, span).await;
    let tail = read_in_parts(drive, (size - span) / sector * sector, span).await;
    let starts_blank = head.iter().take(BLOCK).all(|&byte| byte == 0);
    drive.silence().map_or_else(|| Ok((foreign::inspect(&head, &tail, size), starts_blank)), Err)
}

/// Reads a range. Blocks that cannot be read are zero.
async fn read_in_parts<D: Drive>(drive: &D, offset: u64, len: u64) -> BufMut {
    if let Ok(whole) = drive.read(offset, BufMut::zeroed(len as usize)).await {
        return whole;
    }
    let mut whole = BufMut::zeroed(len as usize);
    for part in whole.chunks_mut(BLOCK).enumerate().map(|(index, part)| (offset + (index * BLOCK) as u64, part)) {
        let (at, into) = part;
        if let Ok(read) = drive.read(at, BufMut::zeroed(into.len())).await {
            into.copy_from_slice(&read);
        }
    }
    whole
}
