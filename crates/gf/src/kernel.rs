//! The instruction sets that the loops are compiled for, and the choice among them.
//!
//! The algorithms are written once, in [`positions`], on top of a small trait, [`lanes::Lanes`]:
//! load, store, XOR, times two, times a constant. An instruction set is an implementation of that
//! trait and a table of functions that are compiled with its features enabled.

mod lanes;
mod positions;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod detect;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::field::Multiplier;

/// The most rows in one call of [`Operations::combine`] or [`Operations::accumulate`]: four
/// accumulators of two vectors, two tables, a mask and the source fit into the sixteen registers of
/// AVX2.
pub(crate) const ROWS_MAX: usize = 4;

/// The loops of one instruction set.
///
/// # Safety of every entry
/// The CPU has the instruction set, and all strips of a call, sources and outputs, are equally
/// long. Any length and alignment is allowed. `data` is never empty.
#[allow(clippy::type_complexity, reason = "a table of signatures; a name for each would only hide them")]
pub(crate) struct Operations {
    pub name: &'static str,
    /// `p = sum of data`
    pub xor: unsafe fn(data: &[&[u8]], p: &mut [u8]),
    /// `p = sum of data[i]`, `q = sum of 2^i data[i]`
    pub pq: unsafe fn(data: &[&[u8]], p: &mut [u8], q: &mut [u8]),
    /// As `pq`, and `r = sum of 4^i data[i]`
    pub pqr: unsafe fn(data: &[&[u8]], p: &mut [u8], q: &mut [u8], r: &mut [u8]),
    /// `out[r] = sum of factors[i * out.len() + r] * data[i]`; 1 to [`ROWS_MAX`] outputs
    pub combine: unsafe fn(factors: &[Multiplier], data: &[&[u8]], out: &mut [&mut [u8]]),
    /// `out[r] ^= factors[r] * (a ^ b)`, with b = 0 if absent; 1 to [`ROWS_MAX`] outputs
    pub accumulate: unsafe fn(factors: &[Multiplier], a: &[u8], b: Option<&[u8]>, out: &mut [&mut [u8]]),
    /// Two lost data strips from P and Q
    pub solve_pq: unsafe fn(solve: &SolvePq, data: &[&[u8]], p: &[u8], q: &[u8], x: &mut [u8], y: &mut [u8]),
    /// `a ^= b`
    pub xor_into: unsafe fn(a: &mut [u8], b: &[u8]),
    /// Whether every byte is 0
    pub is_zero: unsafe fn(a: &[u8]) -> bool,
}

/// Factors for computing two lost data strips x < y from P and Q. With `p` and `q` the stored P and
/// Q XORed with those of the surviving data, `Dx = p_factor * p ^ q_factor * q` and `Dy = p ^ Dx`
/// (Anvin, section 4).
#[derive(Clone)]
pub(crate) struct SolvePq {
    pub x: usize,
    pub y: usize,
    pub p_factor: Multiplier,
    pub q_factor: Multiplier,
}

/// An implementation of the loops that this CPU can run.
///
/// [`Code::new`](crate::Code::new) uses the fastest; tests and benchmarks choose a specific one
/// with [`Code::with_kernel`](crate::Code::with_kernel).
#[derive(Clone, Copy)]
pub struct Kernel(&'static Operations);

impl Kernel {
    /// `"avx512-gfni"`, `"avx2"`, `"neon"` or `"scalar"`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// [`xor_into`](crate::xor_into) with this kernel.
    ///
    /// # Panics
    /// If the two are not equally long.
    pub fn xor_into(self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "lengths");
        // SAFETY: a `Kernel` exists only for a CPU that runs it, and the lengths are equal.
        unsafe { (self.0.xor_into)(dst, src) }
    }

    /// [`is_zero`](crate::is_zero) with this kernel.
    pub fn is_zero(self, bytes: &[u8]) -> bool {
        // SAFETY: a `Kernel` exists only for a CPU that runs it.
        unsafe { (self.0.is_zero)(bytes) }
    }

    pub(crate) fn operations(self) -> &'static Operations {
        self.0
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name()).finish()
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kernel {}

/// A kernel, and the check whether this CPU can run it.
type Candidate = (&'static Operations, fn() -> bool);

/// Every kernel compiled for this architecture, fastest first.
#[cfg(target_arch = "x86_64")]
static CANDIDATES: [Candidate; 3] = [
    (&avx512::OPERATIONS, detect::has_avx512_gfni),
    (&avx2::OPERATIONS, detect::has_avx2),
    (&scalar::OPERATIONS, || true),
];
#[cfg(target_arch = "aarch64")]
static CANDIDATES: [Candidate; 2] =
    [(&neon::OPERATIONS, || cfg!(target_feature = "neon")), (&scalar::OPERATIONS, || true)];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static CANDIDATES: [Candidate; 1] = [(&scalar::OPERATIONS, || true)];

/// The kernels that this CPU can run, fastest first; the last is always `"scalar"`.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    CANDIDATES.iter().filter(|(_, runs_here)| runs_here()).map(|(operations, _)| Kernel(operations))
}

/// The kernel that [`Code::new`](crate::Code::new), [`xor_into`](crate::xor_into) and
/// [`is_zero`](crate::is_zero) use: the first of [`kernels`], determined once.
pub(crate) fn chosen() -> Kernel {
    const UNKNOWN: usize = usize::MAX;
    // Every racing thread finds the same index, so the order of the stores does not matter.
    static CHOSEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
    let mut index = CHOSEN.load(Ordering::Relaxed);
    if index == UNKNOWN {
        index = CANDIDATES.iter().position(|(_, runs_here)| runs_here()).expect("the scalar kernel runs everywhere");
        CHOSEN.store(index, Ordering::Relaxed);
    }
    Kernel(CANDIDATES[index].0)
}

/// The name of the kernel in use: `"avx512-gfni"`, `"avx2"`, `"neon"` or `"scalar"`.
pub fn kernel_name() -> &'static str {
    chosen().name()
}
