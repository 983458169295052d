//! Incomplete writes: writes that failed on more members than the group can do without.
//!
//! All members may fail and be back a moment later, for example after an adapter reset or a path
//! failover. The strips of a write that was under way are then old on some members and new on
//! others. The request has failed, but the group goes on with all of its members, so no recovery
//! puts the stripe right. As soon as one member is lost, blocks that were not being written would
//! be computed from a mix of old and new strips.
//!
//! So the data of the write is kept in memory, and its record in the log stays open, until the
//! write is repeated. That happens before anything is computed from other strips of these member
//! offsets, before their allocation chunks are written, before the stripe group is rebuilt or
//! scrubbed, and by itself after a while. While the retry fails, strips that can be read are read,
//! and all else in these member offsets is an error.
//!
//! The number of incomplete writes is bounded. With [`INCOMPLETE_MAX`] of them, sets that have some
//! take no further writes. A group without parity computes nothing from other strips, but it has to
//! compute checksums of blocks that were written in part. Beyond the bound it leaves those as they
//! are.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Env, join_all};

use crate::array::ArrayShard;
use crate::geometry::StripeGroup;
use crate::geometry::ranges::Range;
use crate::io::incomplete::IncompleteWrite;
use crate::io::plan::Strip;
use crate::io::types::{Logged, StripWrite};
use crate::state::message::{Op, Pieces};
use crate::state::warm::OPEN_MAX;

/// Pause before the first retry while no request needs the stripe groups. Each failure doubles it.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// Longest pause between retries.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// Most incomplete writes that each shard keeps with their records open: half of the records that
/// may be open at the same time.
const INCOMPLETE_MAX: usize = OPEN_MAX / 2;

impl<E: Env> ArrayShard<E> {
    /// Keeps the data of an incomplete write, to write it again.
    pub fn keep_incomplete(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
        writes: Vec<StripWrite>,
        logged: Logged,
    ) {
        let count = self.incomplete.all.borrow().len();
        let redundant = self.shared.geometry.parity_count > 0;
        if !redundant && (self.shared.checksums.is_none() || count >= INCOMPLETE_MAX) {
            return;
        }
        let record = match logged {
            // Writes that were under way when the limit was reached. Other sets need the rest of
            // the capacity for open records.
            Logged::Durable(..) if count >= INCOMPLETE_MAX || !self.shared.indeterminate.is_roomy() => None,
            Logged::Durable(open, overwritten) => Some((open, overwritten)),
            Logged::Nothing | Logged::Again => None,
        };
        let incomplete = IncompleteWrite { stripe_group, offsets, writes, record: RefCell::new(record) };
        self.incomplete.all.borrow_mut().push(Rc::new(incomplete));
        if redundant {
            self.shared.incomplete.fetch_add(1, Ordering::SeqCst);
        }
        if self.incomplete.looking.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            let mut pause = AGAIN_MIN;
            while !inner.incomplete.is_empty() && !inner.shared.is_stopped() {
                inner.env.sleep(pause).await;
                if inner.retry_writes(|_| true).await.is_err() {
                    pause = (2 * pause).min(AGAIN_MAX);
                }
            }
            inner.incomplete.looking.set(false);
        });
    }

    /// Repeats the incomplete writes that have to be done before `op` runs on the stripe group.
    ///
    /// # Errors
    /// [`BlockError`] as for a write, if the retry failed and `op` cannot do without it.
    pub async fn retry_writes_before(self: &Rc<Self>, stripe_group: StripeGroup, op: &Op) -> Result<(), BlockError> {
        match op {
            // Reads check themselves whether they need a retry. A chunk that is discarded was freed
            // by a write.
            Op::Read { .. } | Op::Lock | Op::Nothing => Ok(()),
            Op::Rebuild { .. } | Op::Scrub { .. } => self.retry_writes(|other| other == stripe_group).await,
            Op::Write { pieces, .. } => {
                if let Err(error) = self.retry_writes(|other| other == stripe_group).await
                    && self.are_incomplete_in_chunks(stripe_group, pieces)
                {
                    return Err(error);
                }
                let geometry = &self.shared.geometry;
                let of_set = |other: StripeGroup| other.0 % geometry.sets == stripe_group.0 % geometry.sets;
                let is_full = geometry.parity_count > 0 && self.incomplete.all.borrow().len() >= INCOMPLETE_MAX;
                if is_full { self.retry_writes(of_set).await } else { Ok(()) }
            }
        }
    }

    /// Whether a write would touch allocation chunks that have incomplete writes.
    fn are_incomplete_in_chunks(&self, stripe_group: StripeGroup, pieces: &Pieces) -> bool {
        let chunk = self.shared.geometry.chunk_bytes;
        let chunks = |range: Range| Range::new(range.start / chunk * chunk, range.end.div_ceil(chunk) * chunk);
        pieces.iter().any(|piece| self.incomplete.are_in(stripe_group, chunks(piece.range)))
    }

    /// Repeats the incomplete writes of the stripe groups that `which` chooses, all together.
    ///
    /// Nothing else is under way in these member offsets: operations that need them wait for this
    /// first.
    ///
    /// # Errors
    /// [`BlockError`] as for a write, of the first one that failed.
    pub async fn retry_writes(self: &Rc<Self>, which: impl Fn(StripeGroup) -> bool) -> Result<(), BlockError> {
        if self.incomplete.is_empty() {
            return Ok(());
        }
        let _turn = self.incomplete.turn.enter().await;
        let again = self.incomplete.of(which).into_iter().map(|incomplete| async move {
            self.shared.dirty.note(incomplete.stripe_group);
            let result = self.write_again(&incomplete).await;
            self.shared.dirty.note(incomplete.stripe_group);
            result
        });
        join_all(again).await.into_iter().collect()
    }

    async fn write_again(self: &Rc<Self>, incomplete: &Rc<IncompleteWrite>) -> Result<(), BlockError> {
        let view = self.view(incomplete.stripe_group, incomplete.offsets.start, &[]);
        // Members that have left meanwhile are skipped. The others are then as after a write
        // without them.
        let there = incomplete.writes.iter().filter(|write| view.0[write.role].strip != Strip::Lost);
        let there: Vec<StripWrite> = there.cloned().collect();
        let failed = self.write_strips(incomplete.stripe_group, &view, &there, false).await?;
        let is_lost = |role: &usize| view.0[*role].strip == Strip::Lost || failed.contains(role);
        let (lost, survives) = ((0..view.0.len()).filter(is_lost).count(), self.shared.geometry.parity_count);
        if lost > survives {
            return Err(BlockError::Lost { lost, survives });
        }
        self.incomplete.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, incomplete));
        if survives > 0 {
            self.shared.incomplete.fetch_sub(1, Ordering::SeqCst);
        }
        if let Some((open, overwritten)) = incomplete.record.take()
            && self.has_lost_any(&overwritten)
        {
            drop(open);
            self.flush_and_checkpoint().await?;
        }
        Ok(())
    }
}
