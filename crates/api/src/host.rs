//! NVMe hosts: the namespaces that they may use, and their traffic.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;
use crate::host_key::{HostKey, HostTlsKey};
use crate::limit::Limit;
use crate::load::{IoCounters, LatencyUs};

/// Checks an NVMe qualified name of a host (NVMe Base 2.0, clause 4.5).
///
/// # Errors
/// [`Invalid`] if the text is not such a name.
pub fn check_host(host: &str) -> Result<(), Invalid> {
    let is_name = host.starts_with("nqn.") && host.len() <= 223 && !host.chars().any(char::is_control);
    if is_name {
        return Ok(());
    }
    Err(Invalid::new(format!(
        "{host:?} is not the name of an NVMe host: it begins with \"nqn.\" (on Linux it is in /etc/nvme/hostnqn)"
    )))
}

/// All hosts, as the daemon lists them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostList {
    /// The hosts, by name.
    pub hosts: Vec<Host>,
}

/// An NVMe host: one that an export or a shared drive names, that is connected or has used one, or
/// that has a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its NVMe qualified name, as the host reports it.
    pub nqn: String,
    /// Controllers that it is connected to, each with a connection for its admin queue. Discovery
    /// controllers do not count.
    pub controller_count: u32,
    /// Connected I/O queues of all its controllers, one connection each.
    pub queue_count: u32,
    /// Its traffic on all exports and shared drives, since they began.
    pub io: IoCounters,
    /// Commands that failed.
    pub error_count: u64,
    /// Commands in progress.
    pub in_flight_count: u64,
    /// Latency of its reads since the exports began, rounded up to powers of two; `null` if there
    /// were none.
    pub read_latency_us: Option<LatencyUs>,
    /// The same for its writes.
    pub write_latency_us: Option<LatencyUs>,
    /// The exports that it may use, by identity.
    pub exports: Vec<HostExport>,
    /// The shared drives that it may use, by identity.
    pub shares: Vec<HostShare>,
    /// Places where it must authenticate: shared drives, and groups. Elsewhere its name is enough.
    pub keys: Vec<HostKey>,
    /// Places where it must use TLS: shared drives, and groups. Elsewhere it may not use TLS.
    pub tls_keys: Vec<HostTlsKey>,
}

/// A shared drive that a host may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostShare {
    /// Identity of the share.
    pub id: String,
    /// Name of the drive on this machine.
    pub drive: String,
    /// Connected I/O queues of the host that have used it.
    pub queue_count: u32,
    /// The host's traffic on it, since the share began.
    pub io: IoCounters,
}

/// An export that a host may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostExport {
    /// Identity of the export.
    pub id: String,
    /// Full name of the volume.
    pub volume: String,
    /// Where it listens: `HOST:PORT`.
    pub address: String,
    /// Number of the namespace.
    pub nsid: u32,
    /// Whether the export names this host. Otherwise any host may use it.
    pub named: bool,
    /// Connected I/O queues of the host that have used it.
    pub queue_count: u32,
    /// The host's traffic on it, since the export began.
    pub io: IoCounters,
    /// Rate limit of the host, for all its queues together; `null` if nothing is limited.
    pub limit: Option<Limit>,
}
