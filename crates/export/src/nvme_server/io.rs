//! An I/O queue's namespaces, and its commands.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use drive::{Block, Buf, BufMut, Env, Nanos, View};
use nvme::target::{COPY_BYTES_MAX, Io, Named, Namespace};
use nvme::{Command, Status};
use runtime::ShardEnv;

use super::abort::Request;
use super::association::{Association, Seat};
use super::execution::execute;
use super::portal::Portal;
use super::queue::Queue;
use super::shared::Use;
use crate::counters::Kind;
use crate::limit::Cost;
use crate::limits::{RANGE_BYTES, RANGES_AT_ONCE};
use crate::state::{Alarm, ConnectionState, ExportState};

/// A queue keeps a [`Handle`] of so many namespaces, or more while it uses more of them at once.
/// Each takes a few KiB, including the state that the export and the namespace keep for the queue
/// (`tests/memory.rs` measures it).
const HANDLES_MAX: usize = 128;

/// An I/O queue's access to a namespace.
pub(super) struct Handle<B> {
    block: B,
    described: Namespace,
    export: Arc<ExportState>,
    state: Arc<ConnectionState>,
    /// The queue's use of the state that all queues share.
    used: Use,
    in_flight: Cell<u32>,
    /// The queue has changed the namespace.
    is_changed: Cell<bool>,
}

/// An I/O queue's namespaces.
pub(super) struct Namespaces<B> {
    env: ShardEnv,
    portal: Portal<B>,
    association: Arc<Association>,
    seat: Seat,
    /// Name of the host and queue, for lists.
    peer: String,
    alarm: Arc<Alarm>,
    handles: RefCell<BTreeMap<u32, Rc<Handle<B>>>>,
    /// Namespaces that were changed through a handle that is gone.
    changed: RefCell<BTreeSet<u32>>,
    /// The handle that was used last.
    last: RefCell<Option<(u32, Rc<Handle<B>>)>>,
}

impl<B: Block> Namespaces<B> {
    pub fn new(
        env: ShardEnv,
        portal: Portal<B>,
        association: Arc<Association>,
        seat: Seat,
        peer: String,
        alarm: Arc<Alarm>,
    ) -> Namespaces<B> {
        let (handles, changed, last) = Default::default();
        Namespaces { env, portal, association, seat, peer, alarm, handles, changed, last }
    }

    /// The association that the queue belongs to.
    pub fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// Parses a command.
    #[inline]
    pub fn plan(&self, command: &Command) -> Result<(Rc<Handle<B>>, Io), Status> {
        let handle = self.find(command.nsid.get())?;
        handle.reach()?;
        let io = Io::of(command, &handle.namespace());
        let io = io.inspect_err(|_| handle.state.counters.refused())?;
        Ok((handle, io))
    }

    #[inline]
    fn find(&self, nsid: u32) -> Result<Rc<Handle<B>>, Status> {
        if let Some((number, handle)) = &*self.last.borrow()
            && *number == nsid
            && !handle.is_ending()
        {
            return Ok(handle.clone());
        }
        let known = self.handles.borrow().get(&nsid).cloned();
        let handle = match known {
            Some(handle) => handle,
            None => {
                let handle = Rc::new(self.open(nsid).ok_or(Status::INVALID_NAMESPACE)?);
                self.make_room(nsid);
                // Inserted even if it ends: a connection that entered the export has to be found to
                // leave it.
                self.handles.borrow_mut().insert(nsid, handle.clone());
                handle
            }
        };
        if handle.is_ending() {
            return Err(Status::INVALID_NAMESPACE);
        }
        *self.last.borrow_mut() = Some((nsid, handle.clone()));
        Ok(handle)
    }

    /// Drops an unused handle if there are many. It takes the one before the new one: if a host
    /// goes through all namespaces in order, it needs that one last.
    fn make_room(&self, nsid: u32) {
        let mut handles = self.handles.borrow_mut();
        if handles.len() < HANDLES_MAX {
            return;
        }
        let mut behind_last = handles.range(..nsid).rev().chain(handles.range(nsid..).rev());
        let idle = behind_last.find(|(_, handle)| Rc::strong_count(handle) == 1).map(|(number, _)| *number);
        let Some(handle) = idle.and_then(|number| handles.remove(&number)) else { return };
        if handle.is_changed.get() {
            self.changed.borrow_mut().insert(handle.described.nsid);
        }
        handle.export.leave(&handle.state);
    }

