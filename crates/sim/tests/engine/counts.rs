//! The exact number of drive operations, compared with figures on paper.

use std::time::Duration;

use array::{MemberIndex, StripeGroup};
use drive::{Buf, BufMut, join_all};
use format::{CrashSafety, Level, Shape};
use sim::{Counts, Latency, Sim};

use crate::group::*;

const BLOCK: u64 = 4096;
const TICK: u64 = 10_000;

/// Without a log, and with one.
const SAFETIES: [CrashSafety; 2] = [CrashSafety::Off, CrashSafety::On];

/// The cost of a write that first goes to the logs of `holders` members, all of them at once.
fn with_log(safety: CrashSafety, (reads, writes, ticks): (u64, u64, u64), holders: u64) -> (u64, u64, u64) {
    match safety {
        CrashSafety::Off => (reads, writes, ticks),
        _ => (reads, writes + holders, ticks + u64::from(holders > 0)),
    }
}

/// A group in which everything was written, on drives where each operation takes one tick.
fn full_group(sim: &Sim, shape: Shape, safety: CrashSafety) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), 2 * MIB, 512);
    for drive in &drives {
        drive.set_latency(Latency::between(TICK, TICK));
    }
    let group = Group::create_with(sim, shape, Protection::plain(safety), drives, 1);
    sim.block_on(async {
        let size = group.size();
        let stripe = group.leader().shared().geometry.stripe_data_bytes();
        for at in (0..size).step_by(stripe as usize) {
            group.leader().write(at, Buf::from(vec![7; stripe as usize]), false).await.expect("writable");
        }
        group.leader().flush().await.expect("flushes");
    });
    group.take_counts();
    group
}

/// Reads and writes of `writes`, which arrive together, and the ticks until all are answered.
fn cost(sim: &Sim, group: &Group, writes: &[(u64, u64)]) -> (u64, u64, u64) {
    // Earlier writes are durable now. Otherwise a write beside one of them would have to wait for
    // that.
    sim.block_on(group.leader().flush()).expect("flushes");
    group.take_counts();
    let began = sim.now();
    sim.block_on(async {
        let write = |&(at, len): &(u64, u64)| group.leader().write(at, Buf::from(vec![9; len as usize]), false);
        for result in join_all(writes.iter().map(write)).await {
            result.expect("writable");
        }
    });
    let Counts { reads, writes, flushes, .. } = group.take_counts();
    // A log flushes when it is half full, in the background.
    let logs = group.leader().shared().crash_safety != CrashSafety::Off;
    assert!(flushes == 0 || logs, "nobody asked for it");
    (reads, writes, (sim.now() - began) / TICK)
}

fn parity(level: Level, members: u16, strip: u64) -> Shape {
    shape(level, members, strip)
}

#[test]
fn a_small_write_costs_the_old_block_and_the_old_parity() {
    for (shape, parity_count) in [
        (parity(Level::Raid5, 5, 64 * KIB), 1),
        (parity(Level::Raid6, 10, 64 * KIB), 2),
        (parity(Level::Raid6, 6, 16 * KIB), 2),
        (parity(Level::Raid7, 11, 64 * KIB), 3),
        (valid(Shape::of(Level::Nm, 14).parity(4), 32 * KIB), 4),
        (shape(Level::Raid60, 20, 64 * KIB), 2),
    ] {
        for safety in SAFETIES {
            let sim = Sim::new(1);
            let group = full_group(&sim, shape, safety);
            let mut rng = sim.rng();
            let expected = with_log(safety, (parity_count + 1, parity_count + 1, 2), parity_count);
            for _ in 0..20 {
                let at = rng.below(group.size() / BLOCK) * BLOCK;
                assert_eq!(cost(&sim, &group, &[(at, BLOCK)]), expected, "{shape}, byte {at}");
                assert_eq!(cost(&sim, &group, &[(at, 512)]), expected, "{shape}: a sector costs as much as a block");
            }
        }
    }
}

#[test]
fn a_small_write_reads_the_other_strips_where_those_are_fewer() {
    for safety in SAFETIES {
        let sim = Sim::new(1);
        let group = full_group(&sim, parity(Level::Raid5, 3, 16 * KIB), safety);
        assert_eq!(cost(&sim, &group, &[(0, BLOCK)]), with_log(safety, (1, 2, 2), 1));
        let group = full_group(&sim, parity(Level::Raid7, 5, 16 * KIB), safety);
        assert_eq!(cost(&sim, &group, &[(0, BLOCK)]), with_log(safety, (1, 4, 2), 3));
    }
}

#[test]
fn a_mirrored_write_reads_nothing_and_writes_every_copy() {
    for (shape, copies) in [
        (parity(Level::Raid1, 2, 64 * KIB), 2),
        (parity(Level::Raid1, 4, 64 * KIB), 4),
        (parity(Level::Raid10, 4, 4 * KIB), 2),
        (valid(Shape::of(Level::Raid10, 6).copies(3), 64 * KIB), 3),
        (parity(Level::Raid0, 3, 64 * KIB), 1),
    ] {
        for safety in SAFETIES {
            let sim = Sim::new(2);
            let group = full_group(&sim, shape, safety);
            let expected = with_log(safety, (0, copies, 1), copies - 1);
            assert_eq!(cost(&sim, &group, &[(BLOCK, BLOCK)]), expected, "{shape}");
        }
    }
}

