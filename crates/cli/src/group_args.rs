//! Arguments of groups.

use api::{DriveSpec, GroupUpdate, Level, SafetyMode, parse_bytes};
use clap::{Args, Subcommand, ValueEnum};

use crate::common_args::{DryRun, DurationOrOff, NewDrives, parse_duration_or_off};
use crate::import_args::ImportMdArgs;

/// Verbs of groups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Create a group of drives; it is usable at once
    #[command(after_help = "\
Examples:
  purlin group create tank --level raid6 --drives /dev/nvme0n1,/dev/nvme1n1,/dev/nvme2n1,/dev/nvme3n1
  purlin group create tank --level raid60 --sets 2 --drives d0,d1,d2,d3,d4,d5,d6,d7 --create-files 1GiB
  purlin group create tank --level nm --parity 4 --strip 128KiB --drives mem:a:1GiB,mem:b:1GiB,...
  purlin group create tank --level raid5 --drives sda,sdb,sdc --spares sdd --dry-run
  purlin group create tank --level raid6 --drives '/dev/nvme[1-6]n1' --dry-run
  purlin group create tank --level raid6 --drives sda,sdb,sdc,sdd --client-p99 5ms --scrub-every 14d
  purlin group create tank --level raid5 --drives sda,sdb,sdc --checksums off
  purlin group create tank --level raid1 --drives /dev/nvme0n1,nvme-tcp://10.0.0.5/nqn.2026-11.com.example:target?nsid=1
  purlin group create tank --level raid1 --drives '/dev/nvme0n1,nvme-tcp://10.0.0.5/nqn.2026-11.com.example:target?nsid=1&tls-key=/etc/purlin/host.tls'

Levels: raid0, raid1, raid10, raid5, raid6, raid7 (triple parity), raid50, raid60, nm (N+M).
A drive is a block device, a file, mem:NAME:SIZE (memory of the daemon, lost when it ends), or nvme-tcp://HOST[:PORT]/NQN?nsid=N
(a drive of another machine; with &path=HOST:PORT for further ways to it, &loss=TIME for how long it may be out of reach,
&dhchap-secret=FILE to authenticate, &tls-key=FILE to encrypt).")]
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
    /// Change settings of a running group; they are stored on its drives
    #[command(after_help = "\
Examples:
  purlin group set tank --client-p99 5ms
  purlin group set tank --client-p99 off --retire-slow on
  purlin group set tank --scrub-every 14d
  purlin group set tank --scrub-every off --dry-run
  purlin group set tank --thin-warn 80%,95%

