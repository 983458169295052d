//! Writes that the checkpoint does not cover.

use std::collections::BTreeSet;
use std::rc::Rc;

use format::BLOCK;
use format::thin::entry::LEAF_BLOCKS;

use super::{Content, PackedFragment};

/// A write, or a part of one.
pub(super) struct Write {
    pub sequence: u64,
    /// Of a write that is in a frame and in a run, either is right.
    pub is_in_run: bool,
    pub line: u32,
    pub block: u64,
    pub blocks: u64,
    pub content: WriteContent,
}

pub(super) enum WriteContent {
    /// From this byte of the group on.
    Stored(u64),
    /// In a frame, from this byte on.
    Frame(Rc<Vec<u8>>, usize),
    Hole,
    /// In a compressed fragment, all of its blocks.
    Packed(PackedFragment),
}

/// All writes, in their order.
#[derive(Default)]
pub(super) struct Overlay {
    writes: Vec<Write>,
    /// Lines and leaves with content.
    leaves: BTreeSet<(u32, u64)>,
}

impl Overlay {
    pub fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Leaves those that the checkpoint does not cover, in their order.
    pub fn sort(&mut self, covered: u64) {
        self.writes.retain(|write| write.sequence > covered);
        self.writes.sort_by_key(|write| (write.line, write.block / LEAF_BLOCKS, write.sequence, write.is_in_run));
        let with_content = self.writes.iter().filter(|write| !matches!(write.content, WriteContent::Hole));
        self.leaves = with_content.map(|write| (write.line, write.block / LEAF_BLOCKS)).collect();
    }

    /// The leaves of a line with content.
    pub fn leaves(&self, line: u32) -> impl Iterator<Item = u64> + '_ {
        self.leaves.range((line, 0)..=(line, u64::MAX)).map(|(_, leaf)| *leaf)
    }

    /// Applies the writes to a leaf. Each write is within one leaf: writers divide them.
    pub fn apply(&self, line: u32, leaf: u64, blocks: &mut [Option<Content>]) {
        let first = self.writes.partition_point(|write| (write.line, write.block / LEAF_BLOCKS) < (line, leaf));
        let own = self.writes[first..].iter();
        for write in own.take_while(|write| (write.line, write.block / LEAF_BLOCKS) == (line, leaf)) {
            for number in 0..write.blocks {
                let Some(block) = blocks.get_mut((write.block % LEAF_BLOCKS + number) as usize) else { break };
                *block = match &write.content {
                    WriteContent::Stored(address) => Some(Content::Stored(address + number * BLOCK as u64)),
                    WriteContent::Frame(body, at) => Some(Content::Frame(body.clone(), at + number as usize * BLOCK)),
                    WriteContent::Hole => None,
                    WriteContent::Packed(fragment) => Some(Content::Packed(*fragment, number as u8)),
                };
            }
        }
    }
}
