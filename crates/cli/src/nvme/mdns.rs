//! `purlin nvme discover --mdns`: discovery services that announce themselves by multicast DNS
//! (NVMe TP 8009; RFC 6762, 6763).

use std::collections::BTreeMap;
use std::time::Duration;

use api::visible;
use comfy_table::Cell;
use initiator::Address;
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent};
use nvme::{DISCOVERY_NQN, DISCOVERY_SERVICE_TYPE};
use tokio::time::{Instant, timeout_at};

use super::reports::{NvmeService, NvmeServiceList};
use crate::Failure;
use crate::common_args::Common;
use crate::fit::{Column, table};
use crate::output::{has_colour, show};

/// Maximum number of services that are listed: any machine on the network may announce any number.
const SERVICES_MAX: usize = 1024;

pub(super) async fn run(common: &Common, wait: Duration) -> Result<(), Failure> {
    let services = listen(wait).await;
    let services = services.map_err(|error| Failure::Ended(format!("multicast DNS cannot be used: {error}")))?;
    show(common, &NvmeServiceList { services }, |report| text(has_colour(), wait, report))
}

/// Queries the network and collects the answers.
async fn listen(wait: Duration) -> Result<Vec<NvmeService>, mdns_sd::Error> {
    let end = Instant::now() + wait;
    let daemon = ServiceDaemon::new()?;
    let events = daemon.browse(DISCOVERY_SERVICE_TYPE)?;
    let mut found = BTreeMap::new();
    while let Ok(Ok(event)) = timeout_at(end, events.recv_async()).await {
        match event {
            ServiceEvent::ServiceResolved(service)
                if found.len() < SERVICES_MAX || found.contains_key(&service.fullname) =>
            {
                found.insert(service.fullname.clone(), as_announced(&service));
            }
            ServiceEvent::ServiceRemoved(_, name) => {
                found.remove(&name);
            }
            _ => {}
        }
    }
    // The process ends, and the mDNS thread with it.
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

fn as_announced(service: &ResolvedService) -> NvmeService {
    let name = &service.fullname;
    let short = name.len().checked_sub(DISCOVERY_SERVICE_TYPE.len() + 1).and_then(|length| name.get(..length));
    let mut addresses: Vec<_> = service.addresses.iter().collect();
    addresses.sort_by_key(|address| (address.to_ip_addr(), address.to_string()));
    NvmeService {
        name: short.unwrap_or(name).to_owned(),
        host: service.host.trim_end_matches('.').to_owned(),
        nqn: service.get_property_val_str("nqn").unwrap_or(DISCOVERY_NQN).to_owned(),
        transport: service.get_property_val_str("p").unwrap_or("tcp").to_owned(),
        addresses: addresses.into_iter().map(ToString::to_string).collect(),
        port: service.port,
    }
}

fn text(colour: bool, wait: Duration, report: &NvmeServiceList) -> String {
    if report.services.is_empty() {
        return format!("no discovery service has announced itself within {} s\n", wait.as_secs());
    }
    let columns = [
        Column::Word("ADDRESS"),
        Column::Word("TRANSPORT"),
        Column::Word("HOST"),
        Column::Word("NAME"),
        Column::Word("NQN"),
    ];
    let rows = report.services.iter().flat_map(|service| {
        let NvmeService { name, host, nqn, transport, addresses, port } = service;
        addresses.iter().map(move |address| {
            let address = Address { host: address.clone(), port: *port }.to_string();
            [&address, transport, host, name, nqn].into_iter().map(|text| Cell::new(visible(text))).collect()
        })
    });
    table(colour, &columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use mdns_sd::ServiceInfo;

    use super::*;

    fn announced(name: &str, text: &[(&str, &str)]) -> NvmeService {
        let service = ServiceInfo::new(DISCOVERY_SERVICE_TYPE, name, "target.local.", "fd00::5,10.0.0.5", 8009, text);
        as_announced(&service.unwrap().as_resolved_service())
    }

    #[test]
    fn a_service_is_listed_with_the_addresses_to_ask_it_at() {
        let service = announced("target", &[("p", "tcp"), ("nqn", "nqn.2026-11.com.example:cdc")]);
        assert_eq!((service.name.as_str(), service.host.as_str()), ("target", "target.local"));
        assert_eq!((service.nqn.as_str(), service.transport.as_str()), ("nqn.2026-11.com.example:cdc", "tcp"));
        assert_eq!((service.addresses.join(" "), service.port), ("10.0.0.5 fd00::5".to_owned(), 8009));
        let shown = text(false, Duration::from_secs(3), &NvmeServiceList { services: vec![service] });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["ADDRESS", "TRANSPORT", "HOST", "NAME", "NQN"]);
        assert!(lines[1].starts_with("10.0.0.5:8009 ") && lines[2].starts_with("[fd00::5]:8009 "), "{shown}");
        assert!(lines[1].ends_with("target.local  target  nqn.2026-11.com.example:cdc"), "{shown}");
    }

    #[test]
    fn a_service_that_does_not_say_its_name_has_that_of_every_discovery_subsystem() {
        let service = announced("target", &[]);
        assert_eq!((service.nqn.as_str(), service.transport.as_str()), (DISCOVERY_NQN, "tcp"));
    }

    #[test]
    fn a_stranger_on_the_network_does_not_drive_the_terminal() {
        let service = announced("evil\u{1b}[2J\n", &[("nqn", "nqn\u{1b}]0;x\u{7}"), ("p", "\u{9b}tcp")]);
        let shown = text(true, Duration::from_secs(3), &NvmeServiceList { services: vec![service] });
        let line = shown.lines().nth(1).unwrap();
        assert!(!line.chars().any(char::is_control) && line.contains(r"evil\u{1b}[2J"), "{shown:?}");
    }

    #[test]
    fn that_nobody_is_there_is_said_with_how_long_it_was_listened() {
        let nobody = NvmeServiceList { services: Vec::new() };
        assert_eq!(
            text(false, Duration::from_secs(3), &nobody),
            "no discovery service has announced itself within 3 s\n"
        );
    }
}
