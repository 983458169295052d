//! Exports that run: listeners by address, and what is offered at each.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{ErrorCode, NbdAddress};
use drive::Env;
use export::{ExportState, ServerConfig, TlsConfig, serve};
use format::{ExportKind, ExportRecord, TlsFiles};
use runtime::{Listener, ShardEnv, ShardHandle};

use super::drives::stopping;
use super::shard::{self, GroupKey, Offer, Offers};
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
}

/// All listeners.
pub(super) struct Listeners {
    shards: Vec<ShardHandle>,
    places: Mutex<BTreeMap<String, Place>>,
}

impl Listeners {
    pub fn new(shards: Vec<ShardHandle>) -> Listeners {
        Listeners { shards, places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers a volume. `name` is what NBD clients ask for.
    pub async fn offer(&self, name: &str, key: GroupKey, record: &ExportRecord, state: Arc<ExportState>) -> Answer<()> {
        let ExportKind::Nbd { address, tls, .. } = &record.kind;
        let offer = Offer { key, volume: record.volume, state };
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
        self.listen(address, config, offers.clone()).await?;
        self.places().insert(address.clone(), Place { offers, tls: tls.clone() });
        Ok(())
    }

    /// Ends an offer, and waits until its clients are gone.
    pub async fn withdraw(&self, name: &str, record: &ExportRecord, state: &ExportState) {
        let ExportKind::Nbd { address, .. } = &record.kind;
        state.stop();
        let empty = {
            let mut places = self.places();
            let Some(place) = places.get(address) else { return };
            place.offers.remove(name);
            let empty = place.offers.is_empty();
            if empty {
                places.remove(address);
            }
            empty
        };
        if empty {
            let closed = address.clone();
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

    async fn listen(&self, address: &str, config: ServerConfig, offers: Offers) -> Answer<()> {
        let target = Target::of(address)?;
        let (key, shards) = (address.to_owned(), self.shards.clone());
        let listening = self.home(address).call(move || async move {
            let env = ShardEnv::current();
            let listener = match &target {
                Target::Unix(path) => Listener::bind_unix(&env, Path::new(path), SOCKET_MODE)?,
                Target::Tcp(address) => Listener::bind_tcp(&env, *address)?,
            };
            shard::add_listener(key, listener.closer());
            env.spawn(serve(env.clone(), listener, shards, config, move || offers.clone()));
            Ok(())
        });
        let bound: std::io::Result<()> = listening.await.map_err(|_| stopping())?;
        bound.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot listen on {address}: {error}")))
    }
}

enum Target {
    Unix(String),
    Tcp(SocketAddr),
}

impl Target {
    fn of(address: &str) -> Answer<Target> {
        let parsed: NbdAddress = address
            .parse()
            .map_err(|error: api::AddressError| ControlError::new(ErrorCode::Invalid, error.to_string()))?;
        match parsed {
            NbdAddress::Unix(path) => {
                remove_stale_socket(&path)?;
                Ok(Target::Unix(path.display().to_string()))
            }
            NbdAddress::Tcp { host, port } => {
                let found = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next());
                found.map(Target::Tcp).ok_or_else(|| {
                    ControlError::new(ErrorCode::Invalid, format!("{host:?} is not a host that is known here"))
                })
            }
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
