//! The command `purlin`: a client of the daemon's HTTP API; `purlin rescue`, which reads drives
//! without the daemon; and `purlin nvme`, an NVMe/TCP host without the daemon.
//!
//! - [`Line`]: the command line.
//! - [`Client`]: the API over a Unix socket.
//! - [`run`]: executes a command line.
//! - [`Failure`]: why it failed, in one sentence.
#![forbid(unsafe_code)]
// They panic when the reader has gone: `output` has functions that do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod ask;
mod client;
mod commands;
mod common_args;
mod drive_args;
mod ending;
#[cfg(test)]
mod examples;
mod export_args;
mod failure;
mod fit;
mod glob;
mod group_args;
mod host_args;
mod hosts;
mod import_args;
mod imported;
mod iostat;
mod keys;
mod limit_args;
mod maintenance;
mod moment;
pub mod nvme;
mod nvme_args;
mod output;
mod progress;
mod reach;
mod referral_args;
#[cfg(target_os = "linux")]
mod rescue_args;
#[cfg(target_os = "linux")]
mod rescued;
mod scanned;
mod screen;
mod secret;
mod share_args;
mod shared;
mod suggest;
mod table;
mod thin;
mod thin_args;
mod unwell;
mod volume_args;
mod volume_size;

pub use args::Line;
pub use client::Client;
pub use failure::Failure;
pub use iostat::{IoKind, IoRate, IoStats};
pub use output::on_stderr;
pub use secret::HostKey;
pub use suggest::with_tips;

/// Executes the command line.
///
/// # Errors
/// [`Failure`], to be shown on stderr after `purlin: `.
pub fn run(line: Line) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Local { what: "cannot start".to_owned(), source: error })?;
    runtime.block_on(commands::run(line))
}
