//! The service manager: it is told how the daemon is (sd_notify(3)), and keeps sockets over a
//! restart.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use runtime::send_with_descriptor;

/// Where the service manager takes messages.
pub(super) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// A service manager that wants to be told.
#[derive(Debug)]
pub(super) struct Manager(UnixDatagram);

impl Manager {
    /// The service manager behind an address: a path, or with `@` in front an abstract name.
    ///
    /// # Errors
    /// Where nobody takes messages there, or the address is of another kind.
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

    /// Sends assignments, one a line.
    pub fn tell(&self, lines: &str) {
        if let Err(error) = self.0.send(lines.as_bytes()) {
            tracing::warn!(%error, "the service manager does not take a message");
        }
    }

    /// Has a socket kept over a restart.
    pub fn store(&self, name: &str, socket: BorrowedFd<'_>) {
        let message = format!("FDSTORE=1\nFDNAME={name}");
        if let Err(error) = send_with_descriptor(self.0.as_fd(), message.as_bytes(), socket) {
            tracing::warn!(name, %error, "the service manager does not take a socket: a restart binds it anew");
        }
    }

    /// Has it closed.
    pub fn remove(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}
