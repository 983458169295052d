//! Sixty-four bytes at a time with VPCLMULQDQ, beside the CRC32 instruction of SSE4.2.

use core::arch::x86_64::*;

use super::fused::{Fold, operations};
use super::polynomial::fold_factors;
use super::sse::Xmm;

// Four registers, since a product of this width takes eight cycles on Intel CPUs; two words take
// the streams six cycles. Chosen by instruction tables, not measured.
operations!("avx512-vpclmulqdq", Zmm, 4, 2, #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]);

#[derive(Clone, Copy)]
pub(super) struct Zmm(__m512i);

impl Fold for Zmm {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn add_to_start(self, register: u64) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_xor_si512(self.0, _mm512_zextsi128_si512(_mm_cvtsi64_si128(register as i64)))) }
    }

    #[inline(always)]
    unsafe fn factors([first, second]: [u64; 2]) -> Zmm {
        let (first, second) = (first as i64, second as i64);
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_set_epi64(second, first, second, first, second, first, second, first)) }
    }

    #[inline(always)]
    unsafe fn fold(self, factors: Zmm, next: Zmm) -> Zmm {
        // SAFETY: the caller's promise. The compiler turns the two XORs into one VPTERNLOG.
        unsafe {
            let first = _mm512_clmulepi64_epi128::<0x00>(self.0, factors.0);
            let second = _mm512_clmulepi64_epi128::<0x11>(self.0, factors.0);
            Zmm(_mm512_xor_si512(_mm512_xor_si512(first, next.0), second))
        }
    }

    #[inline(always)]
    unsafe fn last_lane(self) -> [u64; 2] {
        // SAFETY: the caller's promise, which includes that for `Xmm`.
        unsafe {
            let factors = Xmm::factors(const { fold_factors(Xmm::BYTES) });
            let lane = Xmm(_mm512_castsi512_si128(self.0));
            let lane = lane.fold(factors, Xmm(_mm512_extracti32x4_epi32::<1>(self.0)));
            let lane = lane.fold(factors, Xmm(_mm512_extracti32x4_epi32::<2>(self.0)));
            lane.fold(factors, Xmm(_mm512_extracti32x4_epi32::<3>(self.0))).last_lane()
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
