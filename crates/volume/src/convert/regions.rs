//! Which regions of a volume are copied, and which of them changes have made stale.

use format::ExtentRecord;

use super::ConvertTuning;

/// The progress of a conversion, as it is saved. See [`format::ConversionRecord`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes from the start of the volume that are copied, except those in `stale`.
    pub copied_bytes: u64,
    /// Ranges of the volume, in order, that have to be copied again.
    pub stale: Vec<ExtentRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyState {
    Todo,
    /// Copied up to this byte of the volume.
    Copying(u64),
    Copied,
}

#[derive(Debug, Clone)]
struct Region {
    state: CopyState,
    /// Changes under way that go to the target as well.
    in_flight: u32,
    /// Such a change has begun since the last save began.
    was_changed: bool,
    /// The same, before that.
    was_changed_before: bool,
    /// The end of what was copied when the last flush began.
    flushed_end: u64,
    /// The saved progress lists the region as stale, or does not call it copied.
    is_listed: bool,
    /// The same of the progress that is being saved.
    will_be_listed: bool,
}

/// The regions of a volume. All are of one size, except the last.
pub(super) struct Regions {
    size_bytes: u64,
    region_bytes: u64,
    all: Vec<Region>,
    /// The saved progress calls regions copied that begin before this, or may do so.
    guarded: u64,
    /// The end of the copied bytes in the saved progress.
    saved: u64,
    /// The same in the progress that is being saved.
    saving: u64,
    /// A save has failed: what is saved is unknown.
    must_flush: bool,
    wants_listing: bool,
}

impl Regions {
    pub fn new(size_bytes: u64, progress: &Progress, tuning: &ConvertTuning) -> Regions {
        let window_bytes = tuning.window_bytes;
        let region_bytes = size_bytes.div_ceil(tuning.regions_max).next_multiple_of(window_bytes).max(window_bytes);
        let saved = progress.copied_bytes;
        let all = (0..size_bytes.div_ceil(region_bytes)).map(|index| {
            let (start, end) = (index * region_bytes, ((index + 1) * region_bytes).min(size_bytes));
            let is_stale = progress.stale.iter().any(|it| it.start_byte < end && start < it.start_byte + it.len_bytes);
            let state = match saved {
                _ if is_stale => CopyState::Todo,
                saved if saved >= end => CopyState::Copied,
                saved if saved > start => CopyState::Copying(saved),
                _ => CopyState::Todo,
            };
            Region {
                state,
                in_flight: 0,
                was_changed: false,
                was_changed_before: false,
                flushed_end: start,
                is_listed: is_stale,
                will_be_listed: false,
            }
        });
        let all = all.collect();
        let (guarded, saving) = (saved, saved);
        Regions { size_bytes, region_bytes, all, guarded, saved, saving, must_flush: false, wants_listing: false }
    }

    fn start(&self, index: usize) -> u64 {
        index as u64 * self.region_bytes
    }

    fn end_of(&self, index: usize) -> u64 {
        (self.start(index) + self.region_bytes).min(self.size_bytes)
    }

    /// The regions of a range that is not empty.
    fn of(&self, (start, end): (u64, u64)) -> std::ops::RangeInclusive<usize> {
        (start / self.region_bytes) as usize..=((end - 1) / self.region_bytes) as usize
    }

    fn copied_end(&self, index: usize) -> u64 {
        match self.all[index].state {
            CopyState::Todo => self.start(index),
            CopyState::Copying(to) => to,
            CopyState::Copied => self.end_of(index),
        }
    }

    pub fn copied_bytes(&self) -> u64 {
        (0..self.all.len()).map(|index| self.copied_end(index) - self.start(index)).sum()
    }

    pub fn is_copied(&self) -> bool {
        self.all.iter().all(|region| region.state == CopyState::Copied)
    }

    pub fn wants_listing(&self) -> bool {
        self.wants_listing
    }

    pub fn must_flush(&self) -> bool {
        self.must_flush
    }

    /// A change of a range begins. Returns its parts that go to the target as well.
    pub fn begin(&mut self, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        if start == end {
            return parts;
        }
        for index in self.of((start, end)) {
            let (from, to) = (self.start(index).max(start), self.copied_end(index).min(end));
            if from >= to {
                continue;
            }
            self.all[index].in_flight += 1;
            self.all[index].was_changed = true;
            match parts.last_mut() {
                Some((_, last)) if *last == from => *last = to,
                _ => parts.push((from, to)),
            }
        }
        parts
    }

    /// Whether these parts may change in the target. If not, they are to be listed with the next
    /// save.
    pub fn is_listed(&mut self, parts: &[(u64, u64)]) -> bool {
        let is_listed = |index: usize| self.all[index].is_listed || self.start(index) >= self.guarded;
        let all_are = parts.iter().all(|part| self.of(*part).all(is_listed));
        self.wants_listing |= !all_are;
        all_are
    }

