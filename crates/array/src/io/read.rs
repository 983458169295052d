//! Reading. A healthy read goes directly from the shard where it arrived to the member. Otherwise
//! the read goes to the owner of the stripe group, which computes the data from the other strips
//! under the lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use drive::{BlockError, BufMut, Drive, DriveError, Env, Segments, View, join_all};
use format::MemberState;
use smallvec::SmallVec;

use crate::array::{Array, ArrayShard};
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{Role, StripPlace, StripeGroup};
use crate::io::hedge::{Direct, Spot};
use crate::io::plan::Strip;
use crate::io::types::ReadFailure;
use crate::state::cause::Failure;
use crate::state::message::{Op, Reply};
use crate::state::slot::DriveId;

/// How a run of sectors within one strip can be read.
enum Source {
    /// Never written.
    Hole,
    /// From this drive, which holds the strip of this role.
    Drive(DriveId, Role),
    /// Likewise, but the drive is slow: preferably from the other members.
    Around(DriveId, Role),
    /// Only by the owner of the stripe group.
    Owner,
}

impl<E: Env> Array<E> {
    /// Fills the whole of `buf` from `offset` and returns it.
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
        let _user = inner.enter_user(self.1);
        let place = geometry.place(offset);
        if len <= place.left {
            if (place.offset | len) & (geometry.sector_bytes - 1) == 0 {
                let mut buf = buf;
                return match inner.read_now(&place, &mut buf) {
                    Some(Ok(())) => Ok(buf),
                    Some(Err(role)) => Box::pin(inner.ask_owner(place.stripe_group, role, place.offset, buf)).await,
                    None => inner.read_sectors(place.stripe_group, place.role, place.offset, buf).await,
                };
            }
            return Box::pin(inner.read_piece(place, buf)).await;
        }
        let mut pieces = Vec::with_capacity((len / geometry.strip_bytes) as usize + 2);
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
    /// them without waiting. If this returns false, the caller has to use [`Array::read`], which
    /// also reports errors. The content of `buf` is then undefined.
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

    /// Calls `look` with the bytes from `offset` on in place, strip after strip. This works if they
    /// are whole sectors, the drives are memory, and the group keeps no checksums. Checksums would
    /// have to be compared before, with bytes that others may overwrite meanwhile. `None`: `look`
    /// was not called.
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

    /// Splits the range into parts of strips, each with its length, and calls `read` to read them
    /// at once if it can.
    #[inline]
    fn now<T>(
        &self,
        offset: u64,
        len: u64,
        read: impl FnOnce(&Rc<ArrayShard<E>>, &[(StripPlace, usize)]) -> Option<T>,
    ) -> Option<T> {
        let inner = &self.0;
        let geometry = &inner.shared.geometry;
        if self.check(offset, len).is_err() || inner.shared.lost.check_read(offset, len).is_err() {
            return None;
        }
        let (mut parts, end) = (SmallVec::<[(StripPlace, usize); 2]>::new(), offset + len);
        let mut at = offset;
        while at < end {
            let place = geometry.place(at);
            let len = place.left.min(end - at);
            if (place.offset | len) & (geometry.sector_bytes - 1) != 0 {
                return None;
            }
            parts.push((place, len as usize));
            at += len;
        }
        let user = inner.enter_user(self.1);
        let done = read(inner, &parts);
        if done.is_some() {
            inner.counters().reads.count();
        } else {
            user.was_none();
        }
        done
    }
}

impl<E: Env> ArrayShard<E> {
    /// Joins pieces in order to one buffer, without copying if they still are parts of one. A piece
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
    async fn read_piece(self: &Rc<Self>, place: StripPlace, buf: BufMut) -> Result<BufMut, BlockError> {
        let geometry = &self.shared.geometry;
        let range = Range::new(place.offset, place.offset + buf.len() as u64);
        let sectors = geometry.outward(range);
        if sectors == range {
            return self.read_sectors(place.stripe_group, place.role, place.offset, buf).await;
        }
        let mut buf = buf;
        let around = self.env.alloc(sectors.len() as usize);
        let around = self.read_sectors(place.stripe_group, place.role, sectors.start, around).await?;
        buf.copy_from_slice(&around[range.relative(sectors.start)]);
        Ok(buf)
    }

