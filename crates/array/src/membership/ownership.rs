//! Assignment of a group's stripe groups to shards. Few shards own them where few can do the work,
//! so that more of it is batched.
//!
//! Writes that one shard has at the same time share a frame of the log and a flush. A request that
//! another shard owns costs two messages. So the stripe groups are owned by as many shards as the
//! load needs, next to the shards where the requests arrive ([`Owners`]). The daemon knows both,
//! and sets the owners ([`Array::own`]).
//!
//! How stripe groups change their owners:
//! 1. Every shard closes its gate, and begins no work on stripe groups. Work that is under way ends
//!    within a bounded time, or else nothing changes.
//! 2. Everything is flushed, and a checkpoint record is written. From then on no record of the logs
//!    is needed.
//! 3. The superblocks get the next generation of the log, so that a recovery ignores the old
//!    records. The new logs use the same region, but divide it into other parts. A crash before
//!    this step finds the old generation, with all records completed. A crash after it finds the
//!    new generation, with no records.
//! 4. Every shard takes its new log, and then every shard opens its gate.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Env, join_all, oneshot};
use format::Features;

use crate::array::{Array, ArrayShard};
use crate::geometry::StripeGroup;
use crate::log::Log;
use crate::state::message::{RebuiltAhead, Reply, Request};
use crate::state::owners::Owners;

/// Interval of the checks whether work under way has ended.
const LOOK: Duration = Duration::from_micros(100);

/// Most checks while requests wait. A drive that takes longer is not waited for.
const LOOKS_MAX: usize = 300;

impl<E: Env> Array<E> {
    /// The shards that own the stripe groups now.
    pub fn owners(&self) -> Owners {
        self.0.owners.get()
    }

    /// Assigns the stripe groups to these shards. Leader only. Requests wait meanwhile: for two
    /// flushes of the members, and until work under way has ended.
    ///
    /// Returns whether they own them now. False if something takes too long, or if another
    /// condition has to be resolved first, such as incomplete writes or a superblock mismatch. The
    /// owners are then the same as before.
    ///
    /// # Errors
    /// [`BlockError`] if the members cannot be flushed.
    ///
    /// # Panics
    /// If a shard does not exist, or if runs are empty.
    pub async fn own(&self, owners: Owners) -> Result<bool, BlockError> {
        let shards = self.0.shards;
        let exist = owners.first < shards && (1..=shards).contains(&owners.count);
        assert!(exist && owners.run > 0, "{owners:?} of {shards} shards");
        let inner = self.0.clone();
        self.0.run_detached(async move { inner.give_stripe_groups_to(owners).await }).await
    }

    /// Gives the group an intent log, if it has none: the superblocks say so, and the write-hole
    /// log uses the first half of its region from then on. Leader only. Requests wait meanwhile.
    ///
    /// Returns whether the group has it now. False if something takes too long, or if another
    /// condition has to be resolved first.
    ///
    /// # Errors
    /// [`BlockError`] if the members cannot be flushed, or do not take their superblocks.
    pub async fn add_intent_log(&self) -> Result<bool, BlockError> {
        let inner = self.0.clone();
        self.0.run_detached(async move { inner.change_logs(inner.owners.get(), true).await }).await
    }
}

impl<E: Env> ArrayShard<E> {
    /// The shard that owns a stripe group.
    #[inline]
    pub fn owner(&self, stripe_group: StripeGroup) -> usize {
        self.owners.get().of(stripe_group, self.shards)
    }

    /// The log of this shard, if it owns stripe groups and the group has a log.
    #[inline]
    pub fn log(&self) -> Option<Rc<Log>> {
        self.log.borrow().clone()
    }

    async fn give_stripe_groups_to(self: &Rc<Self>, wanted: Owners) -> Result<bool, BlockError> {
        self.change_logs(wanted, false).await
    }

    /// Replaces the logs of all shards: for other owners, or to make room for an intent log.
    async fn change_logs(self: &Rc<Self>, wanted: Owners, adds_intent_log: bool) -> Result<bool, BlockError> {
        let _turn = self.leader().owners_lock.enter().await;
        let adds_intent_log = adds_intent_log && !self.shared.has_intent_log();
        let owners = self.fitting(wanted, adds_intent_log || self.shared.has_intent_log());
        if owners == self.owners.get() && !adds_intent_log {
            return Ok(true);
        }
        if self.shared.is_stopped() || self.leader().superblock.borrow().is_read_only() {
            return Ok(false);
        }
        // So that little is left to flush while requests wait.
        self.flush().await?;
        self.on_all(|| Request::Close).await?;
        let given = self.change_quiet_logs(owners, adds_intent_log).await;
        self.on_all(|| Request::Open).await?;
        given
    }

