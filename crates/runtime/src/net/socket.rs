//! What listeners and streams share: a descriptor, and the way to interrupt it.
//!
//! The descriptor is not registered with the ring, although that would spare the kernel a look-up:
//! up to Linux 6.12 a ring lets go of its registered files in the order in which they were taken
//! out of its table, and of none while an operation that began before waits on a registered file.
//! Sockets wait for as long as clients are silent, and a drive that was let go would stay claimed
//! as long.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};

use io_uring::types::Fd;

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

/// Closed when its last owner drops it. Operations in flight then belong to dropped futures, which
/// cancelled them; the kernel keeps its own reference to the file until they are complete.
pub(super) struct Socket {
    shard: Rc<Shard>,
    /// There until the socket is dropped.
    fd: Option<OwnedFd>,
    closed: Cell<bool>,
    /// Closed here, and open in other hands.
    let_go: Cell<bool>,
    /// The latest operation of each side. It may be complete already: its key then names nothing
    /// any more.
    latest: [Cell<Option<OpKey>>; 2],
}

impl Socket {
    pub(super) fn new(shard: &Rc<Shard>, fd: OwnedFd) -> Rc<Socket> {
        let [closed, let_go] = [false; 2].map(Cell::new);
        Rc::new(Socket { shard: shard.clone(), fd: Some(fd), closed, let_go, latest: Default::default() })
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The descriptor, as operations name it.
    pub(super) fn target(&self) -> Fd {
        Fd(self.fd.as_ref().expect("taken only when the socket is dropped").as_raw_fd())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn is_let_go(&self) -> bool {
        self.let_go.get()
    }

    pub(super) fn started(&self, side: Side, key: OpKey) {
        self.latest[side as usize].set(Some(key));
    }

    /// Ends one direction, or both, for the other end too. What it says about a connection that is
    /// gone already is of no use.
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

    /// Without a shutdown, which every process that has the socket would feel.
    fn let_go(&self) {
        if self.closed.replace(true) {
            return;
        }
        self.let_go.set(true);
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

/// Interrupts a listener or a stream, from any task of its shard: whoever waits on it gets an
/// error.
#[derive(Clone)]
pub struct Closer {
    socket: Weak<Socket>,
}

impl Closer {
    pub(super) fn new(socket: &Rc<Socket>) -> Closer {
        Closer { socket: Rc::downgrade(socket) }
    }

    /// Ends the socket, also for the other end. Operations that wait, and all later ones, fail with
    /// [`io::ErrorKind::ConnectionAborted`]. Does nothing if that has happened, or if the socket
    /// was dropped.
    pub fn close(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.close();
        }
    }

    /// Stops using a listening socket, which others have too: connections wait for them, and a Unix
    /// socket's file stays. Whoever accepts here gets the error of [`Closer::close`], after a
    /// connection that was complete already.
    pub fn let_go(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.let_go();
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
