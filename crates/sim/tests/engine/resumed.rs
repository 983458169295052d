//! A rebuild that a restart interrupted does the rest of its work, and no more than that.

use std::time::Duration;

use array::MemberIndex;
use drive::{Buf, Env};
use format::{Level, MemberState, Shape};
use sim::{Latency, OpKind, Phase, Sim, SimDrive, TraceEntry};

use crate::group::*;
use crate::rebuild::{until_in_sync, verify_with_others_lost};

const DRIVE_BYTES: u64 = 1536 * KIB;

/// Shapes of each kind: with one and several sets, with stripe groups of one strip and of many.
fn shapes() -> Vec<Shape> {
    vec![
        shape(Level::Raid1, 2, 64 * KIB),
        shape(Level::Raid1, 3, 16 * KIB),
        shape(Level::Raid10, 4, 4 * KIB),
        shape(Level::Raid5, 4, 16 * KIB),
        shape(Level::Raid6, 5, 4 * KIB),
        shape(Level::Raid7, 6, 8 * KIB),
        valid(Shape::of(Level::Nm, 7).parity(4), 64 * KIB),
        shape(Level::Raid50, 6, 64 * KIB),
    ]
}

/// The writes to a drive between two of its bytes, in order of address.
fn written(trace: &[TraceEntry], drive_index: u32, from: u64, to: u64) -> Vec<(u64, u64)> {
    let is_it = |entry: &&TraceEntry| {
        (entry.drive_index, entry.phase, entry.kind) == (drive_index, Phase::Done, OpKind::Write)
            && entry.offset + entry.len > from
            && entry.offset < to
    };
    let mut ranges: Vec<(u64, u64)> =
        trace.iter().filter(is_it).map(|entry| (entry.offset, entry.offset + entry.len)).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn a_rebuild_that_was_interrupted_writes_everything_above_its_checkpoint_once_and_nothing_below() {
    let mut resumed = [0; 2];
    for seed in seeds(80) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes());
        let members = usize::from(shape.members);
        let drives = new_drives(&sim, members, DRIVE_BYTES, 512);
        let mut group = Group::create(&sim, shape, drives, 1 + rng.index(3));
        let mut model = Model::new(group.size());
        rng.fill(&mut model.bytes);
        let filled = SimDrive::new(&sim.env(), "filled", DRIVE_BYTES, 512);
        let id = group.install(filled.clone());
        let lost = rng.index(members);
        let seconds = rng.range(12..30);
        sim.block_on(async {
            let leader = group.leader();
            // Every allocation chunk is allocated, so all of the new drive is to be written.
            leader.write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
            leader.flush().await.expect("flushes");
            leader.fail_member(MemberIndex(lost as u16)).await.expect("one may be lost");
            leader.replace(MemberIndex(lost as u16), id, uuid(&mut rng)).await.expect("the drive fits");
            filled.set_latency(Latency::between(1_000_000_000, 4_000_000_000));
            group.env.sleep(Duration::from_secs(seconds)).await;
            filled.set_latency(Latency::USUAL);
        });
        let geometry = group.leader().shared().geometry.clone();
        let is_cut = rng.chance(1, 2);
        let mut drives = if is_cut { group.cut(&sim) } else { sim.block_on(group.stop()) };
        drives.remove(lost);
        let found = look(&sim, &drives).expect("enough members are there");
        if found.superblock.members[lost].state != MemberState::Rebuilding {
            continue; // It was done already.
        }
        let next_chunk = found.superblock.rebuild.map_or(0, |rebuild| rebuild.next_chunk);
        let data_end = geometry.data_start + geometry.bands * geometry.stripe_group_bytes;
        let checkpoint = geometry.data_start
            + next_chunk / (geometry.chunks_per_stripe_group() * geometry.sets) * geometry.stripe_group_bytes;
        assert!(checkpoint < data_end, "seed {seed}: there is something left to do");
        resumed[usize::from(is_cut)] += u64::from(next_chunk > 0);

        sim.trace_start();
        let group = Group::open(&sim, drives, 1 + rng.index(3));
        sim.block_on(async {
            until_in_sync(&group).await;
            group.jobs_end().await;
        });
        let trace = sim.trace_take();
        let below = written(&trace, filled.index(), geometry.data_start, checkpoint);
        assert_eq!(below, [], "seed {seed}, {shape}: written again below the checkpoint at byte {checkpoint}");
        let mut end = checkpoint;
        for (from, to) in written(&trace, filled.index(), checkpoint, data_end) {
            assert_eq!(from, end, "seed {seed}, {shape}: above the checkpoint each byte is written once");
            end = to;
        }
        assert_eq!(end, data_end, "seed {seed}, {shape}: everything above the checkpoint is written");
        sim.block_on(verify_with_others_lost(&group, &model, &mut rng, &[lost]));
    }
    if seeds(80).end > 30 {
        let all = resumed.iter().all(|&count| count > 5);
        assert!(all, "only {resumed:?} rebuilds went on in the middle after a stop and a power cut: the test is blind");
    }
}

#[test]
fn nothing_is_written_after_a_stop_that_came_while_a_member_was_filled_or_a_scrub_ran() {
    // Regression: a rebuild that had written its last stripe group went on to the end after the
    // group was stopped, and marked the member in sync in the superblocks while the next assembly
    // was reading them.
    let mut interrupted = 0;
    for seed in seeds(200) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&shapes());
        let members = usize::from(shape.members);
        let mut group = Group::create(&sim, shape, new_drives(&sim, members, 512 * KIB, 512), 1 + rng.index(3));
        let id = group.install(SimDrive::new(&sim.env(), "filled", 512 * KIB, 512));
        let drives = sim.block_on(async {
            let leader = group.leader();
            leader.write(0, Buf::from(vec![7; group.size() as usize]), false).await.expect("writable");
            leader.flush().await.expect("flushes");
            if rng.chance(1, 2) {
                leader.fail_member(MemberIndex(0)).await.expect("one may be lost");
                leader.replace(MemberIndex(0), id, uuid(&mut rng)).await.expect("the drive fits");
            } else {
                assert!(leader.start_scrub(array::ScrubMode::Repair), "no scrub is under way");
            }
            let longest = *rng.pick(&[500_000, 5_000_000, 30_000_000]);
            group.env.sleep(Duration::from_nanos(rng.below(longest))).await;
            interrupted += u64::from(leader.status().jobs.iter().any(|job| job.ended.is_none()));
            group.stop().await
        });
        sim.trace_start();
        sim.run_for(Duration::from_secs(100));
        let changes = sim.trace_take().into_iter().filter(|entry| entry.kind != OpKind::Read);
        let changes: Vec<String> = changes.map(|entry| entry.to_string()).collect();
        assert_eq!(changes, [""; 0], "seed {seed}, {shape}");
        assert_eq!(drives.len(), members + 1);
    }
    assert!(interrupted > 0, "the test is blind");
}