#[test]
fn a_full_stripe_reads_nothing_and_writes_every_strip_once() {
    for (shape, safety) in every_level(16 * KIB).into_iter().flat_map(|shape| SAFETIES.map(|safety| (shape, safety))) {
        let sim = Sim::new(3);
        let group = full_group(&sim, shape, safety);
        let stripe = group.leader().shared().geometry.stripe_data_bytes();
        let strips = shape.members_per_set() as u64;
        let expected = with_log(safety, (0, strips, 1), shape.survives() as u64);
        assert_eq!(cost(&sim, &group, &[(stripe, stripe)]), expected, "{shape}");
    }
}

#[test]
fn small_writes_that_arrive_together_become_one_full_stripe() {
    for (shape, safety) in every_level(16 * KIB).into_iter().flat_map(|shape| SAFETIES.map(|safety| (shape, safety))) {
        let sim = Sim::new(4);
        let group = full_group(&sim, shape, safety);
        let stripe = group.leader().shared().geometry.stripe_data_bytes();
        let mut blocks: Vec<(u64, u64)> = (0..stripe / BLOCK).map(|block| (stripe + block * BLOCK, BLOCK)).collect();
        sim.rng().shuffle(&mut blocks);
        let expected = with_log(safety, (0, shape.members_per_set() as u64, 1), shape.survives() as u64);
        assert_eq!(cost(&sim, &group, &blocks), expected, "{shape}");
    }
}

#[test]
fn a_wide_write_reads_what_it_does_not_cover() {
    for safety in SAFETIES {
        let sim = Sim::new(5);
        let strip = 16 * KIB;
        let group = full_group(&sim, parity(Level::Raid6, 10, strip), safety);
        let cost = |len| cost(&sim, &group, &[(0, len)]);
        assert_eq!(cost(6 * strip), with_log(safety, (2, 8, 2), 2), "six strips of eight: the other two are read");
        assert_eq!(cost(7 * strip + BLOCK), with_log(safety, (1, 10, 2), 2), "the rest of the last strip is read");
        assert_eq!(cost(2 * strip), with_log(safety, (4, 4, 2), 2), "two strips: old data and old parity");
    }
}

#[test]
fn a_degraded_write_costs_what_is_left() {
    for safety in SAFETIES {
        degraded_writes(safety);
    }
}

