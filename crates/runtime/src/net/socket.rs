//! What listeners and streams share: a descriptor, its slot in the ring, and the way to interrupt it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};

use crate::files::Target;
use crate::op::OpKey;
use crate::shard::Shard;

/// Which operation of a socket: at most one of each is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    /// Accept or receive.
    In = 0,
    /// Send.
    Out = 1,
}

/// Closed when its last owner drops it. Operations in flight then belong to dropped futures, which cancelled them; the
/// kernel keeps its own reference to the file until they are complete.
pub(super) struct Socket {
    shard: Rc<Shard>,
    fd: OwnedFd,
    target: Target,
    closed: Cell<bool>,
    /// The latest operation of each side. It may be complete already: its key then names nothing any more.
    latest: [Cell<Option<OpKey>>; 2],
}

impl Socket {
    pub(super) fn new(shard: &Rc<Shard>, fd: OwnedFd) -> Rc<Socket> {
        let target = shard.attach_file(fd.as_raw_fd());
        Rc::new(Socket { shard: shard.clone(), fd, target, closed: Cell::new(false), latest: Default::default() })
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn started(&self, side: Side, key: OpKey) {
        self.latest[side as usize].set(Some(key));
    }

    /// Ends one direction, or both, for the other end too. What it says about a connection that is gone already is of
    /// no use.
    pub(super) fn shutdown(&self, how: libc::c_int) {
        // SAFETY: no memory is involved.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), how) };
    }

    fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.shutdown(libc::SHUT_RDWR);
        for latest in &self.latest {
            if let Some(key) = latest.take() {
                self.shard.cancel(key);
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.shard.detach_file(self.target);
    }
}

/// Interrupts a listener or a stream, from any task of its shard: whoever waits on it gets an error.
#[derive(Clone)]
pub struct Closer {
    socket: Weak<Socket>,
}

impl Closer {
    pub(super) fn new(socket: &Rc<Socket>) -> Closer {
        Closer { socket: Rc::downgrade(socket) }
    }

    /// Ends the socket, also for the other end. Operations that wait, and all later ones, fail with
    /// [`io::ErrorKind::ConnectionAborted`]. Does nothing if that has happened, or if the socket was dropped.
    pub fn close(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.close();
        }
    }
}

/// What operations on a socket return after [`Closer::close`].
pub(super) fn closed_here() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "closed on this side")
}

/// The operation may be tried again.
pub(super) fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}
