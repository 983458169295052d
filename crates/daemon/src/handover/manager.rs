//! The service manager: the daemon tells it its state (sd_notify(3)), and it keeps sockets across a
//! restart.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

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
    pub fn notify(&self, lines: &str) {
        if let Err(error) = self.0.send(lines.as_bytes()) {
            tracing::warn!(%error, "the service manager does not take a message");
        }
    }

    /// Has the service manager keep a socket across a restart.
    pub fn store(&self, name: &str, socket: BorrowedFd<'_>) {
        let message = format!("FDSTORE=1\nFDNAME={name}");
        let (mut space, sockets) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [socket]);
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = control.push(SendAncillaryMessage::ScmRights(&sockets));
        assert!(fits, "the space is for one descriptor");
        if let Err(error) = sendmsg(&self.0, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::NOSIGNAL) {
            tracing::warn!(name, %error, "the service manager does not take a socket: a restart binds it anew");
        }
    }

    /// Has the service manager close a socket.
    pub fn remove(&self, name: &str) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn received(manager: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let len = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    #[test]
    fn a_service_manager_at_a_path_or_an_abstract_name_gets_messages_and_sockets() {
        let name = format!("purlin-manager-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (receiver, address) in [(at_path, path.as_os_str()), (at_name, OsStr::new(&format!("@{name}")))] {
            let manager = Manager::connect(address).unwrap();
            manager.notify("READY=1");
            assert_eq!(received(&receiver), "READY=1");
            let (mut kept, sent) = UnixStream::pair().unwrap();
            manager.store("api", sent.as_fd());
            drop(sent);
            kept.set_nonblocking(true).unwrap();
            let error = kept.read(&mut [0]).expect_err("the message has the other end");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(received(&receiver), "FDSTORE=1\nFDNAME=api");
            // The message was received without space for the socket, which was closed.
            assert_eq!(kept.read(&mut [0]).unwrap(), 0);
            manager.remove("api");
            assert_eq!(received(&receiver), "FDSTOREREMOVE=1\nFDNAME=api");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Manager::connect(OsStr::new("vsock:2:1")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
