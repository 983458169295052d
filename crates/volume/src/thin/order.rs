//! Chooses what is stored anew, and when: content that was not written for a while, if its volume
//! says so, and content that is read in order although it is scattered.
//!
//! A volume is looked at in turns, each of the time after which its content counts as cold. What
//! was written before a turn began is cold at the end of it. So content is cold after one to two of
//! these times. After a start the first turn begins anew.

use std::ops::Range;
use std::rc::Rc;

use drive::{BlockError, Env, Nanos};
use format::thin::entry::LEAF_BLOCKS;

use super::backing::Backing;
use super::collect::ORDERED;
use super::compress::Compression;
use super::due::{READ_BYTES_MIN, SCATTERED_MAX, Turn};
use super::repack::{Rewrite, Underway, is_scattered};
use super::store::ThinStore;

/// The level of Zstandard for volumes that have another codec.
const LEVEL_USUAL: u8 = 3;

impl<B: Backing> ThinStore<B> {
    /// Notes a read. Returns the leaves that are now read as a whole, in order.
    pub(super) fn note_read(&self, line: u32, from: u64, to: u64) -> Range<u64> {
        if to - from < READ_BYTES_MIN {
            return 0..0;
        }
        self.due.borrow_mut().read(line, from, to)
    }

    /// A leaf in memory was read in order: has it stored in order, if it is not.
    pub(super) fn want_order(&self, line: u32, leaf: u64) {
        let is_due = self.trees.borrow().leaf(line, leaf).is_some_and(|leaf| is_scattered(leaf.entries()));
        let mut due = self.due.borrow_mut();
        if is_due && due.scattered.len() < SCATTERED_MAX {
            due.scattered.insert((line, leaf));
        }
    }

    /// Looks what is to be stored anew: cold content of volumes, and what was read in order. To be
    /// called about once a second.
    pub fn look_for_work(&self) {
        let (now, next) = (self.env().now(), self.next_sequence.get());
        let settings = self.settings.borrow();
        let mut due = self.due.borrow_mut();
        due.turns.retain(|line, _| settings.get(line).is_some_and(|settings| settings.repack_after.is_some()));
        for (line, after) in settings.iter().filter_map(|(line, settings)| Some((line, settings.repack_after?))) {
            let begun = || Turn { began: now, began_at: next, done_below: 0, now: None };
            let turn = due.turns.entry(*line).or_insert_with(begun);
            if turn.now.is_some() || now - turn.began < after.as_nanos() as Nanos {
                continue;
            }
            let cold = turn.done_below..turn.began_at;
            turn.now = (!cold.is_empty()).then_some((cold, 0));
            (turn.began, turn.began_at) = (now, next);
        }
        due.is_time = !due.scattered.is_empty() || due.turns.values().any(|turn| turn.now.is_some());
        if due.is_time {
            self.work.raise();
        }
    }

    /// Stores anew what is due, as long as there are enough free segments.
    pub(super) async fn keep_order(self: Rc<Self>) -> Result<(), BlockError> {
        if !std::mem::take(&mut self.due.borrow_mut().is_time) || self.missing_segments(1) > 0 {
            return Ok(());
        }
        // An idle store makes none by itself.
        if self.covered.get() < self.coverable() {
            self.checkpoint_at_pace().await?;
        }
        let mut underway = Underway::default();
        while self.check_usable().is_ok() && self.missing_segments(1) == 0 {
            let began = self.env().now();
            let Some((line, leaf, how)) = self.next_leaf_to_copy().await else { break };
            if !self.store_anew((line, leaf), &how, &mut underway).await? {
                self.due.borrow_mut().put_back(line, leaf, how == Rewrite::Reorder);
                break;
            }
            self.rest_after(began).await;
        }
        if self.check_usable().is_err() {
            return Ok(());
        }
        if !self.write_ordered(&mut underway, true).await?
            && let Some(first) = underway.copies.front()
        {
            self.due.borrow_mut().put_back(first.record.line, first.record.block / LEAF_BLOCKS, false);
        }
        Ok(())
    }

