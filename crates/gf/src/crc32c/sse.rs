//! Sixteen bytes at a time with PCLMULQDQ, beside the CRC32 instruction of SSE4.2.

use core::arch::x86_64::*;

use super::fused::{Fold, operations};

// Two registers hide the latency of a product behind that of the streams. Three words per step,
// since many CPUs start a product only every second cycle.
operations!("sse4.2-pclmulqdq", Xmm, 2, 3, #[target_feature(enable = "sse4.2,pclmulqdq")]);

#[derive(Clone, Copy)]
pub(super) struct Xmm(pub __m128i);

impl Fold for Xmm {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Xmm {
        // SAFETY: the caller's promise.
        unsafe { Xmm(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn add_to_start(self, register: u64) -> Xmm {
        // SAFETY: the caller's promise.
        unsafe { Xmm(_mm_xor_si128(self.0, _mm_cvtsi64_si128(register as i64))) }
    }

    #[inline(always)]
    unsafe fn factors([first, second]: [u64; 2]) -> Xmm {
        // SAFETY: the caller's promise.
        unsafe { Xmm(_mm_set_epi64x(second as i64, first as i64)) }
    }

    #[inline(always)]
    unsafe fn fold(self, factors: Xmm, next: Xmm) -> Xmm {
        // SAFETY: the caller's promise.
        unsafe {
            let first = _mm_clmulepi64_si128::<0x00>(self.0, factors.0);
            let second = _mm_clmulepi64_si128::<0x11>(self.0, factors.0);
            Xmm(_mm_xor_si128(_mm_xor_si128(first, next.0), second))
        }
    }

    #[inline(always)]
    unsafe fn last_lane(self) -> [u64; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm_cvtsi128_si64(self.0) as u64, _mm_extract_epi64::<1>(self.0) as u64] }
    }

    #[inline(always)]
    unsafe fn append_word(register: u64, word: u64) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { _mm_crc32_u64(register, word) }
    }

    #[inline(always)]
    unsafe fn product(a: u64, b: u32) -> u64 {
        // SAFETY: the caller's promise.
        unsafe {
            let (a, b) = (_mm_cvtsi64_si128(a as i64), _mm_cvtsi64_si128(i64::from(b)));
            _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0x00>(a, b)) as u64
        }
    }
}
