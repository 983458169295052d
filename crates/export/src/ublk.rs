//! Local block devices: serves the requests of a ublk queue from a volume.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use drive::{Block, BlockError, Buf, Env, Nanos, WriteZeroes};
use runtime::{ShardEnv, UblkOperation, UblkRequest, UblkSlot};

use crate::budget::{Budget, Share};
use crate::counters::Kind;
use crate::limit::Cost;
use crate::state::{ConnectionState, ExportState};
use crate::window::{NEXT_TURN, Window};

/// The local machine's name in the budget. It is the host of all its block devices.
const LOCAL: &str = "this machine";

/// A queue that is being served.
struct Queue<B> {
    env: ShardEnv,
    block: B,
    export: Arc<ExportState>,
    state: Arc<ConnectionState>,
    share: Share,
    window: Window,
    /// Requests that are not answered.
    busy: Cell<usize>,
    /// Slots that may still get a request.
    slots: Cell<usize>,
    /// This server has stopped serving the queue and leaves it to the next one.
    left: Cell<bool>,
    /// Wakers of slots that wait for a request.
    waiting: RefCell<Vec<Option<Waker>>>,
    /// Waker of the task that waits for the end.
    end: RefCell<Option<Waker>>,
}

/// Serves a queue of a device: to its end if the device is stopped, and otherwise until
/// [`ExportState::stop`]. After a stop, requests that have begun are answered. New requests stay in
/// the kernel for the device's next server. Returns when all that is done and nothing uses `block`
/// any more.
///
/// The queue is one connection of the export, named `name`. Memory for its requests comes from
/// `budget`.
pub async fn serve_queue<B: Block + 'static>(
    env: ShardEnv,
    slots: Vec<UblkSlot>,
    block: B,
    export: Arc<ExportState>,
    name: String,
    budget: Arc<Budget>,
) {
    let Some(state) = export.enter(name, None, false, Arc::default()) else { return };
    let share = budget.enter(LOCAL);
    let window = Window::of(&share);
    let queue = Rc::new(Queue {
        env: env.clone(),
        block,
        export: export.clone(),
        state: state.clone(),
        share,
        window,
        busy: Cell::new(0),
        slots: Cell::new(slots.len()),
        left: Cell::new(false),
        waiting: RefCell::new(vec![None; slots.len()]),
        end: RefCell::new(None),
    });
    for (index, slot) in slots.into_iter().enumerate() {
        let queue = queue.clone();
        env.spawn(async move {
            queue.serve(index, slot).await;
            queue.slots.set(queue.slots.get() - 1);
            queue.look();
        });
    }
    poll_fn(|context| {
        state.listen(context.waker());
        queue.end.replace(Some(context.waker().clone()));
        if export.stopping() && queue.busy.get() == 0 && !queue.left.replace(true) {
            let waiting = std::mem::take(&mut *queue.waiting.borrow_mut());
            waiting.into_iter().flatten().for_each(Waker::wake);
        }
        if queue.slots.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    export.leave(&state);
}

impl<B: Block> Queue<B> {
    /// Wakes the task that waits for the end, if the queue is ending.
    fn look(&self) {
        let ending = self.export.stopping() || self.slots.get() == 0;
        if ending && let Some(end) = self.end.take() {
            end.wake();
        }
    }

    async fn serve(&self, index: usize, mut slot: UblkSlot) {
        let mut next = self.next(index, false, slot.fetch()).await;
        while let Some(request) = next {
            if self.export.stopping() {
                return;
            }
            self.busy.set(self.busy.get() + 1);
            let arrived = self.env.now();
            let kind = kind(&request);
            let counters = &self.state.counters;
            counters.accepted(kind);
            if self.state.limits.is_on()
                && let Some(cost) = cost(&request)
            {
                // On the heap, so that requests without a limit do not pay for it. A slot is never
                // gone, so all requests pass.
                Box::pin(self.state.limits.pass(&self.env, cost)).await;
            }
            let done = self.execute_in_turn(&mut slot, &request, arrived).await;
            counters.answered(kind, self.env.now().saturating_sub(arrived), done.is_err());
            next = match done {
                Ok(Some(data)) => {
                    counters.read(request.len);
                    self.next(index, true, slot.answer_read(data)).await
                }
                Ok(None) => {
                    if kind == Kind::Write {
                        counters.written(request.len);
                    }
                    self.next(index, true, slot.answer(Ok(()))).await
                }
                Err(errno) => self.next(index, true, slot.answer(Err(errno))).await,
            };
        }
    }

    /// Waits for a slot's next request, or until the queue is left. With `answers`, `request` first
    /// sends an answer.
    async fn next(
        &self,
        index: usize,
        mut answers: bool,
        request: impl Future<Output = Option<UblkRequest>>,
    ) -> Option<UblkRequest> {
        let mut request = pin!(request);
        poll_fn(|context| {
            let polled = request.as_mut().poll(context);
            if std::mem::take(&mut answers) {
                // After one poll the answer is on the ring.
                self.busy.set(self.busy.get() - 1);
                self.look();
            }
            if polled.is_ready() {
                return polled;
            }
            if self.left.get() {
                return Poll::Ready(None);
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting[index].as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                waiting[index] = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// As [`Queue::execute`], once there is memory for the request and room in the service window.
    async fn execute_in_turn(
        &self,
        slot: &mut UblkSlot,
        request: &UblkRequest,
        arrived: Nanos,
    ) -> Result<Option<Buf>, i32> {
        let bytes = payload_bytes(request);
        poll_fn(|context| {
            if self.share.has_room(bytes) {
                self.share.grow(bytes);
                return Poll::Ready(());
            }
            self.share.listen(context.waker());
            Poll::Pending
        })
        .await;
        self.window.arrived(arrived);
        let inside = match self.window.try_enter(bytes) {
            Some(inside) => Some(inside),
            None => {
                let inside = Box::pin(self.window.enter(bytes)).await;
                self.env.sleep(NEXT_TURN).await;
                inside
            }
        };
        let done = self.execute(slot, request).await;
        drop(inside);
        self.share.shrink(bytes);
        done
    }

    /// Executes the request. Returns the data of a read, or an errno.
    async fn execute(&self, slot: &mut UblkSlot, request: &UblkRequest) -> Result<Option<Buf>, i32> {
        let (offset, len, block) = (request.offset, request.len, &self.block);
        let done = match request.operation {
            UblkOperation::Read => {
                let buf = self.env.alloc(len as usize);
                let read = block.read(offset, buf).await.map_err(|error| errno(&error, Kind::Read))?;
                return Ok(Some(read.freeze()));
            }
            UblkOperation::Write { fua } => {
                let buf = self.env.alloc(len as usize);
                let data = slot.data(buf).await.map_err(|error| error.raw_os_error().unwrap_or(EIO))?;
                block.write(offset, data.freeze(), fua).await
            }
            UblkOperation::Flush => block.flush().await,
            UblkOperation::Discard => block.discard(offset, len).await,
            UblkOperation::WriteZeroes { fua, keep_allocated } => {
                block.write_zeroes(offset, len, WriteZeroes { fua, keep_allocated, only_fast: false }).await
            }
            UblkOperation::Unknown => return Err(EOPNOTSUPP),
        };
        done.map(|()| None).map_err(|error| errno(&error, kind(request)))
    }
}

/// Bytes of data that a request moves.
fn payload_bytes(request: &UblkRequest) -> u64 {
    match request.operation {
        UblkOperation::Read | UblkOperation::Write { .. } => request.len,
        _ => 0,
    }
}

/// The cost of a request; `None` if no rate limit applies to it.
fn cost(request: &UblkRequest) -> Option<Cost> {
    let bytes = match request.operation {
        UblkOperation::Read | UblkOperation::Write { .. } => request.len,
        // Zeroes that keep their space are written to the drives.
        UblkOperation::WriteZeroes { keep_allocated: true, .. } => request.len,
        UblkOperation::Discard | UblkOperation::WriteZeroes { .. } => 0,
        UblkOperation::Flush | UblkOperation::Unknown => return None,
    };
    Some(Cost { requests: 1, bytes })
}

fn kind(request: &UblkRequest) -> Kind {
    match request.operation {
        UblkOperation::Read | UblkOperation::Unknown => Kind::Read,
        UblkOperation::Write { .. } => Kind::Write,
        UblkOperation::Flush => Kind::Flush,
        UblkOperation::Discard => Kind::Trim,
        UblkOperation::WriteZeroes { .. } => Kind::WriteZeroes,
    }
}

// `errno(3)` of Linux. The driver maps it to the status of a block request (`errno_to_blk_status`).
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;

/// The errno that a block device returns for a failure.
fn errno(error: &BlockError, kind: Kind) -> i32 {
    match error {
        // As a drive reports a sector that it cannot read.
        BlockError::Lost { .. } | BlockError::Unknown { .. } if kind == Kind::Read => ENODATA,
        BlockError::NoSpace => ENOSPC,
        BlockError::NotFast => EOPNOTSUPP,
        BlockError::Lost { .. }
        | BlockError::Unknown { .. }
        | BlockError::OutOfRange { .. }
        | BlockError::ReadOnly { .. }
        | BlockError::Stopped => EIO,
    }
}