fn degraded_writes(safety: CrashSafety) {
    let sim = Sim::new(6);
    let strip = 16 * KIB;
    let group = full_group(&sim, parity(Level::Raid6, 6, strip), safety);
    let geometry = group.leader().shared().geometry.clone();
    let lost = MemberIndex(2);
    sim.block_on(group.leader().fail_member(lost)).expect("one may be lost");
    let mut seen = [0; 3];
    for stripe_group in (0..geometry.stripe_group_count()).map(StripeGroup) {
        for row in geometry.row_ranges() {
            let role = geometry.role(stripe_group, row.start, lost).expect("there is one set");
            let at = geometry.offset(stripe_group, 1, row.start);
            let (expected, kind) = match role {
                1 => (with_log(safety, (3, 2, 2), 2), 0),
                role if role >= 4 => (with_log(safety, (2, 2, 2), 1), 1),
                _ => (with_log(safety, (3, 3, 2), 2), 2),
            };
            seen[kind] += 1;
            assert_eq!(cost(&sim, &group, &[(at, BLOCK)]), expected, "the member holds strip {role}");
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn a_write_costs_one_operation_where_no_parity_strip_is_left() {
    let sim = Sim::new(6);
    let group = full_group(&sim, parity(Level::Raid5, 5, 16 * KIB), CrashSafety::On);
    let geometry = group.leader().shared().geometry.clone();
    let lost = geometry.member(StripeGroup(0), 0, 4);
    sim.block_on(group.leader().fail_member(lost)).expect("one may be lost");
    assert_eq!(cost(&sim, &group, &[(0, BLOCK)]), (0, 1, 1));
}

#[test]
fn a_healthy_read_costs_one_operation_a_strip_and_a_degraded_one_k() {
    for shape in every_level(16 * KIB) {
        let sim = Sim::new(7);
        let group = full_group(&sim, shape, CrashSafety::On);
        let geometry = group.leader().shared().geometry.clone();
        let read = |at: u64, len: u64| {
            group.take_counts();
            let began = sim.now();
            sim.block_on(group.leader().read(at, BufMut::zeroed(len as usize))).expect("readable");
            let counts = group.take_counts();
            assert_eq!(counts.writes, 0);
            (counts.reads, counts.read_bytes, (sim.now() - began) / TICK)
        };
        assert_eq!(read(BLOCK, BLOCK), (1, BLOCK, 1), "{shape}");
        assert_eq!(read(100, 3), (1, 512, 1), "{shape}");
        let strips = 2 * geometry.data as u64;
        assert_eq!(read(0, 2 * geometry.stripe_data_bytes()), (strips, 2 * geometry.stripe_data_bytes(), 1), "{shape}");
        if shape.survives() > 0 {
            sim.block_on(group.leader().fail_member(geometry.member(StripeGroup(0), 0, 0))).expect("one may be lost");
            assert_eq!(read(0, BLOCK), (geometry.data as u64, geometry.data as u64 * BLOCK, 1), "{shape}");
        }
    }
}

#[test]
fn the_first_write_to_a_chunk_reads_nothing() {
    for shape in every_level(16 * KIB) {
        let sim = Sim::new(8);
        let drives = new_drives(&sim, usize::from(shape.members), 2 * MIB, 512);
        let group = Group::create_with(&sim, shape, Protection::plain(CrashSafety::On), drives, 1);
        // The very first write marks the superblocks dirty, and looks which copy to write first.
        sim.block_on(group.leader().write(group.size() - BLOCK, Buf::from(vec![1; 100]), false)).expect("writable");
        let (reads, _, _) = cost(&sim, &group, &[(BLOCK + 5, 100)]);
        assert_eq!(reads, 0, "{shape}");
    }
}

#[test]
fn unwritten_space_is_read_without_any_operation() {
    let sim = Sim::new(8);
    let drives = new_drives(&sim, 6, 2 * MIB, 512);
    let group = Group::create(&sim, parity(Level::Raid6, 6, 16 * KIB), drives, 1);
    group.take_counts();
    let read = sim.block_on(group.leader().read(5, BufMut::zeroed(100_000))).expect("readable");
    assert!(read.iter().all(|&byte| byte == 0));
    assert_eq!(group.take_counts().total(), 0);
}

#[test]
fn a_write_with_fua_to_allocated_space_needs_no_flush() {
    for (safety, logs) in SAFETIES.into_iter().zip([0, 2]) {
        let sim = Sim::new(9);
        let group = full_group(&sim, parity(Level::Raid6, 6, 16 * KIB), safety);
        group.take_counts();
        sim.block_on(group.leader().write(0, Buf::from(vec![1; 4096]), true)).expect("writable");
        let counts = group.take_counts();
        assert_eq!((counts.reads, counts.writes, counts.flushes), (3, 3 + logs, 0));
    }
}

#[test]
fn an_idle_group_asks_its_drives_nothing() {
    let sim = Sim::new(10);
    let group = full_group(&sim, parity(Level::Raid6, 6, 16 * KIB), CrashSafety::On);
    sim.run_for(Duration::from_secs(3));
    group.take_counts();
    sim.block_on(group.leader().write(0, Buf::from(vec![1; BLOCK as usize]), false)).expect("writable");
    let counts = group.take_counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes), (3, 3 + 2, 0));
    // Soon the members store that no recovery has to look at it.
    sim.run_for(Duration::from_secs(3));
    let counts = group.take_counts();
    assert_eq!((counts.reads, counts.writes, counts.flushes), (0, 6, 6));
    sim.run_for(Duration::from_secs(3600));
    assert_eq!(group.take_counts().total(), 0);
}

#[test]
fn log_writes_of_many_stripes_are_gathered_into_one_write_for_each_drive() {
    let sim = Sim::new(11);
    let group = full_group(&sim, parity(Level::Raid6, 6, 16 * KIB), CrashSafety::On);
    let geometry = group.leader().shared().geometry.clone();
    // One block in each of six stripes: every member holds two parity strips.
    let writes: Vec<(u64, u64)> = (0..6).map(|stripe| (stripe * geometry.stripe_data_bytes(), BLOCK)).collect();
    assert_eq!(cost(&sim, &group, &writes), (18, 18 + 6, 3), "six writes to logs, not twelve");
}

#[test]
fn a_flush_makes_room_in_the_logs_of_all_shards() {
    // Mirrors, since writes to them do not wait for others. As many records need as many flushes,
    // independent of the number of rings that share the region.
    let flushes = |shards: usize| {
        let sim = Sim::new(7);
        let drives = new_drives(&sim, 4, 128 * MIB, 4096);
        let shape = parity(Level::Raid10, 4, 64 * KIB);
        let group = Group::create_with(&sim, shape, Protection::plain(CrashSafety::On), drives, shards);
        let mut rng = sim.rng();
        sim.block_on(async {
            let all = Buf::from(vec![7; 4 * MIB as usize]);
            group.leader().write(0, all, false).await.expect("writable");
            group.leader().flush().await.expect("flushes");
            group.take_counts();
            // One at a time, so that each has a frame of its own.
            for _ in 0..3000 {
                let at = rng.below(4 * MIB / BLOCK) * BLOCK;
                group.leader().write(at, Buf::from(vec![9; BLOCK as usize]), false).await.expect("writable");
            }
        });
        group.take_counts().flushes
    };
    let alone = flushes(1);
    assert!(alone > 4 * 3, "{alone} flushes: the log was not full often enough");
    for shards in [3, 5] {
        let together = flushes(shards);
        assert!(together <= 2 * alone, "{shards} shards: {together} flushes, one alone: {alone}");
    }
}
