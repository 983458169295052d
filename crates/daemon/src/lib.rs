//! `purlind`: the storage daemon.
//!
//! - [`Engine`]: groups, volumes and exports on the shards of a runtime; the library side of the
//!   daemon.
//! - [`http`]: the API over it.
//! - [`Handover`]: passes listening sockets from one process to the next.
//! - [`LogWriter`]: the log, which never blocks the caller.
#![forbid(unsafe_code)]

mod engine;
mod handover;
pub mod http;
mod log_writer;

pub use engine::{Engine, Interfaces, WallClock};
pub use handover::Handover;
pub use log_writer::{LogWriter, dropped_lines};
