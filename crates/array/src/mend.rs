//! Writes that came to no end, since more members failed at the same time than the group can do without.
//!
//! All members may fail and be back a moment later: an adapter is reset, a path fails over. What was being overwritten then is old on some of them
//! and new on others. Its request has failed, but the group goes on with all of its members, so no recovery puts the stripe right, and as
//! soon as one of them is lost, blocks that nobody was writing would be computed from a mixture.
//!
//! So what was to be written is kept in memory, and is written again before anything else is done with the unit, and in any case
//! [`LOOK_EVERY`]. Until that has worked the record in the log stays open, so that a recovery finds it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Env};

use crate::array::Inner;
use crate::geometry::UnitIndex;
use crate::lock::Turnstile;
use crate::log::Open;
use crate::plan::Strip;
use crate::record::{Logged, Overwritten};
use crate::write::StripWrite;

/// How often it is tried again while nobody asks for the unit.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Of the records that may be open at the same time so many may wait for their strips to be written again before nothing more is begun.
const OPEN_MAX: usize = crate::kept::OPEN_MAX / 2;

/// A component whose strips are old or new.
struct Unended {
    unit: UnitIndex,
    /// Its first column.
    x: u64,
    writes: Vec<StripWrite>,
    record: RefCell<Option<(Open, Overwritten)>>,
}

impl Drop for Unended {
    fn drop(&mut self) {
        // The group was let go before it could be ended: whoever takes it over finds the record open.
        if let Some((open, _)) = self.record.take() {
            open.leave_open();
        }
    }
}

/// The writes of a shard that came to no end.
#[derive(Default)]
pub(crate) struct UnendedWrites {
    all: RefCell<Vec<Rc<Unended>>>,
    /// One mends at a time.
    turn: Turnstile,
    looking: Cell<bool>,
}

impl UnendedWrites {
    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// So many that nothing more should be begun.
    pub fn is_full(&self) -> bool {
        self.all.borrow().len() >= OPEN_MAX
    }

    fn of(&self, unit: Option<UnitIndex>) -> Vec<Rc<Unended>> {
        let all = self.all.borrow();
        all.iter().filter(|unended| unit.is_none_or(|unit| unended.unit == unit)).cloned().collect()
    }
}

impl<E: Env> Inner<E> {
    /// Keeps what was to be written, to be written again.
    pub fn keep_unended(self: &Rc<Self>, unit: UnitIndex, x: u64, writes: Vec<StripWrite>, logged: Logged) {
        let record = match logged {
            Logged::Durable(open, overwritten) => Some((open, overwritten)),
            Logged::Nothing | Logged::Again => None,
        };
        self.unended.all.borrow_mut().push(Rc::new(Unended { unit, x, writes, record: RefCell::new(record) }));
        self.shared.unended.fetch_add(1, Ordering::SeqCst);
        if self.unended.looking.replace(true) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            loop {
                inner.env.sleep(LOOK_EVERY).await;
                if inner.unended.is_empty() || inner.shared.is_stopped() {
                    inner.unended.looking.set(false);
                    return;
                }
                // Without success it is tried again.
                let _ = inner.mend(None).await;
            }
        });
    }

    /// Writes again what came to no end, of a unit or of all. Returns at the first that does not work.
    ///
    /// Nothing else is under way in these columns: all that is asked of a unit waits for this first.
    ///
    /// # Errors
    /// [`BlockError`] as for a write.
    pub async fn mend(self: &Rc<Self>, unit: Option<UnitIndex>) -> Result<(), BlockError> {
        if self.unended.is_empty() {
            return Ok(());
        }
        let _turn = self.unended.turn.enter().await;
        for unended in self.unended.of(unit) {
            self.shared.missed.note(unended.unit);
            let result = self.write_again(&unended).await;
            self.shared.missed.note(unended.unit);
            result?;
        }
        Ok(())
    }

    async fn write_again(self: &Rc<Self>, unended: &Rc<Unended>) -> Result<(), BlockError> {
        let view = self.view(unended.unit, unended.x, &[]);
        // Without those that have left meanwhile, the others are as after a write without them.
        let there = unended.writes.iter().filter(|write| view.0[write.role].strip != Strip::Lost);
        let there: Vec<StripWrite> = there.cloned().collect();
        let failed = self.write_strips(unended.unit, &view, &there, false).await?;
        let is_lost = |role: &usize| view.0[*role].strip == Strip::Lost || failed.contains(role);
        let (lost, survives) = ((0..view.0.len()).filter(is_lost).count(), self.shared.geometry.syndromes);
        if lost > survives {
            return Err(BlockError::Lost { lost, survives });
        }
        self.unended.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, unended));
        self.shared.unended.fetch_sub(1, Ordering::SeqCst);
        if let Some((open, overwritten)) = unended.record.take()
            && self.has_lost_any(&overwritten)
        {
            drop(open);
            self.flush_and_seal().await?;
        }
        Ok(())
    }
}
