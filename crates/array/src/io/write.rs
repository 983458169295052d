//! Writes to a stripe group, under its lock.
//!
//! Guarantees:
//! 1. Writes of a batch take effect in their order, and the whole batch under one lock.
//! 2. A write that returns without error is on the drives, or in their parity. With FUA it is
//!    durable.
//! 3. A write that fails leaves each of its blocks old or new. No other data changes.
//!
//! Steps:
//! 1. Whole allocation chunks of zeroes are freed instead of being written.
//! 2. The rest is cut into components: runs of member offsets within a stripe. A component in a
//!    chunk that was never written grows to the whole chunk, with zeroes around the data. So it
//!    needs no read, and the chunk's strips agree from the start.
//! 3. Each component is planned, read, computed and written on its own, all at the same time.
//! 4. New chunks are entered in the allocation map. That comes last, so that a crash leaves the
//!    chunk as it was.
//!
//! Before anything is overwritten, the log gets a record that makes the stripe right after a crash
//! ([`crate::log`]).
//!
//! Example: a 4+2 group with strips of 64 KiB and allocation chunks of 32 KiB. Of the stripe group
//! that lies at 0, chunk 0 was written before, chunk 1 was not. A client writes 40 KiB from 16 KiB
//! on, all of it in D0.
//!
//! ```text
//! patches      D0, member offsets 16 KiB .. 56 KiB
//! components   16 .. 32 KiB   in chunk 0: plan, log, overwrite           D0, P, Q: 16 KiB
//!              32 .. 64 KiB   in chunk 1, new: no record, no read       D0 .. D3, P, Q: 32 KiB
//! map          the bit of chunk 1 is set when its strips are written
//! ```
//!
//! Tests: `sim/tests/engine/counts.rs` and `paper.rs` count the operations; `records.rs` there has
//! first writes that a crash cuts off; random programs compare every byte with a model.

use std::rc::Rc;

use drive::{BlockError, Buf, BufMut, Drive, Env, join_all};
use format::MemberState;
use smallvec::smallvec;

use crate::array::ArrayShard;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::io::component::Component;
use crate::io::overlay::{Content, Overlay, Patch};
use crate::io::plan::Strip;
use crate::io::types::{Logged, ReadFailure, RowView, StripView, StripWrite};
use crate::state::message::{Op, Piece, Pieces, Request};
use crate::state::slot::DriveId;

/// Bytes of chunks, on each member, that were written for the first time since the map was last
/// made durable. After a killed daemon their checksums are computed again, so this bounds how long
/// that takes.
const FRESH_BYTES_MAX: u64 = 1 << 30;

impl<E: Env> ArrayShard<E> {
    /// Does a batch of writes as one.
    pub async fn write_stripe_group(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        batch: Vec<(Pieces, bool)>,
    ) -> Result<(), BlockError> {
        if !self.shared.is_marked_dirty() {
            self.on_leader(Request::MarkDirty).await?;
        }
        let geometry = &self.shared.geometry;
        let fua = batch.iter().any(|(_, fua)| *fua);
        let alone = match &batch[..] {
            [(pieces, _)] if pieces.len() == 1 => self.alone(stripe_group, &pieces[0]),
            _ => None,
        };
        match alone {
            Some((view, role, offset, data)) => {
                let write = StripWrite { role, offset, data: smallvec![data.clone()] };
                match self.write_member(&view, stripe_group, offset, &write.data, fua).await {
                    Ok(true) => {}
                    Ok(false) => return Err(BlockError::Lost { lost: 1, survives: 0 }),
                    Err(error) => {
                        let offsets = Range::new(offset, offset + data.len() as u64);
                        self.keep_incomplete(stripe_group, offsets, vec![write], Logged::Nothing);
                        return Err(error);
                    }
                }
            }
            // Boxed, because most writes of groups without parity do not need such a large future.
            None => Box::pin(self.write_planned(stripe_group, batch, fua)).await?,
        }
        let much = self.shared.map.newly_set() * geometry.chunk_bytes > FRESH_BYTES_MAX;
        if self.shared.checksums.is_some() && (much || self.env.buggify("much was written for the first time")) {
            self.persist_soon();
        }
        if fua
            && geometry
                .chunks()
                .any(|chunk| self.shared.map.chunk_is_dirty(geometry.chunk_index(stripe_group, chunk.start)))
        {
            self.on_leader(Request::Persist).await?;
        }
        Ok(())
    }

