//! CRC-32C, the checksum of every structure.

use gf::{crc32c, crc32c_append};

/// CRC-32C of `bytes` with the four bytes at `field` taken as zeroes, because that field holds the
/// checksum itself.
///
/// # Panics
/// If the field is not within `bytes`.
pub(crate) fn crc32c_without(bytes: &[u8], field: usize) -> u32 {
    let before = crc32c(&bytes[..field]);
    let zeroes = crc32c_append(before, &[0; 4]);
    crc32c_append(zeroes, &bytes[field + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_field_itself_counts_as_zeroes() {
        let mut bytes = [7; 64];
        let sum = crc32c_without(&bytes, 12);
        bytes[12..16].fill(0);
        assert_eq!(sum, crc32c(&bytes));
    }
}
