//! Reading. A healthy read goes from where it arrived straight to the member; only what cannot be
//! had that way goes to the unit's owner, who computes it from the other strips under the lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use drive::{BlockError, BufMut, Drive, DriveError, Env, Segments, View, join_all};
use smallvec::SmallVec;

use crate::array::{Array, Inner};
use crate::cause::Failure;
use crate::geometry::{Place, Role, UnitIndex};
use crate::hedge::{Direct, Spot};
use crate::member::ReadFailure;
use crate::message::{Op, Outcome};
use crate::plan::Strip;
use crate::ranges::{Range, Ranges};
use crate::shared::DriveId;
use format::MemberState;

/// How a run of sectors within one strip can be read.
enum Source {
    /// Never written.
    Hole,
    /// From this drive, which holds the strip of this role.
    Drive(DriveId, Role),
    /// Likewise, but the drive is slow: rather from the others.
    Around(DriveId, Role),
    /// Only by the unit's owner.
    Owner,
}

impl<E: Env> Array<E> {
    /// Fills the whole of `buf` from `offset` and gives it back.
    ///
    /// # Errors
    /// [`BlockError`].
    pub async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let len = buf.len() as u64;
        self.check(offset, len)?;
        let inner = &self.0;
        inner.shared.lost.check_read(offset, len)?;
        let geometry = &inner.shared.geometry;
        inner.counters().reads.count();
        let _user = inner.enter_user();
        let place = geometry.place(offset);
        if len <= place.left {
            if (place.x | len) & (geometry.sector - 1) == 0 {
                let mut buf = buf;
                return match inner.read_now(&place, &mut buf) {
                    Some(Ok(())) => Ok(buf),
                    Some(Err(role)) => Box::pin(inner.ask_owner(place.unit, role, place.x, buf)).await,
                    None => inner.read_sectors(place.unit, place.role, place.x, buf).await,
                };
            }
            return Box::pin(inner.read_piece(place, buf)).await;
        }
        let mut pieces = Vec::with_capacity((len / geometry.strip) as usize + 2);
        let mut rest = buf;
        let mut at = offset;
        while !rest.is_empty() {
            let place = geometry.place(at);
            let step = place.left.min(rest.len() as u64);
            let next = rest.split_off(step as usize);
            pieces.push((place, rest));
            rest = next;
            at += step;
        }
        let pieces = join_all(pieces.into_iter().map(|(place, buf)| inner.read_piece(place, buf))).await;
        Ok(inner.put_together(pieces.into_iter().collect::<Result<_, _>>()?, len as usize))
    }
}

impl<E: Env> Array<E> {
    /// Fills the whole of `buf` from `offset` at once, if it is whole sectors and the drives have
    /// them without waiting. False says that [`Array::read`] has to do it, or to say what is wrong;
    /// then `buf` holds anything.
    #[inline]
    pub fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.now(offset, buf.len() as u64, |inner, parts| {
            let mut rest = buf;
            for (place, len) in parts {
                let part = rest.split_off_mut(..*len)?;
                inner.read_now(place, part)?.ok()?;
            }
            Some(())
        })
        .is_some()
    }

    /// Has `look` see the bytes from `offset` on where they are, strip after strip, if they are
    /// whole sectors, the drives are memory, and the group keeps no checksums: those would have to
    /// be compared before, with what others may overwrite meanwhile. `None` says that it was not
    /// called.
    #[inline]
    pub fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        self.now(offset, len as u64, |inner, parts| match parts {
            [part] => inner.view_part(*part, |view| look(&[view])),
            _ => {
                let mut look = Some(look);
                let mut look = |views: &[View<'_>]| look.take().expect("there is one last part")(views);
                inner.view_parts(parts, Vec::with_capacity(parts.len()), &mut look)
            }
        })
    }

    /// Has `read` read at once, if it can, what lies in these parts of strips, each of so many
    /// bytes.
    #[inline]
    fn now<T>(
        &self,
        offset: u64,
        len: u64,
        read: impl FnOnce(&Rc<Inner<E>>, &[(Place, usize)]) -> Option<T>,
    ) -> Option<T> {
        let inner = &self.0;
        let geometry = &inner.shared.geometry;
        if self.check(offset, len).is_err() || inner.shared.lost.check_read(offset, len).is_err() {
            return None;
        }
        let (mut parts, end) = (SmallVec::<[(Place, usize); 2]>::new(), offset + len);
        let mut at = offset;
        while at < end {
            let place = geometry.place(at);
            let len = place.left.min(end - at);
            if (place.x | len) & (geometry.sector - 1) != 0 {
                return None;
            }
            parts.push((place, len as usize));
            at += len;
        }
        let user = inner.enter_user();
        let done = read(inner, &parts);
        if done.is_some() {
            inner.counters().reads.count();
        } else {
            user.was_none();
        }
        done
    }
}

