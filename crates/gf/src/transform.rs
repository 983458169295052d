//! A matrix over the field, laid out for the kernels, that turns source strips into output strips.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::coefficient::{PARITY_MAX, STRIPS_MAX};
use crate::field::Multiplier;
use crate::kernel::{Operations, ROWS_MAX};

/// Bytes of each strip that are processed at a time if the sources are read more than once. 64
/// blocks of this size still fit into a second-level cache of 512 KiB.
const BLOCK_BYTES: usize = 4096;

/// Rows of a matrix, in groups that fit one kernel call.
#[derive(Clone)]
pub(crate) struct Transform {
    source_count: usize,
    groups: Box<[Group]>,
}

#[derive(Clone)]
struct Group {
    rows: usize,
    /// `rows` factors for the first source, then `rows` for the second, and so on.
    factors: Box<[Multiplier]>,
}

impl Transform {
    /// The matrix whose rows are `matrix[row * source_count..][..source_count]`.
    pub fn new(matrix: &[u8], source_count: usize) -> Transform {
        let row_count = matrix.len() / source_count;
        assert_eq!(matrix.len(), row_count * source_count, "whole rows");
        // Groups are as even as possible: five rows as 3 + 2 keep more registers busy than 4 + 1.
        let group_count = row_count.div_ceil(ROWS_MAX);
        let mut groups = Vec::with_capacity(group_count);
        let mut first = 0;
        for group in 0..group_count {
            let rows = (row_count - first).div_ceil(group_count - group);
            let factors = (0..source_count)
                .flat_map(|source| (first..first + rows).map(move |row| matrix[row * source_count + source]))
                .map(Multiplier::new)
                .collect();
            groups.push(Group { rows, factors });
            first += rows;
        }
        Transform { source_count, groups: groups.into() }
    }

    /// `out[r] = sum of matrix[r][i] * sources[i]`. The caller has checked that all strips are
    /// equally long.
    pub fn apply(&self, operations: &Operations, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        assert_eq!(sources.len(), self.source_count, "sources");
        assert_eq!(out.len(), self.groups.iter().map(|group| group.rows).sum::<usize>(), "outputs");
        let Some(length) = out.first().map(|strip| strip.len()) else { return };
        let block_bytes = if self.groups.len() == 1 { length } else { BLOCK_BYTES };
        let mut start = 0;
        while start < length {
            let end = length.min(start + block_bytes);
            let mut source_blocks = [&[][..]; STRIPS_MAX];
            for (block, source) in source_blocks.iter_mut().zip(sources) {
                *block = &source[start..end];
            }
            let mut out_blocks: [&mut [u8]; PARITY_MAX] = Default::default();
            for (block, strip) in out_blocks.iter_mut().zip(out.iter_mut()) {
                *block = &mut strip[start..end];
            }
            let mut rest = &mut out_blocks[..];
            for group in &self.groups {
                let (rows, later) = rest.split_at_mut(group.rows);
                // SAFETY: the operations run on this CPU; every block is `end - start` long,
                // because slicing checks it.
                unsafe { (operations.combine)(&group.factors, &source_blocks[..sources.len()], rows) };
                rest = later;
            }
            start = end;
        }
    }
}

/// The inverse of a square matrix of at most [`PARITY_MAX`] rows, by Gauss-Jordan elimination;
/// `None` if it is singular.
///
/// Only the first `size` rows and columns are used.
pub(crate) fn invert(mut matrix: Square, size: usize) -> Option<Square> {
    use crate::field::{inverse, multiply};

    let mut result = [[0; PARITY_MAX]; PARITY_MAX];
    for (n, row) in result.iter_mut().enumerate() {
        row[n] = 1;
    }
    for column in 0..size {
        let pivot = (column..size).find(|&row| matrix[row][column] != 0)?;
        matrix.swap(column, pivot);
        result.swap(column, pivot);
        let scale = inverse(matrix[column][column]);
        matrix[column] = matrix[column].map(|value| multiply(value, scale));
        result[column] = result[column].map(|value| multiply(value, scale));
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            for n in 0..size {
                matrix[row][n] ^= multiply(factor, matrix[column][n]);
                result[row][n] ^= multiply(factor, result[column][n]);
            }
        }
    }
    Some(result)
}

/// Room for a square matrix of up to [`PARITY_MAX`] rows.
pub(crate) type Square = [[u8; PARITY_MAX]; PARITY_MAX];
