//! The members' checksums in memory: a table of their blocks that all shards share without locks.
//!
//! A block of checksums has a place (*way*) in the one set that its key maps to. Each way goes
//! `empty -> loading -> ready -> loading -> ...`.
//!
//! Guarantees:
//! 1. [`SumTable::get`] returns checksums that were in force together at some moment, or nothing.
//! 2. A checksum that was changed is on its member, or in the table, or a flush has failed.
//! 3. The memory is bounded: 64 MiB for any size of the members.
//!
//! Example: a 4+2 group whose D1 lies on drive 1. A client writes block 2049 of that drive's data,
//! whose new checksum is `c0ffee01`. A block of checksums has 1024 of them.
//!
//! ```text
//! key       drive 1, block 2049 / 1024 = 2, entry 2049 % 1024 = 1
//! set       (2 * 6 + 1) mod sets; its 8 tags lie in one cache line
//! claim     no way has the key: take an empty or saved one    empty -> loading, tag = key
//! fill      the block is read from the member                 loading -> ready
//! set       pin, entry 1 = c0ffee01, mark dirty, unpin        ready + dirty
//! save      the flush takes the mark, writes the block        ready + saving -> ready
//! ```
//!
//! Invariants:
//! 1. At most one way is ready for a key. A task that finds another way with the key that it is
//!    loading gives up its own way.
//! 2. Checksums change, and a way is marked dirty, only while the way is pinned. A pinned way keeps
//!    its key. No task holds a pin across an `await`.
//! 3. A way that is dirty or being saved is not given to another key: its checksums are newer than
//!    those on the member.
//! 4. A reader that finds the version unchanged after it read has read checksums of its key.
//! 5. From the change of a checksum until it is on the member, its way is dirty or being saved. A
//!    task that promises durability waits for both.
//!
//! Tests: below, with threads that change, load and save at once; `sim/tests/engine/checksums.rs`
//! has what clients see of it, crashes included.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use format::sums::{SUMS_PER_BLOCK, sum_block_count};
use format::{Layout, Region};

use crate::state::slot::DriveId;
use crate::util::marks::BlockSet;

/// Ways of a set: blocks that map to the same set and can be in memory at the same time.
const WAYS: usize = 8;

/// Most blocks of checksums in memory: 64 MiB, for 64 GiB of the members.
const BLOCKS_MAX: u64 = 16384;

/// Blocks of checksums that are not on the members, before they are saved in the background: 16 MiB
/// for a flush to write. A table without room for all checksums has four times as many blocks.
const DIRTY_MAX: usize = BLOCKS_MAX as usize / 4;

/// The way holds the checksums of its key.
pub(super) const READY: u32 = 1 << 31;
/// The way is being filled.
pub(super) const LOADING: u32 = 1 << 30;
/// The other bits of the state count pins.
pub(super) const PINS: u32 = LOADING - 1;

/// A block of checksums: its drive, and its number in the drive's checksum region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SumKey {
    pub drive: DriveId,
    pub block: u64,
}

/// Bits of the block's number in a tag. 2^44 blocks of checksums cover more data than a member can
/// have.
const BLOCK_BITS: u32 = 44;

impl SumKey {
    /// Never 0, which is the tag of an empty way.
    pub(super) fn tag(self) -> u64 {
        (u64::from(self.drive.0) << BLOCK_BITS | self.block) + 1
    }

    pub(super) fn from_tag(tag: u64) -> SumKey {
        let bits = tag - 1;
        SumKey { drive: DriveId((bits >> BLOCK_BITS) as u16), block: bits & ((1 << BLOCK_BITS) - 1) }
    }
}

/// The tags of a set, in one cache line: a search of the set is one memory access.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Tags([AtomicU64; WAYS]);

#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Way {
    pub(super) state: AtomicU32,
    /// Counts changes of the key.
    pub(super) version: AtomicU32,
    /// Used since the last search for a free way.
    pub(super) used: AtomicBool,
    pub(super) sums: OnceLock<Box<[AtomicU32]>>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct SumTable {
    tags: Box<[Tags]>,
    pub(super) ways: Box<[Way]>,
    members: u64,
    pub(super) dirty: BlockSet,
    pub(super) saving: BlockSet,
    /// Approximate number of dirty ways.
    pub(super) dirty_count: AtomicUsize,
}

