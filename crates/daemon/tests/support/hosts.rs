//! NVMe hosts of exports that exist only here.

use std::collections::BTreeMap;

use api::{
    AnaState, Changed, ErrorCode, Export, ExportUpdate, Host, HostExport, HostKey, HostTlsKey, IoCounters, LatencyUs,
    Limit, Registrant, Reservation, ReservationKind,
};
use daemon::http::{Answer, ControlError};

/// The hosts that exports name. Each has used what it may.
pub fn hosts<'a>(
    exports: impl Iterator<Item = &'a Export> + Clone,
    limits: &BTreeMap<(String, String), Limit>,
    keys: &BTreeMap<(String, Option<String>), HostKey>,
    tls_keys: &BTreeMap<(String, Option<String>), HostTlsKey>,
) -> Vec<Host> {
    let names = exports.clone().flat_map(|export| export.hosts.iter().flatten());
    let mut hosts: BTreeMap<String, Vec<HostExport>> = names.map(|name| (name.clone(), Vec::new())).collect();
    let io = IoCounters {
        read_count: 1000,
        read_bytes: 4_096_000,
        write_count: 10,
        write_bytes: 40_960,
        ..Default::default()
    };
    for (name, known) in &mut hosts {
        let uses = |export: &&Export| export.hosts.as_ref().is_some_and(|hosts| hosts.contains(name));
        known.extend(exports.clone().filter(uses).map(|export| HostExport {
            id: export.id.clone(),
            volume: export.volume.clone(),
            address: export.address.clone(),
            nsid: export.nsid.unwrap_or(1),
            named: true,
            queue_count: 2,
            io,
            limit: limits.get(&(export.id.clone(), name.clone())).copied(),
        }));
    }
    let host = |(nqn, exports): (String, Vec<HostExport>)| Host {
        keys: keys.iter().filter(|((host, _), _)| *host == nqn).map(|(_, key)| key.clone()).collect(),
        tls_keys: tls_keys.iter().filter(|((host, _), _)| *host == nqn).map(|(_, key)| key.clone()).collect(),
        nqn,
        controller_count: 1,
        queue_count: 2,
        shares: Vec::new(),
        io,
        error_count: 1,
        in_flight_count: 3,
        read_latency_us: Some(LatencyUs { p50: 64.0, p99: 512.0, max: 2048.0 }),
        write_latency_us: None,
        exports,
    };
    hosts.into_iter().map(host).collect()
}

/// These hosts are registered with the namespace, and one that nobody has seen. The first has reserved it.
pub fn reservation(hosts: &[String]) -> Reservation {
    let names = hosts.iter().cloned().map(Some).chain([None]);
    let registrant = |(index, host): (usize, Option<String>)| Registrant {
        host_id: format!("{index:032x}"),
        host,
        key: format!("{:#x}", 0x10 + index),
        is_holder: index == 0,
    };
    Reservation {
        kind: Some(ReservationKind::WriteExclusive),
        persists: true,
        registrants: names.enumerate().map(registrant).collect(),
    }
}

/// Changes how an export reaches its volume. No other does.
pub fn set_access(export: &mut Export, request: ExportUpdate) -> Answer<Changed<Export>> {
    let Some(before) = export.ana else {
        return Err(ControlError::new(ErrorCode::Invalid, format!("the export {:?} has no ANA state", export.id)));
    };
    let state = request.validate()?;
    let is_other = before != state;
    let steps = is_other.then(|| format!("tell hosts that the export {} is {state}", export.id)).into_iter().collect();
    let warnings = (state == AnaState::Inaccessible).then(|| "no other address reaches it".to_owned());
    let warnings: Vec<String> = warnings.into_iter().collect();
    if request.dry_run {
        return Ok(Changed::planned(steps).with_warnings(warnings));
    }
    export.ana = Some(state);
    Ok(Changed::done(steps, export.clone()).with_warnings(warnings))
}

/// Changes the hosts of an export.
pub fn set_host(export: &mut Export, host: &str, allow: bool) -> Answer<Changed<Export>> {
    let Some(hosts) = &mut export.hosts else {
        return Err(ControlError::new(ErrorCode::Invalid, format!("any host may use the export {:?}", export.id)));
    };
    hosts.retain(|known| known != host);
    if allow {
        hosts.push(host.to_owned());
    }
    let verb = if allow { "let" } else { "no longer let" };
    Ok(Changed::done(vec![format!("{verb} {host} use the export {}", export.id)], export.clone()))
}
