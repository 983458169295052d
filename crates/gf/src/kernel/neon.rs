//! Sixteen bytes at a time with NEON.

use core::arch::aarch64::*;

use super::lanes::{Lanes, operations};
use crate::field::{self, Multiplier};

operations!("neon", Quad, #[target_feature(enable = "neon")]);

#[derive(Clone, Copy)]
pub(super) struct Quad(uint8x16_t);

impl Lanes for Quad {
    const BYTES: usize = 16;
    /// The products of the low nibbles and of the high nibbles.
    type Factor = (uint8x16_t, uint8x16_t);
    /// The low nibbles and the high nibbles.
    type Multiplicand = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Quad {
        // SAFETY: the caller's promise.
        unsafe { Quad(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Quad {
        // SAFETY: the caller's promise.
        unsafe { Quad(vdupq_n_u8(0)) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Quad) -> Quad {
        // SAFETY: the caller's promise.
        unsafe { Quad(veorq_u8(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Quad) -> Quad {
        // SAFETY: the caller's promise.
        unsafe { Quad(vorrq_u8(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { vmaxvq_u8(self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn double(self) -> Quad {
        // SAFETY: the caller's promise.
        unsafe {
            // A byte with its top bit set is negative.
            let overflow = vcltzq_s8(vreinterpretq_s8_u8(self.0));
            let reduction = vandq_u8(overflow, vdupq_n_u8(field::REDUCTION));
            Quad(veorq_u8(vshlq_n_u8::<1>(self.0), reduction))
        }
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> Self::Factor {
        // SAFETY: the caller's promise; each table is 16 bytes.
        unsafe { (vld1q_u8(multiplier.low.as_ptr()), vld1q_u8(multiplier.high.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> Self::Multiplicand {
        // SAFETY: the caller's promise.
        unsafe { (vandq_u8(self.0, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(self.0)) }
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, value: Self::Multiplicand) -> Quad {
        // SAFETY: the caller's promise.
        unsafe {
            let low = vqtbl1q_u8(factor.0, value.0);
            let high = vqtbl1q_u8(factor.1, value.1);
            Quad(veorq_u8(self.0, veorq_u8(low, high)))
        }
    }
}