    /// A change has ended. `is_same`: source and target have the same content.
    pub fn end(&mut self, parts: &[(u64, u64)], is_same: bool) {
        let indices: Vec<usize> = parts.iter().flat_map(|part| self.of(*part)).collect();
        for index in indices {
            let region = &mut self.all[index];
            region.in_flight -= 1;
            if !is_same {
                region.state = CopyState::Todo;
            }
        }
    }

    /// The range to be copied next: the rest of a region.
    pub fn next_to_copy(&mut self) -> Option<(u64, u64)> {
        let begun = self.all.iter().position(|region| matches!(region.state, CopyState::Copying(_)));
        let index = begun.or_else(|| self.all.iter().position(|region| region.state == CopyState::Todo))?;
        let from = self.copied_end(index);
        self.all[index].state = CopyState::Copying(from);
        Some((from, self.end_of(index)))
    }

    /// A piece was copied. It counts unless the region has to be copied again.
    pub fn advance(&mut self, from: u64, to: u64) {
        let index = (from / self.region_bytes) as usize;
        let end = self.end_of(index);
        let region = &mut self.all[index];
        if region.state == CopyState::Copying(from) {
            region.state = if to == end { CopyState::Copied } else { CopyState::Copying(to) };
        }
    }

    /// Begins a save, before source and target are flushed. Returns the end of what is copied.
    pub fn begin_flush(&mut self) -> u64 {
        for index in 0..self.all.len() {
            let copied_end = self.copied_end(index);
            let region = &mut self.all[index];
            region.was_changed_before = std::mem::take(&mut region.was_changed) || region.in_flight > 0;
            region.flushed_end = copied_end;
        }
        let last = self.all.iter().rposition(|region| region.state != CopyState::Todo);
        last.map_or(0, |index| self.copied_end(index))
    }

    /// Whether the region has to be saved as stale, if what is copied is saved up to `position`.
    fn is_stale(&self, index: usize, position: u64, is_flushed: bool) -> bool {
        let region = &self.all[index];
        if region.was_changed || region.was_changed_before || region.in_flight > 0 {
            return true;
        }
        let needed = self.end_of(index).min(position);
        let is_durable = if is_flushed { region.flushed_end >= needed } else { !region.is_listed };
        !is_durable || self.copied_end(index) < needed
    }

    /// The progress to save: after a flush up to its position, or with more stale regions only. A
    /// change that begins from now on has to be listed in it.
    pub fn progress(&mut self, flushed: Option<u64>, stale_max: usize) -> Progress {
        let position = flushed.unwrap_or(self.saved);
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for index in (0..self.all.len()).filter(|index| self.start(*index) < position) {
            let is_stale = self.is_stale(index, position, flushed.is_some());
            match ranges.last_mut() {
                _ if !is_stale => {}
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => ranges.push((index, index)),
            }
        }
        join_nearest(&mut ranges, stale_max);
        self.all.iter_mut().for_each(|region| region.will_be_listed = false);
        ranges.iter().for_each(|&(first, last)| {
            self.all[first..=last].iter_mut().for_each(|region| region.will_be_listed = true);
        });
        self.saving = position;
        self.guarded = self.guarded.max(position);
        self.wants_listing = false;
        // Until it is saved, either of both may be there.
        for index in 0..self.all.len() {
            let was_free = self.start(index) >= self.saved;
            let gets_free = self.start(index) >= position;
            let region = &mut self.all[index];
            region.is_listed = (region.is_listed || was_free) && (region.will_be_listed || gets_free);
        }
        let stale = ranges.iter().map(|&(first, last)| {
            let (start, end) = (self.start(first), self.end_of(last).min(position));
            ExtentRecord { start_byte: start, len_bytes: end - start }
        });
        Progress { copied_bytes: position, stale: stale.collect() }
    }

    /// The last result of [`Regions::progress`] was saved, or not.
    pub fn saved(&mut self, is_saved: bool) {
        self.must_flush = !is_saved;
        if is_saved {
            (self.saved, self.guarded) = (self.saving, self.saving);
            self.all.iter_mut().for_each(|region| region.is_listed = region.will_be_listed);
        }
    }
}

/// Joins ranges until there are few enough: those with the smallest gap first.
fn join_nearest(ranges: &mut Vec<(usize, usize)>, most: usize) {
    while ranges.len() > most.max(1) {
        let gap = |at: &usize| ranges[at + 1].0 - ranges[*at].1;
        let Some(nearest) = (0..ranges.len() - 1).min_by_key(gap) else { return };
        ranges[nearest].1 = ranges[nearest + 1].1;
        ranges.remove(nearest + 1);
    }
}
