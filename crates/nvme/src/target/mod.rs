//! The controller's side above the transport: its answers to a host, and the meaning of commands.
//!
//! - [`Admission`] is a valid Connect command.
//! - [`Controller`] executes the commands of one admin queue.
//! - [`Io`] is a command of an I/O queue, checked and converted to bytes.
//! - [`Reservations`] are those of one namespace.
//! - [`History`] is the past of a subsystem, for the Persistent Event Log.
//!
//! None of them does I/O or has a clock. The state that a controller reports comes from a
//! [`SubsystemView`].

mod connect;
mod controller;
mod events;
mod features;
mod fused;
mod history;
mod identify;
mod io;
mod log;
mod notices;
mod reservation;

pub use connect::{Admission, Refused};
pub use controller::{ABORTS_MAX, Answer, Controller, Effect};
pub use events::{EVENT_REQUESTS_MAX, Event};
pub use fused::CompareAndWrite;
pub use history::{Happened, Happening, History, Past};
pub use io::{COPY_BYTES_MAX, COPY_RANGES_MAX, Group, Io, Range, copied, ranges};
pub use log::{ERRORS_MAX, Named};
pub use reservation::{
    Held, HostId, Notice, Permit, REGISTRANTS_MAX, RegisterAction, ReservationRequest, ReservationType, Reservations,
    Reserve,
};

use crate::fabrics_data::DiscoveryEntry;
use crate::{Access, Nqn};

/// MDTS: maximum data of one command, in bytes.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of entries of a queue: CAP.MQES plus one.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;

/// Maximum number of I/O queues of a controller.
pub const QUEUES_MAX: u16 = 128;

/// NN: the highest namespace number.
pub const NAMESPACE_MAX: u32 = 65_535;

/// MNAN and NANAGRPID: maximum number of namespaces of a subsystem; each is an ANA group of its
/// own. A host reserves memory for the whole ANA log, 36 bytes for each namespace. Linux disables
/// ANA if that is more than [`TRANSFER_BYTES_MAX`].
pub const NAMESPACES_MAX: u32 = 4096;

/// The NSID that stands for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xFFFF_FFFF;

/// VS: version 2.0.
pub const VERSION: u32 = 0x0002_0000;

/// The type of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An I/O controller.
    Io,
    /// A discovery controller: it reports subsystems.
    Discovery,
}

/// A host, as it identifies itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// HOSTNQN.
    pub nqn: Nqn,
    /// HOSTID.
    pub id: [u8; 16],
}

/// An NVM subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// SN: up to 20 characters.
    pub serial: String,
    /// FR: the version of the program, up to 8 characters.
    pub firmware: String,
}

/// A namespace as a host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// NSID, 1 to [`NAMESPACE_MAX`].
    pub nsid: u32,
    /// Capacity in blocks.
    pub blocks: u64,
    /// Size of a block in bytes, a power of two.
    pub block_bytes: u32,
    /// The size of a write that needs no read before it, in bytes.
    pub optimal_write_bytes: u32,
    /// Its UUID, which is also its NGUID.
    pub uuid: [u8; 16],
    /// The controller refuses every change.
    pub read_only: bool,
    /// Whether deallocated blocks read as zeroes. Otherwise their content is undefined.
    pub deallocated_reads_zeroes: bool,
    /// Blocks that may be allocated, and that are. `None`: it is not thinly provisioned.
    pub thin_blocks: Option<(u64, u64)>,
}

/// The ANA state of a namespace on a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessState {
    /// The state.
    pub state: Access,
    /// Counts the state changes, so that a host notices missed ones. Not 0.
    pub count: u64,
}

/// Activity of a subsystem, for the SMART log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activity {
    /// Bytes that hosts have read.
    pub read_bytes: u64,
    /// Bytes that hosts have written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads of data that could neither be read nor reconstructed.
    pub media_errors: u64,
    /// Data are lost, or fewer further failures than configured would lose data.
    pub degraded: bool,
}

/// The state that a controller reports to its host.
pub trait SubsystemView {
    /// The subsystem.
    fn subsystem(&self) -> &Subsystem;

    /// The namespace with this number, if there is one and the host may see it.
    fn namespace(&self, nsid: u32) -> Option<Namespace>;

    /// The ANA state of a namespace that the host may see.
    fn access(&self, nsid: u32) -> Option<AccessState>;

    /// PTPL of a namespace that the host may see: its reservations survive a power loss.
    fn reservations_persist(&self, nsid: u32) -> bool;

    /// The numbers of namespaces above `nsid` that the host may see, in ascending order.
    fn namespaces_above(&self, nsid: u32) -> Vec<u32>;

    /// The generation of the discovery log, and its entries for this host.
    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>);

    /// The activity so far.
    fn activity(&self) -> Activity;

    /// The subsystem's history and current state.
    fn past(&self) -> Past;
}
