//! What may be typed.

use std::path::PathBuf;

use api::{DriveSpec, Level, NbdAddress, SafetyMode, VolumeName, parse_bytes};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Drives, drive groups, volumes and exports of a Purlin daemon
#[derive(Debug, Parser)]
#[command(
    name = "purlin",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  purlin group create tank --level raid6 --drives /dev/nvme0n1,/dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1
  purlin volume create tank/db --size 10GiB
  purlin export create tank/db --nbd unix:/run/db.sock
  purlin status

Sizes: 4096, 64KiB, 10GiB, 1.5TiB. K, M, G, T and KiB .. are powers of 1024; KB, MB, GB, TB are powers of 1000.
Exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong arguments; of rescue: see its help."
)]
pub struct Line {
    /// What every command takes.
    #[command(flatten, next_help_heading = "Common options")]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Socket of the daemon
    #[arg(long, global = true, value_name = "PATH", env = "PURLIN_SOCKET", default_value = api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// How to print; the JSON is described in docs/cli/json.md
    #[arg(long, short = 'o', global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub output: Format,
    /// Answer every question with yes
    #[arg(long, short = 'y', global = true)]
    pub yes: bool,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Health, load and rebuilds on one screen, refreshed every second
    #[command(after_help = "\
Examples:
  purlin status
  purlin status --once
  purlin status --output json

Prints once where stdout is not a terminal, and with --output json. Ctrl-C ends it.")]
    Status {
        /// Print once and end
        #[arg(long)]
        once: bool,
    },
    /// Drive groups: drives that protect each other's data
    #[command(subcommand)]
    Group(GroupCommand),
    /// Volumes: virtual drives in a group
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Exports: volumes offered to clients
    #[command(subcommand)]
    Export(ExportCommand),
    /// Drives: members, spares and others
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Hot spares: drives that take a lost member's place
    #[command(subcommand)]
    Spare(SpareCommand),
    /// Read drives without the daemon: list, check, extract; nothing is ever written to them
    #[command(subcommand)]
    Rescue(RescueCommand),
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
        /// The folder; it is created if need be
        dir: PathBuf,
    },
}

/// What a new drive may be made of, and what may be overwritten.
#[derive(Debug, Clone, Args)]
pub struct NewDrives {
    /// Create drives whose path does not exist as sparse files of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub create_files: Option<u64>,
    /// Overwrite drives that hold a file system, another array or a partition table
    #[arg(long)]
    pub wipe_foreign: bool,
}

/// Only say what would be done.
#[derive(Debug, Clone, Copy, Args)]
pub struct DryRun {
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Verbs of groups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Make a group of drives; it is usable at once
    #[command(after_help = "\
Examples:
  purlin group create tank --level raid6 --drives /dev/nvme0n1,/dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1
  purlin group create tank --level raid60 --sets 2 --drives d0,d1,d2,d3,d4,d5,d6,d7 --create-files 1GiB
  purlin group create tank --level nm --parity 4 --strip 128KiB --drives mem:a:1GiB,mem:b:1GiB,...
  purlin group create tank --level raid5 --drives sda,sdb,sdc --spares sdd --dry-run

Levels: raid0, raid1, raid10, raid5, raid6, raid7 (triple parity), raid50, raid60, nm (N+M).
A drive is a block device, a file, or mem:NAME:SIZE (memory of the daemon, lost when it ends).")]
    Create(GroupCreateArgs),
    /// List all groups
    #[command(
        after_help = "Examples:\n  purlin group list\n  purlin group list --output json | jq -r '.groups[].name'"
    )]
    List,
    /// Show a group with its members, spares and jobs
    #[command(after_help = "Examples:\n  purlin group show tank")]
    Show {
        /// The group
        group: String,
    },
    /// Compare all data with their parity
    #[command(after_help = "\
Examples:
  purlin group scrub tank
  purlin group scrub tank --repair --wait
  purlin group scrub tank --status
  purlin group scrub tank --stop

