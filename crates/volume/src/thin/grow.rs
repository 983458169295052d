//! Changes of the store as a whole: more space, and volumes that are deleted.

use std::rc::Rc;

use drive::{BlockError, join_all};
use format::ExtentRecord;
use format::thin::segment::SegmentRecord;

use super::backing::{Allocated, Backing};
use super::store::ThinStore;

impl<B: Backing> ThinStore<B> {
    /// Adds extents to the store. Their content is lost. The catalogue has to list them already: a
    /// checkpoint may need them from now on.
    ///
    /// # Errors
    /// [`BlockError`] if the space cannot be discarded. Nothing is added then.
    pub async fn add_extents(&self, extents: &[ExtentRecord]) -> Result<(), BlockError> {
        let ids: Vec<u64> = extents.iter().flat_map(|extent| self.grid.segments(extent)).collect();
        let is_used =
            |id: &&u64| self.backing.allocated(self.grid.start(**id), self.grid.segment_bytes) != Allocated::Nothing;
        let used = ids.iter().filter(is_used);
        let discards = used.map(|id| self.backing.discard(self.grid.start(*id), self.grid.segment_bytes));
        join_all(discards.collect::<Vec<_>>()).await.into_iter().collect::<Result<(), _>>()?;
        self.make_durable().await?;
        let mut segments = self.segments.borrow_mut();
        for id in ids.into_iter().filter(|id| segments.get(*id).is_none()).collect::<Vec<_>>() {
            segments.add(id, SegmentRecord::default());
            segments.discarded(id);
        }
        drop(segments);
        self.is_space_wanted.set(false);
        self.progress.raise();
        Ok(())
    }

    /// Says whether the group has more space for the store. While it has, writes wait for that, and
    /// are not refused.
    pub fn set_can_grow(&self, can_grow: bool) {
        self.can_grow.set(can_grow);
        self.is_space_wanted.set(false);
        self.work.raise();
        self.progress.raise();
    }

    /// Sets what is called when the store wants more space: once, until extents are added or
    /// [`ThinStore::set_can_grow`] is called.
    pub fn on_space_wanted(&self, notify: Box<dyn Fn()>) {
        self.on_space_wanted.replace(Some(notify));
    }

    /// Whether more space would be useful, and the group may have some.
    pub fn wants_space(&self) -> bool {
        self.is_space_wanted.get()
    }

    /// Asks for more space, if there may be some.
    pub(super) fn want_space(&self) {
        if self.can_grow.get()
            && !self.is_space_wanted.replace(true)
            && let Some(notify) = &*self.on_space_wanted.borrow()
        {
            notify();
        }
    }

    /// Frees all frames of the intent log: their content is in segments, durably, when this
    /// returns.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn reclaim_all_intents(self: &Rc<Self>) -> Result<(), BlockError> {
        self.land_all().await?;
        self.make_durable().await
    }

    /// The lines of the store: of volumes that have content, or had.
    pub fn lines(&self) -> Vec<u32> {
        self.trees.borrow().lines.keys().copied().collect()
    }

    /// Frees all that a line has, and forgets it. No request may use the volume any more, or ever
    /// again. A deletion that a crash interrupts has to be repeated: nothing of it is logged.
    ///
    /// # Errors
    /// [`BlockError`] if the map cannot be read, or the store has failed.
    pub async fn delete(self: &Rc<Self>, line: u32) -> Result<(), BlockError> {
        self.settings.borrow_mut().remove(&line);
        self.written.borrow_mut().remove(&line);
        // Nothing of it may be entered into the map later.
        self.land_all().await?;
        loop {
            self.check_usable()?;
            let next = self.trees.borrow().next_leaf(line, 0);
            let leaf = match next {
                Err((id, stored)) => {
                    self.load_node(id, stored).await?;
                    continue;
                }
                Ok(Some(leaf)) => leaf,
                Ok(None) => break,
            };
            if self.coming_checkpoint_bytes() >= self.checkpoint_bytes() / 2 {
                self.checkpoint().await?;
            }
            if self.load_leaf(line, leaf).await? {
                self.change_leaf(line, leaf, super::leaf::MapLeaf::clear_all);
            }
            self.evict();
        }
        self.checkpoint().await?;
        {
            let mut trees = self.trees.borrow_mut();
            trees.lines.remove(&line);
            trees.dirty_lines.insert(line);
        }
        self.progress.raise();
        Ok(())
    }
}
