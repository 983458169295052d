//! Hosts that have to authenticate or to encrypt, and their secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme::auth::{DhGroup, Names, Policy, Secret};
use nvme::target::Refused;
use nvme::tls::{TlsIdentity, TlsKey, TlsPsk};
use nvme::{Nqn, Status};

/// The secrets by which a host authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSecret {
    /// The secret of the host.
    pub host: Secret,
    /// The secret of the subsystem, for hosts that ask it to authenticate.
    pub controller: Option<Secret>,
    /// The Diffie-Hellman group.
    pub group: DhGroup,
}

/// The secrets of a subsystem's hosts, at all its addresses. A host without a secret is admitted by
/// its name alone, and a host without a TLS key is admitted in the clear. A handle, for any thread.
#[derive(Debug, Clone, Default)]
pub struct HostSecrets {
    inner: Arc<Mutex<SecretsState>>,
}

#[derive(Debug, Default)]
struct SecretsState {
    /// `None`: the host is locked out.
    hosts: BTreeMap<String, Option<HostSecret>>,
    /// TLS keys. A host with an entry but without a key is admitted neither in the clear nor over
    /// TLS.
    tls: BTreeMap<String, Vec<TlsKey>>,
}

impl HostSecrets {
    fn lock(&self) -> MutexGuard<'_, SecretsState> {
        // Nothing panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or removes the secret of a host, from its next authentication on.
    pub fn set(&self, host: &str, secret: Option<HostSecret>) {
        let mut inner = self.lock();
        match secret {
            Some(secret) => inner.hosts.insert(host.to_owned(), Some(secret)),
            None => inner.hosts.remove(host),
        };
    }

    /// Refuses a host until it has another secret: its stored secret is unusable.
    pub fn lock_out(&self, host: &str) {
        self.lock().hosts.insert(host.to_owned(), None);
    }

    /// From its next connection on, a host has to encrypt with one of these keys, newest first.
    /// With `None` it does not have to. With an empty list it is refused.
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

    /// The key for an identity. Version 0 does not say which of a host's keys it means: it is the
    /// newest.
    pub(super) fn psk(&self, identity: &TlsIdentity) -> Option<TlsPsk> {
        let keys = self.lock().tls.get(identity.host.as_str()).cloned()?;
        let psks = keys.iter().flat_map(|key| key.psks(&identity.host, &identity.subsystem));
        psks.into_iter().find(|psk| psk.identity == *identity)
    }

    /// The policy by which a queue of a host has to authenticate, if it has to.
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
