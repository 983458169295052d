//! Pseudo-random numbers that repeat with the same seed.

/// xorshift64* (Marsaglia 2003, Vigna 2016): good enough for choosing mutations, and equal on every
/// machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of a seed. Similar seeds give unrelated numbers.
    pub fn new(seed: u64) -> Rng {
        // splitmix64's finalizer, so that small seeds do not start with small numbers. The state
        // must not be zero.
        let mut state = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        state = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state = (state ^ state >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        Rng((state ^ state >> 31).max(1))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from 0 to `end - 1`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The high bits are the best ones. The bias of the multiplication is far too small to
        // matter for a fuzzer.
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}
