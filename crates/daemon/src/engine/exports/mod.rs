//! Running exports: listeners by address, and the volumes offered at each.

pub(crate) mod access;
pub(crate) mod devices;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod offer;
mod requests;
pub(crate) mod retry;
pub(crate) mod running_export;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use api::{Buffers, ErrorCode, NbdAddress};
use drive::{Env, join_all};
use export::{
    Budget, BudgetStats, ExportState, HostConnections, Hosts, NamespaceOffer, Portal, ServerConfig, TlsConfig, serve,
    serve_nvme_tcp,
};
use format::TlsFiles;
use nvme::Nqn;
use nvme::target::Subsystem;
use runtime::{Bound, ListenOn, Listener, ShardEnv, ShardHandle};
use tokio::sync::oneshot;

use crate::engine::errors::stopping;
use crate::engine::group::served::Served;
use crate::engine::group::shard;
use crate::engine::group::shard::{Offer, Offers};
use crate::engine::names::Names;
use crate::engine::nvme::announce::Announcer;
use crate::handover::Handover;
use crate::http::{Answer, ControlError};

/// The maximum of NVMe/TCP queues at one address. An idle queue holds some 200 KiB.
const QUEUES_MAX: usize = 4096;

/// The mode of an export's Unix socket: a process that may open it may read and write the volume.
const SOCKET_MODE: u32 = 0o600;

/// An address where clients connect. All exports at one address share its listener.
struct ServedAddress {
    serves: Serves,
    /// The names under which its sockets are handed over: one for each address of the host.
    sockets: Vec<String>,
    /// Resolves when no more clients are accepted there.
    ended: oneshot::Receiver<()>,
}

/// The protocol of an address, and what is offered there.
enum Serves {
    Nbd { offers: Offers, tls: Option<TlsFiles> },
    NvmeTcp(Portal<Served>),
}

impl Serves {
    /// The name under which the address's first socket is handed over.
    fn socket_name(&self, address: &str) -> String {
        match self {
            Serves::Nbd { .. } => format!("nbd-{address}"),
            Serves::NvmeTcp(_) => format!("nvme-{address}"),
        }
    }
}

/// All listeners.
pub(crate) struct Listeners {
    shards: Vec<ShardHandle>,
    addresses: Mutex<BTreeMap<String, ServedAddress>>,
    /// Other discovery services that the discovery log of every portal lists.
    referrals: Mutex<BTreeSet<SocketAddr>>,
    handover: Arc<Handover>,
    names: Arc<Names>,
    /// Announces the NVMe/TCP addresses on networks, if configured.
    announcer: OnceLock<Announcer>,
    /// Memory for the requests of all clients.
    budget: Arc<Budget>,
}

impl Listeners {
    pub fn new(shards: Vec<ShardHandle>, handover: Arc<Handover>, names: Arc<Names>, budget: Arc<Budget>) -> Listeners {
        let (addresses, referrals, announcer) = Default::default();
        Listeners { shards, addresses, referrals, handover, names, announcer, budget }
    }

    /// The connected NVMe hosts by name, with the sums over all addresses.
    pub fn connected_hosts(&self) -> BTreeMap<String, HostConnections> {
        let mut all: BTreeMap<String, HostConnections> = BTreeMap::new();
        for served in self.addresses().values() {
            let Serves::NvmeTcp(portal) = &served.serves else { continue };
            for (host, here) in portal.connected() {
                let sum = all.entry(host).or_default();
                sum.controllers += here.controllers;
                sum.queues += here.queues;
            }
        }
        all
    }

    /// Announces NVMe/TCP addresses from now on.
    pub fn announce_with(&self, announcer: Announcer) {
        // Only the first announcer counts.
        let _ = self.announcer.set(announcer);
    }

