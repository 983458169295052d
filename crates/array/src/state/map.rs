//! The allocation map in memory: one bit per allocation chunk, shared by all shards.
//!
//! Invariants:
//! 1. A chunk's bit is changed only by the shard that owns the chunk's stripe group, under the lock
//!    of that stripe group. Any shard may read it.
//! 2. A bit is set only after all strips of the chunk are on their drives. Until then the chunk
//!    reads as zeroes.
//! 3. A block of bits that differs from its copy on the members is dirty. Only the leader writes
//!    blocks, and only after a flush that followed the snapshot. So no bit is durable before the
//!    data it stands for.
//! 4. A bit that was cleared but is still set on the members must not be set again before the
//!    clearing is durable. Otherwise a crash in the middle of the second first write would show a
//!    half-written chunk. `pending` remembers such bits, chunk by chunk, so that a freed chunk
//!    delays no first write of its neighbours.
//! 5. From the change of a bit until the change is durable, its block is dirty or being saved. A
//!    task that promises durability waits for the leader, also if another request has taken the
//!    block already.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{MAP_PAYLOAD_BYTES, Uuid};

use crate::state::warm::WarmGroup;
use crate::util::marks::BlockSet;

const WORDS_PER_BLOCK: usize = MAP_PAYLOAD_BYTES / 8;
const CHUNKS_PER_BLOCK: u64 = (MAP_PAYLOAD_BYTES * 8) as u64;
const _: () = assert!(MAP_PAYLOAD_BYTES.is_multiple_of(8), "a block is whole words");

/// The allocation map.
#[derive(Debug)]
pub struct AllocationMap {
    words: Box<[AtomicU64]>,
    dirty: BlockSet,
    /// Blocks taken by a snapshot that is not durable yet. Only the leader changes this set.
    saving: BlockSet,
    /// By block. Made with the first clearing of the block, so a group in which nothing is freed
    /// needs no memory for it.
    pending: Box<[OnceLock<PendingClears>]>,
    chunk_count: u64,
    /// Memory that outlives the process. Every change is made there too.
    warm: Option<WarmGroup>,
    allocated: AtomicU64,
    clear_count: AtomicU64,
    /// Bits that were set since the last snapshot.
    newly_set: AtomicU64,
}

/// Chunks of a block whose clearing is not durable, a bit each.
type PendingClears = Box<[AtomicU64; WORDS_PER_BLOCK]>;

/// The bits of a block at the time it was taken for writing.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of the block.
    pub block: u64,
    /// Its bits.
    pub bits: Box<[u8; MAP_PAYLOAD_BYTES]>,
    /// The chunks whose clearing is durable with it, a bit each.
    clears: Option<Box<[u64]>>,
}

impl AllocationMap {
    /// A map of `chunk_count` allocation chunks, none of them allocated.
    pub fn new(chunk_count: u64) -> Self {
        let blocks = chunk_count.div_ceil(CHUNKS_PER_BLOCK);
        AllocationMap {
            words: (0..blocks as usize * WORDS_PER_BLOCK).map(|_| AtomicU64::new(0)).collect(),
            dirty: BlockSet::new(blocks as usize),
            saving: BlockSet::new(blocks as usize),
            pending: (0..blocks).map(|_| OnceLock::new()).collect(),
            chunk_count,
            warm: None,
            allocated: AtomicU64::new(0),
            clear_count: AtomicU64::new(0),
            newly_set: AtomicU64::new(0),
        }
    }

    /// Number of blocks of the map.
    pub fn block_count(&self) -> u64 {
        (self.words.len() / WORDS_PER_BLOCK) as u64
    }

