//! One shard or several: the behavior is the same.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use array::MemberIndex;
use drive::{BlockError, Buf, BufMut, Env};
use format::Level;
use sim::{Latency, Sim};

use crate::group::*;

#[test]
fn any_number_of_shards_holds_the_same_bytes() {
    for shape in every_level(8 * KIB) {
        let mut contents = Vec::new();
        for shards in 1..=4 {
            let sim = Sim::new(shards as u64);
            // The same requests, with any number of shards.
            let mut rng = sim::Rng::new(77);
            let drives = new_drives(&sim, usize::from(shape.members), 512 * KIB, 512);
            let group = Group::create(&sim, shape, drives, shards);
            let mut bytes = vec![0; group.size() as usize];
            sim.block_on(async {
                for _ in 0..60 {
                    let (start, len) = any_range(&mut rng, group.size(), 32 * KIB, 128 * KIB);
                    let array = &group.shards[rng.next_u64() as usize % shards];
                    let value = rng.below(256) as u8;
                    bytes[start as usize..(start + len) as usize].fill(value);
                    array.write(start, Buf::from(vec![value; len as usize]), false).await.expect("writable");
                }
                let read = group.shards[shards - 1].read(0, BufMut::zeroed(bytes.len())).await.expect("readable");
                same(&read, &bytes, 0);
            });
            let drives = sim.block_on(group.stop());
            // The group can be opened with another number of shards.
            let group = Group::open(&sim, drives, 5 - shards);
            let read = sim.block_on(group.leader().read(0, BufMut::zeroed(bytes.len()))).expect("readable");
            same(&read, &bytes, 0);
            contents.push(bytes);
        }
        assert!(contents.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn a_stop_ends_requests_that_come_later_and_loses_none_that_was_answered() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes = every_level(8 * KIB);
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        let group = Group::create(&sim, shape, new_drives(&sim, members, 512 * KIB, 512), 1 + rng.index(4));
        let size = group.size();
        // Each task writes its own block again and again, and notes the last value that was
        // acknowledged.
        let blocks = 24;
        let acknowledged: Rc<Vec<Cell<(u8, u8)>>> = Rc::new((0..blocks).map(|_| Cell::new((0, 0))).collect());
        let step = size / blocks as u64 / 4096 * 4096;
        for block in 0..blocks {
            let array = rng.pick(&group.shards).clone();
            let acknowledged = acknowledged.clone();
            group.env.spawn(async move {
                for value in 1..=255 {
                    let (last, _) = acknowledged[block].get();
                    acknowledged[block].set((last, value));
                    let data = Buf::from(vec![value; 4096]);
                    match array.write(block as u64 * step, data, value % 16 == 0).await {
                        Ok(()) => acknowledged[block].set((value, value)),
                        Err(error) => {
                            assert_eq!(error, BlockError::Stopped);
                            return;
                        }
                    }
                }
            });
        }
        sim.run_for(std::time::Duration::from_micros(rng.below(5_000)));
        let shards = group.shards.clone();
        let drives = sim.block_on(group.stop());
        for array in &shards {
            let refused = sim.block_on(array.write(0, Buf::from(vec![1; 1]), false));
            assert_eq!(refused, Err(BlockError::Stopped));
            assert_eq!(sim.block_on(array.flush()), Err(BlockError::Stopped));
        }
        // The process ends, then the power fails: acknowledged data is durable.
        sim.power_cut();
        let drives: Vec<_> = drives.iter().map(sim::SimDrive::reopen).collect();
        assert!(drives.iter().all(|drive| superblock(drive).clean), "{shape}");
        let group = Group::open(&sim, drives, 1);
        sim.block_on(async {
            for block in 0..blocks {
                let read = group.leader().read(block as u64 * step, BufMut::zeroed(4096)).await.expect("readable");
                let (last, tried) = acknowledged[block].get();
                assert!(read.iter().all(|&byte| byte == last || byte == tried), "{shape}: {} {last} {tried}", read[0]);
                assert!(read.iter().all(|&byte| byte == read[0]), "{shape}");
            }
            if shape.survives() > 0 {
                assert_eq!(group.differences().await, 0, "{shape}: a clean group is consistent");
            }
        });
    }
}

#[test]
fn failures_seen_by_any_shard_reach_all_of_them() {
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid6, 6, 4 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 512 * KIB, 512), 4);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 5, 8).await;
            group.drives[1].fail_after(rng.below(40));
            group.drives[4].fail_after(rng.below(40));
            work(&group, &mut model, &mut rng, 30, 8).await;
            verify(&group, &model, &mut rng).await;
            for member in [1, 4] {
                assert_ne!(group.state(member), format::MemberState::InSync);
                assert!(group.leader().status().members[member].drive.is_some());
            }
            assert!(group.leader().fail_member(MemberIndex(0)).await.is_err(), "no more may be lost");
        });
    }
}

#[test]
fn a_write_that_is_one_operation_of_memory_is_done_at_once_where_its_stripe_group_belongs() {
    let sim = Sim::new(4);
    let shards = 2;
    for (level, members) in [(Level::Raid0, 2), (Level::Raid1, 2)] {
        let shape = shape(level, members, 16 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, usize::from(members), 4 << 20, 4096), shards);
        group.drives.iter().for_each(|drive| drive.set_latency(Latency::IMMEDIATE));
        sim.block_on(async {
            let write = |shard: usize, at: u64, byte: u8| {
                let array = group.shards[shard].clone();
                async move { array.write(at, Buf::from(vec![byte; 4096]), false).await }
            };
            for at in (0..MIB).step_by(4096) {
                write(0, at, 1).await.expect("writable");
            }
            let mut at_once = 0;
            for (at, shard) in (0..MIB).step_by(4096).flat_map(|at| (0..shards).map(move |shard| (at, shard))) {
                let stripe_group = group.leader().shared().geometry.place(at).stripe_group;
                let mut future = Box::pin(write(shard, at, 2 + shard as u8));
                let done = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let expected = level == Level::Raid0 && stripe_group.0 % shards as u64 == shard as u64;
                assert_eq!(done.is_ready(), expected, "{level:?}: {at} on shard {shard}");
                at_once += u64::from(done.is_ready());
                match done {
                    Poll::Ready(written) => written.expect("writable"),
                    Poll::Pending => future.await.expect("writable"),
                }
                let read = group.leader().read(at, BufMut::zeroed(4096)).await.expect("readable");
                assert!(read.iter().all(|&byte| byte == 2 + shard as u8), "{level:?}: {at}");
            }
            assert_eq!(at_once, if level == Level::Raid0 { MIB / 4096 } else { 0 });
        });
    }
}
