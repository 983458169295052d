//! The I/O loop of `purlin nvme` without io_uring: this thread's tokio.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use api::NbdAddress;
use drive::Block;
use initiator::tokio::TokioNetwork;
use initiator::{Address, ConnectError, Discovered, Options, discover};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::bench::Bench;
use super::edges::Edges;
use super::reports::NvmeBench;
use super::serve::{DiskState, ENDING_MAX, Wanted};
use super::{connect, nbd_server};
use crate::Failure;

/// Pause after a failed accept, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The tasks of this thread.
pub(super) struct IoLoop {
    network: TokioNetwork,
}

impl IoLoop {
    /// Starts its clock.
    ///
    /// # Errors
    /// None here; the Linux version may fail.
    pub fn start() -> Result<IoLoop, Failure> {
        Ok(IoLoop { network: TokioNetwork::new() })
    }

    /// Runs a benchmark.
    ///
    /// # Errors
    /// [`Failure`], one sentence.
    pub async fn bench(&self, bench: Bench) -> Result<NvmeBench, Failure> {
        let addresses = bench.args.addresses.clone();
        bench.run(self.network, &addresses).await
    }

    /// As [`initiator::discover`].
    ///
    /// # Errors
    /// [`ConnectError`]
    pub async fn discover(&self, address: &Address, options: &Options) -> Result<Discovered, ConnectError> {
        discover(&self.network, address, options).await
    }

    /// Connects a namespace, and exports it to NBD clients until [`Disk::end`].
    ///
    /// # Errors
    /// [`Failure`], one sentence.
    pub async fn serve(self, place: NbdListener, wanted: Wanted) -> Result<Disk, Failure> {
        let Wanted { addresses, nsid, options } = wanted;
        let edges = Edges::new(connect(&self.network, &addresses, nsid, options).await?);
        let clients = Rc::new(Cell::new(0));
        let (served, counted) = (edges.clone(), clients.clone());
        let accepting = tokio::task::spawn_local(async move { place.serve(&served, &counted).await });
        Ok(Disk { edges, clients, accepting })
    }
}

/// An exported namespace.
pub(super) struct Disk {
    edges: Edges<TokioNetwork>,
    clients: Rc<Cell<u64>>,
    accepting: JoinHandle<Infallible>,
}

impl Disk {
    /// Number of connected NBD clients.
    pub fn clients(&self) -> u64 {
        self.clients.get()
    }

    /// Its current state.
    pub async fn state(&self) -> DiskState {
        DiskState::of(self.edges.disk())
    }

    /// Accepts no more clients, flushes, and disconnects.
    pub async fn end(&self) {
        self.accepting.abort();
        let _ = tokio::time::timeout(ENDING_MAX, self.edges.flush()).await;
        self.edges.disk().close().await;
    }
}

/// The address for NBD clients.
pub(super) enum NbdListener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener, std::path::PathBuf),
}

impl NbdListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`Failure`]
    pub async fn bind(address: &NbdAddress) -> Result<NbdListener, Failure> {
        let fail = |source| Failure::Local { what: format!("cannot listen at {address}"), source };
        match address {
            NbdAddress::Tcp { host, port } => {
                TcpListener::bind((host.as_str(), *port)).await.map(NbdListener::Tcp).map_err(fail)
            }
            #[cfg(unix)]
            NbdAddress::Unix(path) => {
                let bound = match UnixListener::bind(path) {
                    // A socket without a listener is left over.
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && is_left_over(path).await => {
                        std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
                    }
                    bound => bound,
                };
                let bound = bound.map_err(fail)?;
                let mine = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(path, mine).map_err(fail)?;
                Ok(NbdListener::Unix(bound, path.clone()))
            }
            #[cfg(not(unix))]
            NbdAddress::Unix(_) => {
                let what = "unix: sockets are not served on this system: give --nbd HOST:PORT".to_owned();
                Err(Failure::Usage(what))
            }
        }
    }

    /// Serves all clients that connect.
    async fn serve(&self, edges: &Edges<TokioNetwork>, clients: &Rc<Cell<u64>>) -> Infallible {
        loop {
            let accepted = match self {
                NbdListener::Tcp(listener) => listener.accept().await.and_then(|(stream, _)| {
                    stream.set_nodelay(true)?;
                    let (reader, writer) = stream.into_split();
                    serve_client(reader, writer, edges.clone(), clients.clone());
                    Ok(())
                }),
                #[cfg(unix)]
                NbdListener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                    let (reader, writer) = stream.into_split();
                    serve_client(reader, writer, edges.clone(), clients.clone());
                }),
            };
            if accepted.is_err() {
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn serve_client<R, W>(reader: R, writer: W, edges: Edges<TokioNetwork>, clients: Rc<Cell<u64>>)
where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    tokio::task::spawn_local(async move {
        clients.set(clients.get() + 1);
        // An error concerns this client only.
        let _ = nbd_server::serve(reader, writer, edges).await;
        clients.set(clients.get() - 1);
    });
}

#[cfg(unix)]
async fn is_left_over(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    is_socket && tokio::net::UnixStream::connect(path).await.is_err_and(refused)
}

#[cfg(unix)]
impl Drop for NbdListener {
    fn drop(&mut self) {
        if let NbdListener::Unix(_, path) = self {
            // Another process may have removed it before.
            let _ = std::fs::remove_file(path);
        }
    }
}
