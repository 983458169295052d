//! Assembly identifies a set of drives from the drives alone.

use array::{AssembleError, CreateError, MemberIndex, NewGroup, Refusal, create, load};
use drive::{Buf, BufMut, Drive, DriveError};
use format::{
    BLOCK, CATALOGUE_SLOTS, Catalogue, CrashSafety, Layout, LayoutError, Level, Shape, SlotError, Superblock,
    SuperblockError, catalogue_slot_offset, superblock_offsets,
};
use sim::{OpKind, Rng, Sim, SimDrive, SimEnv};

use crate::group::*;

/// A group with some data, stopped in order.
fn stopped(sim: &Sim, shape: Shape, spares: usize, rng: &mut Rng) -> (Vec<SimDrive>, Model) {
    let count = usize::from(shape.members) + spares;
    let group = Group::create(sim, shape, new_drives(sim, count, 640 * KIB, 512), 1);
    let mut model = Model::new(group.size());
    sim.block_on(work(&group, &mut model, rng, 20, 4));
    (sim.block_on(group.stop()), model)
}

/// A drive with the content of another.
fn copy_of(sim: &Sim, drive: &SimDrive, name: &str) -> SimDrive {
    let info = drive.info();
    let copy = SimDrive::new(&sim.env(), name, info.size_bytes, info.sector_bytes);
    copy.write_raw(0, &drive.read_raw(0, info.size_bytes));
    copy
}

/// CRC-32C (Castagnoli), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        }
    }
    !crc
}

fn opens_with(sim: &Sim, drives: Vec<SimDrive>, model: &Model, rng: &mut Rng) {
    let group = Group::open(sim, drives, 1);
    sim.block_on(verify(&group, model, rng));
    sim.block_on(group.stop());
}

#[test]
fn neither_order_nor_name_matters_and_up_to_m_members_may_be_missing() {
    for shape in every_level(8 * KIB) {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let (drives, model) = stopped(&sim, shape, 0, &mut rng);
        let before: Vec<Superblock> = drives.iter().map(superblock).collect();
        for _ in 0..4 {
            let mut shuffled: Vec<SimDrive> =
                drives.iter().enumerate().map(|(index, drive)| copy_of(&sim, drive, &format!("x{index}"))).collect();
            rng.shuffle(&mut shuffled);
            opens_with(&sim, shuffled, &model, &mut rng);
        }
        verify_without_members(&sim, &drives, shape, &model, &mut rng, 10);
        let after: Vec<Superblock> = drives.iter().map(superblock).collect();
        assert_eq!(before, after, "{shape}: looking changes nothing");
    }
}

#[test]
fn too_few_members_are_refused_and_each_that_is_missing_is_named() {
    for shape in every_level(8 * KIB) {
        let sim = Sim::new(2);
        let mut rng = sim.rng();
        let (drives, _) = stopped(&sim, shape, 0, &mut rng);
        // These are members of the first set.
        let gone = shape.survives() + 1;
        let left = &drives[gone..];
        if left.is_empty() {
            assert!(matches!(look(&sim, left), Err(AssembleError::Nothing(_))));
            continue;
        }
        let Err(AssembleError::TooFew { missing, survives, why, .. }) = look(&sim, left) else {
            panic!("{shape}: {:?}", look(&sim, left))
        };
        assert_eq!((missing, survives), (gone, shape.survives()));
        for drive in &drives[..gone] {
            let own = superblock(drive);
            assert!(why.contains(&own.drive.to_string()), "{shape}: {why}");
        }
    }
}

