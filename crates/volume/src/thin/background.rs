//! Background work: frees the log before it is full, makes checkpoints, and has segments collected
//! and content stored anew.

use std::rc::{Rc, Weak};

use drive::{BlockError, Env};

use super::backing::Backing;
use super::pool::SpaceWanted;
use super::store::ThinStore;

impl<B: Backing> ThinStore<B> {
    pub(super) fn spawn_background(self: &Rc<Self>) {
        let store = Rc::downgrade(self);
        self.env().spawn(async move { keep(store, Self::keep_log).await });
        let store = Rc::downgrade(self);
        self.env().spawn(async move { keep(store, Self::keep_space).await });
        let store = Rc::downgrade(self);
        self.env().spawn(async move { keep(store, Self::keep_order).await });
    }

    /// Frees frames when the log is filling.
    async fn keep_log(self: Rc<Self>) -> Result<(), BlockError> {
        if self.backing.intents_are_filling() {
            self.land_all().await?;
            self.make_durable().await?;
        }
        Ok(())
    }

    /// Makes a checkpoint if much has changed, and collects if segments are short.
    async fn keep_space(self: Rc<Self>) -> Result<(), BlockError> {
        // A write may wait for parts that do not fill a run.
        if self.waits_for_landing.take() {
            self.land_all().await?;
        }
        let changes = self.next_sequence.get() - self.changes_since.get();
        let is_dirty = self.trees.borrow().dirty_bytes() >= self.checkpoint_bytes() / 4;
        if changes >= self.tuning.changes_max || is_dirty {
            self.checkpoint().await?;
        }
        let space = self.space();
        if space.used() + space.reserved + space.limit / 8 > space.limit {
            self.want_space(SpaceWanted::Soon);
        }
        if self.waits_for_segments.take() && self.missing_segments(0) > 0 {
            self.collect_for_writes().await?;
        } else {
            self.collect_early().await?;
        }
        self.progress.raise();
        Ok(())
    }

    /// If no write came since the last call: enters what is pending into the map, and makes a
    /// checkpoint, so that segments without live content are free.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn settle_if_idle(self: &Rc<Self>) -> Result<(), BlockError> {
        let next = self.next_sequence.get();
        if self.seen_sequence.replace(next) != next {
            return Ok(());
        }
        if self.pending.borrow().lowest().is_some() {
            self.land_what_fits().await?;
        }
        if self.covered.get() < self.coverable() {
            self.checkpoint_at_pace().await?;
        }
        Ok(())
    }

    /// Ends the background work, and makes a last checkpoint. Requests are refused from now on.
    ///
    /// # Errors
    /// [`BlockError`] if the store could not be brought to a clean state. Flushed writes are safe.
    pub async fn stop(self: &Rc<Self>) -> Result<(), BlockError> {
        let _hurry = self.hurry();
        let result = match self.land_all().await {
            Ok(()) => self.checkpoint().await,
            Err(error) => Err(error),
        };
        self.is_stopping.set(true);
        self.work.raise();
        self.progress.raise();
        // From then on, nothing is written to the store's extents, also if the store has failed.
        while self.background_work.get() > 0 {
            self.progress.changed().await;
        }
        result
    }
}

/// Does some work whenever the store says that there may be some, as long as the store exists.
async fn keep<B: Backing, F: Future<Output = Result<(), BlockError>>>(
    store: Weak<ThinStore<B>>,
    work: impl Fn(Rc<ThinStore<B>>) -> F,
) {
    loop {
        let Some(strong) = store.upgrade() else { return };
        if strong.check_usable().is_err() {
            return;
        }
        // From before the work on: more may come meanwhile.
        let changed = strong.work.next();
        strong.background_work.set(strong.background_work.get() + 1);
        let result = work(strong.clone()).await;
        strong.background_work.set(strong.background_work.get() - 1);
        if strong.is_stopping.get() {
            strong.progress.raise();
        }
        if let Err(error) = result {
            strong.fail(&error);
            return;
        }
        drop(strong);
        changed.await;
    }
}
