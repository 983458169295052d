//! Eight bytes in a general register, and the single byte with which every kernel finishes: for CPUs without a kernel
//! of their own.

use super::lanes::{Lanes, operations};
use crate::field::{self, Multiplier};

/// Eight bytes, in a name that the macro can import.
type Word = u64;

operations!("scalar", Word);

/// The same byte in all eight lanes.
const fn each(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

impl Lanes for u64 {
    const BYTES: usize = 8;
    type Factor = Multiplier;
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
        // No byte's shift or product reaches its neighbour: 0x7f doubled and 1 * 0x1d both fit into eight bits.
        ((self & each(0x7f)) << 1) ^ (((self >> 7) & each(1)) * u64::from(field::REDUCTION))
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> Multiplier {
        *multiplier
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> u64 {
        self
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Multiplier, value: u64) -> u64 {
        self ^ u64::from_ne_bytes(value.to_ne_bytes().map(|byte| factor.times(byte)))
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
