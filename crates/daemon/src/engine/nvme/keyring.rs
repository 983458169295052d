//! The places of secrets and keys of NVMe hosts. Those for a group's exports are in the group's
//! catalogue, those for this machine's shared drives in its state directory.

use std::fmt;
use std::mem::take;
use std::sync::Arc;

use export::HostSecrets;
use format::{SecretRecord, TlsKeyRecord};

use crate::engine::{Engine, Group};
use crate::http::Answer;

/// The records of all hosts in one place. Each list is sorted by host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    pub secrets: Vec<SecretRecord>,
    pub tls_keys: Vec<TlsKeyRecord>,
}

/// A place of secrets and keys.
pub(crate) enum Keyring {
    /// Applies to the exports of a group.
    Group(Arc<Group>),
    /// Applies to all shared drives, which are one subsystem.
    Shares,
}

impl fmt::Display for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keyring::Group(group) => write!(f, "the group {:?}", group.name),
            Keyring::Shares => f.write_str("the shared drives"),
        }
    }
}

impl Keyring {
    /// The name of the group, if it is a group's keyring.
    pub fn group(&self) -> Option<&str> {
        match self {
            Keyring::Group(group) => Some(&group.name),
            Keyring::Shares => None,
        }
    }
}

impl Engine {
    /// The keyring of a group, or of the shared drives.
    pub(crate) fn keyring(&self, group: Option<&str>) -> Answer<Keyring> {
        group.map_or(Ok(Keyring::Shares), |group| self.find(group).map(Keyring::Group))
    }

    /// The records of a keyring.
    pub(crate) async fn keys(&self, keyring: &Keyring) -> Answer<Keys> {
        match keyring {
            Keyring::Shares => Ok(self.shares.keys()),
            Keyring::Group(group) => {
                let catalogue = group.catalogue().await?;
                Ok(Keys { secrets: catalogue.secrets, tls_keys: catalogue.tls_keys })
            }
        }
    }

    /// Changes the records of a keyring. The table that connections look up is not changed yet.
    pub(crate) async fn change_keys(&self, keyring: &Keyring, change: impl FnOnce(&mut Keys)) -> Answer<()> {
        let Keyring::Group(group) = keyring else { return self.shares.change_keys(change) };
        // Replacing removes an old secret from the other copy of the catalogue, too.
        let changed = group.replace_catalogue(|catalogue| {
            let mut keys = Keys { secrets: take(&mut catalogue.secrets), tls_keys: take(&mut catalogue.tls_keys) };
            change(&mut keys);
            (catalogue.secrets, catalogue.tls_keys) = (keys.secrets, keys.tls_keys);
        });
        changed.await
    }

    /// The table that connections look up.
    pub(crate) fn secrets_of<'a>(&'a self, keyring: &'a Keyring) -> &'a HostSecrets {
        match keyring {
            Keyring::Group(group) => &group.secrets,
            Keyring::Shares => self.shares.secrets(),
        }
    }
}
