//! Waiting for connections.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;
use std::rc::Rc;

use io_uring::opcode;

use super::socket::{Closer, Side, Socket, closed_here, is_transient};
use crate::env::ShardEnv;
use crate::files::on_target;
use crate::op::Payload;
use crate::system;

/// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: libc::c_int = 1024;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// An address.
    Tcp(SocketAddr),
    /// Some process of this machine.
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

/// A connection that is not yet bound to a shard: make it a [`Stream`](crate::Stream) on the shard that shall serve it.
#[derive(Debug)]
pub struct Incoming {
    pub(super) fd: OwnedFd,
    /// The other end.
    pub peer: Peer,
}

impl TryFrom<TcpStream> for Incoming {
    type Error = io::Error;

    /// Sets `TCP_NODELAY`: whoever gathers its responses itself has no use for Nagle's algorithm.
    fn try_from(stream: TcpStream) -> io::Result<Incoming> {
        let peer = Peer::Tcp(stream.peer_addr()?);
        stream.set_nodelay(true)?;
        // A descriptor that does not block would make the ring answer EAGAIN instead of waiting.
        stream.set_nonblocking(false)?;
        Ok(Incoming { fd: stream.into(), peer })
    }
}

impl TryFrom<UnixStream> for Incoming {
    type Error = io::Error;

    fn try_from(stream: UnixStream) -> io::Result<Incoming> {
        stream.set_nonblocking(false)?;
        Ok(Incoming { fd: stream.into(), peer: Peer::Unix })
    }
}

/// A listening socket of one shard.
pub struct Listener {
    socket: Rc<Socket>,
    place: Place,
}

enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listener {
    /// Listens on a TCP address; port 0 takes a free one ([`Listener::local_addr`] says which).
    ///
    /// # Errors
    /// What the system says: the address is in use, not of this machine, or needs privileges.
    pub fn bind_tcp(env: &ShardEnv, address: SocketAddr) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        // The standard library asks for a shorter queue.
        // SAFETY: no memory is involved.
        system::check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) })?;
        Ok(Listener { socket: Socket::new(env.shard(), listener.into()), place: Place::Tcp(address) })
    }

    /// Listens on a Unix socket, whose file gets the permissions `mode` (as in 0o660). A socket file that a dead
    /// process left is replaced; the file is removed when the listener is dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if something answers there or the file is no socket, and what the system says.
    pub fn bind_unix(env: &ShardEnv, path: &Path, mode: u32) -> io::Result<Listener> {
        remove_stale_socket(path)?;
        let fd = unix_socket(path, mode)?;
        // The umask may have taken permissions away; it cannot have given any.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        // SAFETY: no memory is involved.
        system::check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })?;
        Ok(Listener { socket: Socket::new(env.shard(), fd), place: Place::Unix(path.to_path_buf()) })
    }

    /// The address of a TCP listener.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        }
    }

    /// Interrupts [`Listener::accept`].
    pub fn closer(&self) -> Closer {
        Closer::new(&self.socket)
    }

    /// Waits for a connection. TCP connections come with `TCP_NODELAY`. Dropping the future loses no connection that
    /// was not complete yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] after [`Closer::close`]. Others may pass, for example too many open files:
    /// wait a little and try again.
    pub async fn accept(&self) -> io::Result<Incoming> {
        loop {
            if self.socket.is_closed() {
                return Err(closed_here());
            }
            let entry =
                on_target!(self.socket.target(), |fd| opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build());
            // SAFETY: the entry's pointers are null.
            let operation = unsafe { self.socket.shard().start(entry, Payload::NewFd) }.cancelable();
            self.socket.started(Side::In, operation.key());
            let result = operation.await.result;
            if result >= 0 {
                // SAFETY: the kernel made this descriptor for us just now.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                match self.incoming(fd) {
                    Ok(incoming) => return Ok(incoming),
                    // The client was gone before we looked at it.
                    Err(error) => tracing::debug!(%error, "a connection ended before it began"),
                }
            } else if !self.socket.is_closed() && !is_transient(result) && -result != libc::ECONNABORTED {
                return Err(io::Error::from_raw_os_error(-result));
            }
        }
    }

    fn incoming(&self, fd: OwnedFd) -> io::Result<Incoming> {
        match self.place {
            Place::Tcp(_) => TcpStream::from(fd).try_into(),
            Place::Unix(_) => UnixStream::from(fd).try_into(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Place::Unix(path) = &self.place {
            // Somebody may have removed it before.
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes a socket file behind which nobody listens.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "the path exists and is no socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

/// A bound Unix socket whose file never had more permissions than `mode`.
fn unix_socket(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero address is a value of the type.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays for the terminator.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket, or holds a zero"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: no memory is involved.
    let fd = system::check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel made this descriptor for us just now.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Linux makes the file with the mode of the socket, less the umask: no moment in which others may connect.
    // SAFETY: no memory is involved.
    system::check(unsafe { libc::fchmod(fd.as_raw_fd(), mode as libc::mode_t) })?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for reads of the length passed, and terminated within it.
    system::check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd)
}
