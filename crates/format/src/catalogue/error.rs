//! The invariants of a catalogue, as errors.

use thiserror::Error;

/// Which invariant a catalogue breaks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CatalogueError {
    /// A volume's name is not allowed.
    #[error("volume name {name:?}: {reason}")]
    Name {
        /// The name.
        name: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// Two volumes have the same name.
    #[error("there are two volumes named {name:?}")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// Two volumes or exports have the same identity, an identity is not below `next_id`, or
    /// `next_id` is above [`COUNTER_MAX`].
    #[error("the identity {id} is used twice, or is not below next_id, or too large")]
    Id {
        /// The identity.
        id: u64,
    },
    /// A volume of size 0.
    #[error("volume {volume:?} has no size")]
    NoSize {
        /// Name of the volume.
        volume: String,
    },
    /// An extent that is empty, not whole blocks, or outside the group.
    #[error("the extent {start}+{len} {of} is not of whole blocks within {capacity} bytes")]
    Extent {
        /// `of volume NAME`, or `of the thin pool`.
        of: String,
        /// Start of the extent, in bytes.
        start: u64,
        /// Length of the extent, in bytes.
        len: u64,
        /// Capacity of the group, in bytes.
        capacity: u64,
    },
    /// Two extents share bytes.
    #[error("two extents overlap at byte {at} of the group")]
    Overlap {
        /// First shared byte.
        at: u64,
    },
    /// The thin pool has segments of an impossible size.
    #[error("a thin pool with segments of {segment_bytes} bytes is not possible")]
    ThinPool {
        /// Bytes of a segment.
        segment_bytes: u64,
    },
    /// The thin pool has no store or too many, two with one identity, or one without extents.
    #[error("the stores of the thin pool are not possible")]
    ThinStores,
    /// A thin volume has an impossible value.
    #[error("the field `{field}` of the thin volume {volume:?} is invalid")]
    ThinVolume {
        /// Name of the volume.
        volume: String,
        /// Which field.
        field: &'static str,
    },
    /// A conversion has an impossible value.
    #[error("the field `{field}` of the conversion of volume {volume:?} is invalid")]
    Conversion {
        /// Name of the volume.
        volume: String,
        /// Which field.
        field: &'static str,
    },
    /// The extents of a volume do not hold its size rounded up to a block, or a thin volume has
    /// extents, no pool, or an impossible size.
    #[error("the extents of volume {volume:?} hold {extents} bytes, its size is {size}")]
    Size {
        /// Name of the volume.
        volume: String,
        /// Bytes in all extents.
        extents: u64,
        /// Size of the volume, in bytes.
        size: u64,
    },
    /// An export of a volume that does not exist.
    #[error("export {export} belongs to volume {volume}, which does not exist")]
    NoVolume {
        /// Identity of the export.
        export: u64,
        /// Identity of the volume.
        volume: u64,
    },
    /// An address that is neither `unix:PATH` nor `HOST:PORT`.
    #[error("{address:?} is not an address: expected unix:PATH or HOST:PORT")]
    Address {
        /// The address.
        address: String,
    },
    /// One volume is exported twice at one address.
    #[error("volume {volume} is exported twice at {address:?}")]
    ExportTwice {
        /// Identity of the volume.
        volume: u64,
        /// The address.
        address: String,
    },
    /// A block device with an invalid block size or queue depth.
    #[error("the device {number} has blocks of {block_bytes} bytes and depth {depth}")]
    Device {
        /// Its number.
        number: u32,
        /// Its block size in bytes.
        block_bytes: u32,
        /// Requests of each queue.
        depth: u16,
    },
    /// Two exports are the same block device.
    #[error("two exports are the device {number}")]
    DeviceTwice {
        /// Its number.
        number: u32,
    },
    /// A namespace with an invalid number, block size, or host name.
    #[error("namespace {nsid} with blocks of {block_bytes} bytes: not what a namespace is, or a host that has no name")]
    Namespace {
        /// Its number.
        nsid: u32,
        /// Its block size in bytes.
        block_bytes: u32,
    },
    /// Two volumes use one namespace number, or one volume uses two.
    #[error("the namespace {nsid} is not one volume everywhere")]
    NamespaceTwice {
        /// Its number.
        nsid: u32,
    },
    /// Invalid reservations: the volume does not exist or is listed twice, or the rules of NVMe are
    /// broken.
    #[error("the reservations of volume {volume}: {reason}")]
    Reservation {
        /// Identity of the volume.
        volume: u64,
        /// The rule that they break.
        reason: &'static str,
    },
    /// An invalid limit: its subject does not exist or is listed twice, or the limit cannot be
    /// enforced.
    #[error("the limit of {id}: {reason}")]
    Limit {
        /// Identity of the volume or the export.
        id: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// An invalid secret or host name, or a record out of order.
    #[error("the secret of the host {host:?} is none, or is not in its place")]
    Secret {
        /// Name of the host.
        host: String,
    },
    /// Invalid TLS keys or host name, or a record out of order.
    #[error("the keys of TLS of the host {host:?} are none, or are not in their place")]
    TlsKey {
        /// Name of the host.
        host: String,
    },
    /// A setting, or the position of a scrub, that is out of range.
    #[error("the field {field} of settings or scrub is out of its range")]
    Maintenance {
        /// Name of the field.
        field: &'static str,
    },
}