    /// Takes over a block as read from a member. Bits past the last allocation chunk are ignored.
    pub fn load(&self, block: u64, bits: &[u8; MAP_PAYLOAD_BYTES]) {
        let first = block as usize * WORDS_PER_BLOCK;
        let mut added = 0;
        for (index, bytes) in bits.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
            let chunk = (first + index) as u64 * 64;
            let valid = match self.chunk_count.saturating_sub(chunk) {
                0 => 0,
                left if left < 64 => word & ((1 << left) - 1),
                _ => word,
            };
            self.words[first + index].store(valid, Ordering::Release);
            added += u64::from(valid.count_ones());
        }
        self.allocated.fetch_add(added, Ordering::Relaxed);
    }

    /// Mirrors every change in the warm-restart memory from now on. The superblocks have `epoch`.
    pub(crate) fn keep(&mut self, warm: WarmGroup, array: &Uuid, epoch: u64) {
        warm.begin(array, epoch, &self.words);
        self.warm = Some(warm);
    }

    /// Like [`AllocationMap::keep`], but after a crash, with memory that holds the map as it was
    /// then. Takes over its content. Returns the allocation chunks that are set there and were not
    /// set here.
    pub(crate) fn keep_on(&mut self, warm: WarmGroup) -> Vec<u64> {
        let mut new = Vec::new();
        for (index, (word, warm)) in self.words.iter().zip(warm.bits()).enumerate() {
            let (before, now) = (word.load(Ordering::Acquire), warm.load(Ordering::SeqCst));
            for bit in (0..64).filter(|bit| (before ^ now) >> bit & 1 == 1) {
                let chunk = index as u64 * 64 + bit;
                if chunk >= self.chunk_count {
                    break;
                }
                match now >> bit & 1 {
                    1 => {
                        self.set(chunk);
                        new.push(chunk);
                    }
                    _ => self.clear(chunk),
                }
            }
        }
        self.warm = Some(warm);
        new
    }

    /// The copy in the warm-restart memory, if there is one.
    pub(crate) fn warm(&self) -> Option<&WarmGroup> {
        self.warm.as_ref()
    }

    /// Approximate number of allocation chunks that were set since the last snapshot.
    pub fn newly_set(&self) -> u64 {
        self.newly_set.load(Ordering::Relaxed)
    }

    /// Whether the allocation chunk was written.
    #[inline]
    pub fn get(&self, chunk: u64) -> bool {
        self.words[(chunk / 64) as usize].load(Ordering::Acquire) & (1 << (chunk % 64)) != 0
    }

    /// Notes that the strips of an allocation chunk are on their drives.
    pub fn set(&self, chunk: u64) {
        assert!(chunk < self.chunk_count, "chunk {chunk} of {}", self.chunk_count);
        let bit = 1 << (chunk % 64);
        if self.words[(chunk / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.warm.iter().for_each(|warm| warm.set(chunk));
            self.newly_set.fetch_add(1, Ordering::Relaxed);
            self.allocated.fetch_add(1, Ordering::Relaxed);
            self.dirty.insert(chunk / CHUNKS_PER_BLOCK);
        }
    }

    /// Frees an allocation chunk: it reads as zeroes from now on.
    pub fn clear(&self, chunk: u64) {
        assert!(chunk < self.chunk_count, "chunk {chunk} of {}", self.chunk_count);
        let bit = 1 << (chunk % 64);
        if self.words[(chunk / 64) as usize].fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            self.warm.iter().for_each(|warm| warm.clear(chunk));
            self.clear_count.fetch_add(1, Ordering::AcqRel);
            self.allocated.fetch_sub(1, Ordering::Relaxed);
            // After the bit: a snapshot that takes this mark also sees the bit. Before the dirty
            // mark: so a snapshot still follows.
            let block = chunk / CHUNKS_PER_BLOCK;
            let pending = self.pending[block as usize].get_or_init(|| Box::new([const { AtomicU64::new(0) }; _]));
            pending[(chunk / 64) as usize % WORDS_PER_BLOCK].fetch_or(bit, Ordering::AcqRel);
            self.dirty.insert(block);
        }
    }

    /// Whether the clearing of this chunk is not durable yet (invariant 4).
    pub fn clear_is_pending(&self, chunk: u64) -> bool {
        let pending = self.pending[(chunk / CHUNKS_PER_BLOCK) as usize].get();
        let word = |pending: &PendingClears| pending[(chunk / 64) as usize % WORDS_PER_BLOCK].load(Ordering::Acquire);
        pending.is_some_and(|pending| word(pending) >> (chunk % 64) & 1 == 1)
    }

    /// Number of clearings. If it changed during a read, the drive may have been discarding the
    /// range while it was read.
    #[inline]
    pub fn clear_count(&self) -> u64 {
        self.clear_count.load(Ordering::Acquire)
    }

    /// Number of allocated chunks.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Whether any block may differ from its copies on the members.
    pub fn is_dirty(&self) -> bool {
        BlockSet::any_of(&self.dirty, &self.saving)
    }

    /// Whether the block with this chunk's bit may differ from its copies on the members.
    pub fn chunk_is_dirty(&self, chunk: u64) -> bool {
        self.dirty.contains(chunk / CHUNKS_PER_BLOCK) || self.saving.contains(chunk / CHUNKS_PER_BLOCK)
    }

    /// Takes every dirty block, to be saved. For each block, [`AllocationMap::persisted`] or
    /// [`AllocationMap::retry`] has to follow before the next snapshot.
    pub fn snapshot(&self) -> Vec<Snapshot> {
        self.newly_set.store(0, Ordering::Relaxed);
        let blocks = self.dirty.move_to(&self.saving);
        let copy = |block: u64| {
            // Before the bits: so the snapshot has every clearing that is taken here.
            let pending = self.pending[block as usize].get();
            let clears = pending.map(|words| words.iter().map(|word| word.load(Ordering::Acquire)).collect());
            let mut bits = Box::new([0; MAP_PAYLOAD_BYTES]);
            let first = block as usize * WORDS_PER_BLOCK;
            for (index, bytes) in bits.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&self.words[first + index].load(Ordering::Acquire).to_le_bytes());
            }
            Snapshot { block, bits, clears }
        };
        blocks.into_iter().map(copy).collect()
    }

    /// The snapshot and its clearings are durable. Later changes have marked the block again.
    pub fn persisted(&self, snapshot: &Snapshot) {
        let pending = self.pending[snapshot.block as usize].get();
        // No clearing of the snapshot is there a second time: its chunk cannot be set before this.
        for (word, taken) in pending.into_iter().flat_map(|words| words.iter()).zip(snapshot.clears.iter().flatten()) {
            word.fetch_and(!taken, Ordering::AcqRel);
        }
        self.saving.remove(snapshot.block);
    }

    /// Marks a block to be written again, because a member without a copy is about to join.
    pub fn mark_dirty(&self, block: u64) {
        self.dirty.insert(block);
    }

    /// The snapshot could not be written to all members. The block stays dirty, and its clearings
    /// stay pending.
    pub fn retry(&self, block: u64) {
        self.dirty.insert(block);
        self.saving.remove(block);
    }

    /// The first allocated chunk from `chunk` on.
    pub fn next_allocated(&self, chunk: u64) -> Option<u64> {
        self.next_allocated_in(chunk..u64::MAX)
    }

    /// The first allocated chunk of a range, or possibly a later one within the same word.
    pub fn next_allocated_in(&self, chunks: Range<u64>) -> Option<u64> {
        let chunk = chunks.start;
        let mut index = (chunk / 64) as usize;
        let mut mask = u64::MAX << (chunk % 64);
        while let Some(word) = self.words.get(index) {
            let bits = word.load(Ordering::Acquire) & mask;
            if bits != 0 {
                return Some(index as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
            index += 1;
            mask = u64::MAX;
            if index as u64 >= chunks.end.div_ceil(64) {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clearing_stays_pending_until_a_later_snapshot_is_durable() {
        let map = AllocationMap::new(100_000);
        map.set(5);
        for snapshot in map.snapshot() {
            map.persisted(&snapshot);
        }
        map.clear(5);
        assert!(map.clear_is_pending(5));
        let taken = map.snapshot();
        map.clear(5);
        assert!(map.clear_is_pending(5), "the snapshot is not durable yet");
        assert_eq!(taken.len(), 1);
        map.retry(taken[0].block);
        assert!(map.clear_is_pending(5) && map.is_dirty(), "it could not be saved");
        for snapshot in map.snapshot() {
            map.persisted(&snapshot);
        }
        assert!(!map.clear_is_pending(5) && !map.is_dirty());
    }

    #[test]
    fn a_block_is_dirty_until_its_snapshot_is_durable() {
        let map = AllocationMap::new(100);
        map.set(1);
        let taken = map.snapshot();
        assert!(map.is_dirty() && map.chunk_is_dirty(1), "a flush that comes now has to wait");
        map.persisted(&taken[0]);
        assert!(!map.is_dirty() && !map.chunk_is_dirty(1));
    }

    #[test]
    fn a_clearing_after_the_snapshot_is_not_covered_by_it() {
        let map = AllocationMap::new(1000);
        map.set(1);
        map.set(2);
        map.clear(1);
        let taken = map.snapshot();
        map.clear(2);
        assert!(map.clear_is_pending(1) && map.clear_is_pending(2));
        map.persisted(&taken[0]);
        assert!(!map.clear_is_pending(1), "the snapshot has it");
        assert!(map.clear_is_pending(2) && map.is_dirty());
    }

    #[test]
    fn a_clearing_is_pending_for_its_own_chunk_only() {
        let map = AllocationMap::new(CHUNKS_PER_BLOCK * 2);
        for chunk in [0, 63, 64, CHUNKS_PER_BLOCK] {
            map.set(chunk);
        }
        map.clear(63);
        let others = [0, 62, 64, CHUNKS_PER_BLOCK + 63];
        assert!(map.clear_is_pending(63) && !others.into_iter().any(|chunk| map.clear_is_pending(chunk)));
        let taken = map.snapshot();
        map.clear(0);
        taken.iter().for_each(|snapshot| map.retry(snapshot.block));
        assert!(map.clear_is_pending(63) && map.clear_is_pending(0), "what could not be saved joins what is new");
        map.snapshot().iter().for_each(|snapshot| map.persisted(snapshot));
        assert!(!(0..CHUNKS_PER_BLOCK * 2).any(|chunk| map.clear_is_pending(chunk)));
    }

    #[test]
    fn bits_past_the_last_chunk_are_ignored() {
        let map = AllocationMap::new(70);
        map.load(0, &[0xFF; MAP_PAYLOAD_BYTES]);
        assert_eq!(map.allocated(), 70);
        assert_eq!(map.next_allocated(69), Some(69));
        assert_eq!(map.next_allocated(70), None);
    }

    #[test]
    fn a_snapshot_loads_as_the_same_map() {
        let chunks = CHUNKS_PER_BLOCK * 2 + 77;
        let map = AllocationMap::new(chunks);
        let set = [0, 1, 63, 64, CHUNKS_PER_BLOCK - 1, CHUNKS_PER_BLOCK, chunks - 1];
        for chunk in set {
            map.set(chunk);
        }
        let copy = AllocationMap::new(chunks);
        for snapshot in map.snapshot() {
            copy.load(snapshot.block, &snapshot.bits);
            map.persisted(&snapshot);
        }
        let mut found = Vec::new();
        let mut next = copy.next_allocated(0);
        while let Some(chunk) = next {
            found.push(chunk);
            next = copy.next_allocated(chunk + 1);
        }
        assert_eq!(found, set);
        assert!(!map.is_dirty() && !copy.is_dirty());
    }
}
