//! Outgoing connections.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ::drive::{BufMut, Segments};
use io_uring::{opcode, types::Fd};

use super::listener::Incoming;
use super::socket::is_transient;
use super::stream::Stream;
use crate::env::ShardEnv;
use crate::op::Payload;

impl Stream {
    /// Connects to an address, with `TCP_NODELAY`. Dropping the future cancels the attempt.
    ///
    /// # Errors
    /// Errors of the system, such as [`io::ErrorKind::ConnectionRefused`].
    pub async fn connect(env: &ShardEnv, address: SocketAddr) -> io::Result<Stream> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this descriptor for us.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let to = BufMut::copy_of(&encoded(address)).freeze();
        loop {
            let (start, len) = (to.as_ptr().cast::<libc::sockaddr>(), to.len() as libc::socklen_t);
            let entry = opcode::Connect::new(Fd(socket.as_raw_fd()), start, len).build();
            let payload = Payload::Drain(Segments::from_iter([to.clone()]), Vec::new());
            // SAFETY: the entry points into the address, which the payload owns. Its length is the
            // one that its family requires.
            let result = unsafe { env.shard().start(entry, payload) }.cancelable().await.result;
            match -result {
                // An interrupted attempt may have succeeded meanwhile.
                ..=0 | libc::EISCONN => break,
                _ if is_transient(result) => {}
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        let incoming = Incoming::try_from(TcpStream::from(socket))?;
        Ok(Stream::new(env, incoming))
    }
}

/// `sockaddr_in` or `sockaddr_in6` in the layout of the kernel.
fn encoded(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of::<libc::sockaddr_in6>());
    match address {
        SocketAddr::V4(address) => {
            bytes.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes.extend_from_slice(&address.port().to_be_bytes());
            bytes.extend_from_slice(&address.ip().octets());
            bytes.resize(size_of::<libc::sockaddr_in>(), 0);
        }
        SocketAddr::V6(address) => {
            bytes.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes.extend_from_slice(&address.port().to_be_bytes());
            bytes.extend_from_slice(&address.flowinfo().to_be_bytes());
            bytes.extend_from_slice(&address.ip().octets());
            bytes.extend_from_slice(&address.scope_id().to_ne_bytes());
            assert_eq!(bytes.len(), size_of::<libc::sockaddr_in6>());
        }
    }
    bytes
}