impl<E: Env> Inner<E> {
    /// One buffer from pieces in order: without copying if they are the parts of one still. A piece
    /// whose first read failed came back in memory of its own.
    fn put_together(&self, pieces: Vec<BufMut>, len: usize) -> BufMut {
        let mut runs: Vec<BufMut> = Vec::with_capacity(1);
        for piece in pieces {
            match runs.last_mut() {
                None => runs.push(piece),
                Some(last) => {
                    if let Err(piece) = last.unsplit(piece) {
                        runs.push(piece);
                    }
                }
            }
        }
        if runs.len() == 1 {
            return runs.swap_remove(0);
        }
        let mut whole = self.env.alloc(len);
        let mut at = 0;
        for run in runs {
            whole[at..at + run.len()].copy_from_slice(&run);
            at += run.len();
        }
        whole
    }

    /// Reads within one strip.
    async fn read_piece(self: &Rc<Self>, place: Place, buf: BufMut) -> Result<BufMut, BlockError> {
        let geometry = &self.shared.geometry;
        let range = Range::new(place.x, place.x + buf.len() as u64);
        let sectors = geometry.outward(range);
        if sectors == range {
            return self.read_sectors(place.unit, place.role, place.x, buf).await;
        }
        let mut buf = buf;
        let around = self.env.alloc(sectors.len() as usize);
        let around = self.read_sectors(place.unit, place.role, sectors.start, around).await?;
        buf.copy_from_slice(&around[range.relative(sectors.start)]);
        Ok(buf)
    }

    /// Reads whole sectors of one strip, if their drive can without waiting: what a future costs to
    /// make and to move is a good part of what a read of memory costs. Nothing if it cannot. The
    /// error is the role of the strip whose drive could not read, or gave what is damaged or being
    /// overwritten.
    #[inline]
    fn read_now(self: &Rc<Self>, place: &Place, buf: &mut [u8]) -> Option<Result<(), Role>> {
        let shared = &self.shared;
        let cleared = shared.map.clear_count();
        let range = Range::new(place.x, place.x + buf.len() as u64);
        let Source::Drive(id, role) = self.source(place.unit, place.role, range) else { return None };
        let offset = shared.geometry.member_offset(place.unit, place.x);
        if !self.has_sums(id, offset) || self.env.trouble("a read is not done at once") {
            return None;
        }
        let drives = self.drives.borrow();
        let drive = drives.get(usize::from(id.0))?.as_ref()?;
        if drive.unwatched().read_now(offset, buf)?.is_err() {
            return Some(Err(role));
        }
        // As in `read_sectors`: a zone that was given back meanwhile is looked at again.
        let genuine = self.is_genuine_now(id, offset, buf)?;
        (shared.map.clear_count() == cleared).then_some(if genuine { Ok(()) } else { Err(role) })
    }

    /// Has `look` see whole sectors of a strip where they are. What is given back, or written
    /// again, while somebody looks, may be seen as it was or as it is then, as by a read that is as
    /// long under way.
    #[inline]
    fn view_part<T>(self: &Rc<Self>, (place, len): (Place, usize), look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let shared = &self.shared;
        if shared.checksums.is_some() || self.env.trouble("a read is not done at once") {
            return None;
        }
        let range = Range::new(place.x, place.x + len as u64);
        let Source::Drive(id, _) = self.source(place.unit, place.role, range) else { return None };
        let drives = self.drives.borrow();
        let drive = drives.get(usize::from(id.0))?.as_ref()?.unwatched();
        drive.view_now(shared.geometry.member_offset(place.unit, place.x), len, look)
    }

