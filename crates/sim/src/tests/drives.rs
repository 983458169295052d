//! Content, cache and power.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use ::drive::{BufMut, Drive, DriveError, Env, Segments, join_all};

use super::{data, quick, read, write};
use crate::{Counts, DriveOptions, Latency, OpKind, Phase, Rng, Sim, SimDrive};

#[test]
fn what_is_written_is_read_back_whatever_the_segments() {
    let sim = Sim::new(1);
    for drive in [quick(&sim.env(), 512), SimDrive::new(&sim.env(), "d", 1 << 20, 512)] {
        let mut rng = sim.rng();
        let mut model = drive.read_raw(0, 1 << 20);
        for _ in 0..300 {
            let offset = rng.below(2000) * 512;
            let len = (rng.range(1..40) * 512).min((1 << 20) - offset);
            let mut bytes = vec![0; len as usize];
            rng.fill(&mut bytes);
            let cut = rng.index(bytes.len() + 1);
            let parts = [&bytes[..cut], &bytes[cut..]].map(|part| BufMut::copy_of(part).freeze());
            sim.block_on(drive.write(offset, Segments::from_iter(parts), rng.chance(1, 2))).unwrap();
            model[offset as usize..][..len as usize].copy_from_slice(&bytes);
            if rng.chance(1, 4) {
                let zero = rng.below(2000) * 512;
                sim.block_on(drive.write_zeroes(zero, 24 * 512)).unwrap();
                model[zero as usize..][..24 * 512].fill(0);
            }
            if rng.chance(1, 4) {
                sim.block_on(drive.flush()).unwrap();
            }
            let from = rng.below(1000) * 512;
            assert_eq!(read(&sim, &drive, from, 65536), model[from as usize..][..65536]);
        }
        assert!(drive.read_raw(0, 1 << 20) == model);
    }
}

#[test]
fn refused_operations_say_why_and_do_not_count() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 4096);
    let refused = sim.block_on(drive.write(512, data(&[0; 4096]), false));
    assert_eq!(refused, Err(DriveError::Misaligned { offset: 512, len: 4096, sector: 4096 }));
    let refused = sim.block_on(drive.discard(1 << 20, 4096));
    assert_eq!(refused, Err(DriveError::OutOfRange { offset: 1 << 20, len: 4096, size: 1 << 20 }));
    assert_eq!(drive.counts(), Counts::default());
}

#[test]
fn garbage_on_a_fresh_drive_is_stable_and_differs_by_drive_place_and_seed() {
    let fresh = |seed: u64, index: usize| {
        let sim = Sim::new(seed);
        let drives = [quick(&sim.env(), 512), quick(&sim.env(), 512)];
        let whole = read(&sim, &drives[index], 0, 1 << 20);
        for offset in [0, 512, 4096, 300 * 512] {
            let part = read(&sim, &drives[index], offset as u64, 1024);
            assert_eq!(part, whole[offset..offset + 1024], "the same by any read");
        }
        assert_eq!(drives[index].read_raw(1001, 77), whole[1001..1078], "the same at any alignment");
        whole
    };
    let one = fresh(1, 0);
    assert!(one == fresh(1, 0) && one != fresh(1, 1) && one != fresh(2, 0));
    let sectors: BTreeSet<_> = one.chunks(512).collect();
    assert_eq!(sectors.len(), 2048, "no two sectors are alike");
    let zeroes = one.iter().filter(|&&byte| byte == 0).count();
    assert!((3000..5500).contains(&zeroes), "{zeroes} bytes of 2^20 are zero");
}

#[test]
fn a_partial_write_leaves_the_garbage_around_it() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    let before = drive.read_raw(0, 8192);
    write(&sim, &drive, 1024, &[7; 512]);
    let after = drive.read_raw(0, 8192);
    assert!(after[..1024] == before[..1024] && after[1536..] == before[1536..] && after[1024..1536] == [7; 512]);
}

