//! Data is read back as it was written, with every kind of transfer that the protocol has.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{BLOCK, BOTH, MIB, Random, Target, Volume, buf, disk, offer, on_tokio, options, pattern, segments};
use drive::{Block, BlockError, Drive, DriveError};
use export::Hosts;
use initiator::{IoError, Options};
use nvme::tcp::Digests;

const SIZE: usize = 16 << 20;

/// Random requests of up to 3 MiB, compared with a model.
async fn agrees_with_a_model(target: &Target, options: Options, block: u64, steps: usize) {
    let disk = disk(target.address, options).await;
    let mut model = vec![0_u8; SIZE];
    let mut random = Random(0x5EED);
    for step in 0..steps {
        let len = (1 + random.below([1, 8, 40, 3 * MIB / block][step % 4])) * block;
        let offset = random.below(SIZE as u64 / block - len / block) * block;
        let range = offset as usize..(offset + len) as usize;
        match random.below(8) {
            0..=2 => {
                let data = pattern(len as usize, step);
                disk.write(offset, segments(&data), step % 3 == 0).await.unwrap();
                model[range].copy_from_slice(&data);
            }
            3..=4 => {
                let data = disk.read(offset, buf(len as usize)).await.unwrap();
                assert!(*data == model[range], "step {step}: {offset}+{len}");
            }
            5 => {
                disk.write_zeroes(offset, len, false, step % 2 == 0).await.unwrap();
                model[range].fill(0);
            }
            6 => {
                assert!(disk.info().deallocated_reads_zeroes);
                disk.deallocate(offset, len).await.unwrap();
                model[range].fill(0);
            }
            _ => {
                assert_eq!(disk.compare(offset, segments(&model[range.clone()])).await, Ok(()));
                let mut other = model[range].to_vec();
                other[len as usize - 1] ^= 1;
                assert_eq!(disk.compare(offset, segments(&other)).await, Err(IoError::Differs));
                disk.flush().await.unwrap();
            }
        }
    }
    assert!(*disk.read(0, buf(SIZE)).await.unwrap() == model[..]);
    disk.close().await;
}

#[test]
fn requests_of_any_length_agree_with_a_model() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(SIZE as u64);
        agrees_with_a_model(&target, options(), 4096, 250).await;
    });
}

#[test]
fn with_digests_requests_of_any_length_agree_with_a_model_as_well() {
    on_tokio(async {
        for digests in [BOTH, Digests { header: true, data: false }, Digests { header: false, data: true }] {
            let (target, _volume, _) = Target::disk(SIZE as u64);
            agrees_with_a_model(&target, Options { digests, ..options() }, 4096, 100).await;
        }
    });
}

#[test]
fn blocks_of_512_bytes_and_small_queues_do_as_well() {
    on_tokio(async {
        let target = Target::start(1, 64);
        offer(&target, 1, 1, &Volume::new(SIZE as u64), 512);
        agrees_with_a_model(&target, Options { queue_entries: 2, queues: 3, ..options() }, 512, 120).await;
    });
}

#[test]
fn many_requests_at_once_get_each_its_own_data() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(SIZE as u64);
        let disk = Rc::new(disk(target.address, Options { queues: 2, queue_entries: 8, ..options() }).await);
        let tasks = tokio::task::LocalSet::new();
        volume.hold();
        for slot in 0..256_usize {
            let disk = disk.clone();
            tasks.spawn_local(async move {
                let (offset, len) = (slot as u64 * 65_536, 4096 * (1 + slot % 16));
                disk.write(offset, segments(&pattern(len, slot)), false).await.unwrap();
                assert!(*disk.read(offset, buf(len)).await.unwrap() == pattern(len, slot)[..], "slot {slot}");
            });
        }
        let full = async {
            // Two queues of 8 entries have 7 commands in flight each.
            while volume.in_flight() < 14 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            volume.release();
        };
        tasks.run_until(full).await;
        tasks.await;
        assert_eq!(volume.in_flight_max(), 14);
    });
}

#[test]
fn a_request_that_nobody_waits_for_harms_no_other() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(SIZE as u64);
        let disk = disk(target.address, Options { queue_entries: 4, ..options() }).await;
        disk.write(0, segments(&pattern(MIB as usize, 1)), false).await.unwrap();
        volume.hold();
        for _ in 0..8 {
            let read = disk.read(0, buf(65_536));
            assert!(tokio::time::timeout(Duration::from_millis(20), read).await.is_err());
        }
        volume.release();
        for slot in 0..16_u64 {
            let data = disk.read(slot * 4096, buf(4096)).await.unwrap();
            assert!(*data == pattern(MIB as usize, 1)[slot as usize * 4096..][..4096]);
        }
    });
}

#[test]
fn errors_of_the_volume_arrive_as_what_they_are() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(MIB);
        let disk = disk(target.address, options()).await;
        volume.fail(Some(BlockError::Lost { lost: 2, survives: 1 }));
        let error = Drive::read(&disk, 8192, buf(4096)).await.unwrap_err();
        assert_eq!(error, DriveError::Media { offset: 8192, len: 4096 });
        volume.fail(Some(BlockError::NoSpace));
        assert_eq!(Drive::write(&disk, 0, segments(&[1; 4096]), false).await, Err(DriveError::NoSpace));
        volume.fail(None);
        assert_eq!(
            disk.read(1, buf(4096)).await.unwrap_err(),
            IoError::Misaligned { offset: 1, len: 4096, block: BLOCK }
        );
        let outside = IoError::OutOfRange { offset: MIB, len: 4096, size: MIB };
        assert_eq!(disk.read(MIB, buf(4096)).await.unwrap_err(), outside);
    });
}

#[test]
fn a_read_only_namespace_takes_no_writes() {
    on_tokio(async {
        let target = Target::start(1, 64);
        target.offer(1, Volume::new(MIB), Hosts::Any, true);
        let disk = disk(target.address, options()).await;
        assert!(disk.is_read_only());
        assert_eq!(disk.write(0, segments(&[1; 4096]), false).await, Err(IoError::ReadOnly));
        assert_eq!(Drive::discard(&disk, 0, 4096).await, Err(DriveError::ReadOnly));
    });
}

#[test]
fn a_namespace_is_a_drive() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(MIB);
        let disk = disk(target.address, options()).await;
        let info = Drive::info(&disk).clone();
        assert_eq!((info.size_bytes, info.sector_bytes, info.discards), (MIB, 4096, true));
        let nqn = crate::common::subsystem();
        assert_eq!(info.name, format!("nvme-tcp://{}/{nqn}?nsid=1", target.address));
        Drive::write(&disk, 4096, segments(&pattern(8192, 3)), true).await.unwrap();
        assert!(*Drive::read(&disk, 4096, buf(8192)).await.unwrap() == pattern(8192, 3)[..]);
        Drive::write_zeroes(&disk, 4096, 4096).await.unwrap();
        Drive::flush(&disk).await.unwrap();
        let on_volume = Block::read(&volume, 0, buf(12_288));
        let on_volume = on_volume.await.unwrap();
        assert!(on_volume[..8192].iter().all(|byte| *byte == 0) && on_volume[8192..] == pattern(8192, 3)[4096..]);
    });
}
