//! The controller's side above the transport: what a host is told, and what its commands mean.
//!
//! - [`Admission`] is what a Connect command asks for.
//! - [`Controller`] executes the commands of one admin queue.
//! - [`Io`] is a command of an I/O queue, checked and in bytes.
//! - [`Reservations`] are those of one namespace.
//! - [`History`] is what has happened to a subsystem, for the Persistent Event Log.
//!
//! None of them does I/O or knows time. What there is to tell comes from a [`Shelf`].

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

/// MDTS: data of one command at most, in bytes.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Entries of a queue at most: CAP.MQES and one.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;

/// I/O queues of a controller at most.
pub const QUEUES_MAX: u16 = 128;

/// NN: the highest number of a namespace.
pub const NAMESPACE_MAX: u32 = 65_535;

/// MNAN and NANAGRPID: namespaces of a subsystem at most, each of which is an ANA group of its own.
/// Hosts reserve memory for the whole ANA log, 36 bytes for each, and Linux' does without ANA where
/// that is more than [`TRANSFER_BYTES_MAX`].
pub const NAMESPACES_MAX: u32 = 4096;

/// The NSID that stands for all namespaces.
pub const ALL_NAMESPACES: u32 = 0xFFFF_FFFF;

/// VS: version 2.0.
pub const VERSION: u32 = 0x0002_0000;

/// What a controller is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An I/O controller.
    Io,
    /// A discovery controller: it tells which subsystems there are.
    Discovery,
}

/// A host, as it says who it is.
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

/// A namespace, as its hosts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// NSID, 1 to [`NAMESPACE_MAX`].
    pub nsid: u32,
    /// Capacity in blocks.
    pub blocks: u64,
    /// Size of a block in bytes, a power of two.
    pub block_bytes: u32,
    /// The write that needs no read in front of it, in bytes.
    pub optimal_write_bytes: u32,
    /// Its UUID, also in its NGUID.
    pub uuid: [u8; 16],
    /// Every change is refused.
    pub read_only: bool,
    /// Blocks that were deallocated read as zeroes; otherwise as anything.
    pub deallocated_reads_zeroes: bool,
}

/// How a namespace is reached through a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessState {
    /// The state.
    pub state: Access,
    /// Counts the states that it has had, so that a host sees that it has missed some. Not 0.
    pub count: u64,
}

/// What a subsystem has done, for the SMART log.
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
    /// Reads of what no drive and no redundancy could give.
    pub media_errors: u64,
    /// Fewer failures would cost data than should, or have.
    pub degraded: bool,
}

/// What a controller can tell its host.
pub trait Shelf {
    /// The subsystem.
    fn subsystem(&self) -> &Subsystem;

    /// A namespace, if there is one of this number that the host may see.
    fn namespace(&self, nsid: u32) -> Option<Namespace>;

    /// How a namespace that the host may see is reached.
    fn access(&self, nsid: u32) -> Option<AccessState>;

    /// PTPL of a namespace that the host may see: its reservations outlive a loss of power.
    fn reservations_persist(&self, nsid: u32) -> bool;

    /// The numbers above `nsid` of the namespaces that the host may see, ascending.
    fn namespaces_above(&self, nsid: u32) -> Vec<u32>;

    /// The generation of the discovery log, and its entries for this host.
    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>);

    /// What was done so far.
    fn activity(&self) -> Activity;

    /// The subsystem's past, and the present.
    fn past(&self) -> Past;
}
