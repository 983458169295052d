//! Arguments of the command line.

use std::path::PathBuf;
use std::time::Duration;

use api::{
    AnaState, DriveSpec, DurationError, GroupUpdate, Level, NbdAddress, NvmeTcpCreate, SafetyMode, UblkCreate,
    VolumeName, parse_bytes, parse_duration,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::host_args::HostCommand;
use crate::import_args::{ImportCommand, ImportMdArgs};
use crate::iostat::IostatArgs;
use crate::nvme_args::NvmeCommand;
use crate::referral_args::ReferralCommand;
#[cfg(target_os = "linux")]
use crate::rescue_args::RescueCommand;
use crate::share_args::ShareArgs;
use crate::volume_args::VolumeCommand;

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
  purlin group create tank --level raid1 --drives /dev/nvme0n1,nvme-tcp://10.0.0.5/nqn.2026-11.com.example:shelf?nsid=1
  purlin group create tank --level raid1 --drives '/dev/nvme0n1,nvme-tcp://10.0.0.5/nqn.2026-11.com.example:shelf?nsid=1&tls-key=/etc/purlin/host.tls'

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
#[derive(Debug, Clone, Copy, Args)]
pub struct Settings {
    /// Keep the 99th percentile of clients' latency below this while rebuilding and scrubbing, such
    /// as 5ms; default off
    #[arg(long, value_name = "DURATION|off", value_parser = parse_duration_or_off)]
    pub client_p99: Option<DurationOrOff>,
    /// Replace a member that stays far slower than the others by a spare; default off: it is only
    /// reported
    #[arg(long, value_enum, value_name = "on|off")]
    pub retire_slow: Option<Switch>,
    /// Scrub and repair this often, such as 30d, which is the default
    #[arg(long, value_name = "DURATION|off", value_parser = parse_duration_or_off)]
    pub scrub_every: Option<DurationOrOff>,
}

/// A duration, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationOrOff(pub Option<Duration>);

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

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On
    On,
    /// Off
    Off,
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
            dry_run,
        }
    }
}

/// Verbs of exports.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Offer a volume to clients, or make it a block device of this machine
    #[command(after_help = "\
Examples:
  purlin export create tank/db --ublk
  purlin export create tank/db --ublk --number 7 --block-size 512
  purlin export create tank/db --nbd unix:/run/db.sock
  purlin export create tank/db --nbd 0.0.0.0:10809 --read-only
  purlin export create tank/db --nbd 0.0.0.0:10809 --tls-cert cert.pem --tls-key key.pem --tls-ca clients.pem
  purlin export create tank/db --nvme-tcp --host nqn.2014-08.org.nvmexpress:uuid:8a1c...
  purlin export create tank/db --nvme-tcp 10.0.0.5:4420 --allow-any-host

A block device is /dev/ublkbN and, always by the same name, /dev/purlin/GROUP/VOLUME. It stays when the daemon is restarted or
killed: what is asked of it waits. It needs the kernel's module ublk_drv (Linux 6.2 or newer). A swap area does not belong on it: without
any memory left the daemon could not write what makes room.

Over NVMe/TCP all volumes of a group are namespaces of one subsystem; `purlin export show ID` says how hosts connect.")]
    Create(Box<ExportCreateArgs>),
    /// List all exports
    #[command(after_help = "Examples:\n  purlin export list")]
    List,
    /// Show an export, and how clients connect to it
    #[command(after_help = "Examples:\n  purlin export show tank-3")]
    Show {
        /// Identifier of the export, from `purlin export list`
        id: String,
    },
    /// Change an export while clients are connected; the setting is stored on the group's drives
    #[command(after_help = "\
Examples:
  purlin export set tank-3 --ana non-optimized
  purlin export set tank-3 --ana inaccessible --dry-run
  purlin export set tank-3 --ana optimized

The ANA state is what NVMe hosts with several ways to a volume go by: they use optimized ways, others where there is none, and
inaccessible ones never. They hear of a change at once; what they have sent is answered, or sent again another way.")]
    Set {
        /// Identifier of the export, from `purlin export list`
        id: String,
        /// ANA state: optimized, non-optimized or inaccessible; for NVMe/TCP
        #[arg(long, value_name = "STATE")]
        ana: AnaState,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Delete an export; its clients lose their connections. A block device in use is not removed
    #[command(after_help = "Examples:\n  purlin export delete tank-3")]
    Delete {
        /// Identifier of the export, from `purlin export list`
        id: String,
    },
}

/// Arguments of `export create`.
#[derive(Debug, Clone, Args)]
#[command(group = clap::ArgGroup::new("protocol").required(true).args(["nbd", "ublk", "nvme_tcp"]))]
pub struct ExportCreateArgs {
    /// The volume, GROUP/VOLUME
    pub volume: VolumeName,
    /// Address to listen at for NBD clients
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    pub nbd: Option<NbdAddress>,
    /// Address to listen at for NVMe hosts; by default 0.0.0.0:4420
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = NvmeTcpCreate::ADDRESS_DEFAULT)]
    pub nvme_tcp: Option<String>,
    /// NVMe qualified name of a host that may use it; may be repeated
    #[arg(long, value_name = "NQN", requires = "nvme_tcp", conflicts_with = "allow_any_host")]
    pub host: Vec<String>,
    /// Allow any host that reaches the address
    #[arg(long, requires = "nvme_tcp")]
    pub allow_any_host: bool,
    /// Number of the namespace; default: the lowest free one
    #[arg(long, value_name = "N", requires = "nvme_tcp")]
    pub nsid: Option<u32>,
    /// Make it a block device of this machine
    #[arg(long)]
    pub ublk: bool,
    /// N in /dev/ublkbN; default: the lowest free one
    #[arg(long, value_name = "N", requires = "ublk")]
    pub number: Option<u32>,
    /// Block size of a block device or a namespace: 512 or 4096. The default is the size that the
    /// drives write atomically at a power failure (their physical blocks); for an import's device
    /// that of its drives
    #[arg(long, value_name = "SIZE", conflicts_with = "nbd", value_parser = parse_bytes)]
    pub block_size: Option<u64>,
    /// Requests in flight on each of its queues, 1 to 4096
    #[arg(long, value_name = "N", requires = "ublk", default_value_t = UblkCreate::DEPTH_DEFAULT)]
    pub depth: u16,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Require TLS, with this certificate chain in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "nbd"])]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Accept only clients whose certificate is signed by one of these, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
}

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
