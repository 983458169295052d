//! Connections end: acknowledged data stays, and no data goes to the wrong place.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::proxy::Proxy;
use crate::common::{
    BLOCK, BOTH, Disk, MIB, PATIENCE, Random, Target, Volume, buf, disk, offer, on_tokio, options, pattern, segments,
};
use drive::{Block, Drive, DriveError};
use initiator::tokio::TokioNetwork;
use initiator::{IoError, Options, PathState};

const SIZE: u64 = 8 << 20;

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE / 2, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn connects(disk: &Disk) -> u64 {
    disk.paths()[0].connects
}

/// Each of eight tasks writes and compares a region of its own until `ends`. Returns the expected
/// content of each region.
fn load(tasks: &tokio::task::LocalSet, disk: &Disk, ends: &Rc<Cell<bool>>) -> Vec<tokio::task::JoinHandle<Vec<u8>>> {
    const REGION: u64 = SIZE / 8;
    let one = |task: u64| {
        let (disk, ends) = (disk.clone(), ends.clone());
        tasks.spawn_local(async move {
            let mut model = vec![0_u8; REGION as usize];
            let mut random = Random(task + 1);
            let mut step = 0;
            while !ends.get() {
                let blocks = REGION / u64::from(BLOCK);
                let first = random.below(blocks);
                let count = 1 + random.below((blocks - first).min(if step % 4 == 0 { 80 } else { 4 }));
                let (at, len) = ((first * u64::from(BLOCK)) as usize, (count * u64::from(BLOCK)) as usize);
                let offset = task * REGION + at as u64;
                if random.below(2) == 0 {
                    let data = pattern(len, step);
                    disk.write(offset, segments(&data), false).await.unwrap();
                    model[at..at + len].copy_from_slice(&data);
                } else {
                    let data = disk.read(offset, buf(len)).await.unwrap();
                    assert!(*data == model[at..at + len], "task {task}, step {step}");
                }
                step += 1;
            }
            model
        })
    };
    (0..8).map(one).collect()
}

/// Compares the volume with the data that the tasks wrote.
async fn compare(volume: &Volume, regions: Vec<tokio::task::JoinHandle<Vec<u8>>>) {
    let mut whole = Vec::new();
    for region in regions {
        whole.extend(region.await.unwrap());
    }
    assert!(*Block::read(volume, 0, buf(SIZE as usize)).await.unwrap() == whole[..]);
}

#[test]
fn what_was_acknowledged_is_there_when_connections_are_cut_under_load() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(SIZE);
        let proxy = Proxy::to(target.address);
        let tasks = tokio::task::LocalSet::new();
        let disk = disk(proxy.address, Options { queues: 2, digests: BOTH, ..options() }).await;
        let ends = Rc::new(Cell::new(false));
        let regions = load(&tasks, &disk, &ends);
        let breaking = async {
            for _ in 0..15 {
                tokio::time::sleep(Duration::from_millis(60)).await;
                let before = connects(&disk);
                proxy.cut();
                eventually("it is connected again", || connects(&disk) > before).await;
            }
            // The connections are cut in the middle of PDUs.
            proxy.cut_after(1 << 20);
            proxy.cut();
            let before = connects(&disk);
            eventually("connections are cut in the middle", || connects(&disk) > before + 8).await;
            proxy.cut_after(u64::MAX);
            proxy.delay(3);
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.delay(0);
            ends.set(true);
            compare(&volume, regions).await;
        };
        tasks.run_until(breaking).await;
    });
}

#[test]
fn a_target_that_is_killed_and_started_again_is_connected_again() {
    on_tokio(async {
        let volume = Volume::new(MIB);
        let first = Target::start(1, 64);
        offer(&first, 1, 1, &volume, BLOCK);
        let proxy = Proxy::to(first.address);
        let disk = disk(proxy.address, options()).await;
        disk.write(0, segments(&pattern(8192, 1)), false).await.unwrap();
        drop(first);
        proxy.cut();
        let read = tokio::time::timeout(Duration::from_millis(200), disk.read(0, buf(8192)));
        assert!(read.await.is_err(), "it waits");
        let second = Target::start(1, 64);
        offer(&second, 1, 1, &volume, BLOCK);
        proxy.lead_to(second.address);
        assert!(*disk.read(0, buf(8192)).await.unwrap() == pattern(8192, 1)[..]);
    });
}

