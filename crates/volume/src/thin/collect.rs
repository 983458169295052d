//! The collector: moves what is live out of segments with much garbage, so that they get free.
//!
//! Fragments are copied into a segment of the collector's own, with the numbers and epochs of their
//! writes. Nodes are marked to be written anew by the next checkpoint. A segment is collected only
//! if the newest checkpoint covers all of its writes. So a recovery never needs the collector's
//! copies: until the next checkpoint is durable, the old ones are still there.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::rc::Rc;

use drive::{BlockError, Buf, Env};
use format::BLOCK;
use format::thin::batch::{BatchIndex, BatchRecords, encode_index};
use format::thin::entry::{LEAF_BLOCKS, MapEntry, packed_bytes};
use format::thin::line::{LINES_LINE, SEGMENTS_LINE};
use format::thin::node::NodeId;
use format::thin::record::FragmentRecord;
use format::thin::segment::SegmentUse;
use format::thin::{Codec, StoredRange, WINDOW_BLOCKS};
use gf::crc32c;
use smallvec::SmallVec;

use super::backing::Backing;
use super::compress::Compression;
use super::leaf::LiveChanges;
use super::pending::block_bits;
use super::runs::{TakenRun, take_run};
use super::segments::{OpenSegment, Segment, SegmentState};
use super::store::ThinStore;

/// Most segments that are collected before a checkpoint frees them.
const VICTIMS_MAX: usize = 256;

/// Streams of copies: content that is moved for the first time, and content that was moved before.
/// Older content stays live for longer. Where it is apart from younger one, it is moved less often.
pub(super) const STREAMS: usize = 2;

/// A further stream: content that is stored anew in the order of its volume ([`super::order`]).
pub(super) const ORDERED: usize = STREAMS;

/// A pool of fewer segments has one stream, and its segments are chosen by their live bytes alone.
const AGED_SEGMENTS_MIN: usize = 256;

/// Clients are served after so many fragments, see [`super::pace`].
const FRAGMENTS_AT_ONCE: usize = 64;

/// The collector gives up when it has gained nothing in so many rounds, although writes wait. In a
/// pool of few segments, several rounds can be needed for one segment.
const ROUNDS_IN_VAIN: u32 = 64;

/// A fragment to be moved.
pub(super) struct Copy {
    pub record: FragmentRecord,
    /// As it is stored.
    pub content: Buf,
    /// Where its blocks were.
    pub old: OldPlaces,
}

/// Where the blocks of a copy were: one fragment, or several that become one.
pub(super) type OldPlaces = SmallVec<[OldPlace; 1]>;

/// A fragment in a segment since an opening of that. Later the same place can have other content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OldPlace {
    pub stored: StoredRange,
    pub opening: u64,
}

impl Copy {
    /// Blocks of a fragment from its block `first` on, with their content as it is to be stored.
    pub fn new(
        record: &FragmentRecord,
        (first, blocks): (u8, u8),
        (codec, content): (Codec, Buf),
        old: OldPlaces,
    ) -> Copy {
        let record = FragmentRecord {
            block: record.block + u64::from(first),
            blocks,
            codec,
            stored_bytes: content.len() as u32,
            crc32c: crc32c(&content),
            ..*record
        };
        Copy { record, content, old }
    }

    /// Bytes that it takes in a run.
    pub fn bytes(&self) -> u64 {
        match self.record.codec {
            Codec::Plain => self.content.len() as u64,
            Codec::Lz4 | Codec::Zstd => packed_bytes(self.record.stored_bytes),
        }
    }

    /// Cuts a plain one behind so many blocks.
    fn divide(self, blocks: u8) -> (Copy, Copy) {
        let Copy { record, content, old } = self;
        let (at, rest) = (usize::from(blocks) * BLOCK, record.blocks - blocks);
        let part = |range: std::ops::Range<usize>| (Codec::Plain, content.slice(range));
        let second = Copy::new(&record, (blocks, rest), part(at..content.len()), old.clone());
        (Copy::new(&record, (0, blocks), part(0..at), old), second)
    }
}

