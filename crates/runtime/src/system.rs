//! Small system calls that the standard library does not offer.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ::drive::Nanos;

/// Turns the -1 of a system call into its errno.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one, which wakes a thread that polls it. Fails only if the counter is full, and then it is
/// readable anyway.
pub(crate) fn eventfd_add_one(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer holds the 8 bytes whose length is passed.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// The cores on which this process may run.
pub(crate) fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero `cpu_set_t` is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is valid for writes of its own size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return vec![0];
    }
    // SAFETY: the index is below the capacity of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Binds the calling thread to one core.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: an all-zero `cpu_set_t` is an empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the index is below the capacity of the set (checked above).
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `set` is valid for reads of its own size.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

/// Takes the file's lock for this open file, or fails with `WouldBlock`. Two opens of one file
/// conflict, even in one process. The lock is released with the last descriptor of the open file,
/// so also when the process is killed.
pub(crate) fn lock_exclusive(file: &File) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// A socket option whose value is a number.
pub(crate) fn socket_option(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are valid for writes, and the length is that of the value.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &mut len) };
    check(result).map(|_| value)
}

/// Processor time that the calling thread has used.
pub(crate) fn thread_cpu_time() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes of its own size. The clock of the own thread always
    // exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos
}

/// The user whose rights this process has.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: no memory is involved, and it always succeeds.
    unsafe { libc::geteuid() }
}

/// Writes a message that must not be lost although the process is about to end.
pub(crate) fn last_words(words: &str) {
    // An error of standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{words}");
}
