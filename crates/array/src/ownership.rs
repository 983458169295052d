//! Which shards own a group's units: few where few can do the work, so that more of it comes
//! together.
//!
//! Writes that one shard has at the same time share a frame of the log and a flush; a request that
//! another shard owns costs two messages. So the units of a group are owned by as many shards as
//! its load needs, next to where the requests come from ([`Owners`]). Who runs the group knows
//! both, and says so ([`Array::own`]).
//!
//! How units change their owners:
//! 1. Every shard closes its gate: no work on a unit is begun. What is under way ends, within a
//!    bound, or all stays as it was.
//! 2. Everything is flushed and sealed: of no record of the logs anything is needed any more.
//! 3. The superblocks say the next generation of the log, so that a recovery does not see those
//!    records: the new logs lie over them, in other parts of the region. A crash before finds the
//!    old generation, with everything settled; a crash after it finds the new one, with nothing in
//!    it.
//! 4. Every shard takes its new log, and then every shard opens its gate.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Env, join_all, oneshot};

use crate::array::{Array, Inner};
use crate::geometry::UnitIndex;
use crate::log::Log;
use crate::message::{Outcome, RebuiltAhead, Request};

/// The shards that own the units of a group: `count` of them from `first` on, and from shard 0 on
/// after the last. Runs of units are dealt to them in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The shard that owns the first unit.
    pub first: usize,
    /// How many, at least one. Of small drives, whose log has room for fewer streams, so many as it
    /// has room for.
    pub count: usize,
    /// Units that follow one another and have the same owner, at least one. Large requests stay
    /// together if a run has about as many bytes.
    pub run: u64,
}

impl Owners {
    /// All shards, from the leader on, unit by unit.
    pub fn all(shards: usize) -> Owners {
        Owners { first: 0, count: shards, run: 1 }
    }

    /// They, in the order of the runs that they own, of `shards`.
    pub fn among(self, shards: usize) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |index| (self.first + index) % shards)
    }

    /// The shard that owns a unit, of `shards`.
    #[inline]
    fn of(self, unit: UnitIndex, shards: usize) -> usize {
        let index = if self.count == 1 { 0 } else { (unit.0 / self.run % self.count as u64) as usize };
        let shard = self.first + index;
        if shard < shards { shard } else { shard - shards }
    }

    /// Which of the owners a shard is, of `shards`.
    fn index(self, shard: usize, shards: usize) -> Option<usize> {
        let index = (shard + shards - self.first) % shards;
        (index < self.count).then_some(index)
    }
}

/// How often it is looked whether what is under way has ended.
const LOOK: Duration = Duration::from_micros(100);

/// How often at most, while requests wait: a drive that takes long is not waited for.
const LOOKS_MAX: usize = 300;

impl<E: Env> Array<E> {
    /// Which shards own the units now.
    pub fn owners(&self) -> Owners {
        self.0.owners.get()
    }

    /// Has units owned by these shards from now on. Leader only. Requests wait meanwhile, for two
    /// flushes of the members and the time in which what is under way ends.
    ///
    /// Says whether they are: no if something takes too long, or if the group has to be put in
    /// order first. Then they are owned as before.
    ///
    /// # Errors
    /// [`BlockError`] if the members cannot be flushed.
    ///
    /// # Panics
    /// If there are no such shards, or runs are empty.
    pub async fn own(&self, owners: Owners) -> Result<bool, BlockError> {
        let shards = self.0.shards;
        let exist = owners.first < shards && (1..=shards).contains(&owners.count);
        assert!(exist && owners.run > 0, "{owners:?} of {shards} shards");
        let inner = self.0.clone();
        self.0.to_the_end(async move { inner.give_units_to(owners).await }).await
    }
}

impl<E: Env> Inner<E> {
    /// The shard that owns a unit.
    #[inline]
    pub fn owner(&self, unit: UnitIndex) -> usize {
        self.owners.get().of(unit, self.shards)
    }

    /// The log of this shard, if it owns units and the group has one.
    #[inline]
    pub fn log(&self) -> Option<Rc<Log>> {
        self.log.borrow().clone()
    }

