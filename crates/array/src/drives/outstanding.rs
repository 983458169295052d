//! How much one shard may have outstanding at one drive, bounded by the drive's throughput.
//!
//! A drive that gets all pending operations at once keeps them in its own queue, where the last one
//! waits for minutes. The kernel, or the machine behind a remote drive, gives an operation up after
//! 30 s or so, and reports that the drive has failed. So a shard issues only as much as the drive
//! serves in [`HORIZON`], or a few MiB if that is more, and the rest waits here. For example, a
//! drive of 100 MiB/s has at most 200 MiB outstanding. 64 MiB of writes go to a drive of 1 MiB/s in
//! portions of 8 MiB, the lowest bound, and no write waits for longer than 8 s in the drive.
//!
//! - A bound follows the recent throughput of the drive ([`MEASURE_EVERY`]). The bounds of
//!   all shards together are never below [`BOUND_BYTES_MIN`], which no fast drive has outstanding
//!   for long.
//! - Operations wait in order. One that is larger than the bound is issued when nothing else is
//!   outstanding.
//! - An operation that its drive has done when it is first polled is not counted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use drive::Nanos;

/// A drive may have as much outstanding as it serves in this time, if that is more than the lowest
/// bound.
const HORIZON: Nanos = 2_000_000_000;

/// How often bounds are updated.
pub(crate) const MEASURE_EVERY: Nanos = 200_000_000;

/// The lowest bound in bytes of up to eight shards together. More shards have
/// [`SHARD_BOUND_BYTES_MIN`] each, which is more in all.
const BOUND_BYTES_MIN: u64 = 8 << 20;

/// The lowest bound in bytes of one shard.
const SHARD_BOUND_BYTES_MIN: u64 = 1 << 20;

/// The operations that one shard has outstanding at one drive.
#[derive(Debug)]
pub(crate) struct Outstanding {
    bytes: Cell<u64>,
    bound_bytes: Cell<u64>,
    bound_bytes_min: u64,
    /// Bytes answered since the bound was set.
    answered_bytes: Cell<u64>,
    /// Operations that wait, in their order.
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    is_admitted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The place of an operation among those of its drive. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Turn {
    drive: Rc<Outstanding>,
    bytes: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The operation was not issued yet, or the drive has answered at once.
    New,
    Waiting(Rc<Waiter>),
    Counted,
}

impl Outstanding {
    /// Creates the accounting of a drive for one of `shards` shards.
    pub fn new(shards: usize) -> Rc<Outstanding> {
        let bound_bytes_min = (BOUND_BYTES_MIN / shards as u64).max(SHARD_BOUND_BYTES_MIN);
        Rc::new(Outstanding {
            bytes: Cell::new(0),
            bound_bytes: Cell::new(bound_bytes_min),
            bound_bytes_min,
            answered_bytes: Cell::new(0),
            waiting: RefCell::default(),
        })
    }

    /// Creates the place of an operation of this many bytes.
    #[inline]
    pub fn turn(self: &Rc<Self>, bytes: u64) -> Turn {
        Turn { drive: self.clone(), bytes, state: State::New }
    }

    /// Whether an operation has to wait.
    #[inline]
    pub fn must_wait(&self, bytes: u64) -> bool {
        !self.fits(bytes) || !self.waiting.borrow().is_empty()
    }

    fn fits(&self, bytes: u64) -> bool {
        let outstanding = self.bytes.get();
        outstanding == 0 || outstanding + bytes <= self.bound_bytes.get()
    }

    /// Sets the bound from the bytes answered in the last `nanos`.
    pub fn measure(&self, nanos: Nanos) {
        let answered = self.answered_bytes.replace(0);
        let served = u128::from(answered) * u128::from(HORIZON) / u128::from(nanos.max(1));
        let served = u64::try_from(served).unwrap_or(u64::MAX);
        self.bound_bytes.set(served.max(self.bound_bytes_min));
        self.serve();
    }

    fn leave(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() - bytes);
        self.serve();
    }

