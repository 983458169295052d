//! Compresses the contents of fragments.

use format::BLOCK;
use format::thin::packed::{PACKED_HEAD_BYTES, open_packed, seal_packed};
use format::thin::{Codec, STORED_BYTES_MAX};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor as ZstdCompressor, Decompressor as ZstdDecompressor};

/// How the new blocks of a volume are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are.
    #[default]
    Off,
    /// With LZ4.
    Lz4,
    /// With Zstandard of this level.
    Zstd(u8),
}

/// Most blocks of a fragment that is compressed when it is written: a read of one block
/// decompresses all of them.
pub(super) const PACKED_BLOCKS_MAX: u64 = 4;

/// A content is stored compressed if that saves at least one part in so many.
const LEAST_SAVING: usize = 8;

/// Compresses and decompresses, with tables that are used again.
#[derive(Default)]
pub(super) struct Compressor {
    lz4: CompressTable,
    zstd: Option<(u8, ZstdCompressor<'static>)>,
    unzstd: Option<ZstdDecompressor<'static>>,
    output: Vec<u8>,
}

impl Compressor {
    /// The stored form of a content, and its codec. `None` if compression does not save enough.
    ///
    /// LZ4 goes first even if the volume has another codec. A content that LZ4 cannot shrink at all
    /// is not tried with slower ones: few of them would save enough.
    pub fn compress(&mut self, compression: Compression, content: &[u8]) -> Option<(Codec, Vec<u8>)> {
        let most = content.len() - content.len() / LEAST_SAVING;
        let lz4_len = match compression {
            Compression::Off => return None,
            _ => self.lz4(content)?,
        };
        let (codec, len) = match compression {
            Compression::Zstd(level) if lz4_len < content.len() => (Codec::Zstd, self.zstd(level, content, most)?),
            _ => (Codec::Lz4, lz4_len),
        };
        let stored_len = PACKED_HEAD_BYTES + len;
        if stored_len > most {
            return None;
        }
        let mut stored = self.output[..stored_len].to_vec();
        seal_packed(&mut stored);
        Some((codec, stored))
    }

    fn lz4(&mut self, content: &[u8]) -> Option<usize> {
        self.output.resize(PACKED_HEAD_BYTES + get_maximum_output_size(content.len()), 0);
        compress_into_with_table(content, &mut self.output[PACKED_HEAD_BYTES..], &mut self.lz4).ok()
    }

    fn zstd(&mut self, level: u8, content: &[u8], most: usize) -> Option<usize> {
        let is_ready = self.zstd.as_ref().is_some_and(|(of, _)| *of == level);
        if !is_ready {
            self.zstd = Some((level, ZstdCompressor::new(i32::from(level)).ok()?));
        }
        let (_, zstd) = self.zstd.as_mut()?;
        // It fails if there is not enough room.
        zstd.compress_to_buffer(content, &mut self.output[PACKED_HEAD_BYTES..most]).ok()
    }

    /// The content of a compressed fragment with so many blocks. `None`: it is damaged.
    pub fn decompress(&mut self, codec: Codec, stored: &[u8], blocks: u8) -> Option<Vec<u8>> {
        let output = open_packed(stored).ok()?;
        let mut content = vec![0; usize::from(blocks) * BLOCK];
        debug_assert!(content.len() <= STORED_BYTES_MAX as usize);
        let len = match codec {
            Codec::Plain => return None,
            Codec::Lz4 => decompress_into(output, &mut content).ok()?,
            Codec::Zstd => {
                if self.unzstd.is_none() {
                    self.unzstd = Some(ZstdDecompressor::new().ok()?);
                }
                self.unzstd.as_mut()?.decompress_to_buffer(output, &mut content[..]).ok()?
            }
        };
        (len == content.len()).then_some(content)
    }
}

/// The stored form of a content of whole blocks, and its codec. `None`: it is to be stored plain.
pub fn compress(compression: Compression, content: &[u8]) -> Option<(Codec, Vec<u8>)> {
    Compressor::default().compress(compression, content)
}

/// The content of a compressed fragment with so many blocks, 1 to 16. `None`: it is damaged.
pub fn decompress(codec: Codec, stored: &[u8], blocks: u8) -> Option<Vec<u8>> {
    Compressor::default().decompress(codec, stored, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(blocks: u8, noise: &[u8]) -> Vec<u8> {
        let mut content = vec![0; usize::from(blocks) * BLOCK];
        for (at, byte) in content.iter_mut().enumerate() {
            *byte = noise[at % noise.len()] ^ (at / noise.len() % 3) as u8;
        }
        content
    }

    proptest! {
        #[test]
        fn a_content_is_as_before_and_damage_is_found(
            blocks in 1u8..=4, noise in proptest::collection::vec(any::<u8>(), 1..6000), bit in any::<usize>(),
            compression in prop_oneof![
                Just(Compression::Lz4), (1u8..=9).prop_map(Compression::Zstd), Just(Compression::Off)
            ]
        ) {
            let content = content(blocks, &noise);
            let mut compressor = Compressor::default();
            if let Some((codec, mut stored)) = compressor.compress(compression, &content) {
                prop_assert!(stored.len() <= content.len() / 8 * 7);
                let found = compressor.decompress(codec, &stored, blocks);
                prop_assert_eq!(found.as_ref(), Some(&content));
                let bit = bit % (stored.len() * 8);
                stored[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!(compressor.decompress(codec, &stored, blocks), None);
            }
        }

        #[test]
        fn other_bytes_with_a_checksum_are_no_content_or_one_of_the_right_length(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..5000), blocks in 1u8..=16
        ) {
            seal_packed(&mut bytes);
            let mut compressor = Compressor::default();
            for codec in [Codec::Lz4, Codec::Zstd] {
                let found = compressor.decompress(codec, &bytes, blocks);
                prop_assert!(found.is_none_or(|found| found.len() == usize::from(blocks) * BLOCK));
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_compressed() {
        let mut random = vec![0u8; 4 * BLOCK];
        let mut state = 1u64;
        for byte in &mut random {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        let mut compressor = Compressor::default();
        for compression in [Compression::Off, Compression::Lz4, Compression::Zstd(3)] {
            assert_eq!(compressor.compress(compression, &random), None);
        }
        assert!(compressor.compress(Compression::Zstd(3), &vec![7; BLOCK]).is_some());
    }
}
