//! Linux md arrays, for reading: RAID 0, 1, 4, 5, 6 and 10 with metadata of version 1, whole or
//! degraded.
//!
//! - [`examine`] reads what a drive says of itself: a [`Candidate`] with a [`Superblock`].
//! - [`sets`] sorts candidates by array, and [`assess`] says of one array what it is, which drives
//!   are left out and why, and whether it can be read: an [`Assembly`].
//! - [`Geometry`] says where each sector lies. Pure functions; written down in `docs/import-md.md`.
//! - [`Array`] is a [`drive::Block`] over the drives, which reads, and refuses everything else.
//!
//! # Invariants
//! 1. Nothing is ever written to a drive: this crate calls no operation of [`drive::Drive`] but
//!    `read`.
//! 2. What a member says it does not have (it is stale, being rebuilt, or a block is in its list of
//!    bad blocks) is never read from it.
//! 3. What is computed from parity is only given where the array says that its parity fits, or
//!    where its operator chose to do without.

#![forbid(unsafe_code)]

mod array;
mod assess;
mod bad_blocks;
mod examine;
mod geometry;
mod reason;
mod superblock;

pub use array::Array;
pub use assess::{Assembly, Assessment, Description, MemberPlace, assess, sets};
pub use bad_blocks::{BadBlocksError, LOG_SECTORS_MAX, decode as decode_bad_blocks};
pub use examine::{Candidate, NotMember, examine};
pub use geometry::{Copies, Geometry, GeometryError, Level, Parity, ParityLayout, Place, Row};
pub use reason::{LeftOut, Refusal};
pub use superblock::{
    ArrayId, BadBlocksPlace, DeviceId, Features, ROLES_MAX, Role, SUPERBLOCK_BYTES, Superblock, SuperblockError,
    Version,
};

/// Bytes of a sector: the unit of everything in md's metadata, whatever the drive's own sectors
/// are.
pub const SECTOR: u64 = 512;
