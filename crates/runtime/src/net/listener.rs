//! Listeners: accepting connections.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::rc::Rc;

use io_uring::opcode;

use super::bound::{Bound, ListenOn};
use super::socket::{Closer, Side, Socket, closed_here, is_transient};
use crate::env::ShardEnv;
use crate::op::Payload;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A process of this machine.
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(formatter),
            Peer::Unix => formatter.write_str("unix"),
        }
    }
}

/// A connection that no shard serves yet. Make it a [`Stream`](crate::Stream) on the shard that
/// will serve it.
#[derive(Debug)]
pub struct Incoming {
    pub(super) fd: OwnedFd,
    /// The other end.
    pub peer: Peer,
    /// The address of this end, for TCP.
    pub local: Option<SocketAddr>,
}

impl TryFrom<TcpStream> for Incoming {
    type Error = io::Error;

    /// Sets `TCP_NODELAY`: callers gather their responses themselves, so they do not need Nagle's
    /// algorithm.
    fn try_from(stream: TcpStream) -> io::Result<Incoming> {
        let peer = Peer::Tcp(stream.peer_addr()?);
        let local = Some(stream.local_addr()?);
        stream.set_nodelay(true)?;
        // For a nonblocking descriptor the ring would return EAGAIN instead of waiting.
        stream.set_nonblocking(false)?;
        Ok(Incoming { fd: stream.into(), peer, local })
    }
}

impl TryFrom<UnixStream> for Incoming {
    type Error = io::Error;

    fn try_from(stream: UnixStream) -> io::Result<Incoming> {
        stream.set_nonblocking(false)?;
        Ok(Incoming { fd: stream.into(), peer: Peer::Unix, local: None })
    }
}

/// A listening socket of one shard.
pub struct Listener {
    socket: Rc<Socket>,
    on: ListenOn,
}

impl Listener {
    /// Waits for connections on a socket that already listens. The file of a Unix socket is removed
    /// when the listener is dropped, unless [`Closer::release`] was called.
    pub fn new(env: &ShardEnv, bound: Bound) -> Listener {
        let (fd, on) = bound.into_parts();
        Listener { socket: Socket::new(env.shard(), fd), on }
    }

    /// Listens on a TCP address. Port 0 selects a free one ([`Listener::local_addr`] returns it).
    ///
    /// # Errors
    /// As for [`Bound::new`].
    pub fn bind_tcp(env: &ShardEnv, address: SocketAddr) -> io::Result<Listener> {
        Ok(Listener::new(env, Bound::new(ListenOn::Tcp(address))?))
    }

    /// Listens on a Unix socket, whose file gets the permissions `mode` (as in 0o660).
    ///
    /// # Errors
    /// As for [`Bound::new`].
    pub fn bind_unix(env: &ShardEnv, path: &Path, mode: u32) -> io::Result<Listener> {
        Ok(Listener::new(env, Bound::new(ListenOn::Unix { path: path.to_path_buf(), mode })?))
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.on {
            ListenOn::Tcp(address) => Some(*address),
            ListenOn::Unix { .. } => None,
        }
    }

    /// A handle that interrupts [`Listener::accept`].
    pub fn closer(&self) -> Closer {
        Closer::new(&self.socket)
    }

    /// Waits for a connection. TCP connections have `TCP_NODELAY`. Dropping the future loses no
    /// connection that was not complete yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] after [`Closer::close`] and [`Closer::release`]. Other
    /// errors may be temporary, for example too many open files: wait a little and try again.
    pub async fn accept(&self) -> io::Result<Incoming> {
        loop {
            if self.socket.is_closed() {
                return Err(closed_here());
            }
            let entry = opcode::Accept::new(self.socket.target(), ptr::null_mut(), ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build();
            // SAFETY: the entry's pointers are null.
            let operation = unsafe { self.socket.shard().start(entry, Payload::NewFd) }.cancelable();
            self.socket.started(Side::In, operation.key());
            let result = operation.await.result;
            if result >= 0 {
                // SAFETY: the kernel has just created this descriptor for us.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                match self.incoming(fd) {
                    Ok(incoming) => return Ok(incoming),
                    // The client disconnected before the connection was examined.
                    Err(error) => tracing::debug!(%error, "a connection ended before it began"),
                }
            } else if !self.socket.is_closed() && !is_transient(result) && -result != libc::ECONNABORTED {
                return Err(io::Error::from_raw_os_error(-result));
            }
        }
    }

    fn incoming(&self, fd: OwnedFd) -> io::Result<Incoming> {
        match self.on {
            ListenOn::Tcp(_) => TcpStream::from(fd).try_into(),
            ListenOn::Unix { .. } => UnixStream::from(fd).try_into(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenOn::Unix { path, .. } = &self.on
            && !self.socket.is_released()
        {
            // It may have been removed already.
            let _ = fs::remove_file(path);
        }
    }
}
