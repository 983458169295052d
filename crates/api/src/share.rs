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
    /// By identity.
    pub shares: Vec<Share>,
}

/// A drive that other machines may use, as it is, over NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    /// Its identity here.
    pub id: String,
    /// The drive.
    pub drive: String,
    /// How other machines name it as a drive of a group.
    pub url: String,
    /// Where it is offered: `HOST:PORT`.
    pub address: String,
    /// Its subsystem.
    pub nqn: String,
    /// Number of its namespace there.
    pub nsid: u32,
    /// Size in bytes; `null` while the drive is not there.
    pub size_bytes: Option<u64>,
    /// Logical block size in bytes; `null` while the drive is not there.
    pub sector_bytes: Option<u32>,
    /// The hosts that may use it; `null` for any host.
    pub hosts: Option<Vec<String>>,
    /// Of the hosts that may use it, those that have to use TLS.
    pub tls_hosts: Vec<String>,
    /// Queues of hosts that are connected and have used it.
    pub queue_count: u32,
    /// What hosts have done with it.
    pub io: IoCounters,
    /// Why it is not offered now.
    pub failure: Option<String>,
}

/// `POST /v1/shares`: offer drives, as they are, to other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareCreate {
    /// Block devices, files that are there, or memory of the daemon.
    pub drives: Vec<String>,
    /// Where to offer them: `HOST:PORT`; default `0.0.0.0:4420`.
    #[serde(default)]
    pub address: Option<String>,
    /// NVMe qualified names of the hosts that may use them.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Any host may use them that reaches the address; then `hosts` has to be empty.
    #[serde(default)]
    pub allow_any_host: bool,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

impl ShareCreate {
    /// Checks what can be checked without looking at any drive.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.drives.is_empty() {
            return Err(Invalid::new("which drives are to be shared? Name at least one"));
        }
        check_drives(self.drives.iter(), MemoryDrives::Needed)?;
        crate::export::nvme_address(self.address.as_deref().unwrap_or(NvmeTcpCreate::ADDRESS_DEFAULT))?;
        check_nvme_hosts(&self.hosts, self.allow_any_host)
    }
}
