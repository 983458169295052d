//! Exports that run: listeners by address, and what is offered at each.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{ErrorCode, NbdAddress};
use drive::Env;
use export::{ExportState, ServerConfig, TlsConfig, serve};
use format::{ExportRecord, TlsFiles};
use runtime::{Bound, ListenOn, Listener, ShardEnv, ShardHandle};
use tokio::sync::oneshot;

use super::drives::stopping;
use super::shard::{self, Offer, Offers};
use crate::handover::Handover;
use crate::http::{Answer, ControlError};

/// Mode of an export's Unix socket: whoever may open it may read and write the volume.
const SOCKET_MODE: u32 = 0o600;

/// An export of the catalogue, and how it is doing.
pub(super) struct RunningExport {
    pub record: ExportRecord,
    pub state: Arc<ExportState>,
    /// Why it is not served, if it is not.
    pub failure: Option<String>,
}

/// A place where clients are waited for. All exports at one address share its listener and its TLS.
struct Place {
    offers: Offers,
    tls: Option<TlsFiles>,
    /// Says when no more clients are taken there.
    ended: oneshot::Receiver<()>,
}

/// All listeners.
pub(super) struct Listeners {
    shards: Vec<ShardHandle>,
    places: Mutex<BTreeMap<String, Place>>,
    handover: Arc<Handover>,
}

/// The name under which a place's socket is handed over.
fn socket_name(address: &str) -> String {
    format!("nbd-{address}")
}

impl Listeners {
    pub fn new(shards: Vec<ShardHandle>, handover: Arc<Handover>) -> Listeners {
        Listeners { shards, places: Mutex::default(), handover }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a volume at `address`. `name` is what NBD clients ask for.
    pub async fn offer(&self, name: &str, address: &str, tls: &Option<TlsFiles>, offer: Offer) -> Answer<()> {
        if let Some(place) = self.places().get(address) {
            if place.tls != *tls {
                return Err(ControlError::new(
                    ErrorCode::Invalid,
                    format!("other exports at {address} have other TLS files: one address has one of them"),
                ));
            }
            place.offers.add(name, offer);
            return Ok(());
        }
        let config = ServerConfig { tls: tls.as_ref().map(load_tls).transpose()?, ..ServerConfig::default() };
        let offers = Offers::default();
        offers.add(name, offer);
        let ended = self.listen(address, config, offers.clone()).await?;
        self.places().insert(address.to_owned(), Place { offers, tls: tls.clone(), ended });
        Ok(())
    }

    /// Takes no more clients, and leaves those that come to whoever takes over the sockets. Exports end, and are
    /// withdrawn afterwards as ever; until then, who was taken already learns that they end, and not that they are unknown.
    pub async fn let_go(&self) {
        let places = std::mem::take(&mut *self.places());
        for (address, place) in places {
            let left = address.clone();
            // A shard that has stopped takes no clients, and neither does a server that has ended.
            let _ = self.home(&address).call(move || async move { shard::let_go_listener(&left) }).await;
            let _ = place.ended.await;
            place.offers.hand_over();
        }
    }

    /// Ends an offer, and waits until its clients are gone.
    pub async fn withdraw(&self, address: &str, state: &ExportState) {
        state.stop();
        let empty = {
            let mut places = self.places();
            let empty = places.get(address).is_some_and(|place| {
                place.offers.remove(state.name());
                place.offers.is_empty()
            });
            if empty {
                places.remove(address);
            }
            empty
        };
        if empty {
            self.handover.forget(&socket_name(address));
            let closed = address.to_owned();
            // A shard that has stopped has closed its listeners.
            let _ = self.home(address).call(move || async move { shard::close_listener(&closed) }).await;
            if let Some(path) = address.strip_prefix("unix:") {
                // The name is of no use any more; that it is gone already is fine.
                let _ = std::fs::remove_file(path);
            }
        }
        state.stopped().await;
    }

    /// The shard that waits for clients at an address. Those that come are spread over all shards.
    fn home(&self, address: &str) -> &ShardHandle {
        let sum: usize = address.bytes().map(usize::from).sum();
        &self.shards[sum % self.shards.len()]
    }

    /// Gives what says when the server there has ended.
    async fn listen(&self, address: &str, config: ServerConfig, offers: Offers) -> Answer<oneshot::Receiver<()>> {
        let bound = self.bound(address)?;
        let (key, shards) = (address.to_owned(), self.shards.clone());
        let (end, ended) = oneshot::channel();
        let listening = self.home(address).call(move || async move {
            let env = ShardEnv::current();
            let listener = Listener::new(&env, bound);
            shard::add_listener(key, listener.closer());
            let serving = serve(env.clone(), listener, shards, config, move || offers.clone());
            env.spawn(async move {
                serving.await;
                // Nobody waits for a listener that was closed.
                let _ = end.send(());
            });
        });
        listening.await.map_err(|_| stopping())?;
        Ok(ended)
    }

    /// The socket for an address: the one that was handed over, or a new one.
    fn bound(&self, address: &str) -> Answer<Bound> {
        let on = listen_on(address)?;
        let name = socket_name(address);
        if let Some(bound) = self.handover.take(&name, &on) {
            return Ok(bound);
        }
        if let ListenOn::Unix { path, .. } = &on {
            remove_stale_socket(path)?;
        }
        let bound = Bound::new(on);
        let bound =
            bound.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot listen on {address}: {error}")))?;
        self.handover.hold(&name, &bound);
        Ok(bound)
    }
}

fn listen_on(address: &str) -> Answer<ListenOn> {
    let parsed: NbdAddress =
        address.parse().map_err(|error: api::AddressError| ControlError::new(ErrorCode::Invalid, error.to_string()))?;
    match parsed {
        NbdAddress::Unix(path) => Ok(ListenOn::Unix { path, mode: SOCKET_MODE }),
        NbdAddress::Tcp { host, port } => {
            let found = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next());
            found.map(ListenOn::Tcp).ok_or_else(|| {
                ControlError::new(ErrorCode::Invalid, format!("{host:?} is not a host that is known here"))
            })
        }
    }
}

/// A socket that nobody answers on was left behind by a daemon that is gone.
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
        std::fs::read(path).map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {path}: {error}")))
    };
    let authority = files.client_ca.as_ref().map(&read).transpose()?;
    TlsConfig::from_pem(&read(&files.certificate)?, &read(&files.key)?, authority.as_deref(), true)
        .map_err(|error| ControlError::new(ErrorCode::Invalid, error.to_string()))
}
