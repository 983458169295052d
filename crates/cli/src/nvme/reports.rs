//! What `purlin nvme` prints as JSON.

use serde::{Deserialize, Serialize};

/// `purlin nvme discover`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeDiscovery {
    /// Where it was asked.
    pub address: String,
    /// This host's name.
    pub host_nqn: String,
    /// Generation of the log: another number after each change.
    pub generation: u64,
    /// What is offered, there and where it refers to.
    pub subsystems: Vec<NvmeSubsystem>,
    /// Where it refers to and nobody could be asked.
    pub unreachable: Vec<NvmeUnreachable>,
}

/// A discovery service that could not be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeUnreachable {
    /// Where it should listen.
    pub address: String,
    /// Why not.
    pub message: String,
}

/// An entry of a discovery log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeSubsystem {
    /// The discovery service that names it.
    pub found_at: String,
    /// `nvme`, `discovery` or `referral`.
    pub kind: String,
    /// Its name.
    pub nqn: String,
    /// `tcp`, `rdma`, `fc`, or `other`.
    pub transport: String,
    /// Where it listens.
    pub address: String,
    /// The port.
    pub port: String,
    /// It wants TLS.
    pub needs_tls: bool,
}

/// `purlin nvme discover --mdns`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeServiceList {
    /// Discovery services that announce themselves, by name.
    pub services: Vec<NvmeService>,
}

/// A discovery service that announces itself. All is as it was announced: anybody on the network
/// may announce anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeService {
    /// Its name on the network.
    pub name: String,
    /// Where it runs.
    pub host: String,
    /// Name of the discovery subsystem.
    pub nqn: String,
    /// `tcp`.
    pub transport: String,
    /// IP addresses of the host; with `%` and an interface where they are good on that network
    /// only.
    pub addresses: Vec<String>,
    /// The port.
    pub port: u16,
}

/// `purlin nvme bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeBench {
    /// The addresses.
    pub addresses: Vec<String>,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Number of the namespace.
    pub nsid: u32,
    /// Its size.
    pub size_bytes: u64,
    /// `read`, `write`, `randread` or `randwrite`.
    pub pattern: String,
    /// Bytes of each request.
    pub block_size_bytes: u64,
    /// Requests in flight.
    pub depth_count: u32,
    /// I/O queues of each address.
    pub queue_count: u32,
    /// How long it took.
    pub duration_s: f64,
    /// Requests that were answered.
    pub request_count: u64,
    /// How often an address was connected again.
    pub reconnect_count: u64,
    /// Requests for each second.
    pub iops_per_s: f64,
    /// Bytes for each second.
    pub bandwidth_bytes_per_s: f64,
    /// From request to answer.
    pub latency: NvmeLatency,
}

/// Latencies of requests, within 1 %.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeLatency {
    /// The mean.
    pub mean_us: f64,
    /// Half are faster.
    pub p50_us: f64,
    /// 90 of 100 are faster.
    pub p90_us: f64,
    /// 99 of 100 are faster.
    pub p99_us: f64,
    /// 999 of 1000 are faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// `purlin nvme list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConnectionList {
    /// What `purlin nvme connect` serves here, the oldest first.
    pub connections: Vec<NvmeConnection>,
    /// What the daemon makes block devices of this machine, by name.
    pub devices: Vec<api::Import>,
}

/// A namespace that is connected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConnection {
    /// Name of the subsystem.
    pub subsystem: String,
    /// Number of the namespace.
    pub nsid: u32,
    /// Its size now.
    pub size_bytes: u64,
    /// Size of its blocks.
    pub block_bytes: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// What NBD clients are to be told.
    pub nbd_uri: String,
    /// NBD clients that are connected.
    pub client_count: u64,
    /// The process.
    pub pid: u32,
    /// When it began.
    pub started_unix_s: u64,
    /// The ways to it.
    pub paths: Vec<NvmePath>,
}

/// A way to a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmePath {
    /// Where it leads to.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`, the ANA states;
    /// `connecting`; `lost`.
    pub state: String,
    /// How often it was connected.
    pub connect_count: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
}
