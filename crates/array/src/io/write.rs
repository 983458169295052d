//! Writes to a stripe group, under its lock.
//!
//! 1. Whole allocation chunks of zeroes are freed instead of being written.
//! 2. The rest is cut into components: runs of columns within a stripe. A component in a chunk that
//!    was never written grows to the whole chunk, with zeroes around the data. So it needs no read,
//!    and the chunk's strips agree from the start.
//! 3. Each component is planned, read, computed and written on its own, all at the same time.
//! 4. New chunks are entered in the allocation map. That comes last, so that a crash leaves the
//!    chunk as it was.
//!
//! Before anything is overwritten, the log gets a record that puts the stripe right after a crash
//! ([`crate::log`]). Some of the data to write is computed after that (`Left`).

use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::MemberState;
use smallvec::smallvec;

use crate::array::Inner;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::io::compute::Syndromes;
use crate::io::overlay::{Content, Overlay, Patch};
use crate::io::plan::{Question, Strip, Way, choose};
use crate::io::types::{Bases, Change, Logged, ReadFailure, RowView, Runs, StripView, StripWrite};
use crate::state::message::{Op, Piece, Pieces, Request};
use crate::state::slot::DriveId;

/// How long freed chunks are collected before they are discarded on the drives.
const TRIM_DELAY: Duration = Duration::from_millis(50);

/// Bytes of chunks, on each member, that were written for the first time since the map was last
/// made durable. After a killed daemon their checksums are computed again, so this bounds how long
/// that takes.
const FRESH_BYTES_MAX: u64 = 1 << 30;

/// A run of columns of one stripe.
#[derive(Debug, Clone, Copy)]
struct Component {
    columns: Range,
    /// The chunk was never written. Columns without data become zero, on the drives too.
    fresh: bool,
}

/// Work deferred until the log record is durable.
enum Left {
    Nothing,
    /// Compute the parity, from the new content of all data strips.
    Syndromes(Vec<Runs>),
    /// Add the new content of this strip to the parity.
    Strip(Role, Bases),
}

impl Left {
    fn of_strip(role: Role, bases: Syndromes) -> Left {
        Left::Strip(role, bases.into_iter().map(BufMut::freeze).collect())
    }

    fn bases(&self) -> &[Buf] {
        match self {
            Left::Strip(_, bases) => bases,
            Left::Nothing | Left::Syndromes(_) => &[],
        }
    }
}

impl<E: Env> Inner<E> {
    /// Does a batch of writes as one.
    pub async fn write_unit(self: &Rc<Self>, unit: UnitIndex, batch: Vec<(Pieces, bool)>) -> Result<(), BlockError> {
        if !self.shared.is_announced() {
            self.on_leader(Request::MarkDirty).await?;
        }
        let geometry = &self.shared.geometry;
        let fua = batch.iter().any(|(_, fua)| *fua);
        let alone = match &batch[..] {
            [(pieces, _)] if pieces.len() == 1 => self.alone(unit, &pieces[0]),
            _ => None,
        };
        match alone {
            Some((view, role, x, data)) => {
                let write = StripWrite { role, x, data: smallvec![data.clone()] };
                match self.write_member(&view, unit, x, &write.data, fua).await {
                    Ok(true) => {}
                    Ok(false) => return Err(BlockError::Lost { lost: 1, survives: 0 }),
                    Err(error) => {
                        let columns = Range::new(x, x + data.len() as u64);
                        self.keep_incomplete(unit, columns, vec![write], Logged::Nothing);
                        return Err(error);
                    }
                }
            }
            // Boxed, because most writes of groups without parity do not need such a large future.
            None => Box::pin(self.write_planned(unit, batch, fua)).await?,
        }
        let much = self.shared.map.newly_set() * geometry.zone > FRESH_BYTES_MAX;
        if self.shared.checksums.is_some() && (much || self.env.buggify("much was written for the first time")) {
            self.persist_soon();
        }
        if fua && geometry.zones().any(|zone| self.shared.map.zone_is_dirty(geometry.zone_index(unit, zone.start))) {
            self.on_leader(Request::Persist).await?;
        }
        Ok(())
    }

