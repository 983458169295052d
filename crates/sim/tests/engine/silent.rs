//! Members that take operations and never answer them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use array::{Event, MemberIndex};
use drive::{BlockError, Buf, BufMut, Env};
use format::{Catalogue, Level, MemberState, Shape};
use sim::{Latency, Rng, Sim, SimDrive};

use crate::group::*;

const SECOND: Duration = Duration::from_secs(1);

/// A group that was written all over.
fn filled(sim: &Sim, shape: Shape, rng: &mut Rng, shards: usize) -> (Group, Model) {
    let group = Group::create(sim, shape, new_drives(sim, usize::from(shape.members), 640 * KIB, 512), shards);
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(group.leader().write(0, Buf::from(model.bytes.clone()), false)).expect("writable");
    sim.block_on(group.leader().flush()).expect("flushes");
    (group, model)
}

fn raid6() -> Shape {
    shape(Level::Raid6, 6, 16 * KIB)
}

/// The requests, and how they were answered.
type Answers = Rc<RefCell<Vec<(&'static str, Result<(), BlockError>)>>>;

/// The request that the group gets while a member is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Write,
    WriteAll,
    WriteThrough,
    Discard,
    Flush,
    Catalogue,
    FailAnother,
    AddSpare,
    Stop,
}

const ASKS: [Ask; 9] = [
    Ask::Write,
    Ask::WriteAll,
    Ask::WriteThrough,
    Ask::Discard,
    Ask::Flush,
    Ask::Catalogue,
    Ask::FailAnother,
    Ask::AddSpare,
    Ask::Stop,
];

/// Makes the request, and notes when there is an answer.
fn ask(group: &mut Group, model: &mut Model, rng: &mut Rng, ask: Ask) -> Rc<Cell<bool>> {
    let answered = Rc::new(Cell::new(false));
    let (array, done) = (group.shards[group.shards.len() - 1].clone(), answered.clone());
    let leader = group.leader().clone();
    let size = group.size();
    let (at, len) = match ask {
        Ask::WriteAll | Ask::Discard => (0, size),
        _ => (rng.below(size / 4096) * 4096, 4096),
    };
    let mut bytes = vec![0; len as usize];
    if matches!(ask, Ask::Write | Ask::WriteAll | Ask::WriteThrough) {
        rng.fill(&mut bytes);
    }
    if matches!(ask, Ask::Write | Ask::WriteAll | Ask::WriteThrough | Ask::Discard) {
        model.bytes[at as usize..(at + len) as usize].copy_from_slice(&bytes);
    }
    let spare = (ask == Ask::AddSpare).then(|| {
        let drive = SimDrive::new(&group.env, "spare", 640 * KIB, 512);
        (group.install(drive), uuid(rng))
    });
    let shards = group.shards.clone();
    group.env.spawn(async move {
        match ask {
            Ask::Write | Ask::WriteAll => array.write(at, Buf::from(bytes), false).await.expect("writable"),
            Ask::WriteThrough => array.write(at, Buf::from(bytes), true).await.expect("writable"),
            Ask::Discard => array.discard(at, len).await.expect("discards"),
            Ask::Flush => array.flush().await.expect("flushes"),
            Ask::Catalogue => leader.set_catalogue(Catalogue::default()).await.expect("it fits"),
            Ask::FailAnother => leader.fail_member(MemberIndex(5)).await.expect("two may be lost"),
            Ask::AddSpare => {
                let (id, identity) = spare.expect("one was made");
                leader.add_spare(id, identity).await.expect("it fits");
            }
            Ask::Stop => {
                for shard in shards.iter().rev() {
                    shard.stop().await.expect("the group can be made durable");
                }
            }
        }
        done.set(true);
    });
    answered
}

#[test]
fn a_member_that_never_answers_holds_up_nothing_for_longer_than_the_time_limit() {
    for kind in ASKS {
        for seed in seeds(3) {
            let sim = Sim::new(seed);
            let mut rng = sim.rng();
            let (mut group, mut model) = filled(&sim, raid6(), &mut rng, 1 + seed as usize % 3);
            group.drives[2].hang(true);
            let answered = ask(&mut group, &mut model, &mut rng, kind);
            if kind == Ask::Discard {
                sim.run_for(SECOND);
                assert!(answered.get(), "nothing is asked of the drives at once");
                // The allocation map is made durable, which sends operations to the drives.
                let flushed = ask(&mut group, &mut model, &mut rng, Ask::Flush);
                sim.run_for(40 * SECOND);
                assert!(flushed.get(), "seed {seed}");
            }
            sim.run_for(40 * SECOND);
            let state = group.state(2);
            assert!(answered.get(), "{kind:?}, seed {seed}: no answer, member {state:?}");
            let touched = !matches!(kind, Ask::Write);
            // A spare may have taken the member's place by now.
            let stays = group.leader().shared().slot(MemberIndex(2)).drive == array::DriveId(2);
            assert!(!touched || !stays || state != MemberState::InSync, "{kind:?}, seed {seed}: {state:?}");
            if kind == Ask::Stop {
                continue;
            }
            sim.block_on(verify(&group, &model, &mut rng));
            let began = sim.now();
            sim.block_on(async {
                work(&group, &mut model, &mut rng, 5, 4).await;
                verify(&group, &model, &mut rng).await;
            });
            let limit = if touched { SECOND } else { 40 * SECOND };
            assert!(sim.now() - began < limit.as_nanos() as u64, "{kind:?}, seed {seed}: nobody waits again");
        }
    }
}

