//! The I/O loop of `purlin nvme` under Linux: its own shard, which is one thread with an io_uring,
//! as in the daemon.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::NbdAddress;
use drive::{Block, race, within};
use export::{ExportState, Exports, ServerConfig};
use initiator::{Address, ConnectError, Discovered, Options, discover};
use runtime::{Bound, Config, ListenOn, Listener, Runtime, ShardEnv};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::bench::Bench;
use super::connect;
use super::edges::Edges;
use super::reports::NvmeBench;
use super::serve::{DiskState, ENDING_MAX, Wanted, export_name};
use crate::Failure;

/// Memory for data in flight; more is taken from the heap.
const ARENA_BYTES: usize = 16 << 20;

/// Permissions of a socket's file: only this user may connect.
const SOCKET_MODE: u32 = 0o600;

/// Time to wait for a socket that is in use, and interval between attempts.
const IN_USE_MAX: Duration = Duration::from_secs(1);
const IN_USE_PAUSE: Duration = Duration::from_millis(50);

/// Time to try each of several addresses of a name.
const TRY_MAX: Duration = Duration::from_secs(3);

thread_local! {
    /// The exports of the shard. Blocks belong to their shard.
    static EXPORTS: Exports<Edges<ShardEnv>> = Exports::default();
    /// The same, kept after new clients cannot find it any more.
    static SERVED: RefCell<Option<Edges<ShardEnv>>> = const { RefCell::new(None) };
}

/// The shard. Dropping this ends it.
pub(super) struct IoLoop {
    runtime: Runtime,
}

impl IoLoop {
    /// Starts the shard.
    ///
    /// # Errors
    /// [`Failure`] without io_uring.
    pub fn start() -> Result<IoLoop, Failure> {
        let Config { mut cores, .. } = Config::default();
        cores.truncate(1);
        // The thread is not pinned: the scheduler knows better which core is idle.
        let config = Config { cores, pinned: false, arena_bytes: ARENA_BYTES, ..Config::default() };
        let runtime = Runtime::start(config).map_err(|error| Failure::Ended(error.to_string()))?;
        Ok(IoLoop { runtime })
    }

    async fn call<T, F>(&self, make: impl FnOnce(ShardEnv) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let called = self.runtime.shard(0).call(move || make(ShardEnv::current())).await;
        called.expect("a shard runs as long as its runtime is there, and a panic ends the process")
    }

    /// Runs a benchmark.
    ///
    /// # Errors
    /// [`Failure`], one sentence.
    pub async fn bench(&self, bench: Bench) -> Result<NvmeBench, Failure> {
        let addresses = all_resolved(&bench.args.addresses).await?;
        self.call(move |env| async move { bench.run(env, &addresses).await }).await
    }

    /// As [`initiator::discover`].
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn discover(&self, address: &Address, options: &Options) -> Result<Discovered, ConnectError> {
        let unreachable = |source| ConnectError::Unreachable { address: address.clone(), source };
        let at = resolved(address).await.map_err(unreachable)?;
        let options = options.clone();
        self.call(move |env| async move { discover(&env, &at, &options).await }).await
    }