impl<B: Backing> ThinStore<B> {
    /// Collects until writes that wait find free segments, or nothing can be gained any more.
    pub(super) async fn collect_for_writes(self: &Rc<Self>) -> Result<(), BlockError> {
        let (mut best, mut in_vain) = (self.gained_bytes(), 0);
        while self.missing_segments(0) > 0 {
            if in_vain == ROUNDS_IN_VAIN {
                self.collected_in_vain.set(self.collected_in_vain.get() + 1);
                return Ok(());
            }
            if in_vain > 0 {
                // Only what a checkpoint covers can be collected.
                self.land_what_fits().await?;
                self.checkpoint().await?;
            }
            // More than is missing now: each round ends with a checkpoint.
            let victims = self.victims(self.missing_segments(3), false);
            if victims.is_empty() && in_vain > 0 {
                in_vain = ROUNDS_IN_VAIN;
                continue;
            }
            self.collect_segments(&victims).await?;
            in_vain = if self.gained_bytes() > best { 0 } else { in_vain + 1 };
            best = best.max(self.gained_bytes());
            self.progress.raise();
        }
        Ok(())
    }

    /// Collects a round of segments, even if none is missing.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn collect_once(self: &Rc<Self>) -> Result<(), BlockError> {
        let all = self.segments.borrow().len();
        self.collect_segments(&self.victims(all, false)).await
    }

    /// Collects before writes have to wait, as long as that gains something.
    pub(super) async fn collect_early(self: &Rc<Self>) -> Result<(), BlockError> {
        while self.missing_segments(1) > 0 {
            let garbage = self.segments.borrow().sums().garbage;
            if self.garbage_in_vain.get().is_some_and(|before| garbage < before + self.grid.segment_bytes) {
                return Ok(());
            }
            // More than is missing now: each round ends with a checkpoint.
            let (before, victims) = (self.gained_bytes(), self.victims(self.missing_segments(3), true));
            if !victims.is_empty() {
                self.collect_segments(&victims).await?;
            } else if self.covered.get() < self.coverable() {
                // Segments can be freed or collected afterwards.
                self.checkpoint().await?;
            }
            self.progress.raise();
            let is_in_vain = self.gained_bytes() <= before;
            self.garbage_in_vain.set(is_in_vain.then_some(garbage));
        }
        Ok(())
    }

    /// Bytes that collections and checkpoints have freed, less those that they have filled.
    fn gained_bytes(&self) -> i64 {
        let counts = self.counts();
        let freed = counts.freed_segments * self.grid.segment_bytes;
        freed as i64 - (counts.collected_run_bytes + counts.node_run_bytes) as i64
    }

    /// Moves all that is live out of these segments, as far as there is room, and frees them.
    async fn collect_segments(self: &Rc<Self>, victims: &[u64]) -> Result<(), BlockError> {
        let mut copies: [VecDeque<Copy>; STREAMS] = Default::default();
        self.begin_round(victims.len());
        for victim in victims {
            // A checkpoint of another task may have freed it meanwhile.
            let is_left = self.segments.borrow().get(*victim).is_some_and(|segment| self.can_be_collected(segment));
            if is_left {
                let stream = self.stream_of(*victim);
                self.collect_segment(*victim, &mut copies[stream]).await?;
                self.make_room_for_clients().await;
                self.write_copies(stream, &mut copies[stream], false).await?;
            }
            self.segment_collected();
        }
        for (stream, copies) in copies.iter_mut().enumerate() {
            self.write_copies(stream, copies, true).await?;
        }
        self.checkpoint_at_pace().await?;
        self.end_round();
        Ok(())
    }

    /// Whether a segment has garbage to gain, and all that is in it is covered by a checkpoint.
    fn can_be_collected(&self, segment: &Segment) -> bool {
        let least_gain = (self.grid.segment_bytes / 64).max(BLOCK as u64);
        segment.state == SegmentState::Closed
            && segment.in_flight == 0
            && !segment.unreadable
            && segment.record.used_for != SegmentUse::Anchors
            && segment.record.newest_sequence <= self.covered.get()
            && u64::from(segment.record.live_bytes) + least_gain <= self.dense_bytes()
    }

    fn stream_of(&self, segment: u64) -> usize {
        let segments = self.segments.borrow();
        let moves = segments.get(segment).map_or(0, |segment| segment.moves);
        if segments.len() < AGED_SEGMENTS_MIN { 0 } else { usize::from(moves).min(STREAMS - 1) }
    }

    /// The segments with the least live bytes: as many as free `missing` segments, if the copies
    /// find room. With `by_age`, those with the most garbage for each byte that is read and
    /// written, where old garbage counts up to twice. So young segments are left alone for a while,
    /// as more of them will become garbage. Cost-benefit as Rosenblum and Ousterhout have it (1992)
    /// counts garbage in proportion to its age. It moves a tenth more under uniform writes.
    fn victims(&self, missing: usize, by_age: bool) -> Vec<u64> {
        let segments = self.segments.borrow();
        let (segment_bytes, dense) = (self.grid.segment_bytes, self.dense_bytes());
        let (by_age, now) = (by_age && segments.len() >= AGED_SEGMENTS_MIN, self.next_sequence.get());
        // Content that outlived a whole turn of the pool is old enough.
        let old = segments.len() as u64 * segment_bytes / BLOCK as u64;
        let merit = |segment: &Segment| {
            let live = u64::from(segment.record.live_bytes);
            let age = if by_age { (now - segment.record.newest_sequence).min(old) } else { 0 };
            u128::from(segment_bytes - live) * u128::from(old + age) * 1024 / u128::from(segment_bytes + live)
        };
        let mut candidates: Vec<(Reverse<u128>, u32, u64)> = segments
            .iter()
            .filter(|(_, segment)| self.can_be_collected(segment))
            .map(|(id, segment)| (Reverse(merit(segment)), segment.record.live_bytes, id))
            .collect();
        drop(segments);
        // Of many, the best are enough: the rest need not be in order.
        if candidates.len() > VICTIMS_MAX {
            candidates.select_nth_unstable(VICTIMS_MAX);
            candidates.truncate(VICTIMS_MAX);
        }
        candidates.sort_unstable();
        let mut room = self.room_for_copies();
        let mut wanted = missing as u64 * segment_bytes + 2 * self.grid.unit_bytes;
        let is_useful = |(_, live, _): &&(Reverse<u128>, u32, u64)| {
            // The copies have indexes as well.
            let bytes = (u64::from(*live) * segment_bytes).div_ceil(dense);
            let fits = bytes <= room && wanted > 0;
            room = room.saturating_sub(bytes);
            wanted = wanted.saturating_sub(segment_bytes - bytes);
            fits
        };
        candidates.iter().take_while(is_useful).map(|(_, _, id)| *id).collect()
    }

    /// Whether the next checkpoint has room for more nodes.
    pub(super) fn can_change_nodes(&self) -> bool {
        self.coming_checkpoint_bytes() < self.checkpoint_bytes()
    }

    async fn collect_segment(self: &Rc<Self>, id: u64, copies: &mut VecDeque<Copy>) -> Result<(), BlockError> {
        let (live, used_for, opening) = {
            let segments = self.segments.borrow();
            let segment = segments.get(id).expect("a segment of the store");
            (segment.record.live_bytes, segment.record.used_for, segment.opening)
        };
        if live == 0 {
            return Ok(());
        }
        let start = self.grid.start(id);
        let bytes = self.backing.read(start, self.env().alloc(self.grid.segment_bytes as usize)).await?.freeze();
        self.make_room_for_clients().await;
        let mut at = 0;
        while at < bytes.len() {
            let Ok(index) = BatchIndex::decode(&bytes[at..], &self.key, start + at as u64, 0) else {
                at += self.grid.unit_bytes as usize;
                continue;
            };
            let contents = index.records.contents(0).map(|range| range.start + at..range.end + at);
            let contents: Vec<std::ops::Range<usize>> = contents.collect();
            if used_for == SegmentUse::Data {
                self.copy_fragments((id, opening), (&index.records.fragments, &contents), &bytes, copies).await?;
            }
            let places = contents[index.records.fragments.len()..].iter();
            for (record, place) in index.records.nodes.iter().zip(places) {
                let node = NodeId { line: record.line, level: record.level, index: record.index };
                self.move_node(node, start + place.start as u64).await?;
            }
            at += index.batch_bytes;
            self.make_room_for_clients().await;
        }
        self.counts.borrow_mut().collected_segments += 1;
        Ok(())
    }

    /// Copies the live blocks of these fragments.
    async fn copy_fragments(
        self: &Rc<Self>,
        (segment, opening): (u64, u64),
        (records, contents): (&[FragmentRecord], &[std::ops::Range<usize>]),
        bytes: &Buf,
        copies: &mut VecDeque<Copy>,
    ) -> Result<(), BlockError> {
        for (number, (record, content)) in records.iter().zip(contents).enumerate() {
            if number > 0 && number.is_multiple_of(FRAGMENTS_AT_ONCE) {
                self.make_room_for_clients().await;
            }
            let leaf = record.block / LEAF_BLOCKS;
            if !self.load_leaf(record.line, leaf).await? {
                continue;
            }
            let old =
                StoredRange { address: self.grid.start(segment) + content.start as u64, bytes: record.stored_bytes };
            let Some(used) = self.used_of(record, old) else { continue };
            if !self.is_opening(OldPlace { stored: old, opening }) {
                break;
            }
            if !self.can_change_nodes() {
                break;
            }
            if crc32c(&bytes[content.clone()]) != record.crc32c {
                self.segments.borrow_mut().mark_unreadable(segment);
                continue;
            }
            // From now on, the next checkpoint counts on the leaf.
            self.trees.borrow_mut().rewrite(NodeId { line: record.line, level: 0, index: leaf });
            match self.copies_of(record, used, &bytes.slice(content.clone()), OldPlace { stored: old, opening }) {
                Some(new) => copies.extend(new),
                None => self.segments.borrow_mut().mark_unreadable(segment),
            }
        }
        Ok(())
    }

    /// Copies of the used blocks of a fragment. A compressed one stays as it is, unless its used
    /// blocks alone take less. `None`: it cannot be decompressed.
    pub(super) fn copies_of(
        &self,
        record: &FragmentRecord,
        used: u16,
        stored: &Buf,
        old: OldPlace,
    ) -> Option<Vec<Copy>> {
        let plain = |content: &Buf, (first, blocks): (u8, u8)| {
            let from = usize::from(first) * BLOCK;
            content.slice(from..from + usize::from(blocks) * BLOCK)
        };
        let old = OldPlaces::from_buf([old]);
        let whole = Copy { record: *record, content: stored.clone(), old: old.clone() };
        if used == block_bits(0, record.blocks) {
            return Some(vec![whole]);
        }
        if record.codec == Codec::Plain {
            let copy = |range| Copy::new(record, range, (Codec::Plain, plain(stored, range)), old.clone());
            return Some(ranges(used).into_iter().map(copy).collect());
        }
        let mut compressor = self.compressor.borrow_mut();
        let content = Buf::from(compressor.decompress(record.codec, stored, record.blocks)?);
        // The volume's codec may be off meanwhile. Then this must not take more room than before.
        let compression = match self.settings(record.line).compression {
            Compression::Off => Compression::Lz4,
            compression => compression,
        };
        let parts: Vec<Copy> = ranges(used)
            .into_iter()
            .map(|range| {
                let content = plain(&content, range);
                let packed = compressor.compress(compression, &content);
                let stored = packed.map_or((Codec::Plain, content), |(codec, bytes)| (codec, Buf::from(bytes)));
                Copy::new(record, range, stored, old.clone())
            })
            .collect();
        let is_shorter = parts.iter().map(Copy::bytes).sum::<u64>() < whole.bytes();
        Some(if is_shorter { parts } else { vec![whole] })
    }

    /// Whether a segment is still the one that it was.
    fn is_opening(&self, place: OldPlace) -> bool {
        let id = self.grid.segment_of(place.stored.address);
        self.segments.borrow().get(id).is_some_and(|segment| segment.opening == place.opening)
    }

    /// The blocks of a fragment that the map has at this place.
    fn used_of(&self, record: &FragmentRecord, place: StoredRange) -> Option<u16> {
        let trees = self.trees.borrow();
        let leaf = trees.leaf(record.line, record.block / LEAF_BLOCKS)?;
        leaf.at(place, (record.block % LEAF_BLOCKS) as u8).map(|entry| entry.used)
    }

    /// Writes copies to runs of the collector, and has the map use them. Without `pad`, those that
    /// do not fill a run stay.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] from [`ORDERED`] if writes of users need the last free segments.
    pub(super) async fn write_copies(
        self: &Rc<Self>,
        stream: usize,
        copies: &mut VecDeque<Copy>,
        pad: bool,
    ) -> Result<(), BlockError> {
        while !copies.is_empty() {
            let segment = self.collector_segment(stream)?;
            let room = self.segments.borrow().left(segment).min(self.run_bytes_max());
            let stored = |copy: &Copy| Some((copy.record.codec, copy.content.len()));
            let TakenRun { mut taken, is_full, .. } = take_run(copies, room, stored, Copy::divide);
            if taken.is_empty() || !(is_full || pad) {
                taken.into_iter().rev().for_each(|copy| copies.push_front(copy));
                if !is_full {
                    break;
                }
                // The rest of the segment is too short for any of them.
                self.segments.borrow_mut().close(segment);
                continue;
            }
            taken.sort_by_key(|copy| copy.record.codec != Codec::Plain);
            self.write_run_of_copies(segment, &taken).await?;
            self.make_room_for_clients().await;
        }
        Ok(())
    }

    fn collector_segment(&self, stream: usize) -> Result<OpenSegment, BlockError> {
        let mut open = self.collecting_segments.get();
        if let Some(open) = open[stream].filter(|open| self.segments.borrow().left(*open) > 0) {
            return Ok(open);
        }
        if stream == ORDERED && self.missing_segments(0) > 0 {
            return Err(BlockError::NoSpace);
        }
        let next = self.segments.borrow_mut().open(SegmentUse::Data, stream as u8 + 1);
        open[stream] = Some(next.ok_or(BlockError::NoSpace)?);
        self.collecting_segments.set(open);
        Ok(open[stream].expect("it was just opened"))
    }

    async fn write_run_of_copies(self: &Rc<Self>, segment: OpenSegment, copies: &[Copy]) -> Result<(), BlockError> {
        self.check_usable()?;
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
        self.write_in_pieces(address, &data.freeze()).await?;
        for (number, (copy, place)) in copies.iter().zip(places).enumerate() {
            if number > 0 && number.is_multiple_of(FRAGMENTS_AT_ONCE) {
                self.make_room_for_clients().await;
            }
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
        let old: SmallVec<[OldPlace; 1]> = copy.old.iter().copied().filter(|old| self.is_opening(*old)).collect();
        let is_old = |entry: &MapEntry| old.iter().any(|old| old.stored == entry.stored);
        let still = |block: &u8| leaf.find(first + block).is_some_and(is_old);
        let used = (0..record.blocks).filter(still).fold(0u16, |bits, block| bits | 1 << block);
        drop(trees);
        if used == 0 {
            return Ok(());
        }
        self.change_leaf(record.line, leaf_index, |leaf| {
            let mut changes: LiveChanges = leaf.clear(window, used << (first % WINDOW_BLOCKS as u8));
            let FragmentRecord { blocks, birth, codec, .. } = *record;
            changes.push(leaf.insert(MapEntry { stored, codec, first, blocks, used, birth }));
            changes
        });
        self.regrow(record.line, record.block / WINDOW_BLOCKS);
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
        while self.can_change_nodes() {
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
        Ok(())
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
