//! The group as one shard sees it, and how a request gets to the shard that owns its stripe group.

use format::RoleSet;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use drive::{BlockError, Buf, Canceled, Env, Extent, Receiver, Sender, WriteZeroes, join_all, oneshot};
use smallvec::smallvec;

use crate::drives::handle::Handle;
use crate::drives::in_flight::InFlightTable;
use crate::geometry::StripeGroup;
use crate::geometry::ranges::Range;
use crate::io::incomplete::IncompleteWrites;
use crate::io::overlay::Content;
use crate::io::types::StripeGroupQueue;
use crate::log::Log;
use crate::state::leader::Leader;
use crate::state::message::{
    AHEAD_MIN, Body, Message, Op, Peers, Piece, Pieces, RebuiltAhead, Reply, Request, STEPS_AT_ONCE,
};
use crate::state::owners::Owners;
use crate::state::share::Governor;
use crate::state::shared::{Counters, Shared};
use crate::state::slot::DriveId;
use crate::util::semaphore::FairSemaphore;
use crate::util::stripe_group_map::StripeGroupMap;

/// Most steps of one [`Array::extents`] call, each an allocation chunk or a hole. Bounds its time.
const EXTENTS_STEPS_MAX: usize = 8192;

/// How long [`ArrayShard::buggify_delay`] waits: longer than a drive takes for an operation.
const BUGGIFY_DELAY: Duration = Duration::from_micros(300);

/// A drive group on one shard. A handle: cheap to clone.
pub struct Array<E: Env>(pub(crate) Rc<ArrayShard<E>>, pub(crate) Requester);

impl<E: Env> Clone for Array<E> {
    fn clone(&self) -> Self {
        Array(self.0.clone(), self.1)
    }
}

/// Whose requests come through a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// Clients of the group: the latency target is for them.
    Clients,
    /// A layer above, which has clients of its own, see [`Array::client_request`].
    Layer,
}

pub(crate) struct ArrayShard<E: Env> {
    pub env: E,
    pub shared: Arc<Shared>,
    pub shard: usize,
    pub shards: usize,
    /// Shards that own stripe groups.
    pub owners: Cell<Owners>,
    /// The log of this shard. It closes the write hole.
    pub log: RefCell<Option<Rc<Log>>>,
    /// Sequence of the first record of this shard's next log.
    pub log_next: Cell<u64>,
    /// Work on stripe groups passes this gate when it begins.
    pub gate: Gate,
    pub peers: Rc<dyn Peers>,
    /// Handles of the drives, by [`DriveId`].
    pub drives: RefCell<Vec<Option<Handle<E::Drive>>>>,
    /// Watches the operations that the drives have not answered.
    pub in_flight: Rc<InFlightTable>,
    /// Stripe groups with work. An entry lives as long as its task.
    pub stripe_groups: RefCell<StripeGroupMap<StripeGroupQueue>>,
    /// The stripe groups among them whose task begins at the end of this turn.
    pub arrived: RefCell<Vec<StripeGroup>>,
    /// Stripe groups at or above [`Shared::rebuilt`] that are already rebuilt on a drive.
    pub rebuilt_ahead: RefCell<RebuiltAhead>,
    /// Size of `rebuilt_ahead` from which on entries that the rebuild has passed are removed.
    pub ahead_limit: Cell<usize>,
    /// Decoders by the lost strips.
    pub decoders: RefCell<BTreeMap<RoleSet, Rc<gf::Decoder>>>,
    /// Incomplete writes.
    pub incomplete: IncompleteWrites,
    /// Allocation chunks that were freed and not yet discarded on the drives.
    pub freed: RefCell<Vec<(StripeGroup, Range)>>,
    pub trimming: Cell<bool>,
    /// Resolves when the discards are done for which a stripe group is being locked.
    pub trim_locks: RefCell<BTreeMap<StripeGroup, Receiver<()>>>,
    /// Limits the steps of large zeroing requests that run at the same time, see
    /// [`crate::io::zero`].
    pub zeroing: FairSemaphore,
    /// Checksums are being saved in the background, so that there is room before it is needed.
    pub saving_sums: Cell<bool>,
    /// The map is being made durable, because much was written for the first time.
    pub persisting: Cell<bool>,
    /// Only on shard 0.
    pub leader: Option<Leader>,
    /// Requests that wait for replies of other shards, by token.
    calls: RefCell<BTreeMap<u64, Call>>,
    next_token: Cell<u64>,
    /// By shard.
    pub counters: Arc<[Counters]>,
    /// Client requests in flight on this shard. Background work makes room for them.
    pub users: Cell<usize>,
    /// How much background work of this shard does beside them.
    pub governor: Governor,
}

