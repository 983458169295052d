//! Computes a CRC in two ways at the same time, on separate execution units of the CPU.
//!
//! *Folding* (Gopal, Ozturk, Guilford and others, "Fast CRC Computation for Generic Polynomials
//! Using PCLMULQDQ Instruction", Intel 2009): wide registers run over a message, and each step
//! advances them with carry-less products. *Streams*: the CPU's CRC-32C instruction takes one word
//! at a time, and each result depends on the one before. So three streams run over other parts of
//! the message at once.
//!
//! ```text
//! chunk:  | wide registers, all steps | stream 1 | stream 2 | stream 3, some words longer |
//! ```
//! At the end, the folded result and the first two streams are advanced to the end of the chunk by
//! a product each. Then all four are added.

use super::{CRC32C_BLOCK, polynomial, table};

/// The rest after whole blocks is processed in chunks of this size, and then word by word.
const SMALL_CHUNK: usize = 512;

/// Bytes of a word.
const WORD: usize = 8;

/// A register of 128-bit lanes, each a piece of a message.
///
/// The methods take on the features of the `#[target_feature]` function that they are inlined into,
/// or have the same features.
///
/// # Safety of every method
/// The CPU has the instruction set. `load` reads [`Fold::BYTES`] bytes at any alignment.
pub(super) trait Fold: Copy {
    /// Bytes in one register.
    const BYTES: usize;

    unsafe fn load(from: *const u8) -> Self;
    /// Adds a CRC register to the first four bytes.
    unsafe fn add_to_start(self, register: u64) -> Self;
    /// The factors of [`polynomial::fold_factors`], in each lane.
    unsafe fn factors(factors: [u64; 2]) -> Self;
    /// Each lane advanced by its factors, plus `next`.
    unsafe fn fold(self, factors: Self, next: Self) -> Self;
    /// All lanes folded into the last.
    unsafe fn last_lane(self) -> [u64; 2];
    /// The CRC register after a word.
    unsafe fn append_word(register: u64, word: u64) -> u64;
    /// The carry-less product of two 32-bit numbers.
    unsafe fn product(a: u64, b: u32) -> u64;
}

/// The division of a chunk of `LEN` bytes: each step advances `WIDE` registers by one piece each,
/// and each stream by `WORDS` words.
struct Chunk<F, const WIDE: usize, const WORDS: usize, const LEN: usize>(F);

impl<F: Fold, const WIDE: usize, const WORDS: usize, const LEN: usize> Chunk<F, WIDE, WORDS, LEN> {
    /// Bytes of the first piece of each register, which is loaded before the first step.
    const WIDE_BYTES: usize = WIDE * F::BYTES;
    const STEPS: usize = (LEN - Self::WIDE_BYTES) / (Self::WIDE_BYTES + 3 * WORDS * WORD);
    /// Offset of the streams.
    const STREAMS: usize = (1 + Self::STEPS) * Self::WIDE_BYTES;
    /// Words of the first stream, and of the second.
    const STREAM_WORDS: usize = (LEN - Self::STREAMS) / (3 * WORD);
    const STREAM_BYTES: usize = Self::STREAM_WORDS * WORD;
    const THIRD_BYTES: usize = LEN - Self::STREAMS - 2 * Self::STREAM_BYTES;
    const IS_WHOLE: () = assert!(LEN.is_multiple_of(WORD) && F::BYTES.is_multiple_of(WORD));

    const STEP_FACTORS: [u64; 2] = polynomial::fold_factors(Self::WIDE_BYTES);
    const REGISTER_FACTORS: [u64; 2] = polynomial::fold_factors(F::BYTES);
    const WIDE_SHIFT: u32 = polynomial::shift_factor(LEN - Self::STREAMS);
    const FIRST_SHIFT: u32 = polynomial::shift_factor(LEN - Self::STREAMS - Self::STREAM_BYTES);
    const SECOND_SHIFT: u32 = polynomial::shift_factor(Self::THIRD_BYTES);