impl SumTable {
    /// Creates a table for members with `data_bytes` of data each. It has room for all of their
    /// checksums, up to the memory limit.
    pub fn new(members: usize, data_bytes: u64) -> SumTable {
        let all = sum_block_count(data_bytes) * members as u64;
        SumTable::with_sets((all.min(BLOCKS_MAX) as usize).div_ceil(WAYS).next_power_of_two(), members)
    }

    fn with_sets(sets: usize, members: usize) -> SumTable {
        let ways = sets * WAYS;
        SumTable {
            tags: (0..sets).map(|_| Tags::default()).collect(),
            ways: (0..ways).map(|_| Way::default()).collect(),
            members: members as u64,
            dirty: BlockSet::new(ways),
            saving: BlockSet::new(ways),
            dirty_count: AtomicUsize::new(0),
        }
    }

    /// Distributes the blocks of all members over the sets in turn, block by block. So a table with
    /// room for all blocks has room in each set.
    #[inline]
    pub(super) fn set_of(&self, tag: u64) -> std::ops::Range<usize> {
        let SumKey { drive, block } = SumKey::from_tag(tag);
        let number = block.wrapping_mul(self.members) + u64::from(drive.0) % self.members;
        let first = (number as usize & (self.tags.len() - 1)) * WAYS;
        first..first + WAYS
    }

    #[inline]
    pub(super) fn tag(&self, way: usize) -> &AtomicU64 {
        &self.tags[way / WAYS].0[way % WAYS]
    }

    #[inline]
    pub(super) fn find(&self, tag: u64) -> Option<usize> {
        let first = self.set_of(tag).start;
        let is_it = |(index, found): (usize, &AtomicU64)| {
            let is_ready = || self.ways[first + index].state.load(Ordering::Acquire) & READY != 0;
            (found.load(Ordering::Acquire) == tag && is_ready()).then_some(first + index)
        };
        self.tags[first / WAYS].0.iter().enumerate().find_map(is_it)
    }

    /// Whether the block is in memory or being loaded. If it is in memory, prefetches the checksums
    /// from entry `first` on into the cache, without waiting.
    #[inline]
    pub fn expects(&self, key: SumKey, first: usize) -> bool {
        let tag = key.tag();
        match self.find(tag) {
            Some(way) => {
                if let Some(sum) = self.ways[way].sums.get().and_then(|sums| sums.get(first)) {
                    drive::prefetch(sum);
                }
                true
            }
            None => self.has_tag(&self.set_of(tag), tag, None),
        }
    }