    /// Reads whole sectors of one strip, if their drive can without waiting. Creating and moving a
    /// future is a good part of the cost of a read from memory. `None` if the drive cannot. The
    /// error is the role of the strip whose drive failed to read, or gave data that is damaged or
    /// being overwritten.
    #[inline]
    fn read_now(self: &Rc<Self>, place: &StripPlace, buf: &mut [u8]) -> Option<Result<(), Role>> {
        let shared = &self.shared;
        let cleared = shared.map.clear_count();
        let range = Range::new(place.offset, place.offset + buf.len() as u64);
        let Source::Drive(id, role) = self.source(place.stripe_group, place.role, range) else { return None };
        let offset = shared.geometry.drive_offset(place.stripe_group, place.offset);
        if !self.has_sums(id, offset) || self.env.buggify("a read is not done at once") {
            return None;
        }
        let drives = self.drives.borrow();
        let drive = drives.get(usize::from(id.0))?.as_ref()?;
        if drive.untracked().read_now(offset, buf)?.is_err() {
            return Some(Err(role));
        }
        // As in `read_sectors`: a chunk that was freed meanwhile is checked again.
        let genuine = self.is_genuine_now(id, offset, buf)?;
        (shared.map.clear_count() == cleared).then_some(if genuine { Ok(()) } else { Err(role) })
    }

    /// Calls `look` with whole sectors of a strip in place. Sectors that are freed or written
    /// during the call may be seen in the old or the new state, as by a read that takes as long.
    #[inline]
    fn view_part<T>(self: &Rc<Self>, (place, len): (StripPlace, usize), look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let shared = &self.shared;
        if shared.checksums.is_some() || self.env.buggify("a read is not done at once") {
            return None;
        }
        let range = Range::new(place.offset, place.offset + len as u64);
        let Source::Drive(id, _) = self.source(place.stripe_group, place.role, range) else { return None };
        let drives = self.drives.borrow();
        let drive = drives.get(usize::from(id.0))?.as_ref()?.untracked();
        drive.view_now(shared.geometry.drive_offset(place.stripe_group, place.offset), len, look)
    }

