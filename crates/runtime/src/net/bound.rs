//! Listening sockets that no shard serves yet: bound here, or passed by another process.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::system;

/// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: libc::c_int = 1024;

/// The address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenOn {
    /// A TCP address. Port 0 selects a free one.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix {
        /// Its file.
        path: PathBuf,
        /// The permissions of the file, as in 0o660.
        mode: u32,
    },
}

/// A listening socket that belongs to no shard. It can become a [`Listener`](crate::Listener), or a
/// listener of another kind. The file of a Unix socket stays when this value is dropped.
#[derive(Debug)]
pub struct Bound {
    fd: OwnedFd,
    on: ListenOn,
}

impl Bound {
    /// Starts to listen. A socket file that a dead process left is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another process answers there or the file is no socket; and
    /// errors of the system: the address is not of this machine, or needs privileges.
    pub fn new(on: ListenOn) -> io::Result<Bound> {
        let bound = match on {
            ListenOn::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let on = ListenOn::Tcp(listener.local_addr()?);
                Bound { fd: listener.into(), on }
            }
            ListenOn::Unix { path, mode } => {
                remove_stale_socket(&path)?;
                let fd = unix_socket(&path, mode)?;
                // The umask may have removed permissions; it cannot have added any.
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                Bound { fd, on: ListenOn::Unix { path, mode } }
            }
        };
        bound.listen()?;
        Ok(bound)
    }

    /// Takes over a socket that another process bound. Its state becomes the same as after
    /// [`Bound::new`]: its backlog, its blocking mode, and owner and permissions of a Unix socket's
    /// file. The caller must know that the file is still the one that was bound.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is no stream socket with this address (any port, if
    /// port 0 is requested), or if there is no socket file; and errors of the system. The
    /// descriptor is then closed.
    pub fn given(fd: OwnedFd, on: ListenOn) -> io::Result<Bound> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if system::socket_option(fd.as_fd(), libc::SO_TYPE)? != libc::SOCK_STREAM {
            return wrong("it is no stream socket");
        }
        let bound = match on {
            ListenOn::Tcp(wanted) => {
                let listener = TcpListener::from(fd);
                let address = listener.local_addr()?;
                if address.ip() != wanted.ip() || (wanted.port() != 0 && address.port() != wanted.port()) {
                    return wrong("it has another address");
                }
                listener.set_nonblocking(false)?;
                Bound { fd: listener.into(), on: ListenOn::Tcp(address) }
            }
            ListenOn::Unix { path, mode } => {
                let listener = UnixListener::from(fd);
                if listener.local_addr()?.as_pathname() != Some(&path) {
                    return wrong("it has another address");
                }
                listener.set_nonblocking(false)?;
                own_socket_file(&path, mode)?;
                Bound { fd: listener.into(), on: ListenOn::Unix { path, mode } }
            }
        };
        // This also fails for a connected socket.
        bound.listen()?;
        Ok(bound)
    }

    /// The address on which it listens. If port 0 was requested, it has the selected port.
    pub fn on(&self) -> &ListenOn {
        &self.on
    }

    pub(super) fn into_parts(self) -> (OwnedFd, ListenOn) {
        (self.fd, self.on)
    }

    fn listen(&self) -> io::Result<()> {
        // SAFETY: no memory is involved.
        system::check(unsafe { libc::listen(self.fd.as_raw_fd(), BACKLOG) }).map(drop)
    }
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Bound> for OwnedFd {
    fn from(bound: Bound) -> OwnedFd {
        bound.fd
    }
}

/// Gives a socket file the owner and the permissions of a newly created one.
fn own_socket_file(path: &Path, mode: u32) -> io::Result<()> {
    let there = fs::symlink_metadata(path)?;
    if !there.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its file is gone"));
    }
    let user = system::effective_user();
    if there.uid() != user {
        std::os::unix::fs::lchown(path, Some(user), None)?;
    }
    if there.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Removes a socket file if no process listens on it.
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
    // One byte is for the terminator.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket, or holds a zero"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: no memory is involved.
    let fd = system::check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just created this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Linux creates the file with the mode of the socket, less the umask. So there is no moment in
    // which other users may connect. SAFETY: no memory is involved.
    system::check(unsafe { libc::fchmod(fd.as_raw_fd(), mode as libc::mode_t) })?;
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is valid for reads of the length passed, and terminated within it.
    system::check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd)
}
