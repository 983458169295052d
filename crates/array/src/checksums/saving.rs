//! Saving blocks of checksums from the table to the members.

use std::sync::atomic::Ordering;

use crate::checksums::sums::{SumKey, SumTable};

impl SumTable {
    /// Begins to save a way.
    pub fn save(&self, way: usize) -> Save<'_> {
        if !self.saving.insert(way as u64) {
            return Save::Busy;
        }
        if !self.dirty.remove(way as u64) {
            self.saving.remove(way as u64);
            return Save::Clean;
        }
        self.dirty_count.fetch_sub(1, Ordering::Relaxed);
        // The way keeps its key as long as it is being saved. A task that changes a checksum from
        // now on marks it dirty again.
        let key = SumKey::from_tag(self.tag(way).load(Ordering::Acquire));
        Save::Mine(Saving { table: self, way, saved: false, key })
    }
}

/// The result of [`SumTable::save`].
pub(crate) enum Save<'a> {
    /// Nothing is to be saved.
    Clean,
    /// Another task saves it, possibly in an older state.
    Busy,
    /// The caller has to write it to the member.
    Mine(Saving<'a>),
}

/// A block that is being saved. If it is dropped before [`Saving::saved`], it is dirty again.
pub(crate) struct Saving<'a> {
    table: &'a SumTable,
    way: usize,
    saved: bool,
    pub key: SumKey,
}

impl Saving<'_> {
    /// Copies the checksums to write into a block of bytes.
    pub fn copy_to(&self, bytes: &mut [u8]) {
        let sums = self.table.ways[self.way].sums.get().expect("a dirty way has sums");
        for (bytes, sum) in bytes.as_chunks_mut().0.iter_mut().zip(sums) {
            *bytes = sum.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// The block is on the member, or is not needed any more.
    pub fn saved(mut self) {
        self.saved = true;
    }
}

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        if !self.saved && self.table.dirty.insert(self.way as u64) {
            self.table.dirty_count.fetch_add(1, Ordering::Relaxed);
        }
        self.table.saving.remove(self.way as u64);
    }
}
