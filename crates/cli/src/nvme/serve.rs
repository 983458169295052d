//! `purlin nvme connect`: a namespace for NBD clients, until it is told to end.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{NbdAddress, format_bytes};
use initiator::tokio::TokioNetwork;
use initiator::{Namespace, PathState, PathStatus};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::Notify;

use super::connections::announce;
use super::edges::Edges;
use super::nbd_server::{self, export_info};
use super::reports::{NvmeConnection, NvmePath};
use super::{connect, connection_options};
use crate::Failure;
use crate::args::Common;
use crate::ending::Ending;
use crate::nvme_args::ConnectArgs;
use crate::output::show;

/// How long a last flush may take.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// How often it is looked whether there is still a path.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waited for after a failed accept: for too many open files, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A namespace that is served.
pub(super) struct Served {
    edges: Rc<Edges>,
    subsystem: String,
    nbd_uri: String,
    started_unix_s: u64,
    clients: Cell<u64>,
    /// Somebody wants it to end.
    pub end: Notify,
}

pub(super) async fn run(common: &Common, args: ConnectArgs) -> Result<(), Failure> {
    let fail = |source| Failure::Local { what: "cannot listen for Ctrl-C".to_owned(), source };
    let mut ending = Ending::listen().map_err(fail)?;
    let listener = Listener::bind(&args.nbd).await?;
    if let NbdAddress::Tcp { host, .. } = &args.nbd
        && !is_local(host)
    {
        eprintln!("purlin: warning: whoever reaches {} may read and write: NBD asks nobody who they are", args.nbd);
    }
    let options = connection_options(&args.host, &args.connection, &args.subsystem)?;
    let network = TokioNetwork::new();
    let disk = tokio::select! {
        connected = connect(&network, &args.addresses, args.connection.nsid, options) => connected?,
        () = ending.told() => return Ok(()),
    };
    let served = Rc::new(Served {
        edges: Rc::new(Edges::new(disk.clone())),
        subsystem: args.subsystem.to_string(),
        nbd_uri: uri(&args.nbd),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        clients: Cell::new(0),
        end: Notify::new(),
    });
    let control = announce(served.clone()).await;
    let ended = match &control {
        Ok(_) => until_the_end(common, &served, listener, &mut ending).await,
        Err(_) => Ok(()),
    };
    // What NBD clients have written is with the target; a flush makes it durable, too.
    let _ = tokio::time::timeout(FLUSH_MAX, disk.flush()).await;
    disk.close().await;
    control.map(drop).and(ended)
}

async fn until_the_end(
    common: &Common,
    served: &Rc<Served>,
    listener: Listener,
    ending: &mut Ending,
) -> Result<(), Failure> {
    show(common, &served.report(), |report| {
        let NvmeConnection { nsid, subsystem, size_bytes, nbd_uri, .. } = report;
        format!("namespace {nsid} of {subsystem}, {}, is at {nbd_uri}\n", format_bytes(*size_bytes))
    })?;
    tokio::select! {
        never = listener.serve(served) => match never {},
        () = served.end.notified() => Ok(()),
        () = ending.told() => Ok(()),
        error = gone(served) => Err(error),
    }
}

impl Served {
    pub fn clients(&self) -> u64 {
        self.clients.get()
    }

    pub fn report(&self) -> NvmeConnection {
        let disk = self.edges.disk();
        NvmeConnection {
            subsystem: self.subsystem.clone(),
            nsid: disk.info().nsid,
            size_bytes: disk.size_bytes(),
            block_bytes: disk.info().block_bytes,
            read_only: disk.is_read_only(),
            nbd_uri: self.nbd_uri.clone(),
            client_count: self.clients.get(),
            pid: std::process::id(),
            started_unix_s: self.started_unix_s,
            paths: disk.paths().iter().map(path).collect(),
        }
    }

    fn client<R, W>(self: &Rc<Self>, reader: R, writer: W)
    where
        R: AsyncRead + Unpin + 'static,
        W: AsyncWrite + Unpin + 'static,
    {
        let served = self.clone();
        tokio::task::spawn_local(async move {
            let info = export_info(&served.edges, format!("namespace of {}", served.subsystem));
            served.clients.set(served.clients.get() + 1);
            // A client that breaks the protocol has only itself to tell.
            let _ = nbd_server::serve(reader, writer, served.edges.clone(), info).await;
            served.clients.set(served.clients.get() - 1);
        });
    }
}

fn path(path: &PathStatus) -> NvmePath {
    NvmePath {
        address: path.address.to_string(),
        state: path.state.name().to_owned(),
        connect_count: path.connects,
        last_error: path.last_error.clone(),
    }
}

/// Where NBD clients come to.
enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener, std::path::PathBuf),
}

impl Listener {
    async fn bind(address: &NbdAddress) -> Result<Listener, Failure> {
        let fail = |source| Failure::Local { what: format!("cannot listen at {address}"), source };
        match address {
            NbdAddress::Tcp { host, port } => {
                TcpListener::bind((host.as_str(), *port)).await.map(Listener::Tcp).map_err(fail)
            }
            #[cfg(unix)]
            NbdAddress::Unix(path) => {
                let bound = match UnixListener::bind(path) {
                    // A socket that nobody listens at any more is left over.
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && is_left_over(path).await => {
                        std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
                    }
                    bound => bound,
                };
                let bound = bound.map_err(fail)?;
                let mine = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(path, mine).map_err(fail)?;
                Ok(Listener::Unix(bound, path.clone()))
            }
            #[cfg(not(unix))]
            NbdAddress::Unix(_) => {
                let what = "unix: sockets are not served on this system: give --nbd HOST:PORT".to_owned();
                Err(Failure::Usage(what))
            }
        }
    }

    /// Serves who comes.
    async fn serve(&self, served: &Rc<Served>) -> std::convert::Infallible {
        loop {
            let accepted = match self {
                Listener::Tcp(listener) => listener.accept().await.and_then(|(stream, _)| {
                    stream.set_nodelay(true)?;
                    let (reader, writer) = stream.into_split();
                    served.client(reader, writer);
                    Ok(())
                }),
                #[cfg(unix)]
                Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                    let (reader, writer) = stream.into_split();
                    served.client(reader, writer);
                }),
            };
            if accepted.is_err() {
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[cfg(unix)]
async fn is_left_over(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    is_socket && tokio::net::UnixStream::connect(path).await.is_err_and(refused)
}

#[cfg(unix)]
impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Somebody may have removed it before.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn uri(address: &NbdAddress) -> String {
    match address {
        NbdAddress::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
        tcp => format!("nbd://{tcp}"),
    }
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns when no path is left.
async fn gone(served: &Served) -> Failure {
    let disk: &Namespace<TokioNetwork> = served.edges.disk();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let paths = disk.paths();
        if paths.iter().all(|path| path.state == PathState::Lost) {
            let errors: Vec<String> = paths.into_iter().filter_map(|path| path.last_error).collect();
            return Failure::Ended(format!("the namespace cannot be reached any more: {}", errors.join("; ")));
        }
    }
}
