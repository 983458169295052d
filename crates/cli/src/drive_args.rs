//! Arguments of drives and spares.

use api::DriveSpec;
use clap::Subcommand;

use crate::common_args::{DryRun, NewDrives};
use crate::share_args::ShareArgs;

/// Verbs of drives.
#[derive(Debug, Subcommand)]
pub enum DriveCommand {
    /// List all drives known to the daemon
    #[command(after_help = "Examples:\n  purlin drive list")]
    List,
    /// Show a drive: its type, its use and its health
    #[command(after_help = "Examples:\n  purlin drive show /dev/nvme0n1")]
    Show {
        /// The drive
        drive: DriveSpec,
    },
    /// Share drives of this machine, as they are, with other machines over NVMe/TCP
    #[command(after_help = "\
Examples:
  purlin drive share /dev/nvme2n1 /dev/nvme3n1 --host nqn.2014-08.org.nvmexpress:uuid:8a1c...
  purlin drive share /dev/nvme2n1 --host nqn.2014-08.org.nvmexpress:uuid:8a1c... --tls-key host.tls
  purlin drive share /dev/nvme2n1 --nvme-tcp 10.0.0.5:4420 --allow-any-host

Nothing is written to a drive, and nobody else on this machine may use it. What is printed is the drive's name on other machines, for
`purlin group create --drives` there. Any other NVMe/TCP host can use it, too. With a secret or a key of TLS, which is as
`purlin host key set --shares` gives the host one, it has to prove who it is, or to encrypt, for all shared drives.")]
    Share(ShareArgs),
    /// List the shared drives
    #[command(after_help = "Examples:\n  purlin drive shares\n  purlin drive shares -o json | jq -r '.shares[].url'")]
    Shares,
    /// Stop sharing a drive: hosts that use it lose it at once
    #[command(after_help = "Examples:\n  purlin drive unshare /dev/nvme2n1")]
    Unshare {
        /// The drive
        drive: DriveSpec,
    },
    /// Stop using a member; refused if data would be lost
    #[command(after_help = "\
Examples:
  purlin drive fail tank 2
  purlin drive fail tank /dev/nvme3n1

It asks before the group loses the last of its redundancy.")]
    Fail {
        /// Its group
        group: String,
        /// The member: its slot or its drive, from `purlin group show`
        member: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Erase the superblocks from a drive that no running group uses; the rest of it stays
    #[command(after_help = "\
Examples:
  purlin drive wipe /dev/nvme9n1
  purlin drive wipe /dev/nvme9n1 --dry-run

It names the group, and asks. Without this drive the group misses a member.")]
    Wipe {
        /// The drive
        drive: DriveSpec,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Replace a member by another drive; a working member is copied, and serves until the copy is
    /// complete
    #[command(after_help = "\
Examples:
  purlin drive replace tank 2 --with /dev/nvme9n1
  purlin drive replace tank 2 --with /dev/nvme9n1 --wait

A member that is lost is rebuilt from the others. A member that works is copied:
the group keeps its full redundancy, and its old drive leaves at the end. If the
new drive fails meanwhile, the member stays. `purlin spare remove GROUP DRIVE`
stops a copy.")]
    Replace {
        /// The group
        group: String,
        /// The member: its slot or its drive, from `purlin group show`
        member: String,
        /// The new drive
        #[arg(long, value_name = "DRIVE")]
        with: DriveSpec,
        /// Wait until the rebuild or copy ends, with a progress bar on a terminal
        #[arg(long, conflicts_with = "dry_run")]
        wait: bool,
        #[command(flatten)]
        new_drives: NewDrives,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// Verbs of spares.
#[derive(Debug, Subcommand)]
pub enum SpareCommand {
    /// Add a hot spare to a group; a degraded group uses it at once
    #[command(after_help = "Examples:\n  purlin spare add tank /dev/nvme9n1")]
    Add {
        /// The group
        group: String,
        /// The drive
        drive: DriveSpec,
        #[command(flatten)]
        new_drives: NewDrives,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove a hot spare from a group
    #[command(after_help = "Examples:\n  purlin spare remove tank /dev/nvme9n1")]
    Remove {
        /// The group
        group: String,
        /// The drive
        drive: DriveSpec,
        #[command(flatten)]
        dry_run: DryRun,
    },
}
