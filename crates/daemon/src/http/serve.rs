//! Listeners: the Unix socket, and TCP with TLS.
//!
//! Invariants:
//! - The Unix socket never has more permissions than mode 600.
//! - Over TCP nothing is parsed before the TLS handshake, and nothing is routed without a token.
//! - Connections over TCP have their own limit, so that they cannot keep the Unix socket from being
//!   served.
//! - Clients that stall do not keep others out: [`ConnectionSlots`].

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use runtime::{Bound, ListenOn};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::auth::{self, TokenError, Tokens};
use super::connection_slots::{ConnectionSlot, ConnectionSlots, Peer};
use super::control::Control;
use super::options::{HttpOptions, OptionsError, TcpOptions};
use super::routes::router;
use super::tls::{TlsError, server_config};
use crate::handover::Handover;

/// The mode of the Unix socket: a process that may open it has full access.
const SOCKET_MODE: u32 = 0o600;
/// The names under which the sockets are handed over.
const UNIX_NAME: &str = "api";
const TCP_NAME: &str = "api-tcp";

/// The maximum of connections on each listener: far more than people and their tools need, far
/// fewer than the available file descriptors.
const CONNECTIONS_MAX: usize = 128;
/// A client that has not sent its headers within this time has stalled.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// When the daemon stops, a new client that sends nothing within this time is disconnected.
const FIRST_WITHIN: Duration = Duration::from_millis(500);
/// A client that has not finished its TLS handshake within this time has stalled.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long running requests may take to end when the daemon stops.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// After a failed accept (out of file descriptors) the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reason why the API cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Another daemon answers on the socket.
    #[error("another daemon listens on {}", .0.display())]
    Taken(PathBuf),
    /// The socket's path exists and is not a socket.
    #[error("{} is there and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The Unix socket could not be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The TCP address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Options that contradict each other.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token file.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// A TCP listener with its TLS settings and tokens.
struct Guarded {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    tokens: Arc<Tokens>,
}

/// The API's listeners, bound but not yet served.
pub struct Server {
    unix: UnixListener,
    socket: PathBuf,
    tcp: Option<Guarded>,
    handover: Arc<Handover>,
}

impl Server {
    /// Binds the sockets of `options`. A socket that a dead daemon left behind is replaced.
    ///
    /// # Errors
    /// [`ServeError`], each with a sentence that names the address or file.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn bind(options: &HttpOptions) -> Result<Server, ServeError> {
        Server::take_over(options, Arc::new(Handover::alone())).await
    }

    /// Like [`Server::bind`], with the sockets of the previous process, and for the next one.
    ///
    /// # Errors
    /// As for [`Server::bind`].
    ///
    /// # Panics
    /// As for [`Server::bind`].
    pub async fn take_over(options: &HttpOptions, handover: Arc<Handover>) -> Result<Server, ServeError> {
        // Do checks without side effects first, so that a refused daemon leaves no socket behind.
        let tcp = match options.tcp()? {
            Some(tcp) => Some(bind_tcp(&tcp, &handover)?),
            None => None,
        };
        let unix = bind_unix(&options.socket, &handover)?;
        Ok(Server { unix, socket: options.socket.clone(), tcp, handover })
    }

    /// The TCP address in use. If port 0 was requested, it has the actual port.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.listener.local_addr().ok())
    }

    /// Serves `control` until `stop` is true or its sender is gone. Then it lets running requests
    /// end and removes the socket, unless it is handed over.
    pub async fn run(self, control: Arc<dyn Control>, stop: watch::Receiver<bool>) {
        let routes = router(control);
        let unix = serve_unix(self.unix, routes.clone(), stop.clone());
        match self.tcp {
            Some(guarded) => {
                tokio::join!(unix, serve_tcp(guarded, routes, stop));
            }
            None => unix.await,
        }
        if self.handover.keeps() {
            return;
        }
        self.handover.forget(UNIX_NAME);
        self.handover.forget(TCP_NAME);
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::warn!(socket = %self.socket.display(), %error, "cannot remove the API's socket");
        }
    }
}

fn bind_unix(path: &Path, handover: &Handover) -> Result<UnixListener, ServeError> {
    let fail = |source| ServeError::Unix { path: path.to_owned(), source };
    // The path that the kernel knows is the one that was bound.
    let on = ListenOn::Unix { path: path.to_owned(), mode: SOCKET_MODE };
    let bound = match handover.take(UNIX_NAME, &on) {
        Some(bound) => bound,
        None => {
            match std::fs::symlink_metadata(path) {
                Ok(there) if !there.file_type().is_socket() => return Err(ServeError::NotASocket(path.to_owned())),
                Ok(_) if StdUnixStream::connect(path).is_ok() => return Err(ServeError::Taken(path.to_owned())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail(error)),
            }
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                std::fs::create_dir_all(folder).map_err(fail)?;
            }
            let bound = Bound::new(on).map_err(fail)?;
            handover.hold(UNIX_NAME, &bound);
            bound
        }
    };
    let listener = StdUnixListener::from(OwnedFd::from(bound));
    listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener)).map_err(fail)
}