#[test]
fn drives_of_two_arrays_and_copies_of_drives_are_refused() {
    let sim = Sim::new(3);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 4, 8 * KIB);
    let (one, _) = stopped(&sim, shape, 0, &mut rng);
    let (other, _) = stopped(&sim, shape, 0, &mut rng);
    let mixed = vec![one[0].clone(), one[1].clone(), other[2].clone(), other[3].clone()];
    let Err(AssembleError::SeveralArrays(which)) = look(&sim, &mixed) else { panic!("two arrays") };
    for drive in [&one[0], &other[2]] {
        assert!(which.contains(&superblock(drive).array.to_string()), "{which}");
    }
    let mut cloned = one.clone();
    cloned.push(copy_of(&sim, &one[2], "clone"));
    let Err(AssembleError::Duplicate { drive, other }) = look(&sim, &cloned) else { panic!("a clone") };
    assert!([&drive[..], &other[..]].contains(&"clone"));
}

#[test]
fn a_foreign_or_empty_drive_is_left_out_and_named() {
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 4, 8 * KIB);
    let (mut drives, model) = stopped(&sim, shape, 0, &mut rng);
    let empty = SimDrive::new(&sim.env(), "empty", 640 * KIB, 512);
    empty.write_raw(0, &vec![0; 640 * KIB as usize]);
    let ext4 = SimDrive::new(&sim.env(), "ext4", 640 * KIB, 512);
    ext4.write_raw(0, &vec![0; 640 * KIB as usize]);
    ext4.write_raw(1024 + 56, &[0x53, 0xEF]);
    let dead = SimDrive::new(&sim.env(), "dead", 640 * KIB, 512);
    dead.fail();
    drives.extend([empty, ext4, dead]);
    let assembly = look(&sim, &drives).expect("all members are there");
    assert_eq!(assembly.members, vec![Some(0), Some(1), Some(2), Some(3)]);
    let refusal = |index: usize| &assembly.refused.iter().find(|(refused, _)| *refused == index).expect("refused").1;
    assert_eq!(*refusal(4), Refusal::NotPurlin);
    assert!(matches!(refusal(5), Refusal::Foreign(_) | Refusal::NotPurlin), "{:?}", refusal(5));
    assert_eq!(*refusal(6), Refusal::Drive(DriveError::Gone));
    let members = drives[..4].to_vec();
    opens_with(&sim, members, &model, &mut rng);
    assert!(matches!(look(&sim, &drives[4..]), Err(AssembleError::Nothing(_))));
}

#[test]
fn head_or_tail_alone_are_enough_and_are_written_again() {
    for case in 0..6 {
        let sim = Sim::new(5);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid5, 3, 8 * KIB);
        let (drives, mut model) = stopped(&sim, shape, 0, &mut rng);
        for drive in &drives {
            let at = superblock_offsets(drive.info().size_bytes).unwrap()[case % 2];
            match case / 2 {
                0 => drive.write_raw(at, &vec![0; BLOCK]),
                1 => drive.corrupt(at, BLOCK as u64),
                _ => drive.media_error(at..at + BLOCK as u64),
            }
        }
        let group = Group::open(&sim, drives, 1);
        sim.block_on(verify(&group, &model, &mut rng));
        sim.block_on(work(&group, &mut model, &mut rng, 3, 4));
        let drives = sim.block_on(group.stop());
        for drive in &drives {
            let [head, tail] = superblock_offsets(drive.info().size_bytes).unwrap();
            assert_eq!(drive.read_raw(head, BLOCK as u64), drive.read_raw(tail, BLOCK as u64));
        }
        opens_with(&sim, drives, &model, &mut rng);
    }
}

