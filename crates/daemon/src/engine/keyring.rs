//! Where the secrets and keys of NVMe hosts lie: those for a group's exports in the group's
//! catalogue, those for the drives that this machine shares in its state directory.

use std::fmt;
use std::mem::take;
use std::sync::Arc;

use export::HostSecrets;
use format::{SecretRecord, TlsKeyRecord};

use super::{Engine, Group};
use crate::http::Answer;

/// The records of all hosts at one place, each list by host.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    pub secrets: Vec<SecretRecord>,
    pub tls_keys: Vec<TlsKeyRecord>,
}

/// One such place.
pub(super) enum Keyring {
    /// What counts for the exports of a group.
    Group(Arc<Group>),
    /// What counts for all shared drives: they are one subsystem.
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
    /// The group, if it is one's.
    pub fn group(&self) -> Option<&str> {
        match self {
            Keyring::Group(group) => Some(&group.name),
            Keyring::Shares => None,
        }
    }
}

impl Engine {
    /// A group's place, or that of the shared drives.
    pub(super) fn keyring(&self, group: Option<&str>) -> Answer<Keyring> {
        group.map_or(Ok(Keyring::Shares), |group| self.find(group).map(Keyring::Group))
    }

    /// What lies there.
    pub(super) async fn keys(&self, keyring: &Keyring) -> Answer<Keys> {
        match keyring {
            Keyring::Shares => Ok(self.shares.keys()),
            Keyring::Group(group) => {
                let catalogue = group.catalogue().await?;
                Ok(Keys { secrets: catalogue.secrets, tls_keys: catalogue.tls_keys })
            }
        }
    }

    /// Changes what lies there. What connections ask is not changed yet.
    pub(super) async fn change_keys(&self, keyring: &Keyring, change: impl FnOnce(&mut Keys)) -> Answer<()> {
        let Keyring::Group(group) = keyring else { return self.shares.change_keys(change) };
        // An old secret does not stay in the other copy of the catalogue.
        let changed = group.replace_catalogue(|catalogue| {
            let mut keys = Keys { secrets: take(&mut catalogue.secrets), tls_keys: take(&mut catalogue.tls_keys) };
            change(&mut keys);
            (catalogue.secrets, catalogue.tls_keys) = (keys.secrets, keys.tls_keys);
        });
        changed.await
    }

    /// What connections ask.
    pub(super) fn asked<'a>(&'a self, keyring: &'a Keyring) -> &'a HostSecrets {
        match keyring {
            Keyring::Group(group) => &group.secrets,
            Keyring::Shares => self.shares.secrets(),
        }
    }
}
