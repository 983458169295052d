//! Runs: writes pending parts to segments, and then enters them into the map.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use drive::{BlockError, Buf, Env, oneshot};
use format::BLOCK;
use format::thin::batch::{BATCH_HEAD_BYTES, BatchRecords, ContentCursor, RECORDS_MAX, encode_index};
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::record::RECORD_BYTES;
use format::thin::segment::SegmentUse;
use format::thin::{Codec, StoredRange, UNIT_BYTES, WINDOW_BLOCKS};

use super::backing::Backing;
use super::leaf::LiveChanges;
use super::pending::{Part, PartId, Pending};
use super::segments::OpenSegment;
use super::signal::Signal;
use super::store::ThinStore;
use super::write::{fragment_record, hole_record};

/// Parts that no run has yet, in the order of their writes.
#[derive(Default)]
pub(super) struct RunQueue {
    parts: VecDeque<PartId>,
    /// So many of the last ones were not tried with the volume's codec yet.
    raw: usize,
    /// Bytes that all of them take in runs.
    bytes: u64,
    /// The segment that is being filled.
    open: Option<OpenSegment>,
}

/// A part that does not fit into a run may be passed over by so many smaller ones.
const PASSED_MAX: usize = 16;

impl RunQueue {
    pub fn push(&mut self, id: PartId, part: &Part) {
        self.parts.push_back(id);
        self.raw += 1;
        self.bytes += part_bytes(part);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn open_segment(&self) -> Option<OpenSegment> {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Compresses the parts that were not tried so far, and for which `pack` has a shorter form.
    fn pack(&mut self, pending: &mut Pending, mut pack: impl FnMut(PartId, &[u8]) -> Option<(Codec, Vec<u8>)>) {
        let first = self.parts.len() - std::mem::take(&mut self.raw);
        for id in self.parts.range(first..) {
            let part = pending.get_mut(*id).expect("a queued part is pending");
            let before = part_bytes(part);
            let packed = part.content.as_ref().and_then(|content| pack(*id, content));
            part.packed = packed.map(|(codec, bytes)| (codec, Buf::from(bytes)));
            self.bytes -= before - part_bytes(part);
        }
    }

    /// Whether the first part fits into a run of so many bytes, or some of its blocks do.
    fn can_begin(&self, pending: &Pending, bytes: u64) -> bool {
        let first = self.parts.front().and_then(|id| pending.get(*id)).and_then(Part::stored);
        let (size, stored) = (RunSize::default(), first.map(|(codec, content)| (codec, content.len())));
        size.with(stored).bytes() <= bytes
            || stored.is_some_and(|(codec, _)| codec == Codec::Plain && size.room(bytes) > 0)
    }

    /// Takes parts from the queue for a run of at most `bytes` bytes. A part that does not fit is
    /// divided, or passed over if it is compressed. Without `pad`, nothing is taken unless the run
    /// gets full.
    fn plan(&mut self, pending: &mut Pending, (bytes, unit): (u64, u64), pad: bool) -> Option<PlannedRun> {
        let pending = RefCell::new(pending);
        let stored = |id: &PartId| {
            let pending = pending.borrow();
            let part = pending.get(*id).expect("a queued part is pending");
            part.stored().map(|(codec, content)| (codec, content.len()))
        };
        let mut divided = 0;
        let divide = |id: PartId, blocks: u8| {
            divided += 1;
            (id, pending.borrow_mut().split(id, blocks))
        };
        let TakenRun { mut taken, size, is_full } = take_run(&mut self.parts, bytes, stored, divide);
        let pending = pending.into_inner();
        self.bytes += divided * RECORD_BYTES as u64;
        if taken.is_empty() || !(is_full || pad) {
            taken.into_iter().rev().for_each(|id| self.parts.push_front(id));
            return None;
        }
        let part = |id: &PartId| pending.get(*id).expect("it is pending");
        self.bytes -= taken.iter().map(|id| part_bytes(part(id))).sum::<u64>();
        // Plain contents are aligned. So they come first.
        taken.sort_by_key(|id| part(id).packed.is_some());
        Some(PlannedRun { bytes: size.bytes().next_multiple_of(unit), parts: taken })
    }
}

/// Contents for a run.
pub(super) struct TakenRun<T> {
    pub taken: Vec<T>,
    pub size: RunSize,
    /// Something did not fit.
    pub is_full: bool,
}

/// Takes contents from a queue for a run of at most `bytes` bytes. `stored`: codec and length of
/// one; `None` for a hole. `divide` cuts a plain one behind so many blocks.
pub(super) fn take_run<T>(
    queue: &mut VecDeque<T>,
    bytes: u64,
    stored: impl Fn(&T) -> Option<(Codec, usize)>,
    mut divide: impl FnMut(T, u8) -> (T, T),
) -> TakenRun<T> {
    let (mut size, mut taken, mut passed) = (RunSize::default(), Vec::new(), Vec::new());
    while passed.len() < PASSED_MAX
        && taken.len() < RECORDS_MAX
        && let Some(next) = queue.pop_front()
    {
        let content = stored(&next);
        if size.with(content).bytes() <= bytes {
            size = size.with(content);
            taken.push(next);
            continue;
        }
        let fits = if content.is_some_and(|(codec, _)| codec == Codec::Plain) { size.room(bytes) } else { 0 };
        if fits > 0 {
            let (next, rest) = divide(next, fits as u8);
            queue.push_front(rest);
            queue.push_front(next);
        } else {
            passed.push(next);
        }
    }
    let is_full = !passed.is_empty() || taken.len() == RECORDS_MAX;
    passed.into_iter().rev().for_each(|part| queue.push_front(part));
    TakenRun { taken, size, is_full }
}

/// Bytes of a run in which plain contents come before compressed ones.
#[derive(Clone, Copy)]
pub(super) struct RunSize {
    /// Of the head and the records.
    index: u64,
    plain: u64,
    packed: u64,
}

impl Default for RunSize {
    fn default() -> Self {
        RunSize { index: BATCH_HEAD_BYTES as u64, plain: 0, packed: 0 }
    }
}

impl RunSize {
    pub fn bytes(self) -> u64 {
        let unit = if self.plain > 0 { BLOCK as u64 } else { UNIT_BYTES };
        self.index.next_multiple_of(unit) + self.plain + self.packed
    }

    fn with(self, stored: Option<(Codec, usize)>) -> RunSize {
        let (plain, packed) = match stored {
            Some((Codec::Plain, len)) => (len as u64, 0),
            Some((_, len)) => (0, (len as u64).next_multiple_of(UNIT_BYTES)),
            None => (0, 0),
        };
        RunSize { index: self.index + RECORD_BYTES as u64, plain: self.plain + plain, packed: self.packed + packed }
    }

    /// Blocks of a plain part that fit into a run of so many bytes.
    fn room(self, bytes: u64) -> u64 {
        let index = (self.index + RECORD_BYTES as u64).next_multiple_of(BLOCK as u64);
        bytes.saturating_sub(index + self.plain + self.packed) / BLOCK as u64
    }
}

/// Bytes of a part in a run, with its record.
fn part_bytes(part: &Part) -> u64 {
    let content = part.stored().map_or(0, |(_, content)| (content.len() as u64).next_multiple_of(UNIT_BYTES));
    RECORD_BYTES as u64 + content
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

/// Where the content of a part is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub stored: StoredRange,
    pub codec: Codec,
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
        self.pack_queue();
        let unit = self.grid.unit_bytes;
        let wanted = {
            let bytes = self.queue.borrow().bytes + BATCH_HEAD_BYTES as u64;
            // Each content begins at a block, and so does the first one behind the records.
            if pad { (bytes + BLOCK as u64).next_multiple_of(unit) } else { bytes / unit * unit }
        };
        if wanted == 0 {
            return None;
        }
        loop {
            let segment = self.data_segment()?;
            let left = self.segments.borrow().left(segment);
            let most = left.min(self.run_bytes_max());
            let run = self.queue.borrow_mut().plan(&mut self.pending.borrow_mut(), (wanted.min(most), unit), pad);
            if let Some(run) = run {
                return Some(self.begin_run(segment, run));
            }
            if self.queue.borrow().can_begin(&self.pending.borrow(), most) {
                return None;
            }
            // The rest of the segment is too short for a compressed part.
            self.segments.borrow_mut().close(segment);
        }
    }

    /// Compresses the parts in the queue as their volumes say.
    fn pack_queue(&self) {
        let (mut queue, mut compressor) = (self.queue.borrow_mut(), self.compressor.borrow_mut());
        queue.pack(&mut self.pending.borrow_mut(), |id, content| {
            compressor.compress(self.settings(id.line).compression, content)
        });
    }

    /// The segment that is being filled with writes of users, or another one.
    fn data_segment(&self) -> Option<OpenSegment> {
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
        let next = self.segments.borrow_mut().open(SegmentUse::Data, 0)?;
        self.queue.borrow_mut().open = Some(next);
        Some(next)
    }

    fn begin_run(self: &Rc<Self>, segment: OpenSegment, run: PlannedRun) -> Rc<RunResult> {
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
    fn encode_run(&self, address: u64, run: &PlannedRun) -> (Buf, Vec<Option<Place>>) {
        let pending = self.pending.borrow();
        let part_of = |id: &PartId| pending.get(*id).expect("the part is pending");
        let mut records = BatchRecords::default();
        for id in &run.parts {
            let part = part_of(id);
            match part.stored() {
                Some((codec, content)) => records.fragments.push(fragment_record(*id, part, codec, content)),
                None => records.holes.push(hole_record(*id, part)),
            }
        }
        let index = encode_index(&self.key, address, run.bytes as usize, &records);
        let mut data = self.env().alloc(run.bytes as usize);
        data[..index.len()].copy_from_slice(&index);
        let (mut cursor, mut end, mut places) = (ContentCursor::new(0, index.len()), index.len(), Vec::new());
        for id in &run.parts {
            places.push(part_of(id).stored().map(|(codec, content)| {
                let place = cursor.next(codec, content.len() as u32);
                data[end..place.start].fill(0);
                data[place.clone()].copy_from_slice(content);
                end = place.end;
                let stored = StoredRange { address: address + place.start as u64, bytes: content.len() as u32 };
                Place { stored, codec }
            }));
        }
        data[end..].fill(0);
        (data.freeze(), places)
    }

    /// Enters the parts of a run into the map. Blocks stay out of it that a later write has there
    /// already. A write that a later one has replaced is entered if that one is still pending: it
    /// may be lost in a crash.
    async fn land(self: &Rc<Self>, address: u64, parts: &[PartId], places: &[Option<Place>]) -> Result<(), BlockError> {
        for (id, place) in parts.iter().zip(places) {
            let leaf = id.window * WINDOW_BLOCKS / LEAF_BLOCKS;
            if place.is_some() {
                self.load_or_create_leaf(id.line, leaf).await?;
            } else {
                self.load_leaf(id.line, leaf).await?;
            }
            let part = self.pending.borrow_mut().remove(*id);
            if self.trees.borrow().leaf(id.line, leaf).is_some() && part.current() != 0 {
                self.enter(*id, leaf, &part, *place);
            }
            self.pending.borrow_mut().entered(id.line, id.window, (part.bits(), id.sequence));
            self.regrow(id.line, id.window);
            self.landed.borrow_mut().extend(part.frame);
        }
        self.segments.borrow_mut().landed(address);
        self.evict();
        Ok(())
    }

    fn enter(&self, id: PartId, leaf: u64, part: &Part, place: Option<Place>) {
        let window = (id.window % (LEAF_BLOCKS / WINDOW_BLOCKS)) as u8;
        self.change_leaf(id.line, leaf, |leaf| {
            let mut changes: LiveChanges = leaf.clear(window, part.current());
            if let Some(Place { stored, codec }) = place {
                let entry = MapEntry {
                    stored,
                    codec,
                    first: window * WINDOW_BLOCKS as u8 + part.first,
                    blocks: part.blocks,
                    used: part.current() >> part.first,
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
            parts in proptest::collection::vec((1u8..=16, 0u8..80, 1usize..60_000), 1..1500), units in 1u64..4,
            pad in any::<bool>()
        ) {
            let (mut queue, mut pending) = (RunQueue::default(), Pending::default());
            for (number, (blocks, kind, len)) in (1..).zip(parts) {
                // Most are holes: their records have to fit beside the contents.
                let content = (kind < 2).then(|| Buf::zeroes(usize::from(blocks) * BLOCK));
                let mut part = Part::new(number, 1, (0, blocks), content);
                if kind == 1 && len < usize::from(blocks) * BLOCK {
                    part.packed = Some((Codec::Lz4, Buf::zeroes(len)));
                }
                let id = PartId { line: 1, window: number, sequence: number, first: 0 };
                queue.push(id, &part);
                pending.insert(1, number, part);
            }
            while let Some(run) = queue.plan(&mut pending, (units * UNIT, UNIT), pad) {
                let records = run.parts.iter().map(|id| (id, pending.get(*id).expect("it is pending")));
                let mut batch = BatchRecords::default();
                for (id, part) in records {
                    match part.stored() {
                        Some((codec, bytes)) => batch.fragments.push(fragment_record(*id, part, codec, bytes)),
                        None => batch.holes.push(hole_record(*id, part)),
                    }
                }
                let end = batch.contents(0).last().map_or(batch.index_bytes(), |place| place.end) as u64;
                prop_assert!(end <= run.bytes && run.bytes <= units * UNIT, "{end} of {}", run.bytes);
            }
            prop_assert!(queue.is_empty() || !pad, "with padding, all parts get into runs");
            prop_assert!(!queue.is_empty() || queue.bytes == 0);
        }
    }

    #[test]
    fn a_run_has_no_more_records_than_a_reader_takes() {
        let mut holes: VecDeque<usize> = (0..RECORDS_MAX + 3).collect();
        let divide = |_, _| unreachable!("holes are not divided");
        let run = take_run(&mut holes, u64::MAX, |_| None, divide);
        assert_eq!((run.taken.len(), run.is_full), (RECORDS_MAX, true));
        assert_eq!(holes, [RECORDS_MAX, RECORDS_MAX + 1, RECORDS_MAX + 2]);
        assert!(!take_run(&mut holes, u64::MAX, |_| None, divide).is_full);
    }
}
