//! Drives that are shared with other machines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::export::check_nvme_hosts;
use crate::group::{MemoryDrives, check_drives};
use crate::load::IoCounters;
use crate::{Invalid, NvmeTcpCreate};

/// All shared drives, as the daemon lists them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShareList {
    /// The shared drives, by identity.
    pub shares: Vec<Share>,
}

/// A drive that other machines may use directly over NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// Its identity on this machine.
    pub id: String,
    /// The drive.
    pub drive: String,
    /// The notation by which other machines use it as a drive of a group.
    pub url: String,
    /// Address: `HOST:PORT`.
    pub address: String,
    /// Its subsystem.
    pub nqn: String,
    /// Namespace number in the subsystem.
    pub nsid: u32,
    /// Size in bytes; `null` while the drive is missing.
    pub size_bytes: Option<u64>,
    /// Logical block size in bytes; `null` while the drive is missing.
    pub sector_bytes: Option<u32>,
    /// The hosts that may use it; `null` for any host.
    pub hosts: Option<Vec<String>>,
    /// Those of the allowed hosts that must use TLS.
    pub tls_hosts: Vec<String>,
    /// Connected queues of hosts that have used it.
    pub queue_count: u32,
    /// Traffic of hosts.
    pub io: IoCounters,
    /// Why it is currently not available.
    pub failure: Option<String>,
}

/// `POST /v1/shares`: share drives directly with other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareCreate {
    /// Block devices, existing files, or memory of the daemon.
    pub drives: Vec<String>,
    /// Address to listen on: `HOST:PORT`; default `0.0.0.0:4420`.
    #[serde(default)]
    pub address: Option<String>,
    /// NVMe qualified names of the hosts that may use them.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Allow any host that can reach the address; then `hosts` must be empty.
    #[serde(default)]
    pub allow_any_host: bool,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl ShareCreate {
    /// Checks everything that does not need access to a drive.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.drives.is_empty() {
            return Err(Invalid::new("which drives are to be shared? Name at least one"));
        }
        check_drives(self.drives.iter(), MemoryDrives::Needed)?;
        crate::export::nvme_address(self.address.as_deref().unwrap_or(NvmeTcpCreate::ADDRESS_DEFAULT))?;
        check_nvme_hosts(&self.hosts, self.allow_any_host)
    }
}
