//! Members that are slow, and members that do not answer.
//!
//! Drives here work on [`CHANNELS`] operations at a time. Each takes 60 to 110 µs, one in 200 takes
//! a quarter of a millisecond. *Half load* is half as many reads in flight as the members can work
//! on together. When one member is avoided, each of its reads costs one on every other member (or
//! on the other copy), so half load is all that the others can do.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use array::{Event, MemberIndex, ScrubMode, Settings};
use drive::{Buf, Env, Nanos, oneshot};
use format::{Level, Shape};
use sim::{Latency, Rng, Sim, SimDrive};

use crate::group::*;

const BLOCK: u64 = 4096;
const CHANNELS: u32 = 16;

fn usual() -> Latency {
    Latency::between(60_000, 110_000).with_spikes(200, 250_000)
}

/// A group that was written all over, on drives that take time from now on.
fn busy_group(sim: &Sim, shape: Shape, shards: usize) -> Group {
    busy_group_of(sim, shape, 3 * MIB, shards)
}

fn busy_group_of(sim: &Sim, shape: Shape, bytes: u64, shards: usize) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), bytes, 4096);
    drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
    let group = Group::create(sim, shape, drives, shards);
    sim.block_on(async {
        let content = Buf::from(vec![7; group.size() as usize]);
        group.leader().write(0, content, false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    for drive in &group.drives {
        drive.set_latency(usual());
        drive.set_channels(CHANNELS);
    }
    group
}

/// The latencies of reads by `clients`, each of which makes `count` of them, one after the other.
async fn reads(group: &Group, clients: usize, count: usize, rng: &mut Rng) -> Vec<Nanos> {
    reads_with_pauses(group, clients, count, Duration::ZERO, rng).await
}

/// As [`reads`], with a pause after each.
async fn reads_with_pauses(group: &Group, clients: usize, count: usize, pause: Duration, rng: &mut Rng) -> Vec<Nanos> {
    requests_with_pauses(group, clients, count, pause, 0, rng).await
}

/// As [`reads_with_pauses`], but `writes` of ten requests are writes.
async fn requests_with_pauses(
    group: &Group,
    clients: usize,
    count: usize,
    pause: Duration,
    writes: u64,
    rng: &mut Rng,
) -> Vec<Nanos> {
    let times = Rc::new(RefCell::new(Vec::with_capacity(clients * count)));
    let mut ends = Vec::new();
    for client in 0..clients {
        let (array, env, times) = (group.shards[client % group.shards.len()].clone(), group.env.clone(), times.clone());
        let (mut rng, blocks) = (rng.fork(), group.size() / BLOCK);
        let (sender, receiver) = oneshot();
        ends.push(receiver);
        group.env.spawn(async move {
            for _ in 0..count {
                let began = env.now();
                let at = rng.below(blocks) * BLOCK;
                if rng.chance(writes, 10) {
                    array.write(at, Buf::from(vec![7; BLOCK as usize]), false).await.expect("writable");
                } else {
                    let read = array.read(at, env.alloc(BLOCK as usize)).await.expect("readable");
                    assert!(read.iter().all(|&byte| byte == 7), "wrong bytes");
                }
                times.borrow_mut().push(env.now() - began);
                if !pause.is_zero() {
                    env.sleep(pause).await;
                }
            }
            sender.send(());
        });
    }
    for end in ends {
        end.await.expect("clients end");
    }
    times.take()
}

fn quantile(times: &[Nanos], per_mille: usize) -> Nanos {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * per_mille).div_ceil(1000) - 1]
}

fn half_load(shape: Shape) -> usize {
    usize::from(shape.members) * CHANNELS as usize / 2
}

/// The protection of readers from slow members.
#[derive(Clone, Copy)]
enum Protected {
    /// Late reads are computed from the others, and slow members are avoided.
    Whole,
    /// Only late reads are computed from the others.
    ByHedgingAlone,
    /// Every read waits for the member that it was sent to.
    Not,
}

