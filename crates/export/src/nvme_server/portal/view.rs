//! The part of a portal that the host of one admin queue may see.

use std::net::SocketAddr;

use drive::Block;
use nvme::fabrics_data::DiscoveryEntry;
use nvme::target::{AccessState, Activity, Host, Namespace, Past, QUEUE_ENTRIES_MAX, Subsystem, SubsystemView};
use nvme::{DISCOVERY_NQN, Nqn};
use zerocopy::FromZeros;

use super::{Association, NamespaceOffer, Portal, SubsystemHistory};
use crate::counters::Kind as Counted;

/// The part of a portal that the host of one admin queue may see.
pub(in crate::nvme_server) struct View<'a, B> {
    pub portal: &'a Portal<B>,
    pub subsystem: Subsystem,
    pub host: &'a Host,
    /// This end's address of the connection.
    pub local: Option<SocketAddr>,
}

impl<'a, B> View<'a, B> {
    pub fn new(portal: &'a Portal<B>, association: &'a Association, local: Option<SocketAddr>) -> View<'a, B> {
        let known = portal.lock().subsystems.get(&association.subsystem).map(|shelved| shelved.subsystem.clone());
        let subsystem = known.unwrap_or_else(|| Subsystem {
            nqn: association.subsystem.clone(),
            serial: String::new(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
        });
        View { portal, subsystem, host: &association.host, local }
    }

    /// PORTID of the port that the host is connected to.
    fn port(&self) -> u16 {
        self.local.map_or(0, |local| port_of(&local))
    }

    /// The history of the subsystem. `None` if it offers nothing any more, and for discovery.
    fn history(&self) -> Option<SubsystemHistory> {
        let inner = self.portal.lock();
        // All namespaces of a subsystem have the same history.
        let offer = inner.subsystems.get(&self.subsystem.nqn)?.namespaces.values().next()?;
        Some(offer.history.clone())
    }

    /// The host has reset its controller.
    pub fn controller_reset(&self, cntlid: u16) {
        if let Some(history) = self.history() {
            history.controller_reset(cntlid, self.port());
        }
    }
}

impl<B: Block> SubsystemView for View<'_, B> {
    fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let offer = self.portal.find(&self.subsystem.nqn, &self.host.nqn, nsid)?;
        let block = (offer.open)()?;
        Some(offer.describe(nsid, &block))
    }

    fn access(&self, nsid: u32) -> Option<AccessState> {
        let inner = self.portal.lock();
        let offer = inner.subsystems.get(&self.subsystem.nqn)?.namespaces.get(&nsid)?;
        offer.hosts.include(self.host.nqn.as_str()).then(|| offer.state.access())
    }

    fn reservations_persist(&self, nsid: u32) -> bool {
        let offer = self.portal.find(&self.subsystem.nqn, &self.host.nqn, nsid);
        offer.is_some_and(|offer| offer.shared.reservations().persists())
    }

    fn namespaces_above(&self, nsid: u32) -> Vec<u32> {
        let inner = self.portal.lock();
        let Some(shelved) = inner.subsystems.get(&self.subsystem.nqn) else { return Vec::new() };
        let above = shelved.namespaces.iter().filter(|(number, _)| **number > nsid);
        above.filter(|(_, offer)| offer.hosts.include(self.host.nqn.as_str())).map(|(number, _)| *number).collect()
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        let inner = self.portal.lock();
        let host = &self.host.nqn;
        let visible = inner.subsystems.iter().filter_map(|(nqn, shelved)| {
            let offer = shelved.namespaces.values().find(|offer| offer.hosts.include(host.as_str()))?;
            Some((nqn, if offer.secrets.wants_tls(host) { Channel::TLS } else { Channel::CLEAR }))
        });
        let visible: Vec<(&Nqn, Channel)> = visible.collect();
        let discovery: Option<Nqn> = DISCOVERY_NQN.parse().ok();
        // A host that has a key may use it for discovery, but need not.
        let has_key = visible.iter().any(|(_, channel)| channel.required);
        let asked = Channel { required: false, has_tls: has_key };
        // The discovery subsystem lists itself.
        let itself = discovery.iter().map(|nqn| (nqn, DISCOVERY, asked));
        let all = itself.chain(visible.iter().map(|(nqn, channel)| (*nqn, CURRENT, *channel)));
        let own = all.filter_map(|(nqn, subtype, channel)| Some(entry(nqn, subtype, self.local?, channel)));
        // A host that asks here needs no referral to this address.
        let others = inner.referrals.iter().filter(|address| Some(**address) != self.local);
        let referrals =
            others.filter_map(|address| Some(entry(discovery.as_ref()?, REFERRAL, *address, Channel::CLEAR)));
        (inner.generation, own.chain(referrals).collect())
    }

    fn activity(&self) -> Activity {
        let offers: Vec<NamespaceOffer<B>> = {
            let inner = self.portal.lock();
            let shelved = inner.subsystems.get(&self.subsystem.nqn);
            shelved.iter().flat_map(|shelved| shelved.namespaces.values()).cloned().collect()
        };
        let mut activity = Activity::default();
        for offer in &offers {
            let counters = offer.state.counters();
            activity.degraded |= (offer.open)().is_some_and(|block| block.is_degraded());
            activity.media_errors += counters.media_errors;
            activity.read_bytes += counters.read_bytes;
            activity.written_bytes += counters.written_bytes;
            activity.reads += counters.requests[Counted::Read as usize];
            activity.writes += counters.requests[Counted::Write as usize];
        }
        activity
    }

    fn past(&self) -> Past {
        let port = self.port();
        self.history().map_or_else(|| Past { port, ..Past::default() }, |history| history.past(port))
    }
}

