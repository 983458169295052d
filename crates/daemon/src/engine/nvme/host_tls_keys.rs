//! TLS keys of NVMe hosts: their records, and the tables that connections look them up in.

use api::HostTlsKey;
use export::HostSecrets;
use format::TlsKeyRecord;
use nvme::tls::TlsKey;

/// The details of a host's keys that the API shows.
pub(crate) fn shown(group: Option<&str>, record: &TlsKeyRecord) -> HostTlsKey {
    HostTlsKey { group: group.map(str::to_owned), key_count: record.keys.len() as u32 }
}

pub(super) fn read(text: &str, host: &str) -> Result<TlsKey, String> {
    text.parse().map_err(|error| format!("the key of the host {host} cannot be used: {error}"))
}

/// A host's keys, the newest first. The keys of the specification precede those of an old libnvme,
/// which have other names. A key that is not transformed for the host is the same in both, and has
/// one name.
pub(super) fn counting(record: &TlsKeyRecord) -> impl Iterator<Item = Result<TlsKey, String>> {
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