#[test]
fn of_a_superblock_the_copy_that_is_torn_or_older_is_written_first() {
    // Regression (seed 4009511): a power cut tore the head's copy. The next power cut tore the
    // tail's copy, which was written first and was the only whole one: the member was refused. If
    // an older copy becomes the only one, the group goes back to an older state.
    const MEMBERS: usize = 16;
    let shape = shape(Level::Raid6, MEMBERS as u16, 8 * KIB);
    for (place, torn) in [(0, true), (0, false), (1, true), (1, false)] {
        for cut in 0..12 {
            let sim = Sim::new(cut);
            let group = Group::create(&sim, shape, new_drives(&sim, MEMBERS, 640 * KIB, 512), 1);
            let copy = |drive: &SimDrive| {
                let at = superblock_offsets(drive.info().size_bytes).unwrap()[place];
                (at, drive.read_raw(at, BLOCK as u64))
            };
            let old: Vec<(u64, Vec<u8>)> = group.drives.iter().map(copy).collect();
            let mut drives = sim.block_on(async {
                group.leader().write(0, vec![1; 4096].into(), true).await.expect("writable");
                group.stop().await
            });
            for (drive, (at, old)) in drives.iter().zip(&old) {
                if torn { drive.corrupt(*at, 512) } else { drive.write_raw(*at, old) }
            }
            // With a member lost, several sectors of the superblocks change. They change at the
            // first write.
            drives.pop();
            let before = look(&sim, &drives).expect("enough members are there");
            let group = Group::open(&sim, drives.clone(), 1);
            sim.stop_after(4 * cut);
            sim.try_block_on(async { group.leader().write(0, vec![2; 4096].into(), true).await });
            drop(group);
            sim.power_cut();
            let drives: Vec<SimDrive> = drives.iter().map(SimDrive::reopen).collect();
            let after = look(&sim, &drives).expect("enough members are there");
            assert_eq!((after.missing().count(), after.refused.len()), (1, 0), "cut after {} operations", 4 * cut);
            assert!(after.superblock.epoch >= before.superblock.epoch, "cut after {} operations", 4 * cut);
        }
    }
}

#[test]
fn a_catalogue_of_a_newer_program_is_not_taken_for_an_older_one_or_none() {
    for newer_slots in [1, CATALOGUE_SLOTS] {
        let sim = Sim::new(5);
        let shape = shape(Level::Raid5, 3, 8 * KIB);
        let group = Group::create(&sim, shape, new_drives(&sim, 3, 640 * KIB, 512), 1);
        let drives = sim.block_on(async {
            for next_id in 2..2 + CATALOGUE_SLOTS {
                let catalogue = Catalogue { next_id, ..Catalogue::default() };
                group.leader().set_catalogue(catalogue).await.expect("it fits");
            }
            group.stop().await
        });
        let layout = look(&sim, &drives).expect("the superblocks can be read").superblock.layout;
        // One member is enough: on the others, the write may have been cut off.
        for slot in 0..newer_slots {
            let at = catalogue_slot_offset(&layout, slot);
            let mut header = drives[1].read_raw(at, BLOCK as u64);
            header[8..12].copy_from_slice(&99_u32.to_le_bytes());
            header[12..16].fill(0);
            let checksum = crc32c(&header);
            header[12..16].copy_from_slice(&checksum.to_le_bytes());
            drives[1].write_raw(at, &header);
        }
        let assembly = look(&sim, &drives).expect("the superblocks can be read");
        let before: Vec<Vec<u8>> = drives.iter().map(|drive| drive.read_raw(0, drive.info().size_bytes)).collect();
        let (env, members) = (sim.env(), in_machine(&drives));
        let taken_over = sim.block_on(load(&env, &assembly, &members, None, Box::new(|_| ()))).map(drop);
        let Err(AssembleError::UnknownCatalogue(why)) = taken_over else { panic!("{newer_slots}: {taken_over:?}") };
        assert_eq!(why, SlotError::UnknownVersion { found: 99 });
        let after: Vec<Vec<u8>> = drives.iter().map(|drive| drive.read_raw(0, drive.info().size_bytes)).collect();
        assert!(before == after, "nothing was written");
    }
}

