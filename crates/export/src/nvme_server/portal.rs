//! The namespaces and controllers at one address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drive::{Block, Nanos};
use nvme::target::{Admission, HostId, Kind, Namespace, Notice, Refused, Subsystem};
use nvme::tls::{TlsIdentity, TlsPsk};
use nvme::{DISCOVERY_NQN, Nqn, Status};

use super::association::{Association, ChangeNotification};
use super::history::SubsystemHistory;
use super::secrets::HostSecrets;
use super::shared::{Listening, SharedNamespace};
use crate::log_limiter::LogLimiter;
use crate::state::{Alarm, ExportState};

mod view;

pub(super) use view::View;

/// Opens the block device of a namespace on the calling shard. `None` if it is gone.
pub type Opener<B> = Arc<dyn Fn() -> Option<B> + Send + Sync>;

/// The hosts that may use a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Every host that reaches the address.
    Any,
    /// The hosts with these names.
    Only(BTreeSet<String>),
}

/// A volume as a namespace.
pub struct NamespaceOffer<B> {
    /// Size of its blocks in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The hosts that may use it.
    pub hosts: Hosts,
    /// Counters, connections, and the end of the export.
    pub state: Arc<ExportState>,
    /// Opens its block device.
    pub open: Opener<B>,
    /// State that it shares with other offers of the volume.
    pub shared: Arc<SharedNamespace>,
    /// Secrets of the hosts of its subsystem.
    pub secrets: HostSecrets,
    /// History of its subsystem.
    pub history: SubsystemHistory,
}

impl<B> Clone for NamespaceOffer<B> {
    fn clone(&self) -> Self {
        NamespaceOffer {
            block_bytes: self.block_bytes,
            uuid: self.uuid,
            hosts: self.hosts.clone(),
            state: self.state.clone(),
            open: self.open.clone(),
            shared: self.shared.clone(),
            secrets: self.secrets.clone(),
            history: self.history.clone(),
        }
    }
}

impl Hosts {
    fn include(&self, host: &str) -> bool {
        match self {
            Hosts::Any => true,
            Hosts::Only(names) => names.contains(host),
        }
    }
}

impl<B: Block> NamespaceOffer<B> {
    /// The namespace as a host sees it.
    pub(super) fn describe(&self, nsid: u32, block: &B) -> Namespace {
        Namespace {
            nsid,
            blocks: block.size_bytes() / u64::from(self.block_bytes),
            block_bytes: self.block_bytes,
            optimal_write_bytes: block.optimal_io_bytes(),
            uuid: self.uuid,
            read_only: self.state.read_only(),
            deallocated_reads_zeroes: block.discarded_reads_zeroes(),
            thin_blocks: block.thin_use().map(|thin| {
                let blocks = |bytes: u64| bytes / u64::from(self.block_bytes);
                (blocks(thin.quota_bytes), blocks(thin.written_bytes))
            }),
        }
    }
}

struct OfferedSubsystem<B> {
    subsystem: Subsystem,
    namespaces: BTreeMap<u32, NamespaceOffer<B>>,
    /// Subscriptions that tell hosts about their reservations, by namespace.
    listening: BTreeMap<u32, Listening>,
}

/// The step at which a host is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RefusalKind {
    /// The TLS handshake.
    Tls,
    /// A connection without TLS.
    Clear,
    /// Connect.
    Connect,
    /// Authentication.
    Authentication,
}

struct PortalState<B> {
    /// Refusals, by step and by the host or address that was refused.
    refusals: LogLimiter<(RefusalKind, String)>,
    subsystems: BTreeMap<Nqn, OfferedSubsystem<B>>,
    associations: BTreeMap<u16, Arc<Association>>,
    /// Other discovery services, which the discovery log names.
    referrals: BTreeSet<SocketAddr>,
    /// GENCTR of the discovery log.
    generation: u64,
    /// No host is admitted any more.
    closed: bool,
}

/// The offer at one address and its users. A handle, for any thread.
pub struct Portal<B> {
    inner: Arc<Mutex<PortalState<B>>>,
}

impl<B> Clone for Portal<B> {
    fn clone(&self) -> Self {
        Portal { inner: self.inner.clone() }
    }
}

impl<B> Default for Portal<B> {
    fn default() -> Self {
        let inner = PortalState {
            refusals: LogLimiter::default(),
            subsystems: BTreeMap::new(),
            associations: BTreeMap::new(),
            referrals: BTreeSet::new(),
            generation: 1,
            closed: false,
        };
        Portal { inner: Arc::new(Mutex::new(inner)) }
    }
}

