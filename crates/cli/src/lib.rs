//! The command `purlin`: a client of the daemon's HTTP API; and `purlin rescue`, which reads drives without the daemon.
//!
//! - [`Line`]: what may be typed.
//! - [`Client`]: the API over a Unix socket.
//! - [`run`]: does what a line says.
//! - [`Failure`]: why not, in one sentence.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod client;
mod commands;
mod failure;
mod import_args;
mod imported;
mod moment;
mod output;
mod progress;
mod rescued;
mod screen;
mod table;
mod upkeep;

pub use args::Line;
pub use client::Client;
pub use failure::Failure;

/// Does what the command line says.
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
