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
        self.space_answered();
        Ok(())
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
            self.offer_space();
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
