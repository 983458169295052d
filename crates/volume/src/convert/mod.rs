//! A volume that gets another kind while it is in use: from direct to thin, or back.
//!
//! Guarantees:
//! 1. The source is complete until the conversion ends. Every change goes to it, and every read
//!    comes from it. So a conversion can be stopped at any time, and a crash loses nothing.
//! 2. The target equals the source where it is copied. A change of copied bytes goes to both, and
//!    changes that overlap follow each other, so that both get them in the same order. Changes
//!    that overlap with the piece that is being copied wait for it.
//! 3. Bytes that are saved as copied are durable in both, except in *stale* regions. After a power
//!    cut the two may differ in a block that was being changed. So a region is saved as stale
//!    before the first change of it goes to the target. After a restart it is copied again.
//! 4. A change that the target refuses is done once the source has it. Its region is copied again.
//! 5. The conversion ends between two changes, when all is copied and the target is flushed. The
//!    target is the volume from the moment when the catalogue says so.
//!
//! Example: a direct volume of 10 GiB has 1024 regions of 10 MiB. Regions 0 to 299 are copied, and
//! the catalogue says so. A client writes 4 KiB into region 7. The write waits until the catalogue
//! lists region 7 as stale. Then the 4 KiB go to source and target. Later writes to region 7 do
//! not wait. If region 7 stays unchanged for a while, both are flushed, and it is listed no more.
//!
//! The daemon does the rest: it saves the progress, and puts the target in the place of the volume.
//!
//! Tests: `sim/tests/thin/convert.rs`.

mod change;
mod copy;
mod regions;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use drive::{
    Block, BlockError, Buf, BufMut, Env, Extent, Order, Receiver, Sender, ThinUse, Turn, WriteZeroes, oneshot,
};

use crate::signal::Signal;
use change::Change;
pub use regions::Progress;
use regions::Regions;

/// The limits of a conversion. The simulator makes them small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvertTuning {
    /// Bytes that are copied at once. Changes of them wait meanwhile.
    pub window_bytes: u64,
    /// Most regions.
    pub regions_max: u64,
    /// Most stale ranges in the catalogue. More of them are joined.
    pub stale_max: usize,
}

impl Default for ConvertTuning {
    fn default() -> Self {
        ConvertTuning { window_bytes: 1 << 20, regions_max: 1024, stale_max: 64 }
    }
}

/// Which content is the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source alone: the conversion was cancelled.
    Source,
    /// The target alone: the conversion has ended.
    Target,
}

/// The result of [`Converting::hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The target is complete and durable. Changes wait until [`Converting::end`] or
    /// [`Converting::resume`].
    Complete,
    /// A change waits for the progress to be saved. Changes are held back.
    SaveFirst,
    /// Something has to be copied again.
    Incomplete,
}

/// A volume that is being converted, on one shard. A handle: clones are the same volume.
pub struct Converting<E: Env, S, T>(Rc<Conversion<E, S, T>>);

struct Conversion<E: Env, S, T> {
    env: E,
    source: S,
    target: T,
    tuning: ConvertTuning,
    /// 0 when the volume is closed.
    size_bytes: Cell<u64>,
    regions: RefCell<Regions>,
    /// Changes and copies that overlap.
    order: Arc<Order>,
    /// Holds back all changes while the conversion ends.
    held: RefCell<Option<Rc<Turn>>>,
    /// `None` while both have to be kept.
    side: Cell<Option<Side>>,
    /// The copying is to stop, for a restart.
    is_stopping: Cell<bool>,
    /// Why the copying does not go on.
    trouble: RefCell<Option<BlockError>>,
    /// The progress could not be saved.
    unsaved: RefCell<Option<BlockError>>,
    /// Something has changed that a task may wait for.
    changed: Signal,
    /// Wakes the task that saves and ends.
    on_attention: Box<dyn Fn()>,
    /// Held by every request.
    requests: RefCell<Rc<Requests>>,
    /// Resolves when no request is under way any more, after others hold other requests.
    requests_ended: RefCell<Receiver<()>>,
}

