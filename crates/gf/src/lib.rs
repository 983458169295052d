//! Erasure codes for RAID stripes, and the CRC-32C checksum: arithmetic in GF(2^8) and in GF(2)[x].
//! The crate knows nothing of drives or I/O.
//!
//! A stripe has data strips and parity strips computed from them, all equally long. A
//! [`Code`] computes the parity, updates it when data changes, checks it, and identifies a strip
//! that is wrong. A [`Decoder`] computes lost strips. As many strips may be lost as there are
//! parity strips, in any combination.
//!
//! | parity strips | code |
//! |---|---|
//! | 0 | none |
//! | 1 | P: XOR |
//! | 2 | P and Q, byte for byte those of Linux RAID 6 |
//! | 3 | P, Q and R, with the powers of 1, 2 and 4 |
//! | 4 to 8 | P, Q and the rows of a Cauchy matrix |
//!
//! `docs/format/parity.md` gives the coefficients and test vectors, and says how to decode by hand.
//! [`coefficient`] is the definition that everything here is derived from.
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
//! The loops exist for AVX-512 with GFNI, AVX2, NEON and general registers. Those of the checksum
//! exist for AVX-512 and AVX2 with VPCLMULQDQ, SSE4.2 with PCLMULQDQ, NEON with PMULL, and with a
//! table. The fastest that the CPU supports is chosen once. [`kernels`] and [`crc32c_kernels`] list
//! all that it supports, so that tests and benchmarks can choose one. `README.md` says which has
//! been run where.

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
pub use coefficient::{PARITY_MAX, STRIPS_MAX, coefficient};
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

/// Whether every byte is 0, which includes an empty slice.
pub fn is_zero(bytes: &[u8]) -> bool {
    kernel::chosen().is_zero(bytes)
}
