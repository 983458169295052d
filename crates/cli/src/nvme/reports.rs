//! JSON output of `purlin nvme`.

use serde::{Deserialize, Serialize};

/// `purlin nvme discover`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeDiscovery {
    /// Address of the service that was asked.
    pub address: String,
    /// This host's name.
    pub host_nqn: String,
    /// Generation of the log: a new number after each change.
    pub generation: u64,
    /// The subsystems offered there and by referrals.
    pub subsystems: Vec<NvmeSubsystem>,
    /// Referred services that could not be asked.
    pub unreachable: Vec<NvmeUnreachable>,
}

/// A discovery service that could not be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeUnreachable {
    /// Its address.
    pub address: String,
    /// The reason.
    pub message: String,
}

/// An entry of a discovery log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeSubsystem {
    /// The discovery service that lists it.
    pub found_at: String,
    /// `nvme`, `discovery` or `referral`.
    pub kind: String,
    /// Its name.
    pub nqn: String,
    /// `tcp`, `rdma`, `fc`, or `other`.
    pub transport: String,
    /// Its address.
    pub address: String,
    /// The port.
    pub port: String,
    /// Whether it requires TLS.
    pub needs_tls: bool,
}

/// `purlin nvme discover --mdns`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeServiceList {
    /// Discovery services that announce themselves, by name.
    pub services: Vec<NvmeService>,
}

/// A discovery service that announces itself. All values are as announced: any machine on the
/// network may announce anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeService {
    /// Its name on the network.
    pub name: String,
    /// Its host name.
    pub host: String,
    /// Name of the discovery subsystem.
    pub nqn: String,
    /// `tcp`.
    pub transport: String,
    /// IP addresses of the host, with `%` and an interface if they are valid on that network only.
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
    /// Duration.
    pub duration_s: f64,
    /// Number of answered requests.
    pub request_count: u64,
    /// Number of reconnects.
    pub reconnect_count: u64,
    /// Requests per second.
    pub iops_per_s: f64,
    /// Bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// Time from request to answer.
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
    /// Namespaces that `purlin nvme connect` exports here, the oldest first.
    pub connections: Vec<NvmeConnection>,
    /// Namespaces that the daemon makes block devices of this machine, by name.
    pub devices: Vec<api::Import>,
}

/// A connected namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConnection {
    /// Name of the subsystem.
    pub subsystem: String,
    /// Number of the namespace.
    pub nsid: u32,
    /// Its current size.
    pub size_bytes: u64,
    /// Size of its blocks.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The URI for NBD clients.
    pub nbd_uri: String,
    /// Number of connected NBD clients.
    pub client_count: u64,
    /// The process identifier.
    pub pid: u32,
    /// Start time.
    pub started_unix_s: u64,
    /// The paths to it.
    pub paths: Vec<NvmePath>,
}

/// A path to a namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmePath {
    /// Its address.
    pub address: String,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`, the ANA states;
    /// `connecting`; `lost`.
    pub state: String,
    /// Number of connects.
    pub connect_count: u64,
    /// The last error.
    pub last_error: Option<String>,
}
