//! Frames of the intent log survive what the group survives, and are kept until they are
//! reclaimed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use array::{Array, IntentLog, MemberIndex};
use drive::{BlockError, Buf, Env};
use format::{Level, MemberState, Shape};
use sim::{Rng, Sim, SimDrive, SimEnv};

use crate::group::*;
use crate::rebuild::until_in_sync;

const GENERATION: u64 = 7;

/// The random bytes that a frame holds.
#[derive(Debug, Clone)]
struct Content {
    meta: Vec<u8>,
    payload: Vec<Buf>,
}

impl Content {
    fn draw(rng: &mut Rng, log: &IntentLog<SimEnv>) -> Content {
        let mut meta = vec![0; rng.index(300)];
        rng.fill(&mut meta);
        let room = (log.body_bytes_max() - 4096) / 4096;
        let block = |rng: &mut Rng| {
            let mut bytes = vec![0; 4096];
            rng.fill(&mut bytes);
            Buf::from(bytes)
        };
        let payload = (0..rng.index(room.min(3) + 1)).map(|_| block(rng)).collect();
        Content { meta, payload }
    }

    /// Whether a body is this content.
    fn is(&self, body: &[u8]) -> bool {
        let payload: Vec<u8> = self.payload.iter().flat_map(|part| part.iter().copied()).collect();
        body.starts_with(&self.meta) && body.ends_with(&payload) && body.len() >= self.meta.len() + payload.len()
    }

    async fn append(&self, log: &Rc<IntentLog<SimEnv>>, fua: bool) -> u64 {
        log.append(self.meta.clone(), self.payload.clone(), fua).await.expect("the group is well")
    }
}

async fn open(array: &Array<SimEnv>, leader: &Array<SimEnv>) -> Rc<IntentLog<SimEnv>> {
    assert_eq!(leader.add_intent_log().await, Ok(true));
    array.intent_log(GENERATION, (0, 1), 1).expect("there is room")
}

/// All frames that are found, by sequence, with their bodies.
async fn found(array: &Array<SimEnv>) -> BTreeMap<u64, Vec<u8>> {
    let mut bodies = BTreeMap::new();
    for frame in array.intent_frames(GENERATION).await.expect("enough logs can be read") {
        bodies.insert(frame.sequence, array.intent_body(GENERATION, &frame).await.expect("readable"));
    }
    bodies
}

fn group(sim: &Sim, rng: &mut Rng, shape: Shape) -> Group {
    let drives = new_drives(sim, usize::from(shape.members), 2 * MIB, 512);
    Group::create(sim, shape, drives, 1 + rng.index(3))
}

/// Loses as many members of each set as the level survives, except one `spare` of them.
fn lose_members(group_of: &Shape, drives: Vec<SimDrive>, rng: &mut Rng) -> Vec<SimDrive> {
    let n = group_of.members_per_set();
    let mut left = Vec::new();
    for set in drives.chunks(n) {
        let mut set = set.to_vec();
        for _ in 0..group_of.survives() {
            let lost = rng.index(set.len());
            set.remove(lost);
        }
        left.extend(set);
    }
    left
}

#[test]
fn frames_survive_power_cuts_and_kills_with_as_many_members_lost_as_the_level_survives() {
    for seed in seeds(160) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = *rng.pick(&every_level(4 * KIB));
        let group = group(&sim, &mut rng, shape);
        let array = rng.pick(&group.shards).clone();
        let log = sim.block_on(open(&array, group.leader()));
        let mut durable: BTreeMap<u64, Content> = BTreeMap::new();
        let mut written: BTreeMap<u64, Content> = BTreeMap::new();
        sim.block_on(async {
            for _ in 0..rng.index(12) + 1 {
                let content = Content::draw(&mut rng, &log);
                let fua = rng.chance(1, 3);
                if log.is_filling() {
                    log.reclaim(log.next());
                    (durable, written) = Default::default();
                }
                let sequence = content.append(&log, fua).await;
                written.insert(sequence, content.clone());
                if fua {
                    durable.insert(sequence, content);
                }
                if rng.chance(1, 4) {
                    log.flush().await.expect("flushes");
                    durable.clone_from(&written);
                }
            }
        });
        let is_kill = rng.chance(1, 3);
        let drives = if is_kill { group.kill(&sim) } else { group.cut(&sim) };
        let shards = 1 + rng.index(3);
        let group = Group::open(&sim, lose_members(&shape, drives, &mut rng), shards);
        let found = sim.block_on(found(group.leader()));
        for (sequence, content) in if is_kill { &written } else { &durable } {
            let body = found.get(sequence).unwrap_or_else(|| panic!("seed {seed}, {shape}: frame {sequence} is lost"));
            assert!(content.is(body), "seed {seed}, {shape}: frame {sequence}");
        }
        for (sequence, body) in &found {
            if let Some(content) = written.get(sequence) {
                assert!(content.is(body), "seed {seed}, {shape}: frame {sequence} has other content");
            }
        }
    }
}

