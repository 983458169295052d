//! Operations in flight: the memory that the kernel may access, and the task that waits.

use std::future::Future;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ::drive::{BufMut, Segments};

use crate::shard::Shard;

/// All memory that the kernel may access for an operation. The operation's slot owns it from
/// submission to completion.
pub(crate) enum Payload {
    /// No memory.
    None,
    /// The kernel fills it.
    Fill(BufMut),
    /// The kernel reads it: the data, and the vector that points to the data (empty if there is
    /// only one segment).
    Drain(Segments, Vec<libc::iovec>),
    /// Like `Drain`, for a socket.
    Message(Box<Message>),
    /// A successful result is a new descriptor. It is closed if the future was dropped.
    NewFd,
}

/// A `sendmsg`: header, vector and data. All of them must stay at the same address.
pub(crate) struct Message {
    pub(crate) header: libc::msghdr,
    pub(crate) vector: Vec<libc::iovec>,
    pub(crate) data: Segments,
}

/// The result of the kernel (a count or a negated errno), and the memory.
pub(crate) struct OpResult {
    pub(crate) result: i32,
    pub(crate) payload: Payload,
}

impl OpResult {
    pub(crate) fn into_fill(self) -> (i32, BufMut) {
        match self.payload {
            Payload::Fill(buf) => (self.result, buf),
            _ => unreachable!("the slot gives back what it was given"),
        }
    }

    pub(crate) fn into_drain(self) -> (i32, Segments, Vec<libc::iovec>) {
        match self.payload {
            Payload::Drain(data, vector) => (self.result, data, vector),
            _ => unreachable!("the slot gives back what it was given"),
        }
    }

    pub(crate) fn into_message(self) -> (i32, Box<Message>) {
        match self.payload {
            Payload::Message(message) => (self.result, message),
            _ => unreachable!("the slot gives back what it was given"),
        }
    }

    /// Frees the outcome of an operation whose future was dropped.
    pub(crate) fn discard(self) {
        if let Payload::NewFd = self.payload
            && self.result >= 0
        {
            // SAFETY: the kernel created this descriptor for the operation, and no other code has
            // seen it.
            drop(unsafe { OwnedFd::from_raw_fd(self.result) });
        }
    }
}

/// Index of a slot and its generation. Used as `user_data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpKey(u64);

impl OpKey {
    pub(crate) fn user_data(self) -> u64 {
        self.0
    }

