//! Reports of failed operations, and of strips that were healed, to the group's listener.

use std::rc::Rc;

use drive::Env;

use crate::array::ArrayShard;
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::io::plan::Strip;
use crate::io::types::{RowView, StripView, StripWrite};
use crate::state::cause::{Failure, Flaw};
use crate::state::event::Event;
use crate::state::message::Request;
use crate::state::slot::DriveId;

impl<E: Env> ArrayShard<E> {
    /// Sends an event to the leader's listener, without waiting for it.
    #[cold]
    pub fn tell(self: &Rc<Self>, event: Event) {
        if let Some(leader) = &self.leader {
            return (leader.listener)(event);
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // An error means that the group is gone. Then the event is of no use.
            let _ = inner.on_leader(Request::Tell(event)).await;
        });
    }

    /// Reports that an operation on a member failed, and is tried again.
    pub fn tell_retry(self: &Rc<Self>, member: MemberIndex, drive: DriveId, failure: Failure) {
        self.tell(Event::Retried { member, drive, failure });
    }

    /// Reports that bytes of a member cannot be used.
    pub fn tell_flaw(self: &Rc<Self>, strip: &StripView<E::Drive>, offset: u64, len: u64, flaw: Flaw) {
        self.tell(Event::BytesFlawed { member: strip.member, drive: strip.id, offset, len, flaw });
    }

    /// Reports that bytes of a member that could not be used were computed from the others and
    /// written back.
    pub fn tell_healed(self: &Rc<Self>, strip: &StripView<E::Drive>, stripe_group: StripeGroup, offset: u64, len: u64) {
        let drive_offset = self.shared.geometry.drive_offset(stripe_group, offset);
        self.tell(Event::BytesHealed { member: strip.member, drive: strip.id, offset: drive_offset, len });
    }

    /// As [`ArrayShard::tell_healed`], for a write that found strips unreadable and wrote them as
    /// well, except for those that `failed`.
    #[cold]
    pub fn tell_healed_by(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        view: &RowView<E::Drive>,
        writes: &[StripWrite],
        failed: &[Role],
    ) {
        let is_healed =
            |write: &&StripWrite| view.0[write.role].strip == Strip::Unreadable && !failed.contains(&write.role);
        for write in writes.iter().filter(is_healed) {
            self.tell_healed(&view.0[write.role], stripe_group, write.offset, write.range().len());
        }
    }
}