    /// Connects a namespace, and exports it to NBD clients until [`Disk::end`].
    ///
    /// # Errors
    /// [`Failure`], one sentence.
    pub async fn serve(self, place: NbdListener, wanted: Wanted) -> Result<Disk, Failure> {
        let Wanted { addresses, nsid, options } = wanted;
        let addresses = all_resolved(&addresses).await?;
        let (end, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, over) = (end.clone(), ended.clone());
        let (connected, export) = oneshot::channel();
        let run = move || async move {
            let env = ShardEnv::current();
            // Dropping the listener removes the file of a Unix socket, on every way out.
            let listener = Listener::new(&env, place.0);
            let disk = match connect(&env, &addresses, nsid, options).await {
                Ok(disk) => disk,
                Err(error) => return drop(connected.send(Err(error))),
            };
            let (name, description) = export_name(&disk);
            let export = ExportState::new(name, description, disk.is_read_only());
            let edges = Edges::new(disk);
            EXPORTS.with(|exports| exports.add(edges.clone(), export.clone()));
            SERVED.set(Some(edges.clone()));
            let catalog = || EXPORTS.with(Exports::clone);
            // The caller may have gone meanwhile.
            let _ = connected.send(Ok(export.clone()));
            let serving = export::serve(env.clone(), listener, Vec::new(), ServerConfig::default(), catalog);
            race(serving, told.notified()).await;
            export.stop();
            let _ = within(&env, ENDING_MAX, async {
                export.stopped().await;
                edges.flush().await
            })
            .await;
            edges.disk().close().await;
            over.notify_one();
        };
        let gone = || Failure::Ended("the connection was cut off".to_owned());
        self.runtime.shard(0).spawn(run).map_err(|_| gone())?;
        let export = export.await.map_err(|_| gone())??;
        Ok(Disk { io_loop: self, export, end, ended })
    }
}

/// The address for NBD clients.
pub(super) struct NbdListener(Bound);

impl NbdListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`Failure::Local`]
    pub async fn bind(address: &NbdAddress) -> Result<NbdListener, Failure> {
        let fail = |source| Failure::Local { what: format!("cannot listen at {address}"), source };
        let places: Vec<ListenOn> = match address {
            NbdAddress::Unix(path) => vec![ListenOn::Unix { path: path.clone(), mode: SOCKET_MODE }],
            NbdAddress::Tcp { host, port } => {
                lookup_host((host.as_str(), *port)).await.map_err(fail)?.map(ListenOn::Tcp).collect()
            }
        };
        let start = Instant::now();
        loop {
            let mut last = io::Error::other("the name has no address");
            for place in &places {
                match Bound::new(place.clone()) {
                    Ok(bound) => return Ok(NbdListener(bound)),
                    Err(error) => last = error,
                }
            }
            // After a process was killed, the kernel releases its ring and its sockets with a
            // delay.
            if last.kind() != io::ErrorKind::AddrInUse || start.elapsed() >= IN_USE_MAX {
                return Err(fail(last));
            }
            sleep(IN_USE_PAUSE).await;
        }
    }
}

/// A namespace that the shard exports.
pub(super) struct Disk {
    io_loop: IoLoop,
    export: Arc<ExportState>,
    end: Arc<Notify>,
    ended: Arc<Notify>,
}

impl Disk {
    /// Number of connected NBD clients.
    pub fn clients(&self) -> u64 {
        self.export.connections().len() as u64
    }

    /// Its current state.
    pub async fn state(&self) -> DiskState {
        let state = || SERVED.with_borrow(|served| served.as_ref().map(|edges| DiskState::of(edges.disk())));
        self.io_loop.call(move |_| async move { state().expect("set before there is a `Disk`") }).await
    }

    /// Accepts no more clients, ends the connected ones, flushes, and disconnects.
    pub async fn end(&self) {
        self.end.notify_one();
        self.ended.notified().await;
    }
}

/// Resolves the names in addresses. A shard connects to IP addresses only, because a lookup would
/// block it.
async fn all_resolved(addresses: &[Address]) -> Result<Vec<Address>, Failure> {
    let mut all = Vec::new();
    for address in addresses {
        let fail = |source| Failure::Local { what: format!("cannot find {}", address.host), source };
        all.push(resolved(address).await.map_err(fail)?);
    }
    Ok(all)
}

/// Resolves the name in an address. If it has several addresses, takes the first that accepts a
/// connection.
async fn resolved(address: &Address) -> io::Result<Address> {
    let all: Vec<SocketAddr> = lookup_host((address.host.as_str(), address.port)).await?.collect();
    let mut found = all.first().copied();
    if all.len() > 1 {
        for other in all {
            if let Ok(Ok(_)) = timeout(TRY_MAX, TcpStream::connect(other)).await {
                found = Some(other);
                break;
            }
        }
    }
    let found = found.ok_or_else(|| io::Error::other("the name has no address"))?;
    Ok(Address::from(found))
}
