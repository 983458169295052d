//! Scrubs start when they are due, one at a time, and keep their position.

use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{Control, DriveControl, ExportControl, GroupControl, MemberControl, VolumeControl};

use crate::bench::*;

/// A group with 16 MiB of data in a volume.
async fn filled(bench: &Bench, engine: &Engine, name: &str, level: Level, members: usize) -> Group {
    let group = bench.create(engine, bench.request(name, level, members)).await;
    fill(bench, engine, name, 16 << 20).await;
    group
}

/// Creates the volume `db` of a group, and fills it over NBD.
async fn fill(bench: &Bench, engine: &Engine, group: &str, size_bytes: u32) {
    let request = VolumeCreate {
        group: group.into(),
        volume: "db".into(),
        size_bytes: size_bytes.into(),
        thin: false,
        dry_run: false,
        ..VolumeCreate::default()
    };
    engine.volume_create(request).await.unwrap();
    let socket = bench.directory.join(format!("{group}.nbd"));
    let address: NbdAddress = format!("unix:{}", socket.display()).parse().unwrap();
    let volume = format!("{group}/db");
    let nbd = Some(address.to_string());
    let request = ExportCreate { volume: volume.clone(), nbd, ..ExportCreate::default() };
    let export = engine
        .export_create(request, volume.parse().unwrap(), ExportPlace::Nbd(address))
        .await
        .unwrap()
        .object
        .unwrap();
    let bytes: Vec<u8> = (0..size_bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let written = tokio::task::spawn_blocking(move || crate::client::write(&socket, &volume, 0, &bytes)).await.unwrap();
    written.unwrap();
    engine.export_delete(&export.id).await.unwrap();
}

fn is_done(group: &Group) -> bool {
    group.scrub.last.is_some() && !group.scrub.active
}

#[tokio::test]
async fn a_scrub_starts_when_it_is_due_and_the_next_one_after_an_interval() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let group = filled(&bench, &engine, "tank", Level::Raid6, 5).await;
    let due = group.scrub.next_unix_s.unwrap();
    bench.set_time(due - 1);
    for _ in 0..3 {
        engine.look_after_groups().await;
    }
    assert_eq!(scrub_job(&engine.group("tank").await.unwrap()), None, "not a second early");
    bench.set_time(due);
    let group = until(&engine, "tank", is_done).await;
    let last = group.scrub.last.unwrap();
    assert!(last.repair && last.mismatch_count == 0, "{last:?}");
    assert_eq!(last.ended_unix_s, due);
    let next = group.scrub.next_unix_s.unwrap();
    assert_eq!(next - due, due - START, "the same interval again");
    end(engine).await;

    // After a long time off, only one scrub is caught up, not all that were missed.
    bench.set_time(due + 300 * DAY);
    let engine = bench.engine().await;
    let group = until(&engine, "tank", |group| is_done(group) && group.scrub.last.unwrap().ended_unix_s > due).await;
    assert_eq!(group.scrub.next_unix_s, Some(due + 300 * DAY + (due - START)));
    for _ in 0..5 {
        engine.look_after_groups().await;
    }
    assert_eq!(scrub_job(&engine.group("tank").await.unwrap()).unwrap().id, scrub_job(&group).unwrap().id);
    end(engine).await;
}

#[tokio::test]
async fn one_group_is_scrubbed_at_a_time_and_the_longest_overdue_first() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    for name in ["a", "b", "c"] {
        filled(&bench, &engine, name, Level::Raid1, 2).await;
    }
    let mut due: Vec<(u64, String)> = Vec::new();
    for group in engine.groups().await.unwrap() {
        due.push((group.scrub.next_unix_s.unwrap(), group.name));
    }
    due.sort();
    bench.set_time(START + 31 * DAY);
    let mut order: Vec<String> = Vec::new();
    for _ in 0..4000 {
        engine.look_after_groups().await;
        let groups = engine.groups().await.unwrap();
        let active: Vec<&Group> =
            groups.iter().filter(|group| scrub_job(group).is_some_and(|job| !job.state.has_ended())).collect();
        assert!(active.len() <= 1, "{} at once", active.len());
        for group in &groups {
            if scrub_job(group).is_some() && !order.contains(&group.name) {
                order.push(group.name.clone());
            }
        }
        if groups.iter().all(is_done) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(order, due.into_iter().map(|(_, name)| name).collect::<Vec<_>>());
    end(engine).await;
}