/// How an NVMe host is connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostConnections {
    /// Controllers, each with a connection for its admin queue.
    pub controllers: u32,
    /// I/O queues of all its controllers, each with a connection.
    pub queues: u32,
}

/// CNTLID of the next controller. It is global because a subsystem may be offered at several
/// addresses, and the numbers of its controllers must differ.
static NEXT_CNTLID: AtomicU16 = AtomicU16::new(1);

/// Most discovery controllers at an address. Any host may have one, but they must not take the
/// places of hosts that use namespaces.
const DISCOVERING_MAX: usize = 512;

/// Numbers from here on are reserved: Base 2.0, figure 386.
const CNTLID_END: u16 = 0xFFF0;

impl<B> Portal<B> {
    fn lock(&self) -> MutexGuard<'_, PortalState<B>> {
        // Nothing panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host was refused. Returns `Some` if that is to be logged: the number of refusals since the
    /// last message. `who` is the host's name, or its address if its name is not known yet.
    pub(super) fn refused(&self, what: RefusalKind, who: &str, now: Nanos) -> Option<u64> {
        self.lock().refusals.happened((what, who.to_owned()), now)
    }

    /// Connected hosts that use namespaces and do not only discover them, by name.
    pub fn connected(&self) -> BTreeMap<String, HostConnections> {
        let mut hosts: BTreeMap<String, HostConnections> = BTreeMap::new();
        for association in self.lock().associations.values().filter(|association| association.kind == Kind::Io) {
            let host = hosts.entry(association.host.nqn.as_str().to_owned()).or_default();
            host.controllers += 1;
            host.queues += association.queue_count() as u32;
        }
        hosts
    }

    /// Offers a namespace. Hosts that may use it and are connected to the subsystem are notified.
    pub fn add(&self, subsystem: Subsystem, nsid: u32, offer: NamespaceOffer<B>)
    where
        B: 'static,
    {
        let nqn = subsystem.nqn.clone();
        let (portal, concerned) = (Arc::downgrade(&self.inner), nqn.clone());
        let listening = offer.shared.listen(move |told| {
            if let Some(inner) = portal.upgrade() {
                Portal { inner }.tell_reservations(&concerned, nsid, told);
            }
        });
        let mut inner = self.lock();
        let offered = inner.subsystems.entry(nqn.clone()).or_insert_with(|| OfferedSubsystem {
            subsystem,
            namespaces: BTreeMap::new(),
            listening: BTreeMap::new(),
        });
        let hosts = offer.hosts.clone();
        let replaced = offered.namespaces.insert(nsid, offer);
        offered.listening.insert(nsid, listening);
        inner.changed(&nqn, nsid, &hosts);
        if let Some(old) = replaced {
            inner.changed(&nqn, nsid, &old.hosts);
        }
        inner.discovery_changed();
    }

    /// Withdraws a namespace. Hosts are notified, and later commands for it fail. Returns whether
    /// nothing is offered any more.
    pub fn remove(&self, subsystem: &Nqn, nsid: u32) -> bool {
        let mut inner = self.lock();
        if let Some(offered) = inner.subsystems.get_mut(subsystem) {
            let removed = offered.namespaces.remove(&nsid);
            offered.listening.remove(&nsid);
            if offered.namespaces.is_empty() {
                inner.subsystems.remove(subsystem);
            }
            if let Some(offer) = removed {
                inner.changed(subsystem, nsid, &offer.hosts);
                inner.discovery_changed();
            }
        }
        inner.subsystems.is_empty()
    }

    /// Changes the hosts that may use a namespace. Hosts that may not any more lose it, and all
    /// affected hosts are notified.
    pub fn allow(&self, subsystem: &Nqn, nsid: u32, hosts: Hosts) {
        let mut inner = self.lock();
        let offered = inner.subsystems.get_mut(subsystem);
        let Some(offer) = offered.and_then(|offered| offered.namespaces.get_mut(&nsid)) else { return };
        let old = std::mem::replace(&mut offer.hosts, hosts.clone());
        let state = offer.state.clone();
        inner.changed(subsystem, nsid, &hosts);
        inner.changed(subsystem, nsid, &old);
        inner.discovery_changed();
        drop(inner);
        state.revoke(|host| hosts.include(host));
    }

