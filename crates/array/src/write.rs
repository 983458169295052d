//! Writing a unit, under its lock.
//!
//! 1. Whole zones of zeroes are given back instead of being written.
//! 2. What is left is cut into components: runs of columns within a row. A component in a zone that
//!    was never written grows to the zone, with zeroes around the data: it needs no read, and the
//!    zone's strips agree from the start.
//! 3. Each component is planned, read for, computed and written on its own, all at the same time.
//! 4. New zones are entered in the allocation map. That comes last, so that a crash leaves the zone
//!    as it was.
//!
//! Before anything is overwritten, what puts the stripe right after a crash goes to the log
//! ([`crate::log`]); some of what is written is computed after that (`Left`).

use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, BufMut, Drive, Env, Segments, join_all};
use format::MemberState;
use smallvec::{SmallVec, smallvec};

use crate::array::Inner;
use crate::compute::Syndromes;
use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::member::ReadFailure;
use crate::message::{Op, Piece, Pieces, Request};
use crate::overlay::{Content, Overlay, Patch};
use crate::plan::{Question, Strip, Way, choose};
use crate::ranges::{Range, Ranges};
use crate::record::{Bases, Change, Logged};
use crate::shared::DriveId;
use crate::unit::{RowView, StripView};

/// How long zones that were given back are collected before the drives hear of them.
const TRIM_DELAY: Duration = Duration::from_millis(50);

/// Bytes of zones, on each member, that were written for the first time since the map was last made
/// durable. After a kill their checksums are computed anew, so this bounds how long that takes.
const FRESH_BYTES_MAX: u64 = 1 << 30;

/// A run of columns of one row.
#[derive(Debug, Clone, Copy)]
struct Component {
    columns: Range,
    /// The zone was never written: what is not covered by data is zero, on the drives too
    /// afterwards.
    fresh: bool,
}

/// Bytes for a strip, from a column on.
#[derive(Clone)]
pub(crate) struct StripWrite {
    pub role: Role,
    pub x: u64,
    pub data: Segments,
}

/// Bytes of a strip from a column on.
pub(crate) type Run = (u64, Buf);

/// The runs of a strip, in order. Nearly always one.
pub(crate) type Runs = SmallVec<[Run; 1]>;

