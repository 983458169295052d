//! The service manager: the daemon tells it its state (sd_notify(3)), and it keeps sockets across a
//! restart.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use runtime::send_with_descriptor;

/// The variable with the address to which the service manager's messages go.
pub(super) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// A connection to the service manager.
#[derive(Debug)]
pub(super) struct Manager(UnixDatagram);

impl Manager {
    /// Connects to the service manager at an address: a path, or an abstract name after `@`.
    ///
    /// # Errors
    /// If no process receives messages there, or the address is of another kind.
    pub fn connect(address: &OsStr) -> io::Result<Manager> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Manager(socket))
    }

    /// Sends assignments, one per line.
    pub fn tell(&self, lines: &str) {
        if let Err(error) = self.0.send(lines.as_bytes()) {
            tracing::warn!(%error, "the service manager does not take a message");
        }
    }

    /// Has the service manager keep a socket across a restart.
    pub fn store(&self, name: &str, socket: BorrowedFd<'_>) {
        let message = format!("FDSTORE=1\nFDNAME={name}");
        if let Err(error) = send_with_descriptor(self.0.as_fd(), message.as_bytes(), socket) {
            tracing::warn!(name, %error, "the service manager does not take a socket: a restart binds it anew");
        }
    }

    /// Has the service manager close a socket.
    pub fn remove(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}