    fn open(&self, nsid: u32) -> Option<Handle<B>> {
        let host = &self.association.host.nqn;
        let offer = self.portal.find(&self.association.subsystem, host, nsid)?;
        let block = (offer.open)()?;
        let (named, secure) = (Some(host.as_str().to_owned()), self.association.is_secure);
        let state = offer.state.enter(self.peer.clone(), named, secure, self.alarm.clone())?;
        // Checked once more: `Portal::allow` either finds the connection in the export's list, or
        // its effect is seen here.
        if self.portal.find(&self.association.subsystem, host, nsid).is_none() {
            offer.state.leave(&state);
            return None;
        }
        let described = offer.describe(nsid, &block);
        let used = offer.shared.enter(&self.env, self.association.host.clone());
        let (in_flight, is_changed) = Default::default();
        Some(Handle { block, described, export: offer.state, state, used, in_flight, is_changed })
    }

    /// Commands that are to be aborted.
    pub fn take_aborts(&self) -> Vec<Request> {
        self.seat.take_aborts()
    }

    /// To be called when the alarm was rung: drops namespaces that end. Returns whether the queue
    /// has to end, too.
    pub fn must_end(&self) -> bool {
        self.last.borrow_mut().take_if(|(_, handle)| handle.is_ending());
        self.handles.borrow_mut().retain(|_, handle| {
            let ends = handle.is_ending() && handle.in_flight.get() == 0;
            if ends {
                handle.export.leave(&handle.state);
            }
            !ends
        });
        self.seat.is_lost() || self.handles.borrow().values().any(|handle| handle.state.is_cut())
    }

    /// The queue ends: commands that wait for a rate limit are not served.
    pub fn drop_waiting(&self) {
        self.handles.borrow().values().for_each(|handle| handle.state.limits.drop_waiting());
    }

    /// The queue has ended, and nothing is in flight: makes its changes durable. When a host shuts
    /// its controller down, after its queues or with them, the completion tells it that the power
    /// may go off (Base 2.0, clause 3.6).
    pub async fn flush(&self) {
        let mut changed = self.changed.take();
        changed.extend(
            self.handles.borrow().values().filter(|handle| handle.is_changed.get()).map(|handle| handle.described.nsid),
        );
        for nsid in changed {
            // A namespace that is gone needs no flush.
            let Ok(handle) = self.find(nsid) else { continue };
            if let Err(error) = handle.block.flush().await {
                tracing::warn!(peer = self.peer, nsid, %error, "what a host has written could not be made durable when its queue ended");
            }
        }
    }

    /// The queue has ended, and nothing is in flight.
    pub fn leave(&self) {
        *self.last.borrow_mut() = None;
        for handle in std::mem::take(&mut *self.handles.borrow_mut()).values() {
            handle.export.leave(&handle.state);
        }
    }
}

/// Bytes that a command holds while it is served: its data, and data that is read only to be
/// checked.
#[inline]
pub(super) fn held_bytes(io: &Io) -> u64 {
    u64::from(match io {
        Io::Verify { len, .. } => *len,
        Io::Compare { len, .. } => 2 * len,
        Io::Copy { .. } => io.data_bytes() + COPY_BYTES_MAX,
        Io::WriteZeroes { .. } => RANGE_BYTES as u32,
        Io::Deallocate { .. } => io.data_bytes() + RANGES_AT_ONCE as u32 * RANGE_BYTES as u32,
        _ => io.data_bytes(),
    })
}

/// Bytes of the service window that a command takes. Deallocations and zeroes take none: the engine
/// bounds how much of them it works on, and a host's reads must not wait for them.
#[inline]
fn window_bytes(io: &Io) -> u64 {
    u64::from(match io {
        Io::Read { len, .. } | Io::Write { len, .. } | Io::Compare { len, .. } | Io::Verify { len, .. } => *len,
        Io::Copy { .. } => COPY_BYTES_MAX,
        _ => 0,
    })
}

/// The cost of a command; `None` if no rate limit applies to it.
fn cost(io: &Io) -> Option<Cost> {
    let bytes = match io {
        Io::Read { len, .. } | Io::Write { len, .. } | Io::Compare { len, .. } | Io::Verify { len, .. } => *len,
        // Zeroes that keep their space are written to the drives.
        Io::WriteZeroes { len, deallocate: false, .. } => *len,
        // The length of a copy is not known yet.
        Io::WriteZeroes { deallocate: true, .. } | Io::Deallocate { .. } | Io::Copy { .. } => 0,
        Io::Flush | Io::Hint { .. } | Io::Reserve(_) | Io::Report { .. } => return None,
    };
    Some(Cost { requests: 1, bytes: bytes.into() })
}

