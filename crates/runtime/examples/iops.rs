//! Measures a shard. Numbers are for one core; CPU time tells a busy machine from a slow shard.
//!
//! ```text
//! iops drive SPEC [read|write] [block bytes] [queue depth] [seconds] [poll us]
//! iops passthrough SPEC [read|write] [block bytes] [queue depth] [seconds] [rounds]
//!                             an NVMe namespace by pass-through beside its block device, in turns;
//!                             overwrites its first 1 GiB
//! iops tasks                  the cost of one poll of a task
//! iops mailbox                the cost of a message to another shard and back
//! iops idle [seconds]         the cost of two idle shards
//! ```

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use drive::{Drive, Env, Segments};
use runtime::{Config, OpenDrive, Runtime, ShardEnv, mailbox};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| -> Result<u64, Error> {
        arguments.get(index).map_or(Ok(default), |text| text.parse().map_err(|_| format!("{text} is no number").into()))
    };
    match arguments.first().map(String::as_str) {
        Some("drive") => {
            let job = Job {
                spec: arguments.get(1).ok_or("which drive?")?.clone(),
                write: arguments.get(2).is_some_and(|mode| mode == "write"),
                block_bytes: number(3, 4096)?,
                depth: number(4, 32)?,
                seconds: number(5, 3)?,
                poll_us: number(6, 0)?,
                range_bytes: u64::MAX,
                passthrough: false,
            };
            measure(&job).map(drop)
        }
        Some("passthrough") => {
            let job = Job {
                spec: arguments.get(1).ok_or("which drive?")?.clone(),
                write: arguments.get(2).is_some_and(|mode| mode == "write"),
                block_bytes: number(3, 4096)?,
                depth: number(4, 32)?,
                seconds: number(5, 3)?,
                poll_us: 0,
                range_bytes: 1 << 30,
                passthrough: false,
            };
            compare_passthrough(&job, number(6, 5)?)
        }
        Some("tasks") => measure_tasks(),
        Some("mailbox") => measure_mailbox(),
        Some("idle") => measure_idle(number(1, 3)?),
        _ => {
            Err("usage: iops drive SPEC [read|write] [block] [depth] [seconds] [poll us] | passthrough SPEC [read|write] [block] [depth] [seconds] [rounds] | tasks | mailbox | idle"
                .into())
        }
    }
}

/// CPU time in seconds: of the calling thread, or of the whole process.
fn cpu_seconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn start(cores: usize, poll_us: u64, passthrough: bool) -> Result<Runtime, Error> {
    let config = Config { drive_polling: Duration::from_micros(poll_us), passthrough, ..Config::default() };
    let cores = config.cores.iter().rev().copied().take(cores).collect();
    Ok(Runtime::start(Config { cores, ..config })?)
}

struct Job {
    spec: String,
    write: bool,
    block_bytes: u64,
    depth: u64,
    seconds: u64,
    poll_us: u64,
    /// The most bytes of the drive that are used.
    range_bytes: u64,
    passthrough: bool,
}

/// The result of a job: operations per second, and per second of CPU time of the shard's thread.
struct Rates {
    by_wall: f64,
    by_cpu: f64,
}

/// Measures the block device and pass-through in turns. Only the ratios count: above 1,
/// pass-through is faster.
fn compare_passthrough(job: &Job, rounds: u64) -> Result<(), Error> {
    let turn = |passthrough| measure(&Job { passthrough, spec: job.spec.clone(), ..*job });
    let mut ratios = Vec::new();
    for round in 0..rounds {
        // The order alternates.
        let first = turn(round % 2 == 1)?;
        let second = turn(round % 2 == 0)?;
        let (block, passed) = if round % 2 == 0 { (first, second) } else { (second, first) };
        ratios.push((passed.by_wall / block.by_wall, passed.by_cpu / block.by_cpu));
    }
    let spread = |pick: fn(&(f64, f64)) -> f64| {
        let mut sorted: Vec<f64> = ratios.iter().map(pick).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.first().zip(sorted.last()).map(|(least, most)| (*least, sorted[sorted.len() / 2], *most))
    };
    for (by, figures) in [("wall", spread(|ratio| ratio.0)), ("CPU", spread(|ratio| ratio.1))] {
        let (least, median, most) = figures.ok_or("no rounds")?;
        println!("pass-through / block device by {by}: {least:.2} to {most:.2}, median {median:.2}");
    }
    Ok(())
}

