//! The collector: moves what is live out of segments with much garbage, so that they get free.
//!
//! Fragments are copied into a segment of the collector's own, with the numbers and epochs of their
//! writes. Nodes are marked to be written anew by the next checkpoint. A segment is collected only
//! if the newest checkpoint covers all of its writes. So a recovery never needs the collector's
//! copies: until the next checkpoint is durable, the old ones are still there.

use std::rc::Rc;

use drive::{BlockError, Buf, Env};
use format::BLOCK;
use format::thin::batch::{BATCH_HEAD_BYTES, BatchIndex, BatchRecords, encode_index};
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::thin::node::NodeId;
use format::thin::record::{FragmentRecord, RECORD_BYTES};
use format::thin::segment::SegmentUse;
use format::thin::{Codec, StoredRange, WINDOW_BLOCKS};
use gf::crc32c;

use super::backing::Backing;
use super::leaf::LiveChanges;
use super::segments::{Segment, SegmentState};
use super::store::ThinStore;

/// Most segments that are collected before a checkpoint frees them.
const VICTIMS_MAX: usize = 64;

/// Most segments that the copies of one round fill.
const COPIED_SEGMENTS_MAX: u64 = 16;

/// A fragment to be moved.
struct Copy {
    record: FragmentRecord,
    content: Buf,
    /// Where it was.
    old: StoredRange,
}

impl<B: Backing> ThinStore<B> {
    /// Collects segments until the free ones suffice, or nothing is left to gain.
    pub(super) async fn collect(self: &Rc<Self>) -> Result<(), BlockError> {
        while self.is_short_of_segments() {
            let victims = self.victims();
            let before = self.segments.borrow().free_count();
            let mut copies = Vec::new();
            for victim in &victims {
                self.collect_segment(*victim, &mut copies).await?;
                self.write_copies(&mut copies, false).await?;
            }
            self.write_copies(&mut copies, true).await?;
            self.checkpoint().await?;
            self.progress.raise();
            if victims.is_empty() || self.segments.borrow().free_count() <= before {
                break;
            }
        }
        Ok(())
    }

    /// The segments with the least live bytes, as many as the free segments can take.
    fn victims(&self) -> Vec<u64> {
        let segments = self.segments.borrow();
        let covered = self.covered.get();
        let can_be_collected = |segment: &Segment| {
            segment.state == SegmentState::Closed
                && segment.in_flight == 0
                && !segment.unreadable
                && segment.record.used_for != SegmentUse::Anchors
                && segment.record.newest_sequence <= covered
                && u64::from(segment.record.live_bytes) < self.grid.segment_bytes - self.grid.segment_bytes / 16
        };
        let mut candidates: Vec<(u32, u64)> = segments
            .iter()
            .filter(|(_, segment)| can_be_collected(segment))
            .map(|(id, segment)| (segment.record.live_bytes, id))
            .collect();
        candidates.sort_unstable();
        let free = segments.free_count() as u64;
        let spare = free.saturating_sub((self.checkpoint_segments(segments.len()) + self.pending_segments()) as u64);
        // The last run of the copies is padded.
        let mut room = (spare.min(COPIED_SEGMENTS_MAX) * self.grid.segment_bytes).saturating_sub(self.grid.unit_bytes);
        let fits = |(live, _): &&(u32, u64)| {
            let fits = u64::from(*live) <= room;
            room = room.saturating_sub(u64::from(*live));
            fits
        };
        candidates.iter().take_while(fits).take(VICTIMS_MAX).map(|(_, id)| *id).collect()
    }