With --wait it exits with 1 if differences were found and not put right.")]
    Scrub {
        /// The group
        group: String,
        /// Put right what is wrong, where parity can tell which side is; default is to report only
        #[arg(long, conflicts_with_all = ["stop", "status"])]
        repair: bool,
        /// Stay until it ends, with a progress bar on a terminal
        #[arg(long, conflicts_with_all = ["stop", "status"])]
        wait: bool,
        /// Stop the running scrub
        #[arg(long, conflicts_with = "status")]
        stop: bool,
        /// Only say how it stands
        #[arg(long)]
        status: bool,
    },
    /// Start a group from its drives, in any order and under any names
    #[command(after_help = "Examples:\n  purlin group assemble /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1")]
    Assemble {
        /// Its members and spares
        #[arg(required = true, value_name = "DRIVE")]
        drives: Vec<DriveSpec>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Stop using a group's drives; everything stays on them
    #[command(after_help = "Examples:\n  purlin group stop tank\n  purlin group stop tank --force")]
    Stop {
        /// The group
        group: String,
        /// Although clients are connected
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Destroy a group and every volume in it
    #[command(after_help = "Examples:\n  purlin group delete tank --dry-run\n  purlin group delete tank --yes")]
    Delete {
        /// The group
        group: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// What `group create` takes.
#[derive(Debug, Clone, Args)]
pub struct GroupCreateArgs {
    /// Its name: a-z, 0-9, '.', '_' and '-'
    pub name: String,
    /// How it protects its data
    #[arg(long)]
    pub level: Level,
    /// Its members, separated by commas
    #[arg(long, required = true, value_delimiter = ',', value_name = "DRIVE,...")]
    pub drives: Vec<DriveSpec>,
    /// Hot spares, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "DRIVE,...")]
    pub spares: Vec<DriveSpec>,
    /// Parity strips of a stripe, for level nm: 1 to 8
    #[arg(long, value_name = "M")]
    pub parity: Option<u32>,
    /// Copies, for level raid10: 2 to 4, default 2
    #[arg(long, value_name = "COPIES")]
    pub copies: Option<u32>,
    /// Sets, for levels raid50 and raid60: default 2
    #[arg(long, value_name = "S")]
    pub sets: Option<u32>,
    /// One drive's part of a stripe: a power of two from 4KiB to 1MiB, default 64KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub strip: Option<u64>,
    /// What a crash may cost: on (a log closes the write hole, the default), strict (every block under way is old or
    /// new, whatever is lost with the crash; partial stripes are written twice), off (scratch data)
    #[arg(long, value_name = "MODE")]
    pub crash_safety: Option<SafetyMode>,
    /// What new drives are made of.
    #[command(flatten)]
    pub new_drives: NewDrives,
    /// Only say what would be done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// Verbs of volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume; it is usable at once and reads as zeroes
    #[command(after_help = "Examples:\n  purlin volume create tank/db --size 10GiB")]
    Create {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        /// Its capacity
        #[arg(long, value_parser = parse_bytes)]
        size: u64,
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
    /// Grow or shrink a volume; shrinking loses what lies behind the new end
    #[command(after_help = "\
Examples:
  purlin volume resize tank/db --size 20GiB
  purlin volume resize tank/db --size 5GiB --dry-run")]
    Resize {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        /// Its new capacity
        #[arg(long, value_parser = parse_bytes)]
        size: u64,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Destroy a volume and all that is on it
    #[command(after_help = "Examples:\n  purlin volume delete tank/db --dry-run\n  purlin volume delete tank/db --yes")]
    Delete {
        /// Its name, GROUP/VOLUME
        name: VolumeName,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// Verbs of exports.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Offer a volume to clients
    #[command(after_help = "\
Examples:
  purlin export create tank/db --nbd unix:/run/db.sock
  purlin export create tank/db --nbd 0.0.0.0:10809 --read-only
  purlin export create tank/db --nbd 0.0.0.0:10809 --tls-cert cert.pem --tls-key key.pem --tls-ca clients.pem")]
    Create(ExportCreateArgs),
    /// List all exports
    #[command(after_help = "Examples:\n  purlin export list")]
    List,
    /// End an export; its clients lose their connections
    #[command(after_help = "Examples:\n  purlin export delete 1")]
    Delete {
        /// Its identity, from `purlin export list`
        id: String,
    },
}

/// What `export create` takes.
#[derive(Debug, Clone, Args)]
pub struct ExportCreateArgs {
    /// The volume, GROUP/VOLUME
    pub volume: VolumeName,
    /// Where to listen for NBD clients
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    pub nbd: NbdAddress,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Speak TLS only, with this certificate chain in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Take only clients whose certificate is signed by one of these, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
}

/// Verbs of drives.
#[derive(Debug, Subcommand)]
pub enum DriveCommand {
    /// List all drives that the daemon knows
    #[command(after_help = "Examples:\n  purlin drive list")]
    List,
    /// Stop using a member; refused where data would be lost
    #[command(after_help = "Examples:\n  purlin drive fail tank 2")]
    Fail {
        /// Its group
        group: String,
        /// Its slot, from `purlin group show`
        slot: u32,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Put another drive in a slot and rebuild onto it
    #[command(after_help = "\
Examples:
  purlin drive replace tank 2 --with /dev/nvme9n1
  purlin drive replace tank 2 --with /dev/nvme9n1 --wait")]
    Replace {
        /// The group
        group: String,
        /// The slot, from `purlin group show`
        slot: u32,
        /// The new drive
        #[arg(long, value_name = "DRIVE")]
        with: DriveSpec,
        /// Stay until the rebuild ends, with a progress bar on a terminal
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
    /// Give a group a hot spare; a degraded group takes it at once
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
    /// Take a hot spare away from a group
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

/// Verbs of the rescue. It speaks to drives and images, not to the daemon.
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
    /// Say what is on drives: superblocks, groups, members that are missing or stale, volumes, exports
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
    /// Check every structure on drives and, with --parity, all data that was ever written
    #[command(after_help = "\
Examples:
  purlin rescue check /dev/sd*
  purlin rescue check --parity /dev/sd*
  purlin rescue check images/*.img --output json | jq -r '.findings[].message'

Checked are both superblocks of each drive, the places of each group, every copy of the allocation map, the table of volumes
and the log. --parity reads all written stripes and compares data with parity; where two or more syndromes are left, it
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
    /// Write a volume's bytes to a file, computing what members that are missing or unreadable held
    #[command(after_help = "\
Examples:
  purlin rescue extract /dev/sd* --volume tank/db --to db.img
  purlin rescue extract images/*.img --volume tank/db --to - | zstd > db.img.zst
  purlin rescue extract /dev/sdb /dev/sdc --volume tank/db --to part.img --partial
  purlin rescue extract /dev/sd* --volume 6f1c2f0e-6d0a-4b57-9c7e-0f6a3a1d2b4c/db --to db.img

The file is sparse where the volume was never written. Stale drives are left out. Where more is missing than the group's level
survives, nothing is written, unless --partial says that a part is enough.
Exit status: 0 all of it was written, 1 a part (--partial), 2 nothing.")]
    Extract(RescueExtractArgs),
}

/// What `rescue extract` takes.
#[derive(Debug, Clone, Args)]
pub struct RescueExtractArgs {
    /// Drives or images of them
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
    /// The volume: GROUP/VOLUME, or the group's UUID/VOLUME where several have one name
    #[arg(long, value_name = "GROUP/VOLUME", value_parser = parse_rescue_volume)]
    pub volume: RescueVolume,
    /// The file or block device to write to; - is stdout
    #[arg(long, value_name = "FILE|-")]
    pub to: PathBuf,
    /// Overwrite a file or a block device that is there
    #[arg(long)]
    pub force: bool,
    /// Write what can be read although something is lost, zeroes for the rest, and say which bytes those are
    #[arg(long)]
    pub partial: bool,
}

/// A volume on drives that no daemon serves. The names are those on the drives, so no rule is applied to them.
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