/// The p99.9 of reads at half load on a healthy group, and while one member is 20 times slower; and
/// the fingerprint of the run.
fn healthy_and_slow(shape: Shape, seed: u64, shards: usize, protected: Protected) -> (Nanos, Nanos, u64) {
    let sim = Sim::new(seed);
    let mut rng = sim.rng();
    let group = busy_group(&sim, shape, shards);
    group.leader().set_hedging(!matches!(protected, Protected::Not));
    group.leader().set_avoidance(matches!(protected, Protected::Whole));
    let clients = half_load(shape);
    let count = 150_000 / clients;
    sim.block_on(async {
        let healthy = quantile(&reads(&group, clients, count, &mut rng).await, 999);
        group.drives[1].slow(20);
        let slow = reads(&group, clients, count, &mut rng).await;
        (healthy, quantile(&slow, 999), sim.fingerprint())
    })
}

fn shapes() -> [Shape; 5] {
    let strip = 16 * KIB;
    [
        shape(Level::Raid5, 6, strip),
        shape(Level::Raid6, 6, strip),
        shape(Level::Raid6, 10, strip),
        shape(Level::Raid1, 2, 64 * KIB),
        shape(Level::Raid10, 8, strip),
    ]
}

#[test]
fn with_one_member_20_times_slower_the_p999_of_reads_at_half_load_is_within_twice_a_healthy_groups() {
    for (index, shape) in shapes().into_iter().enumerate() {
        for seed in seeds(1) {
            let shards = 1 + (index + seed as usize) % 2;
            let (healthy, slow, run) = healthy_and_slow(shape, seed, shards, Protected::Whole);
            println!("{shape}, seed {seed}: {} us healthy, {} us slow", healthy / 1000, slow / 1000);
            assert!(slow <= 2 * healthy, "{shape}, seed {seed}: {slow} ns instead of {healthy} ns");
            assert_eq!(
                healthy_and_slow(shape, seed, shards, Protected::Whole),
                (healthy, slow, run),
                "a seed is a run"
            );
        }
    }
}

#[test]
fn without_hedging_a_slow_member_makes_all_readers_slow() {
    for shape in [shapes()[0], shapes()[3]] {
        let (healthy, slow, _) = healthy_and_slow(shape, 1, 1, Protected::Not);
        assert!(slow >= 10 * healthy, "{shape}: {slow} ns beside {healthy} ns");
    }
}

#[test]
fn without_avoiding_it_a_slow_member_is_more_than_hedges_make_up_for() {
    for (index, shape) in shapes().into_iter().enumerate() {
        let (healthy, slow, _) = healthy_and_slow(shape, index as u64, 1, Protected::Whole);
        let (also_healthy, hedged, _) = healthy_and_slow(shape, index as u64, 1, Protected::ByHedgingAlone);
        println!("{shape}: {} us avoided, {} us hedged alone", slow / 1000, hedged / 1000);
        assert_eq!(also_healthy, healthy, "{shape}: nobody is slow");
        assert!(slow <= 2 * healthy && hedged > 4 * healthy, "{shape}: {slow} ns and {hedged} ns beside {healthy} ns");
    }
}

#[test]
fn hedges_stay_within_their_budget_when_all_members_are_slow() {
    for (index, shape) in shapes().into_iter().enumerate() {
        let sim = Sim::new(index as u64);
        let mut rng = sim.rng();
        let shards = 1 + index % 3;
        let group = busy_group(&sim, shape, shards);
        sim.block_on(async {
            reads(&group, half_load(shape), 500, &mut rng).await;
            let before = group.leader().shared().counts();
            group.drives.iter().for_each(|drive| drive.slow(20));
            reads(&group, half_load(shape), 200, &mut rng).await;
            let after = group.leader().shared().counts();
            let (reads, hedged) = (after.reads - before.reads, after.hedged - before.hedged);
            assert!(hedged > 0, "{shape}: reads were late, and tokens were there");
            assert!(hedged <= reads / 20 + 32 * shards as u64, "{shape}: {hedged} hedges of {reads} reads");
            assert_eq!(after.avoided, before.avoided, "{shape}: nobody is slower than the others");
        });
    }
}