fn measure(job: &Job) -> Result<Rates, Error> {
    let open = open(job)?;
    let runtime = start(1, job.poll_us, job.passthrough)?;
    let load = Load {
        write: job.write,
        block_bytes: job.block_bytes,
        depth: job.depth,
        seconds: job.seconds,
        range_bytes: open.info().size_bytes.min(job.range_bytes),
    };
    let drive = open.clone();
    let measured = runtime
        .shard(0)
        .call(move || async move {
            let env = ShardEnv::current();
            let drive = env.attach(&drive);
            fill(&env, &drive, load.range_bytes).await;
            load.run(&env, &drive).await
        })
        .wait()?;
    let rates = report(job, &open, &measured);
    println!("{:?}", runtime.shard(0).stats());
    runtime.stop();
    Ok(rates)
}

fn open(job: &Job) -> Result<OpenDrive, Error> {
    let spec = job.spec.parse()?;
    let open = if job.passthrough { OpenDrive::open_passthrough(&spec)? } else { OpenDrive::open(&spec)? };
    if job.passthrough && open.passthrough().is_none() {
        return Err(format!("{}: {}", job.spec, open.no_passthrough().unwrap_or("it is no drive of the kernel")).into());
    }
    Ok(open)
}

/// Operations at random places of a range, by `depth` workers that each have one in flight.
#[derive(Clone, Copy)]
struct Load {
    write: bool,
    block_bytes: u64,
    depth: u64,
    seconds: u64,
    range_bytes: u64,
}

/// The operations of a load, and its time in seconds: by the clock, and of the shard's thread.
struct Measured {
    operations: u64,
    wall: f64,
    cpu: f64,
}

impl Load {
    async fn run(self, env: &ShardEnv, drive: &runtime::Drive) -> Measured {
        let (wall, cpu) = (Instant::now(), cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID));
        let end = env.now() + self.seconds * 1_000_000_000;
        let operations = Rc::new(Cell::new(0u64));
        let (all_done, wait) = drive::oneshot();
        let left = Rc::new(Cell::new((self.depth, Some(all_done))));
        for seed in 0..self.depth {
            let (operations, left) = (operations.clone(), left.clone());
            let work = self.work(env.clone(), drive.clone(), seed, end);
            env.spawn(async move {
                let done = work.await;
                operations.set(operations.get() + done);
                let (count, all_done) = left.take();
                match (count - 1, all_done) {
                    (0, Some(all_done)) => all_done.send(()),
                    (count, all_done) => left.set((count, all_done)),
                }
            });
        }
        wait.await.expect("the workers end");
        let cpu = cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
        Measured { operations: operations.get(), wall: wall.elapsed().as_secs_f64(), cpu }
    }

    /// One operation after the other until `end`. Returns their number.
    async fn work(self, env: ShardEnv, drive: runtime::Drive, seed: u64, end: u64) -> u64 {
        let blocks = self.range_bytes / self.block_bytes;
        let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut done = 0;
        while done % 64 != 0 || env.now() < end {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let offset = (state >> 8) % blocks * self.block_bytes;
            let buf = env.alloc(self.block_bytes as usize);
            if self.write {
                drive.write(offset, Segments::from_iter([buf.freeze()]), false).await.expect("write");
            } else {
                drive.read(offset, buf).await.expect("read");
            }
            done += 1;
        }
        done
    }
}

fn report(job: &Job, open: &OpenDrive, measured: &Measured) -> Rates {
    let Measured { operations, wall, cpu } = *measured;
    let stats = open.stats();
    let histogram = if job.write { &stats.write_latency } else { &stats.read_latency };
    let rates = Rates { by_wall: operations as f64 / wall, by_cpu: operations as f64 / cpu };
    println!(
        "{}{} {} of {} bytes, depth {}: {:.0} operations/s, {:.0} per CPU second ({:.0}% of a core), median below {} us",
        open.info().name,
        open.passthrough().map_or(String::new(), |node| format!(" by {node}")),
        if job.write { "writes" } else { "reads" },
        job.block_bytes,
        job.depth,
        rates.by_wall,
        rates.by_cpu,
        cpu / wall * 100.0,
        median_ns(histogram) / 1000,
    );
    if job.passthrough {
        println!("{} of {} reads and writes were commands", stats.commands, stats.reads + stats.writes);
    }
    rates
}

/// Writes the used range of the drive once, so that reads find memory or blocks behind every
/// address.
async fn fill(env: &ShardEnv, drive: &runtime::Drive, size: u64) {
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(1 << 20);
        let mut buf = env.alloc(len as usize);
        buf.fill(0x5a);
        drive.write(offset, Segments::from_iter([buf.freeze()]), false).await.expect("write");
        offset += len;
    }
}

