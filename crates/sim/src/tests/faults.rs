//! Drives that fail, hang, lie and rot.

use std::time::Duration;

use ::drive::{BufMut, Drive, DriveError, Env, join_all};

use super::{data, quick, read, write};
use crate::{Latency, OpKind, Rng, Sim, SimDrive};

#[test]
fn a_failed_drive_is_gone_for_what_is_in_flight_and_for_all_that_comes() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    write(&sim, &drive, 0, &[1; 512]);
    let (env, failing) = (sim.env(), drive.clone());
    sim.env().spawn(async move {
        env.sleep(Duration::from_nanos(10)).await;
        failing.fail();
    });
    let results = sim.block_on(join_all((1..9).map(|part| drive.write(part * 512, data(&[1; 512]), false))));
    assert_eq!(results, vec![Err(DriveError::Gone); 8]);
    assert_eq!(sim.block_on(drive.flush()), Err(DriveError::Gone));
    assert_eq!(drive.counts().errors, 8);
    assert!(drive.is_failed());
    let drive = drive.revive();
    assert!(!drive.is_failed());
    assert_eq!(read(&sim, &drive, 0, 512), [1; 512], "its content is still there");
}

#[test]
fn a_failed_drive_stays_failed_over_a_power_cut() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    drive.fail();
    sim.power_cut();
    let drive = drive.reopen();
    assert_eq!(sim.block_on(drive.flush()), Err(DriveError::Gone));
    assert_eq!(sim.block_on(drive.revive().flush()), Ok(()));
}

#[test]
fn a_drive_fails_after_exactly_so_many_operations() {
    for latency in [Latency::IMMEDIATE, Latency::USUAL] {
        let sim = Sim::new(1);
        let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
        drive.set_latency(latency);
        drive.fail_after(3);
        let results = sim.block_on(join_all((0..8).map(|part| drive.write(part * 512, data(&[1; 512]), false))));
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
        assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(DriveError::Gone))));
    }
}

#[test]
fn unreadable_sectors_say_where_and_a_write_heals_them() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    write(&sim, &drive, 0, &[1; 8192]);
    drive.media_error(1000..2049);
    let attempt = |offset, len| sim.block_on(drive.read(offset, BufMut::zeroed(len))).map(drop);
    assert_eq!(attempt(0, 8192), Err(DriveError::Media { offset: 512, len: 2048 }), "whole sectors");
    assert_eq!(attempt(1024, 512), Err(DriveError::Media { offset: 1024, len: 512 }));
    assert_eq!((attempt(0, 512), attempt(2560, 4096)), (Ok(()), Ok(())));
    write(&sim, &drive, 1024, &[2; 512]);
    assert_eq!(attempt(1024, 512), Ok(()));
    assert_eq!(attempt(0, 8192), Err(DriveError::Media { offset: 512, len: 512 }), "the rest stays");
    sim.block_on(drive.write_zeroes(0, 1024)).unwrap();
    assert_eq!(attempt(0, 8192), Err(DriveError::Media { offset: 1536, len: 1024 }));
    sim.power_cut();
    let drive = drive.reopen();
    let after = sim.block_on(drive.read(1536, BufMut::zeroed(512))).map(drop);
    assert!(matches!(after, Err(DriveError::Media { .. })), "media errors outlive power");
}

#[test]
fn sets_of_ranges_agree_with_sets_of_numbers() {
    let mut rng = Rng::new(1);
    let mut ranges = crate::drive::Ranges::default();
    let mut model = [false; 64];
    for _ in 0..5000 {
        let start = rng.below(64);
        let range = start..rng.range(start..65);
        let bits = &mut model[range.start as usize..range.end as usize];
        match rng.below(3) {
            0 => {
                ranges.insert(range.clone());
                bits.fill(true);
            }
            1 => {
                ranges.remove(range.clone());
                bits.fill(false);
            }
            _ => {
                let first = bits.iter().position(|&bit| bit).map(|first| range.start + first as u64);
                let found = ranges.first_within(range.clone());
                assert_eq!(found.as_ref().map(|found| found.start), first);
                assert!(found.is_none_or(|found| found.end <= range.end && found.clone().all(|at| model[at as usize])));
            }
        }
    }
}

#[test]
fn bit_rot_flips_bits_in_every_sector_of_the_range_and_nowhere_else() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let drive = quick(&sim.env(), 512);
        write(&sim, &drive, 0, &[1; 8192]);
        if seed % 2 == 0 {
            sim.block_on(drive.flush()).unwrap();
        }
        drive.corrupt(600, 1500);
        drive.corrupt(8000, 1);
        let bytes = read(&sim, &drive, 0, 8192);
        let rotten: Vec<usize> = (0..8192).filter(|&at| bytes[at] != 1).collect();
        assert!(rotten.iter().all(|at| (600..2100).contains(at) || *at == 8000));
        for part in [600..1024, 1024..1536, 1536..2048, 2048..2100, 8000..8001] {
            let flips: u32 = bytes[part.clone()].iter().map(|byte| (byte ^ 1).count_ones()).sum();
            assert!((1..=4).contains(&flips), "seed {seed}: {flips} flips in {part:?}");
        }
        if seed % 2 == 0 {
            sim.power_cut();
            assert_eq!(drive.read_raw(0, 8192), bytes, "rot is on the medium");
        }
    }
}

