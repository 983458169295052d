//! The segment table: what each segment is used for, and how much of it is live.

use std::collections::{BTreeMap, BTreeSet};

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

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub state: SegmentState,
    pub record: SegmentRecord,
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

pub(super) struct SegmentTable {
    grid: Grid,
    segments: BTreeMap<u64, Segment>,
    free: BTreeSet<u64>,
    /// Segments that may have nothing live: those that can be freed are among them.
    empty: BTreeSet<u64>,
    /// Number of segments that are to be discarded.
    freed: usize,
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
        let segment = Segment { state, record, in_flight: 0, moves: 0, unreadable: false };
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
    pub fn open(&mut self, used_for: SegmentUse, moves: u8) -> Option<u64> {
        let id = self.free.pop_first()?;
        let segment = self.segments.get_mut(&id).expect("a segment of the store");
        (segment.state, segment.moves) = (SegmentState::Open, moves);
        segment.record = SegmentRecord { used_for, ..SegmentRecord::default() };
        self.mark_dirty(id);
        Some(id)
    }

    /// Takes the next bytes of an open segment for a run. Returns where the run begins. The segment
    /// is closed when nothing is left.
    pub fn fill(&mut self, id: u64, run_bytes: u64, newest_sequence: u64) -> u64 {
        let segment = self.segments.get_mut(&id).expect("a segment of the store");
        debug_assert_eq!(segment.state, SegmentState::Open);
        let start = u64::from(segment.record.filled_bytes);
        assert!(start + run_bytes <= self.grid.segment_bytes, "a run of {run_bytes} bytes at {start} of a segment");
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
    pub fn close(&mut self, id: u64) {
        self.segments.get_mut(&id).expect("a segment of the store").state = SegmentState::Closed;
        self.note_empty(id);
    }

    /// Bytes that are left in an open segment.
    pub fn left(&self, id: u64) -> u64 {
        let segment = &self.segments[&id];
        if segment.state == SegmentState::Open {
            self.grid.segment_bytes - u64::from(segment.record.filled_bytes)
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
}
