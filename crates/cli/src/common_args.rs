//! Arguments that several commands take.

use std::path::PathBuf;
use std::time::Duration;

use api::{DurationError, parse_bytes, parse_duration};
use clap::{Args, ValueEnum};

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Socket of the daemon
    #[arg(long, global = true, value_name = "PATH", env = "PURLIN_SOCKET", default_value = api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Output format; docs/cli/json.md describes the JSON
    #[arg(long, short = 'o', global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub output: Format,
    /// Answer every question with yes
    #[arg(long, short = 'y', global = true)]
    pub yes: bool,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Options for new drives: files to create, and content to overwrite.
#[derive(Debug, Clone, Args)]
pub struct NewDrives {
    /// Create drives whose path does not exist as sparse files of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub create_files: Option<u64>,
    /// Overwrite drives that hold a file system, another array, a partition table or unknown data
    #[arg(long)]
    pub wipe_foreign: bool,
}

/// Only show what would be done.
#[derive(Debug, Clone, Copy, Args)]
pub struct DryRun {
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// A duration, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationOrOff(pub Option<Duration>);

/// Parses a duration, or `off`.
pub fn parse_duration_or_off(text: &str) -> Result<DurationOrOff, DurationError> {
    match text {
        "off" => Ok(DurationOrOff(None)),
        // 0 means off in the API. A user who types 0s may mean something else, so it is refused.
        text => match parse_duration(text)? {
            Duration::ZERO => Err(DurationError::Malformed(text.to_owned())),
            duration => Ok(DurationOrOff(Some(duration))),
        },
    }
}
