//! Operations on one member: retried, and what happens when they keep failing.

use std::rc::Rc;

use drive::{BlockError, BufMut, Drive, DriveError, Env, Segments};

use crate::array::Inner;
use crate::geometry::{MemberIndex, UnitIndex};
use crate::message::{Outcome, Request};
use crate::shared::DriveId;
use crate::unit::StripView;

/// Attempts at an operation before the member counts as faulty. A drive that reports an error has retried inside for
/// seconds already; the second attempt is for errors of the path to it.
const ATTEMPTS: usize = 2;

/// A read that did not work out.
pub(crate) enum ReadFailure {
    /// This range is unreadable; the member stays.
    Unreadable,
    /// The member is faulty now, and the superblocks say so.
    Faulty,
}

impl<E: Env> Inner<E> {
    /// Reads from a member that the row's view shows as good.
    pub async fn read_member(
        self: &Rc<Self>,
        view: &StripView<E::Drive>,
        unit: UnitIndex,
        x: u64,
        len: usize,
    ) -> Result<BufMut, ReadFailure> {
        let offset = self.shared.geometry.member_offset(unit, x);
        let drive = view.drive.as_ref().expect("a good strip has a drive");
        let mut last = DriveError::Gone;
        for _ in 0..ATTEMPTS {
            match drive.read(offset, self.env.alloc(len)).await {
                Ok(buf) => return Ok(buf),
                Err(error) => last = error,
            }
            self.shared.count_error(view.member);
            if matches!(last, DriveError::Gone) {
                break;
            }
        }
        let faulty = !matches!(last, DriveError::Media { .. }) && self.fail(view.member, view.id).await;
        Err(if faulty { ReadFailure::Faulty } else { ReadFailure::Unreadable })
    }

    /// Writes to a member. On failure the member is faulty, and the superblocks say so, before this returns false.
    ///
    /// # Errors
    /// [`BlockError::Lost`] if the group cannot do without the member; [`BlockError::NoSpace`] likewise.
    pub async fn write_member(
        self: &Rc<Self>,
        view: &StripView<E::Drive>,
        unit: UnitIndex,
        x: u64,
        data: Segments,
        fua: bool,
    ) -> Result<bool, BlockError> {
        let offset = self.shared.geometry.member_offset(unit, x);
        let drive = view.drive.as_ref().expect("a strip that is not lost has a drive");
        self.write_drive(view.member, view.id, drive, offset, data, fua).await
    }

    /// As [`Inner::write_member`], at a byte of the drive.
    pub async fn write_drive(
        self: &Rc<Self>,
        member: MemberIndex,
        id: DriveId,
        drive: &E::Drive,
        offset: u64,
        data: Segments,
        fua: bool,
    ) -> Result<bool, BlockError> {
        let mut last = DriveError::Gone;
        for _ in 0..ATTEMPTS {
            match drive.write(offset, data.clone(), fua).await {
                Ok(()) => return Ok(true),
                Err(error) => last = error,
            }
            self.shared.count_error(member);
            if matches!(last, DriveError::Gone) {
                break;
            }
        }
        self.fail_or_refuse(member, id, &last).await.map(|()| false)
    }

    /// Marks a member faulty, on all shards and in the superblocks. Says no if the group cannot do without it: then the
    /// member stays, and operations on it fail one by one.
    pub async fn fail(self: &Rc<Self>, member: MemberIndex, drive: DriveId) -> bool {
        matches!(self.on_leader(Request::Fail(member, drive)).await, Ok(Outcome::Accepted(true)))
    }

    /// As [`Inner::fail`], for an operation that cannot be left out.
    pub async fn fail_or_refuse(
        self: &Rc<Self>,
        member: MemberIndex,
        drive: DriveId,
        error: &DriveError,
    ) -> Result<(), BlockError> {
        if self.fail(member, drive).await {
            return Ok(());
        }
        if matches!(error, DriveError::NoSpace) {
            return Err(BlockError::NoSpace);
        }
        let set = u64::from(member.0) / self.shared.geometry.strips() as u64;
        Err(BlockError::Lost { lost: self.shared.lost_in_set(set) + 1, survives: self.shared.geometry.syndromes })
    }
}