    /// The CRC register after a chunk.
    ///
    /// # Safety
    /// The CPU has the instruction set, and `LEN` bytes can be read from `start` on.
    #[inline(always)]
    unsafe fn append(register: u64, start: *const u8) -> u64 {
        const { Self::IS_WHOLE };
        // SAFETY: the caller's promise of the CPU. The registers read the first `STREAMS` bytes:
        // `WIDE_BYTES`, and as much in each step. The streams read from there on `STREAM_BYTES`
        // twice, and `THIRD_BYTES`, which ends with the chunk.
        unsafe {
            let mut wide: [F; WIDE] = core::array::from_fn(|index| F::load(start.add(index * F::BYTES)));
            wide[0] = wide[0].add_to_start(register);
            let factors = F::factors(Self::STEP_FACTORS);
            let (mut first, mut second, mut third) = (0, 0, 0);
            let mut piece = start.add(Self::WIDE_BYTES);
            let mut at = start.add(Self::STREAMS);
            let mut words = |count: usize| {
                for _ in 0..count {
                    first = F::append_word(first, word(at));
                    second = F::append_word(second, word(at.add(Self::STREAM_BYTES)));
                    third = F::append_word(third, word(at.add(2 * Self::STREAM_BYTES)));
                    at = at.add(WORD);
                }
            };
            for _ in 0..Self::STEPS {
                for (index, wide) in wide.iter_mut().enumerate() {
                    *wide = wide.fold(factors, F::load(piece.add(index * F::BYTES)));
                }
                piece = piece.add(Self::WIDE_BYTES);
                words(WORDS);
            }
            words(Self::STREAM_WORDS - Self::STEPS * WORDS);
            for index in 0..(Self::THIRD_BYTES - Self::STREAM_BYTES) / WORD {
                third = F::append_word(third, word(at.add(2 * Self::STREAM_BYTES + index * WORD)));
            }
            let factors = F::factors(Self::REGISTER_FACTORS);
            let mut one = wide[0];
            for &next in &wide[1..] {
                one = one.fold(factors, next);
            }
            let [high, low] = one.last_lane();
            let folded = F::append_word(F::append_word(0, high), low);
            let shifted = F::product(folded, Self::WIDE_SHIFT)
                ^ F::product(first, Self::FIRST_SHIFT)
                ^ F::product(second, Self::SECOND_SHIFT);
            F::append_word(0, shifted) ^ third
        }
    }
}

/// # Safety
/// Eight bytes can be read.
#[inline(always)]
unsafe fn word(from: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le(unsafe { from.cast::<u64>().read_unaligned() })
}

/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn append<F: Fold, const WIDE: usize, const WORDS: usize>(register: u32, bytes: &[u8]) -> u32 {
    let mut register = u64::from(register);
    let mut blocks = bytes.chunks_exact(CRC32C_BLOCK);
    for block in &mut blocks {
        // SAFETY: the caller's promise; the block is as long as the chunk.
        register = unsafe { Chunk::<F, WIDE, WORDS, CRC32C_BLOCK>::append(register, block.as_ptr()) };
    }
    let mut chunks = blocks.remainder().chunks_exact(SMALL_CHUNK);
    for chunk in &mut chunks {
        // SAFETY: likewise.
        register = unsafe { Chunk::<F, WIDE, WORDS, SMALL_CHUNK>::append(register, chunk.as_ptr()) };
    }
    let mut words = chunks.remainder().chunks_exact(WORD);
    for bytes in &mut words {
        // SAFETY: the caller's promise; the chunk is a word.
        register = unsafe { F::append_word(register, word(bytes.as_ptr())) };
    }
    table::append(register as u32, words.remainder())
}

/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn blocks<F: Fold, const WIDE: usize, const WORDS: usize>(bytes: &[u8], sums: &mut [u32]) {
    for (block, sum) in bytes.chunks_exact(CRC32C_BLOCK).zip(sums) {
        // SAFETY: the caller's promise; the block is as long as the chunk.
        let register = unsafe { Chunk::<F, WIDE, WORDS, CRC32C_BLOCK>::append(u64::from(u32::MAX), block.as_ptr()) };
        *sum = !(register as u32);
    }
}

/// The table of the loops, compiled for one implementation of [`Fold`] with the given attribute on
/// each function.
macro_rules! operations {
    ($name:literal, $fold:ty, $wide:literal, $words:literal, #[$feature:meta]) => {
        pub(super) static OPERATIONS: $crate::crc32c::Operations =
            $crate::crc32c::Operations { name: $name, append, blocks };

        #[$feature]
        unsafe fn append(register: u32, bytes: &[u8]) -> u32 {
            // SAFETY: the caller's promise, handed on.
            unsafe { $crate::crc32c::fused::append::<$fold, $wide, $words>(register, bytes) }
        }

        #[$feature]
        unsafe fn blocks(bytes: &[u8], sums: &mut [u32]) {
            // SAFETY: the caller's promise, handed on.
            unsafe { $crate::crc32c::fused::blocks::<$fold, $wide, $words>(bytes, sums) }
        }
    };
}
pub(super) use operations;