#[test]
fn a_member_that_is_well_again_is_read_again() {
    let shape = shapes()[1];
    let sim = Sim::new(3);
    let mut rng = sim.rng();
    let group = busy_group(&sim, shape, 1);
    sim.block_on(async {
        reads(&group, 24, 500, &mut rng).await;
        group.drives[2].slow(20);
        reads(&group, 24, 500, &mut rng).await;
        let avoided = |group: &Group| group.leader().shared().counts().avoided;
        assert!(avoided(&group) > 1000);
        group.drives[2].slow(1);
        reads(&group, 24, 4000, &mut rng).await;
        let before = avoided(&group);
        group.take_counts();
        reads(&group, 24, 500, &mut rng).await;
        assert_eq!(avoided(&group), before);
        let counts = group.drives[2].take_counts();
        assert!(counts.reads > 1000, "{counts:?}");
    });
}

#[test]
fn a_short_pause_of_a_drive_holds_up_no_reader_and_is_no_news() {
    let shape = shapes()[1];
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let group = busy_group(&sim, shape, 2);
    group.leader().configure(Settings { retire_slow: true, ..Settings::default() });
    sim.block_on(async {
        reads(&group, 16, 1000, &mut rng).await;
        let drive = group.drives[1].clone();
        let env = group.env.clone();
        group.env.spawn(async move {
            for _ in 0..200 {
                env.sleep(Duration::from_millis(480)).await;
                drive.hang(true);
                env.sleep(Duration::from_millis(20)).await;
                drive.hang(false);
            }
        });
        let times = reads_with_pauses(&group, 8, 15_000, Duration::from_millis(5), &mut rng).await;
        assert!(quantile(&times, 1000) < 3_000_000, "{} ns", quantile(&times, 1000));
        assert_eq!(*group.events.borrow(), []);
    });
}

#[test]
fn a_block_that_a_member_tries_long_to_read_and_cannot_is_counted_and_put_right() {
    let sim = Sim::new(9);
    let mut rng = sim.rng();
    let group = busy_group(&sim, shapes()[0], 2);
    sim.block_on(async {
        reads(&group, 8, 500, &mut rng).await;
        let read = async || group.leader().read(0, group.env.alloc(BLOCK as usize)).await.expect("the others have it");
        group.take_counts();
        read().await;
        let member = group.drives.iter().position(|drive| drive.counts().reads == 1).expect("one was asked");
        let errors = || group.leader().status().members[member].errors.reads;
        group.drives[member].media_error(0..3 * MIB);
        group.drives[member].slow(20);
        assert!(read().await.iter().all(|&byte| byte == 7));
        assert_eq!((group.leader().shared().counts().hedges_won, errors()), (1, 0), "nobody waits for the drive");
        group.env.sleep(Duration::from_millis(20)).await;
        assert_eq!(errors(), 1, "it is seen afterwards that the drive cannot read it");
        group.drives[member].slow(1);
        read().await;
        assert_eq!(errors(), 1, "the block was put right");
    });
}

/// The leader's events within `seconds` of light reading with one member 20 times slower.
fn events_of_a_slow_member(spares: usize, retire_slow: bool, seconds: usize) -> (Vec<Event>, Group, Sim) {
    let shape = shapes()[1];
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let group = busy_group(&sim, shape, 2);
    let group = sim.block_on(async {
        let mut group = group;
        group.leader().configure(Settings { retire_slow, ..Settings::default() });
        for spare in 0..spares {
            let drive = SimDrive::new(&group.env, &format!("spare{spare}"), 3 * MIB, 4096);
            drive.set_latency(usual());
            drive.set_channels(CHANNELS);
            let id = group.install(drive);
            group.leader().add_spare(id, uuid(&mut rng)).await.expect("it fits");
        }
        reads(&group, 8, 500, &mut rng).await;
        group.drives[3].slow(20);
        reads_with_pauses(&group, 8, seconds * 200, Duration::from_millis(5), &mut rng).await;
        group
    });
    let events = group.events.borrow().clone();
    (events, group, sim)
}

