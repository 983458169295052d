//! Arguments of volumes.

use api::{ConvertAction, VolumeName};
use clap::{Args, Subcommand};

use crate::common_args::DryRun;
use crate::limit_args::LimitArgs;
use crate::thin_args::ThinArgs;
use crate::volume_size::VolumeSize;

/// An action on the kind of a volume.
#[derive(Debug, Clone, Copy, Args)]
#[group(required = true, multiple = false)]
pub struct ConvertArgs {
    /// Make it thin: it takes the space of what is written
    #[arg(long)]
    thin: bool,
    /// Make it direct: it has all of its space at a fixed place
    #[arg(long)]
    direct: bool,
    /// Stop the conversion that is under way; the volume stays as it was before
    #[arg(long)]
    cancel: bool,
}

impl ConvertArgs {
    /// The action that is asked for.
    pub fn action(self) -> ConvertAction {
        match (self.thin, self.direct) {
            (true, _) => ConvertAction::Thin,
            (_, true) => ConvertAction::Direct,
            _ => ConvertAction::Cancel,
        }
    }
}

/// Verbs of volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume; it is usable at once and reads as zeroes
    #[command(after_help = "\
Examples:
  purlin volume create tank/db --size 10GiB
  purlin volume create tank/rest --size 100%
  purlin volume create tank/images --thin --size 10TiB
  purlin volume create tank/logs --thin --size 1TiB --compress zstd --quota 500GiB

A thin volume takes space of the group when it is written, and gives it back when it is discarded (fstrim). It may be larger
than its group. When the group is full, writes get the no-space error; reads, discards and deletions go on.")]
    Create {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        /// Its capacity, or a share of the group's free space, such as 100% (not of a thin volume)
        #[arg(long)]
        size: VolumeSize,
        /// Take space when the volume is written, and not at once
        #[arg(long)]
        thin: bool,
        #[command(flatten)]
        settings: ThinArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Change how a thin volume uses the space of its group, while it is in use
    #[command(after_help = "\
Examples:
  purlin volume set tank/logs --compress zstd:6
  purlin volume set tank/db --reserve 100GiB --when-full wait:10s
  purlin volume set tank/db --quota off --compress off

Another compression is used for what is written from then on.")]
    Set {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        #[command(flatten)]
        settings: ThinArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Convert a volume from direct to thin or back, while it is in use
    #[command(after_help = "\
Examples:
  purlin volume convert tank/db --thin --dry-run
  purlin volume convert tank/db --thin --compress lz4
  purlin volume convert tank/db --direct
  purlin volume convert tank/db --cancel

The volume is copied in the background, also after a restart: `purlin volume show` says how far it is. Clients notice nothing,
except that writes go to both places until it is done. It needs space for both contents meanwhile; then the old one is freed.
Until the end, --cancel leaves the volume as it was before.")]
    Convert {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        #[command(flatten)]
        action: ConvertArgs,
        #[command(flatten)]
        settings: ThinArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// List all volumes
    #[command(after_help = "Examples:\n  purlin volume list")]
    List,
    /// Show a volume
    #[command(after_help = "Examples:\n  purlin volume show tank/db")]
    Show {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
    },
    /// Limit the rate of a volume, over all its exports together; effective at once
    #[command(after_help = "\
Examples:
  purlin volume limit tank/db --iops 20k
  purlin volume limit tank/db --iops 20k --bandwidth 500MiB --burst 2s
  purlin volume limit tank/db --bandwidth off
  purlin volume limit tank/db --iops off --bandwidth off

Requests over the limit wait, in the order in which they came; they never fail. Nothing else waits with them. After a pause, what
the limit allows in the time of --burst goes at once. `purlin volume show` says how many have waited. The limit lies on the
group's drives.")]
    Limit {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        #[command(flatten)]
        limit: LimitArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Grow or shrink a volume; shrinking destroys the data behind the new end
    #[command(after_help = "\
Examples:
  purlin volume resize tank/db --size 20GiB
  purlin volume resize tank/db --size 100%
  purlin volume resize tank/db --size 5GiB --dry-run")]
    Resize {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        /// Its new capacity; for a direct volume also a share of its own space plus the group's
        /// free space, such as 100%
        #[arg(long)]
        size: VolumeSize,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Rename a volume within its group, while it is in use
    #[command(after_help = "\
Examples:
  purlin volume rename tank/db db-old
  purlin volume rename tank/db tank/db-old --dry-run

NVMe hosts notice nothing; a block device stays, and is /dev/purlin/GROUP/NEW. NBD clients know the volume by its name:
while some are connected, only --force renames.")]
    Rename {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        /// Its new name, with or without its group
        new: String,
        /// Rename it even if NBD clients are connected; they lose their connections
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Destroy a volume and all its data
    #[command(after_help = "Examples:\n  purlin volume delete tank/db --dry-run\n  purlin volume delete tank/db --yes")]
    Delete {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        #[command(flatten)]
        dry_run: DryRun,
    },
}
