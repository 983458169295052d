//! Secrets of NVMe hosts: their records, and the tables that queues look them up in.

use api::{Changed, DhGroup, ErrorCode, HostKey, HostKeySet};
use export::{HostSecret, HostSecrets};
use format::SecretRecord;
use nvme::auth::{self, Secret};

use crate::engine::Engine;
use crate::engine::nvme::keyring::Keys;
use crate::http::{Answer, ControlError};

/// The details of a secret that the API shows.
pub(crate) fn shown(group: Option<&str>, record: &SecretRecord) -> HostKey {
    let dh_group = DhGroup::ALL.get(usize::from(record.dh_group)).copied().unwrap_or(DhGroup::Unknown);
    HostKey { group: group.map(str::to_owned), mutual: record.controller_secret.is_some(), dh_group }
}

/// Parses the secrets of a record.
fn read(record: &SecretRecord) -> Result<HostSecret, String> {
    let parsed = |text: &String, whose: &str| {
        text.parse::<Secret>().map_err(|error| format!("the secret of {whose} cannot be used: {error}"))
    };
    let host = parsed(&record.secret, &format!("the host {}", record.host))?;
    let controller = record.controller_secret.as_ref().map(|text| parsed(text, "the target")).transpose()?;
    if controller.as_ref() == Some(&host) {
        return Err("host and target have the same secret: make one for each".to_owned());
    }
    let group = auth::DhGroup::of(record.dh_group)
        .ok_or_else(|| "this version does not know the Diffie-Hellman group".to_owned())?;
    Ok(HostSecret { host, controller, group })
}

/// Loads the recorded secrets of a keyring, which `of` names.
pub(crate) fn load(secrets: &HostSecrets, of: &str, records: &[SecretRecord]) {
    for record in records {
        match read(record) {
            Ok(secret) => secrets.set(&record.host, Some(secret)),
            Err(error) => {
                // Lock the host out: it was to authenticate, so its name alone must not suffice.
                secrets.lock_out(&record.host);
                tracing::error!(of, host = record.host, error, "a host is locked out until it has another secret");
            }
        }
    }
}

impl Engine {
    /// Sets a host's secrets, which count from its next authentication on.
    pub(crate) async fn set_host_key(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostKeySet,
    ) -> Answer<Changed<HostKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        let refuse = |message: String| ControlError::new(ErrorCode::Invalid, message);
        let number = DhGroup::ALL.iter().position(|known| *known == request.dh_group);
        let record = SecretRecord {
            host: host.to_owned(),
            secret: request.secret,
            controller_secret: request.controller_secret,
            dh_group: number.ok_or_else(|| refuse("there is no such Diffie-Hellman group".to_owned()))? as u8,
        };
        let secret = read(&record).map_err(refuse)?;
        let stored = record.clone();
        let change = move |keys: &mut Keys| {
            keys.secrets.retain(|known| known.host != stored.host);
            let at = keys.secrets.partition_point(|known| known.host < stored.host);
            keys.secrets.insert(at, stored);
        };
        self.change_keys(&keyring, change).await?;
        self.asked(&keyring).set(host, Some(secret));
        tracing::info!(of = %keyring, host, "a host has another secret");
        let way = if record.controller_secret.is_some() { "both ways" } else { "one way" };
        let step = format!(
            "from its next connection on, {host} authenticates for {keyring}, {way}, with {}",
            request.dh_group
        );
        Ok(Changed::done(vec![step], shown(keyring.group(), &record)))
    }

    /// Removes a host's secret: its name suffices from now on.
    pub(crate) async fn remove_host_key(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        if !self.keys(&keyring).await?.secrets.iter().any(|known| known.host == host) {
            return Err(ControlError::new(ErrorCode::Invalid, format!("{host} has no secret for {keyring}")));
        }
        self.change_keys(&keyring, |keys| keys.secrets.retain(|known| known.host != host)).await?;
        self.asked(&keyring).set(host, None);
        tracing::info!(of = %keyring, host, "a host needs no secret any more");
        Ok(Changed::gone(vec![format!("let {host} in by its name alone, for {keyring}")]))
    }
}