/// PORTID of an address.
fn port_of(address: &SocketAddr) -> u16 {
    address.port()
}

/// SUBTYPE: another discovery service.
const REFERRAL: u8 = 1;
/// SUBTYPE: an NVM subsystem.
const CURRENT: u8 = 2;
/// SUBTYPE: the discovery subsystem that is asked.
const DISCOVERY: u8 = 3;

/// TREQ: whether a secure channel is required, bits 1:0.
const CHANNEL_REQUIRED: u8 = 0b01;
const CHANNEL_NOT_REQUIRED: u8 = 0b10;
/// TREQ: a host may do without SQ flow control.
const FLOW_CONTROL_OPTIONAL: u8 = 1 << 2;

/// EFLAGS, DUPRETINFO: all entries with this flag return the same information. There is only one.
const SAME_INFORMATION: u16 = 1;
/// EFLAGS, EPCSD: the host may stay connected to the discovery controller, which has a keep alive
/// timer and reports changes.
const MAY_STAY: u16 = 1 << 1;

/// The protection that an address requires and offers for a connection.
#[derive(Clone, Copy)]
struct Channel {
    required: bool,
    has_tls: bool,
}

impl Channel {
    const CLEAR: Channel = Channel { required: false, has_tls: false };
    const TLS: Channel = Channel { required: true, has_tls: true };
}

/// An entry of the discovery log. For namespaces of this portal, the address is the one at which
/// the host is connected.
fn entry(nqn: &Nqn, subtype: u8, address: SocketAddr, channel: Channel) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new_zeroed();
    // An IPv4 host that is connected to a dual-stack listener has reached ::ffff:a.b.c.d, to which
    // it cannot connect.
    let ip = address.ip().to_canonical();
    entry.trtype = 3;
    entry.adrfam = if ip.is_ipv4() { 1 } else { 2 };
    entry.subtype = subtype;
    entry.treq = if channel.required { CHANNEL_REQUIRED } else { CHANNEL_NOT_REQUIRED };
    if subtype != REFERRAL {
        // Not known for services of others.
        entry.treq |= FLOW_CONTROL_OPTIONAL;
    }
    if subtype == DISCOVERY {
        entry.eflags = (SAME_INFORMATION | MAY_STAY).into();
    }
    // SECTYPE: TLS 1.3.
    entry.tsas[0] = if channel.has_tls { 2 } else { 0 };
    entry.portid = port_of(&address).into();
    // Any controller: they are created for each host.
    entry.cntlid = 0xFFFF.into();
    entry.asqsz = QUEUE_ENTRIES_MAX.into();
    let pad = |field: &mut [u8], text: &str| {
        field.fill(b' ');
        field[..text.len()].copy_from_slice(text.as_bytes());
    };
    pad(&mut entry.trsvcid, &address.port().to_string());
    pad(&mut entry.traddr, &ip.to_string());
    entry.subnqn = nqn.field();
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_host_of_a_listener_for_both_families_reads_an_ipv4_address() {
        let nqn: Nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        for (reached, family, shown) in [
            ("[::ffff:192.0.2.1]:4420", 1, "192.0.2.1"),
            ("192.0.2.1:4420", 1, "192.0.2.1"),
            ("[2001:db8::1]:4420", 2, "2001:db8::1"),
        ] {
            let entry = entry(&nqn, DISCOVERY, reached.parse().unwrap(), Channel::CLEAR);
            let text = String::from_utf8(entry.traddr.to_vec()).unwrap();
            assert_eq!((entry.adrfam, text.trim_end()), (family, shown), "{reached}");
        }
    }
}