#[test]
fn a_member_that_stays_slow_is_reported_once() {
    let (member, drive) = (MemberIndex(3), array::DriveId(3));
    assert_eq!(events_of_a_slow_member(1, false, 3).0, [], "three seconds are no news");
    let (events, group, _sim) = events_of_a_slow_member(1, false, 90);
    assert_eq!(events, [Event::MemberSlow { member, drive }]);
    let status = group.leader().status();
    let slow: Vec<bool> = status.members.iter().map(|member| member.slow).collect();
    assert_eq!(slow, [false, false, false, true, false, false]);
    let p50 = |member: usize| status.members[member].read_latency.expect("it was read").p50;
    assert!((80_000..120_000).contains(&p50(0)), "{}", p50(0));
    assert!(p50(3) > 5 * p50(0), "{} and {}", p50(3), p50(0));
}

#[test]
fn a_member_that_stays_slow_gives_its_place_to_a_spare_if_asked() {
    let (member, drive) = (MemberIndex(3), array::DriveId(3));
    let spare = array::DriveId(6);
    let (events, group, sim) = events_of_a_slow_member(1, true, 90);
    let expected = [
        Event::MemberSlow { member, drive },
        Event::MemberRetired { member, drive },
        Event::MemberFailed { member, drive, cause: array::Cause::Slow },
        Event::RebuildStarted { member, drive: spare, dirty_bytes: None },
        Event::RebuildFinished { member, drive: spare },
    ];
    assert_eq!(events, expected);
    assert!(group.all_in_sync());
    assert_eq!(sim.block_on(group.differences()), 0);
    let without = events_of_a_slow_member(0, true, 90).0;
    assert_eq!(without, [Event::MemberSlow { member, drive }], "there is no spare to take its place");
}

/// The p90 of the latency of block writes, one after the other.
async fn writes_p90(group: &Group, rng: &mut Rng) -> Nanos {
    let mut times = Vec::new();
    for _ in 0..500 {
        let began = group.env.now();
        let at = rng.below(group.size() / BLOCK) * BLOCK;
        group.leader().write(at, Buf::from(vec![7; BLOCK as usize]), false).await.expect("writable");
        times.push(group.env.now() - began);
    }
    quantile(&times, 900)
}

#[test]
fn writes_wait_for_a_slow_member_until_it_is_retired() {
    let after_a_while = |spares, retire_slow, seconds| {
        let (_, group, sim) = events_of_a_slow_member(spares, retire_slow, seconds);
        let mut rng = Rng::new(8);
        sim.block_on(writes_p90(&group, &mut rng))
    };
    let healthy = {
        let sim = Sim::new(5);
        let group = busy_group(&sim, shapes()[1], 2);
        sim.block_on(writes_p90(&group, &mut Rng::new(8)))
    };
    let (soon, retired) = (after_a_while(1, true, 30), after_a_while(1, true, 90));
    let warm = after_a_while(1, false, 90);
    println!("{healthy} ns healthy, {soon} ns after 30 s, {retired} ns after 90 s, {warm} ns where nobody asked");
    assert!(retired <= 2 * healthy, "{retired} ns instead of {healthy} ns");
    assert!(soon > 4 * healthy, "half a minute is forgiven: {soon} ns beside {healthy} ns");
    assert!(warm > 4 * healthy, "nobody asked: {warm} ns beside {healthy} ns");
}

/// The background job.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Job {
    /// A member is rebuilt on another drive.
    Rebuild,
    Scrub,
}

/// The p99 of users' requests beside a job, and how long the job took. `writes` of ten requests are
/// writes. The drives work on two operations at a time.
fn beside_users(job: Job, target: Option<Nanos>, clients: usize, writes: u64) -> (Nanos, Nanos) {
    let (p99, took, _) = said_beside_users(job, target, clients, writes);
    (p99, took)
}