#[test]
fn a_medium_that_fails_near_the_superblock_does_not_cost_the_member() {
    let sim = Sim::new(5);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid5, 3, 8 * KIB);
    let (drives, model) = stopped(&sim, shape, 0, &mut rng);
    drives[0].media_error(8 * KIB..9 * KIB);
    drives[1].media_error(630 * KIB..631 * KIB);
    let assembly = look(&sim, &drives).expect("all members are there");
    assert_eq!((assembly.missing().count(), &assembly.refused[..]), (0, &[][..]));
    opens_with(&sim, drives, &model, &mut rng);
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let sim = Sim::new(6);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid5, 3, 8 * KIB);
    let (drives, _) = stopped(&sim, shape, 0, &mut rng);
    for drive in &drives[..2] {
        for offset in superblock_offsets(drive.info().size_bytes).unwrap() {
            let mut block = drive.read_raw(offset, BLOCK as u64);
            block[8..12].copy_from_slice(&99u32.to_le_bytes());
            block[12..16].fill(0);
            let checksum = crc32c(&block);
            block[12..16].copy_from_slice(&checksum.to_le_bytes());
            drive.write_raw(offset, &block);
        }
    }
    let Err(AssembleError::TooFew { why, .. }) = look(&sim, &drives) else { panic!("two are unknown") };
    let expected = SuperblockError::UnknownVersion { found: 99 }.to_string();
    assert!(why.contains(&expected), "{why}");
}

#[test]
fn a_member_that_left_is_stale_and_a_spare_is_known() {
    for seed in seeds(10) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid6, 5, 8 * KIB);
        let (drives, mut model) = stopped(&sim, shape, 1, &mut rng);
        let assembly = look(&sim, &drives).expect("all are there");
        assert_eq!(assembly.spares, vec![5]);
        // Without member 1, and without the spare.
        let left: Vec<SimDrive> = [0, 2, 3, 4].map(|index| drives[index].clone()).into();
        let group = Group::open(&sim, left, 1);
        sim.block_on(work(&group, &mut model, &mut rng, 5, 4));
        sim.block_on(group.stop());
        let assembly = look(&sim, &drives).expect("enough members");
        assert!(matches!(assembly.refused[..], [(1, Refusal::Stale { member: 1, .. })]), "{:?}", assembly.refused);
        assert_eq!(assembly.spares, vec![5]);
        let group = Group::open(&sim, drives, 1);
        sim.block_on(async {
            verify(&group, &model, &mut rng).await;
            group.leader().fail_member(MemberIndex(3)).await.expect("another may be lost");
            work(&group, &mut model, &mut rng, 5, 4).await;
            while group.state(3) != format::MemberState::InSync {
                drive::Env::sleep(&group.env, std::time::Duration::from_millis(10)).await;
            }
            verify(&group, &model, &mut rng).await;
        });
    }
}

#[test]
fn a_copy_of_a_member_from_an_earlier_time_is_refused() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&crate::rows::redundant_shapes(8 * KIB));
        let (drives, mut model) = stopped(&sim, shape, 0, &mut rng);
        let place = rng.index(drives.len());
        let earlier = copy_of(&sim, &drives[place], "earlier");
        let group = Group::open(&sim, drives, 1);
        sim.block_on(work(&group, &mut model, &mut rng, 5, 4));
        let mut drives = if seed % 2 == 0 {
            sim.block_on(group.stop())
        } else {
            sim.block_on(group.leader().flush()).expect("flushes");
            group.cut(&sim)
        };
        drives[place] = earlier;
        let mut drives: Vec<SimDrive> = drives.iter().map(SimDrive::revive).collect();
        let assembly = look(&sim, &drives).expect("one member may be lost");
        let [(index, Refusal::OlderCopy { member, epoch, held })] = assembly.refused[..] else {
            panic!("seed {seed}, {shape}: {:?}", assembly.refused)
        };
        assert_eq!((index, usize::from(member)), (place, place));
        assert!(epoch < held);
        drives.remove(place);
        let group = Group::open(&sim, drives, 1);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn a_copy_from_an_earlier_time_is_refused_if_there_is_no_redundancy() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let (drives, mut model) = stopped(&sim, shape(Level::Raid0, 3, 8 * KIB), 0, &mut rng);
    let earlier = copy_of(&sim, &drives[1], "earlier");
    let group = Group::open(&sim, drives, 1);
    sim.block_on(work(&group, &mut model, &mut rng, 5, 4));
    let mut drives = sim.block_on(group.stop());
    drives[1] = earlier;
    let Err(AssembleError::TooFew { why, .. }) = look(&sim, &drives) else { panic!("old data would be read") };
    assert!(why.contains("an older copy of member 1"), "{why}");
}