/// A request that another shard has not answered.
struct Call {
    answer: Sender<Result<Reply, BlockError>>,
    /// The request is work on a stripe group.
    is_work: bool,
}

/// Whether this shard begins work on stripe groups.
#[derive(Default)]
pub(crate) struct Gate {
    pub closed: Cell<bool>,
    pub waiting: RefCell<Vec<Sender<()>>>,
    /// Work that other shards were asked for and have not answered. Work that no caller waits for
    /// any more counts as well.
    pub asked: Cell<usize>,
}

/// Which of the group's shards this is.
#[derive(Debug, Clone, Copy)]
pub struct ShardPlace {
    /// From 0.
    pub shard: usize,
    /// All of them.
    pub shards: usize,
}

impl<E: Env> Array<E> {
    pub(crate) fn build(
        env: E,
        shared: Arc<Shared>,
        drives: Vec<Option<E::Drive>>,
        place: ShardPlace,
        peers: Rc<dyn Peers>,
        leader: Option<Leader>,
    ) -> Self {
        assert!(place.shard < place.shards, "shard {} of {}", place.shard, place.shards);
        assert_eq!(leader.is_some(), place.shard == 0, "shard 0 leads");
        let counters = shared.counters(place.shards);
        let shard = Rc::new_cyclic(|inner| {
            let in_flight = in_flight_table_of(inner.clone(), &env, &shared, (place.shard, place.shards));
            let handle = |(id, drive): (usize, Option<E::Drive>)| {
                drive.map(|drive| Handle::new(drive, DriveId(id as u16), in_flight.clone()))
            };
            let drives = RefCell::new(drives.into_iter().enumerate().map(handle).collect());
            ArrayShard {
                env,
                shared,
                counters,
                shard: place.shard,
                shards: place.shards,
                owners: Cell::new(Owners::all(place.shards)),
                log: RefCell::default(),
                log_next: Cell::new(1),
                gate: Gate::default(),
                peers,
                drives,
                in_flight,
                stripe_groups: RefCell::default(),
                arrived: RefCell::default(),
                rebuilt_ahead: RefCell::default(),
                ahead_limit: Cell::new(AHEAD_MIN),
                decoders: RefCell::default(),
                incomplete: IncompleteWrites::default(),
                freed: RefCell::default(),
                trimming: Cell::new(false),
                trim_locks: RefCell::default(),
                zeroing: FairSemaphore::for_tasks(STEPS_AT_ONCE),
                saving_sums: Cell::new(false),
                persisting: Cell::new(false),
                leader,
                calls: RefCell::default(),
                next_token: Cell::new(0),
                users: Cell::new(0),
                governor: Governor::default(),
            }
        });
        let array = Array(shard, Requester::Clients);
        array.0.owners.set(array.0.fitting(Owners::all(place.shards), array.0.shared.has_intent_log()));
        array.0.log.replace(array.0.new_log());
        array
    }

    /// The state that all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Which of the group's shards this handle is for.
    pub fn shard(&self) -> usize {
        self.0.shard
    }

    /// User bytes of the group.
    pub fn size_bytes(&self) -> u64 {
        self.0.shared.geometry.capacity()
    }

    /// Puts a new drive's handle in its place on this shard. Every shard does this before the
    /// leader is asked to use the drive.
    pub fn install(&self, id: DriveId, drive: E::Drive) {
        let mut drives = self.0.drives.borrow_mut();
        let index = usize::from(id.0);
        if drives.len() <= index {
            drives.resize(index + 1, None);
        }
        drives[index] = Some(Handle::new(drive, id, self.0.in_flight.clone()));
    }

    /// Drops a drive's handle on this shard.
    pub fn uninstall(&self, id: DriveId) {
        if let Some(drive) = self.0.drives.borrow_mut().get_mut(usize::from(id.0)) {
            *drive = None;
        }
    }

