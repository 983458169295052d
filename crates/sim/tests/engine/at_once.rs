//! Reads that are done at once, as exports ask for them before they begin to wait: whole sectors of one strip, whose drive is memory.

use drive::{Block, Buf, BufMut};
use format::{ExtentRecord, Level, Shape};
use sim::{Latency, Rng, Sim, SimEnv};
use volume::Direct;

use crate::checksums::{BLOCK, Row, filled, redundant_shapes};
use crate::group::*;

const STRIP: u64 = 16 * KIB;

/// A group whose drives are memory, what is in it, and a volume that takes all of it.
fn of_memory(sim: &Sim, shape: Shape, rng: &mut Rng) -> (Group, Model, Direct<SimEnv>) {
    let (group, model) = filled(sim, shape, rng);
    group.drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
    let extent = ExtentRecord { start_byte: 0, len_bytes: group.size() };
    let volume = Direct::new(group.leader().clone(), group.size(), vec![extent]);
    (group, model, volume)
}

/// What was read at once, if it was.
fn at_once(sim: &Sim, volume: &impl Block, offset: u64, len: u64) -> Option<BufMut> {
    let mut buf = BufMut::zeroed(len as usize);
    sim.block_on(async { volume.read_now(offset, &mut buf) }).then_some(buf)
}

#[test]
fn what_is_read_at_once_is_what_is_there() {
    for (seed, shape) in (0..).zip(redundant_shapes(STRIP)) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, model, volume) = of_memory(&sim, shape, &mut rng);
        group.take_counts();
        let mut done = 0;
        for _ in 0..200 {
            let offset = rng.below(group.size() / BLOCK) * BLOCK;
            let len = (BLOCK * (1 + rng.below(4))).min(group.size() - offset);
            let read = at_once(&sim, &volume, offset, len);
            let is_within = offset / STRIP == (offset + len - 1) / STRIP;
            assert_eq!(read.is_some(), is_within, "{shape}: within a strip, and only there");
            let is = &model.bytes[offset as usize..(offset + len) as usize];
            assert!(read.is_none_or(|read| read[..] == *is), "{shape}: {offset}+{len}");
            done += u64::from(is_within);
        }
        assert_eq!(group.take_counts().reads, done, "{shape}: one operation each, and none for what was not done");
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
        let (group, model, volume) = of_memory(&sim, shape, &mut rng);
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
