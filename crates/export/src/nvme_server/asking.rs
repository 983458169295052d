//! Commands whose data has not arrived yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use drive::{BufMut, Env};
use nvme::target::{Io, Named};
use nvme::tcp::Receiver;
use nvme::{Command, Status};

use super::abort::Request;
use super::fused::{Pair, Part};
use super::io::{self, Handle};
use super::queue::Queue;
use crate::limits::NVME_ASKED_BYTES_MAX;

/// The action for a command once its data has arrived.
pub(super) enum Plan<B> {
    /// A command of a new queue or an admin queue, or one of an authentication.
    Control,
    /// A command of an I/O queue.
    Io(Rc<Handle<B>>, Io),
    /// The command fails.
    Fail(Status),
}

/// A command that was accepted.
pub(super) struct Job<B> {
    pub command: Command,
    pub plan: Plan<B>,
    /// The fused operation that the command is a part of.
    pub fused: Option<(Rc<Pair<B>>, Part)>,
    /// The command has waited for its rate limits.
    pub is_paid: bool,
    /// The command is to be aborted when its data has arrived: a host that was asked for data goes
    /// on sending it.
    pub abort: Option<Request>,
}

/// A command whose data is arriving.
pub(super) struct Arriving<B> {
    pub job: Job<B>,
    /// Holds as many bytes as the command has, behind `skip` others; empty if the data is of no
    /// use.
    pub data: BufMut,
    /// Bytes in front of the data in the capsule.
    pub skip: usize,
}

impl<B> Job<B> {
    /// Whether this is the command with this identifier, and it may be aborted: it is a command of
    /// a namespace, is not fused, and has no abort request yet.
    pub fn may_be_aborted(&self, cid: u16) -> bool {
        let is_single = matches!(self.plan, Plan::Io(..)) && self.fused.is_none();
        self.command.cid.get() == cid && is_single && self.abort.is_none()
    }
}

impl<B> Plan<B> {
    /// Bytes that the command holds once its data was requested or is about to arrive.
    #[inline]
    pub fn held_bytes(&self) -> u64 {
        if let Plan::Io(_, io) = self { io::held_bytes(io) } else { 0 }
    }
}

/// Commands whose data is sent outside of their capsules.
pub(super) struct Asking<B> {
    /// Commands whose data was requested, by tag.
    pub asked: Vec<Option<Arriving<B>>>,
    /// Bytes of all requested data.
    pub bytes: u64,
    /// Commands whose data will be requested when there is room.
    pub unasked: VecDeque<Job<B>>,
    /// Commands that are over a rate limit. Their data is requested only after the wait, so they
    /// hold no memory meanwhile.
    pub over: Rc<Over<B>>,
}

/// Commands of a queue that wait for a rate limit before their data is requested.
pub(super) struct Over<B> {
    waiting: Cell<usize>,
    passed: RefCell<VecDeque<Job<B>>>,
    /// The queue has ended: it requests no more data.
    ended: Cell<bool>,
    /// Waker of the receiving task.
    receiver: RefCell<Option<Waker>>,
}

impl<B> Default for Over<B> {
    fn default() -> Self {
        Over {
            waiting: Cell::new(0),
            passed: RefCell::default(),
            ended: Cell::new(false),
            receiver: RefCell::default(),
        }
    }
}

impl<B: 'static> Over<B> {
    /// Lets a command wait for its turn.
    pub fn wait(self: &Rc<Self>, mut job: Job<B>, queue: &Rc<Queue>) {
        let Plan::Io(handle, io) = &job.plan else { unreachable!("only what a namespace does is limited") };
        let (handle, io) = (handle.clone(), *io);
        let (over, queue) = (self.clone(), queue.clone());
        self.waiting.set(self.waiting.get() + 1);
        let env = queue.link.env.clone();
        env.spawn(async move {
            let cid = job.command.cid.get();
            let passed = queue.waiting.unless_aborted(cid, handle.pass(&queue.link.env, &io)).await;
            over.waiting.set(over.waiting.get() - 1);
            if over.ended.get() {
                return queue.link.abandon(0);
            }
            match passed {
                Ok(Ok(())) => {}
                Ok(Err(status)) => return queue.fail(Named::of(&job.command), status, 0),
                Err(abort) => {
                    queue.fail(Named::of(&job.command), Status::ABORT_REQUESTED, 0);
                    return abort.done();
                }
            }
            job.is_paid = true;
            over.passed.borrow_mut().push_back(job);
            if let Some(receiver) = over.receiver.take() {
                receiver.wake();
            }
        });
    }

    /// The queue has ended. Returns the commands that have passed the limit and whose data was not
    /// requested.
    pub fn end(&self) -> VecDeque<Job<B>> {
        self.ended.set(true);
        self.passed.take()
    }
}

impl<B> Asking<B> {
    /// Requests the data of waiting commands, as far as there is room.
    pub fn ask(&mut self, machine: &mut Receiver, queue: &Queue) {
        while let Some(Job { command, plan, fused, .. }) = self.unasked.front() {
            let (len, held) = (command.dptr.length.get(), plan.held_bytes());
            let fits = self.bytes == 0 || self.bytes + u64::from(len) <= NVME_ASKED_BYTES_MAX;
            // The first of two fused commands holds memory until the second has arrived.
            let is_second = matches!(fused, Some((_, Part::Second)));
            if !(fits && (is_second || queue.link.has_room(held))) {
                return;
            }
            let Some((tag, request)) = machine.ask(command.cid.get(), len) else { return };
            let job = self.unasked.pop_front().expect("it was looked at");
            let data = queue.link.env.alloc(len as usize);
            if self.asked.len() <= usize::from(tag) {
                self.asked.resize_with(usize::from(tag) + 1, || None);
            }
            self.asked[usize::from(tag)] = Some(Arriving { job, data, skip: 0 });
            self.bytes += u64::from(len);
            queue.link.grow(held);
            queue.say(&request);
        }
    }

    /// As [`Asking::ask`]. Also wakes the task when the connection holds less, or when a command
    /// has waited long enough.
    pub fn ask_when_released(&mut self, machine: &mut Receiver, queue: &Queue, context: &Context<'_>) {
        if self.over.waiting.get() > 0 {
            *self.over.receiver.borrow_mut() = Some(context.waker().clone());
        }
        self.unasked.append(&mut self.over.passed.borrow_mut());
        if !self.unasked.is_empty() {
            queue.link.wake_when_released(context.waker());
            self.ask(machine, queue);
        }
    }

    /// Ends a command that has not begun because its data has not arrived. Returns the request if
    /// there is no such command.
    pub fn abort(&mut self, request: Request, queue: &Queue) -> Option<Request> {
        let cid = request.cid;
        let is_meant = |job: &Job<B>| job.may_be_aborted(cid);
        self.unasked.append(&mut self.over.passed.borrow_mut());
        if let Some(at) = self.unasked.iter().position(is_meant) {
            let job = self.unasked.remove(at).expect("it was found");
            queue.fail(Named::of(&job.command), Status::ABORT_REQUESTED, 0);
            request.done();
            return None;
        }
        let mut asked = self.asked.iter_mut().flatten().map(|arriving| &mut arriving.job);
        match asked.find(|job| is_meant(job)) {
            Some(job) => {
                job.abort = Some(request);
                None
            }
            None => Some(request),
        }
    }

    /// All data requested with this tag has arrived.
    pub fn take(&mut self, tag: u16) -> Option<Arriving<B>> {
        let arriving = self.asked[usize::from(tag)].take();
        self.bytes -= arriving.as_ref().map_or(0, |arriving| arriving.data.len() as u64);
        arriving
    }
}
