//! All bytes that Purlin writes to a drive, except user data.
//!
//! - [`Superblock`]: identity of the drive, its array and its state. At the head and the tail of a
//!   drive.
//! - [`Layout`]: where the regions of a member lie.
//! - [`MapBlock`]: which allocation chunks of the group were ever written.
//! - [`sums`]: checksums of data and parity.
//! - [`log`]: records that put stripes right after an interrupted write.
//! - [`intent_log`]: content that was acknowledged before it has its place.
//! - [`thin`]: segments, maps and checkpoints of thin volumes.
//! - [`Catalogue`]: the volumes and exports of the group.
//! - [`foreign`]: signatures of other software, so that its data is not overwritten without asking.
//!
//! This crate converts values to bytes and bytes to values. It performs no I/O and uses neither
//! clock nor randomness.
//!
//! Invariants of every structure:
//! 1. It starts and ends on a multiple of [`BLOCK`] bytes, and its integers are little endian.
//! 2. It carries a magic, a version, the identity of its array and a CRC-32C over all of its bytes.
//!    The blocks of [`sums`] are the exception: they carry nothing but sums.
//! 3. Parsing returns a value or a typed error for every byte pattern, and every value that it
//!    returns can be written again.
//! 4. After a single flipped bit, or a write torn at any 512-byte sector, parsing gives an error,
//!    the old value or the new value; never anything else.
//!
//! `docs/format/` describes the same bytes for independent implementations of a reader.

#![forbid(unsafe_code)]

mod catalogue;
mod checksum;
pub mod foreign;
pub mod intent_log;
mod layout;
pub mod log;
mod map;
mod role_set;
mod shape;
pub mod sums;
mod superblock;
pub mod thin;
mod uuid;

pub use catalogue::{
    AnaRecord, CATALOGUE_SLOTS, CATALOGUE_VERSION, Catalogue, CatalogueError, CompressionRecord, ConversionRecord,
    DEVICE_DEPTH_MAX, ExportKind, ExportRecord, ExtentRecord, FULL_WAIT_MS_MAX, HeldRecord, LIMIT_BURST_MS,
    LIMIT_BYTES_PER_S, LIMIT_IOPS, LimitOf, LimitRecord, RegistrantRecord, ReservationRecord, SCRUB_EVERY_S_DEFAULT,
    ScrubEnd, ScrubPoint, ScrubRecord, SecretRecord, SettingsRecord, SlotError, THIN_STORES_MAX, THIN_WARN_DEFAULT,
    THIN_WARN_LEVELS_MAX, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, TlsFiles, TlsKeyRecord, TooLarge,
    VolumeKind, VolumeRecord, ZSTD_LEVEL_MAX, catalogue_slot_bytes, catalogue_slot_offset, decode_slot, encode_slot,
};
pub use layout::{Layout, LayoutError, Region};
pub use map::{
    CHUNKS_PER_MAP_BLOCK, MAP_PAYLOAD_BYTES, MAP_SLOTS, MAP_VERSION, MapBlock, MapError, map_block_count,
    map_slot_offset,
};
pub use role_set::RoleSet;
pub use shape::{
    DEFAULT_STRIP_BYTES, Level, MEMBERS_MAX, MEMBERS_MIN, PARITY_MAX, STRIP_BYTES_MAX, STRIP_BYTES_MIN, Shape,
    ShapeBuilder, ShapeError, UnknownLevel,
};
pub use superblock::{
    Copies, CrashSafety, Features, MemberEntry, MemberState, NAME_BYTES_MAX, RUNS_BEFORE, Rebuild, Role, Run, Runs,
    SPARES_MAX, SUPERBLOCK_VERSION, Superblock, SuperblockError, check_name, newest, superblock_offsets,
};
pub use uuid::{BadUuid, Uuid};

/// Every structure starts and ends on a multiple of this many bytes.
pub const BLOCK: usize = 4096;

/// Largest epoch, generation, sequence or identity that is accepted from a drive. All of them count
/// up by one, so none gets this far in the life of a drive. Larger ones are refused, since counting
/// on from them would overflow.
pub const COUNTER_MAX: u64 = 1 << 62;
