//! Setup of a ring, and the enter system call.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, squeue};

/// `user_data` of operations whose completion is ignored.
pub(crate) const IGNORED: u64 = u64::MAX;
/// `user_data` of the poll on the doorbell.
pub(crate) const DOORBELL: u64 = u64::MAX - 1;

/// `IORING_ENTER_GETEVENTS`: run deferred work and post its completions.
const GET_EVENTS: u32 = 1;

/// A ring in one of its two forms. Only NVMe commands need the big form.
pub(crate) enum Ring {
    /// Entries of 64 bytes and completions of 16.
    Plain(Queues<squeue::Entry, cqueue::Entry>),
    /// Entries of 128 bytes and completions of 32. The kernel requires them for NVMe commands.
    Big(Queues<squeue::Entry128, cqueue::Entry32>),
}

/// The queues of a ring, with entries of form `S` and completions of form `C`.
pub(crate) struct Queues<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    uring: IoUring<S, C>,
    /// Entries for which the submission queue had no room and that the kernel did not take.
    backlog: VecDeque<S>,
    /// Entries that were submitted before the end of a turn. They are counted at its end.
    early: usize,
}

/// Runs the same expression on the queues of either form.
macro_rules! on_queues {
    ($ring:expr, |$queues:ident| $body:expr) => {
        match $ring {
            Ring::Plain($queues) => $body,
            Ring::Big($queues) => $body,
        }
    };
}

impl Ring {
    /// Must be called on the thread that will use the ring: the kernel allows only the first thread
    /// that enters it. A `big` ring also supports [`Ring::push_big`].
    pub(crate) fn new(entries: u32, big: bool) -> io::Result<Ring> {
        Ok(if big { Ring::Big(Queues::new(entries)?) } else { Ring::Plain(Queues::new(entries)?) })
    }

    /// Whether the ring takes entries of 128 bytes.
    pub(crate) fn is_big(&self) -> bool {
        matches!(self, Ring::Big(_))
    }

    pub(crate) fn submitter(&self) -> Submitter<'_> {
        on_queues!(self, |queues| queues.uring.submitter())
    }

    /// Queues an entry for the next enter.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its completion is reaped.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the caller's promise.
        on_queues!(self, |queues| unsafe { queues.push(entry) })
    }

    /// Like [`Ring::push`], for an entry of the big form.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    ///
    /// # Panics
    /// If the ring is not big.
    pub(crate) unsafe fn push_big(&mut self, entry: squeue::Entry128) {
        match self {
            // SAFETY: the caller's promise.
            Ring::Big(queues) => unsafe { queues.push(entry) },
            Ring::Plain(_) => panic!("a plain ring has no room for an entry of 128 bytes"),
        }
    }

    /// Whether an enter has work: entries wait, or the kernel has completions to post.
    pub(crate) fn wants_enter(&mut self) -> bool {
        on_queues!(self, |queues| queues.wants_enter())
    }

    /// Whether completions wait, already posted or still to be posted. No system call.
    pub(crate) fn has_completions(&mut self) -> bool {
        on_queues!(self, |queues| queues.has_completions())
    }

    /// Submits all entries and posts available completions. Does not wait. Returns how many entries
    /// the kernel took.
    pub(crate) fn enter(&mut self) -> io::Result<usize> {
        on_queues!(self, |queues| queues.enter())
    }

    /// Submits all entries and waits for a completion, at most for `limit`.
    pub(crate) fn enter_and_wait(&mut self, limit: Option<Duration>) -> io::Result<usize> {
        on_queues!(self, |queues| queues.enter_and_wait(limit))
    }

    /// Takes a batch of completions. The second result of a command, which only the big form has,
    /// is left out: no command that is sent here has one.
    pub(crate) fn reap(&mut self, batch: &mut Vec<cqueue::Entry>) {
        on_queues!(self, |queues| queues.reap(batch))
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Queues<S, C> {
    fn new(entries: u32) -> io::Result<Queues<S, C>> {
        let uring = IoUring::<S, C>::builder()
            // Completions are posted on request, not by interrupting the thread.
            .setup_single_issuer()
            .setup_defer_taskrun()
            // The flag tells without a system call whether a request is worthwhile.
            .setup_taskrun_flag()
            // A refused entry does not stop the entries after it.
            .setup_submit_all()
            // There are more completions than entries in one turn: drives at queue depth, sockets,
            // doorbells.
            .setup_cqsize(entries * 4)
            .setup_clamp()
            .build(entries)?;
        Ok(Queues { uring, backlog: VecDeque::new(), early: 0 })
    }

    /// # Safety
    /// As for [`Ring::push`].
    unsafe fn push(&mut self, entry: impl Into<S>) {
        let entry = entry.into();
        if self.backlog.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The queue is full: the turn has more entries than it holds. Entries that the kernel
            // does not take now wait in the backlog.
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

    /// Moves entries of the backlog into the queue while there is room.
    fn refill(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: promised when the entry was pushed.
            if unsafe { self.uring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn wants_enter(&mut self) -> bool {
        let queue = self.uring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow() || !self.backlog.is_empty()
    }

    fn has_completions(&mut self) -> bool {
        if self.uring.submission().taskrun() {
            return true;
        }
        !self.uring.completion().is_empty()
    }

    fn enter(&mut self) -> io::Result<usize> {
        self.refill();
        let count = self.uring.submission().len() as u32;
        // SAFETY: no argument is passed, and the entries were pushed under `push`'s promise.
        let submitted = unsafe { self.uring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) }?;
        Ok(submitted + std::mem::take(&mut self.early))
    }

    fn enter_and_wait(&mut self, limit: Option<Duration>) -> io::Result<usize> {
        self.refill();
        let timespec = limit.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let submitted = self.uring.submitter().submit_with_args(1, &args)?;
        Ok(submitted + std::mem::take(&mut self.early))
    }
    fn reap(&mut self, batch: &mut Vec<cqueue::Entry>) {
        batch.extend(self.uring.completion().map(Into::into));
    }
}
