//! Limits of volumes and of hosts: which requests pass, which wait, and which clients are not
//! affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Saved, Target, host, wish};
use crate::common::{PATIENCE, Raw, Served, Volume, eventually};
use export::{ExportState, Hosts, Limit, Limiter, ServerConfig};
use nbd::client::{self, Reply};
use nbd::wire::{cmd, cmd_flag};
use nvme::Status;
use nvme::host::{Blocks, io};
use nvme::tcp::Digests;

/// This many requests a second, with a burst of 10 ms.
fn iops(iops: u64) -> Option<Limit> {
    Some(Limit { iops: Some(iops), bytes_per_s: None, burst_ms: 10 })
}

/// The first request goes, and those after it wait for longer than any test.
fn one_only() -> Option<Limit> {
    Some(Limit { iops: None, bytes_per_s: Some(1), burst_ms: 10 })
}

fn blocks(nsid: u32, first: u64, bytes: u64) -> Blocks {
    Blocks { nsid, first, count: (bytes / u64::from(BLOCK)) as u32 }
}

/// Sends a read of `bytes`, without waiting for the answer.
fn send_read(queue: &mut Queue, nsid: u32, bytes: u64) -> u16 {
    queue.send(io::read(blocks(nsid, 0, bytes), bytes as u32), &[], bytes as u32)
}

/// The cookie of the next answered request, which has to succeed.
fn done(raw: &mut Raw) -> u64 {
    match raw.reply() {
        Reply::Simple { error: 0, cookie, .. } => cookie,
        reply => panic!("{reply:?}"),
    }
}

fn limited(limiter: &Arc<Limiter>) -> Arc<ExportState> {
    ExportState::limited("disk", "for tests", false, limiter.clone())
}

/// A limited volume for NBD clients and for NVMe hosts, two shards each, and the number of answered
/// requests.
struct Everywhere {
    nbd: Served,
    nvme: Target,
    limiter: Arc<Limiter>,
    answered: AtomicU64,
    over: AtomicBool,
}

/// Requests in flight on each of the four connections of [`Everywhere::measure`].
const DEPTH: u64 = 16;

impl Everywhere {
    fn new() -> Everywhere {
        let limiter: Arc<Limiter> = Arc::default();
        let volume = Volume::new(16 * MIB);
        let nbd = Served::start(ServerConfig::default(), false, 2);
        nbd.exports.add(volume.clone(), limited(&limiter));
        let nvme: Target = Target::start(2, 64);
        nvme.offer_as(1, volume, Hosts::Any, limited(&limiter), &Saved::default().namespace());
        Everywhere { nbd, nvme, limiter, answered: AtomicU64::new(0), over: AtomicBool::new(false) }
    }

    /// An NBD client with this many requests in flight.
    fn use_nbd(&self, depth: u64, bytes: u32) {
        let mut raw = Raw::on(&self.nbd.socket(), "disk", false);
        (0..depth).for_each(|cookie| raw.read(cookie, 0, bytes));
        let mut left = depth;
        while left > 0 {
            let cookie = done(&mut raw);
            self.answered.fetch_add(1, Ordering::SeqCst);
            match self.over.load(Ordering::SeqCst) {
                true => left -= 1,
                false => raw.read(cookie, 0, bytes),
            }
        }
    }

    /// An NVMe host with this many requests in flight, on two queues in turn.
    fn use_nvme(&self, depth: usize, bytes: u64) {
        let controller = Controller::connect(self.nvme.address);
        let mut queues = [controller.queue(1), controller.queue(2)];
        let mut sent: Vec<_> = queues
            .iter_mut()
            .map(|queue| (0..depth).map(|_| send_read(queue, 1, bytes)).collect::<std::collections::VecDeque<_>>())
            .collect();
        while !sent.iter().all(|sent| sent.is_empty()) {
            for (queue, sent) in queues.iter_mut().zip(&mut sent) {
                let Some(cid) = sent.pop_front() else { continue };
                assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
                self.answered.fetch_add(1, Ordering::SeqCst);
                if !self.over.load(Ordering::SeqCst) {
                    sent.push_back(send_read(queue, 1, bytes));
                }
            }
        }
    }

