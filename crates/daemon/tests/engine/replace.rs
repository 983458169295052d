//! Drives that take a member's slot, and a group that has one drive.

use api::*;
use daemon::Engine;
use daemon::http::{DriveControl, GroupControl, MemberControl};

use crate::bench::*;
use crate::target::{MIB, is_healthy, noise, read, volume, write};

#[tokio::test]
async fn a_drive_of_the_same_kind_that_is_a_little_smaller_replaces_a_member() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    // Sparse files: the size of a real drive.
    let bytes: u64 = 16 << 30;
    let request = GroupCreate { create_files_bytes: Some(bytes), ..bench.request("tank", Level::Raid1, 2) };
    bench.create(&engine, request).await;
    let replace = async |name: &str, size_bytes: u64| {
        let with = bench.drive(name);
        std::fs::File::create(&with).unwrap().set_len(size_bytes).unwrap();
        let request = MemberReplace { with, create_files_bytes: None, wipe_foreign: false, dry_run: false };
        engine.member_replace("tank", 1, request).await
    };
    engine.member_fail("tank", 1, MemberFail { dry_run: false }).await.unwrap();
    let error = replace("much-smaller", bytes - (32 << 20)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::DriveUnfit, "{error}");
    replace("smaller", bytes - (16 << 20)).await.unwrap();
    until(&engine, "tank", is_healthy).await;
    end(engine).await;
}

#[tokio::test]
async fn one_drive_alone_is_a_group_without_redundancy_that_starts_again() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let group = bench.create(&engine, bench.request("tank", Level::Raid0, 1)).await;
    assert_eq!((group.member_count, group.losses_left), (1, 0));
    let socket = volume(&bench, &engine).await;
    let model = noise(8 * MIB, 7);
    write(&socket, 0, model.clone()).await;
    end(engine).await;

    let engine = bench.engine().await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()));
    assert!(read(&socket, 0, model.len()).await == model);
    end(engine).await;
}

#[tokio::test]
async fn data_that_is_not_recognised_are_overwritten_on_request_only() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid1, 2);
    let mut content = vec![0; 64 << 20];
    content[..4096].fill(0x5A);
    std::fs::write(&request.drives[1], &content).unwrap();
    let error = bench.try_create(&engine, request.clone()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::ForeignData, "{error}");
    assert!(error.message.contains("holds data that is not recognised"), "{error}");
    assert!(std::fs::read(&request.drives[1]).unwrap() == content, "nothing was written");
    bench.create(&engine, GroupCreate { wipe_foreign: true, ..request }).await;
    end(engine).await;
}

#[tokio::test]
async fn a_drive_is_wiped_once_no_group_uses_it_and_belongs_to_none_then() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid1, 2);
    let group = bench.create(&engine, request.clone()).await;
    let wipe = async |dry_run: bool| engine.drive_wipe(&request.drives[1], DriveWipe { dry_run }).await;
    assert_eq!(wipe(false).await.unwrap_err().code, ErrorCode::DriveInUse);
    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    let planned = wipe(true).await.unwrap();
    assert_eq!(planned.steps, [format!("erase the group \"tank\" ({}) from {}", group.uuid, request.drives[1])]);
    let wiped = wipe(false).await.unwrap().object.unwrap();
    assert_eq!((wiped.group.as_str(), &wiped.uuid, &wiped.drive), ("tank", &group.uuid, &request.drives[1]));
    // There is nothing left to erase, and the drive is free for another group.
    assert_eq!(wipe(false).await.unwrap_err().code, ErrorCode::WrongState);
    engine.group_start("tank", GroupStart::default()).await.unwrap();
    let second =
        GroupCreate { name: "lake".into(), level: Level::Raid0, drives: vec![request.drives[1].clone()], ..request };
    bench.create(&engine, second).await;
    end(engine).await;
}

/// A group with data, on drives that take a while to copy.
async fn filled(bench: &Bench, engine: &Engine) -> (GroupCreate, std::path::PathBuf, Vec<u8>) {
    let request = bench.request("tank", Level::Raid5, 3);
    bench.create(engine, GroupCreate { create_files_bytes: Some(DRIVE_BYTES), ..request.clone() }).await;
    let socket = volume(bench, engine).await;
    let model = noise(40 * MIB, 3);
    write(&socket, 0, model.clone()).await;
    (request, socket, model)
}

const DRIVE_BYTES: u64 = 64 << 20;

fn replace_with(with: &str) -> MemberReplace {
    let create_files_bytes = Some(DRIVE_BYTES);
    MemberReplace { with: with.to_owned(), create_files_bytes, wipe_foreign: false, dry_run: false }
}

fn is_on(group: &Group, slot: usize, drive: &str) -> bool {
    assert_eq!(group.health, GroupHealth::Optimal);
    group.members[slot].drive.as_deref() == Some(drive)
}