    /// For a group without parity: a part of a write that is a single drive operation, regardless
    /// of the rest of the stripe group. It covers whole sectors of one strip, in chunks that were
    /// written before. Returns the strip, its role, the member offset and the bytes.
    #[inline]
    fn alone<'a>(
        &self,
        stripe_group: StripeGroup,
        piece: &'a Piece,
    ) -> Option<(StripView<E::Drive>, Role, u64, &'a Buf)> {
        let geometry = &self.shared.geometry;
        let Piece { role, range, content: Content::Data(data) } = piece else { return None };
        let alone = geometry.parity_count == 0
            && geometry.inward(*range) == *range
            && (range.start / geometry.chunk_bytes..range.end.div_ceil(geometry.chunk_bytes))
                .all(|chunk| self.shared.map.get(geometry.chunk_index(stripe_group, chunk * geometry.chunk_bytes)));
        let view =
            alone.then(|| self.look(stripe_group, range.start, *role, &[])).filter(|view| view.strip == Strip::Good)?;
        Some((view, *role, range.start, data))
    }

    /// Does a write whose parts are single drive operations without waiting, if the drives can. For
    /// a write to memory, the queue of a stripe group and its task are most of the cost. Returns
    /// whether it is done. If not, the remaining pieces are for the queue. Only the owner of the
    /// stripe group may call this, so that no other thread writes there. No lock is needed: the
    /// chunk was written before, and tasks that free it, write it again or discard it check the
    /// map.
    #[inline]
    pub fn write_now(&self, stripe_group: StripeGroup, op: &mut Op) -> bool {
        let Op::Write { pieces, fua } = op else { return false };
        let shared = &self.shared;
        // With FUA the bits of chunks have to be durable as well.
        if *fua || shared.geometry.parity_count > 0 || shared.checksums.is_some() || !shared.is_marked_dirty() {
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
            let Some((view, _, offset, data)) = self.alone(stripe_group, piece) else { return false };
            let drive = view.drive.as_ref().expect("a strip that is not lost has a drive");
            drive.untracked().write_now(shared.geometry.drive_offset(stripe_group, offset), data) == Some(Ok(()))
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
        stripe_group: StripeGroup,
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
        self.release_chunks(stripe_group, &mut overlay);
        if overlay.is_empty() {
            return Ok(());
        }
        let (components, fresh) = self.components(stripe_group, &overlay);
        if fresh.iter().any(|chunk| self.shared.map.clear_is_pending(geometry.chunk_index(stripe_group, chunk.start))) {
            self.on_leader(Request::Persist).await?;
        }
        for chunk in &fresh {
            self.void_records(stripe_group, *chunk).await?;
        }
        let writes =
            components.into_iter().map(|component| self.write_component(stripe_group, &overlay, component, fua));
        let was_empty = self.allocated(stripe_group, Range::new(0, geometry.stripe_group_bytes)).is_empty();
        let filling = self.filling(stripe_group);
        join_all(writes).await.into_iter().collect::<Result<(), BlockError>>()?;
        self.buggify_delay("strips are written, and the map does not say so").await;
        for chunk in fresh {
            self.shared.map.set(geometry.chunk_index(stripe_group, chunk.start));
        }
        // A first write goes to drives that are being filled, too. If the stripe group was empty,
        // they have all of it now.
        for drive in filling.into_iter().filter(|_| was_empty) {
            self.note_rebuilt(stripe_group, drive);
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
    fn filling(&self, stripe_group: StripeGroup) -> Vec<DriveId> {
        let strips = self.shared.geometry.strips();
        let set = self.shared.geometry.set(stripe_group) as usize;
        let members = (set * strips..(set + 1) * strips).map(|index| self.shared.slot(MemberIndex(index as u16)));
        members.filter(|slot| slot.state == MemberState::Rebuilding).map(|slot| slot.drive).collect()
    }

    /// Removes zeroes from the overlay that need no write: chunks that were never written, and
    /// chunks that zeroes cover entirely, which are freed.
    fn release_chunks(self: &Rc<Self>, stripe_group: StripeGroup, overlay: &mut Overlay) {
        let geometry = &self.shared.geometry;
        for chunk in geometry.chunks() {
            let index = geometry.chunk_index(stripe_group, chunk.start);
            if !(0..geometry.data).all(|role| overlay.is_zero(role, chunk, false)) {
                continue;
            }
            let allocated = self.shared.map.get(index);
            let is_covered = |role: Role| overlay.covered(role, chunk).gaps(chunk).is_empty();
            if allocated && !(0..geometry.data).all(is_covered) {
                continue;
            }
            for role in 0..geometry.data {
                overlay.remove(role, chunk);
            }
            if allocated {
                self.shared.map.clear(index);
                self.trim_later([(stripe_group, chunk)]);
            }
        }
    }

    /// The components of an overlay, and the chunks that are written for the first time.
    fn components(&self, stripe_group: StripeGroup, overlay: &Overlay) -> (Vec<Component>, Vec<Range>) {
        let geometry = &self.shared.geometry;
        let touches = |offsets: Range| (0..geometry.data).any(|role| overlay.touches(role, offsets));
        let is_fresh =
            |chunk: &Range| touches(*chunk) && !self.shared.map.get(geometry.chunk_index(stripe_group, chunk.start));
        let fresh: Vec<Range> = geometry.chunks().filter(is_fresh).collect();
        let mut new = Ranges::new();
        for chunk in &fresh {
            new.add(*chunk);
        }
        let component_bytes_max = self.log().map_or(geometry.stripe_group_bytes, |log| log.component_bytes_max());
        let mut components = Vec::new();
        for row in geometry.row_ranges() {
            components.extend(new.clip(row).iter().map(|offsets| Component { offsets, fresh: true }));
            let mut touched = Ranges::new();
            for role in 0..geometry.data {
                for range in overlay.touched(role, row, geometry).iter() {
                    touched.add(range);
                }
            }
            for old in new.gaps(row).iter() {
                for run in touched.clip(old).iter() {
                    let mut offsets = Range::new(run.start, run.end.min(run.start + component_bytes_max));
                    while !offsets.is_empty() {
                        components.push(Component { offsets, fresh: false });
                        offsets = Range::new(offsets.end, run.end.min(offsets.end + component_bytes_max));
                    }
                }
            }
        }
        (components, fresh)
    }

    /// Reads parts of strips together. The error names strips that cannot be read. It omits those
    /// whose members are faulty by now, because the next view shows them as lost.
    pub async fn read_strips(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        view: &RowView<E::Drive>,
        reads: &[(Role, Range)],
    ) -> Result<Vec<(Role, Range, BufMut)>, Vec<Role>> {
        let read = |&(role, range): &(Role, Range)| async move {
            (role, range, self.read_member(&view.0[role], stripe_group, range.start, range.len() as usize).await)
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
        stripe_group: StripeGroup,
        view: &RowView<E::Drive>,
        writes: &[StripWrite],
        fua: bool,
    ) -> Result<Vec<Role>, BlockError> {
        let write = writes
            .iter()
            .map(|write| self.write_member(&view.0[write.role], stripe_group, write.offset, &write.data, fua));
        let mut failed: Vec<Role> = Vec::new();
        for (write, result) in writes.iter().zip(join_all(write).await) {
            if !result? && !failed.contains(&write.role) {
                failed.push(write.role);
            }
        }
        Ok(failed)
    }
}
