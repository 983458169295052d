//! Checkpoint records: the members say which records need no recovery, because they were flushed.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, BufMut, DriveError, Env, join_all};
use format::log::{CHECKPOINT_SLOTS, FrameHead, checkpoint_offset, encode_checkpoint};

use super::{FlushMark, Log};
use crate::array::ArrayShard;
use crate::drives::retry::write_retried;
use crate::geometry::MemberIndex;
use crate::state::cause::Failure;
use crate::state::errors::Failed;
use crate::state::slot::{DriveId, Slot};

/// How often to check for completed records that no client has flushed.
const LOOK: Duration = Duration::from_secs(1);

/// While records keep coming, a checkpoint record is written after so many checks all the same.
const BUSY_LOOKS: u32 = 5;

impl Log {
    /// Whether no record has begun since a flush began, and none was open then.
    fn is_quiet_since(&self, mark: &FlushMark) -> bool {
        mark.open.is_empty() && mark.below == self.next.get()
    }
}

impl<E: Env> ArrayShard<E> {
    /// Flushes completed records in the background and writes a checkpoint record, once no more
    /// come for a second, at the latest after a few.
    ///
    /// A recovery that finds a record in force has to trust the drives for the blocks that it
    /// names, since the checksums there may be stale. Data that is not written any more shall not
    /// depend on that.
    pub fn checkpoint_later(self: &Rc<Self>, log: &Rc<Log>) {
        if log.lingering.replace(true) {
            return;
        }
        // A group that is dropped meanwhile is not kept alive.
        let (env, inner, of_log) = (self.env.clone(), Rc::downgrade(self), Rc::downgrade(log));
        let mut before = log.next.get();
        self.env.spawn(async move {
            let mut looks = 0;
            loop {
                env.sleep(LOOK).await;
                let Some(inner) = inner.upgrade() else { return };
                let log = of_log.upgrade().filter(|log| !log.closed.get() && !inner.shared.is_stopped());
                let Some(log) = log else { return };
                looks += 1;
                let is_busy = log.next.get() != before && looks < BUSY_LOOKS;
                before = log.next.get();
                if !is_busy {
                    looks = 0;
                    if inner.checkpoint_in_background(&log).await {
                        log.lingering.set(false);
                        return;
                    }
                }
            }
        });
    }

    /// Returns whether no record is left without a checkpoint record.
    async fn checkpoint_in_background(self: &Rc<Self>, log: &Log) -> bool {
        self.in_background(async || {
            log.mark_suspect();
            let mark = log.flush_begins();
            // After a failure the next check tries again, and requests see why.
            if self.flush_members().await.is_err() {
                return false;
            }
            log.flush_ended(&mark);
            self.try_checkpoint(log, &mark).await.is_empty() && log.is_quiet_since(&mark)
        })
        .await
        .unwrap_or(false)
    }

    /// Flushes all members, and makes durable that earlier writes to stripe groups of this shard
    /// need no recovery.
    pub async fn flush_and_checkpoint(self: &Rc<Self>) -> Result<(), BlockError> {
        let Some(log) = self.log() else { return self.flush_members().await };
        let mark = log.flush_begins();
        self.flush_members().await?;
        log.flush_ended(&mark);
        self.write_checkpoint(&log, &mark).await
    }

    /// Writes a checkpoint record: everything that was completed when a flush began, which has
    /// ended, needs no recovery. If so few members take it that a crash could take all of those,
    /// the others leave the group.
    ///
    /// # Errors
    /// [`BlockError::Lost`] if the group cannot do without them; [`BlockError::NoSpace`] likewise.
    pub async fn write_checkpoint(self: &Rc<Self>, log: &Log, mark: &FlushMark) -> Result<(), BlockError> {
        loop {
            let refused = self.try_checkpoint(log, mark).await;
            if refused.is_empty() {
                return Ok(());
            }
            for (member, drive, failure) in refused {
                self.shared.count_error(member, Failed::Write);
                self.fail_or_refuse(member, drive, failure).await?;
            }
        }
    }

    /// As [`ArrayShard::write_checkpoint`], but without requests to the leader. Returns the members
    /// that did not take it, of sets where those are too many.
    pub async fn try_checkpoint(self: &Rc<Self>, log: &Log, mark: &FlushMark) -> Vec<(MemberIndex, DriveId, Failure)> {
        if !log.wants_checkpoint(mark) {
            return Vec::new();
        }
        let _turn = log.checkpoints.enter().await;
        if !log.wants_checkpoint(mark) {
            return Vec::new(); // A later flush has covered it meanwhile.
        }
        self.buggify_delay("members are flushed, and no checkpoint record is written").await;
        let slot = log.checkpoint_slot.replace((log.checkpoint_slot.get() + 1) % CHECKPOINT_SLOTS);
        let offset = checkpoint_offset(&log.place, slot);
        let head = FrameHead { offset, tail: mark.below, ..log.head };
        let bytes = BufMut::copy_of(&encode_checkpoint(&log.array, &head, &mark.open)).freeze();
        let members: Vec<(MemberIndex, Slot)> = self.shared.staying().collect();
        let write = |(member, slot): (MemberIndex, Slot)| {
            let (drive, bytes) = (self.drive(slot.drive), bytes.clone());
            async move {
                let written = match drive {
                    Some(drive) => write_retried(&drive, offset, bytes, true).await,
                    None => Err(DriveError::Gone),
                };
                (member, slot.drive, written.map_err(|error| Failure::write(offset, error)))
            }
        };
        // A member that does not take it shows that at its next write.
        let written = join_all(members.iter().copied().map(write)).await;
        let (strips, survives) = (self.shared.geometry.strips(), self.shared.geometry.parity_count);
        let mut refused = Vec::new();
        for set in 0..self.shared.geometry.sets as usize {
            let of_set = |member: &MemberIndex| usize::from(member.0) / strips == set;
            let took = written.iter().filter(|(member, _, took)| took.is_ok() && of_set(member)).count();
            let lost = strips - members.iter().filter(|(member, _)| of_set(member)).count();
            if took + lost <= survives {
                let others = written.iter().filter(|(member, ..)| of_set(member));
                let refusal = |(member, drive, took): &(MemberIndex, DriveId, Result<(), Failure>)| {
                    Some((*member, *drive, took.as_ref().err()?.clone()))
                };
                refused.extend(others.filter_map(refusal));
            }
        }
        if refused.is_empty() {
            let mut uncovered = log.uncovered.borrow_mut();
            uncovered.write_checkpoint(mark.below, &mark.open);
            self.counters().uncovered.store(!uncovered.is_empty(), Ordering::SeqCst);
        }
        refused
    }
}
