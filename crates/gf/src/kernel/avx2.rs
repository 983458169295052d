//! Thirty-two bytes at a time with AVX2.

use core::arch::x86_64::*;

use super::lanes::{Lanes, operations};
use crate::field::{self, Multiplier};

operations!("avx2", Ymm, #[target_feature(enable = "avx2")]);

#[derive(Clone, Copy)]
pub(super) struct Ymm(__m256i);

impl Lanes for Ymm {
    const BYTES: usize = 32;
    /// The products of the low nibbles and of the high nibbles, each table in both 128-bit halves.
    type Factor = (__m256i, __m256i);
    /// The low nibbles and the high nibbles.
    type Multiplicand = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise, alignment included.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: a fence has no preconditions.
        unsafe { _mm_sfence() };
    }

    #[inline(always)]
    unsafe fn prefetch_to_write(at: *const u8) {
        // SAFETY: a prefetch never faults, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn zero() -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Ymm) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Ymm) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
    }

    #[inline(always)]
    unsafe fn double(self) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe {
            // A byte with its top bit set is negative.
            let overflow = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let reduction = _mm256_and_si256(overflow, _mm256_set1_epi8(field::REDUCTION as i8));
            Ymm(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduction))
        }
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> Self::Factor {
        // SAFETY: the caller's promise; each table is 16 bytes, aligned to 16.
        unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_load_si128(multiplier.low.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_load_si128(multiplier.high.as_ptr().cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> Self::Multiplicand {
        // SAFETY: the caller's promise.
        unsafe {
            let mask = _mm256_set1_epi8(0x0f);
            (_mm256_and_si256(self.0, mask), _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), mask))
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, value: Self::Multiplicand) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_shuffle_epi8(factor.0, value.0);
            let high = _mm256_shuffle_epi8(factor.1, value.1);
            Ymm(_mm256_xor_si256(self.0, _mm256_xor_si256(low, high)))
        }
    }
}
