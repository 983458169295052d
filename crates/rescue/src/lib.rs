//! Reads drive groups with nothing but their drives: a second reader of the format, for the day
//! when the daemon is gone.
//!
//! - [`Survey`]: what some drives are: superblocks, [`Group`]s, members that are missing or stale.
//! - [`list`]: what is on them, as a report.
//! - [`check`]: whether every structure is whole, and whether checksums and parity fit the data.
//! - [`Extraction`]: a volume's bytes, with up to m members of each set missing, unreadable or
//!   damaged.
//!
//! It is written from `docs/format/` and shares no code with the engine but the parsing of
//! structures (`format`) and the arithmetic (`gf`). A byte at which the two differ is a bug in one
//! of them, or in the documents.
//!
//! Invariants:
//! 1. Drives are opened for reading only, and nothing is ever written to them.
//! 2. A stale drive's bytes are used for nothing.
//! 3. What does not fit its checksum counts as unreadable.
//! 4. What could not be read or computed is reported as lost; it is never given as zeroes without
//!    saying so.

#![forbid(unsafe_code)]

mod catalogue;
mod check;
mod drive;
mod error;
mod extract;
mod finding;
mod geometry;
mod group;
mod list;
mod log;
mod map;
mod parity;
mod probe;
mod recover;
mod stripe;
mod sums;
mod survey;
mod target;
mod walk;

pub use check::{CheckReport, CheckedGroup, check};
pub use drive::{Drive, Medium};
pub use error::RescueError;
pub use extract::{ExtractReport, Extraction, LostRange};
pub use finding::{Finding, Structure};
pub use group::{Exclusion, Group};
pub use list::{
    CopyReport, DriveReport, DriveRole, ExportReport, GroupReport, Health, ListReport, MemberReport, SpareReport,
    VolumeReport, list,
};
pub use log::LogCount;
pub use parity::ParityCount;
pub use probe::{Probe, SuperblockCopy};
pub use sums::DamagedRange;
pub use survey::{Found, Survey, Unopened};
pub use target::{FileTarget, StreamTarget, Target};

/// Says how far something has come: done and total, in bytes.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);
