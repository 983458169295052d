//! NVMe hosts: which exports they may use, and which they do use.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{
    Changed, DhGroup, ErrorCode, Export, Host, HostExport, HostKey, HostKeySet, HostShare, HostTlsKey, HostTlsKeySet,
};
use async_trait::async_trait;
use export::{Counters, HostConnections, HostUse, Hosts, Kind, Limit, Waits};
use format::{Catalogue, ExportKind, ExportRecord, LimitOf, SecretRecord, TlsKeyRecord};
use nvme::Nqn;

use crate::engine::exports::limits;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::nvme::keyring::Keys;
use crate::engine::nvme::{host_keys, host_tls_keys};
use crate::engine::shares::table::UsedShare;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError, HostControl};

/// The hosts that an export's record allows.
pub(crate) fn hosts_of(names: &Option<Vec<String>>) -> Hosts {
    names.as_ref().map_or(Hosts::Any, |names| Hosts::Only(names.iter().cloned().collect()))
}

/// The object that hosts are allowed to use.
#[derive(Clone, Copy)]
pub(crate) enum Offered<'a> {
    Export(&'a str),
    Share(&'a str),
}

/// The allowed hosts after a host is added or removed, and a sentence that describes the change.
pub(crate) fn hosts_after(
    of: Offered<'_>,
    hosts: &Option<Vec<String>>,
    host: &str,
    allow: bool,
) -> Answer<(Vec<String>, String)> {
    let (what, id, other_hosts, nobody) = match of {
        Offered::Export(id) => {
            ("export", id, "delete it, and make one that names its hosts", "delete the export instead")
        }
        Offered::Share(id) => {
            ("shared drive", id, "share it no longer, and then with hosts that are named", "share it no longer instead")
        }
    };
    let refuse = |message: String| Err(ControlError::new(ErrorCode::Invalid, message));
    let Some(mut names) = hosts.clone() else {
        return refuse(format!("any host may use the {what} {id:?}: {other_hosts}"));
    };
    let step = match (allow, names.iter().position(|name| name == host)) {
        (true, Some(_)) => return refuse(format!("{host} may use the {what} {id:?} already")),
        (true, None) => {
            names.push(host.to_owned());
            format!("let {host} use the {what} {id}")
        }
        (false, None) => return refuse(format!("{host} may not use the {what} {id:?} as it is")),
        (false, Some(_)) if names.len() == 1 => {
            return refuse(format!("{host} is the last host of the {what} {id:?}: {nobody}"));
        }
        (false, Some(at)) => {
            names.remove(at);
            format!("let {host} use the {what} {id} no longer; it loses the namespace")
        }
    };
    Ok((names, step))
}

/// An export with the activity of its hosts, if it is one over NVMe/TCP.
fn offered_export(group: &Group, catalogue: &Catalogue, running: &RunningExport) -> Option<OfferedExport> {
    let ExportKind::NvmeTcp { address, nsid, hosts, .. } = &running.record.kind else { return None };
    Some(OfferedExport {
        export: view::export(group, catalogue, running),
        address: address.clone(),
        nsid: *nsid,
        hosts: hosts.clone(),
        used: running.state.hosts(),
        limited: running.state.limited_hosts(),
    })
}

/// The activity of a host, summed over all exports and shared drives.
#[derive(Default)]
struct Sum {
    connected: HostConnections,
    counters: Counters,
    exports: Vec<HostExport>,
    shares: Vec<HostShare>,
    keys: Vec<HostKey>,
    tls_keys: Vec<HostTlsKey>,
}

impl Sum {
    /// Adds an export that the host may use or has used.
    fn add_export(&mut self, host: &str, offered: &OfferedExport) {
        let OfferedExport { export, address, nsid, hosts, used, limited } = offered;
        let usage = used.get(host).cloned().unwrap_or_default();
        self.counters.add(&usage.counters);
        let named = hosts.as_ref().is_some_and(|hosts| hosts.iter().any(|name| name == host));
        if named || hosts.is_none() {
            self.exports.push(HostExport {
                id: export.id.clone(),
                volume: export.volume.clone(),
                address: address.clone(),
                nsid: *nsid,
                named,
                queue_count: usage.queues,
                io: view::io(&usage.counters),
                limit: limited.get(host).map(|(limit, waits)| limits::shown(*limit, *waits)),
            });
        }
    }

    /// Adds a shared drive that the host may use or has used.
    fn add_share(&mut self, host: &str, share: &UsedShare) {
        let usage = share.used.get(host).cloned().unwrap_or_default();
        self.counters.add(&usage.counters);
        if share.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|name| name == host)) {
            let (id, drive) = (share.id.clone(), share.drive.clone());
            self.shares.push(HostShare { id, drive, queue_count: usage.queues, io: view::io(&usage.counters) });
        }
    }

    fn into_host(self, nqn: String) -> Host {
        let Sum { connected, counters, exports, shares, keys, tls_keys } = self;
        Host {
            nqn,
            controller_count: connected.controllers,
            queue_count: connected.queues,
            io: view::io(&counters),
            error_count: counters.errors,
            in_flight_count: counters.in_flight,
            read_latency_us: view::latency_of(&counters, Kind::Read),
            write_latency_us: view::latency_of(&counters, Kind::Write),
            exports,
            shares,
            keys,
            tls_keys,
        }
    }
}

