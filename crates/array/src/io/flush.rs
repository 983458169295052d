//! Flush: makes acknowledged writes durable.

use format::RoleSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use drive::{BlockError, Drive, DriveError, Env, join_all};
use smallvec::SmallVec;

use crate::array::{Array, ArrayShard};
use crate::drives::handle::Handle;
use crate::geometry::ranges::Range;
use crate::geometry::{MemberIndex, StripeGroup};
use crate::log::Log;
use crate::state::cause::Failure;
use crate::state::errors::Failed;
use crate::state::message::Request;
use crate::state::slot::{DriveId, Slot};

impl<E: Env> Array<E> {
    /// Makes every request durable that completed before this call, on any shard.
    ///
    /// # Errors
    /// [`BlockError`] if more members failed to flush than the level survives.
    pub async fn flush(&self) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0.run_detached(async move { inner.flush().await }).await
    }
}

impl<E: Env> ArrayShard<E> {
    /// Makes everything durable that completed before, and writes checkpoint records to the logs of
    /// all shards.
    pub async fn flush(self: &Rc<Self>) -> Result<(), BlockError> {
        if self.shared.has_superblock_mismatch() {
            self.on_leader(Request::MarkDirty).await?;
        }
        // Shards whose logs need a checkpoint record flush on their own: the shard that writes one
        // has to note its completed records before the flush.
        let others = (0..self.shards).filter(|&shard| shard != self.shard && self.shared.is_uncovered(shard));
        let checkpointed = join_all(others.map(|shard| self.on_shard(shard, Request::Checkpoint))).await;
        checkpointed.into_iter().try_for_each(|checkpointed| checkpointed.map(|_| ()))?;
        let mark = self.log().map(|log| (log.flush_begins(), log));
        if self.shared.map.is_dirty() {
            self.on_leader(Request::Persist).await?;
        } else {
            self.flush_members().await?;
        }
        if let Some((mark, log)) = mark {
            log.flush_ended(&mark);
            self.write_checkpoint(&log, &mark).await?;
        }
        Ok(())
    }

    /// Flushes every member and replacement, their checksums included, and informs the logs of all
    /// shards. Members that cannot flush leave the group.
    pub async fn flush_members(self: &Rc<Self>) -> Result<(), BlockError> {
        let completed: SmallVec<[u64; 16]> =
            self.counters.iter().map(|shard| shard.completed.load(Ordering::Acquire)).collect();
        let marks = self.shared.dirty.flush_begins();
        let result = self.save_and_flush_all().await;
        if result.is_ok() {
            for (shard, completed) in self.counters.iter().zip(completed) {
                shard.flushed.fetch_max(completed, Ordering::AcqRel);
            }
        }
        if marks {
            self.shared.dirty.flush_ended(result.is_ok());
        }
        result
    }

    async fn save_and_flush_all(self: &Rc<Self>) -> Result<(), BlockError> {
        self.save_sums_or_fail().await?;
        self.flush_slots(self.shared.slots()).await
    }

    /// Makes the writes to the stripe at these member offsets durable: its strips and parity, with
    /// their checksums. A record whose partial parity comes from strips that it leaves as they are
    /// needs them to be durable. Flushes all members instead, if that costs less by now
    /// ([`Log::may_flush_row`]). Under the stripe group's lock.
    pub async fn flush_row_or_all(
        self: &Rc<Self>,
        log: &Log,
        stripe_group: StripeGroup,
        offsets: Range,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let row = geometry.row_of(offsets.start);
        let written = log.written_in(stripe_group, row);
        let strips = written.iter().fold(RoleSet::EMPTY, |strips, written| strips | written.strips);
        let member = |role| geometry.member(stripe_group, row.start, role);
        let members: SmallVec<[MemberIndex; 8]> =
            strips.iter().chain(geometry.data..geometry.strips()).map(member).collect();
        let (with_sums, unsaved) = self.shared.checksums.as_ref().map_or((1, 0), |sums| (2, sums.table.dirty_len()));
        if !log.may_flush_row(with_sums * members.len(), geometry.members() + unsaved) {
            return self.flush_for_log(log).await;
        }
        self.save_sums_of(stripe_group, row, &members).await?;
        self.flush_slots(members.iter().map(|&member| (member, self.shared.slot(member)))).await?;
        log.became_durable(stripe_group, &written);
        Ok(())
    }

    /// Flushes those of the members that are present. Members that cannot flush leave the group.
    async fn flush_slots(self: &Rc<Self>, slots: impl Iterator<Item = (MemberIndex, Slot)>) -> Result<(), BlockError> {
        self.buggify_delay("checksums are saved, and members are not flushed").await;
        let live = slots.flat_map(|pair| self.drives_of(pair));
        let flush = |(member, id, drive): (MemberIndex, DriveId, Handle<E::Drive>)| async move {
            let mut result = drive.flush().await;
            if let Err(error) = &result
                && !matches!(error, DriveError::Gone)
            {
                self.count_error(member, id, Failed::Retried);
                self.tell_retry(member, id, Failure::flush(error.clone()));
                result = drive.flush().await;
            }
            match result {
                Ok(()) => Ok(()),
                Err(error) => {
                    self.count_error(member, id, Failed::Other);
                    self.fail_or_refuse(member, id, Failure::flush(error)).await
                }
            }
        };
        join_all(live.map(flush)).await.into_iter().collect()
    }
}
