//! One direction of a connection: bytes in flight, in order, and their delays.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{ErrorKind, Read};
use std::mem;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::drive::{Env, Nanos};

use super::link::{NetworkLink, Way};
use crate::world::SimEnv;

/// Bytes that a sender's kernel accepts before the network has delivered them.
const SEND_BYTES_MAX: usize = 256 << 10;

/// How a stream of bytes ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The sender has finished.
    Finished,
    /// The connection is gone: nothing more arrives, in either direction.
    Failed(ErrorKind),
}

#[derive(Default)]
struct State {
    flying: VecDeque<u8>,
    arrived: VecDeque<u8>,
    /// The end of the stream, after the bytes in flight.
    last: Option<End>,
    /// The end that the receiver sees after the bytes that have arrived.
    ended: Option<End>,
    /// The error that the sender sees.
    broken: Option<ErrorKind>,
    /// The receiver is closed: arriving bytes are dropped.
    is_deaf: bool,
    stalled_until: Nanos,
    reader: Option<Waker>,
    writer: Option<Waker>,
    carrier: Option<Waker>,
}

pub(super) struct Pipe {
    pub link: Rc<NetworkLink>,
    pub way: Way,
    state: RefCell<State>,
    /// Bytes that have arrived, for tests.
    pub carried: Cell<u64>,
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Pipe {
    pub fn new(link: Rc<NetworkLink>, way: Way) -> Rc<Pipe> {
        Rc::new(Pipe { link, way, state: RefCell::default(), carried: Cell::new(0) })
    }

    /// Puts a part of `bytes` in flight, or all. Gives how many bytes.
    pub fn poll_send(&self, context: &Context<'_>, bytes: &[u8]) -> Poll<Result<usize, ErrorKind>> {
        let mut state = self.state.borrow_mut();
        if let Some(kind) = state.broken {
            return Poll::Ready(Err(kind));
        }
        let room = SEND_BYTES_MAX.saturating_sub(state.flying.len());
        if room == 0 {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let taken = room.min(bytes.len());
        state.flying.extend(&bytes[..taken]);
        let carrier = state.carrier.take();
        drop(state);
        wake(carrier);
        Poll::Ready(Ok(taken))
    }

    /// Takes the bytes that have arrived, as far as there is room. Gives how many: 0 if the other
    /// end has finished.
    pub fn poll_recv(&self, context: &Context<'_>, into: &mut [u8]) -> Poll<Result<usize, ErrorKind>> {
        let mut state = self.state.borrow_mut();
        if !state.arrived.is_empty() {
            let taken = state.arrived.read(into).expect("memory can be read");
            return Poll::Ready(Ok(taken));
        }
        match state.ended {
            Some(End::Finished) => Poll::Ready(Ok(0)),
            Some(End::Failed(kind)) => Poll::Ready(Err(kind)),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// All received bytes were read.
    pub fn is_read_up(&self) -> bool {
        self.state.borrow().arrived.is_empty()
    }

    /// The sender's end is closed. If not in order, bytes in flight are lost.
    pub fn close(&self, in_order: bool) {
        let mut state = self.state.borrow_mut();
        if state.last.is_none() {
            state.last = Some(if in_order { End::Finished } else { End::Failed(ErrorKind::ConnectionReset) });
        }
        if !in_order {
            state.flying.clear();
        }
        let carrier = state.carrier.take();
        drop(state);
        wake(carrier);
    }

    /// The sender lost its power: its bytes in flight are lost, and neither end is notified.
    pub fn vanish(&self) {
        self.state.borrow_mut().flying.clear();
    }

    /// The receiver is closed: arriving bytes are dropped from now on.
    pub fn deafen(&self) {
        let mut state = self.state.borrow_mut();
        state.is_deaf = true;
        state.arrived.clear();
        let carrier = state.carrier.take();
        drop(state);
        wake(carrier);
    }

    /// The receiver finds the connection gone. `keeps_arrived`: bytes that have arrived can still
    /// be read.
    pub fn fail_receiver(&self, kind: ErrorKind, keeps_arrived: bool) {
        let mut state = self.state.borrow_mut();
        state.ended.get_or_insert(End::Failed(kind));
        if !keeps_arrived {
            state.arrived.clear();
        }
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }

    /// The sender finds the connection gone. `drops`: bytes in flight do not arrive.
    pub fn fail_sender(&self, kind: ErrorKind, drops: bool) {
        let mut state = self.state.borrow_mut();
        state.broken.get_or_insert(kind);
        if drops {
            state.flying.clear();
        }
        let (writer, carrier) = (state.writer.take(), state.carrier.take());
        drop(state);
        wake(writer);
        wake(carrier);
    }

    /// No bytes move before then.
    pub fn stall(&self, until: Nanos) {
        let mut state = self.state.borrow_mut();
        state.stalled_until = state.stalled_until.max(until);
    }

    /// Waits for bytes or an end to deliver. False: there will be none.
    async fn has_work(&self) -> bool {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.ended.is_some() || (state.broken.is_some() && state.flying.is_empty() && state.last.is_none()) {
                return Poll::Ready(false);
            }
            if !state.flying.is_empty() || state.last.is_some() {
                return Poll::Ready(true);
            }
            state.carrier = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Delivers a piece of the bytes, or the end.
    fn deliver(&self, env: &SimEnv, back: &Rc<Pipe>) {
        let mut state = self.state.borrow_mut();
        let State { flying, arrived, last, ended, is_deaf, .. } = &mut *state;
        let mut answers_reset = false;
        if flying.is_empty() {
            let Some(end) = last.take() else { return };
            *ended = Some(end);
            if let End::Failed(kind) = end {
                drop(mem::take(arrived));
                back.fail_sender(kind, true);
            }
        } else {
            let mut rng = env.world.rng.borrow_mut();
            // Sometimes cut at any byte.
            let len = if rng.chance(1, 4) { 1 + rng.index(flying.len()) } else { flying.len() };
            drop(rng);
            if *is_deaf {
                flying.clear();
                answers_reset = true;
            } else {
                let (first, second) = flying.as_slices();
                arrived.extend(&first[..len.min(first.len())]);
                arrived.extend(&second[..len.saturating_sub(first.len())]);
                flying.drain(..len);
                self.carried.set(self.carried.get() + len as u64);
            }
        }
        let (reader, writer) = (state.reader.take(), state.writer.take());
        drop(state);
        wake(reader);
        wake(writer);
        if answers_reset {
            // "If the connection does not exist (CLOSED) then a reset is sent" (RFC 9293, clause
            // 3.5.2). The reset travels like other data.
            back.close(false);
        }
    }
}

/// Delivers the bytes sent through a pipe, until its end.
pub(super) async fn carry(env: SimEnv, pipe: Rc<Pipe>, back: Rc<Pipe>) {
    while pipe.has_work().await {
        let delay = pipe.link.delay(&env);
        Env::sleep(&env, Duration::from_nanos(delay)).await;
        let mut was_lost = false;
        loop {
            let stalled = pipe.state.borrow().stalled_until.saturating_sub(Env::now(&env));
            if stalled > 0 {
                Env::sleep(&env, Duration::from_nanos(stalled)).await;
            } else if pipe.link.is_open(pipe.way) {
                break;
            } else {
                was_lost = true;
                pipe.link.reopened(&env, pipe.way).await;
            }
        }
        pipe.deliver(&env, &back);
        // After a loss only the first segment is sent again until that is acknowledged: RFC 6298,
        // clause 5.4.
        while was_lost && !pipe.link.is_open(pipe.way.back()) {
            pipe.link.reopened(&env, pipe.way.back()).await;
        }
    }
}