#[tokio::test]
async fn a_degraded_group_waits_and_says_for_what() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid5, 3).await;
    engine.member_fail("tank", 1, MemberFail::default()).await.unwrap();
    bench.set_time(START + 31 * DAY);
    engine.look_after_groups().await;
    let group = engine.group("tank").await.unwrap();
    assert_eq!(scrub_job(&group), None);
    assert_eq!(group.scrub.waits_for.as_deref(), Some("slot 1 is faulty"));
    let with = bench.drive("new");
    let replace = MemberReplace { with, create_files_bytes: Some(64 << 20), wipe_foreign: false, dry_run: false };
    engine.member_replace("tank", 1, replace).await.unwrap();
    let group = until(&engine, "tank", is_done).await;
    assert_eq!((group.health, group.scrub.last.unwrap().unchecked_count), (GroupHealth::Optimal, 0));
    end(engine).await;
}

#[tokio::test]
async fn a_paused_scrub_holds_its_place_over_a_restart() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid6, 5).await;
    let refused = |error: daemon::http::ControlError| (error.code, error.message);
    for action in [ScrubAction::Pause, ScrubAction::Resume, ScrubAction::Stop] {
        let error = scrub(&engine, "tank", action, false).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::WrongState, "{action:?}");
    }
    scrub(&engine, "tank", ScrubAction::Start, true).await.unwrap();
    let paused = scrub(&engine, "tank", ScrubAction::Pause, false).await.unwrap();
    assert_eq!(paused.job.unwrap().state, JobState::Paused);
    assert!(paused.schedule.paused && paused.schedule.active);
    let (code, message) = refused(scrub(&engine, "tank", ScrubAction::Pause, false).await.unwrap_err());
    assert_eq!(
        (code, message.as_str()),
        (ErrorCode::WrongState, "the group \"tank\" has a scrub that is paused already")
    );
    let (_, message) = refused(scrub(&engine, "tank", ScrubAction::Start, false).await.unwrap_err());
    assert_eq!(message, "the group \"tank\" has a scrub that is paused: resume or stop it");
    // Requests that were in flight complete.
    tokio::time::sleep(Duration::from_millis(200)).await;
    engine.look_after_groups().await;
    let before = scrub_job(&engine.group("tank").await.unwrap()).unwrap().clone();
    assert!(before.done_bytes < before.total_bytes, "{before:?}");
    end(engine).await;

    bench.set_time(START + 40 * DAY);
    let engine = bench.engine().await;
    for _ in 0..3 {
        engine.look_after_groups().await;
    }
    let group = engine.group("tank").await.unwrap();
    let after = scrub_job(&group).unwrap();
    assert_eq!((after.state, after.done_bytes), (JobState::Paused, before.done_bytes));
    assert!(group.scrub.paused && after.findings.as_ref().unwrap().repair);
    scrub(&engine, "tank", ScrubAction::Resume, false).await.unwrap();
    let group = until(&engine, "tank", is_done).await;
    let job = scrub_job(&group).unwrap();
    assert_eq!((job.state, job.done_bytes), (JobState::Done, job.total_bytes), "it compared the rest and no more");
    end(engine).await;
}

