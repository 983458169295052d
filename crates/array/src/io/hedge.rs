//! Hedged reads: if a member does not answer in time, its strip is computed from the others. The
//! first result is taken.
//!
//! The stripe group's owner computes the strip under the lock, like a lost one, and writes nothing
//! back. A check afterwards shows whether the member can read the bytes at all. After a crash there
//! are no hedged reads until a resync has covered everything: stale parity would give bytes that
//! were never written.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use drive::{BlockError, BufMut, DriveError, Env};
use format::MemberState;

use crate::array::ArrayShard;
use crate::drives::handle::Handle;
use crate::drives::in_flight::{InFlightRequest, Kind, Notice};
use crate::drives::latency::class_of;
use crate::drives::outstanding::Turn;
use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::io::plan::Strip;
use crate::state::message::{Op, Reply};
use crate::state::slot::DriveId;

/// How a read that was sent to a member ended.
pub(crate) enum Direct {
    /// The member answered.
    Answered(Result<BufMut, DriveError>),
    /// The other members were faster.
    Restored(BufMut),
}

/// The target of a read outside of the stripe group's lock.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub drive: DriveId,
    pub stripe_group: StripeGroup,
    pub role: Role,
    pub offset: u64,
}

impl<E: Env> ArrayShard<E> {
    /// Whether a read of a member has to wait until its drive has answered more.
    #[inline]
    pub fn must_wait(&self, id: DriveId, len: usize) -> bool {
        let drives = self.drives.borrow();
        drives.get(usize::from(id.0)).and_then(Option::as_ref).is_some_and(|drive| drive.must_wait(len as u64))
    }

    /// Waits until the drive may be asked for `len` bytes. `None` if the drive was taken out.
    pub async fn admitted(&self, id: DriveId, len: usize) -> Option<Turn> {
        let mut turn = self.drive(id)?.turn(len as u64);
        turn.admitted().await;
        Some(turn)
    }