    /// Sets the other discovery services that the discovery log names (referrals). Hosts that have
    /// asked for it are notified of a change.
    pub fn refer(&self, referrals: BTreeSet<SocketAddr>) {
        let mut inner = self.lock();
        if inner.referrals != referrals {
            inner.referrals = referrals;
            inner.discovery_changed();
        }
    }

    /// The size of a namespace has changed.
    pub fn resized(&self, subsystem: &Nqn, nsid: u32) {
        let inner = self.lock();
        let offer = inner.subsystems.get(subsystem).and_then(|offered| offered.namespaces.get(&nsid));
        if let Some(offer) = offer {
            inner.changed(subsystem, nsid, &offer.hosts);
        }
    }

    /// The access state of a namespace has changed: [`ExportState::set_access`]. Hosts that may use
    /// it are notified.
    pub fn access_changed(&self, subsystem: &Nqn, nsid: u32) {
        let inner = self.lock();
        let offer = inner.subsystems.get(subsystem).and_then(|offered| offered.namespaces.get(&nsid));
        if let Some(offer) = offer {
            inner.tell(subsystem, &offer.hosts, ChangeNotification::Access(nsid));
        }
    }

    /// Tells hosts how others have changed their reservations.
    fn tell_reservations(&self, subsystem: &Nqn, nsid: u32, told: &[(HostId, Notice)]) {
        let inner = self.lock();
        for association in inner.associations.values() {
            let concerns = association.kind == Kind::Io && association.subsystem == *subsystem;
            for (_, notice) in told.iter().filter(|(host, _)| concerns && *host == association.host.id) {
                association.tell(ChangeNotification::Reservation(nsid, *notice));
            }
        }
    }

    /// The numbers of a subsystem's namespaces at this address.
    pub fn nsids(&self, subsystem: &Nqn) -> Vec<u32> {
        self.lock()
            .subsystems
            .get(subsystem)
            .map(|offered| offered.namespaces.keys().copied().collect())
            .unwrap_or_default()
    }

    /// Admits no host any more, and ends all queues. Commands in flight run to their end, without
    /// answers.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.associations.values().for_each(|association| association.end());
    }

    /// Whether any host may use TLS here.
    pub(super) fn has_tls(&self) -> bool {
        let inner = self.lock();
        let offers = inner.subsystems.values().filter_map(|offered| offered.namespaces.values().next());
        offers.map(|offer| &offer.secrets).any(HostSecrets::has_tls)
    }

    /// The key for an identity, if its host may use a namespace here. Discovery has the keys of all
    /// subsystems.
    pub(super) fn psk(&self, identity: &TlsIdentity) -> Option<TlsPsk> {
        let is_discovery = identity.subsystem.as_str() == DISCOVERY_NQN;
        let concerned: Vec<HostSecrets> = {
            let inner = self.lock();
            let subsystems = inner.subsystems.iter().filter(|(nqn, _)| is_discovery || **nqn == identity.subsystem);
            // All namespaces of a subsystem have the same secrets.
            let offer = |(_, offered): (&Nqn, &OfferedSubsystem<B>)| {
                let mut offers = offered.namespaces.values();
                offers.find(|offer| offer.hosts.include(identity.host.as_str())).map(|offer| offer.secrets.clone())
            };
            subsystems.filter_map(offer).collect()
        };
        concerned.iter().find_map(|secrets| secrets.psk(identity))
    }

    /// Admits a host on an admin queue. `identity`: that of the key with which the connection is
    /// encrypted, if it is.
    pub(super) fn admit(
        &self,
        admission: &Admission,
        identity: Option<&TlsIdentity>,
        alarm: Arc<Alarm>,
        now: Nanos,
    ) -> Result<Arc<Association>, Refused> {
        check_identity(admission, identity)?;
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.closed {
            return Err(Refused(Status::CONNECT_CONTROLLER_BUSY, 0));
        }
        let mut secrets = None;
        if admission.kind() == Kind::Discovery {
            let discovering = inner.associations.values().filter(|known| known.kind == Kind::Discovery).count();
            if discovering >= DISCOVERING_MAX {
                return Err(Refused(Status::CONNECT_CONTROLLER_BUSY, 0));
            }
        } else {
            let offered = inner.subsystems.get(&admission.subsystem).ok_or_else(Refused::SUBSYSTEM)?;
            let mut offers = offered.namespaces.values();
            let offer = offers.find(|offer| offer.hosts.include(admission.host.nqn.as_str()));
            let known = &offer.ok_or(Refused(Status::CONNECT_INVALID_HOST, 0))?.secrets;
            check_channel(known, admission, identity, &mut inner.refusals, now)?;
            secrets = Some(known.clone());
        }
        let numbers = (0..CNTLID_END).map(|_| NEXT_CNTLID.fetch_add(1, Ordering::Relaxed));
        let cntlid = numbers
            .into_iter()
            .find(|number| (1..CNTLID_END).contains(number) && !inner.associations.contains_key(number));
        let cntlid = cntlid.ok_or(Refused(Status::CONNECT_CONTROLLER_BUSY, 0))?;
        let association = Association::new(cntlid, admission, secrets, identity.is_some(), alarm);
        inner.associations.insert(cntlid, association.clone());
        Ok(association)
    }

    /// The controller that an I/O queue asks for.
    pub(super) fn association(
        &self,
        admission: &Admission,
        identity: Option<&TlsIdentity>,
        now: Nanos,
    ) -> Result<Arc<Association>, Refused> {
        check_identity(admission, identity)?;
        let found = self.lock().associations.get(&admission.cntlid).cloned();
        let association = found.ok_or_else(Refused::CONTROLLER)?;
        if association.subsystem != admission.subsystem {
            return Err(Refused::SUBSYSTEM());
        }
        if association.host != admission.host {
            return Err(Refused(Status::CONNECT_INVALID_HOST, 0));
        }
        // A discovery controller has an admin queue and no other: Base 2.0, clause 3.1.2.3.
        if association.kind == Kind::Discovery {
            return Err(Refused::QUEUE());
        }
        if association.is_secure != identity.is_some() {
            return Err(Refused(Status::CONNECT_INVALID_HOST, 0));
        }
        if let Some(secrets) = &association.secrets {
            check_channel(secrets, admission, identity, &mut self.lock().refusals, now)?;
        }
        Ok(association)
    }

    /// An admin queue has ended.
    pub(super) fn leave(&self, association: &Association) {
        association.end();
        self.lock().associations.remove(&association.cntlid);
    }

    /// A namespace, for a host that may use it.
    pub(super) fn find(&self, subsystem: &Nqn, host: &Nqn, nsid: u32) -> Option<NamespaceOffer<B>> {
        let inner = self.lock();
        let offer = inner.subsystems.get(subsystem)?.namespaces.get(&nsid)?;
        offer.hosts.include(host.as_str()).then(|| offer.clone())
    }
}

