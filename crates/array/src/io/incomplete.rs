//! Incomplete writes, kept until they are written again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use format::BLOCK;

use crate::geometry::StripeGroup;
use crate::geometry::ranges::Range;
use crate::io::types::{Overwritten, StripWrite};
use crate::log::Open;
use crate::util::semaphore::FairSemaphore;

/// A component whose strips are old on some members and new on others.
pub(crate) struct IncompleteWrite {
    pub(crate) stripe_group: StripeGroup,
    pub(crate) offsets: Range,
    pub(crate) writes: Vec<StripWrite>,
    pub(crate) record: RefCell<Option<(Open, Overwritten)>>,
}

impl IncompleteWrite {
    /// Whether it shares a block, and so a checksum, with these member offsets.
    fn meets(&self, stripe_group: StripeGroup, offsets: Range) -> bool {
        let block = BLOCK as u64;
        let blocks = |range: Range| Range::new(range.start / block, range.end.div_ceil(block));
        self.stripe_group == stripe_group && !blocks(self.offsets).intersect(blocks(offsets)).is_empty()
    }
}

impl Drop for IncompleteWrite {
    fn drop(&mut self) {
        // The group was released before the write could be repeated. The next start finds the
        // record open.
        if let Some((open, _)) = self.record.take() {
            open.leave_open();
        }
    }
}

/// The incomplete writes of a shard.
#[derive(Default)]
pub(crate) struct IncompleteWrites {
    pub(crate) all: RefCell<Vec<Rc<IncompleteWrite>>>,
    /// One retry runs at a time.
    pub(crate) turn: FairSemaphore,
    pub(crate) looking: Cell<bool>,
}

impl IncompleteWrites {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.borrow().is_empty()
    }

    /// Whether some lie in these member offsets. If so, nothing may be computed from the member
    /// offsets.
    #[inline]
    pub fn are_in(&self, stripe_group: StripeGroup, offsets: Range) -> bool {
        !self.is_empty() && self.all.borrow().iter().any(|incomplete| incomplete.meets(stripe_group, offsets))
    }

    /// Whether some hold records open.
    pub fn have_records(&self) -> bool {
        self.all.borrow().iter().any(|incomplete| incomplete.record.borrow().is_some())
    }

    /// Releases the records. The log needs their space, and members take flushes but not these
    /// writes. From now on the data that the records protect is only in memory.
    pub fn give_up_records(&self) {
        for incomplete in &*self.all.borrow() {
            drop(incomplete.record.take());
        }
    }

    pub(crate) fn of(&self, which: impl Fn(StripeGroup) -> bool) -> Vec<Rc<IncompleteWrite>> {
        self.all.borrow().iter().filter(|incomplete| which(incomplete.stripe_group)).cloned().collect()
    }
}
