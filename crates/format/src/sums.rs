//! Checksums of the data region: one CRC-32C for each block of [`BLOCK`] bytes, for data and parity
//! strips alike, stored on the same member.
//!
//! ```text
//! checksum region:  | sums of data blocks 0..1024 | 1024..2048 | ...
//! each sum a u32, little endian
//! ```
//! Sums are meaningful only in allocated chunks. A block of sums carries nothing but sums, and only
//! its position says which data it belongs to. If it is damaged, the data blocks seem wrong but
//! still fit their stripes.

use crate::BLOCK;
use crate::layout::{Layout, Region};

/// Sums in one block of the checksum region.
pub const SUMS_PER_BLOCK: u64 = (BLOCK / size_of::<u32>()) as u64;

/// Blocks of sums that this many bytes of data need.
pub fn sum_block_count(data_bytes: u64) -> u64 {
    (data_bytes / BLOCK as u64).div_ceil(SUMS_PER_BLOCK)
}

const _: () = assert!(gf::CRC32C_BLOCK == BLOCK);

/// The checksum of a block of data.
pub fn sum_of(block: &[u8]) -> u32 {
    gf::crc32c(block)
}

/// The checksums of blocks of data, in order.
///
/// # Panics
/// If `blocks` is not exactly one block per entry of `sums`.
#[inline]
pub fn sums_of(blocks: &[u8], sums: &mut [u32]) {
    gf::crc32c_blocks(blocks, sums);
}

/// Location of the sum for the data at this byte of a member: the block of sums, and the entry in
/// it.
///
/// # Panics
/// In debug builds, if the byte is not in the data region.
pub fn sum_place(layout: &Layout, member_offset: u64) -> (u64, usize) {
    debug_assert!((layout.data.offset..layout.data.end()).contains(&member_offset), "{member_offset}");
    let index = (member_offset - layout.data.offset) / BLOCK as u64;
    (index / SUMS_PER_BLOCK, (index % SUMS_PER_BLOCK) as usize)
}

/// Offset of a block of sums, the same on every member.
pub fn sum_block_offset(checksums: &Region, block: u64) -> u64 {
    checksums.offset + block * BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Level, Shape};

    #[test]
    fn every_block_of_data_has_a_sum_of_its_own_inside_the_region() {
        let shape = Shape::of(Level::Raid5, 3).strip_bytes(64 << 10).build().unwrap();
        let layout = Layout::plan(&shape, 64 << 20, true).unwrap();
        let region = layout.checksums.unwrap();
        let mut last = None;
        for offset in (layout.data.offset..layout.data.end()).step_by(BLOCK) {
            let place = sum_place(&layout, offset);
            assert!(last < Some(place));
            last = Some(place);
            assert_eq!(sum_place(&layout, offset + BLOCK as u64 - 1), place);
            assert!(sum_block_offset(&region, place.0) + BLOCK as u64 <= region.end());
        }
        assert_eq!(last.unwrap().0 + 1, sum_block_count(layout.data.len));
    }

    #[test]
    fn the_sum_is_crc32c_as_rfc_3720_has_it() {
        assert_eq!(sum_of(&[0; 32]), 0x8A91_36AA);
        assert_eq!(sum_of(&[0xFF; 32]), 0x62A8_AB43);
    }
}
