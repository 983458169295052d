//! Commands whose data are on their way.

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

/// What is to be done with a command once its data are there.
pub(super) enum Plan<B> {
    /// A command of a new queue or an admin queue, or one by which a host proves itself.
    Control,
    /// A command of an I/O queue.
    Io(Rc<Handle<B>>, Io),
    /// It fails.
    Fail(Status),
}

/// A command that was taken.
pub(super) struct Job<B> {
    pub command: Command,
    pub plan: Plan<B>,
    /// The fused operation that it is a part of.
    pub fused: Option<(Rc<Pair<B>>, Part)>,
    /// It has waited for the limits that hold for it.
    pub is_paid: bool,
    /// It is to be aborted when its data are there: a host that was asked for them goes on sending
    /// them.
    pub abort: Option<Request>,
}

/// A command whose data are arriving.
pub(super) struct Arriving<B> {
    pub job: Job<B>,
    /// As many bytes as the command has, behind `skip` others; nothing where they are of no use.
    pub data: BufMut,
    /// Bytes in front of them in the capsule.
    pub skip: usize,
}

impl<B> Job<B> {
    /// Whether it is the command of this identifier, one of a namespace, not a part of two, and
    /// nobody wants to abort it yet.
    pub fn may_be_aborted(&self, cid: u16) -> bool {
        let is_single = matches!(self.plan, Plan::Io(..)) && self.fused.is_none();
        self.command.cid.get() == cid && is_single && self.abort.is_none()
    }
}

impl<B> Plan<B> {
    /// Bytes that the command holds once its data were asked for or are about to arrive.
    #[inline]
    pub fn held_bytes(&self) -> u64 {
        if let Plan::Io(_, io) = self { io::held_bytes(io) } else { 0 }
    }
}

/// Commands whose data travel outside of their capsules.
pub(super) struct Asking<B> {
    /// Those whose data were asked for, by tag.
    pub asked: Vec<Option<Arriving<B>>>,
    /// Bytes of all that were asked for.
    pub bytes: u64,
    /// Those whose data are to be asked for when there is room.
    pub unasked: VecDeque<Job<B>>,
    /// Those that are over a limit. Their data are not asked for until they are not: they hold
    /// nothing meanwhile.
    pub over: Rc<Over<B>>,
}

/// Commands of a queue that wait for a limit before their data are asked for.
pub(super) struct Over<B> {
    waiting: Cell<usize>,
    passed: RefCell<VecDeque<Job<B>>>,
    /// The queue has ended: nobody asks for data any more.
    ended: Cell<bool>,
    /// Of the receiving task.
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
    /// Has a command of the link wait for its turn.
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

    /// The queue has ended. Gives those that had their turn and were not asked for.
    pub fn end(&self) -> VecDeque<Job<B>> {
        self.ended.set(true);
        self.passed.take()
    }
}

impl<B> Asking<B> {
    /// Asks for the data of commands that wait for that, as far as there is room.
    pub fn ask(&mut self, machine: &mut Receiver, queue: &Queue) {
        while let Some(Job { command, plan, fused, .. }) = self.unasked.front() {
            let (len, held) = (command.dptr.length.get(), plan.held_bytes());
            let fits = self.bytes == 0 || self.bytes + u64::from(len) <= NVME_ASKED_BYTES_MAX;
            // The first of two fused commands holds memory until the second is there.
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

    /// As [`Asking::ask`], and once more when the connection holds less, or a command has waited
    /// long enough.
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

    /// Has a command end that has not begun, because its data are not there. Gives the request back
    /// where there is none.
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

    /// The data that were asked for with this tag are there.
    pub fn take(&mut self, tag: u16) -> Option<Arriving<B>> {
        let arriving = self.asked[usize::from(tag)].take();
        self.bytes -= arriving.as_ref().map_or(0, |arriving| arriving.data.len() as u64);
        arriving
    }
}