#[test]
fn another_namespace_under_the_same_number_is_never_written_to() {
    on_tokio(async {
        let (mine, other) = (Volume::new(MIB), Volume::new(MIB));
        let target = Target::start(1, 64);
        offer(&target, 1, 1, &mine, BLOCK);
        let proxy = Proxy::to(target.address);
        let disk = disk(proxy.address, options()).await;
        disk.write(0, segments(&pattern(4096, 1)), false).await.unwrap();

        let exchanged = Target::start(1, 64);
        offer(&exchanged, 1, 2, &other, BLOCK);
        proxy.lead_to(exchanged.address);
        proxy.cut();
        let write = tokio::task::spawn_local({
            let disk = disk.clone();
            async move { disk.write(0, segments(&pattern(4096, 2)), false).await }
        });
        let said = || disk.paths()[0].last_error.clone().unwrap_or_default();
        eventually("it is noticed", || said().contains("is another one now: its UUID was 0101")).await;
        assert!(!write.is_finished(), "there is nowhere to write it");
        write.abort();
        assert!(write.await.is_err());
        assert!(Block::read(&other, 0, buf(MIB as usize)).await.unwrap().iter().all(|byte| *byte == 0));

        proxy.lead_to(target.address);
        assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(4096, 1)[..]);
        disk.write(0, segments(&pattern(4096, 3)), false).await.unwrap();
        assert!(*Block::read(&mine, 0, buf(4096)).await.unwrap() == pattern(4096, 3)[..]);
    });
}

#[test]
fn a_namespace_with_other_blocks_is_another_one() {
    on_tokio(async {
        let volume = Volume::new(MIB);
        let target = Target::start(1, 64);
        offer(&target, 1, 1, &volume, 4096);
        let proxy = Proxy::to(target.address);
        let disk = disk(proxy.address, options()).await;
        let exchanged = Target::start(1, 64);
        offer(&exchanged, 1, 1, &volume, 512);
        proxy.lead_to(exchanged.address);
        proxy.cut();
        let said = || disk.paths()[0].last_error.clone().unwrap_or_default();
        eventually("it is noticed", || said().contains("its blocks had 4096 bytes, and have 512")).await;
    });
}

#[test]
fn a_namespace_that_is_not_back_in_time_is_gone() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let proxy = Proxy::to(target.address);
        let limit = Duration::from_millis(400);
        let disk = disk(proxy.address, Options { loss_timeout: Some(limit), ..options() }).await;
        proxy.refuse(true);
        proxy.cut();
        let start = Instant::now();
        assert!(matches!(disk.read(0, buf(4096)).await, Err(IoError::Gone(_))));
        let took = start.elapsed();
        assert!(took >= limit / 2 && took < PATIENCE / 2, "{took:?}");
        eventually("the path is lost", || disk.paths()[0].state == PathState::Lost).await;
        assert_eq!(Drive::write(&disk, 0, segments(&[0; 4096]), false).await, Err(DriveError::Gone));
    });
}

#[test]
fn a_silent_target_is_given_up_and_connected_again() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let proxy = Proxy::to(target.address);
        let disk = disk(proxy.address, options()).await;
        disk.write(0, segments(&pattern(4096, 1)), false).await.unwrap();
        // No bytes go through, and no side closes the connection.
        proxy.stall(true);
        eventually("nobody answers Keep Alive", || disk.paths()[0].state == PathState::Connecting).await;
        let said = disk.paths()[0].last_error.clone().unwrap();
        assert!(said.contains("Keep Alive was not answered"), "{said}");
        proxy.stall(false);
        assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(4096, 1)[..]);
    });
}

#[test]
fn an_idle_connection_is_kept_alive() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let disk = disk(target.address, options()).await;
        // Without Keep Alive the controller would end after a second.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        disk.read(0, buf(4096)).await.unwrap();
        assert_eq!(connects(&disk), 1);
    });
}

#[test]
fn a_write_of_a_silent_connection_is_sent_again_only_when_the_controller_has_ended() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(MIB);
        let proxy = Proxy::to(target.address);
        let limit = Duration::from_millis(200);
        let keep_alive = Duration::from_secs(2);
        let disk = disk(proxy.address, Options { command_timeout: limit, keep_alive, ..options() }).await;
        // The target has received the write and does not answer it.
        volume.hold();
        let written = Rc::new(Cell::new(None));
        let start = Instant::now();
        let tasks = tokio::task::LocalSet::new();
        let (writer, done) = (disk.clone(), written.clone());
        tasks.spawn_local(async move {
            writer.write(0, segments(&pattern(4096, 1)), false).await.unwrap();
            done.set(Some(start.elapsed()));
        });
        let test = async {
            eventually("the command is late", || connects(&disk) >= 2).await;
            let given_up = start.elapsed();
            volume.release();
            // Reads are harmless, and need not wait.
            disk.read(0, buf(4096)).await.unwrap();
            assert!(written.get().is_none(), "the write waits until the timer of the old controller has run out");
            eventually("it is written", || written.get().is_some()).await;
            let took = written.get().unwrap();
            assert!(took >= keep_alive && took > given_up, "{took:?}");
        };
        tasks.run_until(test).await;
        assert!(*Block::read(&volume, 0, buf(4096)).await.unwrap() == pattern(4096, 1)[..]);
    });
}

