//! NVMe hosts: which exports they may use, and which they do use.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Changed, ErrorCode, Export, Host, HostExport, HostKey, HostShare, HostTlsKey};
use export::{Counters, HostConnections, Hosts, Kind};
use format::{ExportKind, ExportRecord, LimitOf};

use crate::engine::exports::limits;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::nvme::{host_keys, host_tls_keys};
use crate::engine::{Engine, view};
use crate::http::{Answer, ControlError};

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

impl Engine {
    /// All hosts that exports or shared drives name, that are connected or have used one, or that
    /// have a secret or a key.
    pub(crate) async fn look_at_hosts(&self) -> Answer<Vec<Host>> {
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        let mut exports = Vec::new();
        let for_shares = self.shares.keys();
        for secret in &for_shares.secrets {
            sums.entry(secret.host.clone()).or_default().keys.push(host_keys::told(None, secret));
        }
        for record in &for_shares.tls_keys {
            sums.entry(record.host.clone()).or_default().tls_keys.push(host_tls_keys::told(None, record));
        }
        for (host, connected) in self.listeners.connected_hosts() {
            sums.entry(host).or_default().connected = connected;
        }
        let shares = self.shares.used();
        for share in &shares {
            for host in share.hosts.iter().flatten().chain(share.used.keys()) {
                sums.entry(host.clone()).or_default();
            }
        }
        for group in self.all() {
            let running: Vec<Arc<RunningExport>> = group.exports().values().cloned().collect();
            let catalogue = group.catalogue().await?;
            for secret in &catalogue.secrets {
                let keys = &mut sums.entry(secret.host.clone()).or_default().keys;
                keys.push(host_keys::told(Some(&group.name), secret));
            }
            for record in &catalogue.tls_keys {
                let keys = &mut sums.entry(record.host.clone()).or_default().tls_keys;
                keys.push(host_tls_keys::told(Some(&group.name), record));
            }
            for running in running {
                let ExportKind::NvmeTcp { address, nsid, hosts, .. } = &running.record.kind else { continue };
                let export = view::export(&group, &catalogue, &running);
                let (used, limited) = (running.state.hosts(), running.state.limited_hosts());
                for name in hosts.iter().flatten().chain(used.keys()).chain(limited.keys()) {
                    sums.entry(name.clone()).or_default();
                }
                exports.push((export, address.clone(), *nsid, hosts.clone(), used, limited));
            }
        }
        for (host, sum) in &mut sums {
            for (export, address, nsid, hosts, used, limited) in &exports {
                let usage = used.get(host).cloned().unwrap_or_default();
                sum.counters.add(&usage.counters);
                let named = hosts.as_ref().is_some_and(|hosts| hosts.contains(host));
                if named || hosts.is_none() {
                    sum.exports.push(HostExport {
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
        }
        for (host, sum) in &mut sums {
            for share in &shares {
                let usage = share.used.get(host).cloned().unwrap_or_default();
                sum.counters.add(&usage.counters);
                if share.hosts.as_ref().is_none_or(|hosts| hosts.contains(host)) {
                    let (id, drive) = (share.id.clone(), share.drive.clone());
                    sum.shares.push(HostShare { id, drive, queue_count: usage.queues, io: view::io(&usage.counters) });
                }
            }
        }
        let host = |(nqn, Sum { connected, counters, exports, shares, keys, tls_keys }): (String, Sum)| Host {
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
        };
        Ok(sums.into_iter().map(host).collect())
    }

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
        let catalogue = self
            .change_catalogue(&group, |catalogue| {
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