Durations: 500us, 5ms, 90s, 10m, 12h, 30d, 2w.")]
    Set {
        /// The group
        group: String,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Compare all data with their checksums and their parity
    #[command(after_help = "\
Examples:
  purlin group scrub tank
  purlin group scrub tank --repair --wait
  purlin group scrub tank --status
  purlin group scrub tank --pause
  purlin group scrub tank --resume
  purlin group scrub tank --stop

With --wait it exits with 1 if differences were found and not put right.
A paused or interrupted scrub goes on where it was, also after a restart of the daemon. Groups are scrubbed and repaired by
themselves as well: see --scrub-every of `purlin group set`.")]
    Scrub {
        /// The group
        group: String,
        /// Repair differences if checksums or parity tell which side is wrong; default is to report
        /// only
        #[arg(long, conflicts_with_all = ["pause", "resume", "stop", "status"])]
        repair: bool,
        /// Wait until it ends, with a progress bar on a terminal
        #[arg(long, conflicts_with_all = ["pause", "stop", "status"])]
        wait: bool,
        /// Pause the running scrub; it keeps its position
        #[arg(long, conflicts_with_all = ["resume", "stop", "status"])]
        pause: bool,
        /// Resume the paused scrub
        #[arg(long, conflicts_with_all = ["stop", "status"])]
        resume: bool,
        /// Stop the running or paused scrub; the next one starts at the beginning
        #[arg(long, conflicts_with = "status")]
        stop: bool,
        /// Only show its state
        #[arg(long)]
        status: bool,
    },
    /// Start a group from its drives, in any order and under any names
    #[command(after_help = "\
Examples:
  purlin group assemble /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1 /dev/nvme3n1
  purlin group assemble --drives '/dev/nvme*n1'
  purlin group assemble --drives '/dev/sd*' --name tank2

Drives that hold no group are left out, and named. The drives of two groups in one call are refused; `purlin group scan`
says which drives belong together. --name gives the group another name, on its drives too: for one from another machine
whose name is taken here.")]
    Assemble {
        /// Its members and spares
        #[arg(required_unless_present = "more_drives", value_name = "DRIVE")]
        drives: Vec<DriveSpec>,
        /// The same, separated by commas
        #[arg(long = "drives", value_delimiter = ',', value_name = "DRIVE,...")]
        more_drives: Vec<DriveSpec>,
        /// The new name of the group
        #[arg(long, value_name = "NEW")]
        name: Option<String>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Read a Linux md array in place, degraded too, so that its data can be copied over
    #[command(after_help = "\
Examples:
  purlin group import-md --drives /dev/sda,/dev/sdb,/dev/sdc --dry-run
  purlin group import-md --drives /dev/sda,/dev/sdb,/dev/sdc --name old
  purlin export create old/md --nbd unix:/run/old.sock --read-only
  purlin import forget old

RAID 0, 1, 4, 5, 6 and 10 with metadata 1.0, 1.1 and 1.2, in every layout that mdadm makes. The drives are opened for reading
only, and nobody else may have them: stop the array first, with `mdadm --stop`. With --dry-run, what is on the drives is
listed, and why it cannot be read. docs/import-md.md says more.")]
    ImportMd(ImportMdArgs),
    /// Find the groups on drives, and show the command that starts each; nothing is changed
    #[command(after_help = "\
Examples:
  purlin group scan
  purlin group scan --drives '/dev/nvme*n1'
  purlin group scan -o json | jq -r '.groups[].command'

Without --drives it reads all block devices of the daemon's machine, and files and remote drives of groups that the daemon
knows. `purlin rescue list` does much the same without the daemon.")]
    Scan {
        /// Only these drives, separated by commas
        #[arg(long, value_delimiter = ',', value_name = "DRIVE,...")]
        drives: Vec<DriveSpec>,
    },
    /// Start a group by its name: one that was stopped, could not be started, or is found on block
    /// devices
    #[command(after_help = "Examples:\n  purlin group start tank\n  purlin group start tank --dry-run")]
    Start {
        /// The group
        group: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Rename a group while it runs
    #[command(after_help = "\
Examples:
  purlin group rename tank lake
  purlin group rename tank lake --dry-run

Its exports follow: the export tank-3 is lake-3 then. NVMe hosts notice nothing; a block device stays, and is
/dev/purlin/lake/VOLUME. NBD clients know volumes by their names: while some are connected, only --force renames.")]
    Rename {
        /// The group
        group: String,
        /// Its new name
        new: String,
        /// Rename it even if NBD clients are connected; they lose their connections
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Stop using a group's drives; their data stay, and `group start` starts it again
    #[command(after_help = "Examples:\n  purlin group stop tank\n  purlin group stop tank --force")]
    Stop {
        /// The group
        group: String,
        /// Stop it even if clients are connected
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// No longer try to start a group that could not be started; its drives stay as they are
    ///
    /// Such a group is listed as not started, with the reason, and the daemon tries again when
    /// drives appear. `purlin group assemble` starts a forgotten group again.
    #[command(after_help = "Examples:\n  purlin group forget tank\n  purlin group forget tank --dry-run")]
    Forget {
        /// The group
        group: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Destroy a group and every volume in it, with their exports; refused while clients are
    /// connected
    #[command(after_help = "Examples:\n  purlin group delete tank --dry-run\n  purlin group delete tank --yes")]
    Delete {
        /// The group
        group: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// Arguments of `group create`.
#[derive(Debug, Clone, Args)]
pub struct GroupCreateArgs {
    /// Its name: a-z, 0-9, '.', '_' and '-'
    pub name: String,
    /// RAID level of the group
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
    /// Guarantee after a crash: on (a log closes the write hole, the default), strict (every block
    /// in flight is old or new, regardless of what is lost with the crash; partial stripes are
    /// written twice), off (scratch data)
    #[arg(long, value_name = "MODE")]
    pub crash_safety: Option<SafetyMode>,
    /// Keep checksums of data and parity, and verify them at every read; default on, except without
    /// redundancy (raid0) and with --crash-safety off
    #[arg(long, value_enum, value_name = "on|off")]
    pub checksums: Option<Switch>,
    /// Maintenance settings.
    #[command(flatten)]
    pub settings: Settings,
    /// Options for new drives.
    #[command(flatten)]
    pub new_drives: NewDrives,
    /// Only show what would be done.
    #[command(flatten)]
    pub dry_run: DryRun,
}

/// Maintenance settings of a group. A setting that is not given stays as it is.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Keep the 99th percentile of clients' latency below this beside background work, such as 5ms;
    /// default off
    #[arg(long, value_name = "DURATION|off", value_parser = parse_duration_or_off)]
    pub client_p99: Option<DurationOrOff>,
    /// Replace a member that stays far slower than the others by a spare; default off: it is only
    /// reported
    #[arg(long, value_enum, value_name = "on|off")]
    pub retire_slow: Option<Switch>,
    /// Scrub and repair this often, such as 30d, which is the default
    #[arg(long, value_name = "DURATION|off", value_parser = parse_duration_or_off)]
    pub scrub_every: Option<DurationOrOff>,
    /// Warn when thin volumes use so much of the space that they can have, such as 80%,90%,95%,
    /// which is the default
    #[arg(long, value_name = "PERCENT,...|off", value_parser = parse_levels)]
    pub thin_warn: Option<Levels>,
}

/// Levels of use in percent; none for no warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels(Vec<u8>);

fn parse_levels(text: &str) -> Result<Levels, String> {
    if text == "off" {
        return Ok(Levels(Vec::new()));
    }
    let level = |part: &str| part.strip_suffix('%').unwrap_or(part).parse::<u8>().ok();
    let levels: Option<Vec<u8>> = text.split(',').map(level).collect();
    levels.map(Levels).ok_or_else(|| format!("{text:?} are no levels: write such as 80%,90%,95%, or off"))
}

impl Settings {
    /// The form of the API, in which 0 is off. Fractions of an API unit are rounded up.
    pub fn update(self, dry_run: bool) -> GroupUpdate {
        let micros = |DurationOrOff(chosen): DurationOrOff| {
            chosen.map_or(0, |duration| u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX))
        };
        let seconds = |DurationOrOff(chosen): DurationOrOff| {
            chosen.map_or(0, |duration| duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
        };
        GroupUpdate {
            client_p99_us: self.client_p99.map(micros),
            retire_slow: self.retire_slow.map(|switch| switch == Switch::On),
            scrub_every_s: self.scrub_every.map(seconds),
            thin_warn_percents: self.thin_warn.map(|Levels(levels)| levels),
            dry_run,
        }
    }
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
}
