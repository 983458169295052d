//! Computations that would delay a shard.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// The thread that runs the computations one after the other. The process has only one: a caller
/// with many computations waits, and uses one core at most. `None` if no thread can be started.
fn helper() -> Option<&'static Sender<Job>> {
    static HELPER: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel::<Job>();
        let run = move || receiver.into_iter().for_each(|job| job());
        thread::Builder::new().name("offload".to_owned()).spawn(run).ok().map(|_| sender)
    };
    HELPER.get_or_init(start).as_ref()
}

struct State<T> {
    value: Option<Result<T, Box<dyn Any + Send>>>,
    waker: Option<Waker>,
}

/// The result of a computation. If it is dropped before the computation begins, the computation is
/// skipped.
#[must_use = "futures do nothing unless awaited"]
pub struct Offload<T>(Arc<Mutex<State<T>>>);

fn lock<T>(state: &Mutex<State<T>>) -> std::sync::MutexGuard<'_, State<T>> {
    // Code under the lock does not panic.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on another thread, so that this one can continue. It is for computations of
/// milliseconds; work that waits must not use it. If `work` panics, the task that awaits the result
/// panics too.
pub fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Offload<T> {
    let state = Arc::new(Mutex::new(State { value: None, waker: None }));
    let told = Arc::downgrade(&state);
    let job: Job = Box::new(move || {
        if told.strong_count() == 0 {
            return;
        }
        let value = catch_unwind(AssertUnwindSafe(work));
        let Some(state) = told.upgrade() else { return };
        let waker = {
            let mut state = lock(&state);
            state.value = Some(value);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    match helper() {
        // The helper never ends.
        Some(helper) => helper.send(job).expect("the helping thread receives as long as the process runs"),
        None => job(),
    }
    Offload(state)
}

impl<T> Future for Offload<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        match state.value.take() {
            Some(Ok(value)) => Poll::Ready(value),
            Some(Err(panic)) => {
                drop(state);
                resume_unwind(panic)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::sync_channel;
    use std::task::Wake;

    use super::*;

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn wait<T>(mut offload: Offload<T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            if let Poll::Ready(value) = Pin::new(&mut offload).poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            thread::park();
        }
    }

    #[test]
    fn work_is_done_elsewhere_in_order_and_not_at_all_if_nobody_wants_it() {
        let (go, gate) = sync_channel::<()>(0);
        let done = Arc::new(AtomicU32::new(0));
        let counts = |weight: u32| {
            let done = done.clone();
            move || done.fetch_add(weight, Ordering::SeqCst)
        };
        let here = thread::current().id();
        let first = offload(move || {
            gate.recv().expect("the test lets it go on");
            thread::current().id()
        });
        let (unwanted, wanted) = (offload(counts(1)), offload(counts(10)));
        drop(unwanted);
        go.send(()).expect("it waits");
        assert_ne!(wait(first), here);
        assert_eq!((wait(wanted), done.load(Ordering::SeqCst)), (0, 10));
    }

    #[test]
    fn a_panic_is_that_of_who_asked() {
        let panics = offload(|| panic!("as it should"));
        let caught = catch_unwind(AssertUnwindSafe(|| wait(panics))).map(|_: ()| ());
        assert!(caught.is_err());
        assert_eq!(wait(offload(|| 7)), 7, "others are served");
    }
}