/// As [`beside_users`], and the progress reports of the job meanwhile: its nanoseconds so far, and
/// the remaining ones at its rate.
fn said_beside_users(
    job: Job,
    target: Option<Nanos>,
    clients: usize,
    writes: u64,
) -> (Nanos, Nanos, Vec<(Nanos, Nanos)>) {
    let bytes = 16 * MIB;
    let shape = shape(Level::Raid6, 6, 16 * KIB);
    let sim = Sim::new(6);
    let mut rng = sim.rng();
    let mut group = busy_group_of(&sim, shape, bytes, 2);
    group.leader().configure(Settings { client_p99: target, ..Settings::default() });
    let id = group.install(SimDrive::new(&group.env, "new", bytes, 4096));
    for drive in &group.drives {
        drive.set_latency(Latency::between(60_000, 110_000));
        drive.set_channels(2);
    }
    sim.block_on(async {
        if job == Job::Rebuild {
            group.leader().fail_member(MemberIndex(4)).await.expect("one may be lost");
        }
        let began = group.env.now();
        match job {
            Job::Rebuild => {
                group.leader().replace(MemberIndex(4), id, uuid(&mut rng)).await.expect("the drive fits");
            }
            Job::Scrub => assert!(group.leader().start_scrub(ScrubMode::Repair)),
        }
        let (mut times, mut said) = (Vec::new(), Vec::new());
        let is_under_way = || group.leader().status().jobs.iter().any(|job| job.ended.is_none());
        while !group.all_in_sync() || is_under_way() {
            if clients == 0 {
                group.env.sleep(Duration::from_millis(1)).await;
            } else {
                let pause = Duration::from_micros(200);
                times.extend(requests_with_pauses(&group, clients, 10, pause, writes, &mut rng).await);
            }
            let jobs = group.leader().status().jobs;
            if let Some(job) = jobs.iter().find(|job| job.ended.is_none() && job.bytes_per_s > 0) {
                let left = (job.total_bytes - job.done_bytes) as f64 / job.bytes_per_s as f64;
                said.push((group.env.now() - began, (left * 1e9) as Nanos));
            }
        }
        let took = group.env.now() - began;
        (if times.is_empty() { 0 } else { quantile(&times, 990) }, took, said)
    })
}

#[test]
fn background_work_keeps_users_below_their_target_where_the_drives_allow_it() {
    // Small writes take longer: each reads and writes three members, and the log.
    for (writes, targets) in [(0, [350_000, 250_000]), (3, [700_000, 600_000])] {
        for job in [Job::Rebuild, Job::Scrub] {
            let (p99, _) = beside_users(job, None, 4, writes);
            assert!(p99 > targets[0], "{job:?}, {writes} writes: {p99} ns: without a target it is not kept");
            let (wide, fast) = beside_users(job, Some(1_000_000), 4, writes);
            assert!(wide <= 1_000_000, "{job:?}, {writes} writes: {wide} ns");
            for target in targets {
                let (p99, took) = beside_users(job, Some(target), 4, writes);
                assert!(p99 <= target, "{job:?}, {writes} writes: {p99} ns instead of {target}");
                assert!(
                    took > fast,
                    "{job:?}, {writes} writes: {took} ns beside {fast} ns: users who bear more leave more"
                );
            }
        }
    }
}

#[test]
fn background_work_beside_users_says_when_it_ends() {
    // Regression: the reported rate was that of the last burst between two pauses, or of a moment
    // without a burst. So the remaining time jumped between seconds and minutes. The target here
    // cannot be reached, so the job gets its minimum share.
    for job in [Job::Rebuild, Job::Scrub] {
        let (_, took, said) = said_beside_users(job, Some(250_000), 4, 3);
        assert!(took > 8_000_000_000, "{job:?}: {took} ns are over at once");
        let middle = said.iter().filter(|(at, _)| (took / 5..took / 10 * 9).contains(at));
        let (mut count, mut worst) = (0, 1.0_f64);
        for &(at, left) in middle {
            let ratio = left as f64 / (took - at) as f64;
            worst = worst.max(ratio).max(1.0 / ratio);
            count += 1;
        }
        println!("{job:?}: said {count} times, wrong by {worst} at most");
        // The job's speed changes in its course with the cost of users' writes, by a factor of two
        // or a little more with some seeds. The rates of the regression were wrong by a factor of
        // 3.8 and more.
        assert!(count > 100 && worst < 3.0, "{job:?}: said {count} times, wrong by {worst} at most");
    }
}

#[test]
fn background_work_without_users_takes_all_of_the_drives_time() {
    for job in [Job::Rebuild, Job::Scrub] {
        let (_, usual) = beside_users(job, None, 0, 0);
        assert_eq!(beside_users(job, Some(250_000), 0, 0).1, usual);
        let (_, beside_users) = beside_users(job, None, 4, 0);
        assert!(beside_users > 3 * usual, "{job:?}: {beside_users} ns beside {usual} ns");
    }
}
