//! Arguments of the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::common_args::{Common, DryRun};
use crate::drive_args::{DriveCommand, SpareCommand};
use crate::export_args::ExportCommand;
use crate::group_args::GroupCommand;
use crate::host_args::HostCommand;
use crate::import_args::ImportCommand;
use crate::iostat::IostatArgs;
use crate::nvme_args::NvmeCommand;
use crate::referral_args::ReferralCommand;
#[cfg(target_os = "linux")]
use crate::rescue_args::RescueCommand;
use crate::volume_args::VolumeCommand;

/// Drives, drive groups, volumes and exports of a Purlin daemon
#[derive(Debug, Parser)]
#[command(
    name = "purlin",
    version = env!("PURLIN_VERSION"),
    max_term_width = 110,
    after_help = "\
Examples:
  purlin group create tank --level raid6 --drives /dev/nvme0n1,/dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1
  purlin volume create tank/db --size 10GiB
  purlin export create tank/db --nbd unix:/run/db.sock
  purlin status

Sizes: 4096, 64KiB, 10GiB, 1.5TiB. K, M, G, T and KiB .. are powers of 1024; KB, MB, GB, TB are powers of 1000.
Exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong arguments; of rescue and status -x: see their help."
)]
pub struct Line {
    /// Options of every command.
    #[command(flatten, next_help_heading = "Common options")]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Health, load and rebuilds on one screen, refreshed every second
    #[command(after_help = "\
Examples:
  purlin status
  purlin status --once
  purlin status --output json

Prints once where stdout is not a terminal, and with --output json. q or Ctrl-C ends it.

  purlin status -x

prints only what is not well, once, and ends with 0 if all is well, 3 if a group is degraded or has warnings or an export is
not served, and 4 if a group has failed or is not started.")]
    Status {
        /// Print once and exit
        #[arg(long)]
        once: bool,
        /// Print only unhealthy objects, once; the exit status says whether there are any and how
        /// bad it is
        #[arg(long, short = 'x')]
        unhealthy: bool,
    },
    /// Reads and writes per second, of groups and with -v of volumes and drives
    #[command(after_help = "\
Examples:
  purlin iostat
  purlin iostat -v --every 5s --count 12
  purlin iostat --count 0
  purlin iostat -v -o json | jq '.rates[] | select(.kind == \"drive\")'

The first figures come after the first look. Figures of groups and volumes are what clients do; those of drives are what the daemon
does on them, parity and rebuilds included.")]
    Iostat(IostatArgs),
    /// Drive groups: drives that protect each other's data
    #[command(subcommand)]
    Group(GroupCommand),
    /// Imports: Linux md arrays read in place, made by `group import-md`; namespaces of other
    /// machines, made by `nvme connect --ublk`
    #[command(subcommand)]
    Import(ImportCommand),
    /// Volumes: virtual drives in a group
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Exports: volumes offered to clients
    #[command(subcommand)]
    Export(ExportCommand),
    /// NVMe hosts: their access and activity
    #[command(subcommand)]
    Host(HostCommand),
    /// Referrals: other discovery services that NVMe hosts are referred to
    #[command(subcommand)]
    Referral(ReferralCommand),
    /// Drives: members, spares and others
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Hot spares: drives that take a lost member's place
    #[command(subcommand)]
    Spare(SpareCommand),
    /// Read drives without the daemon: list, check, extract; nothing is ever written to them
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Rescue(RescueCommand),
    /// Use namespaces of NVMe/TCP targets from here, without the daemon
    #[command(subcommand)]
    Nvme(NvmeCommand),
    /// Replace the running daemon by another program; new clients wait meanwhile
    #[command(after_help = "\
Examples:
  purlin upgrade
  purlin upgrade --program /opt/purlin/purlind
  purlin upgrade --dry-run

The new program gets the daemon's arguments, process id and listening sockets. Groups are stopped in order and started again;
clients that are connected lose their connections, and connect again. The daemon's own program is the default: put the new one
in its place first. Ctrl-C ends the waiting, not the upgrade.")]
    Upgrade {
        /// The new program; default: the file now at the path that the daemon was started from
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  purlin completions bash > /usr/share/bash-completion/completions/purlin
  purlin completions zsh > /usr/share/zsh/site-functions/_purlin
  purlin completions fish > /usr/share/fish/vendor_completions.d/purlin.fish")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the manual pages into a folder
    #[command(after_help = "\
Examples:
  purlin man /usr/share/man/man1")]
    Man {
        /// The folder; created if necessary
        dir: PathBuf,
    },
}
