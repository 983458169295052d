//! `purlin nvme discover`.

use std::collections::{BTreeSet, VecDeque};

use comfy_table::Cell;
use initiator::Address;
use nvme::DISCOVERY_NQN;
use nvme::host::DiscoveredSubsystem;

use super::io_loop::IoLoop;
use super::reports::{NvmeDiscovery, NvmeSubsystem, NvmeUnreachable};
use super::{explained, options};
use crate::Failure;
use crate::common_args::Common;
use crate::fit::{Column, table};
use crate::nvme_args::HostArgs;
use crate::output::{has_colour, show};

/// Maximum number of discovery services that are asked: referrals may lead anywhere.
const SERVICES_MAX: usize = 64;

pub(super) async fn run(common: &Common, address: &Address, follow: bool, host: &HostArgs) -> Result<(), Failure> {
    let options = options(host, DISCOVERY_NQN.parse().expect("a name of the specification"))?;
    let io_loop = IoLoop::start()?;
    let found = io_loop.discover(address, &options).await;
    let found = found.map_err(|error| explained(&error, &options.host, options.tls.is_some()))?;
    let mut report = NvmeDiscovery {
        address: address.to_string(),
        host_nqn: options.host.nqn.to_string(),
        generation: found.generation,
        subsystems: found.entries.iter().map(|found| subsystem(address, found)).collect(),
        unreachable: Vec::new(),
    };
    let mut asked = BTreeSet::from([address.clone()]);
    let mut unasked: VecDeque<Address> = referrals(&found.entries).collect();
    while follow
        && asked.len() < SERVICES_MAX
        && let Some(next) = unasked.pop_front()
    {
        if !asked.insert(next.clone()) {
            continue;
        }
        match io_loop.discover(&next, &options).await {
            Ok(found) => {
                unasked.extend(referrals(&found.entries));
                report.subsystems.extend(found.entries.iter().map(|found| subsystem(&next, found)));
            }
            Err(error) => {
                let message = explained(&error, &options.host, options.tls.is_some()).to_string();
                report.unreachable.push(NvmeUnreachable { address: next.to_string(), message });
            }
        }
    }
    show(common, &report, |report| text(has_colour(), report))
}

/// Other discovery services over TCP.
fn referrals(found: &[DiscoveredSubsystem]) -> impl Iterator<Item = Address> {
    let referrals = found.iter().filter(|found| found.kind == 1 && found.transport == 3);
    referrals.filter_map(|found| Some(Address { host: found.address.clone(), port: found.port.parse().ok()? }))
}

fn subsystem(at: &Address, found: &DiscoveredSubsystem) -> NvmeSubsystem {
    // TRTYPE and SUBTYPE: Base 2.0, figure 264.
    let transport = match found.transport {
        1 => "rdma",
        2 => "fc",
        3 => "tcp",
        _ => "other",
    };
    let kind = match found.kind {
        1 => "referral",
        2 => "nvme",
        _ => "discovery",
    };
    NvmeSubsystem {
        found_at: at.to_string(),
        kind: kind.to_owned(),
        nqn: found.subsystem.to_string(),
        transport: transport.to_owned(),
        address: found.address.clone(),
        port: found.port.clone(),
        needs_tls: found.needs_secure_channel,
    }
}

fn text(colour: bool, report: &NvmeDiscovery) -> String {
    if !report.subsystems.iter().any(|subsystem| subsystem.kind != "discovery") {
        return format!("{} offers nothing to {}\n", report.address, report.host_nqn);
    }
    let unreachable = report.unreachable.iter().map(|service| format!("not asked: {}\n", service.message));
    let columns = [
        Column::Word("KIND"),
        Column::Word("TRANSPORT"),
        Column::Word("ADDRESS"),
        Column::Word("PORT"),
        Column::Word("TLS"),
        Column::Word("FOUND AT"),
        Column::Word("NQN"),
    ];
    let row = |subsystem: &NvmeSubsystem| {
        let tls = if subsystem.needs_tls { "yes" } else { "no" };
        let NvmeSubsystem { found_at, kind, transport, address, port, nqn, .. } = subsystem;
        [kind, transport, address, port, tls, found_at, nqn].into_iter().map(Cell::new).collect()
    };
    table(colour, &columns, report.subsystems.iter().map(row).collect()) + &unreachable.collect::<String>()
}
