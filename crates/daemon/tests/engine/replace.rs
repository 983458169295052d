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