/// The upper end of the bucket in which half of all operations are reached.
fn median_ns(histogram: &[u64]) -> u64 {
    let total: u64 = histogram.iter().sum();
    let mut seen = 0;
    for (bucket, count) in histogram.iter().enumerate() {
        seen += count;
        if seen * 2 >= total {
            return 2 << bucket;
        }
    }
    0
}

fn measure_tasks() -> Result<(), Error> {
    const TASKS: u64 = 32;
    const POLLS: u64 = 500_000;
    let runtime = start(1, 0, false)?;
    let call = runtime.shard(0).call(|| async {
        let env = ShardEnv::current();
        let cpu = cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID);
        let left = Rc::new(Cell::new(TASKS));
        for _ in 0..TASKS {
            let left = left.clone();
            env.spawn(async move {
                let mut polls = 0;
                poll_fn(|context| {
                    polls += 1;
                    if polls > POLLS {
                        return Poll::Ready(());
                    }
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            env.turn_end().await;
        }
        (cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID) - cpu) * 1e9 / (TASKS * POLLS) as f64
    });
    println!("{:.1} ns of CPU for waking and polling a task", call.wait()?);
    let call = runtime.shard(0).call(|| async {
        const ROUNDS: u64 = 1_000_000;
        let env = ShardEnv::current();
        let cpu = cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID);
        for _ in 0..ROUNDS {
            let (sender, receiver) = drive::oneshot();
            env.spawn(async move { sender.send(()) });
            receiver.await.expect("the task sends");
        }
        (cpu_seconds(libc::CLOCK_THREAD_CPUTIME_ID) - cpu) * 1e9 / ROUNDS as f64
    });
    println!("{:.1} ns of CPU for spawning a task that sends a oneshot to its maker", call.wait()?);
    runtime.stop();
    Ok(())
}

fn measure_mailbox() -> Result<(), Error> {
    let runtime = start(2, 0, false)?;
    if runtime.shards().len() < 2 {
        return Err("two cores are needed".into());
    }
    for depth in [1u64, 8, 64] {
        let rounds = 100_000 * depth.min(8);
        let (to_echo, mut echo_inbox) = mailbox::<u64>();
        let (to_first, mut first_inbox) = mailbox::<u64>();
        runtime.shard(1).spawn(move || async move {
            let mut batch = Vec::new();
            while echo_inbox.recv_batch(&mut batch).await {
                for message in batch.drain(..) {
                    to_first.send(message).expect("the first shard listens");
                }
            }
        })?;
        let before: Vec<_> = runtime.shards().iter().map(|shard| shard.stats().rung).collect();
        let call = runtime.shard(0).call(move || async move {
            let start = Instant::now();
            let (mut sent, mut received, mut batch) = (0, 0, Vec::new());
            while received < rounds {
                while sent < rounds && sent - received < depth {
                    to_echo.send(sent).expect("the other shard listens");
                    sent += 1;
                }
                first_inbox.recv_batch(&mut batch).await;
                received += batch.drain(..).count() as u64;
            }
            start.elapsed().as_secs_f64() / rounds as f64 * 1e9
        });
        let nanos = call.wait()?;
        let rung: u64 = runtime.shards().iter().zip(before).map(|(shard, before)| shard.stats().rung - before).sum();
        println!(
            "{nanos:.0} ns for a message there and back, {depth} at a time, {:.3} doorbells each",
            rung as f64 / rounds as f64
        );
    }
    runtime.stop();
    Ok(())
}

fn measure_idle(seconds: u64) -> Result<(), Error> {
    let runtime = start(2, 50, false)?;
    let drive = OpenDrive::open(&"mem:idle:1MiB".parse()?)?;
    runtime.shard(0).spawn(move || async move {
        let env = ShardEnv::current();
        env.attach(&drive).flush().await.expect("memory");
        env.sleep(Duration::from_secs(3600)).await;
    })?;
    std::thread::sleep(Duration::from_millis(100));
    let cpu = cpu_seconds(libc::CLOCK_PROCESS_CPUTIME_ID);
    std::thread::sleep(Duration::from_secs(seconds));
    let share = (cpu_seconds(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu) / seconds as f64 * 100.0;
    println!("two idle shards use {share:.4}% of a core");
    runtime.stop();
    if share < 0.5 { Ok(()) } else { Err("idle costs more than 0.5% of a core".into()) }
}
