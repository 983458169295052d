//! Time, tasks, drives and memory of the engine in a simulation.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::drive::{BufMut, Env, Nanos};

use crate::clock::Sleep;
use crate::remote::GroupDrive;
use crate::world::{SimEnv, World, deadline};

impl Env for SimEnv {
    type Drive = GroupDrive;

    fn now(&self) -> Nanos {
        self.world.now()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        Sleep::until(self.world.clone(), deadline(self.world.now(), duration))
    }

    fn turn_end(&self) -> impl Future<Output = ()> + 'static {
        TurnEnd { world: self.world.clone(), turn: None }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(self.owner, Box::pin(task));
    }

    fn buggify(&self, place: &'static str) -> bool {
        let mut buggify = self.world.buggify.borrow_mut();
        let Some(places) = buggify.as_mut() else { return false };
        let mut rng = self.world.rng.borrow_mut();
        let (open, taken) = places.entry(place).or_insert_with(|| (rng.chance(1, 3), 0));
        let take = *open && rng.chance(1, 8);
        *taken += u64::from(take);
        take
    }

    /// Never zeroes: filled with a byte that changes from buffer to buffer.
    fn alloc(&self, len: usize) -> BufMut {
        let poison = self.world.poison.get();
        self.world.poison.set(poison.wrapping_add(0x3B).max(1));
        let mut buf = BufMut::zeroed(len);
        buf.fill(poison);
        buf
    }
}

/// The future of `Env::turn_end`.
struct TurnEnd {
    world: Rc<World>,
    /// The turn whose end is awaited, once polled.
    turn: Option<u64>,
}

impl Future for TurnEnd {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let now = self.world.turn.get();
        let turn = *self.turn.get_or_insert(now);
        if turn != now {
            return Poll::Ready(());
        }
        // A repeated poll registers again: at worst one spurious wake-up.
        self.world.turn_waiters.borrow_mut().push(context.waker().clone());
        Poll::Pending
    }
}