/// Dropped with the last request of a time.
struct Requests(#[expect(dead_code, reason = "it is dropped")] Sender<()>);

impl<E: Env, S, T> Clone for Converting<E, S, T> {
    fn clone(&self) -> Self {
        Converting(self.0.clone())
    }
}

impl<E: Env, S: Block + 'static, T: Block + 'static> Converting<E, S, T> {
    /// The conversion of a volume, from a progress on. `on_attention` is called when
    /// [`Converting::wants_saving`] or [`Converting::is_copied`] gets true, or the copying has
    /// trouble.
    pub fn new(
        env: E,
        (source, target): (S, T),
        progress: &Progress,
        tuning: ConvertTuning,
        on_attention: Box<dyn Fn()>,
    ) -> Self {
        let size_bytes = source.size_bytes();
        let (ended, requests_ended) = oneshot();
        Converting(Rc::new(Conversion {
            env,
            source,
            target,
            tuning,
            size_bytes: Cell::new(size_bytes),
            regions: RefCell::new(Regions::new(size_bytes, progress, &tuning)),
            order: Order::new(),
            held: RefCell::default(),
            side: Cell::new(None),
            is_stopping: Cell::new(false),
            trouble: RefCell::default(),
            unsaved: RefCell::default(),
            changed: Signal::default(),
            on_attention,
            requests: RefCell::new(Rc::new(Requests(ended))),
            requests_ended: RefCell::new(requests_ended),
        }))
    }

    /// The content that the volume had.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// The content that it gets.
    pub fn target(&self) -> &T {
        &self.0.target
    }

    /// Bytes that are copied.
    pub fn copied_bytes(&self) -> u64 {
        self.0.regions.borrow().copied_bytes()
    }

    /// Why the copying does not go on at present.
    pub fn trouble(&self) -> Option<BlockError> {
        self.0.trouble.borrow().clone()
    }

    /// Whether a change waits for the progress to be saved.
    pub fn wants_saving(&self) -> bool {
        self.0.regions.borrow().wants_listing()
    }

    /// Whether all is copied.
    pub fn is_copied(&self) -> bool {
        self.0.regions.borrow().is_copied()
    }

    /// The progress to be saved. The caller saves it, and then calls [`Converting::saved`]. With
    /// `flush`, more is copied since the last time. Without it, only stale regions are added.
    ///
    /// # Errors
    /// [`BlockError`] if source or target cannot be flushed.
    pub async fn progress(&self, flush: bool) -> Result<Progress, BlockError> {
        if !flush && !self.0.regions.borrow().must_flush() {
            return Ok(self.0.regions.borrow_mut().progress(None, self.0.tuning.stale_max));
        }
        let copied_end = self.0.regions.borrow_mut().begin_flush();
        // Bytes that were copied or changed before this are the same in both, and get durable.
        self.0.target.flush().await?;
        self.0.source.flush().await?;
        Ok(self.0.regions.borrow_mut().progress(Some(copied_end), self.0.tuning.stale_max))
    }

    /// The progress was saved, or could not be.
    pub fn saved(&self, result: Result<(), BlockError>) {
        self.0.regions.borrow_mut().saved(result.is_ok());
        self.0.unsaved.replace(result.err());
        self.0.changed.raise();
    }

    /// Holds back all changes, and makes the target durable. To be called again after a save if
    /// the answer asks for one. The caller calls [`Converting::end`] or [`Converting::resume`].
    ///
    /// # Errors
    /// [`BlockError`] if the target cannot be flushed.
    pub async fn hold(&self) -> Result<Hold, BlockError> {
        let entered = self.0.held.borrow().clone();
        let turn = entered.unwrap_or_else(|| {
            let turn = Rc::new(self.0.order.enter(0, u64::MAX));
            self.0.held.replace(Some(turn.clone()));
            turn
        });
        if drive::race(turn.come(), self.until_saving_is_wanted()).await.is_none() {
            return Ok(Hold::SaveFirst);
        }
        if !self.is_copied() {
            return Ok(Hold::Incomplete);
        }
        self.0.target.flush().await.map(|()| Hold::Complete)
    }

    async fn until_saving_is_wanted(&self) {
        while !self.wants_saving() {
            self.0.changed.changed().await;
        }
    }

    /// Lets changes go on.
    pub fn resume(&self) {
        self.0.held.take();
        self.0.changed.raise();
    }

    /// From now on the volume is one of its contents alone. Requests under way end there.
    pub fn end(&self, side: Side) {
        self.0.side.set(Some(side));
        self.resume();
    }

    /// Stops the copying. Requests are still served.
    pub fn stop(&self) {
        self.0.is_stopping.set(true);
        self.0.changed.raise();
    }

    /// Returns when the requests that are under way have been answered.
    pub async fn drained(&self) {
        let (ended, next) = oneshot();
        drop(self.0.requests.replace(Rc::new(Requests(ended))));
        let before = self.0.requests_ended.replace(next);
        // The sender never sends; it is dropped with the last holder.
        let _ = before.await;
    }

    /// Removes the volume: from now on every request is refused as beyond its end. Returns when
    /// those under way have been answered.
    pub async fn close(&self) {
        self.0.size_bytes.set(0);
        self.stop();
        self.drained().await;
    }

    /// A token for a request, if its range is within the volume.
    fn enter(&self, offset: u64, len: u64) -> Result<Rc<Requests>, BlockError> {
        let size = self.0.size_bytes.get();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        Ok(self.0.requests.borrow().clone())
    }

    fn is_target(&self) -> bool {
        self.0.side.get() == Some(Side::Target)
    }
}

impl<E: Env, S: Block + 'static, T: Block + 'static> Block for Converting<E, S, T> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes.get()
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.0.source.optimal_io_bytes()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let _request = self.enter(offset, buf.len() as u64)?;
        match self.is_target() {
            true => self.0.target.read(offset, buf).await,
            false => self.0.source.read(offset, buf).await,
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let len = data.len() as u64;
        self.change(offset, len, Change::Write(data, fua)).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.change(offset, len, Change::Zeroes(how)).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.change(offset, len, Change::Discard).await
    }

    fn thin_use(&self) -> Option<ThinUse> {
        if self.is_target() { self.0.target.thin_use() } else { self.0.source.thin_use() }
    }

    fn is_degraded(&self) -> bool {
        self.0.source.is_degraded()
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let _request = self.enter(0, 0)?;
        // The target is flushed before it counts.
        match self.is_target() {
            true => self.0.target.flush().await,
            false => self.0.source.flush().await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let _request = self.enter(offset, len)?;
        match self.is_target() {
            true => self.0.target.extents(offset, len).await,
            false => self.0.source.extents(offset, len).await,
        }
    }
}
