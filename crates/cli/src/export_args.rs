//! Arguments of exports.

use std::path::PathBuf;

use api::{AnaState, NbdAddress, NvmeTcpCreate, UblkCreate, VolumeName, parse_bytes};
use clap::{Args, Subcommand};

use crate::common_args::DryRun;

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