/// A key belongs to one host and one subsystem: its owner cannot act as another host.
fn check_identity(admission: &Admission, identity: Option<&TlsIdentity>) -> Result<(), Refused> {
    match identity {
        Some(identity) if identity.host != admission.host.nqn => Err(Refused(Status::CONNECT_INVALID_HOST, 0)),
        Some(identity) if identity.subsystem != admission.subsystem => Err(Refused::SUBSYSTEM()),
        _ => Ok(()),
    }
}

/// A host that has a key is not admitted without it.
fn check_channel(
    secrets: &HostSecrets,
    admission: &Admission,
    identity: Option<&TlsIdentity>,
    refusals: &mut LogLimiter<(RefusalKind, String)>,
    now: Nanos,
) -> Result<(), Refused> {
    if identity.is_none() && secrets.wants_tls(&admission.host.nqn) {
        let host = admission.host.nqn.as_str();
        if let Some(count) = refusals.happened((RefusalKind::Clear, host.to_owned()), now) {
            tracing::warn!(host, count, "an NVMe host that has to use TLS came without");
        }
        return Err(Refused(Status::CONNECT_INVALID_HOST, 0));
    }
    Ok(())
}

impl<B> PortalState<B> {
    /// Notifies the hosts that may use a namespace. Others are not told that it exists.
    fn changed(&self, subsystem: &Nqn, nsid: u32, hosts: &Hosts) {
        self.tell(subsystem, hosts, ChangeNotification::Namespace(nsid));
    }

    fn tell(&self, subsystem: &Nqn, hosts: &Hosts, notification: ChangeNotification) {
        let users = self.associations.values().filter(|association| association.kind == Kind::Io);
        for association in users.filter(|user| user.subsystem == *subsystem && hosts.include(user.host.nqn.as_str())) {
            association.tell(notification);
        }
    }

    /// The discovery log may have changed.
    fn discovery_changed(&mut self) {
        self.generation += 1;
        for association in self.associations.values().filter(|association| association.kind == Kind::Discovery) {
            association.tell(ChangeNotification::Discovery);
        }
    }
}
