//! Thirty-two bytes at a time with VPCLMULQDQ, beside the CRC32 instruction of SSE4.2.

use core::arch::x86_64::*;

use super::fused::{Fold, operations};
use super::polynomial::fold_factors;
use super::sse::Xmm;

// One register: its four cycles per product hide behind the six cycles of two words. Measured on
// Zen 3, docs/decisions/format-crc.md.
operations!("avx2-vpclmulqdq", Ymm, 1, 2, #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]);

#[derive(Clone, Copy)]
pub(super) struct Ymm(__m256i);

impl Fold for Ymm {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn add_to_start(self, register: u64) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_xor_si256(self.0, _mm256_zextsi128_si256(_mm_cvtsi64_si128(register as i64)))) }
    }

    #[inline(always)]
    unsafe fn factors([first, second]: [u64; 2]) -> Ymm {
        let (first, second) = (first as i64, second as i64);
        // SAFETY: the caller's promise.
        unsafe { Ymm(_mm256_set_epi64x(second, first, second, first)) }
    }

    #[inline(always)]
    unsafe fn fold(self, factors: Ymm, next: Ymm) -> Ymm {
        // SAFETY: the caller's promise.
        unsafe {
            let first = _mm256_clmulepi64_epi128::<0x00>(self.0, factors.0);
            let second = _mm256_clmulepi64_epi128::<0x11>(self.0, factors.0);
            Ymm(_mm256_xor_si256(_mm256_xor_si256(first, next.0), second))
        }
    }

    #[inline(always)]
    unsafe fn last_lane(self) -> [u64; 2] {
        // SAFETY: the caller's promise, which includes that for `Xmm`.
        unsafe {
            let factors = Xmm::factors(const { fold_factors(Xmm::BYTES) });
            let low = Xmm(_mm256_castsi256_si128(self.0));
            low.fold(factors, Xmm(_mm256_extracti128_si256::<1>(self.0))).last_lane()
        }
    }

    #[inline(always)]
    unsafe fn append_word(register: u64, word: u64) -> u64 {
        // SAFETY: the caller's promise, which includes that for `Xmm`.
        unsafe { Xmm::append_word(register, word) }
    }

    #[inline(always)]
    unsafe fn product(a: u64, b: u32) -> u64 {
        // SAFETY: the caller's promise, which includes that for `Xmm`.
        unsafe { Xmm::product(a, b) }
    }
}