fn kind(io: &Io) -> Kind {
    match io {
        Io::Read { .. } | Io::Compare { .. } | Io::Verify { .. } => Kind::Read,
        Io::Write { .. } | Io::Copy { .. } => Kind::Write,
        Io::Flush => Kind::Flush,
        Io::WriteZeroes { .. } => Kind::WriteZeroes,
        Io::Deallocate { .. } | Io::Hint { .. } => Kind::Trim,
        Io::Reserve(_) | Io::Report { .. } => Kind::Reservation,
    }
}

impl<B: Block> Handle<B> {
    /// The namespace with its present size.
    #[inline]
    pub fn namespace(&self) -> Namespace {
        let blocks = self.block.size_bytes() / u64::from(self.described.block_bytes);
        Namespace { blocks, ..self.described }
    }
}

impl<B> Handle<B> {
    /// Whether the namespace takes no more commands.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.export.stopping() || self.state.is_revoked()
    }

    /// Whether commands may be executed here, according to the ANA state of the namespace: Base
    /// 2.0, clause 8.1.3.
    #[inline]
    pub fn reach(&self) -> Result<(), Status> {
        self.export.access().state.refusal().map_or(Ok(()), Err)
    }

    pub fn block(&self) -> &B {
        &self.block
    }

    /// The namespace as it was when the handle was opened; its size may have changed.
    pub fn described(&self) -> &Namespace {
        &self.described
    }

    pub fn used(&self) -> &Use {
        &self.used
    }

    /// Whether a command may have to wait for a rate limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.state.limits.is_on()
    }

    /// Counts bytes against the rate limits that were not known when the command passed them.
    pub fn charge(&self, bytes: u64) {
        self.state.limits.charge(bytes);
    }

    /// Returns when a command may go on.
    ///
    /// # Errors
    /// The status of a command that is not to be served: its queue has ended, or its host may not
    /// use the namespace any more.
    pub async fn pass(&self, env: &ShardEnv, io: &Io) -> Result<(), Status> {
        let Some(cost) = cost(io) else { return Ok(()) };
        match self.state.limits.pass(env, cost).await {
            true if self.state.is_revoked() => Err(Status::INVALID_NAMESPACE),
            true => Ok(()),
            false => Err(Status::ABORTED_SQ_DELETION),
        }
    }

    /// A command will be served.
    pub fn accepted(&self, io: &Io) {
        let kind = kind(io);
        self.in_flight.set(self.in_flight.get() + 1);
        self.state.counters.accepted(kind);
        if matches!(kind, Kind::Write | Kind::WriteZeroes) {
            self.is_changed.set(true);
        }
    }

    /// A command is being answered, `nanos` after it arrived.
    #[inline]
    pub fn answered(&self, io: &Io, nanos: Nanos, status: Status) {
        let counters = &self.state.counters;
        counters.answered(kind(io), nanos, !status.is_success());
        match (io, status) {
            (Io::Read { len, .. }, Status::SUCCESS) => counters.read(u64::from(*len)),
            (Io::Write { len, .. }, Status::SUCCESS) => counters.written(u64::from(*len)),
            (_, Status::UNRECOVERED_READ_ERROR) => counters.media_error(),
            _ => {}
        }
    }

    /// A command, as the error log names it.
    fn named(&self, cid: u16, io: &Io) -> Named {
        let offset = match io {
            Io::Read { offset, .. }
            | Io::Write { offset, .. }
            | Io::Compare { offset, .. }
            | Io::Verify { offset, .. }
            | Io::WriteZeroes { offset, .. }
            | Io::Copy { offset, .. } => *offset,
            Io::Flush | Io::Deallocate { .. } | Io::Hint { .. } | Io::Reserve(_) | Io::Report { .. } => 0,
        };
        Named { cid, nsid: self.described.nsid, lba: offset / u64::from(self.described.block_bytes) }
    }

    /// Calls `look` with the data of a read at its place in memory. `None` if the read is not
    /// allowed now, has to be durable, or if its data is not in memory.
    #[inline]
    pub fn view_now<T>(&self, io: &Io, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T>
    where
        B: Block,
    {
        let Io::Read { offset, len, fua: false } = *io else { return None };
        let _inside = self.reach().and_then(|()| self.used.begin(io.group())).ok()?;
        self.block.view_now(offset, len as usize, look)
    }

    /// A command was answered.
    #[inline]
    pub fn ended(&self, alarm: &Alarm) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.is_ending() {
            alarm.ring();
        }
    }
}

