//! Arguments for drives that no daemon uses.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Verbs of the rescue. It works on drives and images, without the daemon.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  purlin rescue list /dev/nvme*n1
  purlin rescue check --parity /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1
  purlin rescue extract /dev/nvme*n1 --volume tank/db --to db.img

Drives are block devices or images of them, in any order, without those that are lost. They are opened for reading only.
Stop the daemon first, or what is read may change meanwhile.
Exit status: 0 all is well, 1 something is damaged or lost, 2 it could not be done.")]
pub enum RescueCommand {
    /// Show the content of drives: superblocks, groups, missing or stale members, volumes, exports
    #[command(after_help = "\
Examples:
  purlin rescue list /dev/sd*
  purlin rescue list images/*.img
  purlin rescue list /dev/sd* --output json | jq -r '.groups[].volumes[].name'

A drive that is not Purlin's is named with what it holds: a file system, a partition table, another array.
Exit status: 0, or 2 if a drive could not be opened.")]
    List {
        /// Drives or images of them
        #[arg(required = true, value_name = "DRIVE")]
        drives: Vec<PathBuf>,
    },
    /// Check every structure on drives and, with --parity, all data ever written
    #[command(after_help = "\
Examples:
  purlin rescue check /dev/sd*
  purlin rescue check --parity /dev/sd*
  purlin rescue check images/*.img --output json | jq -r '.findings[].message'

Checked are both superblocks of each drive, the places of each group, every copy of the allocation map, the table of volumes
and the log. --parity reads all written stripes and compares data with parity; where two or more parity strips are left, it
names the drive that is wrong.
Exit status: 0 nothing is wrong, 1 something is, 2 it could not be checked.")]
    Check {
        /// Drives or images of them
        #[arg(required = true, value_name = "DRIVE")]
        drives: Vec<PathBuf>,
        /// Read and compare all data and parity
        #[arg(long)]
        parity: bool,
    },
    /// Write a volume's bytes to a file; the data of missing or unreadable members are computed
    #[command(after_help = "\
Examples:
  purlin rescue extract /dev/sd* --volume tank/db --to db.img
  purlin rescue extract images/*.img --volume tank/db --to - | zstd > db.img.zst
  purlin rescue extract /dev/sdb /dev/sdc --volume tank/db --to part.img --partial
  purlin rescue extract /dev/sd* --volume 6f1c2f0e-6d0a-4b57-9c7e-0f6a3a1d2b4c/db --to db.img
  purlin rescue extract /dev/sd* --volume tank/images --to images.img --from-segments

The file is sparse where the volume was never written. Stale drives are left out. Where more is missing than the group's level
survives, nothing is written, unless --partial says that a part is enough. Where the map of a thin volume cannot be read, it is
rebuilt from segments, with a warning: blocks that were discarded or zeroed may have old content.
Exit status: 0 all of it was written, 1 a part (--partial), 2 nothing.")]
    Extract(RescueExtractArgs),
}

/// Arguments of `rescue extract`.
#[derive(Debug, Clone, Args)]
pub struct RescueExtractArgs {
    /// Drives or images of them
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
    /// The volume: GROUP/VOLUME, or the group's UUID/VOLUME if several groups have the same name
    #[arg(long, value_name = "GROUP/VOLUME", value_parser = parse_rescue_volume)]
    pub volume: RescueVolume,
    /// The file or block device to write to; - is stdout
    #[arg(long, value_name = "FILE|-")]
    pub to: PathBuf,
    /// Overwrite an existing file or a block device
    #[arg(long)]
    pub force: bool,
    /// Write the readable data even if some are lost, with zeroes for the rest, and list the lost
    /// bytes
    #[arg(long)]
    pub partial: bool,
    /// Rebuild the map of a thin volume from segments even if it can be read
    #[arg(long)]
    pub from_segments: bool,
}

/// A volume on drives that no daemon uses. The names are those on the drives, so they are not
/// checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RescueVolume {
    /// Name or UUID of the group.
    pub group: String,
    /// Name of the volume.
    pub volume: String,
}

fn parse_rescue_volume(text: &str) -> Result<RescueVolume, String> {
    match text.split_once('/') {
        Some((group, volume)) if !group.is_empty() && !volume.is_empty() => {
            Ok(RescueVolume { group: group.to_owned(), volume: volume.to_owned() })
        }
        _ => Err("expected GROUP/VOLUME".to_owned()),
    }
}
