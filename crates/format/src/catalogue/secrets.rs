//! Secrets with which NVMe hosts authenticate: version 2 of the document.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::exports::is_host;
use super::{Catalogue, CatalogueError};

/// The longest secret in characters: 64 bytes and a checksum in base 64, plus prefix and suffix.
const SECRET_CHARACTERS_MAX: usize = 103;

/// The highest number of a Diffie-Hellman group.
const DH_GROUP_MAX: u8 = 5;

/// The secrets with which a host authenticates before it may use namespaces of the group's
/// subsystem. They are stored in the clear. The field names are those of the JSON document.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRecord {
    /// NVMe qualified name of the host.
    pub host: String,
    /// The host's secret, as `DHHC-1:HH:BASE64:`.
    pub secret: String,
    /// The subsystem's secret in the same form, for hosts that ask the subsystem to authenticate
    /// too.
    pub controller_secret: Option<String>,
    /// The Diffie-Hellman group, 0 to 5 as NVMe numbers them.
    pub dh_group: u8,
}

impl fmt::Debug for SecretRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecretRecord { host, dh_group, .. } = self;
        f.debug_struct("SecretRecord").field("host", host).field("dh_group", dh_group).finish_non_exhaustive()
    }
}

fn is_secret(text: &str) -> bool {
    let is_wrapped = text.starts_with("DHHC-1:0") && text.ends_with(':');
    is_wrapped && text.len() <= SECRET_CHARACTERS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Catalogue {
    pub(super) fn check_secrets(&self) -> Result<(), CatalogueError> {
        for record in &self.secrets {
            let SecretRecord { host, secret, controller_secret, dh_group } = record;
            let is_sound = is_host(host)
                && is_secret(secret)
                && controller_secret.as_deref().is_none_or(is_secret)
                && *dh_group <= DH_GROUP_MAX;
            if !is_sound {
                return Err(CatalogueError::Secret { host: host.clone() });
            }
        }
        match self.secrets.windows(2).find(|pair| pair[0].host >= pair[1].host) {
            Some(pair) => Err(CatalogueError::Secret { host: pair[1].host.clone() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(host: &str) -> SecretRecord {
        let secret = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:".to_owned();
        SecretRecord { host: format!("nqn.2026-11.{host}"), secret, controller_secret: None, dh_group: 2 }
    }

    #[test]
    fn secrets_are_those_of_one_host_each_and_are_not_shown() {
        let good = Catalogue { secrets: vec![record("a"), record("b")], ..Catalogue::default() };
        assert_eq!((good.check(0), good.version()), (Ok(()), 2));
        assert!(!format!("{good:?}").contains("DHHC"));
        type Damage = fn(&mut Vec<SecretRecord>);
        let damages: [Damage; 7] = [
            |secrets| secrets.reverse(),
            |secrets| secrets[1].host = secrets[0].host.clone(),
            |secrets| secrets[0].host = "a".to_owned(),
            |secrets| secrets[0].secret = String::new(),
            |secrets| secrets[0].secret = format!("DHHC-1:00:{}:", "A".repeat(93)),
            |secrets| secrets[1].controller_secret = Some("DHHC-1:00:A".to_owned()),
            |secrets| secrets[0].dh_group = 6,
        ];
        for (index, damage) in damages.into_iter().enumerate() {
            let mut damaged = good.clone();
            damage(&mut damaged.secrets);
            assert!(matches!(damaged.check(0), Err(CatalogueError::Secret { .. })), "case {index}");
        }
        let mut longest = good;
        longest.secrets[0].secret = format!("DHHC-1:03:{}:", "A".repeat(92));
        assert_eq!(longest.check(0), Ok(()));
    }
}
