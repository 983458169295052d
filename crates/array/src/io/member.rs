//! Operations on one member: retries, and the handling of persistent failures.

use std::rc::Rc;

use drive::{BlockError, BufMut, Drive, DriveError, Env, Segments};

use crate::array::ArrayShard;
use crate::drives::handle::Handle;
use crate::geometry::{MemberIndex, StripeGroup};
use crate::io::types::{ReadFailure, StripView};
use crate::state::cause::{Cause, Failure, Flaw};
use crate::state::errors::Failed;
use crate::state::message::{Reply, Request};
use crate::state::slot::DriveId;

/// Attempts at an operation before the member counts as faulty. A drive that reports an error has
/// already retried internally for seconds. The second attempt is for errors of the path to it.
const ATTEMPTS: usize = 2;

impl<E: Env> ArrayShard<E> {
    /// Reads from a member whose strip is good in this view. Bytes that do not match their
    /// checksums count as unreadable.
    pub async fn read_member(
        self: &Rc<Self>,
        view: &StripView<E::Drive>,
        stripe_group: StripeGroup,
        offset: u64,
        len: usize,
    ) -> Result<BufMut, ReadFailure> {
        let drive_offset = self.shared.geometry.drive_offset(stripe_group, offset);
        let drive = view.drive.as_ref().expect("a good strip has a drive");
        self.expect_sums(view.id, drive_offset);
        let mut last = Failure::read(drive_offset, DriveError::Gone);
        for attempt in 1..=ATTEMPTS {
            let read = match drive.read(drive_offset, self.env.alloc(len)).await {
                Ok(buf) => match self.is_genuine(view.id, drive_offset, &buf).await {
                    Ok(genuine) => Ok((buf, genuine)),
                    Err(error) => Err(Failure::read(self.sums_offset(drive_offset), error)),
                },
                Err(error) => Err(Failure::read(drive_offset, error)),
            };
            match read {
                Ok((buf, true)) => return Ok(buf),
                Ok((_, false)) => {
                    self.shared.count_damaged(view.member);
                    self.tell_flaw(view, drive_offset, len as u64, Flaw::Damaged);
                    return Err(ReadFailure::Unreadable);
                }
                Err(failure) => last = failure,
            }
            if self.is_final(view.member, view.id, attempt, &last) {
                break;
            }
        }
        self.shared.count_error(view.member, Failed::Read);
        let error = last.error.clone();
        let is_medium = matches!(error, DriveError::Media { .. });
        if !is_medium && self.fail(view.member, view.id, Cause::of(last)).await {
            return Err(ReadFailure::Faulty);
        }
        self.tell_flaw(view, drive_offset, len as u64, Flaw::Unreadable(error));
        Err(ReadFailure::Unreadable)
    }