    async fn change_quiet_logs(self: &Rc<Self>, owners: Owners, adds_intent_log: bool) -> Result<bool, BlockError> {
        let mut ahead: Vec<RebuiltAhead> = vec![RebuiltAhead::new(); self.shards];
        for quiet in self.on_all(|| Request::Quiet).await? {
            let Reply::Quiet(Some(of_shard)) = quiet else { return Ok(false) };
            for (drive, stripe_group) in of_shard {
                ahead[owners.of(stripe_group, self.shards)].insert((drive, stripe_group));
            }
        }
        self.buggify_delay("nothing is under way, and stripe groups have their owners").await;
        self.flush().await?;
        // The holder may wait for something that waits for this task.
        let Some(_turn) = self.leader().state_lock.try_enter() else { return Ok(false) };
        // During a superblock mismatch the logs hold records of the state that the superblocks may
        // return to.
        if self.shared.is_stopped() || self.shared.has_superblock_mismatch() {
            return Ok(false);
        }
        let mut committed = Ok(());
        if adds_intent_log {
            self.leader().superblock.borrow_mut().features.incompatible |= Features::INTENT_LOG;
        }
        if adds_intent_log || self.shared.has_log() && self.shared.is_marked_dirty() {
            let generation = self.leader().superblock.borrow().log_generation + 1;
            self.leader().superblock.borrow_mut().log_generation = generation;
            // If this fails, nothing is written until superblocks have the generation.
            committed = self.commit(self.state()).await;
            if self.leader().superblock.borrow().has_intent_log() {
                self.shared.add_intent_log();
            }
            self.buggify_delay("the next generation of the log is announced, and nobody has it").await;
            self.shared.log_generation.store(generation, Ordering::Release);
        }
        let own = |(shard, ahead)| self.on_shard(shard, Request::Own(owners, ahead));
        join_all(ahead.into_iter().enumerate().map(own)).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        committed.map(|()| true)
    }

    /// Limits the number of owners to the streams that the log has room for.
    pub fn fitting(&self, wanted: Owners, has_intent_log: bool) -> Owners {
        let rings = format::log::rings(&self.shared.layout, has_intent_log);
        match self.shared.has_log() {
            true => Owners { count: format::log::ring_count(&rings, wanted.count), ..wanted },
            false => wanted,
        }
    }

    async fn on_all(self: &Rc<Self>, request: impl Fn() -> Request) -> Result<Vec<Reply>, BlockError> {
        let asked = (0..self.shards).map(|shard| self.on_shard(shard, request()));
        join_all(asked).await.into_iter().collect()
    }

    /// Waits until the gate is open.
    ///
    /// # Errors
    /// [`BlockError::Stopped`] if the group was stopped meanwhile.
    pub async fn gate_opens(&self) -> Result<(), BlockError> {
        while self.gate.closed.get() {
            let (sender, receiver) = oneshot();
            self.gate.waiting.borrow_mut().push(sender);
            let _ = receiver.await;
        }
        // The barrier of a stop has not seen requests that waited here.
        if self.shared.is_stopped() { Err(BlockError::Stopped) } else { Ok(()) }
    }

    /// Begins no more work on stripe groups, also of other owners.
    pub fn close_gate(&self) {
        self.gate.closed.set(true);
    }

    /// Begins work on stripe groups again.
    pub fn open_gate(&self) {
        self.gate.closed.set(false);
        for waiter in self.gate.waiting.take() {
            waiter.send(());
        }
    }

    /// Waits until this shard has no work on stripe groups under way, and none requested from
    /// another shard. All gates must be closed. Returns the state of its stripe groups that only
    /// this shard knows. `None` if that takes too long, or if this shard has incomplete writes to
    /// repeat.
    pub async fn falls_quiet(&self) -> Option<RebuiltAhead> {
        for _ in 0..LOOKS_MAX {
            if self.stripe_groups.borrow().is_empty() && self.gate.asked.get() == 0 {
                return self.incomplete.is_empty().then(|| self.rebuilt_ahead.borrow().clone());
            }
            self.env.sleep(LOOK).await;
        }
        None
    }

    /// Sets the owners, and takes over what is known of this shard's stripe groups. All gates must
    /// be closed, nothing under way, everything flushed, and a checkpoint record written.
    pub async fn own(&self, owners: Owners, ahead: RebuiltAhead) {
        let before = self.log();
        if let Some(log) = &before {
            log.close().await;
            self.log_next.set(log.next());
        }
        self.rebuilt_ahead.replace(ahead);
        self.owners.set(owners);
        self.log.replace(self.new_log());
    }

    /// An empty log for the stripe groups that this shard owns.
    pub fn new_log(&self) -> Option<Rc<Log>> {
        let owners = self.owners.get();
        let stream = owners.index(self.shard, self.shards).filter(|_| self.shared.has_log())?;
        let streams = (stream, owners.count);
        Some(Log::new(&self.shared, self.counters.clone(), self.shard, streams, self.log_next.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_group_has_one_owner_which_is_one_of_them() {
        for shards in 1..=5 {
            for first in 0..shards {
                for (count, run) in (1..=shards).flat_map(|count| [1, 3].map(|run| (count, run))) {
                    let owners = Owners { first, count, run };
                    let indices: Vec<usize> = (0..shards).filter_map(|shard| owners.index(shard, shards)).collect();
                    assert_eq!(indices.len(), count, "{owners:?} of {shards}");
                    for stripe_group in 0..40 {
                        let index = owners.index(owners.of(StripeGroup(stripe_group), shards), shards);
                        assert_eq!(index, Some((stripe_group / run) as usize % count), "{owners:?} of {shards}");
                    }
                }
            }
        }
    }
}
