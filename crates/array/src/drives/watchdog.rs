//! Looks at the in-flight table again and again, and acts on what is late or lost.

use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use drive::Env;

use crate::array::ArrayShard;
use crate::drives::in_flight::{MEASURE_EVERY, Pace, REST_TICK, SAMPLES, TICK};
use crate::drives::outstanding;
use crate::state::message::Request;
use crate::state::slot::DriveId;

impl<E: Env> ArrayShard<E> {
    /// Looks at the table until the shard is gone or a later task has begun.
    pub async fn check_in_flight(inner: Weak<Self>, env: E, generation: u64) {
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
        let in_flight = &self.in_flight;
        if in_flight.generation.get() != generation {
            return None;
        }
        let entered = in_flight.entered.replace(false);
        if !entered && in_flight.is_empty() {
            in_flight.pace.set(Pace::Asleep);
            return None;
        }
        let now = self.env.now();
        in_flight.looked.set(now);
        in_flight.samples.set(SAMPLES);
        let governed = self.shared.settings.get().client_p99.is_some();
        in_flight.user_samples.set(if governed { SAMPLES } else { 0 });
        in_flight.earn(self.counters().reads.get());
        if now.saturating_sub(in_flight.measured.get()) >= MEASURE_EVERY {
            in_flight.measured.set(now);
            in_flight.measure();
        }
        if now.saturating_sub(in_flight.bounded.get()) >= outstanding::MEASURE_EVERY {
            in_flight.bound_outstanding(now);
        }
        let mut found = in_flight.look_over(now);
        for (member, drive) in in_flight.judge(now) {
            let inner = self.clone();
            self.env.spawn(async move {
                // If the leader does not hear of it, the next notice repeats it.
                let _ = inner.on_leader(Request::Slow(member, drive)).await;
            });
        }
        self.counters().hedged.add(in_flight.hedge(&mut found));
        for drive in found.silent {
            self.ask_to_give_up(drive);
        }
        found.wakers.into_iter().for_each(Waker::wake);
        if entered || found.hurry {
            return Some(TICK);
        }
        in_flight.pace.set(Pace::Resting);
        Some(REST_TICK)
    }

    fn ask_to_give_up(self: &Rc<Self>, drive: DriveId) {
        let Some(member) = self.shared.held_by(drive) else { return };
        let inner = self.clone();
        self.env.spawn(async move {
            let given_up = inner.on_leader(Request::Silent(member, drive)).await;
            if matches!(given_up, Ok(crate::state::message::Reply::Accepted(false))) {
                inner.in_flight.detector(drive, |detector| detector.needed = true);
            }
        });
    }
}
