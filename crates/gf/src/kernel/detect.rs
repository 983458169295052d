//! What an x86-64 CPU and its operating system offer, by CPUID and XGETBV; the standard library's detection would tie
//! the crate to `std`.
//!
//! Intel SDM volume 1, sections 14.3 (AVX), 14.7 (AVX2), 15.2 to 15.4 (AVX-512); GFNI is CPUID.(7,0):ECX bit 8.

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// State components that the operating system must save: XMM and YMM.
const XCR0_AVX: u64 = 0b0000_0110;
/// The same, with opmasks, the upper halves of ZMM0-15, and ZMM16-31.
const XCR0_AVX512: u64 = 0b1110_0110;

const LEAF1_ECX_OSXSAVE: u32 = 1 << 27;
const LEAF1_ECX_AVX: u32 = 1 << 28;
const LEAF7_EBX_AVX2: u32 = 1 << 5;
const LEAF7_EBX_AVX512F: u32 = 1 << 16;
const LEAF7_ECX_GFNI: u32 = 1 << 8;

pub(super) fn has_avx2() -> bool {
    // Miri has no CPUID: there, what the build enables is what there is.
    if cfg!(miri) {
        return cfg!(target_feature = "avx2");
    }
    has(XCR0_AVX, LEAF7_EBX_AVX2, 0)
}

pub(super) fn has_avx512_gfni() -> bool {
    if cfg!(miri) {
        return cfg!(all(target_feature = "avx512f", target_feature = "gfni"));
    }
    has(XCR0_AVX512, LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512F, LEAF7_ECX_GFNI)
}

fn has(xcr0: u64, leaf7_ebx: u32, leaf7_ecx: u32) -> bool {
    if __cpuid(0).eax < 7 {
        return false;
    }
    let needed = LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX;
    if __cpuid(1).ecx & needed != needed {
        return false;
    }
    // SAFETY: OSXSAVE, checked above, says that XGETBV may be executed.
    let enabled = unsafe { xgetbv0() };
    let leaf7 = __cpuid_count(7, 0);
    enabled & xcr0 == xcr0 && leaf7.ebx & leaf7_ebx == leaf7_ebx && leaf7.ecx & leaf7_ecx == leaf7_ecx
}

/// The register XCR0.
///
/// # Safety
/// CPUID.1:ECX.OSXSAVE is set.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv0() -> u64 {
    // SAFETY: the caller's promise is that of the instruction; register 0 always exists.
    unsafe { _xgetbv(0) }
}
