//! Tasks, and the queue of those that can run.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use crate::rng::Rng;

/// Number of a task's place. Places are reused: a stale waker wakes the next task there once too
/// often, which every future must tolerate.
pub(crate) type TaskId = u32;

/// The place of the future that `block_on` was given.
pub(crate) const MAIN: TaskId = 0;

/// The machine that a task runs on: the task ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner(pub u32);

impl Owner {
    /// The machine that runs the array.
    pub(crate) const HOST: Owner = Owner(0);
    /// The network between machines.
    pub(crate) const NETWORK: Owner = Owner(1);
    /// The first of the other machines.
    pub(crate) const FIRST_TARGET: u32 = 2;
}

/// The runnable tasks. Wakers are `Send` by their contract, hence the lock; it is never contended.
#[derive(Default)]
pub(crate) struct Ready {
    ids: Mutex<Vec<TaskId>>,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Vec<TaskId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of the runnable tasks, drawn by `rng` if there is a choice.
    pub(crate) fn take(&self, rng: &mut Rng) -> Option<TaskId> {
        let mut ids = self.lock();
        match ids.len() {
            0 => None,
            1 => ids.pop(),
            count => Some(ids.swap_remove(rng.index(count))),
        }
    }
}

/// Puts a task into the queue, once.
struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.lock().push(self.id);
        }
    }
}

/// A task during a poll: it is outside of [`Tasks`], so that it may spawn others.
pub(crate) struct Task {
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    pub(crate) waker: Waker,
}

struct TaskSlot {
    waker: Arc<TaskWaker>,
    owner: Owner,
    task: Option<Task>,
}

/// All tasks that have not ended.
pub(crate) struct Tasks {
    places: Vec<TaskSlot>,
    free: Vec<TaskId>,
    ready: Arc<Ready>,
}

impl Tasks {
    pub(crate) fn new(ready: Arc<Ready>) -> Self {
        let mut tasks = Tasks { places: Vec::new(), free: Vec::new(), ready };
        let main = tasks.new_place();
        debug_assert_eq!(main, MAIN);
        tasks
    }

    fn new_place(&mut self) -> TaskId {
        let id = TaskId::try_from(self.places.len()).expect("fewer than 2^32 tasks at a time");
        let waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready: self.ready.clone() });
        self.places.push(TaskSlot { waker, owner: Owner::HOST, task: None });
        id
    }

    pub(crate) fn insert(&mut self, owner: Owner, future: Pin<Box<dyn Future<Output = ()>>>) {
        let id = self.free.pop().unwrap_or_else(|| self.new_place());
        let place = &mut self.places[id as usize];
        let waker = Waker::from(place.waker.clone());
        waker.wake_by_ref();
        place.owner = owner;
        place.task = Some(Task { future, waker });
    }

    pub(crate) fn main_waker(&self) -> Waker {
        Waker::from(self.places[MAIN as usize].waker.clone())
    }

    /// Takes a task out for its poll. `None` if it has ended, and for [`MAIN`]. The task can be
    /// woken again from now on.
    pub(crate) fn take(&mut self, id: TaskId) -> Option<Task> {
        let place = &mut self.places[id as usize];
        place.waker.queued.store(false, Ordering::Release);
        place.task.take()
    }

    /// Puts a task back that has not ended.
    pub(crate) fn put_back(&mut self, id: TaskId, task: Task) {
        self.places[id as usize].task = Some(task);
    }

    /// Frees the place of a task that has ended.
    pub(crate) fn release(&mut self, id: TaskId) {
        self.free.push(id);
    }

    /// Takes all tasks of a machine out, or all tasks, in the order of their places.
    pub(crate) fn take_all(&mut self, owner: Option<Owner>) -> Vec<Task> {
        let mut taken = Vec::new();
        for (id, place) in self.places.iter_mut().enumerate() {
            if owner.is_some_and(|owner| owner != place.owner) {
                continue;
            }
            if let Some(task) = mem::take(&mut place.task) {
                taken.push(task);
                self.free.push(id as TaskId);
            }
        }
        taken
    }

    pub(crate) fn count(&self) -> usize {
        // MAIN is a place, but never counted.
        self.places.len() - 1 - self.free.len()
    }
}
