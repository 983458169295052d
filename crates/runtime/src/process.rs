//! Descriptors that this process inherits and passes on, limits of the process, and the program
//! that replaces it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use crate::system;

/// The first descriptor after standard input, output and error: `SD_LISTEN_FDS_START` of
/// sd_listen_fds(3).
const FIRST: RawFd = 3;

/// Raises the limit of open descriptors of this process to the maximum. Shells set 1024 at first,
/// for programs that use `select`. Returns the new limit.
///
/// # Errors
/// The system refuses.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = limit_of(libc::RLIMIT_NOFILE)?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call only reads it.
    system::check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_max)
}

fn limit_of(resource: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes to it.
    system::check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok(limit)
}

/// Prevents a deadlock of this process with itself while memory is short: the kernel may be about
/// to write to the block devices that it serves, or to swap to them.
///
/// From now on none of its memory is swapped out. Pages that were touched stay resident
/// (`MCL_ONFAULT` of mlockall(2)), and untouched pages take no memory. When the kernel reclaims
/// memory for this thread, or for threads that it starts later, it waits for no file system and no
/// block device (`PR_SET_IO_FLUSHER` of prctl(2)).
///
/// # Errors
/// The system refuses: locking needs `CAP_IPC_LOCK` or no limit to locked memory, and the flusher
/// mode needs `CAP_SYS_RESOURCE`. Both are tried, and the first error is returned.
pub fn take_memory_without_io() -> io::Result<()> {
    // SAFETY: no memory is involved.
    let flusher = system::check(unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) });
    // If there is a limit, later mappings could be refused.
    let locked = if may_lock_everything()? {
        // SAFETY: no memory changes.
        system::check(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) })
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    };
    flusher.and(locked).map(drop)
}

/// From `linux/prctl.h`, since Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Whether this process can lock memory without a limit.
fn may_lock_everything() -> io::Result<bool> {
    Ok(limit_of(libc::RLIMIT_MEMLOCK)?.rlim_cur == libc::RLIM_INFINITY || has_capability(CAP_IPC_LOCK)?)
}

/// The number of the capability, of capabilities(7). A process that has it has no limit to locked
/// memory.
const CAP_IPC_LOCK: u32 = 14;

/// Whether this process has a capability, as proc_pid_status(5) says.
fn has_capability(number: u32) -> io::Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    Ok(effective.is_some_and(|mask| mask >> number & 1 == 1))
}

/// Takes `count` inherited descriptors of this process: 3, 4, .... An element is `None` if the
/// descriptor was not passed. Programs that are executed later do not get them.
///
/// All files that this process opens itself have the close-on-exec flag. A descriptor without it
/// was inherited, and no other code here owns it. A second call finds no descriptors.
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
        // SAFETY: the descriptor is open. Until now it had no close-on-exec flag, so it was
        // inherited, and no other code here owns it.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    (0..count).map(take).collect()
}

/// Executes a program in place of this process, with `descriptors` as its descriptors 3, 4, .... It
/// returns only on failure, and then this process has not changed.
pub fn replace_process(mut command: Command, descriptors: &[BorrowedFd<'_>]) -> io::Error {
    // The descriptors 3, 4, ... are in use in this process, and must not change if the program
    // cannot be executed. So a thread with its own descriptor table overwrites them. If the program
    // is executed, the other threads end and this table stays.
    let replace = move || {
        let low = |index: usize| FIRST + index as RawFd;
        // SAFETY: no memory is involved. Only this thread, which ends soon, uses the other table
        // from here on.
        let unshared = system::check(unsafe { libc::unshare(libc::CLONE_FILES) });
        let lifted = unshared.and_then(|_| {
            // First move the descriptors up: one of them may itself be a low one.
            let lift = |fd: &BorrowedFd<'_>| {
                let behind = low(descriptors.len());
                // SAFETY: no memory is involved.
                system::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, behind) })
            };
            descriptors.iter().map(lift).collect::<io::Result<Vec<RawFd>>>()
        });
        let placed = lifted.and_then(|lifted| {
            for (index, fd) in lifted.into_iter().enumerate() {
                // The copy has no close-on-exec flag.
                // SAFETY: no memory is involved. The descriptor that it closes is this thread's own
                // copy.
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

/// Microseconds of `CLOCK_MONOTONIC`, the time since the start of the machine. It is the same for
/// all processes.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for writes. This clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// While it exists, SIGTERM and SIGINT end the process at once, as in a program that has just been
/// executed. Afterwards the earlier signal actions apply again.
pub struct DefaultSignals([(libc::c_int, libc::sigaction); 2]);

impl DefaultSignals {
    /// Sets the default actions from now on.
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
            // SAFETY: the action was set before, and its handler lives as long as the process.
            unsafe { libc::sigaction(*signal, before, ptr::null_mut()) };
        }
    }
}
