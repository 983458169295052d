//! Arguments of `purlin nvme`.

use std::path::PathBuf;
use std::time::Duration;

use api::{NbdAddress, parse_bytes};
use clap::{Args, Subcommand};
use initiator::Address;
use nvme::Nqn;

/// Verbs of NVMe/TCP: this machine as a host. Options have the names of nvme-cli, if it has them.
#[derive(Debug, Subcommand)]
pub enum NvmeCommand {
    /// List the subsystems that a target offers to this host, or the targets that announce
    /// themselves
    #[command(after_help = "\
Examples:
  purlin nvme discover 10.0.0.5
  purlin nvme discover 10.0.0.5:8009 --output json
  purlin nvme discover target-1 --hostnqn nqn.2014-08.org.nvmexpress:uuid:2e5cb3b8-6b30-4b1e-8a0f-7d4e0c1f2a3b
  purlin nvme discover --mdns

Without a port it is 4420. Other discovery services that it refers to are asked as well.

With --mdns no target is asked: discovery services that announce themselves by multicast DNS on the networks of this machine are
listed, with the addresses to ask them at.")]
    Discover {
        /// Address of the target
        #[arg(value_name = "HOST[:PORT]", required_unless_present = "mdns")]
        address: Option<Address>,
        /// List the discovery services that announce themselves (_nvme-disc._tcp), without asking
        /// them
        #[arg(
            long,
            conflicts_with_all = [
                "address", "no_follow", "hostnqn", "hostid", "dhchap_secret", "dhchap_ctrl_secret", "tls", "tls_key", "hdr_digest",
                "data_digest",
            ]
        )]
        mdns: bool,
        /// Seconds to listen with --mdns
        #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "address", value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
        /// List referrals without following them
        #[arg(long)]
        no_follow: bool,
        #[command(flatten)]
        host: HostArgs,
    },
    /// Connect to a namespace and export it to NBD clients of this machine, until Ctrl-C; or let
    /// the daemon make it a block device
    #[command(after_help = "\
Examples:
  purlin nvme connect 10.0.0.5 nqn.2014-08.org.nvmexpress:uuid:... --nbd unix:/run/user/1000/disk.sock
  purlin nvme connect 10.0.0.5,10.0.1.5 nqn.2026-11.com.example:target --nsid 3 --data-digest
  purlin nvme connect target-1:4421 nqn.2026-11.com.example:target --nbd 127.0.0.1:10810 --ctrl-loss-tmo -1
  purlin nvme connect 10.0.0.5 nqn.2026-11.com.example:target --dhchap-secret host.key --dhchap-ctrl-secret target.key
  purlin nvme connect 10.0.0.5 nqn.2026-11.com.example:target --tls --tls-key host.tls
  purlin nvme connect 10.0.0.5,10.0.1.5 nqn.2026-11.com.example:target --nsid 3 --ublk --name disk

`purlin host key generate` makes secrets, and with --tls keys. A connection that ends is made again, and requests wait meanwhile. Several addresses of one subsystem are several paths. `qemu-img info
nbd://127.0.0.1:10809`, `nbdcopy`, `nbd-client` and Windows' NBD drivers reach it.

With --ublk purlind connects, under its own name as a host, and the namespace is the block device /dev/purlin/NAME/nvme: until
`purlin nvme disconnect`, also after a restart of the daemon or of the target. It needs the kernel's module ublk_drv.")]
    Connect(ConnectArgs),
    /// List the namespaces that `purlin nvme connect` exports here, and those that are block
    /// devices
    #[command(after_help = "Examples:\n  purlin nvme list\n  purlin nvme list --output json")]
    List,
    /// End `purlin nvme connect`; a block device is removed if it is not in use
    #[command(after_help = "\
Examples:
  purlin nvme disconnect nqn.2026-11.com.example:target
  purlin nvme disconnect nqn.2026-11.com.example:target --nsid 3 --force
  purlin nvme disconnect --all")]
    Disconnect(DisconnectArgs),
    /// Read or write a namespace as fast as possible, and measure
    #[command(after_help = "\
Examples:
  purlin nvme bench 10.0.0.5 nqn.2014-08.org.nvmexpress:uuid:... --nsid 1
  purlin nvme bench 10.0.0.5 nqn.2026-11.com.example:target --read --block-size 128k --depth 8 --seconds 30
  purlin nvme bench 10.0.0.5 nqn.2026-11.com.example:target --randwrite --depth 128 --queues 4 --destroys-data

Random reads of 4 KiB are the default. Writes overwrite what the namespace holds. All runs on one core.")]
    Bench(BenchArgs),
}