    /// Reads checksums from entry `first` on. Returns false if the block is not in memory.
    #[inline]
    pub fn get(&self, key: SumKey, first: usize, out: &mut [u32]) -> bool {
        let tag = key.tag();
        let Some(index) = self.find(tag) else { return false };
        let way = &self.ways[index];
        let version = way.version.load(Ordering::Acquire);
        let (true, Some(sums)) = (self.tag(index).load(Ordering::Acquire) == tag, way.sums.get()) else { return false };
        for (out, sum) in out.iter_mut().zip(&sums[first..]) {
            *out = sum.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        if !way.used.load(Ordering::Relaxed) {
            way.used.store(true, Ordering::Relaxed);
        }
        let still = way.state.load(Ordering::Relaxed) & READY != 0;
        still && way.version.load(Ordering::Relaxed) == version
    }

    /// Changes checksums from entry `first` on, and marks them as not yet on the member. Returns
    /// false if the block is not in memory.
    pub fn set(&self, key: SumKey, first: usize, new: impl Iterator<Item = u32>) -> bool {
        let tag = key.tag();
        let Some(index) = self.find(tag) else { return false };
        let way = &self.ways[index];
        let pinned = way.state.fetch_add(1, Ordering::AcqRel);
        let is_it = pinned & READY != 0 && self.tag(index).load(Ordering::Acquire) == tag;
        if is_it {
            let sums = way.sums.get().expect("a way that is ready has sums");
            for (sum, new) in sums[first..].iter().zip(new) {
                sum.store(new, Ordering::Relaxed);
            }
            if self.dirty.insert(index as u64) {
                self.dirty_count.fetch_add(1, Ordering::Relaxed);
            }
            way.used.store(true, Ordering::Relaxed);
        }
        way.state.fetch_sub(1, Ordering::AcqRel);
        is_it
    }

    /// A copy of a block of checksums in memory, if the member should have the same content.
    pub fn saved_copy(&self, key: SumKey) -> Option<Vec<u8>> {
        let way = self.find(key.tag())?;
        let mut sums = vec![0; SUMS_PER_BLOCK as usize];
        let is_whole = !self.is_unsaved(way) && self.get(key, 0, &mut sums) && !self.is_unsaved(way);
        is_whole.then(|| sums.iter().flat_map(|sum| sum.to_le_bytes()).collect())
    }

    pub(super) fn has_tag(&self, set: &std::ops::Range<usize>, tag: u64, but: Option<usize>) -> bool {
        let is_it = |way: usize| {
            let state = self.ways[way].state.load(Ordering::SeqCst);
            self.tag(way).load(Ordering::SeqCst) == tag && state & (READY | LOADING) != 0
        };
        set.clone().any(|way| Some(way) != but && is_it(way))
    }

    pub(super) fn is_unsaved(&self, way: usize) -> bool {
        // In the order in which saving moves the marks.
        self.dirty.contains(way as u64) || self.saving.contains(way as u64)
    }

    /// Changes the state of a way that is not pinned.
    pub(super) fn change(&self, way: usize, from: u32, to: u32) -> bool {
        self.ways[way].state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether so many blocks are dirty that they should be saved now: before a flush has to wait
    /// for more, and before room is needed.
    pub fn is_filling(&self) -> bool {
        self.dirty_len() > DIRTY_MAX
    }

    /// Approximate number of blocks of checksums to save.
    pub fn dirty_len(&self) -> usize {
        self.dirty_count.load(Ordering::Relaxed)
    }

    /// Whether changed checksums may be missing on the members.
    pub fn is_dirty(&self) -> bool {
        BlockSet::any_of(&self.dirty, &self.saving)
    }

    /// The ways that may hold unsaved checksums of a block. None if the block is not in memory.
    pub fn ways_of(&self, key: SumKey) -> impl Iterator<Item = usize> {
        let tag = key.tag();
        // Ready or not does not matter: a search for a free way clears the ready bit for a moment,
        // even of a dirty way.
        self.set_of(tag).filter(move |&way| self.tag(way).load(Ordering::SeqCst) == tag)
    }

    /// The ways that may hold checksums that are not on the members.
    pub fn unsaved(&self) -> Vec<usize> {
        BlockSet::all_of(&self.dirty, &self.saving).into_iter().map(|way| way as usize).collect()
    }

    /// Marks a block to be saved again, because the member has wrong content. Returns false if the
    /// block is not in memory.
    pub fn save_again(&self, key: SumKey) -> bool {
        self.set(key, 0, std::iter::empty())
    }
}

/// The checksums of a group.
#[derive(Debug)]
pub(crate) struct Checksums {
    pub(crate) region: Region,
    pub table: SumTable,
}

impl Checksums {
    pub fn new(layout: &Layout, members: usize) -> Option<Checksums> {
        let region = layout.checksums?;
        Some(Checksums { region, table: SumTable::new(members, layout.data.len) })
    }
}

#[cfg(test)]
mod tests {
    use format::BLOCK;

    use super::*;
    use crate::checksums::loading::Claim;
    use crate::checksums::saving::{Save, Saving};

    fn key(drive: u16, block: u64) -> SumKey {
        SumKey { drive: DriveId(drive), block }
    }

    fn load(table: &SumTable, key: SumKey, value: u8) {
        match table.claim(key) {
            Claim::Mine(loading) => loading.fill(&[value; BLOCK], false),
            _ => panic!("{key:?} can be loaded"),
        }
    }

    fn first_sum(table: &SumTable, key: SumKey) -> Option<u32> {
        let mut out = [0];
        table.get(key, 0, &mut out).then_some(out[0])
    }

    fn begin(table: &SumTable, way: usize) -> Saving<'_> {
        match table.save(way) {
            Save::Mine(saving) => saving,
            Save::Clean | Save::Busy => panic!("{way} is to be saved"),
        }
    }

    fn bytes_of(saving: &Saving<'_>) -> Vec<u8> {
        let mut bytes = vec![0xEE; BLOCK];
        saving.copy_to(&mut bytes);
        bytes
    }

    fn save_all(table: &SumTable) -> Vec<(SumKey, Vec<u8>)> {
        let save = |way| {
            let saving = begin(table, way);
            let taken = (saving.key, bytes_of(&saving));
            saving.saved();
            taken
        };
        table.unsaved().into_iter().map(save).collect()
    }

    #[test]
    fn a_block_is_what_was_loaded_until_it_is_changed() {
        let table = SumTable::with_sets(2, 4);
        assert_eq!(first_sum(&table, key(1, 7)), None);
        assert!(!table.set(key(1, 7), 0, [1].into_iter()));
        load(&table, key(1, 7), 0xAB);
        assert_eq!(first_sum(&table, key(1, 7)), Some(0xABAB_ABAB));
        assert_eq!(first_sum(&table, key(2, 7)), None, "another drive's");
        assert!(table.set(key(1, 7), 1, [5, 6].into_iter()));
        let mut out = [0; 4];
        assert!(table.get(key(1, 7), 0, &mut out));
        assert_eq!(out, [0xABAB_ABAB, 5, 6, 0xABAB_ABAB]);
    }

    #[test]
    fn a_change_is_unsaved_until_it_was_written() {
        let table = SumTable::with_sets(1, 4);
        load(&table, key(1, 7), 0);
        assert!(!table.is_dirty());
        table.set(key(1, 7), 0, [9].into_iter());
        let way = table.unsaved()[0];
        let saving = begin(&table, way);
        assert_eq!((saving.key, &bytes_of(&saving)[..8]), (key(1, 7), &[9, 0, 0, 0, 0, 0, 0, 0][..]));
        assert!(matches!(table.save(way), Save::Busy), "somebody is at it");
        assert!(table.is_dirty(), "a flush that comes now has to wait");
        table.set(key(1, 7), 1, [8].into_iter());
        saving.saved();
        assert_eq!(save_all(&table)[0].1[4], 8, "what changed meanwhile is saved again");
        assert!(!table.is_dirty());
        table.set(key(1, 7), 2, [7].into_iter());
        drop(begin(&table, way));
        assert_eq!(table.unsaved(), [way], "it could not be written");
    }

    #[test]
    fn a_block_that_its_member_lost_is_saved_again() {
        let table = SumTable::with_sets(1, 4);
        load(&table, key(1, 7), 3);
        assert_eq!(table.saved_copy(key(1, 7)), Some(vec![3; BLOCK]));
        assert!(table.save_again(key(1, 7)));
        assert_eq!(table.saved_copy(key(1, 7)), None, "it is not on its member");
        assert_eq!(save_all(&table), [(key(1, 7), vec![3; BLOCK])]);
        assert!(table.saved_copy(key(1, 7)).is_some());
        assert!(
            !table.save_again(key(1, 8)) && !table.is_dirty(),
            "what is not in memory is read from the member when it is needed"
        );
    }

    #[test]
    fn a_quarter_of_the_largest_table_is_unsaved_before_saving_begins() {
        let table = SumTable::new(4, BLOCKS_MAX * SUMS_PER_BLOCK * BLOCK as u64);
        for block in 0..=DIRTY_MAX as u64 {
            assert!(!table.is_filling(), "{block}");
            load(&table, key((block % 4) as u16, block / 4), 0);
            table.set(key((block % 4) as u16, block / 4), 0, [1].into_iter());
        }
        assert!(table.is_filling());
        save_all(&table);
        assert!(!table.is_filling());
    }

    #[test]
    fn what_is_not_on_the_members_is_never_forgotten() {
        let table = SumTable::with_sets(1, 4);
        for block in 0..WAYS as u64 {
            load(&table, key(0, block), block as u8);
            table.set(key(0, block), 0, [1000 + block as u32].into_iter());
        }
        assert!(matches!(table.claim(key(0, 99)), Claim::Full));
        let saved = save_all(&table);
        assert_eq!(saved.len(), WAYS);
        load(&table, key(0, 99), 1);
        let left = (0..WAYS as u64).filter(|&block| first_sum(&table, key(0, block)).is_some());
        assert_eq!(left.count(), WAYS - 1, "one made room");
    }

    #[test]
    fn a_table_as_large_as_all_sums_keeps_all_of_them_unsaved() {
        for (members, blocks) in [(2, 4), (6, 48), (7, 100), (12, 64), (5, BLOCKS_MAX / 5)] {
            let table = SumTable::new(members, blocks * SUMS_PER_BLOCK * BLOCK as u64);
            let all = (0..members as u16).flat_map(|drive| (0..blocks).map(move |block| key(drive, block)));
            for key in all.clone() {
                load(&table, key, 1);
                assert!(table.set(key, 0, [7].into_iter()), "{key:?} of {members} x {blocks}");
            }
            assert!(all.clone().all(|key| first_sum(&table, key) == Some(7)), "{members} x {blocks}");
        }
    }

    #[test]
    fn a_load_that_is_given_up_leaves_nothing_behind() {
        let table = SumTable::with_sets(1, 4);
        let Claim::Mine(loading) = table.claim(key(3, 3)) else { panic!("there is room") };
        assert!(matches!(table.claim(key(3, 3)), Claim::Busy));
        assert!(table.expects(key(3, 3), 0) && !table.set(key(3, 3), 0, [1].into_iter()));
        drop(loading);
        assert!(!table.expects(key(3, 3), 0));
        load(&table, key(3, 3), 4);
        assert!(matches!(table.claim(key(3, 3)), Claim::Ready));
    }

    #[test]
    fn blocks_in_use_outlive_those_that_are_not() {
        let table = SumTable::with_sets(1, 4);
        for block in 0..WAYS as u64 {
            load(&table, key(0, block), 1);
        }
        for block in 100..200 {
            assert!(first_sum(&table, key(0, 5)).is_some(), "{block}");
            load(&table, key(0, block), 2);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the table is what threads share")]
    fn shards_that_change_load_and_save_at_once_lose_no_sum() {
        const BLOCKS: u64 = 24;
        let table = SumTable::with_sets(2, 4);
        let disk: Vec<Vec<AtomicU32>> =
            (0..BLOCKS).map(|_| (0..SUMS_PER_BLOCK).map(|_| AtomicU32::new(0)).collect()).collect();
        let save = || {
            for way in table.unsaved() {
                if let Save::Mine(saving) = table.save(way) {
                    let bytes = bytes_of(&saving);
                    for (sum, bytes) in disk[saving.key.block as usize].iter().zip(bytes.chunks_exact(4)) {
                        sum.store(u32::from_le_bytes(bytes.try_into().unwrap()), Ordering::Relaxed);
                    }
                    saving.saved();
                }
            }
        };
        std::thread::scope(|scope| {
            for shard in 0..4u64 {
                let (table, disk, save) = (&table, &disk, &save);
                scope.spawn(move || {
                    // Each shard has entries of its own in every block.
                    let mut random = shard + 1;
                    let mut mine = vec![0u32; BLOCKS as usize];
                    for step in 1..20_000u32 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let block = random % BLOCKS;
                        loop {
                            let mut out = [0];
                            if table.get(key(0, block), shard as usize, &mut out) {
                                assert_eq!(out[0], mine[block as usize], "shard {shard}, block {block}");
                                if table.set(key(0, block), shard as usize, [step].into_iter()) {
                                    mine[block as usize] = step;
                                    break;
                                }
                                continue;
                            }
                            match table.claim(key(0, block)) {
                                Claim::Mine(loading) => {
                                    let sums = disk[block as usize].iter();
                                    let bytes: Vec<u8> =
                                        sums.flat_map(|sum| sum.load(Ordering::Relaxed).to_le_bytes()).collect();
                                    loading.fill(&bytes, false);
                                }
                                Claim::Full => save(),
                                Claim::Ready | Claim::Busy => std::thread::yield_now(),
                            }
                        }
                    }
                    save();
                });
            }
        });
        assert!(!table.is_dirty());
    }
}
