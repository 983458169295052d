//! Tasks of one shard and their wakers.
//!
//! A waker is an `Arc` of a [`TaskHeader`]. The future itself stays in the shard's slab and never
//! leaves the thread. A wake-up on the home thread costs a thread-local look-up, one flag and a
//! push to a plain queue. A wake-up on another thread goes through the inbox ([`crate::remote`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use crate::remote::{Item, Remote};
use crate::shard::with_current;

pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A place in the slab. The generation distinguishes a finished task from the next one in the same
/// place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskKey {
    index: u32,
    generation: u32,
}

pub(crate) struct TaskHeader {
    key: TaskKey,
    home: Arc<Remote>,
    /// In the ready queue. Only the home thread reads and writes it; atomic only because a waker is
    /// `Sync`.
    ready: AtomicBool,
    /// In the inbox of the home shard.
    in_inbox: AtomicBool,
}

impl TaskHeader {
    pub(crate) fn key(&self) -> TaskKey {
        self.key
    }

    /// Called on the home thread. Returns whether the task must be put in the ready queue.
    pub(crate) fn mark_ready(&self) -> bool {
        if self.ready.load(Ordering::Relaxed) {
            return false;
        }
        self.ready.store(true, Ordering::Relaxed);
        true
    }

    /// Called on the home thread when this wake-up was taken from the inbox. Acquire: pairs with
    /// the swap in `wake_by_ref`, so the following poll sees all writes of every waker before it.
    pub(crate) fn left_inbox(&self) {
        self.in_inbox.swap(false, Ordering::AcqRel);
    }
}

impl Wake for TaskHeader {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let at_home = with_current(|shard| {
            let at_home = shard.is_home_of(&self.home);
            if at_home {
                shard.schedule(self);
            }
            at_home
        });
        if at_home != Some(true) && !self.in_inbox.swap(true, Ordering::AcqRel) {
            // A stopped shard has dropped its tasks: there is none left to wake.
            let _ = self.home.push(Item::Wake(self.clone()));
        }
    }
}

impl TaskHeader {
    pub(crate) fn is_at(&self, home: &Arc<Remote>) -> bool {
        Arc::ptr_eq(&self.home, home)
    }
}

/// A task that is being polled, or that waits for its next poll.
pub(crate) struct Task {
    pub(crate) future: LocalFuture,
    pub(crate) header: Arc<TaskHeader>,
    pub(crate) waker: Waker,
}

struct Slot {
    generation: u32,
    state: SlotState,
}

enum SlotState {
    Vacant {
        next: Option<u32>,
    },
    Waiting(Task),
    /// Taken out by the loop.
    Polling,
}

/// All tasks of a shard.
#[derive(Default)]
pub(crate) struct TaskSlab {
    slots: Vec<Slot>,
    vacant: Option<u32>,
    len: usize,
}

impl TaskSlab {
    /// Adds a task and returns the header by which it is scheduled.
    pub(crate) fn insert(&mut self, future: LocalFuture, home: &Arc<Remote>) -> Arc<TaskHeader> {
        let index = match self.vacant {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks");
                self.slots.push(Slot { generation: 0, state: SlotState::Vacant { next: None } });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        if let SlotState::Vacant { next } = slot.state {
            self.vacant = next;
        }
        let header = Arc::new(TaskHeader {
            key: TaskKey { index, generation: slot.generation },
            home: home.clone(),
            ready: AtomicBool::new(false),
            in_inbox: AtomicBool::new(false),
        });
        slot.state = SlotState::Waiting(Task { future, header: header.clone(), waker: Waker::from(header.clone()) });
        self.len += 1;
        header
    }

    /// Takes a task out to poll it. `None` if it has ended.
    pub(crate) fn take(&mut self, key: TaskKey) -> Option<Task> {
        let slot = &mut self.slots[key.index as usize];
        if slot.generation != key.generation || !matches!(slot.state, SlotState::Waiting(_)) {
            return None;
        }
        match std::mem::replace(&mut slot.state, SlotState::Polling) {
            SlotState::Waiting(task) => {
                // Before the poll, so that a wake-up during the poll schedules the task again.
                task.header.ready.store(false, Ordering::Relaxed);
                Some(task)
            }
            SlotState::Vacant { .. } | SlotState::Polling => None,
        }
    }

    /// Puts back a task that is not finished.
    pub(crate) fn put_back(&mut self, task: Task) {
        let slot = &mut self.slots[task.header.key.index as usize];
        debug_assert!(matches!(slot.state, SlotState::Polling));
        slot.state = SlotState::Waiting(task);
    }

    /// Frees the slot of a task that [`TaskSlab::take`] returned.
    pub(crate) fn finish(&mut self, key: TaskKey) {
        let slot = &mut self.slots[key.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = SlotState::Vacant { next: self.vacant };
        self.vacant = Some(key.index);
        self.len -= 1;
    }

    /// Takes out any one task, to drop it outside of the borrow. Used at the end of the shard.
    pub(crate) fn take_any(&mut self) -> Option<Task> {
        let key = self.slots.iter().find_map(|slot| match &slot.state {
            SlotState::Waiting(task) => Some(task.header.key),
            SlotState::Vacant { .. } | SlotState::Polling => None,
        })?;
        let task = self.take(key);
        self.finish(key);
        task
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