    /// Writes `data` at `offset`. With `fua` it is durable when this returns.
    ///
    /// # Errors
    /// [`BlockError`]. After an error each block of the range has its old or its new content, or is
    /// unreadable. [`BlockError::NoSpace`] if the write would make blocks in the middle of lost
    /// ranges readable, and there are too many lost ranges already ([`Shared::lost`]).
    pub async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.0.counters().writes.count();
        let len = data.len() as u64;
        self.change(offset, len, fua, |from, len| Content::Data(data.slice(from as usize..(from + len) as usize))).await
    }

    /// Makes a range read as zeroes. Frees whole allocation chunks, unless they are to be kept.
    ///
    /// # Errors
    /// As for [`Array::write`]. [`BlockError::NotFast`] if the caller wants only the fast way, and
    /// zeroes would have to be written.
    pub async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        if how.only_fast && (how.keep_allocated || !self.is_fast_to_zero(offset, len)) {
            return Err(BlockError::NotFast);
        }
        self.zero(offset, len, how.keep_allocated, how.fua).await
    }

    /// Frees a range: it reads as zeroes afterwards.
    ///
    /// # Errors
    /// As for [`Array::write`].
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.zero(offset, len, false, false).await
    }

    /// Which parts of a range are allocated. The extents are adjacent, begin at `offset`, and
    /// alternate between allocated and not. If that takes long, the answer ends before the range
    /// does. It covers at least one byte, unless the range is empty.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`].
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check(offset, len)?;
        let geometry = &self.0.shared.geometry;
        let mut extents: Vec<Extent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        for _ in 0..EXTENTS_STEPS_MAX {
            if at == end {
                break;
            }
            let place = geometry.place(at);
            let allocated = self.0.shared.map.get(geometry.chunk_index(place.stripe_group, place.offset));
            let chunk = place.left.min(geometry.chunk_bytes - place.offset % geometry.chunk_bytes);
            let step =
                if allocated { chunk } else { chunk.max(self.hole_at(at, place.stripe_group, end)) }.min(end - at);
            match extents.last_mut() {
                Some(last) if last.allocated == allocated => last.len += step,
                _ => extents.push(Extent { len: step, allocated }),
            }
            at += step;
        }
        Ok(extents)
    }

    /// Takes a message that another shard sent to this one.
    pub fn deliver(&self, message: Message) {
        let Message { from, token, body } = message;
        match body {
            Body::Reply(reply) => {
                let call = self.0.calls.borrow_mut().remove(&token);
                let Call { answer, is_work } = call.expect("a reply answers a request");
                self.0.gate.asked.set(self.0.gate.asked.get() - usize::from(is_work));
                answer.send(reply);
            }
            Body::Request(request) => {
                let inner = self.0.clone();
                self.0.env.spawn(async move {
                    let reply = inner.serve(request).await;
                    inner.peers.send(from, Message { from: inner.shard, token, body: Body::Reply(reply) });
                });
            }
        }
    }

    /// Checks that a range lies within the group and that the group takes requests.
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.size_bytes();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        if self.0.shared.is_stopped() { Err(BlockError::Stopped) } else { Ok(()) }
    }

    /// Length of the hole from `offset` on, which lies in `stripe_group`. A band is one stripe
    /// group of every set. If this band has an allocated chunk, the result is 0. Otherwise the hole
    /// ends at the next band with one; it reaches at least to `end` if there is none before.
    pub(crate) fn hole_at(&self, offset: u64, stripe_group: StripeGroup, end: u64) -> u64 {
        let geometry = &self.0.shared.geometry;
        let band_chunks = geometry.chunks_per_stripe_group() * geometry.sets;
        let band = stripe_group.0 / geometry.sets;
        let band_bytes = geometry.band_bytes();
        let chunks = band * band_chunks..end.div_ceil(band_bytes) * band_chunks;
        let next = self.0.shared.map.next_allocated_in(chunks).map(|chunk| chunk / band_chunks);
        if next == Some(band) {
            return 0;
        }
        next.map_or(self.size_bytes(), |next| next * band_bytes) - offset
    }

    /// Whether zeroing a range needs no data to be written: either nothing of it is allocated, or
    /// it consists of whole bands (one stripe group of every set).
    pub fn is_fast_to_zero(&self, offset: u64, len: u64) -> bool {
        let geometry = &self.0.shared.geometry;
        let band = geometry.band_bytes();
        let whole = offset.is_multiple_of(band) && len.is_multiple_of(band);
        let is_hole = |extents: Vec<Extent>| extents == [Extent { len, allocated: false }];
        whole || self.extents(offset, len).is_ok_and(is_hole)
    }

    pub(crate) async fn change(
        &self,
        offset: u64,
        len: u64,
        fua: bool,
        content: impl Fn(u64, u64) -> Content,
    ) -> Result<(), BlockError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.0.shared.lost.check_write(offset, len)?;
        let _user = self.0.enter_user(self.1);
        let mut work = self.0.split(offset, len, content);
        if work.len() == 1 {
            let (stripe_group, pieces) = work.swap_remove(0);
            self.0.on_owner(stripe_group, Op::Write { pieces, fua }).await?;
        } else {
            // All stripe groups are asked before the first answer is waited for.
            let calls =
                work.into_iter().map(|(stripe_group, pieces)| self.0.on_owner(stripe_group, Op::Write { pieces, fua }));
            join_all(calls).await.into_iter().try_for_each(|reply| reply.map(|_| ()))?;
        }
        if self.0.shared.lost.check_read(offset, len).is_err() {
            // The data is durable before the list says that the blocks are readable again.
            self.flush().await?;
            self.0.on_leader(Request::SaveLost { offset, len }).await?;
        }
        Ok(())
    }
}