    /// The same of several strips, behind what was `seen`.
    fn view_parts<T>(
        self: &Rc<Self>,
        parts: &[(Place, usize)],
        seen: Vec<View<'_>>,
        look: &mut dyn FnMut(&[View<'_>]) -> T,
    ) -> Option<T> {
        let Some((part, rest)) = parts.split_first() else { return Some(look(&seen)) };
        self.view_part(*part, |view| {
            let mut seen: Vec<View<'_>> = seen;
            seen.push(view);
            self.view_parts(rest, seen, look)
        })?
    }

    async fn read_sectors(
        self: &Rc<Self>,
        unit: UnitIndex,
        mut role: Role,
        x: u64,
        mut buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        let shared = &self.shared;
        let cleared = shared.map.clear_count();
        match self.source(unit, role, Range::new(x, x + buf.len() as u64)) {
            Source::Hole => {
                buf.fill(0);
                return Ok(buf);
            }
            Source::Drive(..) if self.env.trouble("a healthy read asks the owner") => {}
            Source::Drive(id, source) => {
                let drive = self.unwatched(id).expect("no drive leaves between the look and here");
                let (len, offset) = (buf.len(), shared.geometry.member_offset(unit, x));
                self.expect_sums(id, offset);
                let turn = match self.must_wait(id, len) {
                    true => Box::pin(self.admitted(id, len)).await,
                    false => None,
                };
                let mut read = pin!(drive.read(offset, buf));
                // A zone that was given back meanwhile may have been forgotten by its drive at any
                // time: look again.
                let is_current =
                    || shared.map.clear_count() == cleared && !self.env.trouble("a healthy read looks again");
                let result = match poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
                    // What is done at once needs no watch, and is not moved once more.
                    Poll::Ready(Ok(read)) if shared.checksums.is_none() && is_current() => return Ok(read),
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        let spot = Spot { drive: id, unit, role: source, x };
                        match Box::pin(self.wait_direct(read, spot, len, turn)).await {
                            Direct::Answered(result) => result,
                            Direct::Restored(buf) => return Ok(buf),
                        }
                    }
                };
                let mut genuine = Ok(true);
                match result {
                    Ok(read) => {
                        if shared.checksums.is_some() {
                            genuine = self.is_genuine(id, offset, &read).await;
                        }
                        if matches!(genuine, Ok(true)) && is_current() {
                            return Ok(read);
                        }
                        buf = read;
                    }
                    Err(error) => {
                        buf = self.env.alloc(len);
                        if let Some(member) = shared.member_of(id).filter(|_| !matches!(error, DriveError::Gone)) {
                            // The owner does.
                            self.tell_retry(member, id, Failure::read(offset, error.clone()));
                        }
                        genuine = Err(error);
                    }
                }
                // Damaged, or being overwritten: under the lock the owner sees which of them. What
                // could not be read it reads again, and heals the copy that failed.
                role = if matches!(genuine, Ok(true)) { role } else { source };
            }
            Source::Around(id, role) => {
                let around = Box::pin(self.read_around(Spot { drive: id, unit, role, x }, buf.len()));
                if let Some(restored) = around.await {
                    return Ok(restored);
                }
            }
            Source::Owner => {}
        }
        // Boxed like all that is rare here: each read moves a future as large as the largest of its
        // parts.
        Box::pin(self.ask_owner(unit, role, x, buf)).await
    }

    /// Has whole sectors of a strip read by the unit's owner, under the lock.
    async fn ask_owner(
        self: &Rc<Self>,
        unit: UnitIndex,
        role: Role,
        x: u64,
        buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        match self.on_owner(unit, Op::Read { role, x, buf, without: false }).await? {
            Outcome::Read(buf) => Ok(buf),
            other => unreachable!("a read is answered by {other:?}"),
        }
    }

    #[inline(always)]
    fn source(self: &Rc<Self>, unit: UnitIndex, role: Role, range: Range) -> Source {
        let shared = &self.shared;
        let geometry = &shared.geometry;
        let allocated = shared.map.get(geometry.zone_index(unit, range.start));
        let mut x = (range.start | (geometry.zone - 1)) + 1;
        while x < range.end {
            if shared.map.get(geometry.zone_index(unit, x)) != allocated {
                return Source::Owner;
            }
            x += geometry.zone;
        }
        if !allocated {
            return Source::Hole;
        }
        // A mirror's copies serve in turn, by place, so that a stream stays with one drive for a
        // while. After a crash they may differ, and the resync takes the first for the truth: so do
        // all reads until then.
        let role = if geometry.data == 1 && geometry.syndromes > 0 && !shared.is_resync_due() {
            let turn = (unit.0 * geometry.unit + range.start) / MIRROR_TURN_BYTES % geometry.strips() as u64;
            if self.watch.avoids_any() { self.steer(unit, range.start, turn as usize) } else { turn as usize }
        } else {
            role
        };
        let member = geometry.member(unit, range.start, role);
        let slot = shared.slot(member);
        let readable = match slot.state {
            MemberState::InSync => true,
            MemberState::Rebuilding => unit < shared.rebuilt(slot.drive),
            MemberState::Missing | MemberState::Faulty => false,
        };
        match self.drives.borrow().get(usize::from(slot.drive.0)) {
            Some(Some(_)) if readable && self.watch.avoids(slot.drive) => Source::Around(slot.drive, role),
            Some(Some(_)) if readable => Source::Drive(slot.drive, role),
            _ => Source::Owner,
        }
    }