#[test]
fn an_unflushed_write_is_lost_or_kept_sector_by_sector() {
    for (sector, count) in [(512, 8), (4096, 2)] {
        let mut outcomes = BTreeSet::new();
        for seed in 0..300 {
            let sim = Sim::new(seed);
            let drive = quick(&sim.env(), sector);
            let len = sector as usize * count;
            let old = drive.read_raw(0, len as u64);
            write(&sim, &drive, 0, &vec![7; len]);
            assert_eq!(drive.unflushed().len(), count);
            assert_eq!(read(&sim, &drive, 0, len), vec![7; len], "visible at once");
            sim.power_cut();
            let drive = drive.reopen();
            assert!(drive.unflushed().is_empty(), "what survives a power cut is durable");
            let new = drive.read_raw(0, len as u64);
            let mut warm = 0_u32;
            for (index, (old, new)) in old.chunks(sector as usize).zip(new.chunks(sector as usize)).enumerate() {
                let is_new = new.iter().all(|&byte| byte == 7);
                assert!(is_new || new == old, "seed {seed}: a sector is new or old as a whole");
                warm |= u32::from(is_new) << index;
            }
            outcomes.insert(warm);
        }
        let whole = (1 << count) - 1;
        assert!(outcomes.contains(&0) && outcomes.contains(&whole), "all and nothing happen");
        assert!(outcomes.len() >= 4.min(1 << count) && outcomes.len() > count, "torn writes happen: {outcomes:?}");
    }
}

#[test]
fn a_flushed_write_is_never_lost() {
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        write(&sim, &drive, 0, &[1; 8192]);
        sim.block_on(drive.flush()).unwrap();
        write(&sim, &drive, 4096, &[2; 512]);
        sim.power_cut();
        let bytes = drive.read_raw(0, 8192);
        let may_be_new = 4096..4608;
        let old = |(at, &byte): (usize, &u8)| byte == 1 || (byte == 2 && may_be_new.contains(&at));
        assert!(bytes.iter().enumerate().all(old), "seed {seed}");
    }
}

