//! Turns: some tasks run for a while, and their work is a sample.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::rounds::Sample;
use drive::{Buf, Env, Nanos, oneshot};
use runtime::ShardEnv;
use rustix::time::{ClockId, clock_gettime};

/// Number of operations between two checks of the clock.
const LOOK_EVERY: u64 = 64;

/// Random numbers: xorshift, seeded by a multiple of the golden ratio.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `limit`. The bias is too small to measure for limits of the size of drives.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of a wide product is cheaper than a remainder.
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// All of `values` in random order.
pub fn shuffled(values: &[u64], rng: &mut Rng) -> Vec<u64> {
    let mut values = values.to_vec();
    for last in (1..values.len()).rev() {
        values.swap(last, rng.below(last as u64 + 1) as usize);
    }
    values
}

/// How long the tasks of a turn run, and how much they have done.
pub struct Pace {
    env: ShardEnv,
    end: Nanos,
    done: Cell<u64>,
    over: Cell<bool>,
}

impl Pace {
    /// Counts the next operation and returns true, or returns false if the turn is over.
    #[inline]
    pub fn goes_on(&self) -> bool {
        if self.over.get() {
            return false;
        }
        let done = self.done.get();
        if done.is_multiple_of(LOOK_EVERY) && self.env.now() >= self.end {
            self.over.set(true);
            return false;
        }
        self.done.set(done + 1);
        true
    }
}

/// CPU time of this thread so far, in seconds.
pub fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Spawns tasks and waits for all of them.
async fn all(tasks: impl Iterator<Item = impl Future<Output = ()> + 'static>) {
    let env = ShardEnv::current();
    let (sender, receiver) = oneshot();
    // Dropped with the last task, which sends the message.
    let end = Rc::new(Last(Cell::new(Some(sender))));
    for task in tasks {
        let end = end.clone();
        env.spawn(async move {
            task.await;
            drop(end);
        });
    }
    drop(end);
    receiver.await.expect("the last task says so");
}

struct Last(Cell<Option<drive::Sender<()>>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            sender.send(());
        }
    }
}

/// Runs `depth` tasks for about `length`. Each gets its number.
pub async fn turn<F: Future<Output = ()> + 'static>(
    depth: u64,
    length: Duration,
    mut task: impl FnMut(u64, Rc<Pace>) -> F,
) -> Sample {
    let env = ShardEnv::current();
    let end = env.now() + length.as_nanos() as u64;
    let pace = Rc::new(Pace { env, end, done: Cell::new(0), over: Cell::new(false) });
    let (wall, cpu) = (Instant::now(), thread_cpu_s());
    all((0..depth).map(|number| task(number, pace.clone()))).await;
    Sample { amount: pace.done.get() as f64, wall_s: wall.elapsed().as_secs_f64(), cpu_s: thread_cpu_s() - cpu }
}

/// Runs `work` once for each of `values`, `depth` of them concurrently.
pub async fn turn_of<F: Future<Output = ()> + 'static>(
    depth: u64,
    values: Rc<Vec<u64>>,
    work: impl Fn(u64) -> F + Clone + 'static,
) -> Sample {
    let next = Rc::new(Cell::new(0));
    let (wall, cpu) = (Instant::now(), thread_cpu_s());
    let task = |_| {
        let (values, next, work) = (values.clone(), next.clone(), work.clone());
        async move {
            while let Some(&value) = values.get(next.get()) {
                next.set(next.get() + 1);
                work(value).await;
            }
        }
    };
    all((0..depth).map(task)).await;
    Sample { amount: values.len() as f64, wall_s: wall.elapsed().as_secs_f64(), cpu_s: thread_cpu_s() - cpu }
}

/// Copies the sources in turn, repeatedly, through the whole `target` for about `length`.
pub fn copy_turn(length: Duration, sources: &[Buf], target: &mut [u8]) -> Sample {
    let (wall, cpu) = (Instant::now(), thread_cpu_s());
    let piece_bytes = sources[0].len();
    let mut done = 0;
    for (source, piece) in sources.iter().cycle().zip((0..target.len() / piece_bytes).cycle()) {
        if wall.elapsed() >= length {
            break;
        }
        target[piece * piece_bytes..][..piece_bytes].copy_from_slice(source);
        done += 1;
    }
    std::hint::black_box(&target[0]);
    Sample { amount: done as f64, wall_s: wall.elapsed().as_secs_f64(), cpu_s: thread_cpu_s() - cpu }
}