impl<E: Env> ArrayShard<E> {
    /// The counters of this shard.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters[self.shard]
    }

    /// Has work on a stripe group done by its owner. The work runs to its end even if the caller
    /// drops this future.
    pub async fn on_owner(self: &Rc<Self>, stripe_group: StripeGroup, op: Op) -> Result<Reply, BlockError> {
        if self.gate.closed.get() {
            Box::pin(self.gate_opens()).await?;
        }
        let owner = self.owner(stripe_group);
        if owner == self.shard {
            self.as_owner(stripe_group, op).await
        } else {
            self.ask(owner, Request::OnStripeGroup(stripe_group, op)).await
        }
    }

    async fn as_owner(self: &Rc<Self>, stripe_group: StripeGroup, mut op: Op) -> Result<Reply, BlockError> {
        if self.write_now(stripe_group, &mut op) {
            Ok(Reply::Done)
        } else {
            answer(self.enqueue(stripe_group, op).await)
        }
    }

    /// Asks the leader.
    pub async fn on_leader(self: &Rc<Self>, request: Request) -> Result<Reply, BlockError> {
        self.on_shard(0, request).await
    }

    /// Asks a shard, which may be this one.
    pub async fn on_shard(self: &Rc<Self>, shard: usize, request: Request) -> Result<Reply, BlockError> {
        // Boxed: this future is rare and large, and would be a part of nearly every other one.
        if self.shard == shard { Box::pin(self.serve(request)).await } else { self.ask(shard, request).await }
    }

    /// Sometimes waits a moment in a simulation, at a `place` where production hardly ever waits.
    #[inline]
    pub async fn buggify_delay(&self, place: &'static str) {
        if self.env.buggify(place) {
            self.env.sleep(BUGGIFY_DELAY).await;
        }
    }

    /// Runs work to its end even if the caller drops this future. A change of the group's state
    /// that is dropped half way would leave marks that no other task removes.
    pub async fn run_detached<T: 'static, X: From<BlockError> + 'static>(
        &self,
        work: impl Future<Output = Result<T, X>> + 'static,
    ) -> Result<T, X> {
        let (sender, receiver) = oneshot();
        self.env.spawn(async move { sender.send(work.await) });
        // Without a sender the shard is being torn down.
        receiver.await.unwrap_or_else(|Canceled| Err(BlockError::Stopped.into()))
    }

    async fn ask(&self, shard: usize, request: Request) -> Result<Reply, BlockError> {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        let (sender, receiver) = oneshot();
        let is_work = matches!(request, Request::OnStripeGroup(..));
        self.gate.asked.set(self.gate.asked.get() + usize::from(is_work));
        self.calls.borrow_mut().insert(token, Call { answer: sender, is_work });
        self.peers.send(shard, Message { from: self.shard, token, body: Body::Request(request) });
        answer(receiver.await)
    }

    async fn serve(self: &Rc<Self>, request: Request) -> Result<Reply, BlockError> {
        match request {
            // The barrier of a stop may have passed this shard while the request was on its way.
            Request::OnStripeGroup(..) if self.shared.is_stopped() => Err(BlockError::Stopped),
            Request::OnStripeGroup(stripe_group, op) => self.as_owner(stripe_group, op).await,
            Request::Persist => self.persist_map().await.map(|()| Reply::Done),
            Request::CompleteRecords => {
                // Incomplete writes keep their records open until they are written again.
                self.retry_writes(|_| true).await?;
                if let Some(log) = self.log() {
                    log.until_none_open().await;
                }
                Ok(Reply::Done)
            }
            Request::Checkpoint => self.flush_and_checkpoint().await.map(|()| Reply::Done),
            Request::CheckpointAll => {
                if let Some(log) = self.log() {
                    log.mark_suspect();
                }
                self.flush_and_checkpoint().await.map(|()| Reply::Done)
            }
            Request::CheckpointQuietly => Ok(Reply::Checkpointed { failed: self.checkpoint_quietly().await }),
            Request::SaveLost { offset, len } => self.save_lost(Some((offset, len))).await.map(|()| Reply::Done),
            Request::MarkDirty => self.mark_dirty().await.map(|()| Reply::Done),
            Request::Barrier => {
                self.barrier().await;
                Ok(Reply::Done)
            }
            Request::Close => {
                self.close_gate();
                Ok(Reply::Done)
            }
            Request::Quiet => Ok(Reply::Quiet(self.falls_quiet().await)),
            Request::Own(owners, ahead) => {
                self.own(owners, ahead).await;
                Ok(Reply::Done)
            }
            Request::Open => {
                self.open_gate();
                Ok(Reply::Done)
            }
            Request::Fail(member, drive, cause) => Ok(Reply::Accepted(self.fail_in_place(member, drive, cause).await)),
            Request::Tell(event) => {
                self.tell(event);
                Ok(Reply::Done)
            }
            Request::Silent(member, drive) => Ok(Reply::Accepted(self.give_up(member, drive))),
            Request::Freed(stripe_group, chunk) => {
                self.trim_later([(stripe_group, chunk)]);
                Ok(Reply::Done)
            }
            Request::Slow(member, drive) => {
                self.note_slow(member, drive);
                Ok(Reply::Done)
            }
        }
    }

    /// Cuts a range into pieces, and collects them by stripe group.
    fn split(&self, offset: u64, len: u64, content: impl Fn(u64, u64) -> Content) -> Vec<(StripeGroup, Pieces)> {
        let geometry = &self.shared.geometry;
        let mut work: Vec<(StripeGroup, Pieces)> = Vec::with_capacity(1);
        let mut done = 0;
        while done < len {
            let place = geometry.place(offset + done);
            let step = place.left.min(len - done);
            let piece = Piece {
                role: place.role,
                range: Range::new(place.offset, place.offset + step),
                content: content(done, step),
            };
            // The stripes of a stripe group are at most `rows * sets` stripes apart, so the search
            // from the end is short.
            match work.iter_mut().rev().find(|(stripe_group, _)| *stripe_group == place.stripe_group) {
                Some((_, pieces)) => pieces.push(piece),
                None => work.push((place.stripe_group, smallvec![piece])),
            }
            done += step;
        }
        work
    }

    /// The handle of a drive, if it is installed.
    pub fn drive(&self, id: DriveId) -> Option<Handle<E::Drive>> {
        self.drives.borrow().get(usize::from(id.0)).cloned().flatten()
    }

    /// A drive without its entry in the in-flight table, for a caller that does without the
    /// in-flight table.
    #[inline]
    pub fn untracked(&self, id: DriveId) -> Option<E::Drive> {
        Some(self.drives.borrow().get(usize::from(id.0))?.as_ref()?.untracked().clone())
    }

    pub fn enqueue(self: &Rc<Self>, stripe_group: StripeGroup, op: Op) -> Receiver<Result<Reply, BlockError>> {
        debug_assert_eq!(self.owner(stripe_group), self.shard, "{stripe_group:?} belongs to another shard");
        let (sender, receiver) = oneshot();
        self.push(stripe_group, op, sender);
        receiver
    }
}

/// A reply whose sender was dropped comes from a shard that is being torn down.
fn answer(reply: Result<Result<Reply, BlockError>, Canceled>) -> Result<Reply, BlockError> {
    reply.unwrap_or(Err(BlockError::Stopped))
}

/// The in-flight table of the shard that `inner` will be.
fn in_flight_table_of<E: Env>(
    inner: Weak<ArrayShard<E>>,
    env: &E,
    shared: &Arc<Shared>,
    place: (usize, usize),
) -> Rc<InFlightTable> {
    let (clock, starter) = (env.clone(), env.clone());
    let start = move || {
        // If the shard is gone, the futures of its operations are being dropped.
        if let Some(shard) = inner.upgrade() {
            let generation = shard.in_flight.begin_task();
            starter.spawn(ArrayShard::check_in_flight(inner.clone(), starter.clone(), generation));
        }
    };
    InFlightTable::new(shared, place, Box::new(move || clock.now()), Box::new(start))
}