#[test]
fn without_a_time_limit_a_member_that_never_answers_holds_up_all_but_reads() {
    for kind in ASKS.into_iter().filter(|kind| !matches!(kind, Ask::Write | Ask::Discard)) {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let (mut group, mut model) = filled(&sim, raid6(), &mut rng, 2);
        group.leader().set_time_limit(u64::MAX);
        group.drives[2].hang(true);
        let answered = ask(&mut group, &mut model, &mut rng, kind);
        sim.run_for(1000 * SECOND);
        assert!(!answered.get(), "{kind:?}");
    }
}

/// Reads every block of the group, each by a task of its own. Returns the number of answers so far,
/// and how many blocks are on other members than `member`.
fn read_all(group: &Group, model: &Model, member: u16) -> (Rc<Cell<u64>>, u64, u64) {
    let geometry = group.leader().shared().geometry.clone();
    let answered = Rc::new(Cell::new(0));
    let (mut free, mut all) = (0, 0);
    for block in 0..group.size() / 4096 {
        let place = geometry.place(block * 4096);
        free += u64::from(geometry.member(place.stripe_group, place.offset, place.role) != MemberIndex(member));
        all += 1;
        let (array, answered) = (group.shards[block as usize % group.shards.len()].clone(), answered.clone());
        let expected = model.bytes[block as usize * 4096..][..4096].to_vec();
        group.env.spawn(async move {
            let read = array.read(block * 4096, BufMut::zeroed(4096)).await.expect("readable");
            same(&read, &expected, block * 4096);
            answered.set(answered.get() + 1);
        });
    }
    (answered, free, all)
}

#[test]
fn a_member_that_never_answers_holds_up_no_read() {
    for shape in every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0) {
        let sim = Sim::new(1);
        let mut rng = sim.rng();
        let (group, model) = filled(&sim, shape, &mut rng, 2);
        group.drives[1].hang(true);
        let (answered, _, all) = read_all(&group, &model, 1);
        sim.run_for(SECOND);
        assert_eq!(answered.get(), all, "{shape}");
        assert_eq!(group.state(1), MemberState::InSync, "{shape}: a second is no failure");
        assert_eq!(group.leader().shared().errors(MemberIndex(1)), array::MemberErrors::default(), "{shape}");
        assert_eq!(group.leader().shared().counts().healed, 0, "{shape}: nothing is written back");
        // The first requests to the member are not answered within the time limit.
        sim.run_for(60 * SECOND);
        let (answered, _, all) = read_all(&group, &model, 1);
        sim.run_for(SECOND);
        assert_eq!(answered.get(), all, "{shape}");
    }
}

#[test]
fn without_hedging_a_member_that_never_answers_holds_up_its_reads_for_the_time_limit() {
    let sim = Sim::new(1);
    let mut rng = sim.rng();
    let (group, model) = filled(&sim, raid6(), &mut rng, 2);
    group.leader().set_hedging(false);
    group.drives[1].hang(true);
    let (answered, free, all) = read_all(&group, &model, 1);
    sim.run_for(29 * SECOND);
    assert_eq!(answered.get(), free);
    sim.run_for(10 * SECOND);
    assert_eq!(answered.get(), all);
    assert_eq!(group.state(1), MemberState::Faulty);
}