/// The sums of all hosts by name. A host has an entry as soon as anything names it.
#[derive(Default)]
struct Sums(BTreeMap<String, Sum>);

impl Sums {
    fn of(&mut self, host: &str) -> &mut Sum {
        self.0.entry(host.to_owned()).or_default()
    }

    /// Adds the secrets and keys of a group, or those for the shared drives.
    fn add_keys(&mut self, group: Option<&str>, secrets: &[SecretRecord], tls_keys: &[TlsKeyRecord]) {
        for secret in secrets {
            self.of(&secret.host).keys.push(host_keys::shown(group, secret));
        }
        for record in tls_keys {
            self.of(&record.host).tls_keys.push(host_tls_keys::shown(group, record));
        }
    }

    /// Adds hosts of which nothing is known but the names.
    fn add_names<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        for name in names {
            self.of(name);
        }
    }
}

/// An export over NVMe/TCP, and the activity of its hosts.
struct OfferedExport {
    export: Export,
    address: String,
    nsid: u32,
    /// The hosts that may use it; `None` for any host.
    hosts: Option<Vec<String>>,
    used: BTreeMap<String, HostUse>,
    limited: BTreeMap<String, (Limit, Waits)>,
}

#[async_trait]
impl HostControl for Engine {
    async fn hosts(&self) -> Answer<Vec<Host>> {
        let mut sums = Sums::default();
        let for_shares = self.shares.keys();
        sums.add_keys(None, &for_shares.secrets, &for_shares.tls_keys);
        for (host, connected) in self.listeners.connected_hosts() {
            sums.of(&host).connected = connected;
        }
        let shares = self.shares.used();
        for share in &shares {
            sums.add_names(share.hosts.iter().flatten().chain(share.used.keys()));
        }
        let mut exports = Vec::new();
        for group in self.all() {
            let running: Vec<Arc<RunningExport>> = group.exports().values().cloned().collect();
            let catalogue = group.catalogue().await?;
            sums.add_keys(Some(&group.name), &catalogue.secrets, &catalogue.tls_keys);
            exports.extend(running.iter().filter_map(|running| offered_export(&group, &catalogue, running)));
        }
        for OfferedExport { hosts, used, limited, .. } in &exports {
            sums.add_names(hosts.iter().flatten().chain(used.keys()).chain(limited.keys()));
        }
        for (host, sum) in &mut sums.0 {
            exports.iter().for_each(|export| sum.add_export(host, export));
            shares.iter().for_each(|share| sum.add_share(host, share));
        }
        Ok(sums.0.into_iter().map(|(nqn, sum)| sum.into_host(nqn)).collect())
    }

    async fn host_key_set(&self, group: Option<&str>, host: &str, request: HostKeySet) -> Answer<Changed<HostKey>> {
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
        let secret = host_keys::read(&record).map_err(refuse)?;
        let stored = record.clone();
        let change = move |keys: &mut Keys| {
            keys.secrets.retain(|known| known.host != stored.host);
            let at = keys.secrets.partition_point(|known| known.host < stored.host);
            keys.secrets.insert(at, stored);
        };
        self.change_keys(&keyring, change).await?;
        self.secrets_of(&keyring).set(host, Some(secret));
        tracing::info!(of = %keyring, host, "a host has another secret");
        let way = if record.controller_secret.is_some() { "both ways" } else { "one way" };
        let step = format!(
            "from its next connection on, {host} authenticates for {keyring}, {way}, with {}",
            request.dh_group
        );
        Ok(Changed::done(vec![step], host_keys::shown(keyring.group(), &record)))
    }