    /// The number of requests answered to two NBD clients and to a host on two queues, and the time
    /// that this took.
    fn measure(&self, time: Duration, bytes: u32) -> (u64, Duration) {
        self.over.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| self.use_nbd(DEPTH, bytes));
            }
            scope.spawn(|| self.use_nvme(DEPTH as usize, bytes.into()));
            std::thread::sleep(Duration::from_millis(200));
            // The clock runs before and after the counting, so any delay of this thread makes the
            // time longer.
            let (start, before) = (Instant::now(), self.answered.load(Ordering::SeqCst));
            std::thread::sleep(time);
            let measured = (self.answered.load(Ordering::SeqCst) - before, start.elapsed());
            self.over.store(true, Ordering::SeqCst);
            self.limiter.set(None);
            measured
        })
    }

    /// Measures until the rate is reached: a busy machine may have no time for more. The count
    /// never exceeds the requests that are admitted within the time, plus the burst, plus the
    /// requests in flight: these may have been answered before, but not counted yet because their
    /// clients were delayed.
    fn assert_rate(&self, limit: Limit, bytes: u32, rate: f64) {
        let (mut seen, began) = (Vec::new(), Instant::now());
        while began.elapsed() < PATIENCE {
            self.limiter.set(Some(limit));
            let (answered, time) = self.measure(Duration::from_secs(1), bytes);
            let allowed = rate * (time.as_secs_f64() + limit.burst_ms as f64 / 1000.0) + (4 * DEPTH) as f64;
            assert!(answered as f64 <= allowed, "{answered} in {time:?}, {allowed:.0} are allowed");
            let per_second = answered as f64 / time.as_secs_f64();
            if per_second > rate * 0.90 {
                return;
            }
            seen.push(per_second);
        }
        panic!("{seen:.0?} a second, {rate:.0} are allowed");
    }
}

#[test]
fn a_volumes_limit_is_what_all_its_exports_queues_and_shards_get_together() {
    let all = Everywhere::new();
    // Rates that a busy machine can serve, and a burst for which a shard may be delayed.
    let requests = Limit { iops: Some(200), bytes_per_s: None, burst_ms: 500 };
    all.assert_rate(requests, 4096, 200.0);
    let bandwidth = Limit { iops: None, bytes_per_s: Some(4 * MIB), burst_ms: 500 };
    all.assert_rate(bandwidth, 64 << 10, 64.0);
    let waits = all.limiter.waits();
    assert!(waits.waiting == 0 && waits.waited > 0 && waits.waited_ns > 0, "{waits:?}");
}

#[test]
fn what_waits_for_one_volumes_limit_delays_no_other_volume_of_the_same_queue() {
    let (target, _, _) = Target::disk(4 * MIB);
    let (limiter, slow) = (Arc::<Limiter>::default(), Volume::new(4 * MIB));
    target.offer_as(2, slow, Hosts::Any, limited(&limiter), &Saved::default().namespace());
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    limiter.set(one_only());
    // More reads than a connection may hold if they were admitted; and writes whose data is not
    // requested.
    let first = send_read(&mut queue, 2, MIB);
    let reads: Vec<u16> = (0..90).map(|_| send_read(&mut queue, 2, MIB)).collect();
    let data = vec![7; MIB as usize];
    let write = |nsid| io::write(blocks(nsid, 0, MIB), MIB as u32, false, false);
    let writes: Vec<u16> = (0..20).map(|_| queue.send(write(2), &data, 0)).collect();
    assert_eq!(queue.wait(first).status(), Status::SUCCESS, "the first one is larger than the burst, and goes");
    eventually("all others wait", || limiter.waits().waiting == 110);
    assert_eq!(queue.requests, 0, "no data were asked for");
    for _ in 0..10 {
        assert_eq!(queue.execute(write(1), &data, 0).status(), Status::SUCCESS);
        let read = send_read(&mut queue, 1, MIB);
        assert!(queue.wait(read).data() == data);
    }
    assert_eq!(limiter.waits().waiting, 110, "{:?}", limiter.waits());
    limiter.set(None);
    for cid in reads.into_iter().chain(writes) {
        assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
    }
    let read = send_read(&mut queue, 2, MIB);
    assert!(queue.wait(read).data() == data);
}

