//! Secrets of NVMe hosts: their records, and the tables that queues look them up in.

use api::{DhGroup, HostKey};
use export::{HostSecret, HostSecrets};
use format::SecretRecord;
use nvme::auth::{self, Secret};

/// The details of a secret that the API shows.
pub(crate) fn shown(group: Option<&str>, record: &SecretRecord) -> HostKey {
    let dh_group = DhGroup::ALL.get(usize::from(record.dh_group)).copied().unwrap_or(DhGroup::Unknown);
    HostKey { group: group.map(str::to_owned), mutual: record.controller_secret.is_some(), dh_group }
}

/// Parses the secrets of a record.
pub(super) fn read(record: &SecretRecord) -> Result<HostSecret, String> {
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
