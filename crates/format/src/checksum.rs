//! CRC-32C, the checksum of every structure.

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of `bytes` with the four bytes at `field` taken as zeroes: the field that holds the checksum itself.
///
/// # Panics
/// If the field is not within `bytes`.
pub(crate) fn crc32c_without(bytes: &[u8], field: usize) -> u32 {
    let before = crc32c::crc32c(&bytes[..field]);
    let zeroes = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(zeroes, &bytes[field + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_castagnoli_crc_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46DD_794E);
    }

    #[test]
    fn the_checksum_field_itself_counts_as_zeroes() {
        let mut bytes = [7; 64];
        let sum = crc32c_without(&bytes, 12);
        bytes[12..16].fill(0);
        assert_eq!(sum, crc32c(&bytes));
    }
}