#[test]
fn a_member_that_is_needed_stays_and_is_waited_for() {
    let sim = Sim::new(2);
    let mut rng = sim.rng();
    let raid5 = shape(Level::Raid5, 4, 16 * KIB);
    let (group, mut model) = filled(&sim, raid5, &mut rng, 2);
    sim.block_on(group.leader().fail_member(MemberIndex(0))).expect("one may be lost");
    group.drives[1].hang(true);
    let results = Answers::default();
    let geometry = group.leader().shared().geometry.clone();
    let there = (0..group.size() / 4096).map(|block| block * 4096).find(|&at| {
        let place = geometry.place(at);
        geometry.member(place.stripe_group, place.offset, place.role) == MemberIndex(1)
    });
    let there = there.expect("it holds data");
    let (read, flush, write) = (group.shards[1].clone(), group.shards[0].clone(), group.shards[1].clone());
    let note = |results: &Answers| {
        let results = results.clone();
        move |what, result| results.borrow_mut().push((what, result))
    };
    let (noted, later, last) = (note(&results), note(&results), note(&results));
    group.env.spawn(async move { noted("read", read.read(there, BufMut::zeroed(4096)).await.map(drop)) });
    group.env.spawn(async move { later("flush", flush.flush().await) });
    sim.run_for(100 * SECOND);
    let mut seen = results.take();
    seen.sort_by_key(|(what, _)| *what);
    let lost = Err(BlockError::Lost { lost: 2, survives: 1 });
    assert_eq!(seen, [("flush", lost.clone()), ("read", lost)]);
    let (member, drive, cause) = (MemberIndex(1), array::DriveId(1), array::Cause::Silent { seconds: 30 });
    assert!(group.events.borrow().contains(&Event::MemberNeeded { member, drive, cause }));
    // A whole stripe: a partial one needs reads first, and those fail.
    let stripe = geometry.stripe_data_bytes();
    let there = there / stripe * stripe;
    let bytes = vec![9; stripe as usize];
    model.bytes[there as usize..(there + stripe) as usize].copy_from_slice(&bytes);
    group.env.spawn(async move { last("write", write.write(there, Buf::from(bytes), false).await) });
    sim.run_for(1000 * SECOND);
    assert_eq!(*results.borrow(), [], "a write that may still come to the drive has not failed");
    group.drives[1].hang(false);
    sim.run_for(10 * SECOND);
    assert_eq!(*results.borrow(), [("write", Ok(()))]);
    assert_eq!(group.state(1), MemberState::InSync);
    sim.block_on(async {
        verify(&group, &model, &mut rng).await;
        work(&group, &mut model, &mut rng, 10, 4).await;
        group.leader().flush().await.expect("flushes");
        verify(&group, &model, &mut rng).await;
    });
}

#[test]
fn of_more_silent_members_than_the_level_survives_none_is_lost_for_good() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let raid5 = shape(Level::Raid5, 4, 16 * KIB);
        let (group, mut model) = filled(&sim, raid5, &mut rng, 1 + seed as usize % 3);
        group.drives[1].hang(true);
        group.drives[2].hang(true);
        let bytes = vec![9; group.size() as usize];
        model.bytes.copy_from_slice(&bytes);
        let (array, done) = (group.leader().clone(), Rc::new(Cell::new(false)));
        let answered = done.clone();
        group.env.spawn(async move {
            array.write(0, Buf::from(bytes), true).await.expect("the second one answers in the end");
            answered.set(true);
        });
        sim.run_for(200 * SECOND);
        assert!(!done.get(), "seed {seed}");
        // The superblocks cannot say that one member failed before the other takes them.
        group.drives[1].hang(false);
        group.drives[2].hang(false);
        sim.run_for(100 * SECOND);
        assert!(done.get(), "seed {seed}");
        let states = [group.state(1), group.state(2)];
        assert!(states.contains(&MemberState::InSync), "seed {seed}: {states:?}");
        assert!(states.contains(&MemberState::Faulty), "seed {seed}: {states:?}");
        sim.block_on(verify(&group, &model, &mut rng));
    }
}

#[test]
fn a_member_that_never_answers_is_replaced_by_a_spare_under_load() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let shapes: Vec<Shape> = every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0).collect();
        let shape = *rng.pick(&shapes);
        let members = usize::from(shape.members);
        let drives = new_drives(&sim, members + 1, 640 * KIB, 512);
        let group = Group::create(&sim, shape, drives, 1 + seed as usize % 3);
        let mut model = Model::new(group.size());
        sim.block_on(async {
            work(&group, &mut model, &mut rng, 10, 6).await;
            let silent = rng.index(members);
            let (drive, env, after) = (group.drives[silent].clone(), group.env.clone(), rng.below(3_000_000));
            group.env.spawn(async move {
                env.sleep(Duration::from_nanos(after)).await;
                drive.hang(true);
            });
            work(&group, &mut model, &mut rng, 40, 6).await;
            group.leader().flush().await.expect("the others flush");
            while !group.all_in_sync() {
                group.env.sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(group.leader().shared().slot(MemberIndex(silent as u16)).drive.0 as usize, members);
            verify(&group, &model, &mut rng).await;
            // Old requests may still reach the member now. No task waits for their answers.
            group.drives[silent].hang(false);
            work(&group, &mut model, &mut rng, 10, 6).await;
            verify(&group, &model, &mut rng).await;
            assert_eq!(group.differences().await, 0);
        });
    }
}