    /// Writes to a member. If the write fails, the member is marked faulty and the superblocks say
    /// so before this returns false.
    ///
    /// # Errors
    /// [`BlockError::Lost`] or [`BlockError::NoSpace`] if the group cannot do without the member.
    pub fn write_member<'a>(
        self: &'a Rc<Self>,
        view: &'a StripView<E::Drive>,
        stripe_group: StripeGroup,
        offset: u64,
        data: &'a Segments,
        fua: bool,
    ) -> impl Future<Output = Result<bool, BlockError>> + 'a {
        let drive_offset = self.shared.geometry.drive_offset(stripe_group, offset);
        let drive = view.drive.as_ref().expect("a strip that is not lost has a drive");
        self.write_strip(view.member, view.id, drive, drive_offset, data, fua)
    }

    /// Like [`ArrayShard::write_member`], at an offset in the drive's data region, and on the
    /// member's replacement too. Updates the checksums.
    pub async fn write_strip(
        self: &Rc<Self>,
        member: MemberIndex,
        id: DriveId,
        drive: &Handle<E::Drive>,
        offset: u64,
        data: &Segments,
        fua: bool,
    ) -> Result<bool, BlockError> {
        match self.shared.replacement_of(member, id) {
            None => self.write_one(member, id, drive, offset, data, fua).await,
            // Boxed: this is rare, and the future is part of the task of each stripe group.
            Some(other) => Box::pin(self.write_both(member, (id, drive), other, offset, (data, fua))).await,
        }
    }

    /// Like [`ArrayShard::write_strip`], but to this drive only.
    pub async fn write_one(
        self: &Rc<Self>,
        member: MemberIndex,
        id: DriveId,
        drive: &Handle<E::Drive>,
        offset: u64,
        data: &Segments,
        fua: bool,
    ) -> Result<bool, BlockError> {
        if !self.write_drive(member, id, drive, offset, data, fua).await? {
            return Ok(false);
        }
        self.buggify_delay("a strip is written, and its checksums are not noted").await;
        match self.note_sums(id, offset, data).await {
            Ok(()) => Ok(true),
            Err(error) => {
                self.count_error(member, id, Failed::Write);
                let failure = Failure::read(self.sums_offset(offset), error);
                self.fail_or_refuse(member, id, failure).await.map(|()| false)
            }
        }
    }

    /// Like [`ArrayShard::write_member`], at any offset of the drive.
    pub async fn write_drive(
        self: &Rc<Self>,
        member: MemberIndex,
        id: DriveId,
        drive: &Handle<E::Drive>,
        offset: u64,
        data: &Segments,
        fua: bool,
    ) -> Result<bool, BlockError> {
        let mut last = Failure::write(offset, DriveError::Gone);
        for attempt in 1..=ATTEMPTS {
            match drive.write(offset, data.clone(), fua).await {
                Ok(()) => return Ok(true),
                Err(error) => last.error = error,
            }
            if self.is_final(member, id, attempt, &last) {
                break;
            }
        }
        self.count_error(member, id, Failed::Write);
        self.fail_or_refuse(member, id, last).await.map(|()| false)
    }

    /// Whether a failed operation is not retried. Counts and reports the retry if there is one.
    fn is_final(self: &Rc<Self>, member: MemberIndex, id: DriveId, attempt: usize, failure: &Failure) -> bool {
        let is_final = attempt == ATTEMPTS || matches!(failure.error, DriveError::Gone);
        if !is_final {
            self.count_error(member, id, Failed::Retried);
            self.tell_retry(member, id, failure.clone());
        }
        is_final
    }

    /// Counts a failed operation of a drive for its member, if the drive is in the member's slot. A
    /// replacement is not.
    pub fn count_error(&self, member: MemberIndex, id: DriveId, failed: Failed) {
        if self.shared.slot(member).drive == id {
            self.shared.count_error(member, failed);
        }
    }

    /// Marks a member faulty, on all shards and in the superblocks. Returns false if the group
    /// cannot do without it. The member then stays, and operations on it fail one by one.
    pub async fn fail(self: &Rc<Self>, member: MemberIndex, drive: DriveId, cause: Cause) -> bool {
        matches!(self.on_leader(Request::Fail(member, drive, cause)).await, Ok(Reply::Accepted(true)))
    }

    /// Like [`ArrayShard::fail`], for an operation that cannot be skipped.
    pub async fn fail_or_refuse(
        self: &Rc<Self>,
        member: MemberIndex,
        drive: DriveId,
        failure: Failure,
    ) -> Result<(), BlockError> {
        let is_full = matches!(failure.error, DriveError::NoSpace);
        if self.fail(member, drive, Cause::of(failure)).await {
            return Ok(());
        }
        if is_full {
            return Err(BlockError::NoSpace);
        }
        let set = u64::from(member.0) / self.shared.geometry.strips() as u64;
        Err(BlockError::Lost { lost: self.shared.lost_in_set(set) + 1, survives: self.shared.geometry.parity_count })
    }
}
