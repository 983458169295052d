//! The coefficients of the codes: the factor of each data strip in each parity strip.
//!
//! | parity strips | rows |
//! |---|---|
//! | 1 | `1` |
//! | 2 | `1`, `g^i` |
//! | 3 | `1`, `g^i`, `g^2i` |
//! | 4 to 8 | `1`, `g^i`, then for j = 2, 3, ...: `1 / (1 + g^-(i + j - 1))` |
//!
//! Every code is MDS (it survives the loss of as many strips as it has parity strips, in any
//! combination), because every square submatrix is invertible:
//!
//! - With up to three rows, each square submatrix is a Vandermonde matrix, once a non-zero factor
//!   is taken out of each column. Its points are `g^i` or their squares, and for i < 255 they are
//!   distinct.
//! - From four rows on, `1 / (1 + g^-(i + j - 1)) = g^i / (g^i + b_j)` with `b_j = g^-(j - 1)`.
//!   That is a Cauchy matrix in the points `g^i` and `b_j` with column i multiplied by `g^i`. P is
//!   its row for b = 0. Q is, except for a factor, the limit of its row for b to infinity. A Cauchy
//!   matrix extended by its row at infinity has only invertible square submatrices if its points
//!   are distinct: here `g^0 .. g^59` on one side and `0, g^249 .. g^254, infinity` on the other.
//!
//! So P and Q are the same bytes in every code with at least two parity strips, and equal those of
//! Linux RAID 6. An array can go from two parity strips to four or more, or back, without computing
//! P and Q anew.

use crate::field;

/// The most parity strips of a code.
pub const PARITY_MAX: usize = 8;

/// The most strips of a code, data and parity together.
pub const STRIPS_MAX: usize = 64;

/// The factor of data strip `data_index` in parity strip `parity_index` of a code with
/// `parity_count` parity strips.
///
/// This is the definition of the codes; `docs/format/parity.md` gives the same formula.
///
/// # Panics
/// If `parity_index` is not below `parity_count`, `parity_count` is above [`PARITY_MAX`]
/// or `data_index` is not below [`STRIPS_MAX`].
pub fn coefficient(parity_count: usize, parity_index: usize, data_index: usize) -> u8 {
    assert!(parity_index < parity_count, "parity strip {parity_index} of {parity_count}");
    assert!(parity_count <= PARITY_MAX, "{parity_count} parity strips");
    assert!(data_index < STRIPS_MAX, "data strip {data_index}");
    match (parity_index, parity_count) {
        (0, _) => 1,
        (1, _) => field::power(data_index),
        (2, 3) => field::power(2 * data_index),
        (row, _) => field::inverse(1 ^ field::power(field::ORDER - (data_index + row - 1))),
    }
}
