//! Every level, with every set of lost members that it survives, serves the data that was written.

use drive::{Buf, BufMut};
use format::{Level, Shape};
use sim::Sim;

use crate::group::*;

/// Works, loses the members in `lost`, works on, and reads everything.
fn work_with_losses(shape: Shape, lost: &[usize], seed: u64, (rounds, bytes): (usize, u64)) {
    let sim = Sim::new(seed);
    let sector = if seed.is_multiple_of(2) { 512 } else { 4096 };
    let drives = new_drives(&sim, usize::from(shape.members), bytes, sector);
    let group = Group::create(&sim, shape, drives, 1 + seed as usize % 3);
    let mut model = Model::new(group.size());
    let mut rng = sim.rng();
    sim.block_on(async {
        work(&group, &mut model, &mut rng, rounds, 6).await;
        for &index in lost {
            // In the middle of work, or between requests.
            if rng.chance(1, 2) {
                group.drives[index].fail_after(rng.below(20));
            } else {
                group.drives[index].fail();
            }
        }
        work(&group, &mut model, &mut rng, rounds, 6).await;
        verify(&group, &model, &mut rng).await;
    });
}

#[test]
fn every_level_reads_back_what_was_written_with_any_survivable_members_lost() {
    // A group of several sets loses as many members in each set at once as it survives.
    let mut cases = 0;
    for (number, shape) in every_level(8 * KIB).into_iter().enumerate() {
        let all = lost_sets(&shape, shape.survives());
        // Two data strips and eight parity strips can lose a thousand sets of members. Each of
        // those gets less work.
        let much = if all.len() > 100 { (4, 384 * KIB) } else { (20, 512 * KIB) };
        for (case, lost) in all.into_iter().enumerate() {
            work_with_losses(shape, &lost, (number * 10_000 + case) as u64, much);
            cases += 1;
        }
    }
    println!("{cases} combinations of level and lost members");
    assert_eq!(cases, 1707, "every set of up to m members of each set of every level");
}

#[test]
fn with_five_to_seven_parity_strips_any_that_many_members_may_be_lost() {
    // Four and eight, the level's limits, are tested above with all sets. Here only the largest
    // sets are.
    let mut cases = 0;
    for parity in 5..=7u8 {
        let shape = valid(Shape::of(Level::Nm, u16::from(parity) + 2).parity(parity), 8 * KIB);
        let all = lost_sets(&shape, shape.survives()).into_iter().filter(|lost| lost.len() == shape.survives());
        for (case, lost) in all.enumerate() {
            work_with_losses(shape, &lost, (usize::from(parity) * 1000 + case) as u64, (10, 384 * KIB));
            cases += 1;
        }
    }
    assert_eq!(cases, 21 + 28 + 36);
}

#[test]
fn one_seed_replays_a_run_exactly() {
    let run = |seed: u64| {
        let sim = Sim::new(seed);
        let shape = shape(Level::Raid6, 6, 8 * KIB);
        let drives = new_drives(&sim, 6, 512 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 2);
        let mut model = Model::new(group.size());
        let mut rng = sim.rng();
        sim.block_on(work(&group, &mut model, &mut rng, 30, 8));
        sim.fingerprint()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn unwritten_and_discarded_space_reads_as_zeroes() {
    for shape in every_level(4 * KIB) {
        let sim = Sim::new(1);
        let drives = new_drives(&sim, usize::from(shape.members), 512 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1);
        sim.block_on(async {
            let array = group.leader();
            let size = group.size();
            let zero = |read: &[u8]| read.iter().all(|&byte| byte == 0);
            assert!(zero(&array.read(0, BufMut::zeroed(size as usize)).await.expect("readable")), "{shape:?}");
            array.write(0, Buf::from(vec![0xAB; size as usize]), false).await.expect("writable");
            array.discard(0, size).await.expect("discards");
            assert!(zero(&array.read(0, BufMut::zeroed(size as usize)).await.expect("readable")), "{shape:?}");
            assert_eq!(array.shared().map.allocated(), 0, "{shape:?}: all space came back");
        });
    }
}

#[test]
fn more_members_lost_than_the_level_survives_is_an_error_and_not_other_bytes() {
    for shape in every_level(8 * KIB) {
        let sim = Sim::new(3);
        let members = usize::from(shape.members);
        let drives = new_drives(&sim, members, 512 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1);
        sim.block_on(async {
            let array = group.leader();
            let size = group.size() as usize;
            array.write(0, Buf::from(vec![0xAB; size]), false).await.expect("writable");
            // The first members form the first set.
            for index in 0..=shape.survives() {
                group.drives[index].fail();
            }
            let read = array.read(0, BufMut::zeroed(size)).await;
            assert!(matches!(read, Err(drive::BlockError::Lost { .. })), "{shape:?}: {read:?}");
        });
    }
}

#[test]
fn extents_cover_a_range_and_show_every_written_byte_as_allocated() {
    for (seed, shape) in every_level(4 * KIB).into_iter().enumerate() {
        let sim = Sim::new(seed as u64);
        let drives = new_drives(&sim, usize::from(shape.members), 1024 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1);
        let mut rng = sim.rng();
        sim.block_on(async {
            let (array, size) = (group.leader(), group.size());
            let geometry = array.shared().geometry.clone();
            let mut written = vec![false; size as usize];
            for _ in 0..6 {
                let offset = rng.below(size - 5000);
                array.write(offset, Buf::from(vec![1; 5000]), false).await.expect("writable");
                written[offset as usize..offset as usize + 5000].fill(true);
                let (start, len) = any_range(&mut rng, size, geometry.stripe_data_bytes(), geometry.stripe_group_bytes);
                let mut at = start;
                while at < start + len {
                    let extents = array.extents(at, start + len - at).expect("in range");
                    assert!(
                        !extents.is_empty() && extents.windows(2).all(|pair| pair[0].allocated != pair[1].allocated)
                    );
                    for extent in extents {
                        let bytes = &written[at as usize..(at + extent.len) as usize];
                        assert!(
                            extent.allocated || !bytes.contains(&true),
                            "{shape:?}: {at}+{} is no hole",
                            extent.len
                        );
                        at += extent.len;
                    }
                }
                assert_eq!(at, start + len);
            }
            let used = array.used_bytes(0, size).await;
            assert_eq!(used, array.shared().map.allocated() * geometry.chunk_bytes * geometry.data as u64);
        });
    }
}
