//! Single reads while overwrites and the collector keep the shard busy.

use std::cell::RefCell;
use std::rc::Rc;

use bench::load::{Pace, Rng, thread_cpu_s, turn};
use bench::report::{Row, Target};
use bench::rounds::Rounds;
use drive::{Block, Env};
use format::BLOCK;
use runtime::ShardEnv;
use volume::thin::{Compression, Tuning};

use crate::setup::{Bench, Contents};
use crate::{Arguments, BLOCK_BYTES};

/// Longest pause between two reads, in microseconds.
const PAUSE_US_MAX: u64 = 100;

/// Times of a turn, in microseconds of the shard's CPU time.
#[derive(Default)]
struct Times {
    /// Of each read.
    reads: Vec<f64>,
    /// Of each overwrite.
    writes: Vec<f64>,
    /// Between two times at which every task that was ready had run.
    steps: Vec<f64>,
}

/// So much of the values is not above the result.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

fn thread_cpu_us() -> f64 {
    thread_cpu_s() * 1e6
}

/// The 99th percentile of single reads beside saturating overwrites at 20% spare, over the same
/// directly. CPU time of the shard is what a read waits for: drives of memory take none, and what
/// else the machine does is not in it.
pub async fn latency(arguments: &Arguments) -> Result<Vec<Row>, String> {
    let contents = Rc::new(Contents::new(false));
    let bench = Rc::new(Bench::make(arguments, 0.2, Compression::Off, Tuning::default()).await?);
    bench.fill_direct(&contents).await;
    bench.settle(arguments, &contents, 3.0, false).await;
    let before = bench.store.counts();
    let mut figures: [[Vec<f64>; 2]; 5] = Default::default();
    for round in 0..=usize::from(arguments.on.rounds) {
        for contender in Rounds::order(2, round) {
            let (bench, contents) = (bench.clone(), contents.clone());
            let load = Load { bench, contents, is_thin: contender == 0, times: RefCell::default() };
            let Times { mut reads, mut writes, mut steps } = busy_turn(load, arguments, round).await;
            let found = [
                quantile(&mut reads, 0.99),
                quantile(&mut reads, 0.999),
                quantile(&mut writes, 0.99),
                quantile(&mut steps, 0.999),
                quantile(&mut steps, 1.0),
            ];
            if round > 0 {
                figures.iter_mut().zip(found).for_each(|(figures, found)| figures[contender].push(found));
            }
        }
    }
    let after = bench.store.counts();
    eprintln!(
        "latency: {} segments collected, {} checkpoints",
        after.collected_segments - before.collected_segments,
        after.checkpoints - before.checkpoints
    );
    Rc::into_inner(bench).expect("the turns are over").close().await?;
    let whats = [
        "p99 of single 4 KiB reads beside overwrites, 20% spare",
        "p99.9 of these reads",
        "p99 of these overwrites",
        "p99.9 of steps of the shard meanwhile",
        "longest step of the shard meanwhile",
    ];
    let rows = whats.iter().zip(&figures).enumerate().map(|(number, (what, [ours, peer]))| {
        let target = (number == 0).then_some(Target::AtMost(3.0));
        Row::beside((what, "us"), ours, (peer, "direct"), "CPU", target)
    });
    Ok(rows.collect())
}

/// A contender in a turn.
struct Load {
    bench: Rc<Bench>,
    contents: Rc<Contents>,
    is_thin: bool,
    times: RefCell<Times>,
}

impl Load {
    async fn read(&self, rng: &mut Rng) {
        let buf = ShardEnv::current().alloc(BLOCK);
        let read = match self.is_thin {
            true => self.bench.volume.read(self.place(rng), buf).await,
            false => self.bench.group.array.read(self.place(rng), buf).await,
        };
        drop(read.expect("memory does not fail"));
    }

    async fn write(&self, rng: &mut Rng) {
        let (place, data) = (self.place(rng), self.contents.any(rng));
        let written = match self.is_thin {
            true => self.bench.volume.write(place, data, false).await,
            false => self.bench.group.array.write(place, data, false).await,
        };
        written.expect("memory does not fail, and there is space");
    }

    fn place(&self, rng: &mut Rng) -> u64 {
        let direct = &self.bench.direct;
        match self.is_thin {
            true => rng.below(self.bench.blocks) * BLOCK_BYTES,
            false => direct.start + rng.below((direct.end - direct.start) / BLOCK_BYTES) * BLOCK_BYTES,
        }
    }

    /// Writes, one after the other.
    async fn writes(&self, pace: &Pace, mut rng: Rng) {
        while pace.goes_on() {
            let began = thread_cpu_us();
            self.write(&mut rng).await;
            self.times.borrow_mut().writes.push(thread_cpu_us() - began);
        }
    }

    /// Reads at times of their own, which do not depend on what the shard does: it sees a request
    /// when all has run that was ready.
    async fn reads(&self, pace: &Pace, mut rng: Rng) {
        let env = ShardEnv::current();
        let mut pause = Rng::new(rng.below(u64::MAX));
        let (mut before, mut due) = (thread_cpu_us(), thread_cpu_us());
        while pace.goes_on() {
            env.turn_end().await;
            let now = thread_cpu_us();
            self.times.borrow_mut().steps.push(now - before);
            before = now;
            if now >= due {
                self.read(&mut rng).await;
                let end = thread_cpu_us();
                self.times.borrow_mut().reads.push(end - due);
                due = end + pause.below(PAUSE_US_MAX) as f64;
            }
        }
    }
}

/// Overwrites with all requests in flight, of the volume or directly, and single reads beside.
async fn busy_turn(load: Load, arguments: &Arguments, round: usize) -> Times {
    let (depth, load) = (arguments.on.depth, Rc::new(load));
    let work = turn(depth + 1, arguments.on.turn(), |number, pace| {
        let (load, rng) = (load.clone(), Rng::new(number + 2000 * round as u64));
        async move {
            match number < depth {
                true => load.writes(&pace, rng).await,
                false => load.reads(&pace, rng).await,
            }
        }
    });
    work.await;
    load.times.take()
}