    /// Reads whole sectors of a data strip under the unit's lock, computing what cannot be read,
    /// and writing it back where only the medium failed.
    pub async fn read_locked(
        self: &Rc<Self>,
        unit: UnitIndex,
        role: Role,
        x: u64,
        mut buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        let range = Range::new(x, x + buf.len() as u64);
        let allocated = self.allocated(unit, range);
        for hole in allocated.gaps(range).iter() {
            buf[hole.relative(x)].fill(0);
        }
        for part in allocated.iter() {
            let bytes = self.read_or_restore(unit, role, part).await?;
            buf[part.relative(x)].copy_from_slice(&bytes);
        }
        Ok(buf)
    }

    /// The columns of a range that lie in allocated zones.
    pub fn allocated(&self, unit: UnitIndex, range: Range) -> Ranges {
        let geometry = &self.shared.geometry;
        let mut allocated = Ranges::new();
        for zone in geometry.zones() {
            if self.shared.map.get(geometry.zone_index(unit, zone.start)) {
                allocated.add(zone.intersect(range));
            }
        }
        allocated
    }

    pub async fn read_or_restore(
        self: &Rc<Self>,
        unit: UnitIndex,
        role: Role,
        columns: Range,
    ) -> Result<BufMut, BlockError> {
        let survives = self.shared.geometry.syndromes;
        let mut unreadable: Vec<Role> = Vec::new();
        loop {
            let view = self.view(unit, columns.start, &unreadable);
            if view.0[role].strip == Strip::Good {
                match self.read_member(&view.0[role], unit, columns.start, columns.len() as usize).await {
                    Ok(buf) => return Ok(buf),
                    Err(ReadFailure::Unreadable) => unreadable.push(role),
                    Err(ReadFailure::Faulty) => {}
                }
                continue;
            }
            let mut mixture = Ok(());
            if self.unended.are_in(unit, columns) {
                // Afterwards what was overwritten in part can be read as well.
                mixture = Box::pin(self.mend(|other| other == unit)).await;
                if mixture.is_ok() {
                    unreadable.clear();
                    continue;
                }
            }
            if mixture.is_err() || view.lost() > survives {
                // Other strips may be unreadable, or old and new, in other places.
                let is_elsewhere = mixture.is_err() || !unreadable.is_empty();
                if let Some(halves) = columns.halves().filter(|_| is_elsewhere) {
                    let mut whole = self.env.alloc(columns.len() as usize);
                    for half in halves {
                        let part = Box::pin(self.read_or_restore(unit, role, half)).await?;
                        whole[half.relative(columns.start)].copy_from_slice(&part);
                    }
                    return Ok(whole);
                }
                return Err(mixture.err().unwrap_or(BlockError::Lost { lost: view.lost(), survives }));
            }
            let lost = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good);
            let decoder = self.decoder(&lost.collect::<Vec<_>>());
            let reads: Vec<(Role, Range)> = decoder.sources().iter().map(|&source| (source, columns)).collect();
            match self.read_strips(unit, &view, &reads).await {
                Ok(reads) => {
                    // The copies of a mirror are all the same.
                    let data_role = if self.shared.geometry.data == 1 { 0 } else { role };
                    let restored = self.restore_data(columns, &view, reads).swap_remove(data_role);
                    self.counters().reconstructed.count();
                    if view.0[role].strip != Strip::Unreadable {
                        return Ok(restored);
                    }
                    let restored = restored.freeze();
                    let data = Segments::from_iter([restored.clone()]);
                    if self.write_member(&view.0[role], unit, columns.start, &data, false).await? {
                        self.counters().healed.count();
                        self.tell_healed(&view.0[role], unit, columns.start, columns.len());
                    }
                    let mut copy = self.env.alloc(restored.len());
                    copy.copy_from_slice(&restored);
                    return Ok(copy);
                }
                Err(mut failed) => unreadable.append(&mut failed),
            }
        }
    }
}

/// How much of a mirror is read from one copy before the next takes its turn.
const MIRROR_TURN_BYTES: u64 = 256 << 10;
