//! Chooses what is stored anew, and when: content that was not written for a while, if its volume
//! says so, and content that is read in order although it is scattered.
//!
//! A volume is looked at in turns, each of the time after which its content counts as cold. What
//! was written before a turn began is cold at the end of it. So content is cold after one to two of
//! these times. After a start the first turn begins anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Env, Nanos};
use format::BLOCK;
use format::thin::entry::LEAF_BLOCKS;

use super::backing::Backing;
use super::collect::{Copy, ORDERED};
use super::compress::Compression;
use super::repack::{Checksums, Rewrite, is_scattered};
use super::store::ThinStore;

const LEAF_BYTES: u64 = LEAF_BLOCKS * BLOCK as u64;

/// Reads of fewer bytes are not looked at. A reader in order that cares for speed reads more.
const READ_BYTES_MIN: u64 = 16 << 10;

/// Readers that are followed at the same time.
const READERS_MAX: usize = 16;

/// Most leaves that wait to be brought into order. Further ones are found at their next read.
const SCATTERED_MAX: usize = 4096;

/// The level of Zstandard for volumes that have another codec.
const LEVEL_USUAL: u8 = 3;

/// Content that is to be stored anew.
#[derive(Default)]
pub(super) struct Order {
    /// The volumes whose content gets cold.
    turns: BTreeMap<u32, Turn>,
    /// Leaves that were read in order, and are scattered.
    scattered: BTreeSet<(u32, u64)>,
    /// Ranges that were read in order lately.
    readers: VecDeque<Reader>,
}

/// A volume's turn.
struct Turn {
    began: Nanos,
    /// The number of the next write at that time.
    began_at: u64,
    /// Writes below were looked at in earlier turns.
    done_below: u64,
    /// Cold writes that are looked at now, and the next leaf.
    now: Option<(Range<u64>, u64)>,
}

/// Bytes of a volume that were read in order.
struct Reader {
    line: u32,
    from: u64,
    to: u64,
}

impl Order {
    /// Notes a read. Returns the leaves that it was the last part of.
    fn read(&mut self, line: u32, from: u64, to: u64) -> Range<u64> {
        let place = self.readers.iter().position(|reader| reader.line == line && reader.to == from);
        let reader = match place.and_then(|place| self.readers.remove(place)) {
            Some(reader) => Reader { to, ..reader },
            None => Reader { line, from, to },
        };
        let whole = reader.from.div_ceil(LEAF_BYTES)..to / LEAF_BYTES;
        self.readers.truncate(READERS_MAX - 1);
        self.readers.push_front(reader);
        whole.start.max(from / LEAF_BYTES)..whole.end
    }
}

impl<B: Backing> ThinStore<B> {
    /// Notes a read. Returns the leaves that are now read as a whole, in order.
    pub(super) fn note_read(&self, line: u32, from: u64, to: u64) -> Range<u64> {
        if to - from < READ_BYTES_MIN {
            return 0..0;
        }
        self.order.borrow_mut().read(line, from, to)
    }

    /// A leaf in memory was read in order: has it stored in order, if it is not.
    pub(super) fn want_order(&self, line: u32, leaf: u64) {
        let is_due = self.trees.borrow().leaf(line, leaf).is_some_and(|leaf| is_scattered(leaf.entries()));
        let mut order = self.order.borrow_mut();
        if is_due && order.scattered.len() < SCATTERED_MAX && order.scattered.insert((line, leaf)) {
            self.work.raise();
        }
    }

    /// Looks which volumes have cold content to be packed again. To be called about once a second.
    pub fn look_for_cold(&self) {
        let (now, next) = (self.env().now(), self.next_sequence.get());
        let settings = self.settings.borrow();
        let mut order = self.order.borrow_mut();
        order.turns.retain(|line, _| settings.get(line).is_some_and(|settings| settings.repack_after.is_some()));
        for (line, after) in settings.iter().filter_map(|(line, settings)| Some((line, settings.repack_after?))) {
            let begun = || Turn { began: now, began_at: next, done_below: 0, now: None };
            let turn = order.turns.entry(*line).or_insert_with(begun);
            if turn.now.is_some() || now - turn.began < after.as_nanos() as Nanos {
                continue;
            }
            let cold = turn.done_below..turn.began_at;
            turn.now = (!cold.is_empty()).then_some((cold, 0));
            (turn.began, turn.began_at) = (now, next);
        }
        if order.turns.values().any(|turn| turn.now.is_some()) {
            self.work.raise();
        }
    }

