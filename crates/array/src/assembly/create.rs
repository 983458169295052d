//! Creates a group.

use drive::{Drive, DriveError, Env, Segments, join_all};
use format::{
    BLOCK, CrashSafety, Features, Layout, LayoutError, MemberEntry, MemberState, Role, Run, Runs, SUPERBLOCK_VERSION,
    Shape, Superblock, Uuid,
};
use thiserror::Error;

use crate::drives::superblock::{superblock_places, write_superblock};

/// The parameters of a new group. Identities come from the caller, since the engine draws no
/// randomness.
#[derive(Debug, Clone)]
pub struct NewGroup {
    /// Identity of the array.
    pub array: Uuid,
    /// Its name.
    pub name: String,
    /// How data is spread.
    pub shape: Shape,
    /// Crash safety: what a crash may cost. Levels without redundancy have nothing to log: for them
    /// it is always [`CrashSafety::Off`].
    pub crash_safety: CrashSafety,
    /// Keep checksums of data and parity. They need a log: without one this is ignored.
    pub checksums: bool,
    /// Identities of the drives: the members in order, then the spares.
    pub drives: Vec<Uuid>,
    /// The time, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Why a group cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The members are too small or too large.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A drive failed.
    #[error("{drive}: {error}")]
    Drive {
        /// Its name.
        drive: String,
        /// The error.
        error: DriveError,
    },
    /// A spare that could not take a member's place.
    #[error("{drive}: a spare needs at least {need} bytes, it has {have}")]
    SpareTooSmall {
        /// Its name.
        drive: String,
        /// Bytes that a member needs.
        need: u64,
        /// Bytes that the spare has.
        have: u64,
    },
    /// The name or another field is not allowed.
    #[error("the group's {0} is not allowed")]
    Invalid(&'static str),
}

/// A drive of this size or more is a product that is bought, and that is replaced by another of its
/// kind some years later.
const MARGIN_FROM_BYTES: u64 = 16 << 30;

/// A thousandth of the drive: at least 16 MiB from [`MARGIN_FROM_BYTES`] on.
const MARGIN_DIVISOR: u64 = 1000;

/// Bytes at the end of the smallest member that a new group leaves unused. Drives that are sold
/// with the same capacity differ by some MiB, so without a margin a replacement could be too small.
fn margin_bytes(smallest_member_bytes: u64) -> u64 {
    if smallest_member_bytes < MARGIN_FROM_BYTES { 0 } else { smallest_member_bytes / MARGIN_DIVISOR }
}

/// The superblock that a group would have. Touches no drive.
///
/// # Errors
/// [`CreateError`].
pub fn plan<D: Drive>(new: &NewGroup, drives: &[D]) -> Result<Superblock, CreateError> {
    let members = usize::from(new.shape.members);
    assert!(drives.len() == new.drives.len() && drives.len() >= members, "every drive has an identity");
    let smallest = drives[..members].iter().map(|drive| drive.info().size_bytes).min().expect("a group has members");
    let crash_safety = if new.shape.survives() > 0 { new.crash_safety } else { CrashSafety::Off };
    let logs = crash_safety != CrashSafety::Off;
    let layout = Layout::plan(&new.shape, smallest - margin_bytes(smallest), new.checksums && logs)?;
    for spare in &drives[members..] {
        let (have, need) = (spare.info().size_bytes, layout.member_bytes);
        if have < need {
            return Err(CreateError::SpareTooSmall { drive: spare.info().name.clone(), need, have });
        }
    }
    let entry = |&uuid: &Uuid| MemberEntry { uuid, state: MemberState::InSync };
    let checksums = if layout.checksums.is_some() { Features::CHECKSUMS } else { 0 };
    let incompatible = if logs { Features::LOG | checksums } else { 0 };
    let superblock = Superblock {
        version: SUPERBLOCK_VERSION,
        features: Features { incompatible, ..Features::default() },
        array: new.array,
        name: new.name.clone(),
        drive: new.drives[0],
        role: Role::Member(0),
        epoch: 1,
        held_epoch: 0,
        clean: true,
        crash_safety,
        log_generation: 0,
        runs: Runs { this: Run { first_epoch: 1, members: u64::MAX >> (64 - members) }, ..Runs::default() },
        shape: new.shape,
        members: new.drives[..members].iter().map(entry).collect(),
        spares: new.drives[members..].to_vec(),
        layout,
        rebuild: None,
        created_unix_s: new.created_unix_s,
    };
    match superblock.check() {
        Ok(()) => Ok(superblock),
        Err(format::SuperblockError::Invalid { field }) => Err(CreateError::Invalid(field)),
        Err(other) => unreachable!("checking a superblock finds a field: {other}"),
    }
}

/// Writes a new group to its drives: their content is lost. The group is complete when this returns
/// without an error. After an error there is no group: the drives that were written are too few to
/// assemble it from, or are erased again.
///
/// # Errors
/// [`CreateError`].
pub async fn create<E: Env>(new: &NewGroup, drives: &[E::Drive]) -> Result<Superblock, CreateError> {
    let superblock = plan(new, drives)?;
    let write = |(index, drive): (usize, &E::Drive)| {
        let members = new.shape.members;
        let role = if index < usize::from(members) { Role::Member(index as u16) } else { Role::Spare };
        let own = Superblock { role, drive: new.drives[index], ..superblock.clone() };
        let drive = drive.clone();
        async move { write_superblock(&drive, &own).await.map_err(|failure| failure.error) }
    };
    let results = join_all(drives.iter().enumerate().map(write)).await;
    let failed = drives.iter().zip(results).find_map(|(drive, result)| result.err().map(|error| (drive, error)));
    let Some((drive, error)) = failed else { return Ok(superblock) };
    join_all(drives.iter().map(erase)).await;
    Err(CreateError::Drive { drive: drive.info().name.clone(), error })
}

/// Erases the superblocks of a drive, so that it belongs to no array.
///
/// # Errors
/// [`DriveError`].
pub async fn erase<D: Drive>(drive: &D) -> Result<(), DriveError> {
    for offset in superblock_places(drive)? {
        drive.write(offset, Segments::from_iter([drive::Buf::zeroes(BLOCK)]), true).await?;
    }
    Ok(())
}
