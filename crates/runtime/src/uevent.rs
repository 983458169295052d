//! Events of the kernel about devices that are added and removed: its uevents, as it sends them to
//! all listeners (netlink(7), `NETLINK_KOBJECT_UEVENT`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::system;

/// The multicast group of the kernel. Programs use other groups to notify each other.
const KERNEL_GROUP: u32 = 1;

/// Receive buffer of the socket: a machine with many drives sends many events at once.
const RECEIVE_BYTES: libc::c_int = 1 << 20;

/// Every event fits in this size: the kernel's own buffer has 2 KiB (`UEVENT_BUFFER_SIZE` of
/// linux/kobject.h), and the path of the device comes before it.
pub const UEVENT_BYTES_MAX: usize = 8192;

/// A socket on which the kernel's uevents arrive. It never blocks.
#[derive(Debug)]
pub struct UeventSocket(OwnedFd);

impl UeventSocket {
    /// Receives events from now on. Needs no privileges.
    ///
    /// # Errors
    /// Errors of the system, for example if there is no netlink.
    pub fn open() -> io::Result<UeventSocket> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved.
        let fd = system::check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) })?;
        // SAFETY: the kernel has just given us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let value = RECEIVE_BYTES;
        // SAFETY: the option reads one `int`. If this is refused, a smaller buffer loses events
        // sooner, and the loss is noticed.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUF,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
        let mut address = empty_address();
        address.nl_groups = KERNEL_GROUP;
        // SAFETY: the address is valid for reads of the length given.
        system::check(unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_nl>() as libc::socklen_t)
        })?;
        Ok(UeventSocket(fd))
    }

    /// Receives the next event into `buf`, which has [`UEVENT_BYTES_MAX`] bytes, and returns its
    /// length. 0 if the event is not from the kernel, or is empty.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; `ENOBUFS` if some were lost.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut from = empty_address();
        let mut from_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: buffer and address are valid for writes of the lengths given.
        let received = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                buf.as_mut_ptr().cast(),
                buf.len(),
                0,
                (&raw mut from).cast(),
                &raw mut from_len,
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // Programs with privileges may send to the group too; their port is not 0.
        Ok(if from.nl_pid == 0 { received } else { 0 })
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for UeventSocket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

fn empty_address() -> libc::sockaddr_nl {
    // SAFETY: all zero is a value of the type.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address
}
