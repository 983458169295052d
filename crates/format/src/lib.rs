//! Every byte Purlin writes to a drive outside of user data.
//!
//! - [`Superblock`]: who this drive is, which array it belongs to, in which state. At the head and
//!   the tail of a drive.
//! - [`Layout`]: where the regions of a member lie.
//! - [`MapBlock`]: which zones of the group were ever written.
//! - [`sums`]: checksums of data and syndromes.
//! - [`log`]: what puts stripes right whose writing was interrupted.
//! - [`Catalogue`]: the volumes and exports of the group.
//! - [`foreign`]: what else a drive may hold, so that nobody's data is overwritten unasked.
//!
//! This crate turns values into bytes and bytes into values. It performs no I/O, knows no clock and
//! draws no randomness.
//!
//! Invariants of every structure:
//! 1. It starts and ends on a multiple of [`BLOCK`] bytes, and its integers are little endian.
//! 2. It carries a magic, a version, the identity of its array and a CRC-32C over all of its bytes;
//!    but for the blocks of [`sums`], which carry nothing but sums.
//! 3. Parsing answers every byte pattern with a value or a typed error, and whatever it returns can
//!    be written again.
//! 4. A single flipped bit, or a write torn at any 512-byte sector, gives an error, the old value
//!    or the new value; never anything else.
//!
//! `docs/format/` describes the same bytes for readers written by somebody else.

#![forbid(unsafe_code)]

mod catalogue;
mod checksum;
pub mod foreign;
mod layout;
pub mod log;
mod map;
mod shape;
pub mod sums;
mod superblock;
mod uuid;

pub use catalogue::{
    AnaRecord, CATALOGUE_SLOTS, CATALOGUE_VERSION, Catalogue, CatalogueError, DEVICE_DEPTH_MAX, ExportKind,
    ExportRecord, ExtentRecord, HeldRecord, LIMIT_BURST_MS, LIMIT_BYTES_PER_S, LIMIT_IOPS, LimitOf, LimitRecord,
    RegistrantRecord, ReservationRecord, SCRUB_EVERY_S_DEFAULT, ScrubEnd, ScrubPoint, ScrubRecord, SecretRecord,
    SettingsRecord, SlotError, TlsFiles, TlsKeyRecord, TooLarge, VolumeKind, VolumeRecord, catalogue_slot_bytes,
    catalogue_slot_offset, decode_slot, encode_slot,
};
pub use layout::{Layout, LayoutError, Region};
pub use map::{
    MAP_PAYLOAD_BYTES, MAP_SLOTS, MAP_VERSION, MapBlock, MapError, ZONES_PER_MAP_BLOCK, map_block_count,
    map_slot_offset,
};
pub use shape::{
    DEFAULT_STRIP_BYTES, Level, MEMBERS_MAX, MEMBERS_MIN, PARITY_MAX, STRIP_BYTES_MAX, STRIP_BYTES_MIN, Shape,
    ShapeError, UnknownLevel,
};
pub use superblock::{
    Copies, CrashSafety, Features, MemberEntry, MemberState, NAME_BYTES_MAX, RUNS_BEFORE, Rebuild, Role, Run, Runs,
    SPARES_MAX, SUPERBLOCK_VERSION, Superblock, SuperblockError, check_name, newest, superblock_offsets,
};
pub use uuid::{BadUuid, Uuid};

/// Every structure starts and ends on a multiple of this many bytes.
pub const BLOCK: usize = 4096;

/// Largest epoch, generation, sequence or identity that is read from a drive. All of them count up
/// by one, so none gets this far in the life of a drive; larger ones are refused, since counting on
/// from them would overflow.
pub const COUNTER_MAX: u64 = 1 << 62;
