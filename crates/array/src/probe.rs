//! What is on a drive.

use drive::{BufMut, Drive, DriveError, Env};
use format::foreign::{self, Foreign};
use format::{BLOCK, Superblock, SuperblockError, newest, superblock_offsets};

use crate::bounded::Bounded;
use crate::leader::read_retried;

/// What a drive holds.
#[derive(Debug, Clone)]
pub struct Probe {
    /// Its Purlin superblock, or why there is none to use.
    pub superblock: Result<Superblock, SuperblockError>,
    /// One of the two copies of the superblock is damaged or behind.
    pub copy_damaged: bool,
    /// File systems, partition tables and other arrays found on it.
    pub foreign: Vec<Foreign>,
}

/// Reads the places of a drive where something would show what it holds.
///
/// # Errors
/// [`DriveError`] if both ends of the drive cannot be read; [`DriveError::Silent`] if it does not answer.
pub async fn probe<E: Env>(env: &E, drive: &E::Drive) -> Result<Probe, DriveError> {
    probe_bounded(&Bounded::new(env, drive)).await
}

/// As [`probe`], of a drive that is used further.
pub(crate) async fn probe_bounded<E: Env>(drive: &Bounded<'_, E>) -> Result<Probe, DriveError> {
    let size = drive.info().size_bytes;
    let [head_at, tail_at] = superblock_offsets(size);
    // One copy alone may be the one that a crash tore.
    let head = read_retried(drive, head_at, || BufMut::zeroed(BLOCK)).await;
    let tail = read_retried(drive, tail_at, || BufMut::zeroed(BLOCK)).await;
    if let (Err(error), Err(_)) = (&head, &tail) {
        return Err(error.clone());
    }
    let bytes = |copy: &Result<BufMut, DriveError>| copy.as_ref().map_or(Vec::new(), |buf| buf.to_vec());
    let copies = newest(&bytes(&head), &bytes(&tail));
    let copy_damaged = copies.as_ref().is_ok_and(|copies| copies.head_stale || copies.tail_stale);
    let span = (foreign::INSPECT_BYTES as u64).min(size / BLOCK as u64 * BLOCK as u64);
    let sector = u64::from(drive.info().sector_bytes);
    let head = read_in_parts(drive, 0, span).await;
    let tail = read_in_parts(drive, (size - span) / sector * sector, span).await;
    let foreign = foreign::inspect(&head, &tail, size);
    if let Some(silence) = drive.silence() {
        return Err(silence); // It may answer some of what it is asked.
    }
    Ok(Probe { superblock: copies.map(|copies| copies.superblock), copy_damaged, foreign })
}

/// Reads a range; what of it cannot be read shows nothing.
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