    /// Waits for a read of a member, outside of the stripe group's lock, and also for the other
    /// members if that takes too long. `turn` is given if the read had to wait for its drive.
    pub async fn wait_direct(
        self: &Rc<Self>,
        mut read: Pin<&mut impl Future<Output = Result<BufMut, DriveError>>>,
        spot: Spot,
        len: usize,
        turn: Option<Turn>,
    ) -> Direct {
        let mut turn = turn.unwrap_or_else(|| self.in_flight.outstanding(spot.drive).turn(len as u64));
        turn.asked();
        let mut request = self.in_flight.request(spot.drive, Kind::Direct(class_of(len)));
        let answer = poll_fn(|context| match read.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => match request.look(context) {
                Notice::None => Poll::Pending,
                Notice::Late | Notice::Expired => Poll::Ready(None),
            },
        });
        match answer.await {
            Some(result) => {
                request.landed();
                turn.answered();
                Direct::Answered(result)
            }
            None => self.race(read, request, spot, len).await,
        }
    }

    /// Waits for a member that is late, and for the other members.
    async fn race(
        self: &Rc<Self>,
        mut read: Pin<&mut impl Future<Output = Result<BufMut, DriveError>>>,
        mut request: InFlightRequest<'_>,
        spot: Spot,
        len: usize,
    ) -> Direct {
        let mut rescue = Some(Box::pin(self.restore(spot, len)));
        let mut failed = None;
        poll_fn(|context| {
            if failed.is_none() {
                match read.as_mut().poll(context) {
                    Poll::Ready(Ok(buf)) => {
                        request.landed();
                        return Poll::Ready(Direct::Answered(Ok(buf)));
                    }
                    Poll::Ready(Err(error)) => failed = Some(error),
                    Poll::Pending if request.look(context) == Notice::Expired => failed = Some(DriveError::Gone),
                    Poll::Pending => {}
                }
            }
            if let Some(Poll::Ready(restored)) = rescue.as_mut().map(|rescue| rescue.as_mut().poll(context)) {
                rescue = None;
                if let Ok(restored) = restored {
                    self.counters().hedges_won.count();
                    self.look_afterwards(spot, len, failed.is_some());
                    return Poll::Ready(Direct::Restored(restored));
                }
            }
            if rescue.is_some() {
                return Poll::Pending;
            }
            match failed.take() {
                Some(error) => Poll::Ready(Direct::Answered(Err(error))),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Checks a member that was slower than the others: can it read these bytes at all? A drive
    /// tries for long before it reports an error. Without this check no task would wait for the
    /// error, and it would be neither counted nor repaired. Each shard runs one check at a time.
    fn look_afterwards(self: &Rc<Self>, spot: Spot, len: usize, has_failed: bool) {
        let Some(drive) = self.drive(spot.drive) else { return };
        if self.in_flight.avoids(spot.drive) || self.in_flight.looking.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            let Spot { stripe_group, role, offset, .. } = spot;
            let drive_offset = inner.shared.geometry.drive_offset(stripe_group, offset);
            if has_failed || drive.probe(drive_offset, inner.env.alloc(len)).await.is_err() {
                let buf = inner.env.alloc(len);
                // The owner reads the bytes again, and repairs them if that fails again. The client
                // has its data already.
                let _ = inner.on_owner(stripe_group, Op::Read { role, offset, buf, without: false }).await;
            }
            inner.in_flight.looking.set(false);
        });
    }

    /// Reads without asking a slow member, except for a probe now and then. `None` if the others
    /// cannot help.
    pub async fn read_around(self: &Rc<Self>, spot: Spot, len: usize) -> Option<BufMut> {
        if let Some(drive) = self.drive(spot.drive) {
            self.goes_around(&drive, self.shared.geometry.drive_offset(spot.stripe_group, spot.offset), len);
        }
        self.counters().avoided.count();
        self.restore(spot, len).await.ok()
    }

    /// Counts a read that avoids a slow drive, and sends a probe to the drive if one is due.
    fn goes_around(self: &Rc<Self>, drive: &Handle<E::Drive>, offset: u64, len: usize) {
        if self.in_flight.goes_around(drive.id()) {
            let (inner, drive) = (self.clone(), drive.clone());
            self.env.spawn(async move {
                // Only the time of the probe matters. An error shows when the drive is needed.
                let _ = drive.probe(offset, inner.env.alloc(len)).await;
                inner.in_flight.probe_ended(drive.id());
            });
        }
    }

    /// The copy of a mirror to read: another one, if this one is on a slow drive.
    pub fn steer(self: &Rc<Self>, stripe_group: StripeGroup, offset: u64, role: Role) -> Role {
        let geometry = &self.shared.geometry;
        let drive = |role: Role| {
            let slot = self.shared.slot(geometry.member(stripe_group, offset, role));
            (slot.state == MemberState::InSync).then(|| self.drive(slot.drive)).flatten()
        };
        let Some(slow) = drive(role).filter(|drive| self.in_flight.avoids(drive.id())) else { return role };
        let copies = geometry.strips();
        let mut others = (1..copies).map(|step| (role + step) % copies);
        let well = others.find(|&other| drive(other).is_some_and(|drive| !self.in_flight.avoids(drive.id())));
        let Some(well) = well else { return role };
        self.goes_around(&slow, geometry.drive_offset(stripe_group, offset), geometry.sector_bytes as usize);
        self.counters().avoided.count();
        well
    }

    async fn restore(self: &Rc<Self>, spot: Spot, len: usize) -> Result<BufMut, BlockError> {
        let Spot { stripe_group, role, offset, .. } = spot;
        let buf = self.env.alloc(len);
        match self.on_owner(stripe_group, Op::Read { role, offset, buf, without: true }).await? {
            Reply::Read(buf) => Ok(buf),
            other => unreachable!("a read is answered by {other:?}"),
        }
    }

    /// As [`ArrayShard::read_locked`], but from the other strips, if that is possible.
    pub async fn restore_locked(
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
            let bytes = match self.restore_without(stripe_group, role, part).await {
                Some(bytes) => bytes,
                None => self.read_or_restore(stripe_group, role, part).await?,
            };
            buf[part.relative(offset)].copy_from_slice(&bytes);
        }
        Ok(buf)
    }

    /// Computes a strip from the others. `None` if too few of them can be read, or if an incomplete
    /// write meets these member offsets.
    async fn restore_without(self: &Rc<Self>, stripe_group: StripeGroup, role: Role, offsets: Range) -> Option<BufMut> {
        if self.incomplete.are_in(stripe_group, offsets) {
            return None;
        }
        let survives = self.shared.geometry.parity_count;
        let view = self.view(stripe_group, offsets.start, &[role]);
        let mut left_out: Vec<Role> = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good).collect();
        if left_out.len() > survives {
            return None;
        }
        for other in 0..view.0.len() {
            // As long as there is a choice, other slow drives are avoided as well.
            if left_out.len() < survives && !left_out.contains(&other) && self.in_flight.avoids(view.0[other].id) {
                left_out.push(other);
            }
        }
        left_out.sort_unstable();
        let view = self.view(stripe_group, offsets.start, &left_out);
        if view.lost() > survives {
            return None; // One was lost between the two looks.
        }
        let lost: Vec<Role> = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good).collect();
        let decoder = self.decoder(&lost);
        let reads: Vec<(Role, Range)> = decoder.sources().iter().map(|&source| (source, offsets)).collect();
        let reads = self.read_strips(stripe_group, &view, &reads).await.ok()?;
        // The copies of a mirror are all the same.
        let data_role = if self.shared.geometry.data == 1 { 0 } else { role };
        Some(self.restore_data(offsets, &view, reads).swap_remove(data_role))
    }
}