    pub(crate) fn from_user_data(user_data: u64) -> OpKey {
        OpKey(user_data)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

struct Slot {
    generation: u32,
    /// It may never complete; see [`OpSlab::insert_lingering`].
    lingering: bool,
    state: SlotState,
}

enum SlotState {
    Vacant {
        next: Option<u32>,
    },
    InFlight {
        payload: Payload,
        waker: Option<Waker>,
    },
    /// In flight, but the future was dropped.
    Orphan {
        payload: Payload,
    },
    Done(OpResult),
}

/// The slots of one ring.
#[derive(Default)]
pub(crate) struct OpSlab {
    slots: Vec<Slot>,
    vacant: Option<u32>,
    in_flight: usize,
    /// Operations in flight that may never complete.
    lingering: usize,
}

/// Work that the loop does outside of the borrow.
pub(crate) enum Completed {
    Wake(Option<Waker>),
    Orphan(OpResult),
}

impl OpSlab {
    /// Operations that were submitted to the kernel and are not complete.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The operations in flight that will complete in any case.
    pub(crate) fn awaited(&self) -> usize {
        self.in_flight - self.lingering
    }

    /// Like [`OpSlab::insert`], for an operation that waits for an event that may never occur, and
    /// that cannot be canceled. It ends with the ring.
    pub(crate) fn insert_lingering(&mut self, payload: Payload) -> OpKey {
        let key = self.insert(payload);
        self.slots[key.index()].lingering = true;
        self.lingering += 1;
        key
    }

    pub(crate) fn insert(&mut self, payload: Payload) -> OpKey {
        let state = SlotState::InFlight { payload, waker: None };
        self.in_flight += 1;
        let index = match self.vacant {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                let SlotState::Vacant { next } = std::mem::replace(&mut slot.state, state) else {
                    unreachable!("only vacant slots are on the list")
                };
                self.vacant = next;
                index
            }
            None => {
                self.slots.push(Slot { generation: 0, lingering: false, state });
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
            }
        };
        OpKey(u64::from(self.slots[index as usize].generation) << 32 | u64::from(index))
    }

    fn slot(&mut self, key: OpKey) -> &mut Slot {
        let slot = &mut self.slots[key.index()];
        assert_eq!(u64::from(slot.generation), key.0 >> 32, "a slot is reused only after its operation was taken");
        slot
    }

    fn vacate(&mut self, key: OpKey) -> SlotState {
        let next = self.vacant;
        let slot = self.slot(key);
        // 2^31 generations: `user_data` stays below the reserved values at the top.
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        let state = std::mem::replace(&mut slot.state, SlotState::Vacant { next });
        self.vacant = Some(key.index() as u32);
        state
    }

    pub(crate) fn complete(&mut self, key: OpKey, result: i32) -> Completed {
        self.in_flight -= 1;
        let lingering = std::mem::take(&mut self.slot(key).lingering);
        self.lingering -= usize::from(lingering);
        let slot = self.slot(key);
        match std::mem::replace(&mut slot.state, SlotState::Vacant { next: None }) {
            SlotState::InFlight { payload, waker } => {
                slot.state = SlotState::Done(OpResult { result, payload });
                Completed::Wake(waker)
            }
            SlotState::Orphan { payload } => {
                self.vacate(key);
                Completed::Orphan(OpResult { result, payload })
            }
            SlotState::Vacant { .. } | SlotState::Done(_) => unreachable!("one completion for one operation"),
        }
    }

    fn poll(&mut self, key: OpKey, context: &Context<'_>) -> Poll<OpResult> {
        match &mut self.slot(key).state {
            SlotState::InFlight { waker, .. } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            SlotState::Done(_) => match self.vacate(key) {
                SlotState::Done(outcome) => Poll::Ready(outcome),
                _ => unreachable!("matched above"),
            },
            SlotState::Vacant { .. } | SlotState::Orphan { .. } => unreachable!("the future holds the slot"),
        }
    }

    /// Called when the future is dropped. Returns values to drop outside of the borrow, and whether
    /// the operation is still in flight.
    fn abandon(&mut self, key: OpKey) -> (Option<OpResult>, Option<Waker>, bool) {
        let slot = self.slot(key);
        match std::mem::replace(&mut slot.state, SlotState::Vacant { next: None }) {
            SlotState::InFlight { payload, waker } => {
                slot.state = SlotState::Orphan { payload };
                (None, waker, true)
            }
            SlotState::Done(outcome) => {
                self.vacate(key);
                (Some(outcome), None, false)
            }
            SlotState::Vacant { .. } | SlotState::Orphan { .. } => unreachable!("the future holds the slot"),
        }
    }
}

/// The future of an operation. If it is dropped, the operation keeps running with its memory,
/// unless it is cancelable.
#[must_use = "the operation runs, but its result is lost"]
pub(crate) struct Op<'a> {
    shard: &'a Shard,
    key: OpKey,
    taken: bool,
    /// Cancel the operation in the kernel when the future is dropped: for sockets, which may
    /// otherwise wait forever.
    cancel_on_drop: bool,
}

impl<'a> Op<'a> {
    pub(crate) fn new(shard: &'a Shard, key: OpKey) -> Op<'a> {
        Op { shard, key, taken: false, cancel_on_drop: false }
    }

    pub(crate) fn cancelable(mut self) -> Op<'a> {
        self.cancel_on_drop = true;
        self
    }

    pub(crate) fn shard(&self) -> &'a Shard {
        self.shard
    }

    pub(crate) fn key(&self) -> OpKey {
        self.key
    }
}

impl Future for Op<'_> {
    type Output = OpResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OpResult> {
        assert!(!self.taken, "polled again after it was ready");
        let outcome = self.shard.ops().borrow_mut().poll(self.key, context);
        self.taken = outcome.is_ready();
        outcome
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let (outcome, waker, in_flight) = self.shard.ops().borrow_mut().abandon(self.key);
        drop(waker);
        if let Some(outcome) = outcome {
            outcome.discard();
        }
        if in_flight && self.cancel_on_drop {
            self.shard.cancel(self.key);
        }
    }
}
