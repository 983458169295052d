//! The common part of listeners and streams: a descriptor, and the way to interrupt it.
//!
//! The descriptor is not registered with the ring, although that would save the kernel a look-up.
//! Up to Linux 6.12 a ring releases its registered files in the order in which they were removed
//! from its table. It releases none while an operation that began earlier waits on a registered
//! file. Sockets wait for as long as clients are silent, and a detached drive would stay claimed
//! for that time.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};

use io_uring::types::Fd;

use crate::op::OpKey;
use crate::shard::Shard;

/// The direction of an operation on a socket. At most one operation of each is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    /// Accept or receive.
    In = 0,
    /// Send.
    Out = 1,
}

/// The socket is closed when its last owner drops it. Operations in flight then belong to dropped
/// futures, which canceled them. The kernel keeps its own reference to the file until they are
/// complete.
pub(super) struct Socket {
    shard: Rc<Shard>,
    /// `None` only while the socket is dropped.
    fd: Option<OwnedFd>,
    closed: Cell<bool>,
    /// Closed here, but open in another process.
    released: Cell<bool>,
    /// The latest operation of each side. It may be complete already; its key is then no longer
    /// valid.
    latest: [Cell<Option<OpKey>>; 2],
}

impl Socket {
    pub(super) fn new(shard: &Rc<Shard>, fd: OwnedFd) -> Rc<Socket> {
        let [closed, released] = [false; 2].map(Cell::new);
        Rc::new(Socket { shard: shard.clone(), fd: Some(fd), closed, released, latest: Default::default() })
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The descriptor in the form that operations use.
    pub(super) fn target(&self) -> Fd {
        Fd(self.fd.as_ref().expect("taken only when the socket is dropped").as_raw_fd())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn is_released(&self) -> bool {
        self.released.get()
    }

    pub(super) fn started(&self, side: Side, key: OpKey) {
        self.latest[side as usize].set(Some(key));
    }

    /// Ends one direction, or both, for the other end too. The result is ignored: an error means
    /// that the connection is already gone.
    pub(super) fn shutdown(&self, how: libc::c_int) {
        // SAFETY: no memory is involved.
        unsafe { libc::shutdown(self.target().0, how) };
    }

    fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.shutdown(libc::SHUT_RDWR);
        self.interrupt();
    }

    /// Stops without a shutdown, which would affect every process that has the socket.
    fn release(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.released.set(true);
        self.interrupt();
    }

    fn interrupt(&self) {
        for latest in &self.latest {
            if let Some(key) = latest.take() {
                self.shard.cancel(key);
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.shard.close_later(fd);
        }
    }
}

/// Interrupts a listener or a stream, from any task of its shard. Tasks that wait on it get an
/// error.
#[derive(Clone)]
pub struct Closer {
    socket: Weak<Socket>,
}

impl Closer {
    pub(super) fn new(socket: &Rc<Socket>) -> Closer {
        Closer { socket: Rc::downgrade(socket) }
    }

    /// Ends the socket, also for the other end. Waiting operations, and all later ones, fail with
    /// [`io::ErrorKind::ConnectionAborted`]. Does nothing if the socket was closed or dropped.
    pub fn close(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.close();
        }
    }

    /// Stops using a listening socket that other processes have too. Connections wait for them, and
    /// a Unix socket's file stays. A task that accepts here gets the error of [`Closer::close`],
    /// after a connection that was already complete.
    pub fn release(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.release();
        }
    }
}

/// The error of operations on a socket after [`Closer::close`].
pub(super) fn closed_here() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "closed on this side")
}

/// Whether the operation may be tried again.
pub(super) fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}
