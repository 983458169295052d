//! Reads the superblocks of a drive: docs/format/superblock.md, "Two copies, one truth".

use std::fmt;

use format::foreign::{self, Foreign};
use format::{BLOCK, Superblock, SuperblockError, newest, superblock_offsets};

use crate::drive::{Drive, plain};

/// One of the two copies of a superblock.
#[derive(Debug, Clone)]
pub enum SuperblockCopy {
    /// A valid copy.
    Valid(Box<Superblock>),
    /// No superblock, or one that cannot be used.
    Bad(SuperblockError),
    /// The bytes could not be read.
    Unreadable(String),
}

/// Why a drive has no usable superblock.
#[derive(Debug, Clone)]
pub(crate) enum Unusable {
    /// The result of both copies together.
    Superblock(SuperblockError),
    /// Neither end of the drive can be read.
    Unreadable(String),
    /// No room for two superblocks.
    TooSmall,
}

impl fmt::Display for Unusable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Superblock(SuperblockError::NotPurlin) => write!(formatter, "no drive of Purlin's"),
            Unusable::Superblock(error) => write!(formatter, "{error}"),
            Unusable::Unreadable(why) => write!(formatter, "cannot be read: {why}"),
            Unusable::TooSmall => write!(formatter, "too small for a drive of Purlin's"),
        }
    }
}

/// The content of a drive.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The copy in the first block.
    pub head: SuperblockCopy,
    /// The copy in the last whole block.
    pub tail: SuperblockCopy,
    /// Byte offsets of both copies, `[0, 0]` on a drive too small for them.
    pub offsets: [u64; 2],
    /// The superblock that counts.
    pub(crate) superblock: Result<Superblock, Unusable>,
    /// Foreign content of the drive.
    pub foreign: Vec<Foreign>,
}

impl Probe {
    /// Reads the parts of a drive that identify its content.
    pub fn of(drive: &Drive) -> Probe {
        let foreign = || {
            let span = (foreign::INSPECT_BYTES as u64).min(drive.size_bytes());
            let head = read_blocks(drive, 0, span);
            let tail = read_blocks(drive, drive.size_bytes() - span, span);
            foreign::inspect(&head, &tail, drive.size_bytes())
        };
        let Some(offsets) = superblock_offsets(drive.size_bytes()) else {
            let none = SuperblockCopy::Bad(SuperblockError::NotPurlin);
            let superblock = Err(Unusable::TooSmall);
            return Probe { head: none.clone(), tail: none, offsets: [0, 0], superblock, foreign: foreign() };
        };
        let [head, tail] = offsets.map(|offset| {
            let mut bytes = vec![0; BLOCK];
            drive.read_at(offset, &mut bytes).map(|()| bytes)
        });
        let superblock = match (&head, &tail) {
            (Err(error), Err(_)) => Err(Unusable::Unreadable(plain(error))),
            _ => {
                let bytes = |copy: &std::io::Result<Vec<u8>>| copy.as_ref().map_or(Vec::new(), Clone::clone);
                newest(&bytes(&head), &bytes(&tail)).map(|copies| copies.superblock).map_err(Unusable::Superblock)
            }
        };
        // The data of a member may look like foreign content, so it is not searched.
        let foreign = if superblock.is_ok() { Vec::new() } else { foreign() };
        Probe { head: copy(head), tail: copy(tail), offsets, superblock, foreign }
    }

    /// The superblock that counts, if there is one.
    pub fn superblock(&self) -> Option<&Superblock> {
        self.superblock.as_ref().ok()
    }
}

fn copy(bytes: std::io::Result<Vec<u8>>) -> SuperblockCopy {
    match bytes.as_deref().map(Superblock::decode) {
        Ok(Ok(superblock)) => SuperblockCopy::Valid(Box::new(superblock)),
        Ok(Err(error)) => SuperblockCopy::Bad(error),
        Err(error) => SuperblockCopy::Unreadable(plain(error)),
    }
}

/// Reads a range. Unreadable blocks become zeroes, which match no signature.
fn read_blocks(drive: &Drive, offset: u64, len: u64) -> Vec<u8> {
    let mut whole = vec![0; usize::try_from(len).expect("a little more than 1 MiB")];
    if drive.read_at(offset, &mut whole).is_ok() {
        return whole;
    }
    for (index, part) in whole.chunks_mut(BLOCK).enumerate() {
        if drive.read_at(offset + (index * BLOCK) as u64, part).is_err() {
            part.fill(0);
        }
    }
    whole
}