#[test]
fn a_namespace_that_grows_or_goes_and_returns_is_followed() {
    on_tokio(async {
        let volume = Volume::new(MIB);
        let target = Target::start(1, 64);
        offer(&target, 1, 1, &volume, BLOCK);
        let disk = disk(target.address, options()).await;
        assert_eq!(disk.size_bytes(), MIB);
        // The same namespace, with a larger volume behind it.
        let larger = Volume::new(2 * MIB);
        assert!(target.portal.remove(&crate::common::subsystem(), 1));
        eventually("it goes", || disk.paths()[0].state == PathState::Connecting).await;
        offer(&target, 1, 1, &larger, BLOCK);
        eventually("it returns", || disk.size_bytes() == 2 * MIB).await;
        disk.write(MIB, segments(&pattern(4096, 1)), false).await.unwrap();
        assert!(*Block::read(&larger, MIB, buf(4096)).await.unwrap() == pattern(4096, 1)[..]);
    });
}

#[test]
fn a_namespace_that_was_connected_once_is_attached_elsewhere_and_waits_for_its_target() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(SIZE);
        let proxy = Proxy::to(target.address);
        let first = disk(proxy.address, Options { loss_timeout: Some(Duration::from_millis(500)), ..options() }).await;
        let known = first.known().clone();
        assert_eq!(known.identity(), Disk::attach(&TokioNetwork::new(), &known).known().identity());
        first.close().await;

        proxy.refuse(true);
        let second = Disk::attach(&TokioNetwork::new(), &known);
        let early = Instant::now();
        let error = Drive::read(&second, 0, buf(4096)).await.unwrap_err();
        assert_eq!(error, DriveError::Gone, "nobody is there");
        assert!(early.elapsed() >= Duration::from_millis(400), "it was waited for");
        proxy.refuse(false);
        eventually("connected", || connects(&second) == 1).await;
        Drive::write(&second, 8192, segments(&pattern(4096, 3)), false).await.unwrap();
        let third = Disk::attach(&TokioNetwork::new(), &known);
        eventually("connected", || connects(&third) == 1).await;
        assert!(*Drive::read(&third, 8192, buf(4096)).await.unwrap() == pattern(4096, 3)[..]);

        // Another namespace at the same address is not accepted.
        let other = Target::start(1, 1024);
        offer(&other, 1, 77, &Volume::new(SIZE), BLOCK);
        proxy.lead_to(other.address);
        proxy.cut();
        assert_eq!(Drive::read(&third, 8192, buf(4096)).await.unwrap_err(), DriveError::Gone);
    });
}

#[test]
fn a_drive_that_is_closed_executes_nothing_any_more() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(SIZE);
        let proxy = Proxy::to(target.address);
        let one = disk(proxy.address, options()).await;
        volume.hold();
        let write = tokio::task::spawn_local({
            let one = one.clone();
            async move { one.write(0, segments(&pattern(4096, 1)), false).await }
        });
        eventually("the write is there", || volume.in_flight() == 1).await;
        // The path is silent from here on: whether the target still executes the write is unknown
        // until its keep alive timer has run out.
        proxy.stall(true);
        let began = Instant::now();
        one.close().await;
        assert!(began.elapsed() >= options().keep_alive, "{:?}", began.elapsed());
        assert!(matches!(write.await.unwrap(), Err(IoError::Gone(_))));
        volume.release();
    });
}

#[test]
fn what_is_answered_to_a_drive_survives_a_target_that_loses_its_cache() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(SIZE);
        let one = disk(target.address, options()).await;
        assert!(one.known().about().has_write_cache);
        Drive::write(&one, 0, segments(&pattern(64 << 10, 1)), false).await.unwrap();
        Drive::write_zeroes(&one, 1 << 20, 1 << 20).await.unwrap();
        assert_eq!(volume.ram.durable_writes(), 2, "each of them");
        one.write(0, segments(&pattern(4096, 1)), false).await.unwrap();
        assert_eq!(volume.ram.durable_writes(), 2, "a client flushes itself");
    });
}
