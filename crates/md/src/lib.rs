//! Linux md arrays, for reading: RAID 0, 1, 4, 5, 6 and 10 with version 1 metadata, complete or
//! degraded.
//!
//! - [`examine`] reads the metadata of a drive: a [`Candidate`] with a [`Superblock`].
//! - [`sets`] groups candidates by array. [`assess`] describes one array, says which drives are
//!   left out and why, and whether it can be read: an [`Assembly`].
//! - [`Geometry`] locates each sector. Pure functions; `docs/import-md.md` states the rules.
//! - [`Array`] is a [`drive::Block`] on top of the drives. It reads, and refuses everything else.
//!
//! # Invariants
//! 1. Nothing is ever written to a drive: this crate uses no operation of [`drive::Drive`] except
//!    `read`.
//! 2. Data that a member does not have according to its metadata is never read from it: the member
//!    is stale or being rebuilt, or the block is in its list of bad blocks.
//! 3. Data computed from parity is returned only where the array's metadata says that parity fits,
//!    or if the operator chose to ignore that.

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
pub use geometry::{Copies, Geometry, GeometryError, Level, Parity, ParityLayout, Row, SectorPlace};
pub use reason::{LeftOut, Refusal};
pub use superblock::{
    ArrayId, BadBlocksPlace, DeviceId, Features, ROLES_MAX, Role, SUPERBLOCK_BYTES, Superblock, SuperblockError,
    Version,
};

/// Bytes of a sector, the unit of all md metadata, independent of the drive's own sectors.
pub const SECTOR: u64 = 512;
