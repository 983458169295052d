//! Which hosts have to authenticate or to encrypt, and with what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme::auth::{DhGroup, Names, Policy, Secret};
use nvme::target::Refused;
use nvme::tls::{TlsIdentity, TlsKey, TlsPsk};
use nvme::{Nqn, Status};

/// What a host has to prove itself with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSecret {
    /// The host's own.
    pub host: Secret,
    /// The subsystem's, for hosts that ask it to prove itself.
    pub controller: Option<Secret>,
    /// The Diffie-Hellman group.
    pub group: DhGroup,
}

/// The secrets of a subsystem's hosts, at all its addresses. A host without one is let in by its
/// name alone, and one without a key of TLS in the clear. A handle, for any thread.
#[derive(Debug, Clone, Default)]
pub struct HostSecrets {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None`: of a host that nothing convinces of.
    hosts: BTreeMap<String, Option<HostSecret>>,
    /// Keys of TLS. Who is here and has none is let in neither in the clear nor otherwise.
    tls: BTreeMap<String, Vec<TlsKey>>,
}

impl HostSecrets {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host has another secret from its next authentication on, or none.
    pub fn set(&self, host: &str, secret: Option<HostSecret>) {
        let mut inner = self.lock();
        match secret {
            Some(secret) => inner.hosts.insert(host.to_owned(), Some(secret)),
            None => inner.hosts.remove(host),
        };
    }

    /// A host is refused until it has another secret: what was kept of its own is of no use.
    pub fn lock_out(&self, host: &str) {
        self.lock().hosts.insert(host.to_owned(), None);
    }

    /// From its next connection on, a host has to encrypt, with one of these keys: the newest
    /// first. With `None` it has not. With none of them it is refused.
    pub fn set_tls(&self, host: &str, keys: Option<Vec<TlsKey>>) {
        let mut inner = self.lock();
        match keys {
            Some(keys) => inner.tls.insert(host.to_owned(), keys),
            None => inner.tls.remove(host),
        };
    }

    /// Whether a host has to encrypt.
    pub(super) fn wants_tls(&self, host: &Nqn) -> bool {
        self.lock().tls.contains_key(host.as_str())
    }

    /// Whether any host has to encrypt.
    pub(super) fn has_tls(&self) -> bool {
        !self.lock().tls.is_empty()
    }

    /// What an identity stands for. Version 0 does not say which of a host's keys it means: it is
    /// the newest.
    pub(super) fn psk(&self, identity: &TlsIdentity) -> Option<TlsPsk> {
        let keys = self.lock().tls.get(identity.host.as_str()).cloned()?;
        let psks = keys.iter().flat_map(|key| key.psks(&identity.host, &identity.subsystem));
        psks.into_iter().find(|psk| psk.identity == *identity)
    }

    /// What a queue of a host has to be convinced of, if it has to.
    ///
    /// # Errors
    /// The host is locked out.
    pub(super) fn policy(&self, host: &Nqn, subsystem: &Nqn) -> Result<Option<Policy>, Refused> {
        let Some(secret) = self.lock().hosts.get(host.as_str()).cloned() else { return Ok(None) };
        let secret = secret.ok_or(Refused(Status::CONNECT_INVALID_HOST, 0))?;
        Ok(Some(Policy {
            names: Names { host: host.clone(), subsystem: subsystem.clone() },
            host_key: secret.host.key(host),
            controller_key: secret.controller.map(|controller| controller.key(subsystem)),
            group: secret.group,
        }))
    }
}