    /// Stores anew what is due, as long as there are enough free segments.
    pub(super) async fn keep_order(self: Rc<Self>) -> Result<(), BlockError> {
        let (mut checksums, mut copies) = (Checksums::default(), VecDeque::new());
        while self.check_usable().is_ok() && self.missing_segments(1) == 0 {
            let began = self.env().now();
            let Some((line, leaf, how)) = self.next_leaf_to_copy().await? else { break };
            if !self.store_anew((line, leaf), &how, &mut checksums, &mut copies).await? {
                return Ok(());
            }
            self.rest(began).await;
        }
        self.write_ordered(&mut copies, true).await.map(|_| ())
    }

    /// Packs all content of a volume again that a checkpoint covers. For checks.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn repack_once(self: &Rc<Self>, line: u32) -> Result<(), BlockError> {
        let (mut checksums, mut copies) = (Checksums::default(), VecDeque::new());
        let (mut at, how) = (0, Rewrite::Repack { level: LEVEL_USUAL, writes: 0..u64::MAX });
        while let Some(leaf) = self.next_leaf(line, at).await? {
            if !self.store_anew((line, leaf), &how, &mut checksums, &mut copies).await? {
                return Ok(());
            }
            at = leaf + 1;
        }
        self.write_ordered(&mut copies, true).await.map(|_| ())
    }

    /// Stores a leaf anew. False if there are not enough free segments.
    async fn store_anew(
        self: &Rc<Self>,
        leaf: (u32, u64),
        how: &Rewrite,
        checksums: &mut Checksums,
        copies: &mut VecDeque<Copy>,
    ) -> Result<bool, BlockError> {
        if self.coming_checkpoint_bytes() >= self.checkpoint_bytes() / 4 {
            self.checkpoint().await?;
        }
        self.copy_leaf(leaf, how, checksums, copies).await?;
        self.write_ordered(copies, false).await
    }

    /// Writes copies to runs. Without `pad`, only those that fill runs. False if there are not
    /// enough free segments.
    async fn write_ordered(self: &Rc<Self>, copies: &mut VecDeque<Copy>, pad: bool) -> Result<bool, BlockError> {
        match self.write_copies(ORDERED, copies, pad).await {
            Ok(()) => Ok(true),
            Err(BlockError::NoSpace) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next leaf that is due.
    async fn next_leaf_to_copy(&self) -> Result<Option<(u32, u64, Rewrite)>, BlockError> {
        let scattered = self.order.borrow_mut().scattered.pop_first();
        if let Some((line, leaf)) = scattered {
            return Ok(Some((line, leaf, Rewrite::Reorder)));
        }
        loop {
            let turn = self.order.borrow().turns.iter().find_map(|(line, turn)| Some((*line, turn.now.clone()?)));
            let Some((line, (writes, from))) = turn else { return Ok(None) };
            let next = self.next_leaf(line, from).await?;
            if let Some(turn) = self.order.borrow_mut().turns.get_mut(&line) {
                match next {
                    Some(leaf) => turn.now = Some((writes.clone(), leaf + 1)),
                    None => (turn.done_below, turn.now) = (writes.end, None),
                }
            }
            if let Some(leaf) = next {
                return Ok(Some((line, leaf, Rewrite::Repack { level: self.repack_level(line), writes })));
            }
        }
    }

    /// Rests after work that began at `began`.
    async fn rest(&self, began: Nanos) {
        let worked = Duration::from_nanos(self.env().now() - began);
        self.env().sleep((worked * 4).min(Duration::from_millis(50))).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_read_in_order_once_its_last_part_was_read() {
        let mut order = Order::default();
        let step = LEAF_BYTES / 4;
        assert!(order.read(1, step, 2 * step).is_empty());
        for part in 2..7 {
            assert!(order.read(1, part * step, (part + 1) * step).is_empty(), "{part}");
            assert!(order.read(2, 9 * part * step, 9 * part * step + 1).is_empty());
        }
        assert_eq!(order.read(1, 7 * step, 8 * step), 1..2);
        assert_eq!(order.read(1, 8 * step, 16 * step), 2..4);
        assert!(order.read(1, 16 * step, 17 * step).is_empty());
        assert!(order.read(1, 18 * step, 20 * step).is_empty(), "a part was passed over");
    }
}
