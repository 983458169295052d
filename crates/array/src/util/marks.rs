//! Sets of block numbers that all shards share.

use std::sync::atomic::{AtomicU64, Ordering};

/// One bit per block.
#[derive(Debug)]
pub(crate) struct BlockSet(Box<[AtomicU64]>);

impl BlockSet {
    /// An empty set of numbers below `count`.
    pub fn new(count: usize) -> Self {
        BlockSet((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether the block was not in the set.
    pub fn insert(&self, block: u64) -> bool {
        let bit = 1 << (block % 64);
        self.0[(block / 64) as usize].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Returns whether the block was in the set.
    pub fn remove(&self, block: u64) -> bool {
        let bit = 1 << (block % 64);
        self.0[(block / 64) as usize].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    pub fn contains(&self, block: u64) -> bool {
        self.0[(block / 64) as usize].load(Ordering::Acquire) & (1 << (block % 64)) != 0
    }

    /// Whether any of two sets has an element. Reads word by word, first `from`, then `to`, so it
    /// sees an element that is moved from one to the other meanwhile.
    pub fn any_of(from: &BlockSet, to: &BlockSet) -> bool {
        let marked =
            |(from, to): (&AtomicU64, &AtomicU64)| from.load(Ordering::Acquire) != 0 || to.load(Ordering::Acquire) != 0;
        from.0.iter().zip(&to.0).any(marked)
    }

    /// The elements of both sets, in order. Reads them like [`BlockSet::any_of`].
    pub fn all_of(from: &BlockSet, to: &BlockSet) -> Vec<u64> {
        let mut blocks = Vec::new();
        for (index, (from, to)) in from.0.iter().zip(&to.0).enumerate() {
            push_bits(&mut blocks, index, from.load(Ordering::Acquire) | to.load(Ordering::Acquire));
        }
        blocks
    }

    /// Removes every element.
    pub fn clear(&self) {
        self.0
            .iter()
            .filter(|word| word.load(Ordering::Acquire) != 0)
            .for_each(|word| word.store(0, Ordering::Release));
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// The first element from `block` on.
    pub fn next(&self, block: u64) -> Option<u64> {
        let mut mask = u64::MAX << (block % 64);
        for (index, word) in self.0.iter().enumerate().skip((block / 64) as usize) {
            let bits = word.load(Ordering::Acquire) & mask;
            if bits != 0 {
                return Some(index as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    /// Moves every element to `other`. Each is in at least one of the sets at any time.
    pub fn move_to(&self, other: &BlockSet) -> Vec<u64> {
        let mut blocks = Vec::new();
        for (index, (word, other)) in self.0.iter().zip(&other.0).enumerate() {
            let bits = word.load(Ordering::Acquire);
            other.fetch_or(bits, Ordering::AcqRel);
            word.fetch_and(!bits, Ordering::AcqRel);
            push_bits(&mut blocks, index, bits);
        }
        blocks
    }
}

fn push_bits(blocks: &mut Vec<u64>, word: usize, mut bits: u64) {
    while bits != 0 {
        blocks.push(word as u64 * 64 + u64::from(bits.trailing_zeros()));
        bits &= bits - 1;
    }
}
