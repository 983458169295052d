//! The segment table: what each segment is used for, and how much of it is live.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{AddAssign, Range};

use format::thin::StoredRange;
use format::thin::segment::{SEGMENTS_PER_LEAF, SegmentRecord, SegmentUse};

use super::grid::Grid;

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentState {
    /// It is discarded, and may be filled.
    Free,
    /// It is being filled.
    Open,
    /// It has what it has.
    Closed,
    /// No checkpoint needs it any more, and it is to be discarded.
    Freed,
}

/// A segment that was opened to be filled, until it is full or closed. It can be free and opened
/// for something else after that, while this is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenSegment {
    pub id: u64,
    /// Number of the opening.
    opening: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub state: SegmentState,
    pub record: SegmentRecord,
    /// Number of its last opening, 0 before the first.
    pub opening: u64,
    /// Runs in it that are being written, or are not in the map yet.
    pub in_flight: u32,
    /// How often its content was moved by the collector, at least. Not known after a start.
    pub moves: u8,
    /// A fragment in it could not be read. It is not collected.
    pub unreadable: bool,
}

/// Sums over the segments, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentSums {
    /// All segments.
    pub total: u64,
    /// Free segments, and segments that are being discarded.
    pub free: u64,
    /// Live bytes of fragments.
    pub live_data: u64,
    /// Live bytes of nodes, and the segment of the anchors.
    pub live_nodes: u64,
    /// Everything else: garbage, indexes, padding, and what is not filled yet.
    pub garbage: u64,
}

impl AddAssign for SegmentSums {
    fn add_assign(&mut self, other: SegmentSums) {
        self.total += other.total;
        self.free += other.free;
        self.live_data += other.live_data;
        self.live_nodes += other.live_nodes;
        self.garbage += other.garbage;
    }
}

pub(super) struct SegmentTable {
    grid: Grid,
    segments: BTreeMap<u64, Segment>,
    free: BTreeSet<u64>,
    /// Segments that may have nothing live: those that can be freed are among them.
    empty: BTreeSet<u64>,
    /// Number of segments that are to be discarded.
    freed: usize,
    /// How often a segment was opened.
    openings: u64,
    /// Leaves of the table that changed since the last checkpoint.
    pub dirty: BTreeSet<u64>,
    live_data: u64,
    live_nodes: u64,
    /// More became garbage than was live: the maps or the table are damaged.
    pub is_damaged: bool,
}

impl SegmentTable {
    pub fn new(grid: Grid) -> SegmentTable {
        SegmentTable {
            grid,
            segments: BTreeMap::new(),
            free: BTreeSet::new(),
            empty: BTreeSet::new(),
            freed: 0,
            openings: 0,
            dirty: BTreeSet::new(),
            live_data: 0,
            live_nodes: 0,
            is_damaged: false,
        }
    }

    /// Adds a segment. Its state follows from its record; a free one is yet to be discarded.
    pub fn add(&mut self, id: u64, record: SegmentRecord) {
        let is_free = record.used_for == SegmentUse::Free;
        let state = if is_free { SegmentState::Freed } else { SegmentState::Closed };
        let segment = Segment { state, record, opening: 0, in_flight: 0, moves: 0, unreadable: false };
        let replaced = self.segments.insert(id, segment);
        debug_assert!(replaced.is_none(), "segment {id} twice");
        self.note_empty(id);
        self.freed += usize::from(is_free);
        *self.live_of(record.used_for) += u64::from(record.live_bytes);
    }

    /// A recovery found runs in a segment that the checkpoint does not know. It is not filled any
    /// further.
    pub fn found_runs(&mut self, id: u64, newest_sequence: u64) {
        let filled_bytes = self.grid.segment_bytes as u32;
        let segment = self.segments.get_mut(&id).expect("a segment of the store");
        self.freed -= usize::from(segment.state == SegmentState::Freed);
        segment.state = SegmentState::Closed;
        let record = &mut segment.record;
        (record.used_for, record.filled_bytes) = (SegmentUse::Data, filled_bytes);
        record.newest_sequence = record.newest_sequence.max(newest_sequence);
        self.mark_dirty(id);
        self.note_empty(id);
    }

    /// Has a segment looked at by [`SegmentTable::free_unused`], if nothing in it is live.
    fn note_empty(&mut self, id: u64) {
        let segment = &self.segments[&id];
        if segment.state == SegmentState::Closed && segment.record.live_bytes == 0 {
            self.empty.insert(id);
        }
    }

