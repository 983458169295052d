//! The cost of a write where the group keeps a log and checksums, and where crash safety is strict:
//! worked out on paper, and counted.
//!
//! A stripe has `k` data strips and `m` parity strips (a mirror: `k` = 1, and `m` copies beside
//! it). A write covers `d` data strips, either whole strips or one block. The drive operations
//! before the log and after it, the *strips*, are the same as without a log (`counts.rs`). Frames
//! of the log are one write for each holder ([log](../../../../docs/format/log.md), *Order of
//! writing*): 4 KiB and its payload.
//!
//! - **Without checksums**: the `m` parity members hold the record. The payload is partial parity,
//!   as long as the member offsets written. Where all data strips are overwritten, there is none.
//! - **With checksums**: one data member more holds it, without a payload.
//! - **Strict, `d` > 1 and `k` > 1**: the `d` data members and the `m` parity members hold it. The
//!   payload is the new content, as long as the member offsets written.
//! - **Strict, else**: as without strict. Without checksums one data member more holds it where an
//!   older whole record of the stripe group may lie in the log.
//!
//! A lost strip holds no record and is not overwritten. A lost data strip is *carried in parity*,
//! so the partial parity is needed. All frames are written at the same time, so the log takes one
//! tick.
//!
//! A flush takes these steps one after the other. Each runs at the same time on all drives:
//!
//! 1. With checksums, one write for each strip that was written: in these tests, a member has one
//!    block of checksums ([checksums](../../../../docs/format/checksums.md), *Writing* 1).
//! 2. One flush for each member that is there.
//! 3. A checkpoint record, one write for each member that is there, where a record overwrites
//!    several strips in place and is not whole
//!    ([write-hole](../../../../docs/decisions/write-hole.md)).

use array::StripeGroup;
use drive::{Buf, join_all};
use format::{CrashSafety, Layout, Level, Shape};
use sim::{Latency, OpKind, Phase, Sim, TraceEntry};

use crate::group::*;

const BLOCK: u64 = 4096;
const TICK: u64 = 10_000;
const STRIP: u64 = 16 * KIB;

/// Log and checksums: the default protection.
const DEFAULT: Protection = Protection::DEFAULT;
const STRICT: Protection = Protection { safety: CrashSafety::Strict, checksums: true };
const STRICT_PLAIN: Protection = Protection { safety: CrashSafety::Strict, checksums: false };

/// The cost of a write until it is acknowledged.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    /// Strips, or parts of them, that are read.
    reads: u64,
    /// Frames of the log, and their KiB.
    frames: u64,
    frames_kib: u64,
    /// Strips, or parts of them, that are written.
    strips: u64,
    /// Operations one after the other.
    ticks: u64,
}

/// The cost of the flush after it.
#[derive(Debug, PartialEq, Eq)]
struct Flush {
    sums: u64,
    flushes: u64,
    checkpoints: u64,
    ticks: u64,
}

const fn write(reads: u64, (frames, frames_kib): (u64, u64), strips: u64, ticks: u64) -> Write {
    Write { reads, frames, frames_kib, strips, ticks }
}

const fn flush(sums: u64, flushes: u64, checkpoints: u64, ticks: u64) -> Flush {
    Flush { sums, flushes, checkpoints, ticks }
}

/// The kind of write.
#[derive(Debug, Clone, Copy)]
enum What {
    /// Some 4 KiB.
    Block,
    /// This many whole strips of a stripe, side by side.
    Strips(u64),
}

/// The strip of the stripe that is on a lost member. The first strip of the stripe is written.
#[derive(Debug, Clone, Copy)]
enum Lost {
    Nobody,
    /// This strip.
    Role(usize),
}

fn parity(level: Level, members: u16) -> Shape {
    shape(level, members, STRIP)
}