#[test]
fn a_write_that_completes_during_a_flush_may_be_lost_and_one_before_it_never_is() {
    let mut lost = 0;
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
        sim.block_on(async {
            drive.write(0, data(&[1; 4096]), false).await.unwrap();
            drive.set_latency(Latency::between(1000, 1000));
            let mut flush = Box::pin(drive.flush());
            poll_fn(|context| {
                assert!(flush.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drive.set_latency(Latency::IMMEDIATE);
            drive.write(0, data(&[2; 512]), false).await.unwrap();
            flush.await.unwrap();
        });
        drive.power_cut_by(|_| false);
        let bytes = drive.read_raw(0, 4096);
        assert!(bytes[512..].iter().all(|&byte| byte == 1), "seed {seed}: before the flush");
        assert!(bytes[..512] == [1; 512] || bytes[..512] == [2; 512], "seed {seed}: never older");
        lost += u32::from(bytes[0] == 1);
    }
    assert_eq!(lost, 200, "nothing survives that was not asked to be durable");
}

#[test]
fn fua_is_durable_and_makes_nothing_else_durable() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    let old = drive.read_raw(0, 4096);
    write(&sim, &drive, 0, &[1; 2048]);
    sim.block_on(drive.write(512, data(&[2; 512]), true)).unwrap();
    assert_eq!(drive.unflushed(), [0, 1024, 1536]);
    drive.power_cut_by(|_| false);
    let new = drive.read_raw(0, 4096);
    assert!(new[512..1024] == [2; 512] && new[..512] == old[..512] && new[1024..] == old[1024..]);
}

#[test]
fn after_fua_a_volatile_write_falls_back_to_what_fua_wrote() {
    for first in [512, 4096] {
        let sim = Sim::new(1);
        let drive = quick(&sim.env(), 512);
        write(&sim, &drive, 0, &vec![1; first]);
        sim.block_on(drive.write(0, data(&[2; 512]), true)).unwrap();
        write(&sim, &drive, 0, &[3; 512]);
        drive.power_cut_by(|_| false);
        assert_eq!(drive.read_raw(0, 512), [2; 512]);
    }
}

#[test]
fn of_several_unflushed_versions_any_may_survive() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        drive.write_raw(0, &[0; 512]);
        for version in 1..4 {
            write(&sim, &drive, 0, &[version; 512]);
        }
        sim.power_cut();
        let bytes = drive.read_raw(0, 512);
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "never a mixture");
        seen.insert(bytes[0]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn random_programs_lose_only_what_they_may() {
    // A model of one sector each: the versions that may survive a power cut.
    const SECTORS: usize = 24;
    for seed in 0..300 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        let mut rng = Rng::new(seed);
        let steps = rng.range(1..60) as u8;
        drive.write_raw(0, &[0; SECTORS * 512]);
        let mut may = vec![vec![0_u8]; SECTORS];
        for step in 1..=steps {
            let first = rng.index(SECTORS);
            let count = rng.index(SECTORS - first) + 1;
            let (offset, len) = (first as u64 * 512, count * 512);
            let versions = &mut may[first..first + count];
            match rng.below(8) {
                0 => {
                    sim.block_on(drive.flush()).unwrap();
                    may.iter_mut().for_each(|versions| _ = versions.drain(..versions.len() - 1));
                }
                1 => {
                    sim.block_on(drive.write(offset, data(&vec![step; len]), true)).unwrap();
                    versions.iter_mut().for_each(|versions| *versions = vec![step]);
                }
                2 => {
                    sim.block_on(drive.write_zeroes(offset, len as u64)).unwrap();
                    versions.iter_mut().for_each(|versions| versions.push(0));
                }
                _ => {
                    write(&sim, &drive, offset, &vec![step; len]);
                    versions.iter_mut().for_each(|versions| versions.push(step));
                }
            }
            for (sector, versions) in may.iter().enumerate() {
                let bytes = drive.read_raw(sector as u64 * 512, 512);
                assert_eq!(bytes, vec![versions[versions.len() - 1]; 512], "seed {seed}: the newest is read");
            }
        }
        drive.power_cut(&mut rng);
        check_survivors(&drive, &may, seed);
    }

    fn check_survivors(drive: &SimDrive, may: &[Vec<u8>], seed: u64) {
        for (sector, versions) in may.iter().enumerate() {
            let bytes = drive.read_raw(sector as u64 * 512, 512);
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "seed {seed}: sector {sector} is torn");
            assert!(versions.contains(&bytes[0]), "seed {seed}: sector {sector} is {}, not {versions:?}", bytes[0]);
        }
    }
}

#[test]
fn a_write_in_flight_at_a_power_cut_is_torn_at_sectors_and_its_handle_is_gone() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..300 {
        let sim = Sim::new(seed);
        let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
        drive.write_raw(0, &[0; 2048]);
        let writer = drive.clone();
        sim.stop_after(0);
        assert!(sim.try_block_on(writer.write(0, data(&[1; 2048]), true)).is_none());
        sim.power_cut();
        assert_eq!(sim.block_on(drive.flush()), Err(DriveError::Gone));
        let drive = drive.reopen();
        let bytes = read(&sim, &drive, 0, 2048);
        let warm: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
        assert!(bytes.chunks(512).zip(&warm).all(|(sector, &warm)| sector.iter().all(|&byte| byte == warm)));
        outcomes.insert(warm);
    }
    assert!(outcomes.contains(&vec![0; 4]) && outcomes.contains(&vec![1; 4]) && outcomes.len() > 10, "{outcomes:?}");
}

#[test]
fn a_write_in_flight_may_show_in_parts_before_it_is_done() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let sim = Sim::new(seed);
        let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
        drive.write_raw(0, &[0; 2048]);
        let writer = drive.clone();
        sim.env().spawn(async move { writer.write(0, data(&[1; 2048]), false).await.unwrap() });
        sim.run_for(Duration::from_nanos(1));
        assert_eq!(drive.in_flight(), 1);
        let shown: Vec<u8> = drive.read_raw(0, 2048).chunks(512).map(|sector| sector[0]).collect();
        seen.insert(shown);
        sim.run_until_idle();
        assert_eq!(drive.read_raw(0, 2048), [1; 2048]);
    }
    assert!(seen.len() > 5 && seen.contains(&vec![0; 4]), "{seen:?}");
}