#[tokio::test]
async fn a_member_that_works_is_copied_and_its_drive_is_free_afterwards() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (request, socket, model) = filled(&bench, &engine).await;
    let (old, new) = (&request.drives[1], bench.drive("new"));
    let planned =
        engine.member_replace("tank", 1, MemberReplace { dry_run: true, ..replace_with(&new) }).await.unwrap();
    let step = format!("copy slot 1 of the group \"tank\" from {old} to {new}, which takes its place then");
    assert_eq!(planned.steps.last(), Some(&step));
    let begun = engine.member_replace("tank", 1, replace_with(&new)).await.unwrap().object.unwrap();
    assert_eq!(begun.health, GroupHealth::Optimal);
    assert!(begun.jobs.iter().any(|job| (job.kind, job.slot) == (JobKind::Replace, Some(1))), "{:?}", begun.jobs);
    until(&engine, "tank", |group| is_on(group, 1, &new)).await;
    let wipe = async || engine.drive_wipe(old, DriveWipe { dry_run: false }).await;
    let began = std::time::Instant::now();
    while let Err(error) = wipe().await {
        assert_eq!(error.code, ErrorCode::DriveInUse, "{error}");
        assert!(began.elapsed() < PATIENCE, "{error}");
        engine.look_after_groups().await;
    }
    let group = engine.group("tank").await.unwrap();
    assert_eq!((&group.members[1].replacement, group.spares.len()), (&None, 0));
    // With one of the other members lost, the new drive has the right data.
    engine.member_fail("tank", 0, MemberFail { dry_run: false }).await.unwrap();
    assert!(read(&socket, 0, model.len()).await == model);
    end(engine).await;
}

#[tokio::test]
async fn a_copy_that_a_restart_ends_starts_again() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (_, socket, model) = filled(&bench, &engine).await;
    let new = bench.drive("new");
    let begun = engine.member_replace("tank", 1, replace_with(&new)).await.unwrap().object.unwrap();
    assert_eq!(begun.members[1].replacement.as_ref(), Some(&new), "the copy was faster than this test");
    end(engine).await;
    let kept = std::fs::read_to_string(bench.directory.join("state/replacements.json")).unwrap();
    assert!(kept.contains(&new), "the copy was faster than this test: {kept}");

    let engine = bench.engine().await;
    until(&engine, "tank", |group| is_on(group, 1, &new)).await;
    assert!(read(&socket, 0, model.len()).await == model);
    assert_eq!(engine.group("tank").await.unwrap().spares.len(), 0);
    end(engine).await;
}

#[tokio::test]
async fn a_spare_takes_the_place_of_a_member_that_works_and_a_copy_can_be_stopped() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (request, ..) = filled(&bench, &engine).await;
    let [first, second] = ["first", "second"].map(|name| bench.drive(name));
    let spare =
        SpareAdd { drive: first.clone(), create_files_bytes: Some(DRIVE_BYTES), wipe_foreign: false, dry_run: false };
    engine.spare_add("tank", spare).await.unwrap();
    let begun = engine.member_replace("tank", 2, replace_with(&first)).await.unwrap();
    let step = format!(
        "copy slot 2 of the group \"tank\" from {} to the spare {first}, which takes its place then",
        request.drives[2]
    );
    assert_eq!(begun.steps, [step]);
    let error = engine.member_replace("tank", 1, replace_with(&second)).await;
    if engine.group("tank").await.unwrap().members[2].replacement.is_some() {
        let error = error.unwrap_err();
        assert_eq!(error.code, ErrorCode::WrongState, "{error}");
        assert_eq!(error.message, "the group \"tank\": member 2 is being replaced already: one at a time");
    }
    until(&engine, "tank", |group| is_on(group, 2, &first)).await;
    engine.member_replace("tank", 0, replace_with(&bench.drive("third"))).await.unwrap();
    let stopped = engine.spare_remove("tank", &bench.drive("third"), false).await;
    let group = until(&engine, "tank", |group| group.jobs.iter().all(|job| job.state.has_ended())).await;
    assert_eq!(is_on(&group, 0, &request.drives[0]), stopped.is_ok(), "unless the copy was faster than this test");
    assert_eq!((&group.members[0].replacement, group.spares.len()), (&None, 0));
    end(engine).await;
}

/// The times of a file or folder that reading does not change.
fn times(path: &str) -> (i64, i64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec())
}

#[tokio::test]
async fn a_dry_run_leaves_no_trace_on_drives_and_folders() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid1, 2);
    let folder = bench.directory.display().to_string();
    for drive in &request.drives {
        std::fs::File::create(drive).unwrap().set_len(64 << 20).unwrap();
    }
    let all = || request.drives.iter().map(|drive| times(drive)).chain([times(&folder)]).collect::<Vec<_>>();
    let plan = async |request: GroupCreate| {
        let shape = shape_of(&request);
        engine.group_create(GroupCreate { dry_run: true, ..request }, shape).await.unwrap().steps
    };
    let before = all();
    let there = plan(request.clone()).await;
    let missing = GroupCreate { drives: vec![bench.drive("x"), bench.drive("y")], ..request.clone() };
    let to_make = plan(missing).await;
    assert_eq!(there[there.len() - 1], to_make[to_make.len() - 1], "the capacity is that of files of this size");
    assert_eq!(all(), before);

    bench.create(&engine, request.clone()).await;
    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    let before = all();
    engine.drive_wipe(&request.drives[1], DriveWipe { dry_run: true }).await.unwrap();
    engine.group_start("tank", GroupStart { dry_run: true }).await.unwrap();
    let assemble = GroupAssemble { drives: request.drives.clone(), name: None, dry_run: true };
    engine.group_assemble(assemble).await.unwrap();
    assert_eq!(all()[..2], before[..2]);
    end(engine).await;
}
