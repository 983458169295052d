//! Reads that complete immediately, as exports request them before they wait: whole sectors on
//! memory-backed drives.

use drive::{Block, Buf, BufMut, View};
use format::{CrashSafety, ExtentRecord, Level, Shape};
use sim::{Latency, Rng, Sim, SimEnv};
use volume::Direct;

use crate::group::*;
use crate::rows::{BLOCK, Row, filled_with, redundant_shapes};

const STRIP: u64 = 16 * KIB;

/// A group on memory-backed drives, its content, and a volume that covers it.
fn of_memory(sim: &Sim, shape: Shape, protection: Protection, rng: &mut Rng) -> (Group, Model, Direct<SimEnv>) {
    let (group, model) = filled_with(sim, shape, protection, rng);
    group.drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
    let extent = ExtentRecord { start_byte: 0, len_bytes: group.size() };
    let volume = Direct::new(group.leader().clone(), group.size(), vec![extent]);
    (group, model, volume)
}

/// The data, if it could be read immediately.
fn at_once(sim: &Sim, volume: &impl Block, offset: u64, len: u64) -> Option<BufMut> {
    let mut buf = BufMut::zeroed(len as usize);
    sim.block_on(async { volume.read_now(offset, &mut buf) }).then_some(buf)
}

/// The data, viewed in place, if that was possible.
fn seen(sim: &Sim, volume: &impl Block, offset: u64, len: u64) -> Option<BufMut> {
    let mut buf = BufMut::zeroed(len as usize);
    let look = |views: &[View<'_>]| {
        assert_eq!(views.len() as u64, strips(offset, len), "{offset}+{len}: a part for each strip");
        View::copy_all(views, &mut buf);
    };
    sim.block_on(async { volume.view_now(offset, len as usize, look) }).map(|()| buf)
}

/// The number of strips that a range touches.
fn strips(offset: u64, len: u64) -> u64 {
    (offset + len - 1) / STRIP - offset / STRIP + 1
}

#[test]
fn what_is_read_at_once_is_what_is_there() {
    for (seed, shape) in (0..).zip(redundant_shapes(STRIP)) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, model, volume) = of_memory(&sim, shape, Protection::DEFAULT, &mut rng);
        group.take_counts();
        let mut done = 0;
        for _ in 0..200 {
            let offset = rng.below(group.size() / BLOCK) * BLOCK;
            let len = (BLOCK * (1 + rng.below(10))).min(group.size() - offset);
            let read = at_once(&sim, &volume, offset, len).expect("the drives are memory");
            let is = &model.bytes[offset as usize..(offset + len) as usize];
            assert!(read[..] == *is, "{shape}: {offset}+{len}");
            done += strips(offset, len);
        }
        assert_eq!(group.take_counts().reads, done, "{shape}: one operation for each strip");
        for (offset, len) in [(1, BLOCK), (0, BLOCK - 1), (group.size(), BLOCK), (u64::MAX - BLOCK + 1, BLOCK)] {
            assert!(at_once(&sim, &volume, offset, len).is_none(), "{shape}: {offset}+{len}");
        }
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::USUAL));
        assert!(at_once(&sim, &volume, 0, BLOCK).is_none(), "{shape}: drives that take their time");
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
        assert!(at_once(&sim, &volume, 0, BLOCK).is_some(), "{shape}");
        sim.block_on(group.stop());
        assert!(at_once(&sim, &volume, 0, BLOCK).is_none(), "{shape}: a group that was stopped");
    }
}

#[test]
fn nothing_is_read_at_once_that_has_to_be_computed() {
    for (seed, shape) in (0..).zip(redundant_shapes(STRIP)) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, model, volume) = of_memory(&sim, shape, Protection::DEFAULT, &mut rng);
        let row = Row::pick(&group, &mut rng);
        let role = rng.index(group.leader().shared().geometry.data);
        let offset = row.offset(&group, role);
        assert!(at_once(&sim, &volume, offset, BLOCK).is_some(), "{shape}");
        row.rot(&group, role, &mut rng);
        let is = &model.bytes[offset as usize..(offset + BLOCK) as usize];
        let has_copies = matches!(shape.level, Level::Raid1 | Level::Raid10);
        let nothing_else = |what: &str| {
            let read = at_once(&sim, &volume, offset, BLOCK);
            assert!(has_copies || read.is_none(), "{shape}: {what}");
            assert!(read.is_none_or(|read| read[..] == *is), "{shape}: {what}");
        };
        nothing_else("it does not fit its checksum");
        sim.block_on(async {
            let read = volume.read(offset, BufMut::zeroed(BLOCK as usize)).await.expect("readable");
            assert!(read[..] == *is, "{shape}");
        });
        let healed = at_once(&sim, &volume, offset, BLOCK).expect("it was put right");
        assert!(healed[..] == *is, "{shape}");

        let (member, _) = row.blocks[role];
        group.member(member).fail();
        nothing_else("its drive has failed");
        sim.block_on(async {
            let read = volume.read(offset, BufMut::zeroed(BLOCK as usize)).await.expect("readable");
            assert!(read[..] == *is, "{shape}");
            volume.write(offset, Buf::from(vec![0x5A; BLOCK as usize]), false).await.expect("writable");
            let read = volume.read(offset, BufMut::zeroed(BLOCK as usize)).await.expect("readable");
            assert!(read.iter().all(|&byte| byte == 0x5A), "{shape}");
        });
        let now = at_once(&sim, &volume, offset, BLOCK);
        assert!(now.is_none_or(|read| read.iter().all(|&byte| byte == 0x5A)), "{shape}: never what it was before");
    }
}