#[test]
fn a_sector_made_of_two_segments_is_written_as_one() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        drive.write_raw(0, &[0; 512]);
        let half = BufMut::copy_of(&[1; 256]).freeze();
        sim.block_on(drive.write(0, Segments::from_iter([half.clone(), half]), false)).unwrap();
        assert_eq!(drive.read_raw(0, 512), [1; 512]);
        drive.power_cut_by(|_| false);
        assert_eq!(drive.read_raw(0, 512), [0; 512], "seed {seed}");
    }
}

#[test]
fn a_power_cut_answers_what_is_in_flight_with_gone() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    let (env, cut) = (sim.env(), drive.clone());
    sim.env().spawn(async move {
        env.sleep(Duration::from_nanos(10)).await;
        cut.power_cut(&mut Rng::new(1));
    });
    let results = sim.block_on(join_all((0..4).map(|part| drive.write(part * 512, data(&[1; 512]), false))));
    assert_eq!(results, vec![Err(DriveError::Gone); 4]);
    assert_eq!(sim.now(), 10);
}

#[test]
fn a_world_can_be_stopped_at_every_operation_and_goes_on_as_if_nothing_was() {
    for latency in [Latency::IMMEDIATE, Latency::USUAL] {
        let run = |stop: Option<u64>| {
            let sim = Sim::new(5);
            let options = DriveOptions { latency, ..DriveOptions::new("d", 1 << 20, 512) };
            let drive = SimDrive::with_options(&sim.env(), options);
            let workload = drive.clone();
            sim.env().spawn(async move {
                for round in 0..5 {
                    let writes = (0..3).map(|part| workload.write(part * 512, data(&[round; 512]), false));
                    join_all(writes).await;
                    workload.flush().await.unwrap();
                }
            });
            if let Some(stop) = stop {
                sim.stop_after(stop);
                sim.run_until_idle();
                assert!(sim.is_stopped() && sim.ops_done() == stop && sim.task_count() == 1);
                sim.resume();
            }
            sim.run_until_idle();
            assert_eq!((sim.task_count(), sim.ops_done()), (0, 20));
            assert_eq!(drive.read_raw(0, 1536), [4; 1536]);
        };
        run(None);
        (0..20).for_each(|stop| run(Some(stop)));
    }
}

#[test]
fn operations_complete_in_any_order() {
    for latency in [Latency::USUAL, Latency::between(1, 1)] {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let sim = Sim::new(seed);
            sim.trace_start();
            let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
            drive.set_latency(latency);
            sim.block_on(join_all((0..3).map(|part| drive.write(part * 512, data(&[1; 512]), false))));
            let done = sim.trace_take().into_iter().filter(|entry| entry.phase == Phase::Done);
            seen.insert(done.map(|entry| entry.offset).collect::<Vec<_>>());
        }
        assert_eq!(seen.len(), 6, "{seen:?}");
    }
}