#[test]
fn a_full_log_waits_until_frames_are_reclaimed() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let group = group(&sim, &mut rng, shape(Level::Raid6, 6, 4 * KIB));
    sim.block_on(async {
        let array = group.leader().clone();
        let log = open(&array, &array).await;
        let done = Rc::new(Cell::new(0));
        let (writer, counter) = (log.clone(), done.clone());
        group.env.spawn(async move {
            for _ in 0..100 {
                writer.append(vec![1; 100], vec![Buf::zeroes(4096)], false).await.expect("it waits");
                counter.set(counter.get() + 1);
            }
        });
        let mut waits = 0;
        while done.get() < 100 {
            let before = done.get();
            group.env.sleep(Duration::from_secs(1)).await;
            if done.get() == before {
                waits += 1;
                log.reclaim(log.next() - 1);
            }
        }
        assert!(waits > 3, "the log never was full");
    });
}

#[test]
fn a_frame_whose_holder_fails_has_its_copies_on_others() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shape = shape(Level::Raid6, 6, 4 * KIB);
        let group = group(&sim, &mut rng, shape);
        let log = sim.block_on(open(group.leader(), group.leader()));
        let content = Content::draw(&mut rng, &log);
        let dying = rng.index(3);
        let sequence = sim.block_on(async {
            group.drives[dying].fail_after(rng.below(3));
            let sequence = content.append(&log, true).await;
            group.env.sleep(Duration::from_millis(100)).await;
            sequence
        });
        let mut drives = group.cut(&sim);
        let rest: Vec<usize> = (0..6).filter(|&place| place != dying).collect();
        // The failed member is lost, and one more.
        let other = *rng.pick(&rest);
        let mut lost = [dying, other];
        lost.sort_unstable();
        lost.iter().rev().for_each(|&place| drop(drives.remove(place)));
        let group = Group::open(&sim, drives, 1);
        let found = sim.block_on(found(group.leader()));
        assert!(found.get(&sequence).is_some_and(|body| content.is(body)), "seed {seed}: lost {lost:?}");
    }
}

#[test]
fn a_drive_is_called_in_sync_only_after_the_intent_log_was_reclaimed() {
    for seed in seeds(30) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let mut group = group(&sim, &mut rng, shape(Level::Raid5, 4, 4 * KIB));
        let spare = SimDrive::new(&sim.env(), "spare", 2 * MIB, 512);
        let id = group.install(spare);
        sim.block_on(async {
            let array = group.leader().clone();
            let log = open(&array, &array).await;
            let content = Content::draw(&mut rng, &log);
            content.append(&log, false).await;
            group.drives[1].fail();
            array.write(0, Buf::from(vec![1; 64 << 10]), false).await.expect("degraded");
            array.replace(MemberIndex(1), id, uuid(&mut rng)).await.expect("it fits");
            group.env.sleep(Duration::from_secs(1)).await;
            assert_eq!(group.state(1), MemberState::Rebuilding, "nobody reclaims yet");
            let (reclaimed, of_hook) = (Rc::new(Cell::new(false)), log.clone());
            let by_hook = reclaimed.clone();
            array.before_in_sync(Rc::new(move || {
                let (log, reclaimed) = (of_hook.clone(), by_hook.clone());
                Box::pin(async move {
                    log.until_quiet().await;
                    log.reclaim(log.next());
                    reclaimed.set(true);
                    Ok(())
                })
            }));
            until_in_sync(&group).await;
            assert!(reclaimed.get());
            Content::draw(&mut rng, &log).append(&log, false).await;
        });
    }
}

#[test]
fn a_first_append_says_in_the_superblocks_that_the_group_is_written_to_and_without_whom() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let group = group(&sim, &mut rng, shape(Level::Raid5, 4, 4 * KIB));
    sim.block_on(open(group.leader(), group.leader()));
    let mut drives = sim.block_on(group.stop());
    let absent = drives.remove(2);
    let group = Group::open(&sim, drives, 1);
    sim.block_on(async {
        let log = open(group.leader(), group.leader()).await;
        Content::draw(&mut rng, &log).append(&log, true).await;
    });
    let mut drives = group.cut(&sim);
    drives.insert(2, absent);
    let found = look(&sim, &drives).expect("all members are there");
    assert!(!found.superblock.clean);
    assert_ne!(found.superblock.members[2].state, MemberState::InSync, "it lacks the frame");
}

#[test]
fn logs_that_cannot_be_read_are_no_empty_logs() {
    let sim = Sim::new(2);
    let mut rng = sim.rng();
    let group = group(&sim, &mut rng, shape(Level::Raid5, 4, 4 * KIB));
    sim.block_on(async {
        let log = open(group.leader(), group.leader()).await;
        let content = Content::draw(&mut rng, &log);
        let sequence = content.append(&log, true).await;
        let unreadable = |place: usize| group.drives[place].media_error(0..2 * MIB);
        unreadable(0);
        let bodies = found(group.leader()).await;
        assert!(bodies.get(&sequence).is_some_and(|body| content.is(body)));
        unreadable(1);
        let refused = group.leader().intent_frames(GENERATION).await;
        assert_eq!(refused.map(|frames| frames.len()), Err(BlockError::Lost { lost: 2, survives: 1 }));
    });
}
