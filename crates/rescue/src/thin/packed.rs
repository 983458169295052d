//! Decompresses fragments, with decoders of their own: see docs/decisions/compression.md.

use std::rc::Rc;

use format::thin::packed::open_packed;
use format::thin::{Codec, STORED_BYTES_MAX};
use format::{BLOCK, thin::StoredRange};
use ruzstd::decoding::FrameDecoder;

/// The content of a compressed fragment with so many blocks, 1 to 16. `None`: it is damaged.
pub fn decompress(codec: Codec, stored: &[u8], blocks: u8) -> Option<Vec<u8>> {
    let output = open_packed(stored).ok()?;
    let mut content = vec![0; usize::from(blocks) * BLOCK];
    let len = match codec {
        Codec::Plain => return None,
        Codec::Lz4 => lz4_flex::block::decompress_into(output, &mut content).ok()?,
        Codec::Zstd => {
            let mut decoder = FrameDecoder::new();
            // A frame of the engine has the window of its content.
            decoder.set_max_window_size(2 * u64::from(STORED_BYTES_MAX));
            decoder.decode_all(output, &mut content).ok()?
        }
    };
    (len == content.len()).then_some(content)
}

/// The fragment that was decompressed last: its blocks are mostly read one after the other.
#[derive(Default)]
pub(super) struct LastFragment(Option<(StoredRange, Rc<Vec<u8>>)>);

impl LastFragment {
    /// The content of a fragment, by `read` if it is not the last one.
    pub fn get(&mut self, stored: StoredRange, read: impl FnOnce() -> Option<Vec<u8>>) -> Option<Rc<Vec<u8>>> {
        if let Some((last, content)) = &self.0
            && *last == stored
        {
            return Some(content.clone());
        }
        let content = Rc::new(read()?);
        self.0 = Some((stored, content.clone()));
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::thin::packed::seal_packed;

    #[test]
    fn damage_and_lengths_that_do_not_fit_are_found() {
        let content = vec![9; 2 * BLOCK];
        let mut stored = vec![0; 4];
        stored.extend(lz4_flex::block::compress(&content));
        seal_packed(&mut stored);
        assert_eq!(decompress(Codec::Lz4, &stored, 2), Some(content));
        assert_eq!(decompress(Codec::Lz4, &stored, 1), None);
        assert_eq!(decompress(Codec::Lz4, &stored, 3), None);
        assert_eq!(decompress(Codec::Zstd, &stored, 2), None);
        stored[9] ^= 1;
        assert_eq!(decompress(Codec::Lz4, &stored, 2), None);
    }
}
