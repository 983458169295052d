//! A register full of bytes, each of them an element of the field.

use crate::field::Multiplier;

/// The operations that the byte position loops need from an instruction set.
///
/// The methods are `#[inline(always)]`, so they take on the features of the `#[target_feature]`
/// function that they are inlined into.
///
/// # Safety of every method
/// The CPU has the instruction set. `load` reads and `store` writes `BYTES` bytes at any alignment.
pub(super) trait Lanes: Copy {
    /// Bytes in one register.
    const BYTES: usize;
    /// A coefficient, ready to multiply by.
    type Factor: Copy;
    /// A value made ready to be multiplied by several coefficients.
    type Multiplicand: Copy;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// As `store`, but bypasses the cache if the instruction set can. `to` is aligned to `BYTES`,
    /// and other threads see the bytes only after `fence`.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to) }
    }
    /// Orders the writes of `stream` before all later writes.
    #[inline(always)]
    unsafe fn fence() {}
    /// Prefetches the cache line at `at` for a write. The address need not be valid.
    #[inline(always)]
    unsafe fn prefetch_to_write(_at: *const u8) {}
    unsafe fn xor(self, other: Self) -> Self;
    /// `2 * self`
    unsafe fn double(self) -> Self;
    /// `4 * self`
    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.double().double() }
    }
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    unsafe fn factor(multiplier: &Multiplier) -> Self::Factor;
    unsafe fn multiplicand(self) -> Self::Multiplicand;
    /// `self ^ factor * value`
    unsafe fn add_product(self, factor: Self::Factor, value: Self::Multiplicand) -> Self;
    unsafe fn zero() -> Self;
}

/// The table of the loops, compiled for one implementation of [`Lanes`] with the given attribute on
/// each function.
macro_rules! operations {
    ($name:literal, $lanes:ty $(, #[$feature:meta])?) => {
        pub(super) static OPERATIONS: $crate::kernel::Operations = $crate::kernel::Operations {
            name: $name,
            xor: entry::xor,
            pq: entry::pq,
            pqr: entry::pqr,
            combine: entry::combine,
            accumulate: entry::accumulate,
            solve_pq: entry::solve_pq,
            xor_into: entry::xor_into,
            is_zero: entry::is_zero,
        };

        /// # Safety of every function
        /// That of [`Operations`](crate::kernel::Operations), passed on unchanged.
        mod entry {
            use super::*;
            use crate::field::Multiplier;
            use crate::kernel::{SolvePq, positions};

            $crate::kernel::lanes::operations! { @each $lanes, ($(#[$feature])?),
                fn xor(data: &[&[u8]], p: &mut [u8]);
                fn pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]);
                fn pqr(data: &[&[u8]], p: &mut [u8], q: &mut [u8], r: &mut [u8]);
                fn combine(factors: &[Multiplier], data: &[&[u8]], out: &mut [&mut [u8]]);
                fn accumulate(factors: &[Multiplier], a: &[u8], b: Option<&[u8]>, out: &mut [&mut [u8]]);
                fn solve_pq(solve: &SolvePq, data: &[&[u8]], p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]);
                fn xor_into(a: &mut [u8], b: &[u8]);
                fn is_zero(a: &[u8]) -> bool;
            }
        }
    };
    (@each $lanes:ty, $features:tt,
        $(fn $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $($crate::kernel::lanes::operations! { @one $lanes, $features,
            fn $function($($argument: $type),*) $(-> $result)?;
        })*
    };
    (@one $lanes:ty, ($(#[$feature:meta])?),
        fn $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;) => {
        $(#[$feature])?
        pub(super) unsafe fn $function($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller's promise, handed on.
            unsafe { positions::$function::<$lanes>($($argument),*) }
        }
    };
}
pub(super) use operations;
