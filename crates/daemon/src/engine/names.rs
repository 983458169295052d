//! Host names of drives and exports, and the addresses that they have.
//!
//! Invariants:
//! 1. A lookup ends after [`LOOK_UP_WITHIN`]. A DNS server that does not answer delays only the
//!    request that names the host.
//! 2. A change looks its names up before it takes the lock for changes, and reads the answers from
//!    here while it holds the lock. The only lookup under the lock happens at the start of a group,
//!    whose catalogue names the addresses of its exports. It ends after a second
//!    (`Engine::serve_group`).
//!
//! `tests/engine/names.rs` checks both with a DNS server that does not answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::{ErrorCode, NbdAddress, NvmeDrive};
use drive::join_all;

use crate::engine::Engine;
use crate::http::{Answer, ControlError};

/// A host name without an answer after this time counts as unknown.
pub(crate) const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);

/// The maximum of stored names. The oldest answer makes room for a new one.
const NAMES_MAX: usize = 1024;

/// The addresses of a host, and when they were looked up.
#[derive(Debug)]
struct ResolvedHost {
    /// At least one. The port is 0.
    addresses: Vec<SocketAddr>,
    at: Instant,
}

/// The answers to lookups so far, by name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    found: Mutex<BTreeMap<String, ResolvedHost>>,
}

impl Names {
    fn found(&self) -> MutexGuard<'_, BTreeMap<String, ResolvedHost>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks a host up and keeps its addresses. An address needs no lookup; one with the name of an
    /// interface (`fe80::1%eth0`) does.
    ///
    /// # Errors
    /// The name is unknown, or there is no answer in time. An earlier answer is kept.
    pub async fn look_up(&self, host: &str, within: Duration) -> Answer<()> {
        if host.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        let refuse = |what: String| ControlError::new(ErrorCode::Invalid, what);
        let answer = tokio::time::timeout(within, tokio::net::lookup_host((host, 0))).await;
        let answer = answer.map_err(|_| refuse(format!("no answer in time where the host {host:?} is")))?;
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in answer.into_iter().flatten() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            return Err(refuse(format!("{host:?} is not a host that is known here")));
        }
        let mut found = self.found();
        if found.len() >= NAMES_MAX && !found.contains_key(host) {
            let oldest = found.iter().min_by_key(|(_, found)| found.at).map(|(name, _)| name.clone());
            oldest.map(|name| found.remove(&name));
        }
        found.insert(host.to_owned(), ResolvedHost { addresses, at: Instant::now() });
        Ok(())
    }

    /// The addresses of a host as they were looked up last, with a port. Never waits.
    ///
    /// # Errors
    /// The name was not looked up yet.
    pub fn addresses(&self, host: &str, port: u16) -> Answer<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let with_port = |address: &SocketAddr| {
            let mut address = *address;
            address.set_port(port);
            address
        };
        let found = self.found();
        let known = found.get(host).map(|found| found.addresses.iter().map(with_port).collect());
        known.ok_or_else(|| {
            ControlError::new(ErrorCode::Invalid, format!("it is not known yet where the host {host:?} is"))
        })
    }

    /// Looks up the hosts of a drive of another machine, all at once.
    ///
    /// # Errors
    /// One of them is not known.
    pub async fn look_up_drive(&self, drive: &NvmeDrive) -> Answer<()> {
        let all = drive.addresses.iter().map(|target| self.look_up(&target.host, LOOK_UP_WITHIN));
        for known in join_all(all.collect::<Vec<_>>()).await {
            known.map_err(|error| {
                let message = format!("{}: {}", drive.name(), error.message);
                ControlError::new(ErrorCode::DriveNotFound, message)
            })?;
        }
        Ok(())
    }

    /// Looks up the hosts of drives as operators write them, all at once. Text that does not name a
    /// drive of another machine is skipped: opening it reports the error.
    ///
    /// # Errors
    /// One of them is not known.
    pub async fn look_up_drives(&self, texts: &[String]) -> Answer<()> {
        let drives: Vec<NvmeDrive> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        let all = drives.iter().map(|drive| self.look_up_drive(drive));
        join_all(all.collect::<Vec<_>>()).await.into_iter().collect()
    }

    /// Looks up the host of an export's address, if it names one.
    ///
    /// # Errors
    /// It is not known.
    pub async fn look_up_export(&self, address: &str, within: Duration) -> Answer<()> {
        match address.parse() {
            Ok(NbdAddress::Tcp { host, .. }) => self.look_up(&host, within).await,
            // Socket paths and block devices name no host. Errors are reported where the address is
            // used.
            Ok(NbdAddress::Unix(_)) | Err(_) => Ok(()),
        }
    }
}

impl Engine {
    /// Looks up all hosts that the state directory names, and tries to reach the drives there, all
    /// at once. This happens before the start takes the lock for changes. Hosts that are not found
    /// or reached are tried again with their drive or export.
    pub(crate) async fn look_up_remembered(&self) -> std::io::Result<()> {
        let groups = self.memory.load()?;
        let imports = self.memory.load_imports()?;
        let (mut drives, mut addresses) = self.shares.remembered_places()?;
        drives.extend(groups.into_iter().flat_map(|group| group.drives).map(|place| place.drive));
        addresses.extend(imports.into_iter().flat_map(|import| import.exports).map(|export| export.kind.address()));
        let drives: Vec<_> =
            drives.iter().map(|drive| self.opener.remotes.try_all(std::slice::from_ref(drive))).collect();
        let addresses = addresses.iter().map(|address| self.names.look_up_export(address, LOOK_UP_WITHIN));
        let addresses: Vec<_> = addresses.collect();
        for known in [join_all(drives).await, join_all(addresses).await].concat() {
            if let Err(error) = known {
                tracing::warn!(%error, "a host is not known; it is looked up again");
            }
        }
        Ok(())
    }
}
