//! Finds the runs of segments, and the key of a store whose anchors are lost.

use std::collections::BTreeMap;

use format::BLOCK;
use format::thin::batch::{BatchIndex, StoreKey};

use crate::geometry::Geometry;

use super::ThinQuery;
use super::bytes::GroupBytes;

/// Where segments and runs begin.
pub(super) struct Grid {
    pub segment_bytes: u64,
    /// Runs begin at multiples of so many bytes, counted from the start of the segment.
    pub unit_bytes: u64,
    segments: Vec<u64>,
}

impl Grid {
    pub fn new(geometry: &Geometry, query: &ThinQuery<'_>) -> Grid {
        let stripe = geometry.data_count as u64 * geometry.strip;
        let rows = (geometry.chunk / geometry.strip).max(1);
        let unit_bytes = if rows == 1 { stripe } else { stripe * rows * geometry.sets };
        let segment_bytes = query.segment_bytes;
        let segments = query.extents.iter().flat_map(|extent| {
            let first = extent.start_byte.div_ceil(segment_bytes);
            first..((extent.start_byte + extent.len_bytes) / segment_bytes).max(first)
        });
        Grid { segment_bytes, unit_bytes, segments: segments.collect() }
    }

    /// The first byte of the segment with the anchors.
    pub fn anchors(&self) -> Option<u64> {
        self.segments.first().map(|id| id * self.segment_bytes)
    }

    /// The segments that can have runs, with their first bytes.
    pub fn with_runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.segments.iter().skip(1).map(|id| (*id, id * self.segment_bytes))
    }
}

/// The start of a unit of a segment.
enum Unit {
    /// A run that counts.
    Run(BatchIndex),
    /// No run that counts begins here.
    Nothing,
    /// A run may begin here: the bytes cannot be read, or are those of a damaged index.
    Unreadable,
}

/// Reads the runs of a store.
pub(super) struct RunReader<'r, 'a> {
    pub bytes: &'r mut GroupBytes<'a>,
    pub grid: &'r Grid,
    pub key: &'r StoreKey,
    /// Bytes in which a run may begin that cannot be read.
    pub unread_bytes: u64,
}

impl RunReader<'_, '_> {
    /// Passes the runs of the segment at `start` to `take`, with their addresses.
    pub fn segment(&mut self, start: u64, take: &mut dyn FnMut(u64, &BatchIndex)) {
        let mut at = 0;
        while at < self.grid.segment_bytes {
            let (address, room) = (start + at, self.grid.segment_bytes - at);
            let mut len = self.grid.unit_bytes;
            match self.unit(address, room) {
                Unit::Run(index) => {
                    take(address, &index);
                    len = index.batch_bytes as u64;
                }
                Unit::Nothing => {}
                Unit::Unreadable => self.unread_bytes += len.min(room),
            }
            at += len;
        }
    }

    /// A run counts only if all of its allocation chunks are allocated: the map of a chunk is
    /// durable after its data, so a run without one of them was not written completely.
    fn unit(&mut self, address: u64, room: u64) -> Unit {
        if !self.bytes.is_any_written(address, self.grid.unit_bytes.min(room)) {
            return Unit::Nothing;
        }
        let Some(head) = self.bytes.read(address, BLOCK as u64) else { return Unit::Unreadable };
        let Some(len) = BatchIndex::announced_bytes(&head, self.key, address) else { return Unit::Nothing };
        let len = (len as u64).min(room);
        let index = self.bytes.read(address, len).map(|all| BatchIndex::decode(&all, self.key, address, 0));
        let Some(Ok(index)) = index else {
            let is_damaged = self.bytes.is_all_written(address, len);
            return if is_damaged { Unit::Unreadable } else { Unit::Nothing };
        };
        let len = index.batch_bytes as u64;
        let is_whole = len > 0 && len.is_multiple_of(self.grid.unit_bytes) && len <= room;
        if is_whole && self.bytes.is_all_written(address, len) { Unit::Run(index) } else { Unit::Nothing }
    }
}

/// The key of the store, without its anchors: the one that most segments have in their first run.
///
/// Only first runs are asked. A run always begins at the first byte of a segment, and the segment
/// was discarded before. So no client has written the bytes there, while the rest of a run has
/// clients' data: a client that knew where it is stored could have made it look like a run with a
/// key of its own choice. The majority counts, as space that a pool has just taken may have content
/// from before until it is discarded.
pub(super) fn key_of_first_runs(bytes: &mut GroupBytes<'_>, grid: &Grid) -> Option<StoreKey> {
    let mut votes: BTreeMap<StoreKey, u64> = BTreeMap::new();
    for (_, start) in grid.with_runs() {
        if !bytes.is_any_written(start, grid.unit_bytes) {
            continue;
        }
        let head = bytes.read(start, BLOCK as u64);
        let Some(key) = head.and_then(|head| BatchIndex::announced_key(&head, start)) else { continue };
        let mut reader = RunReader { bytes, grid, key: &key, unread_bytes: 0 };
        if matches!(reader.unit(start, grid.segment_bytes), Unit::Run(_)) {
            *votes.entry(key).or_default() += 1;
        }
    }
    votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(key, _)| key)
}
