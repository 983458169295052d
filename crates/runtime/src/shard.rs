//! The loop of one shard.

mod wait;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::drive::Nanos;
use io_uring::{opcode, squeue, types};

pub(crate) use self::wait::Receive;
use crate::arena::{self, Arena};
use crate::buffers::BufferTable;
use crate::clock;
use crate::env::ShardEnv;
use crate::files::{FileTable, Target};
use crate::op::{Completed, Op, OpKey, OpSlab, Payload};
use crate::polling::AdaptivePolling;
use crate::remote::{Item, Remote, ShardHandle};
use crate::ring::{DOORBELL, IGNORED, Ring};
use crate::short_wait::ShortWaitCost;
use crate::system;
use crate::task::{LocalFuture, TaskHeader, TaskKey, TaskSlab};
use crate::timer::Timers;

/// Polls of tasks in one turn. After them the ring gets its turn although tasks are ready. This is
/// some 100 us of work: long compared with a system call, short compared with delays that a client
/// notices.
pub const POLLS_PER_TURN: u32 = 1024;

/// Operations of memory drives that one poll of a task may complete. Such an operation is ready at
/// once, so a task that does only these would never yield the thread. This is some 100 us of
/// copying 4 KiB blocks: enough for a whole deep queue.
pub const READY_OPS_PER_POLL: u32 = 128;

/// How long the end of a shard waits for operations that are still in flight. They were canceled,
/// so only a drive that does not answer takes that long. Its buffers then stay allocated.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shard>>> = const { RefCell::new(None) };
}

/// Runs `use_it` with the shard of this thread, if it has one.
#[inline]
pub(crate) fn with_current<R>(use_it: impl FnOnce(&Rc<Shard>) -> R) -> Option<R> {
    // While thread-locals are destroyed there is no current shard any more.
    CURRENT.try_with(|current| current.borrow().as_ref().map(use_it)).ok().flatten()
}

/// The state of one shard. It stays on its thread.
pub(crate) struct Shard {
    remote: Arc<Remote>,
    ring: RefCell<Ring>,
    ops: RefCell<OpSlab>,
    tasks: RefCell<TaskSlab>,
    ready: RefCell<VecDeque<TaskKey>>,
    turn_end: RefCell<Vec<Waker>>,
    /// Grows when the tasks that waited for the end of a turn are woken.
    turn_ends: Cell<u64>,
    timers: RefCell<Timers>,
    files: RefCell<FileTable>,
    arena: &'static Arena,
    buffers: BufferTable,
    /// Time when completions were last reaped.
    reaped_at: Cell<Nanos>,
    /// The rest of [`READY_OPS_PER_POLL`] in the current poll.
    ready_ops: Cell<u32>,
    /// Drive operations in flight. The shard may poll for them.
    drive_ops: Cell<u32>,
    drive_polling: Duration,
    /// Receives in flight from clients that may send the next request at once.
    prompt_receives: Cell<u32>,
    client_polling: RefCell<AdaptivePolling>,
    /// The receive that was not yet given to the kernel.
    held: RefCell<Option<wait::Held>>,
    short_wait_cost: RefCell<ShortWaitCost>,
    stopping: Cell<bool>,
}

/// From now on a panic on a shard's thread ends the process, after the previous hook has reported
/// it. It ends at once, without unwinding: destructors would tell other shards that half-done work
/// is done.
pub(crate) fn abort_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            report(info);
            if let Some(index) = with_current(|shard| shard.index()) {
                tracing::error!(shard = index, %info, "a shard panicked; the process ends");
                system::last_words(&format!("shard {index} {info}; the process ends"));
                std::process::abort();
            }
        }));
    });
}

/// The settings of a shard. See [`crate::Config`].
pub(crate) struct ShardSetup {
    pub(crate) pinned: bool,
    pub(crate) ring_entries: u32,
    pub(crate) fixed_files: u32,
    pub(crate) arena: &'static Arena,
    pub(crate) drive_polling: Duration,
    pub(crate) passthrough: bool,
}

impl Shard {
    /// Creates the shard of the calling thread.
    pub(crate) fn new(remote: Arc<Remote>, setup: &ShardSetup) -> std::io::Result<Rc<Shard>> {
        let ring = Ring::new(setup.ring_entries, setup.passthrough)?;
        let fixed_files = match ring.submitter().register_files_sparse(setup.fixed_files) {
            Ok(()) => setup.fixed_files,
            Err(error) => {
                tracing::warn!(%error, "no table of registered files; operations name plain descriptors");
                0
            }
        };
        let buffers = BufferTable::new(&ring.submitter(), setup.arena);
        let shard = Rc::new(Shard {
            remote,
            ring: RefCell::new(ring),
            ops: RefCell::default(),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            turn_end: RefCell::default(),
            turn_ends: Cell::new(0),
            timers: RefCell::default(),
            files: RefCell::new(FileTable::new(fixed_files)),
            arena: setup.arena,
            buffers,
            reaped_at: Cell::new(clock::now()),
            ready_ops: Cell::new(0),
            drive_ops: Cell::new(0),
            drive_polling: setup.drive_polling,
            prompt_receives: Cell::new(0),
            client_polling: RefCell::default(),
            held: RefCell::default(),
            short_wait_cost: RefCell::default(),
            stopping: Cell::new(false),
        });
        shard.arm_doorbell();
        setup.arena.keep_magazine();
        CURRENT.with(|current| *current.borrow_mut() = Some(shard.clone()));
        Ok(shard)
    }