/// Identity and credentials of this host.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Host")]
pub struct HostArgs {
    /// Name of this host; default: that of /etc/nvme/hostnqn, or one generated once and kept for
    /// this user
    #[arg(long, value_name = "NQN")]
    pub hostnqn: Option<Nqn>,
    /// Identifier of this host; default: the UUID in its name, or that of /etc/nvme/hostid
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    pub hostid: Option<[u8; 16]>,
    /// File with this host's secret (DHHC-1:...), used if the target requires authentication; - is
    /// stdin
    #[arg(long, value_name = "FILE|-")]
    pub dhchap_secret: Option<PathBuf>,
    /// File with the target's secret: the target has to authenticate, too
    #[arg(long, value_name = "FILE", requires = "dhchap_secret")]
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// Encrypt with TLS 1.3; --tls-key names the file with the key
    #[arg(long, requires = "tls_key")]
    pub tls: bool,
    /// File with this host's TLS key (NVMeTLSkey-1:...); - is stdin
    #[arg(long, value_name = "FILE|-", requires = "tls")]
    pub tls_key: Option<PathBuf>,
    /// Request digests of headers (CRC-32C)
    #[arg(long)]
    pub hdr_digest: bool,
    /// Request digests of data
    #[arg(long)]
    pub data_digest: bool,
}

/// Parameters of a connection.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionArgs {
    /// Number of the namespace; not needed if there is only one, except for `connect --ublk`
    #[arg(long, value_name = "NSID")]
    pub nsid: Option<u32>,
    /// I/O queues, one connection each
    #[arg(long, visible_alias = "queues", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub nr_io_queues: u16,
    /// Entries of each I/O queue
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub queue_size: u16,
    /// Seconds without a command after which the target drops this host
    #[arg(long, visible_alias = "keep-alive", value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub keep_alive_tmo: u32,
    /// Seconds after which a command is aborted and the connection is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub io_timeout: u32,
    /// Seconds before the first attempt to reconnect; doubled each time, up to ten times the value
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub reconnect_delay: u32,
    /// Seconds without a connection after which requests fail; -1: never
    #[arg(
        long,
        visible_alias = "ctrl-loss",
        value_name = "SECONDS",
        default_value_t = 600,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..=86_400)
    )]
    pub ctrl_loss_tmo: i64,
}

impl ConnectionArgs {
    /// `None`: no timeout.
    pub fn loss_timeout(&self) -> Option<Duration> {
        u64::try_from(self.ctrl_loss_tmo).ok().map(Duration::from_secs)
    }
}

/// Arguments of `nvme connect`.
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    /// Address of the target; several addresses of one subsystem are separated by commas
    #[arg(value_name = "HOST[:PORT],...", value_delimiter = ',', required = true)]
    pub addresses: Vec<Address>,
    /// The subsystem
    #[arg(value_name = "NQN")]
    pub subsystem: Nqn,
    /// Address for NBD clients; anyone who reaches it may read and write
    #[arg(long, value_name = "HOST:PORT|unix:PATH", default_value = "127.0.0.1:10809")]
    pub nbd: NbdAddress,
    /// Let the daemon make it a block device of this machine, until it is disconnected; digests are
    /// always on then
    #[arg(
        long,
        requires = "nsid",
        conflicts_with_all = [
            "nbd", "hostnqn", "hostid", "nr_io_queues", "queue_size", "keep_alive_tmo", "io_timeout", "reconnect_delay", "hdr_digest",
            "data_digest",
        ]
    )]
    pub ublk: bool,
    /// Name of the block device: /dev/purlin/NAME/nvme; default remote1, or the next free number
    #[arg(long, requires = "ublk")]
    pub name: Option<String>,
    /// N in /dev/ublkbN; default: the lowest free one
    #[arg(long, value_name = "N", requires = "ublk")]
    pub number: Option<u32>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

/// Arguments of `nvme disconnect`.
#[derive(Debug, Clone, Args)]
pub struct DisconnectArgs {
    /// The subsystem
    #[arg(value_name = "NQN", required_unless_present = "all")]
    pub subsystem: Option<Nqn>,
    /// Only this namespace of it
    #[arg(long, value_name = "NSID")]
    pub nsid: Option<u32>,
    /// All connected namespaces
    #[arg(long, conflicts_with_all = ["subsystem", "nsid"])]
    pub all: bool,
    /// Disconnect even if NBD clients are connected, or a block device's namespace is unreachable:
    /// unwritten data are lost then
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `nvme bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Address of the target; several addresses of one subsystem are separated by commas
    #[arg(value_name = "HOST[:PORT],...", value_delimiter = ',', required = true)]
    pub addresses: Vec<Address>,
    /// The subsystem
    #[arg(value_name = "NQN")]
    pub subsystem: Nqn,
    /// Read sequentially
    #[arg(long, group = "pattern")]
    pub read: bool,
    /// Write sequentially
    #[arg(long, group = "pattern")]
    pub write: bool,
    /// Read at random offsets; the default
    #[arg(long, group = "pattern")]
    pub randread: bool,
    /// Write at random offsets
    #[arg(long, group = "pattern")]
    pub randwrite: bool,
    /// Bytes of each request
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_bytes)]
    pub block_size: u64,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Overwrite the namespace without asking: its data are not needed
    #[arg(long)]
    pub destroys_data: bool,
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    initiator::parse_uuid(text).ok_or_else(|| format!("`{text}` is no UUID"))
}