#[test]
fn dropped_operations_are_safe_and_run_to_their_end() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    let sleep = sim.env();
    sim.block_on(async {
        for offset in [0, 512] {
            let mut write = Box::pin(drive.write(offset, data(&[9; 512]), false));
            let mut read = Box::pin(drive.read(offset, BufMut::zeroed(512)));
            poll_fn(|context| {
                assert!(write.as_mut().poll(context).is_pending() && read.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            if offset == 512 {
                // Complete, but never asked for.
                sleep.sleep(Duration::from_millis(1)).await;
            }
        }
        drop(drive.write(1024, data(&[9; 512]), false));
    });
    sim.run_until_idle();
    assert_eq!(drive.read_raw(0, 1024), [9; 1024]);
    assert_ne!(drive.read_raw(1024, 512), [9; 512], "an operation that was never polled was never started");
    assert_eq!((drive.counts().total(), drive.in_flight()), (4, 0));
    write(&sim, &drive, 0, &[3; 512]);
    assert_eq!(read(&sim, &drive, 0, 512), [3; 512], "the drive goes on");
}

#[test]
fn a_discarded_range_reads_as_anything_and_its_neighbours_as_before() {
    let (mut garbage, mut zeroes, mut old) = (0, 0, 0);
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        write(&sim, &drive, 0, &[7; 16384]);
        sim.block_on(drive.discard(4096, 8192)).unwrap();
        let bytes = read(&sim, &drive, 0, 16384);
        assert!(bytes[..4096].iter().chain(&bytes[12288..]).all(|&byte| byte == 7));
        for sector in bytes[4096..12288].chunks(512) {
            match sector {
                same if same.iter().all(|&byte| byte == 7) => old += 1,
                zero if zero.iter().all(|&byte| byte == 0) => zeroes += 1,
                _ => garbage += 1,
            }
        }
        assert_eq!(bytes, read(&sim, &drive, 0, 16384), "but stays so");
    }
    assert!(garbage > 500 && zeroes > 100 && old > 100, "{garbage} garbage, {zeroes} zero, {old} old sectors");
}

#[test]
fn a_drive_that_cannot_discard_does_nothing() {
    let sim = Sim::new(1);
    let mut options = DriveOptions::new("d", 1 << 20, 512);
    options.info.discards = false;
    let drive = SimDrive::with_options(&sim.env(), options);
    write(&sim, &drive, 0, &[7; 4096]);
    sim.block_on(drive.discard(0, 4096)).unwrap();
    assert_eq!(drive.read_raw(0, 4096), [7; 4096]);
}

#[test]
fn without_a_cache_every_write_is_durable() {
    let sim = Sim::new(1);
    let drive =
        SimDrive::with_options(&sim.env(), DriveOptions { write_cache: false, ..DriveOptions::new("d", 1 << 20, 512) });
    write(&sim, &drive, 0, &[7; 4096]);
    sim.block_on(drive.write_zeroes(4096, 4096)).unwrap();
    drive.power_cut_by(|_| false);
    assert_eq!(drive.read_raw(0, 8192), [[7; 4096], [0; 4096]].concat());
}

#[test]
fn counters_and_trace_are_exact() {
    let sim = Sim::new(1);
    sim.trace_start();
    let drive = quick(&sim.env(), 512);
    write(&sim, &drive, 0, &[0; 4096]);
    sim.block_on(drive.write(0, data(&[0; 512]), true)).unwrap();
    read(&sim, &drive, 0, 1024);
    sim.block_on(drive.flush()).unwrap();
    sim.block_on(drive.discard(512, 1536)).unwrap();
    sim.block_on(drive.write_zeroes(512, 2048)).unwrap();
    let expected = Counts {
        reads: 1,
        writes: 2,
        fua_writes: 1,
        flushes: 1,
        discards: 1,
        zeroes: 1,
        read_bytes: 1024,
        write_bytes: 4608,
        discard_bytes: 1536,
        zero_bytes: 2048,
        errors: 0,
    };
    assert_eq!((drive.take_counts(), drive.counts()), (expected, Counts::default()));
    let trace = sim.trace_take();
    let kinds: Vec<_> = trace.iter().filter(|entry| entry.phase == Phase::Start).map(|entry| entry.kind).collect();
    let [write, read, flush] = [OpKind::Write, OpKind::Read, OpKind::Flush];
    assert_eq!(kinds, [write, write, read, flush, OpKind::Discard, OpKind::Zeroes]);
    assert_eq!((trace.len(), trace[2].fua, trace[2].len), (12, true, 512));
    assert_eq!(trace[2].to_string(), "           0 ns  drive 0  Start Write 0+512 fua");
}

#[test]
fn a_large_drive_takes_memory_for_what_is_written_only() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 16 << 40, 4096);
    drive.set_latency(Latency::IMMEDIATE);
    write(&sim, &drive, (16 << 40) - 4096, &[7; 4096]);
    sim.block_on(drive.discard(0, 16 << 40)).unwrap();
    drive.power_cut_by(|_| false);
    assert_eq!(drive.read_raw(8 << 40, 4096).len(), 4096);
}