    async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        if !self.keys(&keyring).await?.secrets.iter().any(|known| known.host == host) {
            return Err(ControlError::new(ErrorCode::Invalid, format!("{host} has no secret for {keyring}")));
        }
        self.change_keys(&keyring, |keys| keys.secrets.retain(|known| known.host != host)).await?;
        self.secrets_of(&keyring).set(host, None);
        tracing::info!(of = %keyring, host, "a host needs no secret any more");
        Ok(Changed::gone(vec![format!("let {host} in by its name alone, for {keyring}")]))
    }

    async fn host_tls_key_set(
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
        let configured = host_tls_keys::read(&request.key, host).map_err(refuse)?;
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
        let keys = host_tls_keys::counting(&record).collect::<Result<_, _>>().map_err(refuse)?;
        let stored = record.clone();
        let change = move |kept: &mut Keys| {
            kept.tls_keys.retain(|known| known.host != stored.host);
            let at = kept.tls_keys.partition_point(|known| known.host < stored.host);
            kept.tls_keys.insert(at, stored);
        };
        self.change_keys(&keyring, change).await?;
        self.secrets_of(&keyring).set_tls(host, Some(keys));
        tracing::info!(of = %keyring, host, keys = record.keys.len(), "a host has another key of TLS");
        let step = match record.keys.len() {
            1 => format!("from its next connection on, {host} uses TLS for {keyring}"),
            _ => format!("from its next connection on, {host} uses TLS for {keyring}, with this key or the one before"),
        };
        Ok(Changed::done(vec![step], host_tls_keys::shown(keyring.group(), &record)))
    }

    async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>> {
        let _one = self.changes.lock().await;
        let keyring = self.keyring(group)?;
        if !self.keys(&keyring).await?.tls_keys.iter().any(|known| known.host == host) {
            return Err(ControlError::new(ErrorCode::Invalid, format!("{host} has no key of TLS for {keyring}")));
        }
        self.change_keys(&keyring, |kept| kept.tls_keys.retain(|known| known.host != host)).await?;
        self.secrets_of(&keyring).set_tls(host, None);
        tracing::info!(of = %keyring, host, "a host needs no TLS any more");
        Ok(Changed::gone(vec![format!("let {host} in without TLS, for {keyring}")]))
    }
}

impl Engine {
    /// Allows a host to use an export, or revokes that.
    pub(crate) async fn set_host(&self, id: &str, host: &str, allow: bool) -> Answer<Changed<Export>> {
        let _one = self.changes.lock().await;
        let (group, running) = self.find_export(id)?;
        let ExportKind::NvmeTcp { hosts, .. } = &running.record.kind else {
            let message = format!("the export {id:?} is not one over NVMe/TCP: only those know hosts");
            return Err(ControlError::new(ErrorCode::Invalid, message));
        };
        let (names, step) = hosts_after(Offered::Export(id), hosts, host, allow)?;
        let mut record: ExportRecord = running.record.clone();
        if let ExportKind::NvmeTcp { hosts, .. } = &mut record.kind {
            *hosts = Some(names);
        }
        // The change takes effect after it is recorded: an allowed host gets in, a denied host is
        // out.
        let stored = record.clone();
        let catalogue = group
            .change_catalogue(|catalogue| {
                let known = catalogue.exports.iter_mut().find(|export| export.id == stored.id);
                known.into_iter().for_each(|export| *export = stored.clone());
                if !allow {
                    let own = LimitOf::Host { export: stored.id, host: host.to_owned() };
                    catalogue.limits.retain(|limit| limit.of != own);
                }
            })
            .await?;
        self.allow_hosts(&group, &record);
        if !allow {
            running.state.limit_host(host, None);
        }
        let (state, failure) = (running.state.clone(), running.failure.clone());
        let running = Arc::new(RunningExport { record, state, failure });
        group.exports_mut().insert(running.record.id, running.clone());
        tracing::info!(export = id, host, allow, "hosts changed");
        Ok(Changed::done(vec![step], view::export(&group, &catalogue, &running)))
    }
}