#[test]
fn what_a_request_has_moved_counts_as_its_bytes() {
    let (served, volume, _) = Served::disk(16 * MIB);
    let limiter: Arc<Limiter> = Arc::default();
    served.exports.add(volume.clone(), limited(&limiter));
    let mut raw = Raw::on(&served.socket(), "disk", false);
    // The first request is paid for before the next one passes.
    let mut waits = |flags, command| {
        limiter.set(None);
        limiter.set(one_only());
        (0..2).for_each(|cookie| raw.send(&client::request(flags, command, cookie, 0, MIB as u32)));
        done(&mut raw);
        raw.send(&client::request(0, cmd::FLUSH, 2, 0, 0));
        // A flush is not limited: earlier requests that do not wait are answered before it.
        let answered = (0..2).take_while(|_| done(&mut raw) != 2).count();
        let waits = limiter.waits().waiting;
        limiter.set(None);
        (answered..1).for_each(|_| assert_eq!(done(&mut raw), 1));
        waits
    };
    assert_eq!(waits(cmd_flag::NO_HOLE, cmd::WRITE_ZEROES), 1, "zeroes that keep their space are written");
    assert_eq!(waits(0, cmd::WRITE_ZEROES), 0, "zeroes that need none are not");
    assert_eq!(waits(0, cmd::TRIM), 0);

    let target: Target = Target::start(1, 64);
    target.offer_as(1, volume, Hosts::Any, limited(&limiter), &Saved::default().namespace());
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let mut waits = |command: nvme::Command| {
        limiter.set(None);
        limiter.set(one_only());
        let cids = [0, 1].map(|_| queue.send(command, &[], 0));
        assert_eq!(queue.wait(cids[0]).status(), Status::SUCCESS);
        let flush = queue.send(io::flush(1), &[], 0);
        assert_eq!(queue.wait(flush).status(), Status::SUCCESS);
        let waits = limiter.waits().waiting;
        limiter.set(None);
        assert_eq!(queue.wait(cids[1]).status(), Status::SUCCESS);
        waits
    };
    assert_eq!(waits(io::write_zeroes(blocks(1, 0, MIB), false, false)), 1);
    assert_eq!(waits(io::write_zeroes(blocks(1, 0, MIB), false, true)), 0);
    assert_eq!(waits(io::verify(blocks(1, 0, MIB))), 1);
}

#[test]
fn a_write_that_waits_is_not_done_once_its_client_has_gone() {
    let (served, volume, _) = Served::disk(MIB);
    let limiter: Arc<Limiter> = Arc::default();
    let state = limited(&limiter);
    served.exports.add(volume.clone(), state.clone());
    limiter.set(one_only());
    let mut raw = Raw::on(&served.socket(), "disk", false);
    for cookie in 0..3 {
        raw.send(&client::write(cookie, cookie * 4096, &[1; 4096], 0));
    }
    assert_eq!(done(&mut raw), 0);
    eventually("two wait", || limiter.waits().waiting == 2);
    assert!(state.cut(state.connections()[0].id));
    eventually("it has gone", || state.connections().is_empty());
    assert_eq!(limiter.waits().waiting, 0);

    let target: Target = Target::start(1, 64);
    let state = limited(&limiter);
    target.offer_as(1, volume.clone(), Hosts::Any, state.clone(), &Saved::default().namespace());
    limiter.set(None);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let capsule = |first| io::write(blocks(1, first, 4096), BLOCK, true, false);
    assert_eq!(queue.execute(capsule(0), &[2; 4096], 0).status(), Status::SUCCESS);
    limiter.set(one_only());
    assert_eq!(queue.execute(capsule(0), &[2; 4096], 0).status(), Status::SUCCESS);
    queue.send(capsule(3), &[2; 4096], 0);
    queue.send(io::write(blocks(1, 4, 4096), BLOCK, false, false), &[2; 4096], 0);
    send_read(&mut queue, 1, 4096);
    eventually("three wait", || limiter.waits().waiting == 3);
    drop((queue, controller));
    eventually("it has gone", || state.connections().is_empty());
    limiter.set(None);

    let read = crate::common::nvme::within(
        Duration::from_secs(30),
        drive::Block::read(&volume, 4096, drive::BufMut::zeroed(5 * 4096)),
    );
    let read = read.expect("it is memory").unwrap();
    assert!(read.iter().all(|&byte| byte == 0), "nothing was written behind the first block");
}

