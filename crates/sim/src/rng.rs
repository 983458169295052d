//! The source of randomness.

use std::ops::Range;

/// xoshiro256** (Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators", 2018), its
/// state filled from the seed by splitmix64. The same seed gives the same numbers on every machine
/// and in every version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// The increment of splitmix64: 2^64 divided by the golden ratio, made odd.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64: spreads every input bit over all output bits.
#[inline]
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    /// A generator for this seed. Every seed is as good as every other.
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        let mut next = || {
            counter = counter.wrapping_add(GOLDEN);
            mix(counter)
        };
        // Four different outputs of a bijection are never all zero, the one state that xoshiro
        // cannot leave.
        Rng { state: [next(), next(), next(), next()] }
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c2, d2) = (c ^ a, d ^ b);
        self.state = [a ^ d2, b ^ c2, c2 ^ (b << 17), d2.rotate_left(45)];
        result
    }

    /// A number from 0 to `limit - 1`. The bias is below `limit` / 2^64.
    ///
    /// # Panics
    /// If `limit` is 0.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below 0");
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// An index into a list with `len` elements.
    ///
    /// # Panics
    /// If `len` is 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number of a half-open range.
    ///
    /// # Panics
    /// If the range is empty.
    #[inline]
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "the range {range:?} is empty");
        range.start + self.below(range.end - range.start)
    }

    /// True `hits` times out of `of`.
    ///
    /// # Panics
    /// If `of` is 0.
    #[inline]
    pub fn chance(&mut self, hits: u64, of: u64) -> bool {
        self.below(of) < hits
    }

    /// One element.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// Brings the elements into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Fills `bytes` with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A second generator, independent of what this one gives from now on.
    #[must_use]
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }
}
