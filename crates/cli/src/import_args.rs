//! Arguments of imports.

use api::DriveSpec;
use clap::{Args, Subcommand};

use crate::common_args::DryRun;

/// Arguments of `group import-md`.
#[derive(Debug, Clone, Args)]
pub struct ImportMdArgs {
    /// The drives to examine, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_name = "DRIVE,...")]
    pub drives: Vec<DriveSpec>,
    /// Name of the import; default is the name of the array, without that of its machine
    #[arg(long)]
    pub name: Option<String>,
    /// The array, if the drives hold several, as mdadm shows it
    #[arg(long, value_name = "UUID|NAME")]
    pub array: Option<String>,
    /// Read an array that was not stopped cleanly and lacks drives: data of writes in progress at
    /// that time may be computed wrongly
    #[arg(long)]
    pub allow_inconsistent: bool,
    /// Only show what would be done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// Verbs of imports.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// List all imports
    #[command(after_help = "Examples:\n  purlin import list")]
    List,
    /// Show an import with its members and the drives that are left out
    #[command(after_help = "Examples:\n  purlin import show old")]
    Show {
        /// The import
        import: String,
    },
    /// Release an import's drives, which stay as they are, or disconnect from its namespace
    #[command(after_help = "Examples:\n  purlin import forget old\n  purlin import forget old --force")]
    Forget {
        /// The import
        import: String,
        /// Forget it even if clients are connected or its namespace is unreachable: unwritten data
        /// are lost then
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}
