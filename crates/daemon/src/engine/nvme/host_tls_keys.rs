//! TLS keys of NVMe hosts: their records, and the tables that connections look them up in.

use api::{Changed, ErrorCode, HostTlsKey, HostTlsKeySet};
use export::HostSecrets;
use format::TlsKeyRecord;
use nvme::Nqn;
use nvme::tls::TlsKey;

use crate::engine::Engine;
use crate::engine::nvme::keyring::Keys;
use crate::http::{Answer, ControlError};

/// The details of a host's keys that the API shows.
pub(crate) fn shown(group: Option<&str>, record: &TlsKeyRecord) -> HostTlsKey {
    HostTlsKey { group: group.map(str::to_owned), key_count: record.keys.len() as u32 }
}

fn read(text: &str, host: &str) -> Result<TlsKey, String> {
    text.parse().map_err(|error| format!("the key of the host {host} cannot be used: {error}"))
}

/// A host's keys, the newest first. The keys of the specification precede those of an old libnvme,
/// which have other names. A key that is not transformed for the host is the same in both, and has
/// one name.
fn counting(record: &TlsKeyRecord) -> impl Iterator<Item = Result<TlsKey, String>> {
    let others = record.old_libnvme_keys.iter().filter(|text| !record.keys.contains(text));
    let old = others.map(|text| Ok(read(text, &record.host)?.of_old_libnvme()));
    record.keys.iter().map(|text| read(text, &record.host)).chain(old)
}

/// Loads the recorded keys of a keyring, which `of` names.
pub(crate) fn load(secrets: &HostSecrets, of: &str, records: &[TlsKeyRecord]) {
    for record in records {
        let (keys, broken): (Vec<_>, Vec<_>) = counting(record).partition(Result::is_ok);
        for error in broken.into_iter().filter_map(Result::err) {
            tracing::error!(of, host = record.host, error, "a key of TLS does not count");
        }
        // If no key is usable, the host is locked out, also without TLS.
        secrets.set_tls(&record.host, Some(keys.into_iter().flatten().collect()));
    }
}

impl Engine {
    /// Sets a host's TLS key. The host has to use it from its next connection on.
    pub(crate) async fn set_host_tls_key(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostTlsKeySet,
    ) -> Answer<Changed<HostTlsKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        let refuse = |message: String| ControlError::new(ErrorCode::Invalid, message);
        let nqn: Nqn = host.parse().map_err(|error: nvme::NqnError| refuse(error.to_string()))?;
        // Store the retained form of the key: it is of no use for another host.
        let configured = read(&request.key, host).map_err(refuse)?;
        let key = configured.retained(&nqn);
        let of_old_libnvme = configured.of_old_libnvme().retained(&nqn);
        let kept = if request.keep_old { Some(self.keys(&keyring).await?) } else { None };
        let before = kept.as_ref().and_then(|kept| kept.tls_keys.iter().find(|known| known.host == host));
        let new = (key.text().to_string(), of_old_libnvme.text().to_string());
        // Both forms of a key are added and removed together.
        let kept = before.and_then(|known| {
            let at = known.keys.iter().position(|key| *key != new.0)?;
            let old = known.old_libnvme_keys.get(at).unwrap_or(&known.keys[at]);
            Some((known.keys[at].clone(), old.clone()))
        });
        let (keys, old_libnvme_keys) = std::iter::once(new).chain(kept).unzip();
        let record = TlsKeyRecord { host: host.to_owned(), keys, old_libnvme_keys };
        let keys = counting(&record).collect::<Result<_, _>>().map_err(refuse)?;
        let stored = record.clone();
        let change = move |kept: &mut Keys| {
            kept.tls_keys.retain(|known| known.host != stored.host);
            let at = kept.tls_keys.partition_point(|known| known.host < stored.host);
            kept.tls_keys.insert(at, stored);
        };
        self.change_keys(&keyring, change).await?;
        self.asked(&keyring).set_tls(host, Some(keys));
        tracing::info!(of = %keyring, host, keys = record.keys.len(), "a host has another key of TLS");
        let step = match record.keys.len() {
            1 => format!("from its next connection on, {host} uses TLS for {keyring}"),
            _ => format!("from its next connection on, {host} uses TLS for {keyring}, with this key or the one before"),
        };
        Ok(Changed::done(vec![step], shown(keyring.group(), &record)))
    }

    /// Removes a host's TLS keys: it may connect without TLS from now on.
    pub(crate) async fn remove_host_tls_key(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        if !self.keys(&keyring).await?.tls_keys.iter().any(|known| known.host == host) {
            return Err(ControlError::new(ErrorCode::Invalid, format!("{host} has no key of TLS for {keyring}")));
        }
        self.change_keys(&keyring, |kept| kept.tls_keys.retain(|known| known.host != host)).await?;
        self.asked(&keyring).set_tls(host, None);
        tracing::info!(of = %keyring, host, "a host needs no TLS any more");
        Ok(Changed::gone(vec![format!("let {host} in without TLS, for {keyring}")]))
    }
}
