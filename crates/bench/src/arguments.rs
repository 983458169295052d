//! Arguments that several benchmarks take.

use clap::{Args, value_parser};

/// How often contenders that take turns are measured, and how the result is printed.
#[derive(Debug, Args)]
pub struct Turns {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Alternating rounds; their median is reported
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u16).range(5..))]
    pub rounds: u16,
}

/// A server and its client, each pinned to a core.
#[derive(Debug, Args)]
pub struct Sides {
    /// Bytes that each contender serves
    #[arg(long, default_value_t = 512, value_parser = value_parser!(u64).range(16..))]
    pub volume_mib: u64,
    /// Core of every server
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Core of the client
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
}
