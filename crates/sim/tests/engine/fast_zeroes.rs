//! Zeroes that are wanted only if they are fast: no data is written for them, or the request is
//! refused.

use drive::{BlockError, Buf, BufMut, Env, WriteZeroes, join_all};
use format::{Level, Shape};
use sim::{OpKind, Phase, Sim};

use crate::group::*;
use crate::history::{History, Request, perform, settle};

const FAST: WriteZeroes = WriteZeroes { fua: false, keep_allocated: false, only_fast: true };

/// Bytes of the group in one band of stripe groups. A band is discarded without a look at the data
/// around it.
fn band(group: &Group) -> u64 {
    let geometry = &group.leader().shared().geometry;
    geometry.stripe_data_bytes() * geometry.rows() * geometry.sets
}

/// A group of which everything but the last band was written.
fn nearly_full(sim: &Sim, shape: Shape, protection: Protection) -> (Group, Vec<u8>) {
    let drives = new_drives(sim, usize::from(shape.members), MIB, 512);
    let group = Group::create_with(sim, shape, protection, drives, 1 + sim.seed() as usize % 3);
    let mut bytes = vec![0; group.size() as usize];
    let written = (group.size() - band(&group)) as usize;
    sim.rng().fill(&mut bytes[..written]);
    sim.block_on(async {
        group.leader().write(0, Buf::from(bytes[..written].to_vec()), false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    (group, bytes)
}

async fn check(group: &Group, bytes: &[u8]) {
    let read = group.leader().read(0, BufMut::zeroed(bytes.len())).await.expect("readable");
    same(&read, bytes, 0);
}

#[test]
fn zeroes_that_would_not_be_fast_are_refused_and_change_nothing_not_even_on_the_drives() {
    for (seed, shape) in every_level(8 * KIB).into_iter().enumerate() {
        let sim = Sim::new(seed as u64);
        let (group, bytes) = nearly_full(&sim, shape, Protection::DEFAULT);
        let band = band(&group);
        let allocated = group.leader().shared().map.allocated();
        sim.trace_start();
        sim.block_on(async {
            for shard in &group.shards {
                for (offset, len) in [
                    // A block, a band but for a block at either end, and ranges that begin in a
                    // hole and end elsewhere.
                    (0, 4096),
                    (4096, band - 4096),
                    (band, band - 512),
                    (band - 4096, band),
                    (group.size() - band - 4096, band + 4096),
                ] {
                    let refused = shard.write_zeroes(offset, len, FAST).await;
                    assert_eq!(refused, Err(BlockError::NotFast), "{shape}: {offset}+{len}");
                }
                // Zeroes that are to stay allocated have to be written.
                for (offset, len) in [(0, 4096), (0, band), (group.size() - band, band)] {
                    let keep = WriteZeroes { keep_allocated: true, ..FAST };
                    let refused = shard.write_zeroes(offset, len, keep).await;
                    assert_eq!(refused, Err(BlockError::NotFast), "{shape}: {offset}+{len}, to be kept");
                }
            }
        });
        sim.run_for(std::time::Duration::from_millis(200));
        assert_eq!(sim.trace_take(), [], "{shape}: a refusal asks the drives nothing");
        assert_eq!(group.leader().shared().map.allocated(), allocated, "{shape}");
        sim.block_on(check(&group, &bytes));
        sim.block_on(group.leader().flush()).expect("flushes");
        let group = group.power_cut(&sim);
        sim.block_on(check(&group, &bytes));
    }
}

#[test]
fn zeroes_that_are_fast_read_as_zeroes_and_no_data_is_written_for_them() {
    for (seed, shape) in every_level(8 * KIB).into_iter().enumerate() {
        for fua in [false, true] {
            let sim = Sim::new(seed as u64);
            let (group, mut bytes) = nearly_full(&sim, shape, Protection::DEFAULT);
            let band = band(&group);
            let geometry = group.leader().shared().geometry.clone();
            let allocated = group.leader().shared().map.allocated();
            let chunks_of_band = geometry.chunks_per_stripe_group() * geometry.sets;
            sim.trace_start();
            sim.block_on(async {
                let how = WriteZeroes { fua, ..FAST };
                // A band, two of them, and any part of the range that was never written.
                for (shard, (offset, len)) in
                    group.shards.iter().cycle().zip([(band, band), (2 * band, 2 * band), (group.size() - 5000, 4999)])
                {
                    shard.write_zeroes(offset, len, how).await.expect("it is fast");
                    bytes[offset as usize..(offset + len) as usize].fill(0);
                    check(&group, &bytes).await;
                }
            });
            let is_data = |offset: u64| {
                (geometry.data_start..geometry.data_start + geometry.bands * geometry.stripe_group_bytes)
                    .contains(&offset)
            };
            let writes = sim.trace_take().into_iter().filter(|entry| {
                entry.phase == Phase::Start
                    && matches!(entry.kind, OpKind::Write | OpKind::Zeroes)
                    && is_data(entry.offset)
            });
            assert_eq!(writes.map(|entry| entry.to_string()).collect::<Vec<_>>(), [""; 0], "{shape}, FUA: {fua}");
            let now = group.leader().shared().map.allocated();
            assert_eq!(allocated - now, 3 * chunks_of_band, "{shape}: the space came back");
            if !fua {
                sim.block_on(group.leader().flush()).expect("flushes");
            }
            let group = group.power_cut(&sim);
            assert_eq!(group.leader().shared().map.allocated(), now, "{shape}, FUA: {fua}");
            sim.block_on(check(&group, &bytes));
        }
    }
}

#[test]
fn fast_zeroes_that_a_power_cut_interrupts_are_there_or_not_and_with_fua_they_are() {
    let mut refused = 0;
    for seed in seeds(120) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&every_level(4 * KIB));
        let protection = *rng.pick(&[Protection::DEFAULT, Protection::plain(format::CrashSafety::Strict)]);
        let drives = new_drives(&sim, usize::from(shape.members), 512 * KIB, 512);
        let group = Group::create_with(&sim, shape, protection, drives, 1 + rng.index(3));
        let history = History::shared(&group);
        let band = band(&group);
        let bands = group.size() / band;
        sim.block_on(async {
            for _ in 0..4 {
                let write = Request::Write { fua: rng.chance(1, 2) };
                let at = rng.below(bands) * band;
                perform(group.leader(), &history, write, at, band).await.expect("writable");
            }
        });
        sim.stop_after(rng.below(60));
        let mut fork = rng.fork();
        let work = async {
            for _ in 0..6 {
                let (at, fua) = (fork.below(bands) * band, fork.chance(1, 2));
                let array = fork.pick(&group.shards);
                let whole = fork.chance(3, 4);
                let len = if whole { band } else { 4096 };
                match perform(array, &history, Request::FastZeroes { fua }, at, len).await {
                    Err(BlockError::NotFast) => refused += 1,
                    other => other.expect("nothing but the power fails"),
                }
                let write = Request::Write { fua: false };
                perform(array, &history, write, fork.below(bands) * band, 4096).await.expect("writable");
            }
        };
        sim.try_block_on(work);
        let group = group.power_cut(&sim);
        sim.block_on(settle(&group, &history, &mut rng));
        if shape.survives() > 0 {
            assert_eq!(sim.block_on(group.differences()), 0, "seed {seed}");
        }
    }
    if seeds(120).end > 60 {
        assert!(refused > 10, "only {refused} were refused: the test is blind");
    }
}

/// A RAID 5 of 256 GiB without any data.
fn huge(sim: &Sim) -> Group {
    let drives = new_drives(sim, 5, 64 << 30, 4096);
    Group::create(sim, shape(Level::Raid5, 5, 64 * KIB), drives, 2)
}

#[test]
fn giving_back_space_that_was_never_written_costs_next_to_nothing_however_much_it_is() {
    let sim = Sim::new(1);
    let group = huge(&sim);
    let size = group.size();
    let data = |byte: u8| Buf::from(vec![byte; 4096]);
    let places = [0, size / 2, size - 4096];
    sim.block_on(async {
        for shard in &group.shards {
            shard.flush().await.unwrap();
            let (before, _) = (sim.steps(), group.take_counts());
            shard.discard(0, size).await.unwrap();
            shard.write_zeroes(4096, size - 8192, WriteZeroes { fua: true, ..WriteZeroes::default() }).await.unwrap();
            assert!(sim.steps() - before < 1000, "{} steps", sim.steps() - before);
            let counts = group.take_counts();
            assert_eq!((counts.reads, counts.writes, counts.zeroes, counts.discards), (0, 0, 0, 0));
            // Data that was written in between is found.
            for place in places {
                shard.write(place, data(7), false).await.unwrap();
            }
            let before = sim.steps();
            shard.discard(0, size).await.unwrap();
            assert!(sim.steps() - before < 10_000, "{} steps", sim.steps() - before);
            assert_eq!(group.leader().shared().map.allocated(), 0);
            for place in places {
                let read = shard.read(place, BufMut::zeroed(4096)).await.unwrap();
                assert!(read.iter().all(|&byte| byte == 0));
            }
        }
    });
}

#[test]
fn others_are_served_while_much_space_is_given_back() {
    let sim = Sim::new(2);
    let group = huge(&sim);
    let written = 256 << 20;
    sim.block_on(async {
        let array = group.leader();
        for offset in (0..written).step_by(4 << 20) {
            array.write(offset, Buf::from(vec![1; 4 << 20]), false).await.unwrap();
        }
        let began = group.env.now();
        let ended = std::cell::Cell::new(None);
        let discards = async {
            let all = (0..16).map(|_| array.discard(0, group.size()));
            join_all(all).await.into_iter().for_each(|discarded| discarded.unwrap());
            ended.set(Some(group.env.now() - began));
        };
        let slowest = std::cell::Cell::new(0);
        let reads = async {
            while ended.get().is_none() {
                let before = group.env.now();
                array.read(written, BufMut::zeroed(4096)).await.unwrap();
                slowest.set(slowest.get().max(group.env.now() - before));
                group.env.sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        both(discards, reads).await;
        assert_eq!(array.shared().map.allocated(), 0);
        assert!(slowest.get() < 50_000_000, "a read took {} ns", slowest.get());
    });
}

#[test]
fn zeroes_that_stay_allocated_are_written_in_steps_and_all_of_them() {
    let shape = shape(Level::Raid5, 3, 64 * KIB);
    let sim = Sim::new(3);
    let group = Group::create(&sim, shape, new_drives(&sim, 3, 48 * MIB, 4096), 2);
    sim.block_on(async {
        let array = group.leader();
        let len = 40 * MIB;
        array.write(4096, Buf::from(vec![9; 8192]), false).await.unwrap();
        group.drives[1].fail();
        let keep = WriteZeroes { keep_allocated: true, ..WriteZeroes::default() };
        array.write_zeroes(8192, len, keep).await.unwrap();
        let read = array.read(0, BufMut::zeroed((len + 8192) as usize)).await.unwrap();
        assert!(read[..4096].iter().chain(&read[8192..]).all(|&byte| byte == 0));
        assert!(read[4096..8192].iter().all(|&byte| byte == 9));
        let extents = array.extents(8192, len).unwrap();
        assert!(extents.iter().all(|extent| extent.allocated), "{extents:?}");
    });
}

#[test]
fn freed_chunks_that_lie_side_by_side_are_one_discard_of_each_member() {
    let sim = Sim::new(4);
    let shape = shape(Level::Raid6, 6, 64 * KIB);
    for shards in 1..=2 {
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 48 * MIB, 4096), shards);
        let later = std::time::Duration::from_millis(200);
        sim.block_on(async {
            let array = group.leader();
            array.write(0, Buf::from(vec![1; 4 << 20]), false).await.unwrap();
            array.flush().await.unwrap();
            group.take_counts();
            // 1 MiB from the start, and then all but one chunk of the next MiB.
            array.discard(0, MIB).await.unwrap();
            group.env.sleep(later).await;
            let counts = group.take_counts();
            // Each owner has its own stripe groups. With one owner, they all lie side by side.
            let owners = group.leader().owners();
            let runs =
                if owners.count == 1 { 1 } else { MIB / array.shared().geometry.stripe_data_bytes() / owners.run };
            assert_eq!((counts.discards, counts.discard_bytes), (6 * runs, 6 * 256 * KIB), "{shards} shards");
            array.discard(MIB, MIB).await.unwrap();
            array.write(MIB + 512 * KIB, Buf::from(vec![2; 4096]), false).await.unwrap();
            group.take_counts();
            group.env.sleep(later).await;
            let counts = group.take_counts();
            assert_eq!(counts.discard_bytes, 6 * (256 - 32) * KIB, "{shards} shards: one chunk was written again");
            let read = array.read(MIB, BufMut::zeroed(MIB as usize)).await.unwrap();
            let half = 512 * KIB as usize;
            assert!(read[..half].iter().chain(&read[half + 4096..]).all(|&byte| byte == 0));
            assert!(read[half..half + 4096].iter().all(|&byte| byte == 2));
        });
    }
}

#[test]
fn a_freed_chunk_does_not_delay_the_first_write_of_its_neighbour() {
    let sim = Sim::new(5);
    let group = Group::create(&sim, shape(Level::Raid6, 6, 64 * KIB), new_drives(&sim, 6, 48 * MIB, 4096), 1);
    sim.block_on(async {
        let array = group.leader();
        array.write(0, Buf::from(vec![1; 256 * KIB as usize]), false).await.unwrap();
        array.flush().await.unwrap();
        array.discard(0, 256 * KIB).await.unwrap();
        group.take_counts();
        array.write(256 * KIB, Buf::from(vec![2; 256 * KIB as usize]), false).await.unwrap();
        let counts = group.take_counts();
        assert_eq!((counts.writes, counts.flushes), (6, 0), "the stripe beside it, and nothing else");
        array.write(0, Buf::from(vec![3; 256 * KIB as usize]), false).await.unwrap();
        let counts = group.take_counts();
        assert!(counts.flushes > 0, "the freed chunk waits until the drives know that it is free");
    });
}

#[test]
fn a_first_write_that_meets_the_discard_of_its_chunk_stays() {
    let shape = shape(Level::Raid6, 6, 64 * KIB);
    let mut met = 0;
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 48 * MIB, 4096), 1);
        let data = vec![seed as u8 + 1; 256 * KIB as usize];
        sim.block_on(async {
            let array = group.leader();
            array.write(0, Buf::from(vec![0xFF; MIB as usize]), false).await.unwrap();
            array.discard(0, MIB).await.unwrap();
            // The drives get the discards about 50 ms later, after a flush and a write of the map.
            group.env.sleep(std::time::Duration::from_micros(50_000 + 20 * seed)).await;
            group.take_counts();
            array.write(0, Buf::from(data.clone()), false).await.unwrap();
            met += u32::from(group.take_counts().discards > 0);
            group.env.sleep(std::time::Duration::from_millis(100)).await;
            let read = array.read(0, BufMut::zeroed(MIB as usize)).await.unwrap();
            assert!(read[..data.len()] == data[..], "seed {seed}: the write is gone");
            assert!(read[data.len()..].iter().all(|&byte| byte == 0), "seed {seed}");
        });
        assert_eq!(sim.block_on(group.differences()), 0, "seed {seed}");
    }
    assert!(met > 0, "no write met a discard: the test is blind");
}

#[test]
fn freed_chunks_are_readable_after_a_power_cut_during_their_discard() {
    let shape = shape(Level::Raid6, 6, 64 * KIB);
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let group = Group::create(&sim, shape, new_drives(&sim, 6, 48 * MIB, 4096), 1);
        let len = MIB as usize;
        sim.block_on(async {
            let array = group.leader();
            array.write(0, Buf::from(vec![0xFF; len]), false).await.unwrap();
            array.flush().await.unwrap();
            array.discard(0, MIB).await.unwrap();
            group.env.sleep(std::time::Duration::from_micros(50_000 + 20 * seed)).await;
        });
        let group = group.power_cut(&sim);
        let read = sim.block_on(group.leader().read(0, BufMut::zeroed(len))).expect("readable");
        assert!(read.chunks(4096).all(|block| block == [0; 4096] || block == [0xFF; 4096]), "seed {seed}");
        assert_eq!(sim.block_on(group.differences()), 0, "seed {seed}");
    }
}