    async fn collect_segment(self: &Rc<Self>, id: u64, copies: &mut Vec<Copy>) -> Result<(), BlockError> {
        let (live, used_for) = {
            let segments = self.segments.borrow();
            let record = segments.get(id).expect("a segment of the store").record;
            (record.live_bytes, record.used_for)
        };
        if live == 0 {
            return Ok(());
        }
        let start = self.grid.start(id);
        let bytes = self.backing.read(start, self.env().alloc(self.grid.segment_bytes as usize)).await?.freeze();
        let mut at = 0;
        while at < bytes.len() {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &self.key, start + at as u64, 0) else {
                at += self.grid.unit_bytes as usize;
                continue;
            };
            let contents = index.records.contents(0).map(|range| range.start + at..range.end + at);
            let contents: Vec<std::ops::Range<usize>> = contents.collect();
            if used_for == SegmentUse::Data {
                self.copy_fragments(id, (&index.records.fragments, &contents), &bytes, copies).await?;
            }
            let places = contents[index.records.fragments.len()..].iter();
            for (record, place) in index.records.nodes.iter().zip(places) {
                let node = NodeId { line: record.line, level: record.level, index: record.index };
                self.move_node(node, start + place.start as u64).await?;
            }
            at += index.batch_bytes;
        }
        self.counts.borrow_mut().collected_segments += 1;
        Ok(())
    }

    /// Copies the live blocks of these fragments.
    async fn copy_fragments(
        self: &Rc<Self>,
        segment: u64,
        (records, contents): (&[FragmentRecord], &[std::ops::Range<usize>]),
        bytes: &Buf,
        copies: &mut Vec<Copy>,
    ) -> Result<(), BlockError> {
        for (record, content) in records.iter().zip(contents) {
            let leaf = record.block / LEAF_BLOCKS;
            if !self.load_leaf(record.line, leaf).await? {
                continue;
            }
            let old =
                StoredRange { address: self.grid.start(segment) + content.start as u64, bytes: record.stored_bytes };
            let Some(used) = self.used_of(record, old) else { continue };
            if crc32c(&bytes[content.clone()]) != record.crc32c {
                self.segments.borrow_mut().mark_unreadable(segment);
                continue;
            }
            for (first, blocks) in ranges(used) {
                let from = content.start + usize::from(first) * BLOCK;
                let content = bytes.slice(from..from + usize::from(blocks) * BLOCK);
                let record = FragmentRecord {
                    block: record.block + u64::from(first),
                    blocks,
                    stored_bytes: content.len() as u32,
                    crc32c: crc32c(&content),
                    ..*record
                };
                copies.push(Copy { record, content, old });
            }
        }
        Ok(())
    }

    /// The blocks of a fragment that the map has at this place.
    fn used_of(&self, record: &FragmentRecord, place: StoredRange) -> Option<u16> {
        let trees = self.trees.borrow();
        let leaf = trees.leaf(record.line, record.block / LEAF_BLOCKS)?;
        let first = (record.block % LEAF_BLOCKS) as u8;
        let is_it = |entry: &&MapEntry| entry.stored == place && entry.first == first;
        leaf.entries().iter().find(is_it).map(|entry| entry.used)
    }

    /// Writes copies to runs of the collector, and has the map use them. Without `pad`, those that
    /// do not fill a run stay.
    async fn write_copies(self: &Rc<Self>, copies: &mut Vec<Copy>, pad: bool) -> Result<(), BlockError> {
        while !copies.is_empty() {
            let segment = self.collector_segment()?;
            let room = self.segments.borrow().left(segment).min(self.tuning.run_bytes_max.max(self.grid.unit_bytes));
            let count = copies_in(copies, room);
            if count == copies.len() && !pad {
                break;
            }
            let now: Vec<Copy> = copies.drain(..count.max(1)).collect();
            self.write_run_of_copies(segment, &now).await?;
        }
        Ok(())
    }

    fn collector_segment(&self) -> Result<u64, BlockError> {
        let open = self.collecting_segment.get();
        if let Some(open) = open.filter(|open| self.segments.borrow().left(*open) > 0) {
            return Ok(open);
        }
        let next = self.segments.borrow_mut().open(SegmentUse::Data).ok_or(BlockError::NoSpace)?;
        self.collecting_segment.set(Some(next));
        Ok(next)
    }

    async fn write_run_of_copies(self: &Rc<Self>, segment: u64, copies: &[Copy]) -> Result<(), BlockError> {
        let records = BatchRecords { fragments: copies.iter().map(|copy| copy.record).collect(), ..Default::default() };
        let end = records.contents(0).last().expect("a run has copies").end as u64;
        let run_bytes = end.next_multiple_of(self.grid.unit_bytes);
        let newest = records.fragments.iter().map(|record| record.sequence).max().unwrap_or(0);
        let address = self.segments.borrow_mut().fill(segment, run_bytes, newest);
        let index = encode_index(&self.key, address, run_bytes as usize, &records);
        let mut data = self.env().alloc(run_bytes as usize);
        data.fill(0);
        data[..index.len()].copy_from_slice(&index);
        let places: Vec<std::ops::Range<usize>> = records.contents(0).collect();
        for (copy, place) in copies.iter().zip(&places) {
            data[place.clone()].copy_from_slice(&copy.content);
        }
        self.counts.borrow_mut().collected_run_bytes += run_bytes;
        self.backing.write(address, data.freeze(), false).await?;
        for (copy, place) in copies.iter().zip(places) {
            let stored = StoredRange { address: address + place.start as u64, bytes: copy.record.stored_bytes };
            self.switch(copy, stored).await?;
        }
        self.segments.borrow_mut().landed(address);
        Ok(())
    }

    /// Has the map use a copy, for the blocks that it still has at the old place.
    async fn switch(self: &Rc<Self>, copy: &Copy, stored: StoredRange) -> Result<(), BlockError> {
        let record = &copy.record;
        let leaf_index = record.block / LEAF_BLOCKS;
        if !self.load_leaf(record.line, leaf_index).await? {
            return Ok(());
        }
        let first = (record.block % LEAF_BLOCKS) as u8;
        let window = first / WINDOW_BLOCKS as u8;
        let trees = self.trees.borrow();
        let leaf = trees.leaf(record.line, leaf_index).expect("it was just loaded");
        let still = |block: &u8| leaf.find(first + block).is_some_and(|entry| entry.stored == copy.old);
        let used = (0..record.blocks).filter(still).fold(0u16, |bits, block| bits | 1 << block);
        drop(trees);
        if used == 0 {
            return Ok(());
        }
        self.change_leaf(record.line, leaf_index, |leaf| {
            let mut changes: LiveChanges = leaf.clear(window, used << (first % WINDOW_BLOCKS as u8));
            let (blocks, birth) = (record.blocks, record.birth);
            changes.push(leaf.insert(MapEntry { stored, codec: Codec::Plain, first, blocks, used, birth }));
            changes
        });
        Ok(())
    }

    /// Has a node written anew by the next checkpoint, if this is its place.
    async fn move_node(&self, id: NodeId, address: u64) -> Result<(), BlockError> {
        let is_here = |stored: Option<StoredRange>| stored.is_some_and(|stored| stored.address == address);
        if id.line == SEGMENTS_LINE || id.line == LINES_LINE {
            let stored = self.own_nodes.borrow().get(&id).copied();
            if is_here(stored) {
                self.rewrite_own(id);
            }
            return Ok(());
        }
        loop {
            let place = self.trees.borrow().place_of(id);
            match place {
                Err((above, stored)) => self.load_node(above, stored).await?,
                Ok(place) if !is_here(place) => return Ok(()),
                Ok(Some(stored)) if !self.trees.borrow().contains(id) => self.load_node(id, stored).await?,
                Ok(_) => {
                    self.trees.borrow_mut().rewrite(id);
                    return Ok(());
                }
            }
        }
    }

    /// Has a node of the store's own trees written anew. An inner one follows its leaves.
    fn rewrite_own(&self, id: NodeId) {
        let leaf = id.index << (8 * u32::from(id.level));
        let first = {
            let own = self.own_nodes.borrow();
            let from = NodeId { line: id.line, level: 0, index: leaf };
            own.range(from..NodeId { level: 1, index: 0, ..from }).next().map(|(leaf, _)| leaf.index)
        };
        let Some(first) = first else { return };
        if id.line == SEGMENTS_LINE {
            self.segments.borrow_mut().dirty.insert(first);
        } else {
            let line = first * format::thin::line::LINES_PER_LEAF;
            self.trees.borrow_mut().dirty_lines.insert(line as u32);
        }
    }
}

/// The ranges of set bits: first bit and number of each.
fn ranges(bits: u16) -> Vec<(u8, u8)> {
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    for bit in (0..16).filter(|bit| bits & 1 << bit != 0) {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == bit => *count += 1,
            _ => ranges.push((bit, 1)),
        }
    }
    ranges
}

/// How many of these copies fit into a run of `room` bytes.
fn copies_in(copies: &[Copy], room: u64) -> usize {
    let (mut index, mut contents) = (BATCH_HEAD_BYTES as u64, 0);
    let fits = |copy: &&Copy| {
        index += RECORD_BYTES as u64;
        contents += copy.content.len() as u64;
        index.next_multiple_of(BLOCK as u64) + contents <= room
    };
    copies.iter().take_while(fits).count()
}
