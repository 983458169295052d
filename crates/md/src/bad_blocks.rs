//! A member's list of bad blocks: ranges that md could not write or could not rebuild, so their
//! content is undefined.

use std::ops::Range;

use thiserror::Error;

/// The largest list that the kernel accepts, in sectors.
pub const LOG_SECTORS_MAX: u16 = 8;

/// Why a list cannot be used. Without it, it is unknown which blocks of the member are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadBlocksError {
    /// Its size is out of range.
    #[error("its list of bad blocks takes {0} sectors, not 1 to 8")]
    Size(u16),
    /// The unit of its entries is out of range.
    #[error("its list of bad blocks counts in units of 2^{0} sectors")]
    Shift(u8),
}

/// The bad sectors of a drive, counted from its start, in the order of the list.
///
/// An entry has the first sector in its upper 54 bits and the number of sectors in the lower 10.
/// Both are in units of 2^`shift` sectors. An entry of all ones ends the list.
///
/// # Errors
/// [`BadBlocksError`].
pub fn decode(bytes: &[u8], shift: u8) -> Result<Vec<Range<u64>>, BadBlocksError> {
    let sectors = bytes.len() / 512;
    if sectors == 0 || sectors > usize::from(LOG_SECTORS_MAX) {
        return Err(BadBlocksError::Size(u16::try_from(sectors).unwrap_or(u16::MAX)));
    }
    // No list has units of more than 512 GiB.
    if shift > 30 {
        return Err(BadBlocksError::Shift(shift));
    }
    let entries = bytes.chunks_exact(8).map(|entry| u64::from_le_bytes(std::array::from_fn(|index| entry[index])));
    let range = |entry: u64| {
        let unit = |count: u64| count.saturating_mul(1 << shift);
        let start = unit(entry >> 10);
        start..start.saturating_add(unit(entry & 0x3FF))
    };
    Ok(entries.take_while(|&entry| entry != u64::MAX).map(range).filter(|range| !range.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_with_an_entry_of_all_ones_and_counts_in_its_unit() {
        let mut bytes = vec![0xFF; 512];
        bytes[..8].copy_from_slice(&(100 << 10 | 3u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(7_u64 << 10).to_le_bytes());
        bytes[16..24].copy_from_slice(&(200 << 10 | 1u64).to_le_bytes());
        assert_eq!(decode(&bytes, 0), Ok(vec![100..103, 200..201]));
        assert_eq!(decode(&bytes, 3), Ok(vec![800..824, 1600..1608]));
        assert_eq!(decode(&[], 0), Err(BadBlocksError::Size(0)));
        assert_eq!(decode(&[0; 9 * 512], 0), Err(BadBlocksError::Size(9)));
        assert_eq!(decode(&bytes, 31), Err(BadBlocksError::Shift(31)));
    }
}
