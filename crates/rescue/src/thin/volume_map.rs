//! The map of a volume, and the parts of it that are rebuilt from segments.

use std::collections::BTreeMap;
use std::ops::Range;

use format::BLOCK;
use format::thin::entry::LEAF_BLOCKS;
use format::thin::node::ChildRecord;

use super::{LEAVES_MAX, OLD_CONTENT};

/// Bytes of a volume below a leaf.
const LEAF_BYTES: u64 = LEAF_BLOCKS * BLOCK as u64;

/// The limit of a part if some of its blocks were not found.
const LOST_CONTENT: &str = "blocks that were not found count as lost, and others may have old content";

/// The leaves of a volume's map, and the parts of it that are rebuilt.
#[derive(Default)]
pub(crate) struct VolumeMap {
    pub(super) leaves: BTreeMap<u64, ChildRecord>,
    /// By the first leaf. The parts do not overlap.
    pub(super) rebuilt: BTreeMap<u64, RebuiltPart>,
}

/// Leaves below a node that cannot be read.
pub(super) struct RebuiltPart {
    pub leaves: u64,
    pub result: Rebuilt,
}

/// How well a part of a map was rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rebuilt {
    /// There is content for exactly as many blocks as before.
    Exactly,
    /// All content was found, and some of it may be old.
    Whole,
    /// Some content was not found: of a block without content it is not known whether it had any.
    InPart,
}

impl Rebuilt {
    fn limit(self) -> &'static str {
        match self {
            Rebuilt::Exactly => "it has as many blocks as before",
            Rebuilt::Whole => OLD_CONTENT,
            Rebuilt::InPart => LOST_CONTENT,
        }
    }
}

/// Bytes of a volume without content.
pub(crate) struct Gap {
    /// Its end, where the next one begins.
    pub end: u64,
    /// Whether there may have been content that was not found.
    pub is_unknown: bool,
}

impl VolumeMap {
    /// Has the leaves of a range rebuilt.
    pub(super) fn lose(&mut self, leaves: Range<u64>, result: Rebuilt) {
        self.rebuilt.insert(leaves.start, RebuiltPart { leaves: leaves.end - leaves.start, result });
    }

    /// Whether a leaf is in a rebuilt part.
    pub(super) fn is_rebuilt(&self, leaf: u64) -> bool {
        let part = self.rebuilt.range(..=leaf).next_back();
        part.is_some_and(|(first, part)| leaf - first < part.leaves)
    }

    /// Whether some content was not found.
    pub(super) fn is_any_unknown(&self) -> bool {
        self.rebuilt.values().any(|part| part.result == Rebuilt::InPart)
    }

    /// Divides a range of bytes in which no content was found.
    pub(crate) fn gaps(&self, bytes: Range<u64>) -> Vec<Gap> {
        let (mut gaps, mut at) = (Vec::new(), bytes.start);
        let leaf = bytes.start / LEAF_BYTES;
        let first = self.rebuilt.range(..=leaf).next_back().map_or(leaf, |(first, _)| *first);
        let parts = self.rebuilt.range(first..bytes.end.div_ceil(LEAF_BYTES).max(first));
        for (first, part) in parts.filter(|(_, part)| part.result == Rebuilt::InPart) {
            let start = at.max(first * LEAF_BYTES);
            let end = bytes.end.min((first + part.leaves) * LEAF_BYTES);
            if start < end {
                gaps.extend((at < start).then_some(Gap { end: start, is_unknown: false }));
                gaps.push(Gap { end, is_unknown: true });
                at = end;
            }
        }
        gaps.extend((at < bytes.end).then_some(Gap { end: bytes.end, is_unknown: false }));
        gaps
    }

    /// Bytes of a volume of this size whose map is rebuilt.
    pub(crate) fn rebuilt_bytes(&self, size_bytes: u64) -> u64 {
        let bytes = |leaf: u64| (leaf * LEAF_BYTES).min(size_bytes);
        self.rebuilt.iter().map(|(first, part)| bytes(first + part.leaves) - bytes(*first)).sum()
    }

    /// The rebuilt parts: sentences. Adjacent parts that were rebuilt equally well are one.
    pub(super) fn messages(&self) -> Vec<String> {
        let mut joined: Vec<(Range<u64>, Rebuilt)> = Vec::new();
        for (first, part) in &self.rebuilt {
            let end = first + part.leaves;
            match joined.last_mut() {
                Some((last, result)) if last.end == *first && *result == part.result => last.end = end,
                _ => joined.push((*first..end, part.result)),
            }
        }
        let message = |(leaves, result): (Range<u64>, Rebuilt)| {
            let place = match leaves.end - leaves.start {
                LEAVES_MAX => "the map".to_owned(),
                _ => format!("the map of bytes {} to {}", leaves.start * LEAF_BYTES, leaves.end * LEAF_BYTES),
            };
            format!("{place} cannot be read. It is rebuilt from segments: {}", result.limit())
        };
        joined.into_iter().map(message).collect()
    }
}
