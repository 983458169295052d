//! Memory that will be needed soon.

/// Asks the processor to load the memory of a reference into its cache. It does not wait for the
/// load, and affects only the speed.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    let _at: *const T = place;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, for any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: likewise; the instruction changes no register and no memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) _at, options(nostack, preserves_flags, readonly));
    }
}
