//! The content of thin volumes that is lost.

use format::thin::entry::LEAF_BLOCKS;

use crate::lost::Lost;

use super::{BLOCK_BYTES, Content, ThinStore, VolumeMap};

impl ThinStore<'_> {
    /// The bytes of a volume that are lost because too many members are missing. No content is
    /// read; the map is only read if something can be lost.
    pub(crate) fn lost(&mut self, line: u32, size_bytes: u64) -> Lost {
        let mut map = self.volume_map(line);
        if map.is_any_unknown() || self.bytes.may_be_lost() {
            self.lost_in(line, size_bytes, &mut map)
        } else {
            Lost::default()
        }
    }

    /// The parts of a volume's map that cannot be read, and the content that is lost: sentences.
    pub(crate) fn check(&mut self, line: u32, (name, size_bytes): (&str, u64)) -> Vec<String> {
        let mut map = self.volume_map(line);
        let lost = self.lost_in(line, size_bytes, &mut map);
        let lost = (!lost.is_empty()).then(|| lost.sentence(&format!("thin volume {name}")));
        let parts = self.map_messages(&map).into_iter().map(|message| format!("thin volume {name}: {message}"));
        parts.chain(lost).collect()
    }

    /// Reads every leaf.
    fn lost_in(&mut self, line: u32, size_bytes: u64, map: &mut VolumeMap) -> Lost {
        let (mut lost, mut at) = (Lost::default(), 0);
        let may_be_lost = self.bytes.may_be_lost();
        for leaf in self.used_leaves(line, map) {
            let blocks = self.leaf(line, leaf, map);
            for (block, content) in (leaf * LEAF_BLOCKS..).zip(blocks) {
                let (start, end) = (block * BLOCK_BYTES, size_bytes.min((block + 1) * BLOCK_BYTES));
                let Some(content) = content.filter(|_| start < end) else { continue };
                push_unknown(&mut lost, map, (at, start));
                if may_be_lost && self.is_lost(&content) {
                    lost.push(start, end - start);
                }
                at = end;
            }
        }
        push_unknown(&mut lost, map, (at, size_bytes));
        lost
    }

    /// Whether too many members are missing for a content.
    fn is_lost(&self, content: &Content) -> bool {
        match content {
            Content::Stored(address) => self.bytes.is_any_lost(*address, BLOCK_BYTES),
            Content::Packed(fragment, _) => {
                self.bytes.is_any_lost(fragment.stored.address, u64::from(fragment.stored.bytes))
            }
            Content::Frame(..) => false,
        }
    }
}

/// Adds the bytes of a range without content that may have had some.
fn push_unknown(lost: &mut Lost, map: &VolumeMap, (mut at, end): (u64, u64)) {
    for gap in map.gaps(at..end) {
        if gap.is_unknown {
            lost.push_unknown(at, gap.end - at);
        }
        at = gap.end;
    }
}
