//! `purlin nvme bench`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use api::{format_bytes, format_bytes_exact};
use drive::{Buf, Segments, join_all, oneshot};
use hdrhistogram::Histogram;
use initiator::{Address, IoError, Namespace, Network, Options};

use super::io_loop::IoLoop;
use super::reports::{NvmeBench, NvmeLatency};
use super::{connect, connection_options};
use crate::Failure;
use crate::ask::consent;
use crate::common_args::Common;
use crate::nvme_args::BenchArgs;
use crate::output::show;
use crate::table::{micros, pairs, per_second};

/// The longest request.
const BLOCK_BYTES_MAX: u64 = 64 << 20;

/// The longest latency that is recorded exactly: a day.
const LATENCY_US_MAX: u64 = 86_400_000_000;

/// The load on the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pattern {
    writes: bool,
    is_random: bool,
}

impl Pattern {
    fn of(args: &BenchArgs) -> Pattern {
        Pattern { writes: args.write || args.randwrite, is_random: !(args.read || args.write) }
    }

    fn name(self) -> &'static str {
        match (self.is_random, self.writes) {
            (false, false) => "read",
            (false, true) => "write",
            (true, false) => "randread",
            (true, true) => "randwrite",
        }
    }
}

/// State that the requests in flight share.
struct Load<N: Network> {
    network: N,
    disk: Namespace<N>,
    pattern: Pattern,
    bytes: u64,
    size_bytes: u64,
    /// Number of requests that fit into the namespace.
    places: u64,
    next: Cell<u64>,
    began: Instant,
    ends: Instant,
    latencies: RefCell<Histogram<u64>>,
    failed: RefCell<Option<IoError>>,
}

pub(super) async fn run(common: &Common, args: BenchArgs) -> Result<(), Failure> {
    let pattern = Pattern::of(&args);
    if args.block_size == 0 || args.block_size > BLOCK_BYTES_MAX {
        return Err(Failure::Usage(format!("a request has at most {}", format_bytes_exact(BLOCK_BYTES_MAX))));
    }
    let mut options = connection_options(&args.host, &args.connection, &args.subsystem)?;
    // Queues are large enough, up to 1024 entries, that requests wait at the target and not here.
    let share = args.depth.div_ceil(options.queues);
    options.queue_entries = options.queue_entries.max(share.saturating_add(1)).min(1024);
    let bench = Bench { common: common.clone(), args, pattern, options };
    let measured = IoLoop::start()?.bench(bench).await?;
    show(common, &measured, text)
}

/// A benchmark to run.
pub(super) struct Bench {
    common: Common,
    pub args: BenchArgs,
    pattern: Pattern,
    options: Options,
}

impl Bench {
    /// Connects to `addresses` and measures. They are the addresses of the arguments, in the form
    /// that the network needs.
    ///
    /// # Errors
    /// [`Failure`], one sentence.
    pub async fn run<N: Network + Clone>(self, network: N, addresses: &[Address]) -> Result<NvmeBench, Failure> {
        let Bench { common, args, pattern, options } = self;
        let disk = connect(&network, addresses, args.connection.nsid, options).await?;
        let measured = measure(&common, &args, pattern, network, disk.clone()).await;
        disk.close().await;
        measured
    }
}

async fn measure<N: Network + Clone>(
    common: &Common,
    args: &BenchArgs,
    pattern: Pattern,
    network: N,
    disk: Namespace<N>,
) -> Result<NvmeBench, Failure> {
    check_block_size(args, &disk)?;
    if pattern.writes && !args.destroys_data {
        let (nsid, size) = (disk.info().nsid, format_bytes(disk.size_bytes()));
        consent(common, &format!("this overwrites namespace {nsid} of {}, {size}", args.subsystem))?;
    }
    let load = Rc::new(Load::new(args, pattern, network, disk));
    load.send(args.depth).await?;
    Ok(load.report(args, load.began.elapsed()))
}

/// Checks that requests of this size fit into the namespace.
fn check_block_size<N: Network>(args: &BenchArgs, disk: &Namespace<N>) -> Result<(), Failure> {
    let (block, size) = (disk.info().block_bytes, disk.size_bytes());
    if !args.block_size.is_multiple_of(block.into()) {
        let what = format!("the namespace has blocks of {block} bytes: --block-size is to be a multiple of them");
        return Err(Failure::Usage(what));
    }
    if args.block_size > size {
        return Err(Failure::Usage(format!("the namespace has {} only", format_bytes(size))));
    }
    Ok(())
}

impl<N: Network + Clone> Load<N> {
    fn new(args: &BenchArgs, pattern: Pattern, network: N, disk: Namespace<N>) -> Load<N> {
        let (began, size_bytes) = (Instant::now(), disk.size_bytes());
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("bounds that make sense");
        Load {
            network,
            disk,
            pattern,
            bytes: args.block_size,
            size_bytes,
            places: size_bytes / args.block_size,
            next: Cell::new(0),
            began,
            ends: began + Duration::from_secs(args.seconds.into()),
            latencies: RefCell::new(histogram),
            failed: RefCell::new(None),
        }
    }