#[tokio::test]
async fn a_scrub_makes_room_for_a_rebuild_and_goes_on_afterwards() {
    const DRIVE_BYTES: u64 = 192 << 20;
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid1, 2);
    bench.create(&engine, GroupCreate { create_files_bytes: Some(DRIVE_BYTES), ..request }).await;
    fill(&bench, &engine, "tank", 144 << 20).await;
    scrub(&engine, "tank", ScrubAction::Start, false).await.unwrap();
    scrub(&engine, "tank", ScrubAction::Pause, false).await.unwrap();
    engine.member_fail("tank", 1, MemberFail::default()).await.unwrap();
    let with = bench.drive("new");
    let replace = MemberReplace { with, create_files_bytes: Some(DRIVE_BYTES), wipe_foreign: false, dry_run: false };
    engine.member_replace("tank", 1, replace).await.unwrap();
    let rebuilds = |group: &Group| group.jobs.iter().any(|job| job.kind == JobKind::Rebuild && !job.state.has_ended());
    let state = |group: &Group| scrub_job(group).unwrap().state;

    // Resumed, the scrub waits for the rebuild. Paused while it waits, it stays paused.
    scrub(&engine, "tank", ScrubAction::Resume, false).await.unwrap();
    let group = until(&engine, "tank", |group| state(group) != JobState::Running).await;
    assert!(rebuilds(&group), "the rebuild was faster than this test");
    assert_eq!((state(&group), group.scrub.paused), (JobState::Waiting, false));
    assert_eq!(scrub_job(&group).unwrap().message.as_deref(), Some("slot 1 is being rebuilt"));
    assert_eq!(group.scrub.waits_for.as_deref(), Some("slot 1 is being rebuilt"));
    let refused = scrub(&engine, "tank", ScrubAction::Resume, false).await.unwrap_err();
    assert_eq!(refused.message, "the group \"tank\" cannot be scrubbed now: slot 1 is being rebuilt");
    let paused = scrub(&engine, "tank", ScrubAction::Pause, false).await.unwrap();
    assert!(paused.schedule.paused && paused.schedule.waits_for.is_none(), "{:?}", paused.schedule);
    let group = until(&engine, "tank", |group| !rebuilds(group)).await;
    engine.look_after_groups().await;
    assert_eq!(state(&group), JobState::Paused, "only who paused it lets it go on");

    scrub(&engine, "tank", ScrubAction::Resume, false).await.unwrap();
    let group = until(&engine, "tank", is_done).await;
    assert_eq!((group.health, group.scrub.last.unwrap().mismatch_count), (GroupHealth::Optimal, 0));
    end(engine).await;
}

#[tokio::test]
async fn a_stopped_scrub_is_not_taken_up_and_not_started_again_at_once() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid6, 5).await;
    let now = START + 40 * DAY;
    bench.set_time(now);
    let group = until(&engine, "tank", |group| group.scrub.active).await;
    assert!(group.scrub.last.is_none(), "it was faster than this test");
    let stopped = scrub(&engine, "tank", ScrubAction::Stop, false).await.unwrap();
    assert_eq!(stopped.job.unwrap().state, JobState::Stopped, "what is shown is what was asked for");
    let group = engine.group("tank").await.unwrap();
    assert!(group.scrub.next_unix_s.unwrap() > now + 20 * DAY && !group.scrub.active, "{:?}", group.scrub);
    end(engine).await;
    let engine = bench.engine().await;
    for _ in 0..3 {
        engine.look_after_groups().await;
    }
    let group = engine.group("tank").await.unwrap();
    assert!(scrub_job(&group).is_none() && !group.scrub.active && group.scrub.last.is_none(), "{:?}", group.scrub);
    end(engine).await;
}

#[tokio::test]
async fn a_paused_scrub_that_is_stopped_is_shown_as_stopped() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid6, 5).await;
    scrub(&engine, "tank", ScrubAction::Start, false).await.unwrap();
    scrub(&engine, "tank", ScrubAction::Pause, false).await.unwrap();
    let stopped = scrub(&engine, "tank", ScrubAction::Stop, false).await.unwrap();
    assert_eq!(stopped.job.unwrap().state, JobState::Stopped);
    assert!(!stopped.schedule.paused);
    end(engine).await;
}

