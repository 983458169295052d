//! Many runs on all cores.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::program::execute::{Tally, execute};
use crate::program::generate::{generate, generate_remote};
use crate::program::{Program, promise, shrink};

thread_local! {
    /// Panics of this thread are violations, and the code that catches them reports them.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether panics of this thread are caught by [`attempt`].
pub(crate) fn is_caught() -> bool {
    CAUGHT.get()
}

/// Runs code that panics at a violation.
///
/// # Errors
/// The message of the panic, and its location.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_caught() {
                return usual(info);
            }
            let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
            let text = format!("{}{}", message(info.payload()), place.unwrap_or_default());
            MESSAGE.with_borrow_mut(|message| {
                message.get_or_insert(text);
            });
        }));
    });
    let outer = CAUGHT.replace(true);
    MESSAGE.take();
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(outer);
    result.map_err(|payload| MESSAGE.take().unwrap_or_else(|| message(&*payload)))
}

fn message(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

/// A world lives for a millisecond and allocates buffers as large as a drive. glibc gives memory of
/// that size back to the kernel each time, which takes longer than the run. It stops doing so once
/// a larger block was freed (mallopt(3), M_MMAP_THRESHOLD, "dynamic"). So this frees one, just
/// below the largest size that glibc learns from. With other allocators it does no harm.
pub(crate) fn keep_memory() {
    const LEARNED_BYTES_MAX: usize = 32 << 20;
    drop(std::hint::black_box(vec![0_u8; LEARNED_BYTES_MAX - (64 << 10)]));
}

/// The extent of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// The first seed; the others follow.
    pub from: u64,
    /// Runs at most.
    pub runs: u64,
    /// Time at most.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: usize,
    /// Progress is printed.
    pub progress: bool,
    /// With members on targets.
    pub remote: bool,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct CampaignResult {
    /// Totals of all runs.
    pub tally: Tally,
    /// CPU time, summed over the threads.
    pub cpu: Duration,
    /// Seeds that failed, and why.
    pub failures: BTreeMap<u64, String>,
    /// With members on targets.
    pub remote: bool,
}

/// The program of a seed, with members on targets or without.
pub fn program_of(seed: u64, remote: bool) -> Program {
    if remote { generate_remote(seed) } else { generate(seed) }
}

/// Failures after which a campaign ends: more of them give no more information.
const FAILURES_MAX: usize = 10;

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct SeedResults<T> {
    /// The sum over the seeds that did not fail.
    pub total: T,
    /// Seeds.
    pub runs: u64,
    /// CPU time, summed over the threads.
    pub cpu: Duration,
    /// Seeds that failed, and why.
    pub failures: BTreeMap<u64, String>,
}

/// The state of a campaign, for all of its threads.
struct Progress<T> {
    next: AtomicU64,
    stop: AtomicBool,
    results: Mutex<SeedResults<T>>,
    began: Instant,
}

impl Campaign {
    /// Runs it.
    pub fn run(&self) -> CampaignResult {
        let results = self.run_seeds(|seed| execute(&program_of(seed, self.remote), false), Tally::add);
        let SeedResults { total: mut tally, cpu, failures, .. } = results;
        tally.runs += failures.len() as u64;
        CampaignResult { tally, cpu, failures, remote: self.remote }
    }

    /// Runs `run` for each seed, and sums up with `add`. A panic of `run` is a violation.
    pub fn run_seeds<T: Default + Send>(
        &self,
        run: impl Fn(u64) -> T + Sync,
        add: impl Fn(&mut T, &T) + Sync,
    ) -> SeedResults<T> {
        keep_memory();
        let results = SeedResults { total: T::default(), runs: 0, cpu: Duration::ZERO, failures: BTreeMap::new() };
        let progress = Progress {
            next: AtomicU64::new(self.from),
            stop: AtomicBool::new(false),
            results: Mutex::new(results),
            began: Instant::now(),
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| self.work(&progress, &run, &add));
            }
            if self.progress {
                watch(&progress);
            }
        });
        progress.results.into_inner().expect("violations are caught")
    }

    fn work<T>(&self, progress: &Progress<T>, run: impl Fn(u64) -> T, add: impl Fn(&mut T, &T)) {
        let cpu_start = cpu_time();
        while !progress.stop.load(Ordering::Relaxed) {
            let seed = progress.next.fetch_add(1, Ordering::Relaxed);
            let is_late = || self.time.is_some_and(|time| progress.began.elapsed() >= time);
            if seed - self.from >= self.runs || is_late() {
                break;
            }
            let result = attempt(|| run(seed));
            let mut results = progress.results.lock().expect("violations are caught");
            results.runs += 1;
            match result {
                Ok(one) => add(&mut results.total, &one),
                Err(why) => {
                    results.failures.insert(seed, why.clone());
                    if self.progress {
                        eprintln!("VIOLATION seed {seed}: {why}");
                    }
                    progress.stop.fetch_or(results.failures.len() >= FAILURES_MAX, Ordering::Relaxed);
                }
            }
        }
        progress.stop.store(true, Ordering::Relaxed);
        progress.results.lock().expect("violations are caught").cpu += cpu_time().saturating_sub(cpu_start);
    }
}

fn watch<T>(progress: &Progress<T>) {
    let mut told = Instant::now();
    while !progress.stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        if told.elapsed() >= Duration::from_secs(10) {
            told = Instant::now();
            let results = progress.results.lock().expect("violations are caught");
            let rate = results.runs as f64 / progress.began.elapsed().as_secs_f64();
            eprintln!("{} runs, {rate:.1}/s, {} violations", results.runs, results.failures.len());
        }
    }
}

/// Executes a program, and gives the reason if it fails.
pub fn failure(program: &Program) -> Option<String> {
    attempt(|| execute(program, false)).err()
}

/// The shortest program that still fails, with its reason.
pub fn shrunk(program: &Program) -> (Program, String) {
    let short = shrink::shrink(program, |candidate| failure(candidate).is_some());
    let why = failure(&short).expect("a shrunk program fails");
    (short, why)
}

impl CampaignResult {
    /// The summary, as lines of text.
    pub fn summary(&self) -> String {
        let Tally { runs, drive_ops, requests, crashes, recoveries, unstarted, refused, moved, faults, buggify } =
            &self.tally;
        let seconds = self.cpu.as_secs_f64().max(1e-9);
        let mut text = format!(
            "{runs} runs, {requests} requests, {drive_ops} drive operations, {:.2} million a second and core\n\
             {moved} changes of owners, {crashes} crashes, {recoveries} recoveries, {unstarted} starts that failed and were tried again, \
             {refused} requests that failed with the way to the drives\n",
            *drive_ops as f64 / seconds / 1e6
        );
        for (fault, what) in promise::FAULTS {
            if let Some(count) = faults.get(&fault) {
                text += &format!("{count:>10} x {what}\n");
            }
        }
        for (place, count) in buggify {
            text += &format!("{count:>10} x trouble: {place}\n");
        }
        text + &violations(&self.failures, if self.remote { "--remote " } else { "" })
    }
}

/// Failures as lines of text, with the command that repeats each of them. `which`: the words of
/// that command before the seed.
pub fn violations(failures: &BTreeMap<u64, String>, which: &str) -> String {
    let mut text = format!("{} violations\n", failures.len());
    for (seed, why) in failures {
        text += &format!("  seed {seed}: {why}\n    replay: cargo run --release -p sim -- {which}--seed {seed}\n");
    }
    text
}

/// CPU time of this thread (proc(5), `/proc/pid/schedstat`). Zero where that is not available.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