    /// The same for several strips, appended to `seen`.
    fn view_parts<T>(
        self: &Rc<Self>,
        parts: &[(StripPlace, usize)],
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
        stripe_group: StripeGroup,
        mut role: Role,
        offset: u64,
        mut buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        let shared = &self.shared;
        let cleared = shared.map.clear_count();
        match self.source(stripe_group, role, Range::new(offset, offset + buf.len() as u64)) {
            Source::Hole => {
                buf.fill(0);
                return Ok(buf);
            }
            Source::Drive(..) if self.env.buggify("a healthy read asks the owner") => {}
            Source::Drive(id, source) => {
                let drive = self.untracked(id).expect("no drive leaves between the look and here");
                let (len, drive_offset) = (buf.len(), shared.geometry.drive_offset(stripe_group, offset));
                self.expect_sums(id, drive_offset);
                let turn = match self.must_wait(id, len) {
                    true => Box::pin(self.admitted(id, len)).await,
                    false => None,
                };
                let mut read = pin!(drive.read(drive_offset, buf));
                // The drive may have discarded a chunk that was freed meanwhile at any time: check
                // again.
                let is_current =
                    || shared.map.clear_count() == cleared && !self.env.buggify("a healthy read looks again");
                let result = match poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
                    // A read that is done at once needs no entry in the in-flight table, and is not
                    // moved once more.
                    Poll::Ready(Ok(read)) if shared.checksums.is_none() && is_current() => return Ok(read),
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        let spot = Spot { drive: id, stripe_group, role: source, offset };
                        match Box::pin(self.wait_direct(read, spot, len, turn)).await {
                            Direct::Answered(result) => result,
                            Direct::Restored(buf) => return Ok(buf),
                        }
                    }
                };
                match self.checked(id, drive_offset, len, result, is_current).await {
                    Ok(read) => return Ok(read),
                    // Damaged, or being overwritten: under the lock the owner sees which. If the
                    // read failed, the owner repeats it and heals the failed copy.
                    Err((free, is_genuine)) => {
                        buf = free;
                        role = if is_genuine { role } else { source };
                    }
                }
            }
            Source::Around(id, role) => {
                let around = Box::pin(self.read_around(Spot { drive: id, stripe_group, role, offset }, buf.len()));
                if let Some(restored) = around.await {
                    return Ok(restored);
                }
            }
            Source::Owner => {}
        }
        // Boxed like all rare paths here: each read moves a future as large as the largest of its
        // parts.
        Box::pin(self.ask_owner(stripe_group, role, offset, buf)).await
    }

    /// Checks the answer of a drive. The error is a buffer for another read, and whether the bytes
    /// were genuine, so that only their chunk was freed meanwhile.
    async fn checked(
        self: &Rc<Self>,
        id: DriveId,
        drive_offset: u64,
        len: usize,
        result: Result<BufMut, DriveError>,
        is_current: impl Fn() -> bool,
    ) -> Result<BufMut, (BufMut, bool)> {
        match result {
            Ok(read) => {
                let has_checksums = self.shared.checksums.is_some();
                let is_genuine = !has_checksums || matches!(self.is_genuine(id, drive_offset, &read).await, Ok(true));
                if is_genuine && is_current() { Ok(read) } else { Err((read, is_genuine)) }
            }
            Err(error) => {
                if let Some(member) = self.shared.member_of(id).filter(|_| !matches!(error, DriveError::Gone)) {
                    // The owner reads it again.
                    self.tell_retry(member, id, Failure::read(drive_offset, error));
                }
                Err((self.env.alloc(len), false))
            }
        }
    }

    /// Lets the owner of the stripe group read whole sectors of a strip, under the lock.
    async fn ask_owner(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        role: Role,
        offset: u64,
        buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        match self.on_owner(stripe_group, Op::Read { role, offset, buf, without: false }).await? {
            Reply::Read(buf) => Ok(buf),
            other => unreachable!("a read is answered by {other:?}"),
        }
    }

    #[inline(always)]
    fn source(self: &Rc<Self>, stripe_group: StripeGroup, role: Role, range: Range) -> Source {
        let shared = &self.shared;
        let geometry = &shared.geometry;
        let allocated = shared.map.get(geometry.chunk_index(stripe_group, range.start));
        let mut offset = (range.start | (geometry.chunk_bytes - 1)) + 1;
        while offset < range.end {
            if shared.map.get(geometry.chunk_index(stripe_group, offset)) != allocated {
                return Source::Owner;
            }
            offset += geometry.chunk_bytes;
        }
        if !allocated {
            return Source::Hole;
        }
        // A mirror's copies serve in turn, by address, so that a stream stays with one drive for a
        // while. After a crash the copies may differ, and the resync takes the first as correct. So
        // all reads use the first until then.
        let role = if geometry.data == 1 && geometry.parity_count > 0 && !shared.is_resync_due() {
            let turn = (stripe_group.0 * geometry.stripe_group_bytes + range.start) / MIRROR_TURN_BYTES
                % geometry.strips() as u64;
            if self.in_flight.avoids_any() {
                self.steer(stripe_group, range.start, turn as usize)
            } else {
                turn as usize
            }
        } else {
            role
        };
        let member = geometry.member(stripe_group, range.start, role);
        let slot = shared.slot(member);
        let readable = match slot.state {
            MemberState::InSync => true,
            MemberState::Rebuilding => stripe_group < shared.rebuilt(slot.drive),
            MemberState::Missing | MemberState::Faulty => false,
        };
        match self.drives.borrow().get(usize::from(slot.drive.0)) {
            Some(Some(_)) if readable && self.in_flight.avoids(slot.drive) => Source::Around(slot.drive, role),
            Some(Some(_)) if readable => Source::Drive(slot.drive, role),
            _ => Source::Owner,
        }
    }

    /// Reads whole sectors of a data strip under the lock. Computes sectors that cannot be read,
    /// and writes them back if only the medium failed.
    pub async fn read_locked(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        role: Role,
        offset: u64,
        mut buf: BufMut,
    ) -> Result<BufMut, BlockError> {
        let range = Range::new(offset, offset + buf.len() as u64);
        let allocated = self.allocated(stripe_group, range);
        for hole in allocated.gaps(range).iter() {
            buf[hole.relative(offset)].fill(0);
        }
        for part in allocated.iter() {
            let bytes = self.read_or_restore(stripe_group, role, part).await?;
            buf[part.relative(offset)].copy_from_slice(&bytes);
        }
        Ok(buf)
    }

    /// The member offsets of a range that lie in allocated chunks.
    pub fn allocated(&self, stripe_group: StripeGroup, range: Range) -> Ranges {
        let geometry = &self.shared.geometry;
        let mut allocated = Ranges::new();
        for chunk in geometry.chunks() {
            if self.shared.map.get(geometry.chunk_index(stripe_group, chunk.start)) {
                allocated.add(chunk.intersect(range));
            }
        }
        allocated
    }

    pub async fn read_or_restore(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        role: Role,
        offsets: Range,
    ) -> Result<BufMut, BlockError> {
        let survives = self.shared.geometry.parity_count;
        let mut unreadable: Vec<Role> = Vec::new();
        loop {
            let view = self.view(stripe_group, offsets.start, &unreadable);
            if view.0[role].strip == Strip::Good {
                match self.read_member(&view.0[role], stripe_group, offsets.start, offsets.len() as usize).await {
                    Ok(buf) => return Ok(buf),
                    Err(ReadFailure::Unreadable) => unreadable.push(role),
                    Err(ReadFailure::Faulty) => {}
                }
                continue;
            }
            let mut mixture = Ok(());
            if self.incomplete.are_in(stripe_group, offsets) {
                // After the retry the member offsets that were overwritten in part can be read as
                // well.
                mixture = Box::pin(self.retry_writes(|other| other == stripe_group)).await;
                if mixture.is_ok() {
                    unreadable.clear();
                    continue;
                }
            }
            if mixture.is_err() || view.lost() > survives {
                // Other strips may be unreadable, or part of an incomplete write, in other places.
                let is_elsewhere = mixture.is_err() || !unreadable.is_empty();
                if let Some(halves) = offsets.halves().filter(|_| is_elsewhere) {
                    let mut whole = self.env.alloc(offsets.len() as usize);
                    for half in halves {
                        let part = Box::pin(self.read_or_restore(stripe_group, role, half)).await?;
                        whole[half.relative(offsets.start)].copy_from_slice(&part);
                    }
                    return Ok(whole);
                }
                return Err(mixture.err().unwrap_or(BlockError::Lost { lost: view.lost(), survives }));
            }
            let lost = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good);
            let decoder = self.decoder(&lost.collect::<Vec<_>>());
            let reads: Vec<(Role, Range)> = decoder.sources().iter().map(|&source| (source, offsets)).collect();
            match self.read_strips(stripe_group, &view, &reads).await {
                Ok(reads) => {
                    // The copies of a mirror are all the same.
                    let data_role = if self.shared.geometry.data == 1 { 0 } else { role };
                    let restored = self.restore_data(offsets, &view, reads).swap_remove(data_role);
                    self.counters().reconstructed.count();
                    if view.0[role].strip != Strip::Unreadable {
                        return Ok(restored);
                    }
                    let restored = restored.freeze();
                    let data = Segments::from_iter([restored.clone()]);
                    if self.write_member(&view.0[role], stripe_group, offsets.start, &data, false).await? {
                        self.counters().healed.count();
                        self.tell_healed(&view.0[role], stripe_group, offsets.start, offsets.len());
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

/// How much of a mirror is read from one copy before the next one takes over.
const MIRROR_TURN_BYTES: u64 = 256 << 10;
