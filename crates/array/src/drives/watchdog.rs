//! Looks at the in-flight table again and again, and acts on what is late or lost.

use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use drive::Env;

use crate::array::Inner;
use crate::drives::outstanding;
use crate::drives::watch::{MEASURE_EVERY, Pace, REST_TICK, SAMPLES, TICK};
use crate::state::message::Request;
use crate::state::slot::DriveId;

impl<E: Env> Inner<E> {
    /// Looks at the table until the shard is gone or a later task has begun.
    pub async fn keep_watch(inner: Weak<Self>, env: E, generation: u64) {
        let mut pause = TICK;
        loop {
            env.sleep(pause).await;
            let Some(inner) = inner.upgrade() else { return };
            match inner.tick(generation) {
                Some(next) => pause = next,
                None => return,
            }
        }
    }

    /// Checks everything in flight, and returns the time until the next check.
    fn tick(self: &Rc<Self>, generation: u64) -> Option<Duration> {
        let watch = &self.watch;
        if watch.generation.get() != generation {
            return None;
        }
        let entered = watch.entered.replace(false);
        if !entered && watch.is_empty() {
            watch.pace.set(Pace::Asleep);
            return None;
        }
        let now = self.env.now();
        watch.looked.set(now);
        watch.samples.set(SAMPLES);
        let governed = self.shared.settings.get().client_p99.is_some();
        watch.user_samples.set(if governed { SAMPLES } else { 0 });
        watch.earn(self.counters().reads.get());
        if now.saturating_sub(watch.measured.get()) >= MEASURE_EVERY {
            watch.measured.set(now);
            watch.measure();
        }
        if now.saturating_sub(watch.bounded.get()) >= outstanding::MEASURE_EVERY {
            watch.bound_outstanding(now);
        }
        let mut found = watch.look_over(now);
        for (member, drive) in watch.judge(now) {
            let inner = self.clone();
            self.env.spawn(async move {
                // If the leader does not hear of it, the next notice repeats it.
                let _ = inner.on_leader(Request::Slow(member, drive)).await;
            });
        }
        self.counters().hedged.add(watch.hedge(&mut found));
        for drive in found.silent {
            self.ask_to_give_up(drive);
        }
        found.wakers.into_iter().for_each(Waker::wake);
        if entered || found.hurry {
            return Some(TICK);
        }
        watch.pace.set(Pace::Resting);
        Some(REST_TICK)
    }

    fn ask_to_give_up(self: &Rc<Self>, drive: DriveId) {
        let Some(member) = self.shared.held_by(drive) else { return };
        let inner = self.clone();
        self.env.spawn(async move {
            let given_up = inner.on_leader(Request::Silent(member, drive)).await;
            if matches!(given_up, Ok(crate::state::message::Outcome::Accepted(false))) {
                inner.watch.detector(drive, |detector| detector.needed = true);
            }
        });
    }
}
