//! Sixty-four bytes at a time with AVX-512F and GFNI.
//!
//! GF2P8MULB multiplies modulo 0x11B, the polynomial of AES. A multiplication modulo 0x11D is
//! linear over bits, so it uses GF2P8AFFINEQB with the bit matrix of the coefficient. The compiler
//! turns two XORs in a row into one VPTERNLOG.

use core::arch::x86_64::*;

use super::lanes::{Lanes, operations};
use crate::field::Multiplier;

operations!("avx512-gfni", Zmm, #[target_feature(enable = "avx512f,gfni")]);

const DOUBLE: Multiplier = Multiplier::new(2);
const QUADRUPLE: Multiplier = Multiplier::new(4);

#[derive(Clone, Copy)]
pub(super) struct Zmm(__m512i);

/// The matrix in all eight 64-bit lanes.
#[inline(always)]
unsafe fn matrix(multiplier: &Multiplier) -> __m512i {
    // SAFETY: the caller has AVX-512F.
    unsafe { _mm512_set1_epi64(multiplier.affine as i64) }
}

impl Lanes for Zmm {
    const BYTES: usize = 64;
    type Factor = __m512i;
    type Multiplicand = __m512i;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise, alignment included.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
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
    unsafe fn zero() -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Zmm) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Zmm) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { _mm512_test_epi64_mask(self.0, self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn double(self) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, matrix(&DOUBLE))) }
    }

    #[inline(always)]
    unsafe fn quadruple(self) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, matrix(&QUADRUPLE))) }
    }

    #[inline(always)]
    unsafe fn factor(multiplier: &Multiplier) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { matrix(multiplier) }
    }

    #[inline(always)]
    unsafe fn multiplicand(self) -> __m512i {
        self.0
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: __m512i, value: __m512i) -> Zmm {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_xor_si512(self.0, _mm512_gf2p8affine_epi64_epi8::<0>(value, factor))) }
    }
}
