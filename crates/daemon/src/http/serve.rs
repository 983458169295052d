//! Listeners: the Unix socket, and TCP with TLS.
//!
//! Invariants:
//! - The Unix socket appears under its name with mode 600 already set.
//! - Over TCP nothing is parsed before the TLS handshake, and nothing is routed without a token.
//! - Connections over TCP have their own limit, so that they cannot keep the Unix socket from being served.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::auth::{TokenError, Tokens, require_token};
use super::control::Control;
use super::options::{HttpOptions, OptionsError, TcpOptions};
use super::routes::router;
use super::tls::{TlsError, server_config};

/// Connections served at once on each listener: far more than people and their tools need, far fewer than file
/// descriptors.
const CONNECTIONS_MAX: usize = 128;
/// A client that has not sent its headers by then has stalled.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// A client that has not finished its TLS handshake by then has stalled.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long running requests may take to end when the daemon stops.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// After a failed accept (out of file descriptors) the next try waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the API cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Another daemon answers on the socket.
    #[error("another daemon listens on {}", .0.display())]
    Taken(PathBuf),
    /// Something that is not a socket has the socket's name.
    #[error("{} is there and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The Unix socket could not be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The TCP address could not be bound.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Options that make no sense together.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Tokens.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// TCP with all that guards it.
struct Guarded {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    tokens: Arc<Tokens>,
}

/// The API's listeners, bound and not yet served.
pub struct Server {
    unix: UnixListener,
    socket: PathBuf,
    tcp: Option<Guarded>,
}

impl Server {
    /// Binds what `options` ask for. A socket left behind by a daemon that is gone is replaced.
    ///
    /// # Errors
    /// [`ServeError`], each with a sentence that names the address or file.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn bind(options: &HttpOptions) -> Result<Server, ServeError> {
        // What can be refused by looking comes first, so that a refused daemon leaves no socket behind.
        let tcp = match options.tcp()? {
            Some(tcp) => Some(bind_tcp(&tcp).await?),
            None => None,
        };
        let unix = bind_unix(&options.socket)?;
        Ok(Server { unix, socket: options.socket.clone(), tcp })
    }

    /// The TCP address in use, with its port where port 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.listener.local_addr().ok())
    }

    /// Serves `control` until `stop` says true or its sender is gone, lets running requests end, and removes the socket.
    pub async fn run(self, control: Arc<dyn Control>, stop: watch::Receiver<bool>) {
        let routes = router(control);
        let unix = serve_unix(self.unix, routes.clone(), stop.clone());
        match self.tcp {
            Some(guarded) => {
                tokio::join!(unix, serve_tcp(guarded, routes, stop));
            }
            None => unix.await,
        }
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::warn!(socket = %self.socket.display(), %error, "cannot remove the API's socket");
        }
    }
}

/// Makes the socket under another name, sets its mode, and only then gives it its name: nobody can connect in between.
fn bind_unix(path: &Path) -> Result<UnixListener, ServeError> {
    let fail = |source| ServeError::Unix { path: path.to_owned(), source };
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
    let mut unnamed = path.as_os_str().to_owned();
    unnamed.push(format!(".{}", std::process::id()));
    let unnamed = PathBuf::from(unnamed);
    match std::fs::remove_file(&unnamed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&unnamed).map_err(fail)?;
    std::fs::set_permissions(&unnamed, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    std::fs::rename(&unnamed, path).map_err(fail)?;
    Ok(listener)
}

async fn bind_tcp(options: &TcpOptions) -> Result<Guarded, ServeError> {
    let config = server_config(&options.cert, &options.key)?;
    let tokens = Arc::new(Tokens::read(&options.token_file)?);
    let address = options.address;
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Tcp { address, source })?;
    Ok(Guarded { listener, acceptor: TlsAcceptor::from(config), tokens })
}

async fn serve_unix(listener: UnixListener, routes: Router, stop: watch::Receiver<bool>) {
    serve(listener, |stream| std::future::ready(Some(stream)), routes, stop).await;
}

async fn serve_tcp(guarded: Guarded, routes: Router, stop: watch::Receiver<bool>) {
    let Guarded { listener, acceptor, tokens } = guarded;
    let routes = routes.layer(from_fn_with_state(tokens, require_token));
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

/// Something that takes connections.
trait Accept {
    /// A connection as it comes, before any handshake.
    type Raw: Send + 'static;

    /// The next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Raw>> + Send;
}

impl Accept for UnixListener {
    type Raw = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for TcpListener {
    type Raw = (TcpStream, SocketAddr);

    async fn next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept().await
    }
}

/// Accepts connections and serves each in a task, until told to stop; then waits for the running requests.
async fn serve<Listener: Accept, Ready, Handshake>(
    listener: Listener,
    handshake: impl Fn(Listener::Raw) -> Handshake + Clone + Send + 'static,
    routes: Router,
    mut stop: watch::Receiver<bool>,
) where
    Ready: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Handshake: Future<Output = Option<Ready>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.next().await)
        };
        let (slot, accepted) = tokio::select! {
            next = next => next,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let raw = match accepted {
            Ok(raw) => raw,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an API connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (handshake, routes, watcher) = (handshake.clone(), routes.clone(), graceful.watcher());
        tokio::spawn(async move {
            if let Some(stream) = handshake(raw).await {
                converse(stream, routes, watcher).await;
            }
            drop(slot);
        });
    }
    if tokio::time::timeout(DRAIN_WITHIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("API requests were still running when the daemon stopped");
    }
}

/// Serves one connection to its end. What goes wrong there ends that connection only.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: Router, watcher: Watcher) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "an API connection ended badly");
    }
}
