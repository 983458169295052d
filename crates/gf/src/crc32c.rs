//! CRC-32C, the checksum of everything that Purlin stores on drives: a remainder in GF(2)[x].
//!
//! The polynomial is that of Castagnoli, 0x1EDC6F41 (RFC 3720, section 12.1 and appendix B.4). Bits
//! are taken from the lowest bit of each byte on. The register starts as all ones and is inverted
//! at the end.
//!
//! The algorithm is written once, in [`fused`], on top of the trait [`fused::Fold`], which each
//! instruction set implements.

mod fused;
mod polynomial;
mod table;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
#[cfg(target_arch = "x86_64")]
mod sse;

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(target_arch = "x86_64")]
use crate::kernel::detect;

/// Bytes per checksum of [`crc32c_blocks`].
pub const CRC32C_BLOCK: usize = 4096;

/// The loops of one instruction set.
///
/// # Safety of every entry
/// The CPU has the instruction set.
struct Operations {
    name: &'static str,
    /// The register after some bytes, from the register before them. No inversion.
    append: unsafe fn(register: u32, bytes: &[u8]) -> u32,
    /// The checksum of each block of [`CRC32C_BLOCK`] bytes, with one block per entry of `sums`.
    blocks: unsafe fn(bytes: &[u8], sums: &mut [u32]),
}

/// An implementation of CRC-32C that this CPU can run.
///
/// [`crc32c`] uses the fastest; tests and benchmarks choose a specific one.
#[derive(Clone, Copy)]
pub struct Crc32cKernel(&'static Operations);

impl Crc32cKernel {
    /// `"avx512-vpclmulqdq"`, `"avx2-vpclmulqdq"`, `"sse4.2-pclmulqdq"`, `"neon-pmull"` or
    /// `"table"`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// [`crc32c_append`] with this kernel.
    #[inline]
    pub fn append(self, sum: u32, bytes: &[u8]) -> u32 {
        // SAFETY: a `Crc32cKernel` exists only for a CPU that runs it.
        unsafe { !(self.0.append)(!sum, bytes) }
    }

    /// [`crc32c_blocks`] with this kernel.
    ///
    /// # Panics
    /// If the length of `bytes` is not one block per entry of `sums`.
    #[inline]
    pub fn blocks(self, bytes: &[u8], sums: &mut [u32]) {
        assert_eq!(bytes.len(), sums.len() * CRC32C_BLOCK, "a block for each sum");
        // SAFETY: a `Crc32cKernel` exists only for a CPU that runs it.
        unsafe { (self.0.blocks)(bytes, sums) }
    }
}

impl fmt::Debug for Crc32cKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Crc32cKernel").field(&self.name()).finish()
    }
}

/// A kernel, and the check whether this CPU can run it.
type Candidate = (&'static Operations, fn() -> bool);

/// Every kernel compiled for this architecture, fastest first.
#[cfg(target_arch = "x86_64")]
static CANDIDATES: [Candidate; 4] = [
    (&avx512::OPERATIONS, detect::has_avx512_vpclmulqdq),
    (&avx2::OPERATIONS, detect::has_avx2_vpclmulqdq),
    (&sse::OPERATIONS, detect::has_sse42_pclmulqdq),
    (&table::OPERATIONS, || true),
];
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
static CANDIDATES: [Candidate; 2] = [(&neon::OPERATIONS, neon::runs_here), (&table::OPERATIONS, || true)];
#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
static CANDIDATES: [Candidate; 1] = [(&table::OPERATIONS, || true)];

/// The CRC-32C kernels that this CPU can run, fastest first; the last is always `"table"`.
pub fn crc32c_kernels() -> impl Iterator<Item = Crc32cKernel> {
    CANDIDATES.iter().filter(|(_, runs_here)| runs_here()).map(|(operations, _)| Crc32cKernel(operations))
}

/// The first of [`crc32c_kernels`], determined once.
#[inline]
fn chosen() -> Crc32cKernel {
    const UNKNOWN: usize = usize::MAX;
    // Every racing thread finds the same index, so the order of the stores does not matter.
    static CHOSEN: AtomicUsize = AtomicUsize::new(UNKNOWN);
    let mut index = CHOSEN.load(Ordering::Relaxed);
    if index == UNKNOWN {
        index = CANDIDATES.iter().position(|(_, runs_here)| runs_here()).expect("the table runs everywhere");
        CHOSEN.store(index, Ordering::Relaxed);
    }
    Crc32cKernel(CANDIDATES[index].0)
}

/// The CRC-32C of `bytes`, of any length and alignment.
///
/// ```
/// assert_eq!(gf::crc32c(b"123456789"), 0xE306_9283);
/// ```
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC-32C of a longer input: `sum` is the checksum of its first bytes, `bytes` are the rest.
///
/// ```
/// assert_eq!(gf::crc32c_append(gf::crc32c(b"1234"), b"56789"), gf::crc32c(b"123456789"));
/// ```
#[inline]
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    chosen().append(sum, bytes)
}

/// The CRC-32C of each block of [`CRC32C_BLOCK`] bytes, in order.
///
/// # Panics
/// If the length of `bytes` is not one block per entry of `sums`.
#[inline]
pub fn crc32c_blocks(bytes: &[u8], sums: &mut [u32]) {
    chosen().blocks(bytes, sums);
}
