//! Drives that take a member's place, and a group that has one drive.

use api::*;
use daemon::http::Control;

use crate::bench::*;
use crate::shelf::{MIB, is_healthy, noise, read, volume, write};

#[tokio::test]
async fn a_drive_of_the_same_kind_that_is_a_little_smaller_replaces_a_member() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    // Files without blocks: the size of a drive that is bought.
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