#[test]
fn bit_rot_reaches_what_a_power_cut_falls_back_to() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    drive.write_raw(0, &[0; 512]);
    write(&sim, &drive, 0, &[1; 512]);
    drive.corrupt(0, 512);
    assert_ne!(drive.read_raw(0, 512), [1; 512]);
    drive.power_cut_by(|_| false);
    let flips: u32 = drive.read_raw(0, 512).iter().map(|byte| byte.count_ones()).sum();
    assert!((1..=4).contains(&flips), "{flips} bits");
}

#[test]
fn an_injected_error_hits_the_next_operation_of_its_kind() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    drive.error_next(OpKind::Write, DriveError::NoSpace);
    drive.error_next(OpKind::Flush, DriveError::Os { operation: "fsync", errno: 5 });
    assert_eq!(read(&sim, &drive, 0, 512).len(), 512);
    assert_eq!(sim.block_on(drive.flush()), Err(DriveError::Os { operation: "fsync", errno: 5 }));
    assert_eq!(sim.block_on(drive.write(0, data(&[1; 512]), false)), Err(DriveError::NoSpace));
    write(&sim, &drive, 0, &[1; 512]);
    assert_eq!((sim.block_on(drive.flush()), drive.counts().errors), (Ok(()), 2));
}

#[test]
fn a_failed_flush_makes_nothing_durable() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    drive.write_raw(0, &[0; 512]);
    write(&sim, &drive, 0, &[1; 512]);
    drive.error_next(OpKind::Flush, DriveError::Os { operation: "fsync", errno: 5 });
    assert!(sim.block_on(drive.flush()).is_err());
    drive.power_cut_by(|_| false);
    assert_eq!(drive.read_raw(0, 512), [0; 512]);
}

#[test]
fn a_hanging_drive_answers_nothing_until_it_goes_on() {
    for latency in [Latency::IMMEDIATE, Latency::USUAL] {
        let sim = Sim::new(1);
        let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
        drive.set_latency(latency);
        let writer = drive.clone();
        sim.env().spawn(async move { writer.write(0, data(&[1; 512]), false).await.unwrap() });
        drive.hang(true);
        sim.run_for(Duration::from_secs(3600));
        assert_eq!(sim.task_count(), 1);
        drive.hang(false);
        sim.run_until_idle();
        assert_eq!((sim.task_count(), drive.read_raw(0, 512)), (0, vec![1; 512]));
    }
}

#[test]
fn a_hanging_drive_can_die() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    drive.hang(true);
    let (env, failing) = (sim.env(), drive.clone());
    sim.env().spawn(async move {
        env.sleep(Duration::from_secs(1)).await;
        failing.fail();
    });
    assert_eq!(sim.block_on(drive.flush()), Err(DriveError::Gone));
}

#[test]
fn a_slow_drive_takes_so_many_times_longer() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    drive.set_latency(Latency::between(100, 100));
    drive.slow(50);
    write(&sim, &drive, 0, &[1; 512]);
    assert_eq!(sim.now(), 5000);
    drive.slow(1);
    drive.set_latency(Latency::between(100, 100).with_spikes(1, 7000));
    write(&sim, &drive, 0, &[1; 512]);
    assert_eq!(sim.now(), 12_000);
}

#[test]
fn a_lost_write_is_acknowledged_and_not_there() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    write(&sim, &drive, 0, &[1; 1024]);
    drive.lose_writes(1);
    write(&sim, &drive, 0, &[2; 512]);
    write(&sim, &drive, 512, &[2; 512]);
    assert_eq!(read(&sim, &drive, 0, 1024), [[1; 512], [2; 512]].concat());
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    write(&sim, &drive, 0, &[1; 8192]);
    drive.misdirect_next_write(4096);
    write(&sim, &drive, 0, &[2; 1024]);
    let bytes = read(&sim, &drive, 0, 8192);
    assert!(bytes[4096..5120] == [2; 1024] && bytes.iter().filter(|&&byte| byte == 2).count() == 1024);
    drive.misdirect_next_write((1 << 20) - 512);
    write(&sim, &drive, 0, &[3; 1024]);
    assert_eq!(drive.read_raw((1 << 20) - 512, 512), [3; 512], "cut off at the end of the drive");
}

#[test]
fn a_drive_that_ignores_flushes_loses_flushed_writes() {
    let sim = Sim::new(1);
    let drive = quick(&sim.env(), 512);
    drive.write_raw(0, &[0; 1024]);
    drive.ignore_flushes(true);
    write(&sim, &drive, 0, &[1; 512]);
    sim.block_on(drive.write(512, data(&[1; 512]), true)).unwrap();
    sim.block_on(drive.flush()).unwrap();
    drive.power_cut_by(|_| false);
    assert_eq!(drive.read_raw(0, 1024), [0; 1024]);
}
