//! Corrects the checksum of mutated bytes, so that the code after the check is reached.

use format::BLOCK;

/// Offset of the checksum in every structure of the format: magic (8), version (4), CRC-32C (4).
const CHECKSUM_AT: usize = 12;

/// How the bytes after an input's first byte are passed to a decoder. The first byte encodes it, so
/// that mutations can change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode {
    /// Pad with zeroes to whole blocks. A corpus stores no zeroes at the end.
    pub pad: bool,
    /// Correct the checksums.
    pub seal: bool,
    /// Two more bits for the target.
    pub extra: u8,
}

impl Mode {
    /// The mode of an input that holds a structure and should pass its checksum.
    pub const SEALED: u8 = 0b11;

    /// Splits off the first byte of an input. `None` if it is empty.
    pub fn split(input: &[u8]) -> Option<(Mode, &[u8])> {
        let (&first, rest) = input.split_first()?;
        Some((Mode { pad: first & 1 != 0, seal: first & 2 != 0, extra: first >> 2 & 3 }, rest))
    }

    /// The bytes that the decoder of a structure of one block gets.
    pub fn apply(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.pad {
            bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
        }
        if self.seal && bytes.len() >= BLOCK {
            seal(&mut bytes[..BLOCK]);
        }
        bytes
    }
}

/// Corrects the checksum of `bytes`: CRC-32C with its own field taken as zeroes.
pub(super) fn seal(bytes: &mut [u8]) {
    let field = CHECKSUM_AT..CHECKSUM_AT + 4;
    bytes[field.clone()].fill(0);
    let sum = gf::crc32c(bytes);
    bytes[field].copy_from_slice(&sum.to_le_bytes());
}

/// An input with this mode byte, such as [`Mode::SEALED`], that becomes `bytes`.
pub(super) fn input(mode: u8, bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    [&[mode], &bytes[..end]].concat()
}