/// What of a component is computed when its record is durable.
enum Left {
    Nothing,
    /// The syndromes, from what all data strips will hold.
    Syndromes(Vec<Runs>),
    /// What this strip will hold is missing in the syndromes.
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
                        self.keep_unended(unit, columns, vec![write], Logged::Nothing);
                        return Err(error);
                    }
                }
            }
            // Boxed, since most writes of the groups without syndromes do without so large a
            // future.
            None => Box::pin(self.write_planned(unit, batch, fua)).await?,
        }
        let much = self.shared.map.newly_set() * geometry.zone > FRESH_BYTES_MAX;
        if self.shared.checksums.is_some() && (much || self.env.trouble("much was written for the first time")) {
            self.persist_soon();
        }
        if fua && geometry.zones().any(|zone| self.shared.map.zone_is_dirty(geometry.zone_index(unit, zone.start))) {
            self.on_leader(Request::Persist).await?;
        }
        Ok(())
    }

    /// A part of a write of a group without syndromes that is one drive operation, whatever else is
    /// in the unit: whole sectors of one strip, in zones that were written before. Gives the strip,
    /// its role, the column and the bytes.
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

    /// Does a write of which each part is one drive operation without waiting for anything, if the
    /// drives can: what the queue of a unit and its task cost is most of a write to memory. Says
    /// whether it is done; if not, what is left of it is for the queue. Only for the unit's owner,
    /// so that no other thread writes there. No lock is needed: the zone was written before, and
    /// who gives it back, writes it anew or has the drives forget it meanwhile goes by the map.
    #[inline]
    pub fn write_now(&self, unit: UnitIndex, op: &mut Op) -> bool {
        let Op::Write { pieces, fua } = op else { return false };
        let shared = &self.shared;
        // With FUA the bits of zones have to be durable as well.
        if *fua || shared.geometry.syndromes > 0 || shared.checksums.is_some() || !shared.is_announced() {
            return false;
        }
        // Both drives of a member that is being replaced are written under the unit's lock.
        if shared.replacement().is_some() {
            return false;
        }
        if self.env.trouble("a write is not done at once") {
            return false;
        }
        let is_done = |piece: &Piece| {
            let Some((view, _, x, data)) = self.alone(unit, piece) else { return false };
            let drive = view.drive.as_ref().expect("a strip that is not lost has a drive");
            drive.unwatched().write_now(shared.geometry.member_offset(unit, x), data) == Some(Ok(()))
        };
        // Not done again: others may have overwritten it, and seen that.
        let done = pieces.iter().take_while(|piece| is_done(piece)).count();
        pieces.drain(..done);
        pieces.is_empty()
    }

    /// Does a batch of writes as one, of any kind.
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
        self.dawdle("strips are written, and the map does not say so").await;
        for zone in fresh {
            self.shared.map.set(geometry.zone_index(unit, zone.start));
        }
        // A first write goes to drives that are being filled, too: with nothing else in the unit
        // they have all of it.
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
            // Without success it is as durable as it was, and the next flush says why.
            let _ = inner.on_leader(Request::Persist).await;
            inner.persisting.set(false);
        });
    }

    /// The drives that are being filled in the unit's set.
    fn filling(&self, unit: UnitIndex) -> Vec<DriveId> {
        let strips = self.shared.geometry.strips();
        let set = self.shared.geometry.set(unit) as usize;
        let members = (set * strips..(set + 1) * strips).map(|index| self.shared.slot(MemberIndex(index as u16)));
        members.filter(|slot| slot.state == MemberState::Rebuilding).map(|slot| slot.drive).collect()
    }

    /// Takes zeroes out of the overlay where they need no writing: zones that were never written,
    /// and zones that they cover whole, which are given back.
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

    /// The components of an overlay, and the zones that are written for the first time.
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
                // Now, not before the record: the strips are still in the processor's cache when
                // they are written.
                Left::Syndromes(content) => self.push_whole(&mut writes, &content, columns, is_written),
                Left::Strip(role, bases) => self.push_completed(&mut writes, role, bases, columns, is_written),
            }
            self.dawdle("a record is durable, and the strips wait").await;
            let failed = match self.write_strips(unit, &view, &writes, fua).await {
                Ok(failed) => failed,
                Err(error) => {
                    // The zone of a first write stays unallocated, whatever is there.
                    if !component.fresh {
                        self.keep_unended(unit, columns, writes, logged);
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
                // The record names a strip that is lost now: a recovery has to know that the others
                // are new.
                drop(open);
                Box::pin(self.flush_and_seal()).await?;
            }
            let is_lost = |role: &Role| view.0[*role].strip == Strip::Lost || failed.contains(role);
            let lost = (0..view.0.len()).filter(is_lost).count();
            return if lost > survives { Err(BlockError::Lost { lost, survives }) } else { Ok(()) };
        }
    }

    /// Reads parts of strips together. Whoever cannot be read is named; those whose members are
    /// faulty by now are not, since the next view shows them as lost.
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

    /// Writes parts of strips together. Names the strips whose members failed.
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

    /// Zones that were given back are trimmed once that is durable.
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

    /// Tells the drives that a zone is no longer needed, unless it was written again or its
    /// clearing is not durable.
    pub async fn trim_zone(self: &Rc<Self>, unit: UnitIndex, zone: Range) {
        let geometry = &self.shared.geometry;
        let index = geometry.zone_index(unit, zone.start);
        if self.shared.map.get(index) {
            return;
        }
        if self.shared.map.clear_is_pending(index) {
            // Another clearing near it came meanwhile: the next round may find it durable.
            self.trim_later(unit, zone);
            return;
        }
        let view = self.view(unit, zone.start, &[]);
        let offset = geometry.member_offset(unit, zone.start);
        let drives = view.0.iter().filter_map(|strip| strip.drive.clone()).filter(|drive| drive.info().discards);
        // A drive that cannot trim keeps its space; a drive that is failing shows it at the next
        // write.
        join_all(drives.map(|drive| async move { drive.discard(offset, zone.len()).await })).await;
    }
}
