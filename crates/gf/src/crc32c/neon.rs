//! Sixteen bytes at a time with PMULL, beside the CRC32C instructions.

use core::arch::aarch64::*;

use super::fused::{Fold, operations};

// Each step takes sixty-four bytes by folding and forty-eight by streams. Chosen by instruction
// tables, not measured.
operations!("neon-pmull", Quad, 4, 2, #[target_feature(enable = "neon,aes,crc")]);

/// Whether the CPU has PMULL and CRC32: fields of ID_AA64ISAR0_EL1 (Arm ARM, D24.2). Linux lets
/// programs read it since 4.11 (Documentation/arch/arm64/cpu-feature-registers.rst). The standard
/// library's detection would tie the crate to `std`.
pub(super) fn runs_here() -> bool {
    // On other systems, and under Miri, the features enabled in the build are taken as present.
    if cfg!(miri) || cfg!(not(target_os = "linux")) {
        return cfg!(all(target_feature = "aes", target_feature = "crc"));
    }
    let features: u64;
    // SAFETY: the kernel emulates the read; it touches nothing else.
    unsafe {
        core::arch::asm!("mrs {}, ID_AA64ISAR0_EL1", out(reg) features, options(pure, nomem, nostack, preserves_flags));
    }
    let field = |lowest_bit: u32| features >> lowest_bit & 0xF;
    let (aes, crc32) = (field(4), field(16));
    // AES: 1 without PMULL, 2 with it.
    aes >= 2 && crc32 >= 1
}

#[derive(Clone, Copy)]
pub(super) struct Quad(uint64x2_t);

// The compiler inlines functions with these features into others with the same, but not those that
// are always inlined.
impl Fold for Quad {
    const BYTES: usize = 16;

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn load(from: *const u8) -> Quad {
        // SAFETY: the caller's promise.
        unsafe { Quad(vreinterpretq_u64_u8(vld1q_u8(from))) }
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn add_to_start(self, register: u64) -> Quad {
        Quad(veorq_u64(self.0, vcombine_u64(vcreate_u64(register), vcreate_u64(0))))
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn factors([first, second]: [u64; 2]) -> Quad {
        Quad(vcombine_u64(vcreate_u64(first), vcreate_u64(second)))
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn fold(self, factors: Quad, next: Quad) -> Quad {
        let first = vmull_p64(vgetq_lane_u64::<0>(self.0), vgetq_lane_u64::<0>(factors.0));
        let second = vmull_high_p64(vreinterpretq_p64_u64(self.0), vreinterpretq_p64_u64(factors.0));
        let (first, second) = (vreinterpretq_u64_p128(first), vreinterpretq_u64_p128(second));
        Quad(veorq_u64(veorq_u64(first, next.0), second))
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn last_lane(self) -> [u64; 2] {
        [vgetq_lane_u64::<0>(self.0), vgetq_lane_u64::<1>(self.0)]
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn append_word(register: u64, word: u64) -> u64 {
        u64::from(__crc32cd(register as u32, word))
    }

    #[inline]
    #[target_feature(enable = "neon,aes,crc")]
    unsafe fn product(a: u64, b: u32) -> u64 {
        vmull_p64(a, u64::from(b)) as u64
    }
}