    /// Stops announcing. Addresses where the next program will listen stay announced.
    pub async fn end_announcing(&self) {
        if let Some(announcer) = self.announcer.get() {
            announcer.end(self.handover.is_upgrade()).await;
        }
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<String, ServedAddress>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a volume at `address`. NBD clients ask for `name`.
    pub async fn offer(&self, name: &str, address: &str, tls: &Option<TlsFiles>, offer: Offer) -> Answer<()> {
        if let Some(served) = self.addresses().get(address) {
            let Serves::Nbd { offers, tls: known } = &served.serves else { return Err(other_protocol(address)) };
            if known != tls {
                return Err(ControlError::new(
                    ErrorCode::Invalid,
                    format!("other exports at {address} have other TLS files: one address has one of them"),
                ));
            }
            offers.add(name, offer);
            return Ok(());
        }
        let tls_config = tls.as_ref().map(load_tls).transpose()?;
        let config = ServerConfig { tls: tls_config, budget: self.budget.clone(), ..ServerConfig::default() };
        let offers = Offers::default();
        offers.add(name, offer);
        let (shards, offered) = (self.shards.clone(), offers.clone());
        let serve = move |env, listener| {
            let offered = offered.clone();
            serve(env, listener, shards.clone(), config.clone(), move || offered.clone())
        };
        self.listen(address, Serves::Nbd { offers, tls: tls.clone() }, serve).await
    }

    /// Offers a volume at `address` as a namespace of a subsystem.
    pub async fn offer_namespace(
        &self,
        address: &str,
        subsystem: Subsystem,
        nsid: u32,
        offer: NamespaceOffer<Served>,
    ) -> Answer<()> {
        if let Some(served) = self.addresses().get(address) {
            let Serves::NvmeTcp(portal) = &served.serves else { return Err(other_protocol(address)) };
            portal.add(subsystem, nsid, offer);
            return Ok(());
        }
        let portal = Portal::default();
        portal.refer(self.referrals());
        portal.add(subsystem, nsid, offer);
        let (shards, offered, budget) = (self.shards.clone(), portal.clone(), self.budget.clone());
        let serve = move |env, listener| {
            serve_nvme_tcp(env, listener, shards.clone(), QUEUES_MAX, budget.clone(), offered.clone())
        };
        self.listen(address, Serves::NvmeTcp(portal), serve).await
    }

    /// The memory for the requests of all clients, as the API shows it.
    pub fn buffers(&self) -> Buffers {
        let BudgetStats { size_bytes, held_bytes, waiting } = self.budget.stats();
        Buffers { size_bytes, held_bytes, waiting_count: waiting }
    }

    /// Whether this daemon offers a subsystem.
    pub fn serves(&self, subsystem: &Nqn) -> bool {
        self.addresses().values().any(|served| match &served.serves {
            Serves::NvmeTcp(portal) => !portal.nsids(subsystem).is_empty(),
            Serves::Nbd { .. } => false,
        })
    }

    /// The discovery services to which hosts are referred.
    pub fn referrals(&self) -> BTreeSet<SocketAddr> {
        self.referrals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refers hosts to these discovery services, at every address.
    pub fn refer(&self, referrals: BTreeSet<SocketAddr>) {
        *self.referrals.lock().unwrap_or_else(PoisonError::into_inner) = referrals.clone();
        for served in self.addresses().values() {
            if let Serves::NvmeTcp(portal) = &served.serves {
                portal.refer(referrals.clone());
            }
        }
    }

    /// Ends what [`Listeners::offer_namespace`] began, and waits until no host uses the namespace.
    pub async fn withdraw_namespace(&self, address: &str, subsystem: &Nqn, nsid: u32, state: &ExportState) {
        let portal = match self.addresses().get(address).map(|served| &served.serves) {
            Some(Serves::NvmeTcp(portal)) => Some(portal.clone()),
            _ => None,
        };
        let empty = portal.as_ref().is_some_and(|portal| portal.remove(subsystem, nsid));
        state.stop();
        // Requests in flight are answered before queues end.
        state.stopped().await;
        if let Some(portal) = portal.filter(|_| empty) {
            portal.close();
            self.close(address).await;
        }
    }

    /// Sets the hosts that may use a namespace.
    pub fn allow_hosts(&self, address: &str, subsystem: &Nqn, nsid: u32, hosts: Hosts) {
        if let Some(Serves::NvmeTcp(portal)) = self.addresses().get(address).map(|served| &served.serves) {
            portal.allow(subsystem, nsid, hosts);
        }
    }

    /// Notifies hosts that the ANA state of a namespace changed. Its export has the new state.
    pub fn access_changed(&self, address: &str, subsystem: &Nqn, nsid: u32) {
        if let Some(Serves::NvmeTcp(portal)) = self.addresses().get(address).map(|served| &served.serves) {
            portal.access_changed(subsystem, nsid);
        }
    }

    /// Notifies hosts that a namespace has another size.
    pub fn namespace_resized(&self, address: &str, subsystem: &Nqn, nsid: u32) {
        if let Some(Serves::NvmeTcp(portal)) = self.addresses().get(address).map(|served| &served.serves) {
            portal.resized(subsystem, nsid);
        }
    }

    /// Stops accepting clients, and leaves new ones to the process that takes over the sockets.
    /// Exports are withdrawn afterwards as usual. Until then, clients that are already accepted are
    /// notified that the exports end, not that they are unknown.
    pub async fn release(&self) {
        let addresses = std::mem::take(&mut *self.addresses());
        for (address, served) in addresses {
            let left = address.clone();
            // A shard that has stopped accepts no clients, nor does a server that has ended.
            let _ = self.home(&address).call(move || async move { shard::release_listener(&left) }).await;
            let _ = served.ended.await;
            match served.serves {
                Serves::Nbd { offers, .. } => offers.hand_over(),
                Serves::NvmeTcp(portal) => portal.close(),
            }
        }
    }

    /// Closes the connections of all NVMe hosts and accepts no more, if no other process takes over
    /// the sockets. Hosts reconnect until the daemon is back and repeat unanswered commands. If
    /// they were notified that a namespace is gone, they would report errors to the application.
    pub async fn leave_hosts(&self) {
        let portals: Vec<_> = {
            let addresses = self.addresses();
            let portals = addresses.iter().filter_map(|(address, served)| match &served.serves {
                Serves::NvmeTcp(portal) => Some((address.clone(), portal.clone())),
                Serves::Nbd { .. } => None,
            });
            portals.collect()
        };
        for (address, portal) in portals {
            portal.close();
            self.close(&address).await;
        }
    }

    /// Ends an offer, and waits until its clients are gone.
    pub async fn withdraw(&self, address: &str, state: &ExportState) {
        state.stop();
        let empty = {
            match self.addresses().get(address).map(|served| &served.serves) {
                Some(Serves::Nbd { offers, .. }) => {
                    offers.remove(state.name());
                    offers.is_empty()
                }
                _ => false,
            }
        };
        if empty {
            self.close(address).await;
        }
        state.stopped().await;
    }

    /// Stops listening at an address.
    async fn close(&self, address: &str) {
        let Some(served) = self.addresses().remove(address) else { return };
        if let Some(announcer) = self.announcer.get() {
            announcer.withdraw(address);
        }
        served.sockets.iter().for_each(|socket| self.handover.forget(socket));
        let closed = address.to_owned();
        // A shard that has stopped has closed its listeners.
        let _ = self.home(address).call(move || async move { shard::close_listener(&closed) }).await;
        if let Some(path) = address.strip_prefix("unix:") {
            // The socket file is useless now. It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The shard that accepts clients at an address. The clients are spread over all shards.
    fn home(&self, address: &str) -> &ShardHandle {
        let sum: usize = address.bytes().map(usize::from).sum();
        &self.shards[sum % self.shards.len()]
    }

    /// Listens at an address, and has `serve` accept the clients.
    async fn listen<F: Future<Output = ()> + 'static>(
        &self,
        address: &str,
        serves: Serves,
        serve: impl Fn(ShardEnv, Listener) -> F + Send + 'static,
    ) -> Answer<()> {
        let bounds = self.bound(address, &serves.socket_name(address))?;
        let at = bounds[0].1.on().clone();
        let (sockets, bounds): (Vec<String>, Vec<Bound>) = bounds.into_iter().unzip();
        let key = address.to_owned();
        let (end, ended) = oneshot::channel();
        let listening = self.home(address).call(move || async move {
            let env = ShardEnv::current();
            let mut serving = Vec::new();
            for bound in bounds {
                let listener = Listener::new(&env, bound);
                shard::add_listener(key.clone(), listener.closer());
                serving.push(serve(env.clone(), listener));
            }
            env.spawn(async move {
                join_all(serving).await;
                // The receiver is gone if the listener was closed.
                let _ = end.send(());
            });
        });
        listening.await.map_err(|_| stopping())?;
        if let (Serves::NvmeTcp(_), ListenOn::Tcp(at), Some(announcer)) = (&serves, at, self.announcer.get()) {
            announcer.announce(address, at);
        }
        self.addresses().insert(address.to_owned(), ServedAddress { serves, sockets, ended });
        Ok(())
    }

    /// The sockets for an address, at least one, and the names under which they are handed over. A
    /// host name such as `localhost` may have several addresses, and clients may choose any of
    /// them. Addresses that this machine does not have are left out if another can be bound.
    fn bound(&self, address: &str, name: &str) -> Answer<Vec<(String, Bound)>> {
        let (mut all, mut absent) = (Vec::new(), None);
        for (number, on) in (1..).zip(listen_on(&self.names, address)?) {
            let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
            if let Some(bound) = self.handover.take(&name, &on) {
                all.push((name, bound));
                continue;
            }
            if let ListenOn::Unix { path, .. } = &on {
                remove_stale_socket(path)?;
            }
            match Bound::new(on) {
                Ok(bound) => {
                    self.handover.hold(&name, &bound);
                    all.push((name, bound));
                }
                Err(error) if is_absent(&error) => absent = Some(error),
                Err(error) => {
                    all.iter().for_each(|(name, _)| self.handover.forget(name));
                    return Err(cannot_listen(address, &error));
                }
            }
        }
        match absent {
            Some(error) if all.is_empty() => Err(cannot_listen(address, &error)),
            _ => Ok(all),
        }
    }
}

/// Whether the machine does not have an address, or no addresses of its family.
fn is_absent(error: &io::Error) -> bool {
    // EAFNOSUPPORT has no name in the standard library.
    const EAFNOSUPPORT: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

fn cannot_listen(address: &str, error: &io::Error) -> ControlError {
    let code = match error.kind() {
        io::ErrorKind::AddrInUse => ErrorCode::ExportExists,
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
            ErrorCode::Invalid
        }
        _ => ErrorCode::Io,
    };
    ControlError::new(code, format!("cannot listen on {address}: {error}"))
}

fn other_protocol(address: &str) -> ControlError {
    ControlError::new(ErrorCode::Invalid, format!("another protocol is spoken at {address}: one address has one"))
}

/// The listening places of an address, at least one. A host name was resolved before.
fn listen_on(names: &Names, address: &str) -> Answer<Vec<ListenOn>> {
    let parsed: NbdAddress =
        address.parse().map_err(|error: api::AddressError| ControlError::new(ErrorCode::Invalid, error.to_string()))?;
    match parsed {
        NbdAddress::Unix(path) => Ok(vec![ListenOn::Unix { path, mode: SOCKET_MODE }]),
        NbdAddress::Tcp { host, port } => Ok(names.addresses(&host, port)?.into_iter().map(ListenOn::Tcp).collect()),
    }
}

/// Logs whether an export is served, if that has changed. `failure`: why it is not served.
pub(crate) fn log_served(export: &str, before: Option<&str>, failure: Option<&str>) {
    match (before, failure) {
        (Some(_), None) => tracing::info!(export, "export is served now"),
        (before, Some(failure)) if before != Some(failure) => {
            tracing::error!(export, failure, "export is not served");
        }
        _ => {}
    }
}

/// Removes a socket on which no process answers: a daemon that is gone left it behind.
fn remove_stale_socket(path: &Path) -> Answer<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let taken = |why: &str| Err(ControlError::new(ErrorCode::Invalid, format!("{} {why}", path.display())));
    if !metadata.file_type().is_socket() {
        return taken("is there and is not a socket");
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return taken("is in use: something answers there");
    }
    std::fs::remove_file(path)
        .map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot replace {}: {error}", path.display())))
}

fn load_tls(files: &TlsFiles) -> Answer<TlsConfig> {
    let read = |path: &String| {
        std::fs::read(path)
            .map_err(|error| ControlError::new(ErrorCode::Invalid, format!("cannot read {path}: {error}")))
    };
    let authority = files.client_ca.as_ref().map(&read).transpose()?;
    TlsConfig::from_pem(&read(&files.certificate)?, &read(&files.key)?, authority.as_deref(), true)
        .map_err(|error| ControlError::new(ErrorCode::Invalid, error.to_string()))
}
