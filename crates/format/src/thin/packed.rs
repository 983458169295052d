//! Compressed contents: a checksum, and then what the codec made.
//!
//! The checksum is verified before a decoder gets the bytes. So a decoder never sees damaged ones.

use gf::crc32c;

use super::ThinError;

/// Bytes before the codec's output: CRC-32C of that output.
pub const PACKED_HEAD_BYTES: usize = 4;

/// Completes a compressed content: writes the checksum of all bytes behind the head to the head.
///
/// # Panics
/// If there are fewer than [`PACKED_HEAD_BYTES`] bytes.
pub fn seal_packed(bytes: &mut [u8]) {
    let (head, output) = bytes.split_first_chunk_mut::<PACKED_HEAD_BYTES>().expect("there is a head");
    *head = crc32c(output).to_le_bytes();
}

/// The codec's output in a compressed content.
///
/// # Errors
/// [`ThinError`] if the checksum does not match.
pub fn open_packed(bytes: &[u8]) -> Result<&[u8], ThinError> {
    const WHAT: &str = "compressed fragment";
    let (head, output) = bytes.split_first_chunk().ok_or(ThinError::Missing { what: WHAT })?;
    let is_right = u32::from_le_bytes(*head) == crc32c(output);
    is_right.then_some(output).ok_or(ThinError::Checksum { what: WHAT })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_content_is_not_opened() {
        let mut bytes = [0, 0, 0, 0, 7, 8, 9];
        seal_packed(&mut bytes);
        assert_eq!(open_packed(&bytes), Ok(&[7, 8, 9][..]));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open_packed(&damaged).is_err(), "bit {bit}");
        }
        assert!(open_packed(&bytes[..3]).is_err());
    }
}
