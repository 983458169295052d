//! Setting a ring up, and one enter.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};

use crate::arena::Arena;

/// `user_data` of operations whose completion means nothing.
pub(crate) const IGNORED: u64 = u64::MAX;
/// `user_data` of the poll on the bell.
pub(crate) const BELL: u64 = u64::MAX - 1;

/// `IORING_ENTER_GETEVENTS`: run deferred work and post its completions.
const GET_EVENTS: u32 = 1;

pub(crate) struct Ring {
    uring: IoUring,
    /// Entries for which the submission queue had no room and the kernel took none.
    backlog: VecDeque<squeue::Entry>,
    /// Entries that were submitted before the end of a turn, to be counted with it.
    early: usize,
}

impl Ring {
    /// Must be called on the thread that will use it: the kernel takes the first one to enter as the only one.
    pub(crate) fn new(entries: u32) -> io::Result<Ring> {
        let uring = IoUring::builder()
            // Completions are posted when we ask for them, not by interrupting the thread.
            .setup_single_issuer()
            .setup_defer_taskrun()
            // Says without a system call whether asking is worth it.
            .setup_taskrun_flag()
            // A refused entry does not keep back the ones behind it.
            .setup_submit_all()
            // Completions outnumber the entries of one turn: drives at queue depth, sockets, bells.
            .setup_cqsize(entries * 4)
            .setup_clamp()
            .build(entries)?;
        Ok(Ring { uring, backlog: VecDeque::new(), early: 0 })
    }

    pub(crate) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.uring.submitter()
    }

    /// Registers the arena, or says why not.
    pub(crate) fn register_arena(&self, arena: &'static Arena) -> io::Result<()> {
        // SAFETY: the arena's memory is never unmapped (it is 'static), and is only handed out as `BufMut`.
        unsafe { self.uring.submitter().register_buffers(&arena.io_vectors()) }
    }

    /// Queues an entry for the next enter.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion was reaped.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            // Full: the turn is larger than the queue. What the kernel does not take now waits in the backlog.
            match self.uring.submitter().submit() {
                Ok(submitted) => self.early += submitted,
                Err(error) => tracing::debug!(%error, "submission was put off"),
            }
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Moves the backlog into the queue as far as there is room.
    fn refill(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: promised when the entry was pushed.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// An enter would do something: entries wait, or the kernel has completions to post.
    pub(crate) fn wants_enter(&mut self) -> bool {
        let queue = self.uring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow() || !self.backlog.is_empty()
    }

    /// Whether completions wait, posted or to be posted. No system call.
    pub(crate) fn has_completions(&mut self) -> bool {
        if self.uring.submission().taskrun() {
            return true;
        }
        !self.uring.completion().is_empty()
    }

    /// Submits everything and posts what is complete. Does not wait. Returns how many entries the kernel took.
    pub(crate) fn enter(&mut self) -> io::Result<usize> {
        self.refill();
        let count = self.uring.submission().len() as u32;
        // SAFETY: no argument is passed, and the entries were pushed under `push`'s promise.
        let submitted = unsafe { self.uring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) }?;
        Ok(submitted + std::mem::take(&mut self.early))
    }

    /// Submits everything and waits until something completes, at most `limit`.
    pub(crate) fn enter_and_wait(&mut self, limit: Option<Duration>) -> io::Result<usize> {
        self.refill();
        let timespec = limit.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let submitted = self.uring.submitter().submit_with_args(1, &args)?;
        Ok(submitted + std::mem::take(&mut self.early))
    }

    /// Takes a batch of completions.
    pub(crate) fn reap(&mut self, batch: &mut Vec<cqueue::Entry>) {
        batch.extend(self.uring.completion());
    }
}