    /// For a group without parity: a part of a write that is a single drive operation, regardless
    /// of the rest of the stripe group. It covers whole sectors of one strip, in chunks that were
    /// written before. Returns the strip, its role, the column and the bytes.
    #[inline]
    fn alone<'a>(&self, unit: UnitIndex, piece: &'a Piece) -> Option<(StripView<E::Drive>, Role, u64, &'a Buf)> {
        let geometry = &self.shared.geometry;
        let Piece { role, range, content: Content::Data(data) } = piece else { return None };
        let alone = geometry.syndromes == 0
            && geometry.inward(*range) == *range
            && (range.start / geometry.zone..range.end.div_ceil(geometry.zone))
                .all(|zone| self.shared.map.get(geometry.zone_index(unit, zone * geometry.zone)));
        let view = alone.then(|| self.look(unit, range.start, *role, &[])).filter(|view| view.strip == Strip::Good)?;
        Some((view, *role, range.start, data))
    }

    /// Does a write whose parts are single drive operations without waiting, if the drives can. For
    /// a write to memory, the queue of a stripe group and its task are most of the cost. Returns
    /// whether it is done. If not, the remaining pieces are for the queue. Only the owner of the
    /// stripe group may call this, so that no other thread writes there. No lock is needed: the
    /// chunk was written before, and tasks that free it, write it again or discard it check the
    /// map.
    #[inline]
    pub fn write_now(&self, unit: UnitIndex, op: &mut Op) -> bool {
        let Op::Write { pieces, fua } = op else { return false };
        let shared = &self.shared;
        // With FUA the bits of chunks have to be durable as well.
        if *fua || shared.geometry.syndromes > 0 || shared.checksums.is_some() || !shared.is_announced() {
            return false;
        }
        // Both drives of a member that is being replaced are written under the lock.
        if shared.replacement().is_some() {
            return false;
        }
        if self.env.buggify("a write is not done at once") {
            return false;
        }
        let is_done = |piece: &Piece| {
            let Some((view, _, x, data)) = self.alone(unit, piece) else { return false };
            let drive = view.drive.as_ref().expect("a strip that is not lost has a drive");
            drive.unwatched().write_now(shared.geometry.member_offset(unit, x), data) == Some(Ok(()))
        };
        // Finished parts are not repeated: others may have overwritten them, and may have read
        // that.
        let done = pieces.iter().take_while(|piece| is_done(piece)).count();
        pieces.drain(..done);
        pieces.is_empty()
    }

    /// Does a batch of writes of any kind as one.
    async fn write_planned(
        self: &Rc<Self>,
        unit: UnitIndex,
        batch: Vec<(Pieces, bool)>,
        fua: bool,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let mut overlay = Overlay::with_capacity(batch.iter().map(|(pieces, _)| pieces.len()).sum());
        for (pieces, _) in batch {
            for piece in pieces {
                overlay.add(piece.role, Patch { range: piece.range, content: piece.content });
            }
        }
        self.release_zones(unit, &mut overlay);
        if overlay.is_empty() {
            return Ok(());
        }
        let (components, fresh) = self.components(unit, &overlay);
        if fresh.iter().any(|zone| self.shared.map.clear_is_pending(geometry.zone_index(unit, zone.start))) {
            self.on_leader(Request::Persist).await?;
        }
        for zone in &fresh {
            self.void_records(unit, *zone).await?;
        }
        let writes = components.into_iter().map(|component| self.write_component(unit, &overlay, component, fua));
        let was_empty = self.allocated(unit, Range::new(0, geometry.unit)).is_empty();
        let filling = self.filling(unit);
        join_all(writes).await.into_iter().collect::<Result<(), BlockError>>()?;
        self.buggify_delay("strips are written, and the map does not say so").await;
        for zone in fresh {
            self.shared.map.set(geometry.zone_index(unit, zone.start));
        }
        // A first write goes to drives that are being filled, too. If the stripe group was empty,
        // they have all of it now.
        for drive in filling.into_iter().filter(|_| was_empty) {
            self.note_rebuilt(unit, drive);
        }
        Ok(())
    }

    /// Makes the map durable in the background.
    fn persist_soon(self: &Rc<Self>) {
        if self.persisting.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // If this fails, the map is as durable as before, and the next flush reports the error.
            let _ = inner.on_leader(Request::Persist).await;
            inner.persisting.set(false);
        });
    }

    /// The drives that are being filled in the set of the stripe group.
    fn filling(&self, unit: UnitIndex) -> Vec<DriveId> {
        let strips = self.shared.geometry.strips();
        let set = self.shared.geometry.set(unit) as usize;
        let members = (set * strips..(set + 1) * strips).map(|index| self.shared.slot(MemberIndex(index as u16)));
        members.filter(|slot| slot.state == MemberState::Rebuilding).map(|slot| slot.drive).collect()
    }

    /// Removes zeroes from the overlay that need no write: chunks that were never written, and
    /// chunks that zeroes cover entirely, which are freed.
    fn release_zones(self: &Rc<Self>, unit: UnitIndex, overlay: &mut Overlay) {
        let geometry = &self.shared.geometry;
        for zone in geometry.zones() {
            let index = geometry.zone_index(unit, zone.start);
            if !(0..geometry.data).all(|role| overlay.is_zero(role, zone, false)) {
                continue;
            }
            let allocated = self.shared.map.get(index);
            let is_covered = |role: Role| overlay.covered(role, zone).gaps(zone).is_empty();
            if allocated && !(0..geometry.data).all(is_covered) {
                continue;
            }
            for role in 0..geometry.data {
                overlay.remove(role, zone);
            }
            if allocated {
                self.shared.map.clear(index);
                self.trim_later(unit, zone);
            }
        }
    }

    /// The components of an overlay, and the chunks that are written for the first time.
    fn components(&self, unit: UnitIndex, overlay: &Overlay) -> (Vec<Component>, Vec<Range>) {
        let geometry = &self.shared.geometry;
        let touches = |columns: Range| (0..geometry.data).any(|role| overlay.touches(role, columns));
        let is_fresh = |zone: &Range| touches(*zone) && !self.shared.map.get(geometry.zone_index(unit, zone.start));
        let fresh: Vec<Range> = geometry.zones().filter(is_fresh).collect();
        let mut new = Ranges::new();
        for zone in &fresh {
            new.add(*zone);
        }
        let columns_max = self.log().map_or(geometry.unit, |log| log.columns_max());
        let mut components = Vec::new();
        for row in geometry.row_ranges() {
            components.extend(new.clip(row).iter().map(|columns| Component { columns, fresh: true }));
            let mut touched = Ranges::new();
            for role in 0..geometry.data {
                for range in overlay.touched(role, row, geometry).iter() {
                    touched.add(range);
                }
            }
            for old in new.gaps(row).iter() {
                for run in touched.clip(old).iter() {
                    let mut columns = Range::new(run.start, run.end.min(run.start + columns_max));
                    while !columns.is_empty() {
                        components.push(Component { columns, fresh: false });
                        columns = Range::new(columns.end, run.end.min(columns.end + columns_max));
                    }
                }
            }
        }
        (components, fresh)
    }

    async fn write_component(
        self: &Rc<Self>,
        unit: UnitIndex,
        overlay: &Overlay,
        component: Component,
        fua: bool,
    ) -> Result<(), BlockError> {
        let survives = self.shared.geometry.syndromes;
        let columns = component.columns;
        let mut unreadable: Vec<Role> = Vec::new();
        loop {
            let view = self.view(unit, columns.start, &unreadable);
            let is_written = |role: Role| view.0[role].strip != Strip::Lost;
            let mut left = Left::Nothing;
            let mut writes = if component.fresh {
                if view.lost() > survives {
                    return Err(BlockError::Lost { lost: view.lost(), survives });
                }
                self.compute_fresh(overlay, columns, &view)
            } else {
                let geometry = &self.shared.geometry;
                let touched: Vec<_> = (0..geometry.data).map(|role| overlay.touched(role, columns, geometry)).collect();
                let full: Vec<_> = (0..geometry.data).map(|role| overlay.full(role, columns, geometry)).collect();
                let strips = view.strips();
                let question =
                    Question { data: geometry.data, strips: &strips, columns, touched: &touched, full: &full };
                let plan = match choose(&question) {
                    Ok(plan) => plan,
                    Err(lost) => {
                        // Other strips may be unreadable in other places.
                        let Some(halves) = columns.halves().filter(|_| !unreadable.is_empty()) else {
                            return Err(BlockError::Lost { lost, survives });
                        };
                        for columns in halves {
                            let half = Component { columns, ..component };
                            Box::pin(self.write_component(unit, overlay, half, fua)).await?;
                        }
                        return Ok(());
                    }
                };
                let reads = match self.read_strips(unit, &view, &plan.reads).await {
                    Ok(reads) => reads,
                    Err(mut failed) => {
                        unreadable.append(&mut failed);
                        continue;
                    }
                };
                match plan.way {
                    Way::ReadModifyWrite => {
                        let alone = self.changes_alone(&view, columns, &touched);
                        let (mut writes, syndromes) =
                            self.compute_modified(overlay, columns, &view, reads, alone.is_some());
                        match alone {
                            Some(role) => left = Left::of_strip(role, syndromes),
                            None => self.push_syndromes(&mut writes, syndromes, columns, is_written),
                        }
                        writes
                    }
                    Way::ReconstructWrite => {
                        let is_silent = reads.is_empty() && self.record_leaves_out_syndromes(&view, fua);
                        let (mut writes, mut content) = self.compute_whole(overlay, columns, &view, &touched, reads);
                        if is_silent {
                            left = Left::Syndromes(content);
                        } else if let Some(role) = self.changes_alone(&view, columns, &touched) {
                            content[role] = smallvec![(columns.start, Buf::zeroes(columns.len() as usize))];
                            left = Left::of_strip(role, self.encode(&content, columns));
                        } else {
                            self.push_whole(&mut writes, &content, columns, is_written);
                        }
                        writes
                    }
                    Way::NoSyndromes => self.compute_plain(overlay, columns, &touched, reads),
                    Way::Restore => self.compute_restored(overlay, columns, &view, &touched, reads),
                }
            };
            let logged = match component.fresh {
                true => Logged::Nothing,
                false => {
                    let change = Change { overlay, columns, writes: &writes, bases: left.bases(), fua };
                    self.log_component(unit, &view, &change).await?
                }
            };
            if matches!(logged, Logged::Again) {
                continue;
            }
            match left {
                Left::Nothing => {}
                // Now, not before the record: the strips are then still in the processor's cache
                // when they are written.
                Left::Syndromes(content) => self.push_whole(&mut writes, &content, columns, is_written),
                Left::Strip(role, bases) => self.push_completed(&mut writes, role, bases, columns, is_written),
            }
            self.buggify_delay("a record is durable, and the strips wait").await;
            let failed = match self.write_strips(unit, &view, &writes, fua).await {
                Ok(failed) => failed,
                Err(error) => {
                    // The chunk of a first write stays unallocated, so its content does not matter.
                    if !component.fresh {
                        self.keep_incomplete(unit, columns, writes, logged);
                    }
                    return Err(error);
                }
            };
            if !unreadable.is_empty() {
                self.tell_healed_by(unit, &view, &writes, &failed);
            }
            if let Logged::Durable(open, overwritten) = logged
                && self.has_lost_any(&overwritten)
            {
                // The record names a strip that is lost now. A recovery has to know that the other
                // strips are new.
                drop(open);
                Box::pin(self.flush_and_seal()).await?;
            }
            let is_lost = |role: &Role| view.0[*role].strip == Strip::Lost || failed.contains(role);
            let lost = (0..view.0.len()).filter(is_lost).count();
            return if lost > survives { Err(BlockError::Lost { lost, survives }) } else { Ok(()) };
        }
    }

    /// Reads parts of strips together. The error names strips that cannot be read. It omits those
    /// whose members are faulty by now, because the next view shows them as lost.
    pub async fn read_strips(
        self: &Rc<Self>,
        unit: UnitIndex,
        view: &RowView<E::Drive>,
        reads: &[(Role, Range)],
    ) -> Result<Vec<(Role, Range, BufMut)>, Vec<Role>> {
        let read = |&(role, range): &(Role, Range)| async move {
            (role, range, self.read_member(&view.0[role], unit, range.start, range.len() as usize).await)
        };
        let mut good = Vec::with_capacity(reads.len());
        let mut unreadable = Vec::new();
        let mut failed = false;
        for (role, range, result) in join_all(reads.iter().map(read)).await {
            match result {
                Ok(buf) => good.push((role, range, buf)),
                Err(ReadFailure::Faulty) => failed = true,
                Err(ReadFailure::Unreadable) => {
                    failed = true;
                    if !unreadable.contains(&role) {
                        unreadable.push(role);
                    }
                }
            }
        }
        if failed { Err(unreadable) } else { Ok(good) }
    }

    /// Writes parts of strips together. Returns the strips whose members failed.
    pub async fn write_strips(
        self: &Rc<Self>,
        unit: UnitIndex,
        view: &RowView<E::Drive>,
        writes: &[StripWrite],
        fua: bool,
    ) -> Result<Vec<Role>, BlockError> {
        let write = writes.iter().map(|write| self.write_member(&view.0[write.role], unit, write.x, &write.data, fua));
        let mut failed: Vec<Role> = Vec::new();
        for (write, result) in writes.iter().zip(join_all(write).await) {
            if !result? && !failed.contains(&write.role) {
                failed.push(write.role);
            }
        }
        Ok(failed)
    }

    /// Discards a freed chunk on the drives once the change of the map is durable.
    fn trim_later(self: &Rc<Self>, unit: UnitIndex, zone: Range) {
        self.trims.borrow_mut().push((unit, zone));
        if self.trimming.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            loop {
                inner.env.sleep(TRIM_DELAY).await;
                let trims = std::mem::take(&mut *inner.trims.borrow_mut());
                if trims.is_empty() || inner.shared.is_stopped() {
                    inner.trimming.set(false);
                    return;
                }
                if inner.on_leader(Request::Persist).await.is_err() {
                    continue; // Not durable: the drives keep the old bytes, which costs nothing but space.
                }
                for (unit, zone) in trims {
                    // The reply says only that it was tried.
                    let _ = inner.on_owner(unit, Op::Trim { zone }).await;
                }
            }
        });
    }

    /// Discards a chunk on the drives, unless it was written again or its clearing is not durable.
    pub async fn trim_zone(self: &Rc<Self>, unit: UnitIndex, zone: Range) {
        let geometry = &self.shared.geometry;
        let index = geometry.zone_index(unit, zone.start);
        if self.shared.map.get(index) {
            return;
        }
        if self.shared.map.clear_is_pending(index) {
            // Another chunk near it was cleared meanwhile. The next round may find it durable.
            self.trim_later(unit, zone);
            return;
        }
        let view = self.view(unit, zone.start, &[]);
        let offset = geometry.member_offset(unit, zone.start);
        let drives = view.0.iter().filter_map(|strip| strip.drive.clone()).filter(|drive| drive.info().discards);
        // A drive that cannot discard keeps its space. A drive that is failing shows it at the next
        // write.
        join_all(drives.map(|drive| async move { drive.discard(offset, zone.len()).await })).await;
    }
}