#[test]
fn what_lies_in_memory_is_seen_where_it_lies() {
    for (seed, shape) in (0..).zip(every_level(STRIP)) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let plain = Protection::plain(CrashSafety::On);
        let (group, model, volume) = of_memory(&sim, shape, plain, &mut rng);
        group.take_counts();
        let mut done = 0;
        for _ in 0..100 {
            let offset = rng.below(group.size() / BLOCK) * BLOCK;
            let len = (BLOCK * (1 + rng.below(10))).min(group.size() - offset);
            let seen = seen(&sim, &volume, offset, len).expect("it lies in memory");
            assert!(seen[..] == model.bytes[offset as usize..(offset + len) as usize], "{shape}: {offset}+{len}");
            done += strips(offset, len);
        }
        assert_eq!(group.take_counts().reads, done, "{shape}: one operation for each strip");
        for (offset, len) in [(1, BLOCK), (0, BLOCK - 1), (group.size(), BLOCK), (u64::MAX - BLOCK + 1, BLOCK)] {
            assert!(seen(&sim, &volume, offset, len).is_none(), "{shape}: {offset}+{len}");
        }
        // One slow member is enough to prevent it.
        let member = rng.index(usize::from(shape.members));
        group.drives[member].set_latency(Latency::USUAL);
        let all = seen(&sim, &volume, 0, group.size());
        let has_copies = matches!(shape.level, Level::Raid1 | Level::Raid10);
        assert!(has_copies || all.is_none(), "{shape}: a drive that takes its time");
        group.drives[member].set_latency(Latency::IMMEDIATE);
        if shape.survives() > 0 {
            group.member(member).fail();
            let all = seen(&sim, &volume, 0, group.size());
            assert!(has_copies || all.is_none(), "{shape}: a drive that has failed");
            assert!(all.is_none_or(|all| all[..] == model.bytes[..]), "{shape}");
        }
    }
}

#[test]
fn nothing_is_seen_where_it_lies_that_has_a_checksum_to_be_compared() {
    for (seed, shape) in (0..).zip(redundant_shapes(STRIP)) {
        let sim = Sim::new(seed);
        let (_group, _, volume) = of_memory(&sim, shape, Protection::DEFAULT, &mut sim.rng());
        assert!(seen(&sim, &volume, 0, BLOCK).is_none(), "{shape}");
        assert!(at_once(&sim, &volume, 0, BLOCK).is_some(), "{shape}: it is there, though");
    }
}

#[test]
fn a_write_is_done_at_once_as_far_as_that_goes_and_no_part_of_it_twice() {
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let raid0 = every_level(STRIP)[0];
        let (group, mut model, volume) = of_memory(&sim, raid0, Protection::plain(CrashSafety::Off), &mut rng);
        // Some of the drives do not complete writes immediately.
        let slow = rng.index(usize::from(raid0.members) + 1);
        group.drives.iter().take(slow).for_each(|drive| drive.set_latency(Latency::USUAL));
        group.take_counts();
        let mut done = 0;
        for _ in 0..50 {
            let offset = rng.below(group.size() / BLOCK) * BLOCK;
            let len = (BLOCK * (1 + rng.below(10))).min(group.size() - offset);
            let place = offset as usize..(offset + len) as usize;
            rng.fill(&mut model.bytes[place.clone()]);
            let data = Buf::from(model.bytes[place].to_vec());
            sim.block_on(volume.write(offset, data, false)).expect("writable");
            done += strips(offset, len);
        }
        assert_eq!(group.take_counts().writes, done, "one operation for each strip");
        let read = sim.block_on(volume.read(0, BufMut::zeroed(model.bytes.len()))).expect("readable");
        assert!(read[..] == model.bytes[..]);
    }
}
