//! What crosses the border of the process: descriptors that it is given and gives, and the program
//! that takes its place.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use crate::system;

/// The first descriptor behind standard input, output and error: `SD_LISTEN_FDS_START` of
/// sd_listen_fds(3).
const FIRST: RawFd = 3;

/// Lets this process open as many descriptors as it may: what shells give it at first, 1024, is for
/// programs that use `select`. Gives how many those are.
///
/// # Errors
/// The system says no.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = limit_of(libc::RLIMIT_NOFILE)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: it is read from.
    system::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_max)
}

fn limit_of(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it is written to.
    system::check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok(limit)
}

/// What keeps this process from waiting for itself while memory is short: the kernel may be about
/// to write to the block devices that it serves, or to swap to them.
///
/// From now on nothing of its memory is swapped out: pages that were touched stay (`MCL_ONFAULT` of
/// mlockall(2)), those that were not take none. And when the kernel looks for memory for this
/// thread, or for one that this thread starts later, it waits for no file system and no block
/// device (`PR_SET_IO_FLUSHER` of prctl(2)).
///
/// # Errors
/// The system says no: the first asks for `CAP_IPC_LOCK` or no limit to locked memory, the second
/// for `CAP_SYS_RESOURCE`. Each is tried, and the first refusal told.
pub fn take_memory_without_io() -> io::Result<()> {
    // SAFETY: no memory is involved.
    let flusher = system::check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) });
    // With a limit, what is mapped later could be refused.
    let locked = if may_lock_everything()? {
        // SAFETY: no memory changes.
        system::check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    };
    flusher.and(locked).map(drop)
}

/// Of `linux/prctl.h`, since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Whether there is no limit to what this process may lock.
fn may_lock_everything() -> io::Result<bool> {
    Ok(limit_of(libc::RLIMIT_MEMLOCK)?.rlim_cur == libc::RLIM_INFINITY || has_capability(CAP_IPC_LOCK)?)
}

/// The number of the capability, of capabilities(7): no limit to locked memory holds for whoever
/// has it.
const CAP_IPC_LOCK: u32 = 14;

/// Whether this process has a capability, as proc_pid_status(5) says.
fn has_capability(number: u32) -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    Ok(effective.is_some_and(|mask| mask >> number & 1 == 1))
}

/// Has memory that was allocated in large blocks go back to the system when it is freed.
///
/// glibc maps such blocks apart. But it raises what it takes for large to the largest block that
/// was freed, up to 32 MiB (`M_MMAP_THRESHOLD` of mallopt(3)), and what is smaller stays with the
/// heap of its thread: locked memory cannot be given back from within a heap. What a group of many
/// terabytes takes for a moment when it is made would be resident from then on, on a thread that
/// may never need it again.
pub fn give_back_large_memory() {
    // SAFETY: it changes how later allocations are made, and none that was.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES) };
    debug_assert_eq!(set, 1, "the allocator knows the option");
}

/// What is allocated for requests is smaller, or comes from the arena: to map and to unmap it would
/// take longer than its use.
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Takes the descriptors 3, 4, ... that this process was started with, `count` of them; `None` for
/// one that was not. From now on no further program gets them.
///
/// Whatever this process opens itself is closed when another program is executed, so what lacks
/// that mark was inherited, and is owned by nobody else here. A second call finds nothing.
pub fn inherited(count: usize) -> Vec<Option<OwnedFd>> {
    let take = |index: usize| {
        let fd = RawFd::try_from(index).ok()?.checked_add(FIRST)?;
        // SAFETY: no memory is involved.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            return None;
        }
        // SAFETY: no memory is involved.
        system::check(unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) }).ok()?;
        // SAFETY: the descriptor is open, and without the mark that it had until now it was
        // inherited: nobody owns it here.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    (0..count).map(take).collect()
}