    pub fn get(&self, id: u64) -> Option<&Segment> {
        self.segments.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Segment)> {
        self.segments.iter().map(|(id, segment)| (*id, segment))
    }

    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// The free segments, in the order in which they are opened.
    pub fn next_free(&self) -> impl Iterator<Item = u64> {
        self.free.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Opens the first free segment, for content that the collector has moved so often.
    pub fn open(&mut self, used_for: SegmentUse, moves: u8) -> Option<OpenSegment> {
        let id = self.free.pop_first()?;
        let segment = self.segments.get_mut(&id).expect("a segment of the store");
        self.openings += 1;
        (segment.state, segment.moves, segment.opening) = (SegmentState::Open, moves, self.openings);
        segment.record = SegmentRecord { used_for, ..SegmentRecord::default() };
        self.mark_dirty(id);
        Some(OpenSegment { id, opening: self.openings })
    }

    /// Takes the next bytes of an open segment for a run. Returns where the run begins. The segment
    /// is closed when nothing is left.
    ///
    /// # Panics
    /// If less is left than the run takes.
    pub fn fill(&mut self, open: OpenSegment, run_bytes: u64, newest_sequence: u64) -> u64 {
        let id = open.id;
        assert!(run_bytes <= self.left(open), "a run of {run_bytes} bytes in segment {id}");
        let segment = self.segments.get_mut(&id).expect("it is open");
        let start = u64::from(segment.record.filled_bytes);
        segment.record.filled_bytes += run_bytes as u32;
        segment.record.newest_sequence = segment.record.newest_sequence.max(newest_sequence);
        segment.in_flight += 1;
        if u64::from(segment.record.filled_bytes) == self.grid.segment_bytes {
            segment.state = SegmentState::Closed;
        }
        self.mark_dirty(id);
        self.note_empty(id);
        self.grid.start(id) + start
    }

    /// Ends the filling of a segment.
    pub fn close(&mut self, open: OpenSegment) {
        if self.is_open(open) {
            self.segments.get_mut(&open.id).expect("it is open").state = SegmentState::Closed;
            self.note_empty(open.id);
        }
    }

    /// Whether a segment is still open since that opening.
    fn is_open(&self, open: OpenSegment) -> bool {
        let is_same = |segment: &Segment| segment.state == SegmentState::Open && segment.opening == open.opening;
        self.segments.get(&open.id).is_some_and(is_same)
    }

    /// Bytes that are left in an open segment.
    pub fn left(&self, open: OpenSegment) -> u64 {
        if self.is_open(open) {
            self.grid.segment_bytes - u64::from(self.segments[&open.id].record.filled_bytes)
        } else {
            0
        }
    }

    /// A run is in the map, or does not count.
    pub fn landed(&mut self, address: u64) {
        let segment = self.at(address);
        segment.in_flight -= 1;
    }

    fn at(&mut self, address: u64) -> &mut Segment {
        self.segments.get_mut(&self.grid.segment_of(address)).expect("an address of the store")
    }

    fn live_of(&mut self, used_for: SegmentUse) -> &mut u64 {
        match used_for {
            SegmentUse::Data | SegmentUse::Free => &mut self.live_data,
            SegmentUse::Nodes | SegmentUse::Anchors => &mut self.live_nodes,
        }
    }

    /// Bytes at an address became live, or garbage.
    pub fn change_live(&mut self, address: u64, change: i64) {
        let record = &mut self.at(address).record;
        let (used_for, filled) = (record.used_for, record.filled_bytes);
        let segment = record.live_bytes.checked_add_signed(change as i32).filter(|live| *live <= filled);
        record.live_bytes = segment.unwrap_or(record.live_bytes);
        let live = self.live_of(used_for);
        let all = live.checked_add_signed(change);
        *live = all.unwrap_or(*live);
        self.is_damaged |= segment.is_none() || all.is_none();
        self.mark_dirty(self.grid.segment_of(address));
        self.note_empty(self.grid.segment_of(address));
    }

    /// Whether a stored range lies in a segment with content of this kind.
    pub fn holds(&self, stored: StoredRange, used_for: SegmentUse) -> bool {
        let id = self.grid.segment_of(stored.address);
        let end = stored.address + u64::from(stored.bytes);
        end <= self.grid.start(id + 1) && self.get(id).is_some_and(|segment| segment.record.used_for == used_for)
    }

    pub fn mark_unreadable(&mut self, id: u64) {
        self.segments.get_mut(&id).expect("a segment of the store").unreadable = true;
    }

    fn mark_dirty(&mut self, id: u64) {
        self.dirty.insert(id / SEGMENTS_PER_LEAF);
    }

    /// Frees the closed segments without live bytes whose writes a checkpoint covers. They are to
    /// be discarded when that checkpoint is durable.
    pub fn free_unused(&mut self, covered: u64) -> Vec<u64> {
        let is_unused = |segment: &Segment| {
            segment.state == SegmentState::Closed
                && segment.record.live_bytes == 0
                && segment.in_flight == 0
                && segment.record.newest_sequence <= covered
        };
        self.empty.retain(|id| {
            let segment = &self.segments[id];
            segment.state == SegmentState::Closed && segment.record.live_bytes == 0
        });
        let unused: Vec<u64> = self.empty.iter().filter(|id| is_unused(&self.segments[*id])).copied().collect();
        for &id in &unused {
            self.empty.remove(&id);
            let segment = self.segments.get_mut(&id).expect("it was just seen");
            segment.state = SegmentState::Freed;
            segment.record = SegmentRecord::default();
            self.freed += 1;
            self.mark_dirty(id);
        }
        unused
    }

    /// A freed segment was discarded, durably.
    pub fn discarded(&mut self, id: u64) {
        let segment = self.segments.get_mut(&id).expect("a segment of the store");
        debug_assert_eq!(segment.state, SegmentState::Freed);
        segment.state = SegmentState::Free;
        self.freed -= 1;
        self.free.insert(id);
    }

    /// Removes free segments from the table: so many, or fewer if they are in more ranges. The
    /// longest ranges come first. A checkpoint calls all of them free already.
    pub fn remove_free(&mut self, count: usize, ranges_max: usize) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &id in &self.free {
            match ranges.last_mut() {
                Some(last) if last.end == id => last.end += 1,
                _ => ranges.push(id..id + 1),
            }
        }
        ranges.sort_by_key(|range| Reverse(range.end - range.start));
        ranges.truncate(ranges_max);
        let mut left = count as u64;
        for range in &mut ranges {
            range.start = range.end - left.min(range.end - range.start);
            left -= range.end - range.start;
            for id in range.clone() {
                self.free.remove(&id);
                self.segments.remove(&id);
            }
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }

    /// The records of a leaf of the table.
    pub fn leaf(&self, leaf: u64) -> Vec<SegmentRecord> {
        let ids = leaf * SEGMENTS_PER_LEAF..(leaf + 1) * SEGMENTS_PER_LEAF;
        ids.map(|id| self.segments.get(&id).map_or(SegmentRecord::default(), |segment| segment.record)).collect()
    }

    pub fn sums(&self) -> SegmentSums {
        let total = self.segments.len() as u64 * self.grid.segment_bytes;
        let free = (self.free.len() + self.freed) as u64 * self.grid.segment_bytes;
        let (live_data, live_nodes) = (self.live_data, self.live_nodes);
        SegmentSums { total, free, live_data, live_nodes, garbage: total - free - live_data - live_nodes }
    }

    /// As [`SegmentTable::sums`], counted anew from the segments. For checks.
    pub fn count(&self) -> SegmentSums {
        let mut sums = SegmentSums::default();
        for segment in self.segments.values() {
            let (all, live) = (self.grid.segment_bytes, u64::from(segment.record.live_bytes));
            let is_free = matches!(segment.state, SegmentState::Free | SegmentState::Freed);
            let is_data = matches!(segment.record.used_for, SegmentUse::Data | SegmentUse::Free);
            sums.total += all;
            *(if is_data { &mut sums.live_data } else { &mut sums.live_nodes }) += live;
            *(if is_free { &mut sums.free } else { &mut sums.garbage }) += all - live;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_free_again_belongs_to_the_one_that_opens_it_next() {
        let grid = Grid { segment_bytes: 65536, unit_bytes: 16384 };
        let mut table = SegmentTable::new(grid);
        table.add(3, SegmentRecord::default());
        table.discarded(3);
        let first = table.open(SegmentUse::Data, 0).expect("one is free");
        table.fill(first, 65536, 7);
        table.landed(grid.start(3));
        assert_eq!(table.free_unused(7), [3]);
        table.discarded(3);
        table.close(first);
        assert_eq!(table.free_count(), 1);
        let second = table.open(SegmentUse::Nodes, 0).expect("it is free again");
        table.close(first);
        assert_eq!((table.left(first), table.left(second)), (0, 65536));
        table.fill(second, 65536, 0);
        table.landed(grid.start(3));
        assert_eq!(table.free_unused(7), [3]);
        table.discarded(3);
        assert_eq!(table.remove_free(1, 1), vec![3..4]);
        assert_eq!((table.left(second), table.len()), (0, 0));
    }

    #[test]
    fn the_longest_free_ranges_are_removed_first() {
        let mut table = SegmentTable::new(Grid { segment_bytes: 65536, unit_bytes: 16384 });
        for id in [1, 2, 4, 5, 6, 9] {
            table.add(id, SegmentRecord::default());
            table.discarded(id);
        }
        assert_eq!(table.remove_free(2, 2), vec![5..7]);
        assert_eq!(table.remove_free(3, 2), [1..3, 4..5]);
        assert_eq!(table.next_free().collect::<Vec<_>>(), [9]);
    }
}
