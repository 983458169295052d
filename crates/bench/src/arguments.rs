//! Arguments that several benchmarks take.

use std::time::Duration;

use clap::{Args, value_parser};
use runtime::{Config, Runtime};

use crate::Error;

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

/// A load on one core, over memory drives of this process.
#[derive(Debug, Clone, Args)]
pub struct OneCore {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Alternating rounds; their median is reported
    #[arg(long, default_value_t = 9, value_parser = value_parser!(u16).range(5..))]
    pub rounds: u16,
    /// Length of one turn of one contender
    #[arg(long, default_value_t = 400, value_parser = value_parser!(u64).range(1..))]
    pub turn_ms: u64,
    /// Core; default: the last one that this program may use
    #[arg(long)]
    pub core: Option<usize>,
    /// Total memory of the drives of a group
    #[arg(long, default_value_t = 2304, value_parser = value_parser!(u64).range(128..))]
    pub drives_mib: u64,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u64).range(1..))]
    pub depth: u64,
}

impl OneCore {
    /// Length of one turn of one contender.
    pub fn turn(&self) -> Duration {
        Duration::from_millis(self.turn_ms)
    }

    /// A runtime with one shard, on the core.
    ///
    /// # Errors
    /// If this program may use no core, or the shard does not start.
    pub fn runtime(&self) -> Result<Runtime, Error> {
        let config = Config::default();
        let core = self.core.or(config.cores.last().copied()).ok_or("this program may use no core")?;
        Ok(Runtime::start(Config { cores: vec![core], ..config })?)
    }
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
