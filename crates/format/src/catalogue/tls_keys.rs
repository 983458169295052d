//! TLS keys with which NVMe hosts must encrypt: version 2 of the document.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::exports::is_host;
use super::{Catalogue, CatalogueError};

/// The longest key in characters: 48 bytes and a checksum in base 64, plus prefix and suffix.
const KEY_CHARACTERS_MAX: usize = 89;

/// Most keys of a host that are valid at the same time: during a key change, the old and the new
/// one.
const TLS_KEYS_MAX: usize = 2;

/// The keys with which a host must encrypt before it may use namespaces of the group's subsystem.
/// They are stored in the clear. The field names are those of the JSON document.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsKeyRecord {
    /// NVMe qualified name of the host.
    pub host: String,
    /// Its retained keys, as `NVMeTLSkey-1:00:BASE64:`, newest first. 1 or 2.
    pub keys: Vec<String>,
    /// The same keys, in the same order, as libnvme before 1.16 retains them. Empty, or one per
    /// key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old_libnvme_keys: Vec<String>,
}

impl fmt::Debug for TlsKeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TlsKeyRecord { host, keys, old_libnvme_keys: _ } = self;
        f.debug_struct("TlsKeyRecord").field("host", host).field("key_count", &keys.len()).finish_non_exhaustive()
    }
}

fn is_key(text: &str) -> bool {
    let is_wrapped = text.starts_with("NVMeTLSkey-1:00:") && text.ends_with(':');
    is_wrapped && text.len() <= KEY_CHARACTERS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Catalogue {
    pub(super) fn check_tls_keys(&self) -> Result<(), CatalogueError> {
        let wrong = |record: &TlsKeyRecord| Err(CatalogueError::TlsKey { host: record.host.clone() });
        for record in &self.tls_keys {
            let TlsKeyRecord { host, keys, old_libnvme_keys: old } = record;
            let is_some = (1..=TLS_KEYS_MAX).contains(&keys.len()) && (old.is_empty() || old.len() == keys.len());
            if !is_host(host) || !is_some || !keys.iter().chain(old).all(|key| is_key(key)) {
                return wrong(record);
            }
        }
        match self.tls_keys.windows(2).find(|pair| pair[0].host >= pair[1].host) {
            Some(pair) => wrong(&pair[1]),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(host: &str) -> TlsKeyRecord {
        let key = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:".to_owned();
        TlsKeyRecord { host: format!("nqn.2026-11.{host}"), keys: vec![key.clone()], old_libnvme_keys: vec![key] }
    }

    #[test]
    fn keys_are_those_of_one_host_each_and_are_not_shown() {
        let good = Catalogue { tls_keys: vec![record("a"), record("b")], ..Catalogue::default() };
        assert_eq!((good.check(0), good.version()), (Ok(()), 2));
        assert!(!format!("{good:?}").contains("NVMeTLSkey"));
        type Damage = fn(&mut Vec<TlsKeyRecord>);
        let damages: [Damage; 10] = [
            |keys| keys[0].old_libnvme_keys = vec![keys[0].keys[0].clone(); 3],
            |keys| keys[1].old_libnvme_keys[0] = "NVMeTLSkey-1:00:A".to_owned(),
            |keys| keys.reverse(),
            |keys| keys[1].host = keys[0].host.clone(),
            |keys| keys[0].host = "a".to_owned(),
            |keys| keys[0].keys.clear(),
            |keys| keys[0].keys = vec![keys[0].keys[0].clone(); 3],
            |keys| keys[1].keys[0] = keys[1].keys[0].replace(":00:", ":01:"),
            |keys| keys[1].keys[0] = "NVMeTLSkey-1:00:A".to_owned(),
            |keys| keys[1].keys[0] = format!("NVMeTLSkey-1:00:{}:", "A".repeat(73)),
        ];
        for (index, damage) in damages.into_iter().enumerate() {
            let mut damaged = good.clone();
            damage(&mut damaged.tls_keys);
            assert!(matches!(damaged.check(0), Err(CatalogueError::TlsKey { .. })), "case {index}");
        }
        let mut longest = good;
        longest.tls_keys[0].keys.push(format!("NVMeTLSkey-1:00:{}:", "A".repeat(72)));
        longest.tls_keys[0].old_libnvme_keys.clear();
        assert_eq!(longest.check(0), Ok(()));
    }
}