#[test]
fn a_spare_that_was_used_or_removed_is_no_longer_part_of_the_group() {
    let sim = Sim::new(8);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid6, 4, 8 * KIB);
    let (drives, _) = stopped(&sim, shape, 1, &mut rng);
    let group = Group::open(&sim, drives, 1);
    let spare = group.leader().status().spares[0];
    sim.block_on(group.leader().remove_spare(spare)).expect("it is one");
    let drives = sim.block_on(group.stop());
    let assembly = look(&sim, &drives).expect("all members are there");
    assert!(matches!(assembly.refused[..], [(4, Refusal::Unlisted { .. })]), "{:?}", assembly.refused);
}

#[test]
fn members_of_unequal_sizes_and_sectors_work_together() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes = every_level(*rng.clone().pick(&[4 * KIB, 32 * KIB, 128 * KIB]));
        let shape = *rng.pick(&shapes);
        let drives: Vec<SimDrive> = (0..usize::from(shape.members) + 1)
            .map(|index| {
                let bytes = 640 * KIB + rng.below(100) * 4096;
                SimDrive::new(&sim.env(), &format!("d{index}"), bytes, *rng.pick(&[512, 4096]))
            })
            .collect();
        let smallest = drives[..usize::from(shape.members)].iter().map(|drive| drive.info().size_bytes).min();
        let members = if drives.last().expect("a spare").info().size_bytes < smallest.expect("drives") {
            drives[..usize::from(shape.members)].to_vec()
        } else {
            drives
        };
        let has_spare = members.len() > usize::from(shape.members);
        let group = Group::create(&sim, shape, members, 2);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 15, 5).await;
            if shape.survives() > 0 {
                group.leader().fail_member(MemberIndex(0)).await.expect("one may be lost");
                work(&group, &mut model, &mut rng, 15, 5).await;
                while has_spare && !group.all_in_sync() {
                    drive::Env::sleep(&group.env, std::time::Duration::from_millis(10)).await;
                }
            }
            verify(&group, &model, &mut rng).await;
        });
        let drives = sim.block_on(group.stop());
        opens_with(&sim, drives, &model, &mut rng);
    }
}

#[test]
fn the_smallest_size_that_is_promised_works_and_one_byte_less_says_what_is_needed() {
    for shape in every_level(64 * KIB) {
        let sim = Sim::new(9);
        let Err(LayoutError::TooSmall { need, .. }) = Layout::plan(&shape, 0, shape.survives() > 0) else {
            panic!("{shape}")
        };
        let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), need, 512), 1);
        sim.block_on(async {
            let size = group.size() as usize;
            group.leader().write(0, Buf::from(vec![3; size]), true).await.expect("writable");
            let read = group.leader().read(0, BufMut::zeroed(size)).await.expect("readable");
            assert!(read.iter().all(|&byte| byte == 3));
            let beyond = group.leader().write(size as u64, Buf::from(vec![1]), false).await;
            assert!(matches!(beyond, Err(drive::BlockError::OutOfRange { .. })));
        });
        let mut rng = sim.rng();
        let mut drives = new_drives(&sim, usize::from(shape.members), need, 512);
        drives[0] = SimDrive::new(&sim.env(), "small", need - 512, 512);
        let new = NewGroup {
            array: uuid(&mut rng),
            crash_safety: CrashSafety::On,
            checksums: true,
            name: "tank".into(),
            shape,
            drives: drives.iter().map(|_| uuid(&mut rng)).collect(),
            created_unix_s: 1,
        };
        let Err(CreateError::Layout(LayoutError::TooSmall { need: needed, have })) =
            sim.block_on(create::<SimEnv>(&new, &in_machine(&drives)))
        else {
            panic!("{shape}")
        };
        assert_eq!((needed, have), (need, need - 512));
    }
}