/// Writes every block of the group, each by a request of its own, all at the same time. Returns how
/// many were answered.
fn write_all_at_once(group: &Group) -> (Rc<Cell<u64>>, u64) {
    let (answered, blocks) = (Rc::new(Cell::new(0)), group.size() / 4096);
    for block in 0..blocks {
        let (array, answered) = (group.shards[block as usize % group.shards.len()].clone(), answered.clone());
        group.env.spawn(async move {
            array.write(block * 4096, Buf::from(vec![block as u8; 4096]), false).await.expect("writable");
            answered.set(answered.get() + 1);
        });
    }
    (answered, blocks)
}

#[test]
fn a_member_that_is_slow_and_busy_is_never_lost_however_much_waits_in_its_queue() {
    let shapes = [shape(Level::Raid1, 2, 16 * KIB), shape(Level::Raid5, 3, 16 * KIB), shape(Level::Raid6, 6, 16 * KIB)];
    for shape in shapes {
        for slow in [0..1, 0..usize::from(shape.members)] {
            let sim = Sim::new(slow.end as u64);
            let group = Group::create(&sim, shape, new_drives(&sim, usize::from(shape.members), 8 * MIB, 512), 2);
            // One operation at a time, 50 to 90 ms each: about 14 operations a second.
            for drive in &group.drives[slow.clone()] {
                drive.set_channels(1);
                drive.set_latency(Latency::between(50_000_000, 90_000_000));
            }
            let began = sim.now();
            let (answered, blocks) = write_all_at_once(&group);
            sim.run_for(3600 * SECOND);
            assert_eq!(answered.get(), blocks, "{shape}, slow {slow:?}");
            assert!(group.all_in_sync(), "{shape}, slow {slow:?}: {:?}", group.events.borrow());
            let failed = |event: &Event| !matches!(event, Event::MemberSlow { .. });
            assert!(!group.events.borrow().iter().any(failed), "{shape}: {:?}", group.events.borrow());
            println!("{shape}, slow {slow:?}: within {} s", (sim.now() - began) / 1_000_000_000);
        }
    }
}

#[test]
fn a_slow_member_is_asked_for_a_few_seconds_of_work_at_a_time() {
    let strip_bytes = 16 * KIB;
    let raid1 = shape(Level::Raid1, 2, strip_bytes);
    let sim = Sim::new(9);
    let group = Group::create(&sim, raid1, new_drives(&sim, 2, 40 * MIB, 512), 2);
    // A mebibyte a second.
    let slow = &group.drives[1];
    slow.set_channels(1);
    slow.set_latency(Latency::between(15_000_000, 16_000_000));
    let (answered, strips) = (Rc::new(Cell::new(0)), 32 * MIB / strip_bytes);
    for strip in 0..strips {
        let (array, answered) = (group.shards[strip as usize % group.shards.len()].clone(), answered.clone());
        group.env.spawn(async move {
            let data = Buf::from(vec![strip as u8; strip_bytes as usize]);
            array.write(strip * strip_bytes, data, false).await.expect("writable");
            answered.set(answered.get() + 1);
        });
    }
    let (mut most, mut seconds) = (0, 0);
    while answered.get() < strips {
        sim.run_for(SECOND / 10);
        most = most.max(slow.in_flight() as u64 * strip_bytes);
        seconds += 1;
        assert!(seconds < 1000, "{} of {strips} are answered", answered.get());
    }
    // In flight from both shards together, with an operation without data now and then.
    assert!((4 * MIB..9 * MIB).contains(&most), "{most} bytes of 32 MiB at once");
    assert!(group.all_in_sync());
}

#[test]
fn a_member_that_answers_late_requests_and_not_an_early_one_has_lost_that() {
    let sim = Sim::new(4);
    let mut rng = sim.rng();
    let (group, mut model) = filled(&sim, raid6(), &mut rng, 2);
    let stripe = group.leader().shared().geometry.stripe_data_bytes();
    group.drives[1].lose_next_operation();
    let written = Rc::new(Cell::new(false));
    let (array, done) = (group.leader().clone(), written.clone());
    model.bytes[..stripe as usize].fill(7);
    group.env.spawn(async move {
        array.write(0, Buf::from(vec![7; stripe as usize]), false).await.expect("writable");
        done.set(true);
    });
    // Meanwhile the member answers everything else.
    let reads = |seconds: u32| {
        for _ in 0..seconds {
            for at in (group.size() / 2..group.size()).step_by(4096) {
                let read = sim.block_on(group.leader().read(at, BufMut::zeroed(4096))).expect("readable");
                same(&read, &model.bytes[at as usize..][..4096], at);
            }
            sim.run_for(SECOND);
        }
    };
    reads(25);
    assert!(!written.get() && group.state(1) == MemberState::InSync);
    reads(60);
    assert_eq!(group.state(1), MemberState::Faulty);
    assert!(written.get(), "nobody waits any more");
    sim.block_on(verify(&group, &model, &mut rng));
}