/// A group in which everything was written as a whole, so that the log is empty. Each operation
/// takes one tick.
fn full_group(sim: &Sim, shape: Shape, protection: Protection) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), 2 * MIB, 512);
    drives.iter().for_each(|drive| drive.set_latency(Latency::between(TICK, TICK)));
    let group = Group::create_with(sim, shape, protection, drives, 1);
    let all = Buf::from(vec![7; group.size() as usize]);
    sim.block_on(async {
        group.leader().write(0, all, false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    group
}

/// Counts the operations of a trace: reads and writes of data, writes to logs and their bytes,
/// writes of checksums, flushes.
fn tally(trace: &[TraceEntry], layout: &Layout) -> (u64, u64, u64, u64, u64, u64) {
    let (mut reads, mut strips, mut logs, mut log_bytes, mut sums, mut flushes) = (0, 0, 0, 0, 0, 0);
    for entry in trace.iter().filter(|entry| entry.phase == Phase::Start) {
        let is_in = |offset: u64, len: u64| (offset..offset + len).contains(&entry.offset);
        let is_data = is_in(layout.data.offset, layout.data.len);
        match entry.kind {
            OpKind::Read if is_data => reads += 1,
            OpKind::Write if is_data => strips += 1,
            OpKind::Write if is_in(layout.log.offset, layout.log.len) => {
                logs += 1;
                log_bytes += entry.len;
            }
            OpKind::Write if layout.checksums.is_some_and(|region| is_in(region.offset, region.len)) => sums += 1,
            OpKind::Flush => flushes += 1,
            _ => panic!("nobody asked for this: {entry}"),
        }
    }
    (reads, strips, logs, log_bytes, sums, flushes)
}

/// Writes somewhere in a full group, then flushes. Each call has a group of its own, so that no
/// earlier write is in the log.
fn costs(shape: Shape, protection: Protection, lost: Lost, what: What, seed: u64) -> (Write, Flush) {
    let sim = Sim::new(seed);
    let group = full_group(&sim, shape, protection);
    let geometry = group.leader().shared().geometry.clone();
    let (at, len) = match (lost, what) {
        (Lost::Nobody, What::Block) => (sim.rng().below(group.size() / BLOCK) * BLOCK, BLOCK),
        (Lost::Nobody, What::Strips(count)) => {
            let stripe = sim.rng().below(group.size() / geometry.stripe_data_bytes()) * geometry.stripe_data_bytes();
            (stripe + sim.rng().below(geometry.data as u64 - count + 1) * STRIP, count * STRIP)
        }
        (Lost::Role(_), What::Block) => (geometry.offset(StripeGroup(0), 0, 0), BLOCK),
        (Lost::Role(_), What::Strips(count)) => (geometry.offset(StripeGroup(0), 0, 0), count * STRIP),
    };
    if let Lost::Role(role) = lost {
        let member = geometry.member(StripeGroup(0), 0, role);
        sim.block_on(group.leader().fail_member(member)).expect("one may be lost");
    }
    written(&sim, &group, at, len)
}

fn written(sim: &Sim, group: &Group, at: u64, len: u64) -> (Write, Flush) {
    sim.block_on(group.leader().flush()).expect("flushes");
    let layout = superblock(&group.drives[0]).layout;
    sim.trace_start();
    sim.trace_take();
    let began = sim.now();
    sim.block_on(group.leader().write(at, Buf::from(vec![9; len as usize]), false)).expect("writable");
    let ticks = (sim.now() - began) / TICK;
    let (reads, strips, frames, log_bytes, sums, flushes) = tally(&sim.trace_take(), &layout);
    let write = write(reads, (frames, log_bytes / KIB), strips, ticks);
    assert_eq!((sums, flushes), (0, 0), "nobody asked for a flush");
    let began = sim.now();
    sim.block_on(group.leader().flush()).expect("flushes");
    let ticks = (sim.now() - began) / TICK;
    let (reads, strips, checkpoints, _, sums, flushes) = tally(&sim.trace_take(), &layout);
    assert_eq!((reads, strips), (0, 0), "a flush writes no data");
    (write, flush(sums, flushes, checkpoints, ticks))
}

/// Compares with the figures on paper: for the default, strict, and strict without checksums.
fn check(shape: Shape, lost: Lost, what: What, paper: [(Write, Flush); 3]) {
    for (protection, expected) in [DEFAULT, STRICT, STRICT_PLAIN].into_iter().zip(paper) {
        for seed in 0..3 {
            let counted = costs(shape, protection, lost, what, seed);
            assert_eq!(counted, expected, "{shape}, {protection}, {what:?}, lost: {lost:?}");
        }
    }
}

#[test]
fn a_small_write_to_parity_with_log_and_checksums_costs_what_the_paper_says() {
    for (shape, m) in [
        (parity(Level::Raid5, 5), 1),
        (parity(Level::Raid6, 6), 2),
        (parity(Level::Raid7, 11), 3),
        (valid(Shape::of(Level::Nm, 13).parity(4), STRIP), 4),
    ] {
        let members = u64::from(shape.members);
        // The partial parity is one block, behind the block of the frame's head.
        let with_sums = || (write(m + 1, (m + 1, m * 8 + 4), m + 1, 3), flush(m + 1, members, 0, 2));
        let plain = (write(m + 1, (m, m * 8), m + 1, 3), flush(0, members, 0, 1));
        check(shape, Lost::Nobody, What::Block, [with_sums(), with_sums(), plain]);
    }
}

#[test]
fn a_write_to_mirrors_with_log_and_checksums_costs_what_the_paper_says() {
    for (shape, copies, what) in [
        (parity(Level::Raid1, 2), 2, What::Block),
        (parity(Level::Raid10, 4), 2, What::Block),
        (parity(Level::Raid10, 4), 2, What::Strips(1)),
        (valid(Shape::of(Level::Raid10, 6).copies(3), STRIP), 3, What::Block),
    ] {
        let members = u64::from(shape.members);
        // The only data strip is overwritten: there is no payload, and never a whole record.
        let with_sums = || (write(0, (copies, copies * 4), copies, 2), flush(copies, members, 0, 2));
        let plain = (write(0, (copies - 1, (copies - 1) * 4), copies, 2), flush(0, members, 0, 1));
        check(shape, Lost::Nobody, what, [with_sums(), with_sums(), plain]);
    }
}

#[test]
fn a_full_stripe_with_log_and_checksums_costs_what_the_paper_says() {
    for (shape, k, m) in [
        (parity(Level::Raid5, 5), 4, 1),
        (parity(Level::Raid6, 6), 4, 2),
        (parity(Level::Raid7, 8), 5, 3),
        (shape(Level::Raid60, 8, STRIP), 2, 2),
    ] {
        let (members, strips) = (u64::from(shape.members), k + m);
        let default = (write(0, (m + 1, (m + 1) * 4), strips, 2), flush(strips, members, members, 3));
        // Everything is written twice.
        let whole = || write(0, (strips, strips * 20), strips, 2);
        let strict = (whole(), flush(strips, members, 0, 2));
        check(shape, Lost::Nobody, What::Strips(k), [default, strict, (whole(), flush(0, members, 0, 1))]);
    }
}

#[test]
fn a_write_of_several_strips_with_log_and_checksums_costs_what_the_paper_says() {
    for (shape, d, m, reads) in [
        // The reads are old data and old parity, or, where those are fewer, the strips that are not
        // written.
        (parity(Level::Raid5, 6), 2, 1, 3),
        (parity(Level::Raid5, 5), 3, 1, 1),
        (parity(Level::Raid6, 10), 2, 2, 4),
        (parity(Level::Raid6, 10), 6, 2, 2),
        (parity(Level::Raid7, 11), 2, 3, 5),
    ] {
        let (members, strips) = (u64::from(shape.members), d + m);
        let default = (write(reads, (m + 1, m * 20 + 4), strips, 3), flush(strips, members, members, 3));
        let whole = || write(reads, (strips, strips * 20), strips, 3);
        let strict = (whole(), flush(strips, members, 0, 2));
        check(shape, Lost::Nobody, What::Strips(d), [default, strict, (whole(), flush(0, members, 0, 1))]);
    }
}

#[test]
fn a_degraded_write_with_log_and_checksums_costs_what_the_paper_says() {
    // RAID 6 of four data strips. The first of them is written.
    let raid6 = parity(Level::Raid6, 6);
    for (role, reads, m, strips) in [
        // The strip itself is lost: the three others are read, and it is carried in both parity
        // strips.
        (0, 3, 2, 2),
        // Another data strip is lost.
        (2, 3, 2, 3),
        // A parity strip is lost.
        (5, 2, 1, 2),
    ] {
        let with_sums = || (write(reads, (m + 1, m * 8 + 4), strips, 3), flush(strips, 5, 0, 2));
        let plain = (write(reads, (m, m * 8), strips, 3), flush(0, 5, 0, 1));
        check(raid6, Lost::Role(role), What::Block, [with_sums(), with_sums(), plain]);
    }
    // All four strips are written. One of them is lost and carried in parity.
    let default = (write(0, (3, 2 * 20 + 4), 5, 2), flush(5, 5, 5, 3));
    let whole = || write(0, (5, 5 * 20), 5, 2);
    let paper = [default, (whole(), flush(5, 5, 0, 2)), (whole(), flush(0, 5, 0, 1))];
    check(raid6, Lost::Role(1), What::Strips(4), paper);
    // RAID 5 whose only parity is lost: where there are checksums, a record has to say which of
    // them may be stale.
    let with_sums = || (write(0, (1, 4), 1, 2), flush(1, 4, 0, 2));
    let paper = [with_sums(), with_sums(), (write(0, (0, 0), 1, 1), flush(0, 4, 0, 1))];
    check(parity(Level::Raid5, 5), Lost::Role(4), What::Block, paper);
    // A mirror with one copy left.
    let with_sums = || (write(0, (1, 4), 1, 2), flush(1, 3, 0, 2));
    let paper = [with_sums(), with_sums(), (write(0, (0, 0), 1, 1), flush(0, 3, 0, 1))];
    check(parity(Level::Raid10, 4), Lost::Role(1), What::Block, paper);
}

#[test]
fn a_small_write_after_a_whole_record_has_one_holder_more_where_none_is_there_for_checksums() {
    for (protection, holders) in [(STRICT, 3), (STRICT_PLAIN, 3), (Protection::plain(CrashSafety::On), 2)] {
        let sim = Sim::new(1);
        let group = full_group(&sim, parity(Level::Raid6, 6), protection);
        written(&sim, &group, 0, group.leader().shared().geometry.stripe_data_bytes());
        let (counted, _) = written(&sim, &group, 0, BLOCK);
        let data_holders = holders - 2;
        assert_eq!(counted, write(3, (holders, 2 * 8 + data_holders * 4), 3, 3), "{protection}");
    }
}

#[test]
fn a_small_write_after_another_one_has_no_holder_more_than_the_first() {
    for (protection, holders) in [(STRICT, 3), (STRICT_PLAIN, 2), (Protection::plain(CrashSafety::On), 2)] {
        let sim = Sim::new(1);
        let group = full_group(&sim, parity(Level::Raid6, 6), protection);
        for _ in 0..3 {
            let (counted, _) = written(&sim, &group, 0, BLOCK);
            let data_holders = holders - 2;
            assert_eq!(counted, write(3, (holders, 2 * 8 + data_holders * 4), 3, 3), "{protection}");
        }
    }
}

#[test]
fn a_write_with_fua_with_log_and_checksums_needs_neither_flush_nor_sums_nor_checkpoint() {
    for (protection, stripe_frames) in [(DEFAULT, 3), (STRICT, 6)] {
        let sim = Sim::new(9);
        let group = full_group(&sim, parity(Level::Raid6, 6), protection);
        let layout = superblock(&group.drives[0]).layout;
        let stripe = group.leader().shared().geometry.stripe_data_bytes();
        sim.trace_start();
        let fua = |len: u64| {
            sim.block_on(group.leader().write(0, Buf::from(vec![1; len as usize]), true)).expect("writable");
            let (reads, strips, frames, _, sums, flushes) = tally(&sim.trace_take(), &layout);
            (reads, frames, strips, sums, flushes)
        };
        assert_eq!(fua(BLOCK), (3, 3, 3, 0, 0), "{protection}");
        assert_eq!(fua(stripe), (0, stripe_frames, 6, 0, 0), "{protection}");
    }
}

#[test]
fn a_write_beside_one_that_is_not_durable_makes_its_row_durable_or_everything_if_that_came_too_often() {
    for (shape, m) in [(parity(Level::Raid5, 9), 1), (parity(Level::Raid6, 14), 2), (parity(Level::Raid7, 18), 3)] {
        for (protection, sums) in [(DEFAULT, 1), (STRICT, 1), (Protection::plain(CrashSafety::On), 0)] {
            let sim = Sim::new(3);
            // The log rings do not fill.
            let drives = new_drives(&sim, usize::from(shape.members), 64 * MIB, 512);
            let group = Group::create_with(&sim, shape, protection, drives, 1);
            let layout = superblock(&group.drives[0]).layout;
            let geometry = group.leader().shared().geometry.clone();
            let two_rows = Buf::from(vec![7; 2 * geometry.stripe_data_bytes() as usize]);
            sim.block_on(group.leader().write(0, two_rows, false)).expect("writable");
            sim.block_on(group.leader().flush()).expect("flushes");
            sim.trace_start();
            let write = |row: u64, role: usize, block: u64| {
                let at = geometry.offset(StripeGroup(0), role, row * STRIP + block * BLOCK);
                sim.block_on(group.leader().write(at, Buf::from(vec![1; BLOCK as usize]), false)).expect("writable");
                let (reads, strips, _, _, sums, flushes) = tally(&sim.trace_take(), &layout);
                assert_eq!((reads, strips), (m + 1, m + 1), "{shape}, {protection}");
                (sums, flushes)
            };
            let nothing = (0, 0);
            let row_of_one = (sums * (m + 1), m + 1);
            // Other stripes have something to flush, too.
            assert_eq!([write(1, 5, 0), write(1, 6, 1)], [nothing; 2], "{shape}, {protection}");
            // The partial parity of the record is computed from the other strip, and a recovery
            // compares it with the parity.
            assert_eq!([write(0, 0, 0), write(0, 0, 2), write(0, 1, 1)], [nothing; 3], "{shape}, {protection}");
            assert_eq!(write(0, 2, 2), (sums * (m + 2), m + 2), "{shape}, {protection}: both strips");
            // That ended the conflicts of all member offsets of the stripe with earlier writes.
            assert_eq!([write(0, 2, 0), write(0, 2, 1)], [nothing; 2], "{shape}, {protection}");
            assert_eq!(write(0, 3, 0), row_of_one, "{shape}, {protection}");
            let later: Vec<(u64, u64)> = (0..6).map(|turn| write(0, turn % 2, 0)).collect();
            let members = u64::from(shape.members);
            let all = later.iter().position(|&(_, flushes)| flushes == members).expect("everything, at some time");
            assert!(later[..all].iter().all(|&cost| cost == row_of_one), "{shape}, {protection}: {later:?}");
            assert_eq!(write(1, 7, 0), nothing, "{shape}, {protection}: that ended the conflicts of all rows");
        }
    }
}

#[test]
fn the_data_strip_that_holds_a_record_lies_where_others_have_a_frame_anyway() {
    let sim = Sim::new(5);
    let group = full_group(&sim, parity(Level::Raid6, 14), DEFAULT);
    let layout = superblock(&group.drives[0]).layout;
    let geometry = group.leader().shared().geometry.clone();
    sim.trace_start();
    let frames = |stripe_groups: &[u64]| {
        let writes = stripe_groups.iter().map(|&stripe_group| geometry.offset(StripeGroup(stripe_group), 0, 0));
        let write = |at| group.leader().write(at, Buf::from(vec![1; BLOCK as usize]), false);
        sim.block_on(async { join_all(writes.map(write)).await }).into_iter().for_each(|done| done.expect("writable"));
        let (_, strips, frames, log_bytes, ..) = tally(&sim.trace_take(), &layout);
        assert_eq!(strips, 3 * stripe_groups.len() as u64);
        (frames, log_bytes / KIB)
    };
    // The parity strips of consecutive stripes are on neighboring members.
    assert_eq!((0..2).map(|row| geometry.member(StripeGroup(row), 0, 12).0).collect::<Vec<_>>(), [13, 12]);
    assert_eq!(frames(&[0]), (3, 2 * 8 + 4), "nobody else has one");
    // Parity is on members 13 and 0, and on 9 and 10. A parity member of one stripe is the extra
    // holder of the other stripe's record.
    assert_eq!(frames(&[0, 4]), (4, 4 * 8), "two records");
    assert_eq!(frames(&[1, 5, 9]), (6, 6 * 8), "three records");
}

#[test]
fn blocks_of_checksums_that_lie_side_by_side_are_saved_in_one_operation() {
    let sim = Sim::new(4);
    let drives = new_drives(&sim, 2, 40 * MIB, 4096);
    let group = Group::create_with(&sim, parity(Level::Raid1, 2), DEFAULT, drives, 1);
    let layout = superblock(&group.drives[0]).layout;
    // The checksums of 4 MiB are a block.
    let write = |block: u64| {
        let write = group.leader().write(block * 4 * MIB, Buf::from(vec![1; BLOCK as usize]), false);
        sim.block_on(write).expect("writable");
    };
    let flushed = || {
        sim.block_on(group.leader().flush()).expect("flushes");
        let trace = sim.trace_take();
        let region = layout.checksums.expect("the group has checksums");
        let is_sums = |entry: &&TraceEntry| (region.offset..region.end()).contains(&entry.offset);
        let saved = trace.iter().filter(|entry| entry.phase == Phase::Start && entry.kind == OpKind::Write);
        let mut lens: Vec<u64> = saved.filter(is_sums).map(|entry| entry.len / BLOCK).collect();
        lens.sort_unstable();
        lens
    };
    sim.trace_start();
    (0..8).for_each(write);
    assert_eq!(flushed(), [8, 8], "one for each member");
    [7, 1, 2, 4, 5, 6].into_iter().for_each(write);
    assert_eq!(flushed(), [2, 2, 4, 4]);
    assert_eq!(flushed(), [0; 0]);
}
