//! The path from a host to an address of a target: which packets it lets through.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ::drive::{Env, Nanos};

use super::Socket;
use crate::world::SimEnv;

/// How long a packet takes, in nanoseconds. It varies, so that data sent through several
/// connections overtake each other.
const DELAY: std::ops::Range<Nanos> = 5_000..60_000;

/// A sender whose packets were lost tries again after this, doubled each time: RFC 6298, clauses
/// 2.4 and 5.5, with Linux' minimum time.
const RETRANSMIT_MIN: Nanos = 200_000_000;

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the host to the target.
    ToTarget,
    /// From the target to the host.
    ToHost,
}

impl Way {
    /// The other one.
    pub(super) fn back(self) -> Way {
        match self {
            Way::ToTarget => Way::ToHost,
            Way::ToHost => Way::ToTarget,
        }
    }
}

/// The machine at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// A machine without power, or none: connections get no answer.
    Nothing,
    /// A machine without a listener: connections are refused.
    Machine,
    /// A machine with a listener.
    Listener,
}

pub(super) struct NetworkLink {
    cut: [Cell<bool>; 2],
    /// Since when it lets no packet through.
    closed_at: [Cell<Nanos>; 2],
    pub presence: Cell<Presence>,
    backlog: RefCell<VecDeque<Rc<Socket>>>,
    acceptor: RefCell<Option<Waker>>,
    waiting: RefCell<Vec<Waker>>,
}

impl NetworkLink {
    pub fn new() -> Rc<NetworkLink> {
        Rc::new(NetworkLink {
            cut: Default::default(),
            closed_at: Default::default(),
            presence: Cell::new(Presence::Nothing),
            backlog: RefCell::default(),
            acceptor: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    /// How long the next packet takes.
    pub fn delay(&self, env: &SimEnv) -> Nanos {
        env.world.rng.borrow_mut().range(DELAY)
    }

    /// Packets of this direction arrive.
    pub fn is_open(&self, way: Way) -> bool {
        !self.cut[way as usize].get() && self.presence.get() != Presence::Nothing
    }

    pub fn set_cut(&self, way: Way, is_cut: bool, now: Nanos) {
        if self.is_open(way) {
            self.closed_at[way as usize].set(now);
        }
        self.cut[way as usize].set(is_cut);
        self.tell();
    }

    pub fn set_presence(&self, presence: Presence, now: Nanos) {
        for way in [Way::ToTarget, Way::ToHost] {
            if self.is_open(way) {
                self.closed_at[way as usize].set(now);
            }
        }
        self.presence.set(presence);
        if presence != Presence::Listener {
            // Connections that were not accepted end with their listener.
            drop(self.backlog.take());
        }
        self.tell();
    }

    fn tell(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Returns when a lost packet is sent again, and arrives: some time after the direction is open
    /// again. The longer it was closed, the longer this takes.
    pub async fn reopened(&self, env: &SimEnv, way: Way) {
        poll_fn(|context| {
            if self.is_open(way) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
        let was_closed = Env::now(env).saturating_sub(self.closed_at[way as usize].get());
        let longest = was_closed.max(RETRANSMIT_MIN);
        let wait = env.world.rng.borrow_mut().below(longest);
        Env::sleep(env, Duration::from_nanos(wait)).await;
    }

    /// A host has connected.
    pub fn arrive(&self, socket: Rc<Socket>) {
        self.backlog.borrow_mut().push_back(socket);
        if let Some(waker) = self.acceptor.take() {
            waker.wake();
        }
    }

    /// The next host that connects.
    pub async fn accept(&self) -> Rc<Socket> {
        poll_fn(|context| match self.backlog.borrow_mut().pop_front() {
            Some(socket) => Poll::Ready(socket),
            None => {
                *self.acceptor.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}