/// Executes a program in the place of this process, with `descriptors` as its 3, 4, .... Returns
/// only if that fails, and then nothing has changed here.
pub fn replace_process(mut command: Command, descriptors: &[BorrowedFd<'_>]) -> io::Error {
    // The descriptors 3, 4, ... are in use here, and must not change if the program cannot be
    // executed. A thread with a table of its own may overwrite them: if the program is executed,
    // the other threads end and this table is the one that stays.
    let replace = move || {
        let low = |index: usize| FIRST + index as RawFd;
        // SAFETY: no memory is involved; only this thread, which ends soon, sees another table from
        // here on.
        let unshared = system::check(unsafe { libc::unshare(libc::CLONE_FILES) });
        let lifted = unshared.and_then(|_| {
            // Out of the way first: a descriptor may itself be one of the low ones.
            let lift = |fd: &BorrowedFd<'_>| {
                let behind = low(descriptors.len());
                // SAFETY: no memory is involved.
                system::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, behind) })
            };
            descriptors.iter().map(lift).collect::<io::Result<Vec<RawFd>>>()
        });
        let placed = lifted.and_then(|lifted| {
            for (index, fd) in lifted.into_iter().enumerate() {
                // Clears the mark that would close it.
                // SAFETY: no memory is involved. What it closes is this thread's own copy.
                system::check(unsafe { libc::dup2(fd, low(index)) })?;
            }
            Ok(())
        });
        match placed {
            Ok(()) => command.exec(),
            Err(error) => error,
        }
    };
    std::thread::scope(|scope| match std::thread::Builder::new().name("exec".to_owned()).spawn_scoped(scope, replace) {
        Ok(thread) => thread.join().unwrap_or_else(|_| io::Error::other("the thread broke down")),
        Err(error) => error,
    })
}

/// Sends a message with a descriptor over a connected Unix datagram socket (`SCM_RIGHTS` of
/// unix(7)).
///
/// # Errors
/// What the system says.
pub fn send_with_descriptor(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // u64 for the alignment of `cmsghdr`; two headers' worth is more than one with a descriptor
    // takes.
    let mut control = [0u64; 2 * size_of::<libc::cmsghdr>() / size_of::<u64>()];
    let payload = size_of::<RawFd>() as libc::c_uint;
    // SAFETY: pure arithmetic.
    let (space, len) = unsafe { (libc::CMSG_SPACE(payload), libc::CMSG_LEN(payload)) };
    assert!(space as usize <= size_of_val(&control), "the header fits");
    // SAFETY: an all-zero message header is a value of the type.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = space as _;
    // SAFETY: the control buffer is valid for the length set above, which has room for one header
    // with one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = len as _;
        ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), descriptor.as_raw_fd());
    }
    // SAFETY: the header points to buffers that live and are valid for the lengths given.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Microseconds of `CLOCK_MONOTONIC`: the same for all processes of this machine since it started.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for writes. This clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// SIGTERM and SIGINT end the process at once while this lives, as they do in a program that has
/// just been executed. What was done about them before is done again afterwards.
pub struct DefaultSignals([(libc::c_int, libc::sigaction); 2]);

impl DefaultSignals {
    /// From now on.
    pub fn set() -> DefaultSignals {
        DefaultSignals([libc::SIGTERM, libc::SIGINT].map(|signal| {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: all zero is a value of the type: the default action (`SIG_DFL` is 0), no
            // flags, an empty mask. The old action is valid for writes. These signals exist.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, before.as_mut_ptr());
            }
            // SAFETY: it was all zero, which is a value, and maybe written since.
            (signal, unsafe { before.assume_init() })
        }))
    }
}

impl Drop for DefaultSignals {
    fn drop(&mut self) {
        for (signal, before) in &self.0 {
            // SAFETY: the action is one that was set before, whose handler lives as long as the
            // process.
            unsafe { libc::sigaction(*signal, before, ptr::null_mut()) };
        }
    }
}
