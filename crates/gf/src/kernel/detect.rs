//! Features of an x86-64 CPU and its operating system, from CPUID and XGETBV. The standard
//! library's detection would tie the crate to `std`.
//!
//! Intel SDM volume 1, sections 12.12 (SSE4.2, PCLMULQDQ), 14.3 (AVX), 14.7 (AVX2), 15.2 to 15.4
//! (AVX-512); GFNI is CPUID.(7,0):ECX bit 8, VPCLMULQDQ bit 10.

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// No state component beyond those that every x86-64 operating system saves.
const XCR0_NONE: u64 = 0;
/// State components that the operating system must save: XMM and YMM.
const XCR0_AVX: u64 = 0b0000_0110;
/// The same, with opmasks, the upper halves of ZMM0-15, and ZMM16-31.
const XCR0_AVX512: u64 = 0b1110_0110;

const LEAF1_ECX_PCLMULQDQ: u32 = 1 << 1;
const LEAF1_ECX_SSE42: u32 = 1 << 20;
const LEAF1_ECX_OSXSAVE: u32 = 1 << 27;
const LEAF1_ECX_AVX: u32 = 1 << 28;
const LEAF7_EBX_AVX2: u32 = 1 << 5;
const LEAF7_EBX_AVX512F: u32 = 1 << 16;
const LEAF7_ECX_GFNI: u32 = 1 << 8;
const LEAF7_ECX_VPCLMULQDQ: u32 = 1 << 10;

/// The bits of CPUID and XCR0 that must be set.
#[derive(Default)]
struct Needs {
    xcr0: u64,
    leaf1_ecx: u32,
    leaf7_ebx: u32,
    leaf7_ecx: u32,
}

pub(crate) fn has_avx2() -> bool {
    // Miri has no CPUID: there, the features enabled in the build are taken as present.
    if cfg!(miri) {
        return cfg!(target_feature = "avx2");
    }
    has(&Needs { xcr0: XCR0_AVX, leaf7_ebx: LEAF7_EBX_AVX2, ..Needs::default() })
}

pub(crate) fn has_avx512_gfni() -> bool {
    if cfg!(miri) {
        return cfg!(all(target_feature = "avx512f", target_feature = "gfni"));
    }
    let (leaf7_ebx, leaf7_ecx) = (LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512F, LEAF7_ECX_GFNI);
    has(&Needs { xcr0: XCR0_AVX512, leaf7_ebx, leaf7_ecx, ..Needs::default() })
}

pub(crate) fn has_sse42_pclmulqdq() -> bool {
    if cfg!(miri) {
        return cfg!(all(target_feature = "sse4.2", target_feature = "pclmulqdq"));
    }
    has(&Needs { leaf1_ecx: LEAF1_ECX_SSE42 | LEAF1_ECX_PCLMULQDQ, ..Needs::default() })
}

pub(crate) fn has_avx2_vpclmulqdq() -> bool {
    if cfg!(miri) {
        return has_sse42_pclmulqdq() && cfg!(all(target_feature = "avx2", target_feature = "vpclmulqdq"));
    }
    let (leaf7_ebx, leaf7_ecx) = (LEAF7_EBX_AVX2, LEAF7_ECX_VPCLMULQDQ);
    has_sse42_pclmulqdq() && has(&Needs { xcr0: XCR0_AVX, leaf7_ebx, leaf7_ecx, ..Needs::default() })
}

pub(crate) fn has_avx512_vpclmulqdq() -> bool {
    if cfg!(miri) {
        return has_sse42_pclmulqdq() && cfg!(all(target_feature = "avx512f", target_feature = "vpclmulqdq"));
    }
    let (leaf7_ebx, leaf7_ecx) = (LEAF7_EBX_AVX2 | LEAF7_EBX_AVX512F, LEAF7_ECX_VPCLMULQDQ);
    has_sse42_pclmulqdq() && has(&Needs { xcr0: XCR0_AVX512, leaf7_ebx, leaf7_ecx, ..Needs::default() })
}

fn has(needs: &Needs) -> bool {
    let leaf1_ecx = __cpuid(1).ecx;
    if leaf1_ecx & needs.leaf1_ecx != needs.leaf1_ecx {
        return false;
    }
    if needs.xcr0 == XCR0_NONE {
        return true;
    }
    let saves = LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX;
    if __cpuid(0).eax < 7 || leaf1_ecx & saves != saves {
        return false;
    }
    // SAFETY: OSXSAVE, checked above, says that XGETBV may be executed.
    let enabled = unsafe { xgetbv0() };
    let leaf7 = __cpuid_count(7, 0);
    enabled & needs.xcr0 == needs.xcr0
        && leaf7.ebx & needs.leaf7_ebx == needs.leaf7_ebx
        && leaf7.ecx & needs.leaf7_ecx == needs.leaf7_ecx
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