    /// Admits waiting operations as far as they fit.
    #[inline]
    fn serve(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        loop {
            let next = self.waiting.borrow().front().filter(|waiter| self.fits(waiter.bytes)).cloned();
            let Some(waiter) = next else { return };
            self.waiting.borrow_mut().pop_front();
            self.bytes.set(self.bytes.get() + waiter.bytes);
            waiter.is_admitted.set(true);
            let waker = waiter.waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Turn {
    /// Call this before the operation is issued. Ready once it may be.
    #[inline]
    pub fn poll_admitted(&mut self, context: &Context<'_>) -> Poll<()> {
        if matches!(self.state, State::New) {
            if !self.drive.must_wait(self.bytes) {
                return Poll::Ready(());
            }
            let (is_admitted, waker) = Default::default();
            let waiter = Rc::new(Waiter { bytes: self.bytes, is_admitted, waker });
            self.drive.waiting.borrow_mut().push_back(waiter.clone());
            self.state = State::Waiting(waiter);
        }
        if let State::Waiting(waiter) = &self.state {
            if !waiter.is_admitted.get() {
                *waiter.waker.borrow_mut() = Some(context.waker().clone());
                return Poll::Pending;
            }
            self.state = State::Counted;
        }
        Poll::Ready(())
    }

    /// Returns when the operation may be issued.
    pub async fn admitted(&mut self) {
        poll_fn(|context| self.poll_admitted(context)).await;
    }

    /// The operation was issued, and the drive has not answered at once.
    #[inline]
    pub fn asked(&mut self) {
        if matches!(self.state, State::New) {
            self.drive.bytes.set(self.drive.bytes.get() + self.bytes);
            self.state = State::Counted;
        }
    }

    /// The drive has answered.
    #[inline]
    pub fn answered(&self) {
        if matches!(self.state, State::Counted) {
            let answered = &self.drive.answered_bytes;
            answered.set(answered.get() + self.bytes);
        }
    }
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        match &self.state {
            State::New => {}
            State::Counted => self.drive.leave(self.bytes),
            State::Waiting(waiter) if waiter.is_admitted.get() => self.drive.leave(self.bytes),
            State::Waiting(waiter) => {
                self.drive.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, waiter));
                self.drive.serve();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn poll(turn: &mut Turn) -> Poll<()> {
        turn.poll_admitted(&Context::from_waker(Waker::noop()))
    }

    /// An operation that was issued, or waits.
    fn begin(drive: &Rc<Outstanding>, bytes: u64) -> Turn {
        let mut turn = drive.turn(bytes);
        if poll(&mut turn).is_ready() {
            turn.asked();
        }
        turn
    }

    #[test]
    fn a_drive_is_asked_for_what_it_serves_in_the_horizon() {
        let drive = Outstanding::new(1);
        let mut all: VecDeque<Turn> = (0..64).map(|_| begin(&drive, MIB)).collect();
        assert_eq!(drive.bytes.get(), 8 * MIB);
        // 100 MiB/s: a bound of 200 MiB.
        drive.answered_bytes.set(20 * MIB);
        drive.measure(MEASURE_EVERY);
        assert_eq!((drive.bound_bytes.get(), drive.bytes.get()), (200 * MIB, 64 * MIB));
        // 1 MiB/s: the lowest bound, until all but that much is answered.
        drive.answered_bytes.set(MIB / 5);
        drive.measure(MEASURE_EVERY);
        assert!(drive.must_wait(1));
        while drive.bytes.get() > 7 * MIB {
            assert!(poll(&mut all[0]).is_ready());
            all.pop_front();
        }
        assert!(!drive.must_wait(MIB));
    }

    #[test]
    fn operations_go_in_order_and_a_large_one_goes_alone() {
        let drive = Outstanding::new(16);
        let small = begin(&drive, MIB / 2);
        let mut large = begin(&drive, 64 * MIB);
        let mut last = begin(&drive, 1);
        assert!(poll(&mut large).is_pending() && poll(&mut last).is_pending());
        drop(small);
        assert!(poll(&mut large).is_ready() && poll(&mut last).is_pending());
        drop(large);
        assert!(poll(&mut last).is_ready());
        drop(last);
        assert_eq!(drive.bytes.get(), 0);
    }

    #[test]
    fn operations_that_are_dropped_wait_no_longer() {
        let drive = Outstanding::new(1);
        let first = begin(&drive, 8 * MIB);
        let (gone, admitted) = (begin(&drive, MIB), begin(&drive, MIB));
        drop(gone);
        drop(first);
        assert_eq!(drive.bytes.get(), MIB);
        // It was admitted, and is dropped before it is issued.
        drop(admitted);
        assert_eq!(drive.bytes.get(), 0);
        assert!(drive.waiting.borrow().is_empty());
    }
}
