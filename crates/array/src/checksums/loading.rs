//! Loading blocks of checksums from the members into the table.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use format::BLOCK;
use format::sums::SUMS_PER_BLOCK;

use crate::checksums::sums::{LOADING, PINS, READY, SumKey, SumTable};

impl SumTable {
    /// Finds a way to load a block into.
    pub fn claim(&self, key: SumKey) -> Claim<'_> {
        let tag = key.tag();
        let set = self.set_of(tag);
        if self.find(tag).is_some() {
            return Claim::Ready;
        }
        if self.has_tag(&set, tag, None) {
            return Claim::Busy;
        }
        let Some(way) = self.vacate(&set) else { return Claim::Full };
        let loading = Loading { table: self, way };
        self.ways[way].version.fetch_add(1, Ordering::SeqCst);
        self.tag(way).store(tag, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Another task that loads the same block sees this way, or this task sees its way.
        if self.has_tag(&set, tag, Some(way)) { Claim::Busy } else { Claim::Mine(loading) }
    }

    /// Takes a way of the set that is empty, or that holds nothing unsaved. Of those it takes the
    /// first that was not used recently.
    fn vacate(&self, set: &Range<usize>) -> Option<usize> {
        let empty = |&way: &usize| self.change(way, 0, LOADING);
        if let Some(way) = set.clone().find(empty) {
            return Some(way);
        }
        for _ in 0..2 {
            for way in set.clone() {
                if self.ways[way].used.swap(false, Ordering::Relaxed) || self.is_unsaved(way) {
                    continue;
                }
                if self.change(way, READY, LOADING) {
                    // Another task may have changed it between the check and the exchange.
                    if !self.is_unsaved(way) {
                        return Some(way);
                    }
                    self.ways[way].state.fetch_xor(READY | LOADING, Ordering::SeqCst);
                }
            }
        }
        None
    }

    /// Drops a block from memory, if it is saved on the member and no task has pinned it.
    pub fn forget(&self, key: SumKey) {
        let Some(way) = self.find(key.tag()) else { return };
        if self.is_unsaved(way) || !self.change(way, READY, LOADING) {
            return;
        }
        if self.is_unsaved(way) {
            self.ways[way].state.fetch_xor(READY | LOADING, Ordering::SeqCst);
            return;
        }
        self.ways[way].version.fetch_add(1, Ordering::SeqCst);
        drop(Loading { table: self, way });
    }
}

/// The result of [`SumTable::claim`].
pub(crate) enum Claim<'a> {
    /// The block is in memory.
    Ready,
    /// The caller has to fill it.
    Mine(Loading<'a>),
    /// Another task fills it.
    Busy,
    /// No way of the set is free: all hold unsaved checksums, or are in use.
    Full,
}

/// A way that is being filled. If it is dropped before that, it is empty again.
pub(crate) struct Loading<'a> {
    table: &'a SumTable,
    way: usize,
}

impl Loading<'_> {
    /// Makes the block available. Checksums that were computed and not read have to be saved.
    pub fn fill(self, sums: &[u8], computed: bool) {
        assert_eq!(sums.len(), BLOCK, "a whole block of sums");
        let way = &self.table.ways[self.way];
        let place = way.sums.get_or_init(|| (0..SUMS_PER_BLOCK).map(|_| AtomicU32::new(0)).collect());
        for (sum, bytes) in place.iter().zip(sums.chunks_exact(size_of::<u32>())) {
            sum.store(u32::from_le_bytes(bytes.try_into().expect("chunks of four bytes")), Ordering::Relaxed);
        }
        if computed && self.table.dirty.insert(self.way as u64) {
            self.table.dirty_count.fetch_add(1, Ordering::Relaxed);
        }
        way.used.store(true, Ordering::Relaxed);
        way.state.fetch_xor(READY | LOADING, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let way = &self.table.ways[self.way];
        self.table.tag(self.way).store(0, Ordering::SeqCst);
        // Pins of tasks that came too late may still be there.
        way.state.fetch_and(PINS, Ordering::SeqCst);
    }
}
