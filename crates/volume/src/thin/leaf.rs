//! A leaf of a volume's block map, in memory.

use format::thin::entry::MapEntry;
use format::thin::{StoredRange, WINDOW_BLOCKS};
use smallvec::SmallVec;

/// Entries in the order of their first blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MapLeaf {
    entries: Vec<MapEntry>,
    /// Number of mapped blocks.
    blocks: u64,
    /// Live bytes of all entries.
    live_bytes: u64,
}

/// Bytes of the group that became live or garbage: an address, and how many.
pub(super) type LiveChanges = SmallVec<[(u64, i64); 8]>;

/// The blocks of an entry that are used, as bits of the entry's window.
fn used_in_window(entry: &MapEntry) -> u16 {
    entry.used << (u64::from(entry.first) % WINDOW_BLOCKS)
}

fn used_blocks(entry: &MapEntry) -> u64 {
    u64::from(entry.used.count_ones())
}

/// An entry without the blocks in `bits` of its window.
fn without(entry: &MapEntry, bits: u16) -> MapEntry {
    let mine = bits & used_in_window(entry);
    MapEntry { used: entry.used & !(mine >> (u64::from(entry.first) % WINDOW_BLOCKS)), ..*entry }
}

impl MapLeaf {
    pub fn new(entries: Vec<MapEntry>) -> MapLeaf {
        let blocks = entries.iter().map(used_blocks).sum();
        let live_bytes = entries.iter().map(MapEntry::live_bytes).sum();
        MapLeaf { entries, blocks, live_bytes }
    }

    pub fn entries(&self) -> &[MapEntry] {
        &self.entries
    }

    /// The entries of a window, from 0 to 15.
    pub fn entries_of(&self, window: u8) -> &[MapEntry] {
        &self.entries[self.window(window)]
    }

    /// The places of those entries.
    fn window(&self, window: u8) -> std::ops::Range<usize> {
        let window_of = |entry: &MapEntry| entry.first / WINDOW_BLOCKS as u8;
        let start = self.entries.partition_point(|entry| window_of(entry) < window);
        let end = self.entries.partition_point(|entry| window_of(entry) <= window);
        start..end
    }

    /// The entry with a block of the leaf.
    pub fn find(&self, block: u8) -> Option<&MapEntry> {
        let bit = 1 << (u64::from(block) % WINDOW_BLOCKS);
        let window = self.window(block / WINDOW_BLOCKS as u8);
        self.entries[window].iter().find(|entry| used_in_window(entry) & bit != 0)
    }

    /// The mapped blocks of a window, as bits.
    pub fn mapped(&self, window: u8) -> u16 {
        self.entries[self.window(window)].iter().fold(0, |bits, entry| bits | used_in_window(entry))
    }

    /// The entry of a fragment at this place, if some of its blocks are used.
    pub fn at(&self, stored: StoredRange, first: u8) -> Option<&MapEntry> {
        let window = self.window(first / WINDOW_BLOCKS as u8);
        self.entries[window].iter().find(|entry| entry.stored == stored && entry.first == first)
    }

    /// Unmaps the blocks in `bits` of a window. Returns what became garbage.
    pub fn clear(&mut self, window: u8, bits: u16) -> LiveChanges {
        let mut changes = LiveChanges::new();
        for index in self.window(window).rev() {
            let (before, after) = (self.entries[index], without(&self.entries[index], bits));
            if before.used == after.used {
                continue;
            }
            self.blocks -= used_blocks(&before) - used_blocks(&after);
            self.live_bytes -= before.live_bytes() - after.live_bytes();
            changes.push((before.stored.address, after.live_bytes() as i64 - before.live_bytes() as i64));
            if after.used == 0 {
                self.entries.remove(index);
            } else {
                self.entries[index] = after;
            }
        }
        changes
    }

    /// Bytes that become garbage if the blocks in `bits` of a window are unmapped.
    pub fn freed_by(&self, window: u8, bits: u16) -> u64 {
        let entries = self.entries[self.window(window)].iter();
        entries.map(|entry| entry.live_bytes() - without(entry, bits).live_bytes()).sum()
    }

    /// Unmaps everything. Returns what became garbage.
    pub fn clear_all(&mut self) -> LiveChanges {
        let freed = |entry: &MapEntry| (entry.stored.address, -(entry.live_bytes() as i64));
        std::mem::take(self).entries.iter().map(freed).collect()
    }

    /// Maps the used blocks of an entry, which are unmapped. Returns what became live.
    pub fn insert(&mut self, entry: MapEntry) -> (u64, i64) {
        debug_assert_eq!(self.mapped(entry.first / WINDOW_BLOCKS as u8) & used_in_window(&entry), 0);
        let index = self.entries.partition_point(|other| other.first <= entry.first);
        self.entries.insert(index, entry);
        self.blocks += used_blocks(&entry);
        self.live_bytes += entry.live_bytes();
        (entry.stored.address, entry.live_bytes() as i64)
    }

    /// Number of mapped blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Live bytes of all entries.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::thin::Codec;
    use proptest::prelude::*;

    /// A random fragment: its window, first block in it, number of blocks.
    fn fragment() -> impl Strategy<Value = (u8, u8, u8)> {
        (0u8..16, 0u8..16).prop_flat_map(|(window, first)| (Just(window), Just(first), 1..=16 - first))
    }

    fn bits(first: u8, blocks: u8) -> u16 {
        (((1u32 << blocks) - 1) << first) as u16
    }

    proptest! {
        #[test]
        fn a_leaf_maps_each_block_to_the_last_fragment_with_it(
            steps in proptest::collection::vec((fragment(), any::<bool>()), 1..200)
        ) {
            let mut leaf = MapLeaf::default();
            let mut model = [None; 256];
            let mut live = 0;
            for (number, ((window, first, blocks), is_hole)) in steps.into_iter().enumerate() {
                let address = (number as u64 + 1) << 16;
                let freed = leaf.clear(window, bits(first, blocks));
                live += freed.iter().map(|(_, change)| change).sum::<i64>();
                let stored = StoredRange { address, bytes: 4096 * u32::from(blocks) };
                let first_in_leaf = window * 16 + first;
                let used = bits(0, blocks);
                if !is_hole {
                    let codec = Codec::Plain;
                    live += leaf.insert(MapEntry { stored, codec, first: first_in_leaf, blocks, used, birth: 1 }).1;
                }
                for block in first_in_leaf..=first_in_leaf + (blocks - 1) {
                    model[usize::from(block)] = (!is_hole).then_some(address);
                }
            }
            for block in 0..=255u8 {
                let found = leaf.find(block).map(|entry| entry.stored.address);
                prop_assert_eq!(found, model[usize::from(block)]);
                let mapped = leaf.mapped(block / 16) & 1 << (block % 16) != 0;
                prop_assert_eq!(mapped, found.is_some());
            }
            let blocks = model.iter().flatten().count() as u64;
            prop_assert_eq!((leaf.blocks(), leaf.live_bytes() as i64), (blocks, live));
            prop_assert_eq!(live as u64, 4096 * blocks);
        }
    }
}
