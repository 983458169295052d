//! Reads drive groups with nothing but their drives: a second reader of the format, in case the
//! daemon is unavailable.
//!
//! - [`Survey`]: identifies drives: superblocks, [`Group`]s, members that are missing or stale.
//! - [`list`]: a report of the content.
//! - [`check`]: whether every structure is intact, and whether checksums and parity fit the data.
//! - [`Extraction`]: reads a volume, with up to m members of each set missing, unreadable or
//!   damaged.
//!
//! The crate is written from `docs/format/`. It shares only the parsing of structures (`format`)
//! and the arithmetic (`gf`) with the engine. If the two differ in a byte, one of them or the
//! documents have a bug.
//!
//! Invariants:
//! 1. Drives are opened for reading only, and nothing is ever written to them.
//! 2. Data of a stale drive is never used.
//! 3. Data that does not fit its checksum counts as unreadable.
//! 4. Data that could not be read or computed is reported as lost. It is never returned as zeroes
//!    without a report.

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
mod lost;
mod map;
mod parity;
mod probe;
mod recover;
mod stripe;
mod sums;
mod survey;
mod target;
mod thin;
mod walk;

pub use check::{CheckReport, CheckedGroup, check};
pub use drive::{Drive, Medium};
pub use error::RescueError;
pub use extract::{ExtractReport, Extraction};
pub use finding::{Finding, Structure};
pub use format::VolumeKind;
pub use group::{Exclusion, Group};
pub use list::{
    CopyReport, DriveReport, DriveRole, ExportReport, GroupReport, Health, ListReport, MemberReport, SpareReport,
    VolumeReport, list,
};
pub use log::LogCount;
pub use lost::LostRange;
pub use parity::ParityCount;
pub use probe::{Probe, SuperblockCopy};
pub use sums::DamagedRange;
pub use survey::{Survey, SurveyedDrive, Unopened};
pub use target::{FileTarget, StreamTarget, Target};
pub use thin::packed::decompress as decompress_fragment;

/// Reports progress: bytes done and bytes in total.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);