fn bind_tcp(options: &TcpOptions, handover: &Handover) -> Result<Guarded, ServeError> {
    let config = server_config(&options.cert, &options.key)?;
    let tokens = Arc::new(Tokens::read(&options.token_file)?);
    let address = options.address;
    let fail = |source| ServeError::Tcp { address, source };
    let on = ListenOn::Tcp(address);
    let bound = match handover.take(TCP_NAME, &on) {
        Some(bound) => bound,
        None => {
            let bound = Bound::new(on).map_err(fail)?;
            handover.hold(TCP_NAME, &bound);
            bound
        }
    };
    let listener = StdTcpListener::from(OwnedFd::from(bound));
    let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)).map_err(fail)?;
    Ok(Guarded { listener, acceptor: TlsAcceptor::from(config), tokens })
}

async fn serve_unix(listener: UnixListener, routes: Router, stop: watch::Receiver<bool>) {
    serve(listener, |stream| std::future::ready(Some(stream)), routes, stop).await;
}

async fn serve_tcp(guarded: Guarded, routes: Router, stop: watch::Receiver<bool>) {
    let Guarded { listener, acceptor, tokens } = guarded;
    let routes = auth::guarded(routes, tokens);
    let handshake = move |(stream, peer): (TcpStream, SocketAddr)| {
        let acceptor = acceptor.clone();
        async move {
            let why = match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it took too long".to_owned(),
            };
            tracing::info!(%peer, why, "an API client failed its TLS handshake");
            None
        }
    };
    serve(listener, handshake, routes, stop).await;
}

/// A listener that accepts connections.
trait Accept {
    /// A new connection, before any handshake.
    type Raw: Send + 'static;

    /// The next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Raw>> + Send;

    /// The client's network, if clients can come from several.
    fn peer(raw: &Self::Raw) -> Option<Peer>;
}

impl Accept for UnixListener {
    type Raw = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }

    fn peer(_: &UnixStream) -> Option<Peer> {
        None
    }
}

impl Accept for TcpListener {
    type Raw = (TcpStream, SocketAddr);

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }

    fn peer((_, address): &(TcpStream, SocketAddr)) -> Option<Peer> {
        Some(address.ip().into())
    }
}

/// Accepts connections and serves each in a task. When asked to stop, it waits for the running
/// requests.
async fn serve<Listener: Accept, Ready, Handshake>(
    listener: Listener,
    handshake: impl Fn(Listener::Raw) -> Handshake,
    routes: Router,
    mut stop: watch::Receiver<bool>,
) where
    Ready: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Handshake: Future<Output = Option<Ready>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let slots = ConnectionSlots::new(CONNECTIONS_MAX);
    loop {
        let next = async {
            let raw = listener.next().await?;
            Ok((slots.acquire(Listener::peer(&raw)).await, raw))
        };
        let accepted: io::Result<_> = tokio::select! {
            next = next => next,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (slot, raw) = match accepted {
            Ok((slot, raw)) => (Arc::new(slot), raw),
            Err(error) => {
                tracing::warn!(%error, "cannot accept an API connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (routes, watcher, stop) = (routes.clone(), graceful.watcher(), stop.clone());
        let (handshake, held_slot) = (handshake(raw), slot.clone());
        let conversation = async move {
            if let Some(stream) = handshake.await {
                converse(stream, routes, held_slot, watcher, stop).await;
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = conversation => {}
                () = slot.is_needed() => tracing::debug!("an API client was slow, and another one came"),
            }
        });
    }
    if tokio::time::timeout(DRAIN_WITHIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("API requests were still running when the daemon stopped");
    }
}

/// Serves one connection to its end. An error ends only this connection. If the client connected
/// just before a stop, its first request is still served, because an error would not help the
/// client.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
    slot: Arc<ConnectionSlot>,
    watcher: Watcher,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = BufReader::new(stream);
    let stopped = async {
        // A missing sender means stop, too.
        let _ = stop.wait_for(|stop| *stop).await;
        tokio::time::sleep(FIRST_WITHIN).await;
    };
    let asked = tokio::select! {
        filled = tokio::time::timeout(HEADERS_WITHIN, stream.fill_buf()) => {
            matches!(filled, Ok(Ok(bytes)) if !bytes.is_empty())
        }
        () = stopped => false,
    };
    if !asked {
        return;
    }
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(slot.clone());
        routes.call(request)
    });
    let mut connection = connection(stream, service);
    // Read what has arrived, so that a stop finds a request in progress and waits for its answer.
    let ended = poll_fn(|context| match Pin::new(&mut connection).poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    let result = match ended.await {
        Some(result) => result,
        None => watcher.watch(connection).await,
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an API connection ended badly");
    }
}

fn connection<Stream: AsyncRead + AsyncWrite + Unpin, S>(
    stream: Stream,
    service: S,
) -> http1::Connection<TokioIo<Stream>, S>
where
    S: Service<hyper::Request<Incoming>, Response = Response, Error = Infallible>,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .serve_connection(TokioIo::new(stream), service)
}

/// Serves one connection to its end, for a caller that has its own stream.
///
/// # Errors
/// An error in the client's data, or of the stream.
///
/// # Panics
/// Outside a tokio runtime with time.
pub async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
) -> Result<(), hyper::Error> {
    connection(stream, TowerToHyperService::new(routes)).await
}
