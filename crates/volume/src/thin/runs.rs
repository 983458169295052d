//! Runs: writes pending parts to segments, and then enters them into the map.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use drive::{BlockError, Buf, Env, oneshot};
use format::BLOCK;
use format::thin::batch::{BATCH_HEAD_BYTES, BatchRecords, ContentCursor, encode_index};
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::record::RECORD_BYTES;
use format::thin::segment::SegmentUse;
use format::thin::{Codec, StoredRange, WINDOW_BLOCKS};

use super::backing::Backing;
use super::leaf::LiveChanges;
use super::pending::{Part, PartId, Pending};
use super::signal::Signal;
use super::store::ThinStore;
use super::write::{fragment_record, hole_record};

/// Parts that no run has yet, in the order of their writes.
#[derive(Default)]
pub(super) struct RunQueue {
    parts: VecDeque<PartId>,
    /// Bytes of their contents and records.
    bytes: u64,
    /// The segment that is being filled.
    open: Option<u64>,
}

impl RunQueue {
    pub fn push(&mut self, id: PartId, part: &Part) {
        self.parts.push_back(id);
        self.bytes += part_bytes(part);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn open_segment(&self) -> Option<u64> {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Takes parts from the queue for a run of at most `bytes` bytes. A part that does not fit is
    /// divided. Without `pad`, nothing is taken unless the run gets full.
    fn plan(&mut self, pending: &mut Pending, (bytes, unit): (u64, u64), pad: bool) -> Option<PlannedRun> {
        let (mut records, mut contents, mut parts) = (BATCH_HEAD_BYTES as u64, 0, Vec::new());
        let room = |records: u64, contents: u64| {
            let first = (records + RECORD_BYTES as u64).next_multiple_of(BLOCK as u64);
            bytes.saturating_sub(first + contents) / BLOCK as u64
        };
        let mut is_full = false;
        while let Some(&id) = self.parts.front() {
            let part = pending.get(id).expect("a queued part is pending");
            let fits = room(records, contents);
            if part.content.is_some() && fits < u64::from(part.blocks) {
                is_full = true;
                if fits > 0 {
                    let rest = pending.split(id, fits as u8);
                    self.bytes += RECORD_BYTES as u64;
                    self.parts.insert(1, rest);
                    continue;
                }
                break;
            }
            let index = (records + RECORD_BYTES as u64).next_multiple_of(BLOCK as u64);
            if part.content.is_none() && index + contents > bytes {
                is_full = true;
                break;
            }
            records += RECORD_BYTES as u64;
            contents += part.content.as_ref().map_or(0, |content| content.len() as u64);
            self.bytes -= part_bytes(part);
            self.parts.pop_front();
            parts.push(id);
        }
        if parts.is_empty() || !(is_full || pad) {
            for id in parts.into_iter().rev() {
                self.bytes += part_bytes(pending.get(id).expect("it is pending"));
                self.parts.push_front(id);
            }
            return None;
        }
        let used = records.next_multiple_of(BLOCK as u64) + contents;
        Some(PlannedRun { bytes: used.next_multiple_of(unit), parts })
    }
}

fn part_bytes(part: &Part) -> u64 {
    RECORD_BYTES as u64 + part.content.as_ref().map_or(0, |content| content.len() as u64)
}

/// A run that is being written.
pub(super) struct RunResult {
    parts: BTreeSet<PartId>,
    result: RefCell<Option<Result<(), BlockError>>>,
    changed: Signal,
}

impl RunResult {
    pub fn has(&self, part: PartId) -> bool {
        self.parts.contains(&part)
    }

    /// Returns when the run is on the drives.
    pub async fn written(&self) -> Result<(), BlockError> {
        loop {
            if let Some(result) = &*self.result.borrow() {
                return result.clone();
            }
            self.changed.changed().await;
        }
    }
}

/// A run before it is written.
struct PlannedRun {
    bytes: u64,
    parts: Vec<PartId>,
}

impl<B: Backing> ThinStore<B> {
    /// Begins to write the parts in the queue, as far as they fill whole runs. With `pad`, all of
    /// them: the last run may be padded. Fewer are written if there are no free segments.
    pub(super) fn write_runs(self: &Rc<Self>, pad: bool) -> Vec<Rc<RunResult>> {
        std::iter::from_fn(|| self.next_run(pad)).collect()
    }

    fn next_run(self: &Rc<Self>, pad: bool) -> Option<Rc<RunResult>> {
        if self.queue.borrow().is_empty() || self.failed.borrow().is_some() {
            return None;
        }
        let unit = self.grid.unit_bytes;
        let wanted = {
            let bytes = self.queue.borrow().bytes + BATCH_HEAD_BYTES as u64;
            // Each content begins at a block, and so does the first one behind the records.
            if pad { (bytes + BLOCK as u64).next_multiple_of(unit) } else { bytes / unit * unit }
        };
        if wanted == 0 {
            return None;
        }
        let segment = self.data_segment()?;
        let left = self.segments.borrow().left(segment);
        let most = left.min(self.run_bytes_max());
        let run = self.queue.borrow_mut().plan(&mut self.pending.borrow_mut(), (wanted.min(most), unit), pad)?;
        Some(self.begin_run(segment, run))
    }

    /// The segment that is being filled with writes of users, or another one.
    fn data_segment(&self) -> Option<u64> {
        let open = self.queue.borrow().open;
        if let Some(open) = open.filter(|open| self.segments.borrow().left(*open) > 0) {
            return Some(open);
        }
        let is_kept = self.segments.borrow().free_count() <= self.segments_kept_from_runs();
        if is_kept {
            // A checkpoint or the collector has to free segments first.
            self.waits_for_segments.set(true);
            self.work.raise();
            return None;
        }
        let next = self.segments.borrow_mut().open(SegmentUse::Data)?;
        self.queue.borrow_mut().open = Some(next);
        Some(next)
    }

    fn begin_run(self: &Rc<Self>, segment: u64, run: PlannedRun) -> Rc<RunResult> {
        let newest = run.parts.iter().map(|part| part.sequence).max().expect("a run has parts");
        let address = self.segments.borrow_mut().fill(segment, run.bytes, newest);
        let (data, places) = self.encode_run(address, &run);
        self.counts.borrow_mut().data_run_bytes += run.bytes;
        let parts = run.parts.iter().copied().collect();
        let result = Rc::new(RunResult { parts, result: RefCell::default(), changed: Signal::default() });
        let (store, shared) = (self.clone(), result.clone());
        self.env().spawn(async move {
            let written = store.backing.write(address, data, false).await;
            shared.result.replace(Some(written.clone()));
            shared.changed.raise();
            let landed = match written {
                Ok(()) => store.land(address, &run.parts, &places).await,
                Err(error) => Err(error),
            };
            if let Err(error) = landed {
                store.fail(&error);
            }
            store.progress.raise();
            store.work.raise();
        });
        result
    }

    /// The bytes of a run, and the places of its fragments. Holes have none.
    fn encode_run(&self, address: u64, run: &PlannedRun) -> (Buf, Vec<Option<StoredRange>>) {
        let pending = self.pending.borrow();
        let part_of = |id: &PartId| pending.get(*id).expect("the part is pending");
        let mut records = BatchRecords::default();
        for id in &run.parts {
            let part = part_of(id);
            match &part.content {
                Some(content) => records.fragments.push(fragment_record(*id, part, content)),
                None => records.holes.push(hole_record(*id, part)),
            }
        }
        let index = encode_index(&self.key, address, run.bytes as usize, &records);
        let mut data = self.env().alloc(run.bytes as usize);
        data[..index.len()].copy_from_slice(&index);
        let (mut cursor, mut end, mut places) = (ContentCursor::new(0, index.len()), index.len(), Vec::new());
        for id in &run.parts {
            let content = part_of(id).content.as_ref();
            places.push(content.map(|content| {
                let place = cursor.next(Codec::Plain, content.len() as u32);
                data[end..place.start].fill(0);
                data[place.clone()].copy_from_slice(content);
                end = place.end;
                StoredRange { address: address + place.start as u64, bytes: content.len() as u32 }
            }));
        }
        data[end..].fill(0);
        (data.freeze(), places)
    }

    /// Enters the parts of a run into the map. Blocks that a later write has replaced stay out of
    /// it: that write may have been entered before.
    async fn land(
        self: &Rc<Self>,
        address: u64,
        parts: &[PartId],
        places: &[Option<StoredRange>],
    ) -> Result<(), BlockError> {
        for (id, place) in parts.iter().zip(places) {
            let leaf = id.window * WINDOW_BLOCKS / LEAF_BLOCKS;
            if place.is_some() {
                self.load_or_create_leaf(id.line, leaf).await?;
            } else {
                self.load_leaf(id.line, leaf).await?;
            }
            let part = self.pending.borrow_mut().remove(*id);
            if self.trees.borrow().leaf(id.line, leaf).is_some() && part.used != 0 {
                self.enter(*id, leaf, &part, *place);
            }
            self.landed.borrow_mut().extend(part.frame);
        }
        self.segments.borrow_mut().landed(address);
        self.evict();
        Ok(())
    }

    fn enter(&self, id: PartId, leaf: u64, part: &Part, place: Option<StoredRange>) {
        let window = (id.window % (LEAF_BLOCKS / WINDOW_BLOCKS)) as u8;
        self.change_leaf(id.line, leaf, |leaf| {
            let mut changes: LiveChanges = leaf.clear(window, part.used);
            if let Some(stored) = place {
                let entry = MapEntry {
                    stored,
                    codec: Codec::Plain,
                    first: window * WINDOW_BLOCKS as u8 + part.first,
                    blocks: part.blocks,
                    used: part.used >> part.first,
                    birth: part.birth,
                };
                changes.push(leaf.insert(entry));
            }
            changes
        });
    }

    /// Makes everything durable that was acknowledged, in segments. Frees the frames that are not
    /// needed any more.
    pub(super) async fn make_durable(&self) -> Result<(), BlockError> {
        let frames = self.landed.take();
        self.unlogged.set(false);
        if let Err(error) = self.backing.flush().await {
            self.landed.borrow_mut().extend(frames);
            self.unlogged.set(true);
            return Err(error);
        }
        frames.iter().for_each(|frame| frame.part_is_durable());
        self.backing.reclaim_intents(self.frames.lowest_needed(self.backing.next_intent()));
        Ok(())
    }

    /// Makes every request durable that was acknowledged before.
    pub(super) async fn flush(self: &Rc<Self>) -> Result<(), BlockError> {
        self.check_usable()?;
        if !self.unlogged.get() {
            return self.backing.flush_intents().await;
        }
        // In a task of its own: it has to end, even if the request is dropped.
        let (done, flushed) = oneshot();
        let store = self.clone();
        self.env().spawn(async move { done.send(store.make_durable().await) });
        flushed.await.unwrap_or(Err(BlockError::Stopped))
    }

    /// As [`ThinStore::land_all`], unless there are not enough free segments.
    pub(super) async fn land_what_fits(self: &Rc<Self>) -> Result<(), BlockError> {
        self.write_runs(true);
        if self.queue.borrow().is_empty() { self.land_all().await } else { Ok(()) }
    }

    /// Writes everything to runs that was accepted so far, and enters it into the map.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn land_all(self: &Rc<Self>) -> Result<(), BlockError> {
        let last = self.next_sequence.get();
        loop {
            self.check_usable()?;
            self.write_runs(true);
            if self.pending.borrow().lowest().is_none_or(|lowest| lowest >= last) {
                return Ok(());
            }
            self.progress.changed().await;
        }
    }
}

/// Whether a flag was set; sets it.
pub(super) fn claim(flag: &Cell<bool>) -> bool {
    !flag.replace(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 64 << 10;

    proptest! {
        #[test]
        fn a_run_is_no_longer_than_its_place_whatever_is_in_it(
            parts in proptest::collection::vec((1u8..=16, 0u8..80), 1..1500), units in 1u64..4, pad in any::<bool>()
        ) {
            let (mut queue, mut pending) = (RunQueue::default(), Pending::default());
            for (number, (blocks, kind)) in (1..).zip(parts) {
                // Most are holes: their records have to fit beside the contents.
                let content = (kind == 0).then(|| Buf::zeroes(usize::from(blocks) * BLOCK));
                let used = super::super::pending::block_bits(0, blocks);
                let part = Part {
                    sequence: number, floor: number, birth: 1, first: 0, blocks, used, content, growth: 0, frame: None,
                };
                let id = PartId { line: 1, window: number, sequence: number, first: 0 };
                queue.push(id, &part);
                pending.insert(1, number, part);
            }
            while let Some(run) = queue.plan(&mut pending, (units * UNIT, UNIT), pad) {
                let contents: usize =
                    run.parts.iter().filter_map(|id| pending.get(*id)?.content.as_ref()).map(|content| content.len()).sum();
                let index = (BATCH_HEAD_BYTES + run.parts.len() * RECORD_BYTES).next_multiple_of(BLOCK);
                prop_assert!((index + contents) as u64 <= run.bytes && run.bytes <= units * UNIT, "{}", run.bytes);
            }
            prop_assert!(queue.is_empty() || !pad, "with padding, all parts get into runs");
        }
    }
}
