//! Erasure codes for RAID stripes, and the checksum beside them: arithmetic in GF(2^8) and in
//! GF(2)[x], and nothing of drives or I/O.
//!
//! A stripe is some strips of data and some *syndromes* computed from them, all equally long. A
//! [`Code`] computes the syndromes, keeps them right when data change, checks them, and names a
//! strip that is wrong; a [`Decoder`] computes lost strips. As many strips may be lost as there are
//! syndromes, whichever they are.
//!
//! | syndromes | code |
//! |---|---|
//! | 0 | none |
//! | 1 | P: XOR |
//! | 2 | P and Q, byte for byte those of Linux RAID 6 |
//! | 3 | P, Q and R, with the powers of 1, 2 and 4 |
//! | 4 to 8 | P, Q and the rows of a Cauchy matrix |
//!
//! `docs/format/parity.md` gives the coefficients, vectors to check by hand, and says how to decode
//! by hand; [`coefficient`] is the definition that everything here is made from.
//!
//! ```
//! let code = gf::Code::new(3, 2)?;
//! let data: [&[u8]; 3] = [b"one ", b"two ", b"four"];
//! let (mut p, mut q) = ([0; 4], [0; 4]);
//! code.encode(&data, &mut [&mut p, &mut q]);
//!
//! let decoder = code.decoder(&[0, 2])?;
//! assert_eq!(decoder.sources(), [1, 3, 4]);
//! let (mut first, mut third) = ([0; 4], [0; 4]);
//! decoder.reconstruct(&[b"two ", &p, &q], &mut [&mut first, &mut third]);
//! assert_eq!((&first, &third), (b"one ", b"four"));
//! # Ok::<(), gf::CodeError>(())
//! ```
//!
//! [`crc32c`] is the checksum of all blocks and structures on drives.
//!
//! # Kernels
//! The loops exist for AVX-512 with GFNI, AVX2, NEON and plain registers, those of the checksum for
//! AVX-512 and AVX2 with VPCLMULQDQ, SSE4.2 with PCLMULQDQ, NEON with PMULL, and by table. The
//! fastest that the CPU has is chosen once, and [`kernels`] and [`crc32c_kernels`] list them so
//! that tests and benchmarks can name one. `README.md` says which has been run where.

#![no_std]

extern crate alloc;

mod code;
mod coefficient;
mod crc32c;
mod decoder;
mod field;
mod kernel;
mod locate;
mod transform;

pub use code::{Code, CodeError};
pub use coefficient::{STRIPS_MAX, SYNDROMES_MAX, coefficient};
pub use crc32c::{CRC32C_BLOCK, Crc32cKernel, crc32c, crc32c_append, crc32c_blocks, crc32c_kernels};
pub use decoder::Decoder;
pub use kernel::{Kernel, kernel_name, kernels};
pub use locate::Verdict;

/// `dst ^= src`, any length, any alignment.
///
/// # Panics
/// If the two are not equally long.
pub fn xor_into(dst: &mut [u8], src: &[u8]) {
    kernel::chosen().xor_into(dst, src);
}

/// Whether every byte is 0; so of no bytes, too.
pub fn is_zero(bytes: &[u8]) -> bool {
    kernel::chosen().is_zero(bytes)
}