    async fn give_units_to(self: &Rc<Self>, wanted: Owners) -> Result<bool, BlockError> {
        let _turn = self.leader().owners_lock.enter().await;
        let owners = self.fitting(wanted);
        if owners == self.owners.get() {
            return Ok(true);
        }
        if self.shared.is_stopped() || self.leader().superblock.borrow().is_read_only() {
            return Ok(false);
        }
        // Little is left to be done while requests wait.
        self.flush().await?;
        self.on_all(|| Request::Close).await?;
        let given = self.give_quiet_units_to(owners).await;
        self.on_all(|| Request::Open).await?;
        given
    }

    async fn give_quiet_units_to(self: &Rc<Self>, owners: Owners) -> Result<bool, BlockError> {
        let mut ahead: Vec<RebuiltAhead> = vec![RebuiltAhead::new(); self.shards];
        for quiet in self.on_all(|| Request::Quiet).await? {
            let Outcome::Quiet(Some(of_shard)) = quiet else { return Ok(false) };
            for (drive, unit) in of_shard {
                ahead[owners.of(unit, self.shards)].insert((drive, unit));
            }
        }
        self.dawdle("nothing is under way, and units have their owners").await;
        self.flush().await?;
        // Who has it may wait for what waits for this.
        let Some(_turn) = self.leader().state_lock.try_enter() else { return Ok(false) };
        // While superblocks may say what is not so, the logs hold what they might come to say
        // again.
        if self.shared.is_stopped() || self.shared.is_astray() {
            return Ok(false);
        }
        let mut committed = Ok(());
        if self.shared.has_log() && self.shared.is_announced() {
            let generation = self.leader().superblock.borrow().log_generation + 1;
            self.leader().superblock.borrow_mut().log_generation = generation;
            // Without success nothing is written before superblocks say it.
            committed = self.commit(self.state()).await;
            self.dawdle("the next generation of the log is announced, and nobody has it").await;
            self.shared.log_generation.store(generation, Ordering::Release);
        }
        let own = |(shard, ahead)| self.on_shard(shard, Request::Own(owners, ahead));
        join_all(ahead.into_iter().enumerate().map(own)).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        committed.map(|()| true)
    }

    /// So many of these shards as there is room for in the log.
    pub fn fitting(&self, wanted: Owners) -> Owners {
        match self.shared.has_log() {
            true => Owners { count: format::log::ring_count(&self.shared.layout, wanted.count), ..wanted },
            false => wanted,
        }
    }

    async fn on_all(self: &Rc<Self>, request: impl Fn() -> Request) -> Result<Vec<Outcome>, BlockError> {
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
        // The barrier of a stop has not seen what waited here.
        if self.shared.is_stopped() { Err(BlockError::Stopped) } else { Ok(()) }
    }

    /// Begins no work on units, whoever owns them.
    pub fn close_gate(&self) {
        self.gate.closed.set(true);
    }

    /// Begins work on units again.
    pub fn open_gate(&self) {
        self.gate.closed.set(false);
        for waiter in self.gate.waiting.take() {
            waiter.send(());
        }
    }

    /// Waits until no work on units is under way that this shard does, or has asked another one
    /// for. With all gates closed. Gives what only it knows of its units; nothing if that takes too
    /// long, or if writes that came to no end are to be repeated by this shard.
    pub async fn falls_quiet(&self) -> Option<RebuiltAhead> {
        for _ in 0..LOOKS_MAX {
            if self.units.borrow().is_empty() && self.gate.asked.get() == 0 {
                return self.unended.is_empty().then(|| self.rebuilt_ahead.borrow().clone());
            }
            self.env.sleep(LOOK).await;
        }
        None
    }

    /// Takes what this shard owns from now on, with what is known of it. With all gates closed,
    /// nothing under way, and everything flushed and sealed.
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

    /// An empty log for what this shard owns.
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
    fn every_unit_has_one_owner_which_is_one_of_them() {
        for shards in 1..=5 {
            for first in 0..shards {
                for (count, run) in (1..=shards).flat_map(|count| [1, 3].map(|run| (count, run))) {
                    let owners = Owners { first, count, run };
                    let indices: Vec<usize> = (0..shards).filter_map(|shard| owners.index(shard, shards)).collect();
                    assert_eq!(indices.len(), count, "{owners:?} of {shards}");
                    for unit in 0..40 {
                        let index = owners.index(owners.of(UnitIndex(unit), shards), shards);
                        assert_eq!(index, Some((unit / run) as usize % count), "{owners:?} of {shards}");
                    }
                }
            }
        }
    }
}
