//! Virtual time: one queue of events, ordered by instant and, within an instant, at random.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::drive::Nanos;

use crate::drive::state::DriveState;
use crate::rng::Rng;
use crate::world::World;

/// An event at an instant.
pub(crate) enum Event {
    /// A sleep ends.
    Sleep { slot: u32, serial: u64 },
    /// A drive operation completes.
    Drive { drive: Rc<DriveState>, slot: u32, serial: u64 },
}

struct Entry {
    at: Nanos,
    /// Drawn from the seed: the order within an instant.
    draw: u32,
    /// The final tie-break, so that the order is total.
    serial: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> (Nanos, u32, u64) {
        (self.at, self.draw, self.serial)
    }
}

// The heap gives the largest entry first: the earliest must be the largest.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Entry {}

struct Sleeper {
    /// 0: the slot is free.
    serial: u64,
    waker: Option<Waker>,
    fired: bool,
}

/// The events to come.
#[derive(Default)]
pub(crate) struct Timeline {
    heap: BinaryHeap<Entry>,
    serial_last: u64,
    sleepers: Vec<Sleeper>,
    free: Vec<u32>,
}

impl Timeline {
    pub(crate) fn push(&mut self, at: Nanos, rng: &mut Rng, event: Event) {
        self.serial_last += 1;
        self.heap.push(Entry { at, draw: rng.next_u64() as u32, serial: self.serial_last, event });
    }

    /// Takes the next event that is still valid, if it is not after `until`.
    pub(crate) fn pop(&mut self, until: Nanos) -> Option<(Nanos, Event)> {
        loop {
            let alive = match &self.heap.peek()?.event {
                Event::Sleep { slot, serial } => self.sleepers[*slot as usize].serial == *serial,
                Event::Drive { drive, slot, serial } => drive.is_flying(*slot, *serial),
            };
            if alive && self.heap.peek()?.at > until {
                return None;
            }
            let entry = self.heap.pop()?;
            if alive {
                return Some((entry.at, entry.event));
            }
        }
    }

    fn sleep(&mut self, at: Nanos, rng: &mut Rng, waker: Waker) -> (u32, u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sleepers.push(Sleeper { serial: 0, waker: None, fired: false });
            (self.sleepers.len() - 1) as u32
        });
        let serial = self.serial_last + 1;
        self.push(at, rng, Event::Sleep { slot, serial });
        self.sleepers[slot as usize] = Sleeper { serial, waker: Some(waker), fired: false };
        (slot, serial)
    }

    /// Takes all events out: no event will ever happen again.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.heap).into_iter().map(|entry| entry.event).collect()
    }

    /// Ends the sleep in `slot`; gives the waker to be woken once no borrow is held.
    pub(crate) fn fire_sleep(&mut self, slot: u32) -> Option<Waker> {
        let sleeper = &mut self.sleepers[slot as usize];
        sleeper.fired = true;
        sleeper.waker.take()
    }
}

/// The future of `Env::sleep`.
pub(crate) struct Sleep {
    world: Rc<World>,
    deadline: Nanos,
    slot: Option<u32>,
}

impl Sleep {
    pub(crate) fn until(world: Rc<World>, deadline: Nanos) -> Self {
        Sleep { world, deadline, slot: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut timeline = world.timeline.borrow_mut();
        let Some(slot) = self.slot else {
            // First polled after its time has passed: due at once, but after the end of the turn,
            // like every event.
            let at = self.deadline.max(world.now());
            let (slot, _) = timeline.sleep(at, &mut world.rng.borrow_mut(), context.waker().clone());
            self.slot = Some(slot);
            return Poll::Pending;
        };
        let sleeper = &mut timeline.sleepers[slot as usize];
        if sleeper.fired {
            return Poll::Ready(());
        }
        match &mut sleeper.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let waker = {
            let mut timeline = self.world.timeline.borrow_mut();
            let sleeper = &mut timeline.sleepers[slot as usize];
            // The event in the heap finds another serial and is skipped.
            sleeper.serial = 0;
            let waker = sleeper.waker.take();
            timeline.free.push(slot);
            waker
        };
        drop(waker);
    }
}