#[test]
fn a_group_that_could_not_be_made_leaves_nothing_behind() {
    for bad in 0..4 {
        let sim = Sim::new(10);
        let mut rng = sim.rng();
        let drives = new_drives(&sim, 4, 640 * KIB, 512);
        for _ in 0..2 {
            drives[bad].error_next(OpKind::Write, DriveError::Media { offset: 0, len: 512 });
        }
        let new = NewGroup {
            array: uuid(&mut rng),
            crash_safety: CrashSafety::On,
            checksums: true,
            name: "tank".into(),
            shape: shape(Level::Raid6, 4, 8 * KIB),
            drives: drives.iter().map(|_| uuid(&mut rng)).collect(),
            created_unix_s: 1,
        };
        let Err(CreateError::Drive { drive, .. }) = sim.block_on(create::<SimEnv>(&new, &in_machine(&drives))) else {
            panic!()
        };
        assert_eq!(drive, format!("d{bad}"));
        assert!(matches!(look(&sim, &drives), Err(AssembleError::Nothing(_))));
    }
}

#[test]
fn a_truncated_member_is_refused_and_says_how_much_is_missing() {
    let sim = Sim::new(11);
    let mut rng = sim.rng();
    let shape = shape(Level::Raid5, 3, 8 * KIB);
    let (mut drives, model) = stopped(&sim, shape, 0, &mut rng);
    let short = SimDrive::new(&sim.env(), "short", 320 * KIB, 512);
    short.write_raw(0, &drives[1].read_raw(0, 320 * KIB));
    drives[1] = short;
    let assembly = look(&sim, &drives).expect("enough members");
    assert!(matches!(assembly.refused[..], [(1, Refusal::TooSmall { .. })]), "{:?}", assembly.refused);
    opens_with(&sim, drives, &model, &mut rng);
}

#[test]
fn two_halves_that_ran_apart_are_not_put_together() {
    for (shape, halves) in [
        (shape(Level::Raid1, 2, 64 * KIB), [vec![0], vec![1]]),
        (shape(Level::Raid6, 4, 8 * KIB), [vec![0, 2], vec![1, 3]]),
        (shape(Level::Raid10, 4, 8 * KIB), [vec![0, 2], vec![1, 3]]),
    ] {
        for seed in 0..8 {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let (mut drives, model) = stopped(&sim, shape, 0, &mut rng);
            for half in &halves {
                // One half often has more changes of its superblocks than the other.
                for _ in 0..rng.range(1..3) {
                    let group = Group::open(&sim, half.iter().map(|&index| drives[index].clone()).collect(), 1);
                    let mut model = Model { bytes: model.bytes.clone(), ..Model::new(0) };
                    sim.block_on(async {
                        group.leader().write(0, Buf::from(vec![half[0] as u8 + 1; 512]), true).await.expect("writable");
                        model.bytes[..512].fill(half[0] as u8 + 1);
                        verify(&group, &model, &mut rng).await;
                    });
                    if rng.chance(1, 2) {
                        sim.block_on(group.stop());
                    } else {
                        sim.power_cut();
                        drives = drives.iter().map(SimDrive::reopen).collect();
                    }
                }
            }
            let both = look(&sim, &drives);
            assert!(matches!(both, Err(AssembleError::Divided { .. })), "{shape}: {both:?}");
            for half in &halves {
                let group = Group::open(&sim, half.iter().map(|&index| drives[index].clone()).collect(), 1);
                let read = sim.block_on(group.leader().read(0, BufMut::zeroed(512))).expect("readable");
                assert!(read.iter().all(|&byte| byte == half[0] as u8 + 1), "{shape}");
                sim.block_on(group.stop());
            }
        }
    }
}