    /// Packs all content of a volume again that a checkpoint covers. For checks.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn repack_once(self: &Rc<Self>, line: u32) -> Result<(), BlockError> {
        self.store_all_anew(line, &Rewrite::Repack { level: LEVEL_USUAL, writes: 0..u64::MAX }).await
    }

    /// Puts all scattered content of a volume in order that a checkpoint covers. For checks.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn reorder_once(self: &Rc<Self>, line: u32) -> Result<(), BlockError> {
        self.store_all_anew(line, &Rewrite::Reorder).await
    }

    async fn store_all_anew(self: &Rc<Self>, line: u32, how: &Rewrite) -> Result<(), BlockError> {
        let (mut at, mut underway) = (0, Underway::default());
        while let Some(leaf) = self.next_leaf(line, at).await? {
            if !self.store_anew((line, leaf), how, &mut underway).await? {
                return Ok(());
            }
            at = leaf + 1;
        }
        self.write_ordered(&mut underway, true).await.map(|_| ())
    }

    /// Stores a leaf anew. False if there are not enough free segments.
    async fn store_anew(
        self: &Rc<Self>,
        leaf: (u32, u64),
        how: &Rewrite,
        underway: &mut Underway,
    ) -> Result<bool, BlockError> {
        // The next checkpoint counts on the leaves of all copies that are underway.
        let is_dirty = self.trees.borrow().dirty_bytes() >= self.checkpoint_bytes() / 4;
        let is_of_another = underway.copies.front().is_some_and(|first| first.record.line != leaf.0);
        if (is_dirty || is_of_another) && !self.write_ordered(underway, true).await? {
            return Ok(false);
        }
        if is_dirty {
            self.checkpoint_at_pace().await?;
        }
        self.copy_leaf(leaf, how, underway).await;
        self.write_ordered(underway, false).await
    }

    /// Writes copies to runs. Without `pad`, only those that fill runs. False if there are not
    /// enough free segments.
    async fn write_ordered(self: &Rc<Self>, underway: &mut Underway, pad: bool) -> Result<bool, BlockError> {
        match self.write_copies(ORDERED, &mut underway.copies, pad).await {
            Ok(()) => {
                *self.counts.borrow_mut() += std::mem::take(&mut underway.counts);
                Ok(true)
            }
            Err(BlockError::NoSpace) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next leaf that is due. The turn of a volume ends where its map cannot be read.
    async fn next_leaf_to_copy(&self) -> Option<(u32, u64, Rewrite)> {
        let scattered = self.due.borrow_mut().scattered.pop_first();
        if let Some((line, leaf)) = scattered {
            return Some((line, leaf, Rewrite::Reorder));
        }
        loop {
            let turn = self.due.borrow().turns.iter().find_map(|(line, turn)| Some((*line, turn.now.clone()?)));
            let (line, (writes, from)) = turn?;
            let next = self.next_leaf(line, from).await;
            if let Some(turn) = self.due.borrow_mut().turns.get_mut(&line) {
                match next {
                    Ok(Some(leaf)) => turn.now = Some((writes.clone(), leaf + 1)),
                    Ok(None) => (turn.done_below, turn.now) = (writes.end, None),
                    Err(_) => turn.now = None,
                }
            }
            if let Ok(Some(leaf)) = next {
                return Some((line, leaf, Rewrite::Repack { level: self.repack_level(line), writes }));
            }
        }
    }

    fn repack_level(&self, line: u32) -> u8 {
        match self.settings(line).compression {
            Compression::Zstd(level) => level,
            Compression::Off | Compression::Lz4 => LEVEL_USUAL,
        }
    }

    /// The first leaf of a volume from `from` on that may have mapped blocks.
    pub(super) async fn next_leaf(&self, line: u32, from: u64) -> Result<Option<u64>, BlockError> {
        loop {
            let next = self.trees.borrow().next_leaf(line, from);
            match next {
                Ok(leaf) => return Ok(leaf),
                Err((id, stored)) => self.load_node(id, stored).await?,
            }
        }
    }
}
