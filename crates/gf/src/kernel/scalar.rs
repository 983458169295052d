//! Eight bytes in a general register, for CPUs without a vector kernel, and the single byte with
//! which every kernel finishes.

use super::lanes::{Lanes, operations};
use crate::field::{self, Multiplier};

/// Eight bytes, under a name that the macro can import.
type Word = u64;

operations!("scalar", Word);

/// The same byte in all eight lanes.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

impl Lanes for u64 {
    const BYTES: usize = 8;
    /// The coefficient's product with each power of two, in all lanes.
    type Factor = [u64; 8];
    type Multiplicand = u64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn zero() -> u64 {
        0
    }

    #[inline(always)]
    unsafe fn xor(self, other: u64) -> u64 {
        self ^ other
    }

    #[inline(always)]
    unsafe fn or(self, other: u64) -> u64 {
        self | other
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self == 0
    }

    #[inline(always)]
    unsafe fn double(self) -> u64 {
        // For a byte with its top bit set, that bit shifted left by one, minus that bit moved to
        // the bottom, is a byte of ones: 0x100 - 1. The carry out of the highest byte is dropped.
        // No other carry remains, because each byte only borrows from its own.
        let overflow = self & each(0x80);
        let mask = (overflow << 1).wrapping_sub(overflow >> 7);
        ((self & each(0x7f)) << 1) ^ (mask & each(field::REDUCTION))
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> [u64; 8] {
        let Multiplier { low, high, .. } = multiplier;
        [low[1], low[2], low[4], low[8], high[1], high[2], high[4], high[8]].map(each)
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> u64 {
        self
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: [u64; 8], value: u64) -> u64 {
        let mut sum = self;
        for (bit, product) in factor.into_iter().enumerate() {
            // As in `double`, each bit becomes a byte of ones.
            let set = (value >> bit) & each(1);
            sum ^= (set << 8).wrapping_sub(set) & product;
        }
        sum
    }
}

impl Lanes for u8 {
    const BYTES: usize = 1;
    type Factor = Multiplier;
    type Multiplicand = u8;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> u8 {
        // SAFETY: the caller's promise.
        unsafe { from.read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.write(self) }
    }

    #[inline(always)]
    unsafe fn zero() -> u8 {
        0
    }

    #[inline(always)]
    unsafe fn xor(self, other: u8) -> u8 {
        self ^ other
    }

    #[inline(always)]
    unsafe fn or(self, other: u8) -> u8 {
        self | other
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        self == 0
    }

    #[inline(always)]
    unsafe fn double(self) -> u8 {
        field::double(self)
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> Multiplier {
        *multiplier
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> u8 {
        self
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Multiplier, value: u8) -> u8 {
        self ^ factor.times(value)
    }
}