#[tokio::test]
async fn the_result_of_a_scrub_that_ended_just_before_a_stop_is_kept() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid1, 2).await;
    scrub(&engine, "tank", ScrubAction::Start, false).await.unwrap();
    // The maintenance of groups does not run meanwhile, as in the second before its next round.
    let began = Instant::now();
    while !scrub_job(&engine.group("tank").await.unwrap()).is_some_and(|job| job.state.has_ended()) {
        assert!(began.elapsed() < PATIENCE, "the scrub does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    end(engine).await;
    let engine = bench.engine().await;
    let group = engine.group("tank").await.unwrap();
    assert_eq!(group.scrub.last.unwrap().mismatch_count, 0);
    end(engine).await;
}

#[tokio::test]
async fn findings_name_drive_and_volume_and_what_is_left_is_warned_of() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid6, 5).await;
    // With 16 MiB written to 5 drives of 64 MiB, this is data or parity of the volume on each.
    for offset in [(2 << 20) + 8192, (3 << 20) + 16384] {
        bench.rot("tank-3", offset);
    }
    scrub(&engine, "tank", ScrubAction::Start, false).await.unwrap();
    let group = until(&engine, "tank", is_done).await;
    let last = group.scrub.last.unwrap();
    assert_eq!((last.mismatch_count, last.repaired_count, last.repair), (2, 0, false));
    assert!(group.warnings.iter().any(|warning| warning.starts_with("the last scrub left 2 differences")), "{group:?}");
    let places = scrub_job(&group).unwrap().findings.clone().unwrap().places;
    for (place, offset) in places.iter().zip([(2 << 20) + 8192, (3 << 20) + 16384]) {
        assert_eq!((place.slot, place.drive.clone()), (Some(3), Some(bench.drive("tank-3"))));
        assert_eq!((place.member_offset_bytes, place.fault), (offset, PlaceFault::Damaged));
        match place.content {
            PlaceContent::Data => assert_eq!(place.volumes[0].volume, "tank/db"),
            PlaceContent::Parity => assert!(place.volumes.is_empty()),
            content => panic!("{content:?}"),
        }
    }
    let damaged: Vec<u64> = group.members.iter().map(|member| member.errors.damaged_count).collect();
    assert_eq!(damaged, [0, 0, 0, 2, 0]);
    scrub(&engine, "tank", ScrubAction::Start, true).await.unwrap();
    let group = until(&engine, "tank", |group| is_done(group) && group.scrub.last.unwrap().repair).await;
    assert_eq!((group.scrub.last.unwrap().repaired_count, group.warnings.len()), (2, 0));
    let drives = engine.drives().await.unwrap();
    let drive = drives.iter().find(|drive| drive.name == bench.drive("tank-3")).unwrap();
    assert_eq!(drive.errors.damaged_count, 4, "each scrub met both");
    let metrics = engine.metrics().await.unwrap();
    for line in [
        format!("purlin_scrub_last_timestamp_seconds{{group=\"tank\"}} {START}"),
        "purlin_scrub_mismatches{group=\"tank\"} 2".to_owned(),
        "purlin_scrub_repaired{group=\"tank\"} 2".to_owned(),
        "purlin_scrub_paused{group=\"tank\"} 0".to_owned(),
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is missing in\n{metrics}");
    }
    end(engine).await;
}

#[tokio::test]
async fn a_clock_that_was_wrong_does_not_put_scrubs_off_for_years() {
    let bench = Bench::new();
    bench.set_time(START + 3650 * DAY);
    let engine = bench.engine().await;
    filled(&bench, &engine, "tank", Level::Raid1, 2).await;
    bench.set_time(START);
    let group = until(&engine, "tank", is_done).await;
    assert_eq!(group.scrub.last.unwrap().ended_unix_s, START);
    assert!(group.scrub.next_unix_s.unwrap() <= START + 30 * DAY);
    end(engine).await;
}