    /// Keeps `depth` requests in flight until the time is over.
    async fn send(self: &Rc<Self>, depth: u16) -> Result<(), Failure> {
        let requests: Vec<_> = (0..depth)
            .map(|index| {
                let (sender, ended) = oneshot();
                let load = self.clone();
                self.network.spawn(async move {
                    load.one(index.into()).await;
                    sender.send(());
                });
                ended
            })
            .collect();
        if join_all(requests).await.iter().any(Result::is_err) {
            return Err(Failure::Ended("the benchmark was cut off".to_owned()));
        }
        match self.failed.borrow_mut().take() {
            Some(error) => Err(Failure::Ended(format!("a request failed: {error}"))),
            None => Ok(()),
        }
    }

    /// The result after `duration`.
    fn report(&self, args: &BenchArgs, duration: Duration) -> NvmeBench {
        let duration_s = duration.as_secs_f64();
        let latencies = self.latencies.borrow();
        let request_count = latencies.len();
        let at = |percent: f64| latencies.value_at_quantile(percent / 100.0) as f64;
        let connects = self.disk.paths().iter().map(|path| path.connects.saturating_sub(1)).sum();
        NvmeBench {
            addresses: args.addresses.iter().map(ToString::to_string).collect(),
            subsystem: args.subsystem.to_string(),
            nsid: self.disk.info().nsid,
            size_bytes: self.size_bytes,
            pattern: self.pattern.name().to_owned(),
            block_size_bytes: args.block_size,
            depth_count: args.depth.into(),
            queue_count: args.connection.nr_io_queues.into(),
            duration_s,
            request_count,
            reconnect_count: connects,
            iops_per_s: request_count as f64 / duration_s,
            bandwidth_bytes_per_s: (request_count * args.block_size) as f64 / duration_s,
            latency: NvmeLatency {
                mean_us: latencies.mean(),
                p50_us: at(50.0),
                p90_us: at(90.0),
                p99_us: at(99.0),
                p999_us: at(99.9),
                max_us: latencies.max() as f64,
            },
        }
    }

    /// Sends one request after the other until the time is over.
    async fn one(self: Rc<Self>, index: u64) {
        let len = self.bytes as usize;
        // Data that do not compress, so that a target with compression has no advantage.
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (index + 1).wrapping_mul(0xD129_0D3B_3E63_5F3B));
        let mut bytes = self.network.alloc(len);
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
        let data: Buf = bytes.freeze();
        let mut place = Some(self.network.alloc(len));
        while Instant::now() < self.ends && self.failed.borrow().is_none() {
            let at = match self.pattern.is_random {
                true => random.next() % self.places,
                false => self.next.replace(self.next.get() + 1) % self.places,
            };
            let begin = Instant::now();
            let done = if self.pattern.writes {
                self.disk.write(at * self.bytes, Segments::from_iter([data.clone()]), false).await
            } else {
                let into = place.take().unwrap_or_else(|| self.network.alloc(len));
                self.disk.read(at * self.bytes, into).await.map(|read| place = Some(read))
            };
            match done {
                Ok(()) => self.latencies.borrow_mut().saturating_record(begin.elapsed().as_micros() as u64),
                Err(error) => *self.failed.borrow_mut() = Some(error),
            }
        }
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn text(report: &NvmeBench) -> String {
    let NvmeLatency { mean_us, p50_us, p90_us, p99_us, p999_us, max_us } = report.latency;
    let queues = if report.queue_count == 1 { "1 queue".to_owned() } else { format!("{} queues", report.queue_count) };
    let mut lines = vec![
        ("namespace", format!("{} of {}, {}", report.nsid, report.subsystem, format_bytes(report.size_bytes))),
        (
            "load",
            format!(
                "{} of {}, {} in flight, {queues}, {:.1} s",
                report.pattern,
                format_bytes_exact(report.block_size_bytes),
                report.depth_count,
                report.duration_s
            ),
        ),
        ("requests", format!("{}/s, {} in all", per_second(report.iops_per_s), report.request_count)),
        ("bandwidth", format!("{}/s", format_bytes(report.bandwidth_bytes_per_s as u64))),
        ("latency", format!("{} mean, {} at most", micros(mean_us), micros(max_us))),
        ("p50", micros(p50_us)),
        ("p90", micros(p90_us)),
        ("p99", micros(p99_us)),
        ("p99.9", micros(p999_us)),
    ];
    if report.reconnect_count > 0 {
        lines.push(("connected again", report.reconnect_count.to_string()));
    }
    pairs(&lines)
}