/// Serves an admitted read at once, if it need not wait, and puts its answer in the outbox. This
/// saves a task, which costs a good part of a read from memory. Otherwise returns a buffer that the
/// read may use.
///
/// # Errors
/// The read has to wait, or it fails, which [`serve`] will report.
#[inline]
pub(super) fn serve_now<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    cid: u16,
    io: &Io,
    arrived: Nanos,
    alarm: &Alarm,
) -> Result<(), Option<BufMut>> {
    let Io::Read { offset, len, fua: false } = *io else { return Err(None) };
    let inside = handle.reach().and_then(|()| handle.used.begin(io.group())).map_err(|_| None)?;
    let mut buf = queue.link.env.alloc(len as usize);
    if !handle.block.read_now(offset, &mut buf) {
        return Err(Some(buf));
    }
    drop(inside);
    answer(queue, handle, cid, io, Ok(Some(buf.freeze())), arrived, alarm);
    Ok(())
}

/// Serves a command that the link has admitted with its [`held_bytes`], and puts its answer in the
/// outbox. `data` holds the data of the command, or is the buffer for a read.
pub(super) async fn serve<B: Block>(
    queue: Rc<Queue>,
    handle: Rc<Handle<B>>,
    cid: u16,
    io: Io,
    data: Option<BufMut>,
    arrived: Nanos,
    alarm: Arc<Alarm>,
) {
    let bytes = window_bytes(&io);
    let inside = match queue.link.try_enter(bytes) {
        Some(inside) => inside,
        None => match Box::pin(queue.waiting.unless_aborted(cid, queue.link.enter(bytes))).await {
            Ok(Some(inside)) => inside,
            unserved => return refuse(&queue, &handle, cid, &io, arrived, &alarm, unserved.err()),
        },
    };
    let answered = execute(&queue, &handle, io, data).await;
    drop(inside);
    answer(&queue, &handle, cid, &io, answered, arrived, &alarm);
}

/// Puts the answer to a command in the outbox.
#[inline]
fn answer<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    cid: u16,
    io: &Io,
    answer: Result<Option<Buf>, Status>,
    arrived: Nanos,
    alarm: &Alarm,
) {
    let took = queue.link.env.now().saturating_sub(arrived);
    handle.answered(io, took, answer.as_ref().err().copied().unwrap_or(Status::SUCCESS));
    let held = held_bytes(io);
    match answer {
        Ok(Some(data)) => queue.deliver(cid, data, 0, held),
        Ok(None) => queue.complete(cid, Status::SUCCESS, 0, held),
        Err(status) => queue.fail(handle.named(cid, io), status, held),
    }
    handle.ended(alarm);
}

/// Answers a command that is not served: it was aborted, or its queue has ended.
fn refuse<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    cid: u16,
    io: &Io,
    arrived: Nanos,
    alarm: &Alarm,
    abort: Option<Request>,
) {
    let status = if abort.is_some() { Status::ABORT_REQUESTED } else { Status::ABORTED_SQ_DELETION };
    answer(queue, handle, cid, io, Err(status), arrived, alarm);
    abort.into_iter().for_each(Request::done);
}

/// As [`serve`], for a command that may have to wait for a rate limit.
pub(super) async fn serve_limited<B: Block>(
    queue: Rc<Queue>,
    handle: Rc<Handle<B>>,
    cid: u16,
    io: Io,
    data: Option<BufMut>,
    arrived: Nanos,
    alarm: Arc<Alarm>,
) {
    // A command without data releases its memory while it is throttled, so that others of its queue
    // have room.
    let spare = if data.is_some() { 0 } else { held_bytes(&io) };
    queue.link.shrink(spare);
    let passed = queue.waiting.unless_aborted(cid, handle.pass(&queue.link.env, &io)).await;
    let (status, abort) = match passed {
        Ok(Ok(())) => {
            queue.link.room(spare).await;
            return serve(queue, handle, cid, io, data, arrived, alarm).await;
        }
        Ok(Err(status)) => (status, None),
        Err(abort) => (Status::ABORT_REQUESTED, Some(abort)),
    };
    handle.answered(&io, queue.link.env.now().saturating_sub(arrived), status);
    queue.fail(handle.named(cid, &io), status, held_bytes(&io) - spare);
    handle.ended(&alarm);
    abort.into_iter().for_each(Request::done);
}