    pub(crate) fn index(&self) -> usize {
        self.remote.index()
    }

    pub(crate) fn handle(&self) -> ShardHandle {
        ShardHandle::new(self.remote.clone())
    }

    pub(crate) fn arena(&self) -> &'static Arena {
        self.arena
    }

    pub(crate) fn is_home_of(&self, home: &Arc<Remote>) -> bool {
        Arc::ptr_eq(&self.remote, home)
    }

    /// Receives in flight from clients that may send the next request at once.
    pub(crate) fn prompt_receives(&self) -> &Cell<u32> {
        &self.prompt_receives
    }

    pub(crate) fn ops(&self) -> &RefCell<OpSlab> {
        &self.ops
    }

    pub(crate) fn timers(&self) -> RefMut<'_, Timers> {
        self.timers.borrow_mut()
    }

    /// Time when the completions that are being handled were taken from the ring.
    pub(crate) fn reaped_at(&self) -> Nanos {
        self.reaped_at.get()
    }

    /// The index of the registered buffer that contains the range, if there is one.
    #[inline]
    pub(crate) fn fixed_buffer(&self, start: *const u8, len: usize) -> Option<u16> {
        self.buffers.index(start, len, &self.ring)
    }

    // --- tasks ---

    pub(crate) fn spawn(&self, future: LocalFuture) {
        let header = self.tasks.borrow_mut().insert(future, &self.remote);
        self.schedule(&header);
    }

    /// Called on the home thread. The task will be polled in this turn, or in the next if it is
    /// being polled now.
    #[inline]
    pub(crate) fn schedule(&self, header: &TaskHeader) {
        if header.mark_ready() {
            self.ready.borrow_mut().push_back(header.key());
        }
    }

    /// Polls ready tasks until none is left or the budget is used up.
    fn run_ready(&self, budget: &mut u32) {
        while *budget > 0 {
            let Some(key) = self.ready.borrow_mut().pop_front() else { return };
            let Some(mut task) = self.tasks.borrow_mut().take(key) else { continue };
            *budget -= 1;
            self.ready_ops.set(READY_OPS_PER_POLL);
            let poll = task.future.as_mut().poll(&mut Context::from_waker(&task.waker));
            match poll {
                Poll::Pending => self.tasks.borrow_mut().put_back(task),
                Poll::Ready(()) => {
                    self.tasks.borrow_mut().finish(key);
                    // Outside of the borrow: its destructors may spawn or wake.
                    drop(task);
                }
            }
        }
    }

    /// Wakes the tasks that waited for the end of the turn. Returns whether there were any.
    fn end_turn(&self) -> bool {
        let wakers = self.turn_end.take();
        if wakers.is_empty() {
            return false;
        }
        self.turn_ends.set(self.turn_ends.get() + 1);
        for waker in wakers {
            waker.wake();
        }
        true
    }

    /// The future of `Env::turn_end`.
    pub(crate) fn poll_turn_end(&self, since: &mut Option<u64>, context: &Context<'_>) -> Poll<()> {
        match *since {
            Some(turn_ends) if self.turn_ends.get() > turn_ends => Poll::Ready(()),
            _ => {
                *since = Some(self.turn_ends.get());
                self.turn_end.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Uses up one of the immediately ready operations that the task may do in this poll. False if
    /// none is left.
    #[inline]
    pub(crate) fn take_ready_op(&self) -> bool {
        let left = self.ready_ops.get();
        self.ready_ops.set(left.saturating_sub(1));
        left > 0
    }

    /// For operations that are ready at once: returns ready, or now and then pending, so that other
    /// tasks get their turn.
    pub(crate) fn ready_op(&self) -> impl Future<Output = ()> + '_ {
        struct ReadyOp<'a>(&'a Shard);
        impl Future for ReadyOp<'_> {
            type Output = ();
            #[inline]
            fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                if self.0.take_ready_op() {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
        ReadyOp(self)
    }

    // --- operations ---

    /// Queues an operation. It is submitted at the end of the turn.
    ///
    /// # Safety
    /// Every pointer in `entry` leads into memory that `payload` owns and that does not move with
    /// it.
    pub(crate) unsafe fn start(&self, entry: squeue::Entry, payload: Payload) -> Op<'_> {
        let key = self.ops.borrow_mut().insert(payload);
        // SAFETY: the payload stays in its slot until the completion is reaped
        // (`OpSlab::complete`).
        unsafe { self.ring.borrow_mut().push(entry.user_data(key.user_data())) };
        Op::new(self, key)
    }

    /// Like [`Shard::start`], for a command that may wait forever and cannot be canceled: the end
    /// of the shard does not wait for it.
    ///
    /// # Safety
    /// As for [`Shard::start`].
    pub(crate) unsafe fn start_lingering(&self, entry: squeue::Entry, payload: Payload) -> Op<'_> {
        let key = self.ops.borrow_mut().insert_lingering(payload);
        // SAFETY: as in `start`.
        unsafe { self.ring.borrow_mut().push(entry.user_data(key.user_data())) };
        Op::new(self, key)
    }

    /// Like [`Shard::start`], for a drive: the loop may poll for it.
    ///
    /// # Safety
    /// As for [`Shard::start`].
    pub(crate) unsafe fn start_drive_op(&self, entry: squeue::Entry, payload: Payload) -> DriveOp<'_> {
        self.drive_ops.set(self.drive_ops.get() + 1);
        // SAFETY: the caller's promise.
        DriveOp(unsafe { self.start(entry, payload) })
    }

    /// Like [`Shard::start_drive_op`], for a command of 128 bytes.
    ///
    /// # Safety
    /// As for [`Shard::start`].
    ///
    /// # Panics
    /// If the shard does not support such commands, see [`Shard::takes_commands`].
    pub(crate) unsafe fn start_command(&self, entry: squeue::Entry128, payload: Payload) -> DriveOp<'_> {
        self.drive_ops.set(self.drive_ops.get() + 1);
        let key = self.ops.borrow_mut().insert(payload);
        // SAFETY: as in `start`.
        unsafe { self.ring.borrow_mut().push_big(entry.user_data(key.user_data())) };
        DriveOp(Op::new(self, key))
    }

    /// Whether the ring has room for NVMe commands:
    /// [`Config::passthrough`](crate::Config::passthrough) was set.
    pub(crate) fn takes_commands(&self) -> bool {
        self.ring.borrow().is_big()
    }

    /// Asks the kernel to cancel an operation. The operation completes in any case.
    pub(crate) fn cancel(&self, key: OpKey) {
        let entry = opcode::AsyncCancel::new(key.user_data()).build().user_data(IGNORED);
        let mut ring = self.ring.borrow_mut();
        // The operation may be the receive that was not yet given to the kernel.
        self.release(&mut ring);
        // SAFETY: the entry holds no pointer.
        unsafe { ring.push(entry) };
    }

    /// Closes a descriptor after all queued entries, because they may use it.
    pub(crate) fn close_later(&self, fd: OwnedFd) {
        let entry = opcode::Close::new(types::Fd(fd.into_raw_fd())).build().user_data(IGNORED);
        // SAFETY: the entry holds no pointer, and no other code has the descriptor.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    pub(crate) fn attach_file(&self, fd: std::os::fd::RawFd) -> Target {
        self.files.borrow_mut().insert(&self.ring.borrow().submitter(), fd)
    }

    pub(crate) fn detach_file(&self, target: Target) {
        self.files.borrow_mut().remove(&self.ring.borrow().submitter(), target);
    }

    fn arm_doorbell(&self) {
        let doorbell = types::Fd(self.remote.doorbell_fd());
        // One entry polls forever. The counter is never read, since every write to it wakes the
        // poll.
        let entry = opcode::PollAdd::new(doorbell, libc::POLLIN as u32).multi(true).build().user_data(DOORBELL);
        // SAFETY: the entry holds no pointer.
        unsafe { self.ring.borrow_mut().push(entry) };
    }

    // --- the loop ---

    /// Runs until [`Item::Stop`] arrives.
    pub(crate) fn run(self: &Rc<Self>) {
        let env = ShardEnv::new(self.clone());
        let mut items = Vec::new();
        let mut completions = Vec::new();
        while !self.stopping.get() {
            self.take_inbox(&env, &mut items);
            self.fire_timers();
            let mut budget = POLLS_PER_TURN;
            loop {
                self.run_ready(&mut budget);
                if !self.end_turn() || budget == 0 {
                    break;
                }
            }
            count(&self.remote.counters.turns, 1);
            count(&self.remote.counters.polls, u64::from(POLLS_PER_TURN - budget));
            self.enter();
            self.reap(&mut completions);
        }
        drop(env);
        self.end(&mut completions);
    }

    fn take_inbox(&self, env: &ShardEnv, items: &mut Vec<Item>) {
        self.remote.take(items);
        for item in items.drain(..) {
            match item {
                Item::Run(run) => run(env),
                Item::Wake(header) => {
                    debug_assert!(header.is_at(&self.remote));
                    header.left_inbox();
                    self.schedule(&header);
                }
                Item::Stop => self.stopping.set(true),
            }
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = clock::now();
        loop {
            // The borrow ends before the waker runs.
            let Some(waker) = self.timers.borrow_mut().pop_due(now) else { return };
            waker.wake();
        }
    }

    fn entered(&self, result: std::io::Result<usize>) {
        match result {
            Ok(submitted) => count(&self.remote.counters.submitted, submitted as u64),
            // The wait was over (ETIME) or a signal came (EINTR): the next turn handles both.
            // EAGAIN and EBUSY: the kernel is short of memory or of room for completions. Entries
            // that it did not take stay queued.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) => {
                tracing::error!(%error, "io_uring_enter failed; the shard cannot go on");
                system::last_words(&format!("shard {}: io_uring_enter: {error}; the process ends", self.index()));
                std::process::abort();
            }
        }
    }

    fn reap(&self, completions: &mut Vec<io_uring::cqueue::Entry>) {
        self.ring.borrow_mut().reap(completions);
        if completions.is_empty() {
            return;
        }
        count(&self.remote.counters.completed, completions.len() as u64);
        self.reaped_at.set(clock::now());
        for completion in completions.drain(..) {
            match completion.user_data() {
                IGNORED => {}
                DOORBELL => {
                    if !io_uring::cqueue::more(completion.flags()) {
                        self.arm_doorbell();
                    }
                }
                user_data => self.complete(OpKey::from_user_data(user_data), completion.result()),
            }
        }
    }

    /// Completes an operation and wakes the task that waits for it.
    fn complete(&self, key: OpKey, result: i32) {
        let completed = self.ops.borrow_mut().complete(key, result);
        match completed {
            Completed::Wake(Some(waker)) => waker.wake(),
            Completed::Wake(None) => {}
            Completed::Orphan(outcome) => outcome.discard(),
        }
    }

    /// Drops the tasks, waits for operations in flight, and detaches the shard from the thread.
    fn end(self: &Rc<Self>, completions: &mut Vec<io_uring::cqueue::Entry>) {
        let left = self.remote.close();
        drop(left);
        let abandoned = self.tasks.borrow().len();
        if abandoned > 0 {
            tracing::debug!(shard = self.remote.index(), abandoned, "tasks were dropped at the end of the shard");
        }
        loop {
            // The borrow ends before the future is dropped, which may spawn.
            let task = self.tasks.borrow_mut().take_any();
            if task.is_none() {
                break;
            }
            drop(task);
        }
        let wakers = self.turn_end.take();
        drop(wakers);
        self.drain(completions);
        arena::flush_magazines();
        CURRENT.with(|current| current.borrow_mut().take());
    }

    /// Cancels all operations in flight and waits for them.
    fn drain(&self, completions: &mut Vec<io_uring::cqueue::Entry>) {
        let cancel = types::CancelBuilder::any().all();
        let entry = opcode::AsyncCancel2::new(cancel).build().user_data(IGNORED);
        debug_assert!(self.held.borrow().is_none(), "the tasks are dropped, which cancelled what they waited for");
        // SAFETY: the entry holds no pointer.
        unsafe { self.ring.borrow_mut().push(entry) };
        let give_up = clock::now() + DRAIN_LIMIT.as_nanos() as u64;
        while self.ops.borrow().awaited() > 0 && clock::now() < give_up {
            let result = self.ring.borrow_mut().enter_and_wait(Some(Duration::from_millis(50)));
            self.entered(result);
            self.ring.borrow_mut().reap(completions);
            for completion in completions.drain(..) {
                if matches!(completion.user_data(), IGNORED | DOORBELL) {
                    continue;
                }
                let key = OpKey::from_user_data(completion.user_data());
                let completed = self.ops.borrow_mut().complete(key, completion.result());
                if let Completed::Orphan(outcome) = completed {
                    outcome.discard();
                }
            }
        }
        let (in_flight, awaited) = (self.ops.borrow().in_flight(), self.ops.borrow().awaited());
        if awaited > 0 {
            tracing::error!(awaited, "the kernel kept operations; their buffers stay allocated");
        }
        if in_flight > 0 {
            std::mem::forget(self.ops.take());
        }
    }
}

/// A drive operation. It is counted, so that the loop knows whether polling may be worthwhile.
pub(crate) struct DriveOp<'a>(Op<'a>);

impl Future for DriveOp<'_> {
    type Output = crate::op::OpResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for DriveOp<'_> {
    fn drop(&mut self) {
        let ops = &self.0.shard().drive_ops;
        ops.set(ops.get() - 1);
    }
}

/// Adds to a counter that only this thread writes, without a locked instruction.
#[inline]
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
