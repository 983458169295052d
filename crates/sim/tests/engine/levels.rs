//! Every level, with every set of members lost that it survives, serves the bytes that were written.

use drive::{Buf, BufMut};
use sim::Sim;

use crate::group::*;

#[test]
fn every_level_reads_back_what_was_written_with_any_survivable_members_lost() {
    let mut cases = 0;
    for (number, shape) in every_level(8 * KIB).into_iter().enumerate() {
        let members = usize::from(shape.members);
        for (case, lost) in subsets(members, shape.survives()).into_iter().enumerate() {
            let seed = (number * 1000 + case) as u64;
            let sim = Sim::new(seed);
            let sector = if seed.is_multiple_of(2) { 512 } else { 4096 };
            let drives = new_drives(&sim, members, 512 * KIB, sector);
            let group = Group::create(&sim, shape, drives, 1 + case % 3);
            let mut model = Model::new(group.size());
            let mut rng = sim.rng();
            sim.block_on(async {
                work(&group, &mut model, &mut rng, 20, 6).await;
                for &index in &lost {
                    // In the middle of work, or between requests.
                    if rng.chance(1, 2) {
                        group.drives[index].fail_after(rng.below(20));
                    } else {
                        group.drives[index].fail();
                    }
                }
                work(&group, &mut model, &mut rng, 20, 6).await;
                verify(&group, &model, &mut rng).await;
            });
            cases += 1;
        }
    }
    println!("{cases} combinations of level and lost members");
    assert_eq!(cases, 338, "every set of up to m members of every level");
}

#[test]
fn one_seed_replays_a_run_exactly() {
    let run = |seed: u64| {
        let sim = Sim::new(seed);
        let shape = every_level(8 * KIB)[8];
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
                let (start, len) = any_range(&mut rng, size, geometry.stripe_data(), geometry.unit);
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
            assert_eq!(used, array.shared().map.allocated() * geometry.zone * geometry.data as u64);
        });
    }
}