#[test]
fn an_export_that_is_stopped_answers_at_once_what_waited() {
    let (served, volume, _) = Served::disk(MIB);
    let limiter: Arc<Limiter> = Arc::default();
    let state = limited(&limiter);
    served.exports.add(volume, state.clone());
    limiter.set(one_only());
    let mut raw = Raw::on(&served.socket(), "disk", false);
    (0..1000).for_each(|cookie| raw.read(cookie, 0, 512));
    eventually("they wait", || limiter.waits().waiting == 999);
    state.stop();
    let mut cookies: Vec<u64> = (0..1000).map(|_| done(&mut raw)).collect();
    cookies.sort_unstable();
    assert!(cookies.iter().copied().eq(0..1000));
}

#[test]
fn a_hosts_limit_holds_for_all_its_queues_and_for_nobody_else() {
    let target: Target = Target::start(2, 64);
    let state = target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let controllers = [1, 2].map(|number| Controller::with(target.address, wish(number), Digests::default()).unwrap());
    let [one, two] = controllers.each_ref().map(|controller| [controller.queue(1), controller.queue(2)]);
    let (mut one, mut two) = (one, two);
    let name = host(1).nqn.to_string();
    // The queues are connected already, and used.
    for queue in one.iter_mut().chain(&mut two) {
        let cid = send_read(queue, 1, 4096);
        assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
    }
    state.limit_host(&name, iops(1));
    let first = send_read(&mut one[0], 1, 4096);
    assert_eq!(one[0].wait(first).status(), Status::SUCCESS);
    let waiting = [send_read(&mut one[0], 1, 4096), send_read(&mut one[1], 1, 4096)];
    let waits = || state.limited_hosts()[&name].1;
    eventually("both queues wait", || waits().waiting == 2 || waits().waited > 0);
    for _ in 0..100 {
        for queue in &mut two {
            let cid = send_read(queue, 1, 4096);
            assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
        }
    }
    assert_eq!(state.limited_hosts().keys().collect::<Vec<_>>(), [&name]);
    state.limit_host(&name, None);
    for (queue, cid) in one.iter_mut().zip(waiting) {
        assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
    }
    assert!(state.limited_hosts().is_empty());

    // A limit that is set before its host connects.
    let later = host(3).nqn.to_string();
    state.limit_host(&later, iops(1));
    let controller = Controller::with(target.address, wish(3), Digests::default()).unwrap();
    let mut queue = controller.queue(1);
    let all: Vec<u16> = (0..3).map(|_| send_read(&mut queue, 1, 4096)).collect();
    assert_eq!(queue.wait(all[0]).status(), Status::SUCCESS);
    eventually("the others wait", || {
        state.limited_hosts()[&later].1.waiting + state.limited_hosts()[&later].1.waited >= 2
    });
    state.limit_host(&later, None);
    for cid in &all[1..] {
        assert_eq!(queue.wait(*cid).status(), Status::SUCCESS);
    }
}
