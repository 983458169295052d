//! NVMe hosts: what they may use, and what they do with it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;
use crate::host_key::{HostKey, HostTlsKey};
use crate::limit::Limit;
use crate::load::{IoCounters, LatencyUs};

/// Checks an NVMe qualified name of a host (NVMe Base 2.0, clause 4.5).
///
/// # Errors
/// [`Invalid`] if it is none.
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
    /// By name.
    pub hosts: Vec<Host>,
}

/// An NVMe host: one that an export or a shared drive names, that is connected or has used one, or
/// that has a secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its NVMe qualified name, as it says of itself.
    pub nqn: String,
    /// Controllers that it has connected to, each with a connection for its admin queue. Discovery
    /// controllers do not count.
    pub controller_count: u32,
    /// I/O queues of all its controllers that are connected, a connection each.
    pub queue_count: u32,
    /// What it has done with all exports and shared drives, since they began.
    pub io: IoCounters,
    /// Commands that failed.
    pub error_count: u64,
    /// Commands that are being served.
    pub in_flight_count: u64,
    /// Latency of its reads since the exports began, rounded up to powers of two; `null` where
    /// there were none.
    pub read_latency_us: Option<LatencyUs>,
    /// The same, of its writes.
    pub write_latency_us: Option<LatencyUs>,
    /// The exports that it may use, by identity.
    pub exports: Vec<HostExport>,
    /// The shared drives that it may use, by identity.
    pub shares: Vec<HostShare>,
    /// Where it has to prove who it is: for shared drives, and by group. Elsewhere its name is
    /// enough.
    pub keys: Vec<HostKey>,
    /// Where it has to use TLS: for shared drives, and by group. Elsewhere it may not.
    pub tls_keys: Vec<HostTlsKey>,
}

/// A shared drive that a host may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostShare {
    /// Identity of the share.
    pub id: String,
    /// The drive's name here.
    pub drive: String,
    /// I/O queues of the host that have used it and are connected.
    pub queue_count: u32,
    /// What it has done with it, since the share began.
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
    /// The export names this host. Otherwise any host may use it.
    pub named: bool,
    /// I/O queues of the host that have used it and are connected.
    pub queue_count: u32,
    /// What it has done with it, since the export began.
    pub io: IoCounters,
    /// How fast it may use it, all its queues together; `null` where nothing is limited.
    pub limit: Option<Limit>,
}
