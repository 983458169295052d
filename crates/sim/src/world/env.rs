//! The world as the engine sees it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use ::drive::{BufMut, Env, Kept, Nanos};

use super::{KeptWords, Owner, World, deadline};
use crate::clock::Sleep;
use crate::remote::GroupDrive;

/// The world as the engine sees it.
#[derive(Clone)]
pub struct SimEnv {
    pub(crate) world: Rc<World>,
    /// The machine that its tasks run on.
    pub(crate) owner: Owner,
}

impl SimEnv {
    /// The same, for tasks that outlive every machine.
    pub(crate) fn between_machines(&self) -> SimEnv {
        SimEnv { owner: Owner::NETWORK, ..self.clone() }
    }

    /// Memory of `words` words that outlives a kill, by this name.
    pub fn kept(&self, name: &[u8; 16], words: usize) -> Arc<dyn Kept> {
        let mut kept = self.world.kept.borrow_mut();
        let new = || Arc::new(KeptWords((0..words).map(|_| AtomicU64::new(0)).collect()));
        kept.entry(*name).or_insert_with(new).clone()
    }
}

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
