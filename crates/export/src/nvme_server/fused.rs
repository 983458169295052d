//! Fused commands: two commands in sequence that are one operation. NVMe Base 2.0, clause 3.4.2.
//! The one such operation is compare-and-write: the second command writes if the first one found
//! the expected bytes.
//!
//! 1. The commands arrive one after the other, and the data of either may arrive first. A [`Pair`]
//!    keeps a command that is complete until the other one is.
//! 2. A first command that fails is answered at once, and the second one with it. A first command
//!    without a second one fails.
//! 3. [`serve`] executes both, and answers them in order.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use drive::{Block, BufMut, Env, Nanos};
use nvme::Status;
use nvme::target::{CompareAndWrite, Io, Named};

use super::execution::status;
use super::io::{self, Handle};
use super::queue::Queue;
use crate::state::Alarm;

/// The position of a command in the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    First,
    Second,
}

/// Two fused commands. The second may not have arrived yet.
pub(super) struct Pair<B>(RefCell<State<B>>);

struct State<B> {
    /// Commands that have arrived with all their data.
    complete: [Option<Ready<B>>; 2],
    /// The first command has failed, and was answered.
    has_failed: bool,
    /// Another command came in place of the second one.
    is_second_missing: bool,
}

/// A command that could begin.
pub(super) struct Ready<B> {
    pub named: Named,
    /// The operation, or the status with which it fails.
    pub request: Result<(Rc<Handle<B>>, Io, BufMut), Status>,
}

impl<B> Ready<B> {
    fn held_bytes(&self) -> u64 {
        self.request.as_ref().map_or(0, |(_, io, _)| io::held_bytes(io))
    }

    fn answer(self, queue: &Queue, status: Status) {
        queue.fail(self.named, status, self.held_bytes());
    }

    /// Answers the second command of a pair whose first has failed.
    fn answer_beside_failed(self, queue: &Queue) {
        let status = self.request.as_ref().err().copied().unwrap_or(Status::ABORTED_FAILED_FUSED);
        self.answer(queue, status);
    }
}

impl<B: Block + 'static> Pair<B> {
    pub fn new() -> Rc<Pair<B>> {
        Rc::new(Pair(RefCell::new(State { complete: [None, None], has_failed: false, is_second_missing: false })))
    }

    /// Another command has arrived in place of the second one.
    pub fn miss_second(&self, queue: &Queue) {
        let first = {
            let mut state = self.0.borrow_mut();
            state.is_second_missing = true;
            state.complete[0].take()
        };
        if let Some(first) = first {
            first.answer(queue, Status::ABORTED_MISSING_FUSED);
        }
    }

    /// A part has arrived with its data. Returns both commands when the other one has arrived, too.
    /// Commands that have failed are answered.
    pub fn arrived(&self, part: Part, ready: Ready<B>, queue: &Queue) -> Option<[Ready<B>; 2]> {
        let (first, second) = {
            let mut state = self.0.borrow_mut();
            if state.is_second_missing {
                drop(state);
                ready.answer(queue, Status::ABORTED_MISSING_FUSED);
                return None;
            }
            // A first command that has failed is answered without waiting for the second.
            if let (Part::First, Err(status)) = (part, &ready.request) {
                let (status, second) = (*status, state.complete[1].take());
                state.has_failed = true;
                drop(state);
                ready.answer(queue, status);
                second.into_iter().for_each(|second| second.answer_beside_failed(queue));
                return None;
            }
            if state.has_failed {
                drop(state);
                ready.answer_beside_failed(queue);
                return None;
            }
            state.complete[part as usize] = Some(ready);
            let [Some(_), Some(_)] = &state.complete else { return None };
            (state.complete[0].take()?, state.complete[1].take()?)
        };
        let (one, other) = match (&first.request, &second.request) {
            // The namespace was removed while they waited for each other.
            (Ok((handle, ..)), Ok(_)) if handle.is_ending() => (Status::INVALID_NAMESPACE, Status::INVALID_NAMESPACE),
            (Ok((handle, one, _)), Ok((same, other, _))) => {
                let is_one = Rc::ptr_eq(handle, same);
                match CompareAndWrite::of(one, other, handle.described()) {
                    Ok(_) if is_one => return Some([first, second]),
                    _ => (Status::INVALID_FIELD, Status::INVALID_FIELD),
                }
            }
            // The first command has not failed by itself.
            (_, Err(other)) | (Err(other), _) => (Status::ABORTED_FAILED_FUSED, *other),
        };
        first.answer(queue, one);
        second.answer(queue, other);
        None
    }

    /// The queue has ended. Returns the bytes held by each command that has arrived and will not be
    /// answered.
    pub fn abandon(&self) -> Vec<u64> {
        self.0.borrow_mut().complete.iter_mut().filter_map(Option::take).map(|ready| ready.held_bytes()).collect()
    }
}

/// Serves both and puts their answers in the outbox, the first one first.
pub(super) async fn serve<B: Block>(queue: Rc<Queue>, pair: [Ready<B>; 2], arrived: Nanos, alarm: Arc<Alarm>) {
    let [
        Ready { named: first, request: Ok((handle, compare, expected)) },
        Ready { named: second, request: Ok((_, write, data)) },
    ] = pair
    else {
        unreachable!("those that have failed were answered");
    };
    let statuses = match execute(&queue, &handle, &compare, &write, expected, data).await {
        Ok(()) => (Status::SUCCESS, Status::SUCCESS),
        Err((Part::First, status)) => (status, Status::ABORTED_FAILED_FUSED),
        Err((Part::Second, status)) => (Status::ABORTED_FAILED_FUSED, status),
    };
    let took = queue.link.env.now().saturating_sub(arrived);
    for (named, io, status) in [(first, &compare, statuses.0), (second, &write, statuses.1)] {
        handle.answered(io, took, status);
        match status.is_success() {
            true => queue.complete(named.cid, status, 0, io::held_bytes(io)),
            false => queue.fail(named, status, io::held_bytes(io)),
        }
        handle.ended(&alarm);
    }
}

async fn execute<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    compare: &Io,
    write: &Io,
    expected: BufMut,
    data: BufMut,
) -> Result<(), (Part, Status)> {
    let CompareAndWrite { offset, len, compare_fua, fua } =
        CompareAndWrite::of(compare, write, handle.described()).map_err(|status| (Part::First, status))?;
    if handle.is_limited() {
        let env = &queue.link.env;
        Box::pin(handle.pass(env, compare)).await.map_err(|status| (Part::First, status))?;
        Box::pin(handle.pass(env, write)).await.map_err(|status| (Part::Second, status))?;
    }
    handle.reach().map_err(|status| (Part::First, status))?;
    let used = handle.used();
    // From here on no other command writes to the range.
    let _held = used.hold(offset, u64::from(len)).await;
    let _inside = used.begin(compare.group()).map_err(|status| (Part::First, status))?;
    used.allows(write.group()).map_err(|status| (Part::Second, status))?;
    if compare_fua {
        handle.block().flush().await.map_err(|error| (Part::First, status(&error, false)))?;
    }
    let read = handle.block().read(offset, queue.link.env.alloc(len as usize)).await;
    let read = read.map_err(|error| (Part::First, status(&error, false)))?;
    if read[..] != expected[..] {
        return Err((Part::First, Status::COMPARE_FAILURE));
    }
    let written = handle.block().write(offset, data.freeze(), fua).await;
    written.map_err(|error| (Part::Second, status(&error, true)))
}
