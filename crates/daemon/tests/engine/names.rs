//! Renamed groups and volumes, and groups that are found, stopped and started by their names.

use std::path::Path;

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, GroupControl, VolumeControl};
use nvme::host::{Blocks, io};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::client;
use crate::nvme_host::NvmeHost;

fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

fn to(name: &str) -> Rename {
    Rename { name: name.into(), force: false, dry_run: false }
}

fn drives_of(request: &GroupCreate) -> GroupAssemble {
    GroupAssemble { drives: request.drives.clone(), name: None, dry_run: false }
}

async fn volume(engine: &Engine, group: &str, volume: &str) {
    let asked = serde_json::json!({ "group": group, "volume": volume, "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
}

async fn export(engine: &Engine, asked: serde_json::Value) -> Export {
    let asked: ExportCreate = serde_json::from_value(asked).unwrap();
    let (volume, place) = asked.validate().unwrap();
    engine.export_create(asked, volume, place).await.unwrap().object.unwrap()
}

/// Writes and reads as an NBD client does.
async fn written(socket: &str, export: &str, byte: u8) {
    let (socket, export) = (socket.to_owned(), export.to_owned());
    let writing = move || client::write(Path::new(&socket), &export, 0, &[byte; 8192]);
    tokio::task::spawn_blocking(writing).await.unwrap().unwrap();
}

async fn read(socket: &str, export: &str) -> std::io::Result<Vec<u8>> {
    let (socket, export) = (socket.to_owned(), export.to_owned());
    tokio::task::spawn_blocking(move || client::read(Path::new(&socket), &export, 0, 8192)).await.unwrap()
}

async fn holds(socket: &str, export: &str, byte: u8) -> bool {
    read(socket, export).await.unwrap() == [byte; 8192]
}

#[tokio::test]
async fn a_group_that_is_renamed_keeps_its_data_its_exports_and_its_nvme_hosts() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid5, 3);
    let made = bench.create(&engine, request.clone()).await;
    bench.create(&engine, bench.request("other", Level::Raid1, 2)).await;
    volume(&engine, "tank", "db").await;
    let socket = bench.drive("db.sock");
    export(&engine, serde_json::json!({ "volume": "tank/db", "nbd": format!("unix:{socket}") })).await;
    written(&socket, "tank/db", 7).await;
    let address = bench.address();
    let place = serde_json::json!({ "address": address, "allow_any_host": true, "block_bytes": 4096 });
    let shown = export(&engine, serde_json::json!({ "volume": "tank/db", "nvme_tcp": place })).await;
    let subsystem: Nqn = shown.nqn.unwrap().parse().unwrap();
    let connecting = tokio::task::spawn_blocking(move || NvmeHost::connect(&address, &subsystem, 1));
    let mut host = connecting.await.unwrap();

    let refused = engine.group_rename("tank", to("other")).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (ErrorCode::GroupExists, "there is a group \"other\" already")
    );
    let refused = engine.group_rename("lake", to("sea")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupNotFound);
    let planned = engine.group_rename("tank", Rename { dry_run: true, ..to("lake") }).await.unwrap();
    assert!(planned.steps[1].ends_with(&format!("NBD clients find at unix:{socket} as \"lake/db\"")), "{planned:?}");
    assert_eq!(engine.groups().await.unwrap().len(), 2, "a dry run changes nothing");
    assert!(engine.group("tank").await.is_ok());

    let renamed = engine.group_rename("tank", to("lake")).await.unwrap().object.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.uuid.as_str()), ("lake", made.uuid.as_str()));
    assert_eq!(engine.group("tank").await.unwrap_err().code, ErrorCode::GroupNotFound);
    let ids: Vec<String> = engine.exports().await.unwrap().into_iter().map(|export| export.id).collect();
    assert_eq!(ids, ["lake-2", "lake-3"]);
    assert!(holds(&socket, "lake/db", 7).await);
    assert!(read(&socket, "tank/db").await.is_err(), "the old name is free");
    let reading = tokio::task::spawn_blocking(move || {
        let seen = host.execute(io::read(Blocks { nsid: 1, first: 0, count: 1 }, 4096), &[], 4096);
        (seen.0, seen.1, host)
    });
    let (status, bytes, host) = reading.await.unwrap();
    assert!(status == Status::SUCCESS && bytes == [7; 4096], "its connection has not ended: {status}");
    drop(host);

    end(engine).await;
    let engine = bench.engine().await;
    assert_eq!(engine.group("lake").await.unwrap().uuid, made.uuid);
    end(engine).await;
    std::fs::remove_dir_all(bench.directory.join("state")).unwrap();
    let engine = bench.engine().await;
    let group = engine.group_assemble(drives_of(&request)).await.unwrap().object.unwrap();
    assert_eq!(group.name, "lake", "the name is on the drives");
    assert!(holds(&socket, "lake/db", 7).await);
    end(engine).await;
}

#[tokio::test]
async fn a_volume_that_is_renamed_keeps_its_data_and_its_clients_are_not_cut_off_unless_told() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    volume(&engine, "tank", "db").await;
    volume(&engine, "tank", "other").await;
    let socket = bench.drive("db.sock");
    export(&engine, serde_json::json!({ "volume": "tank/db", "nbd": format!("unix:{socket}") })).await;
    written(&socket, "tank/db", 9).await;
    let refused = engine.volume_rename(&name("tank/db"), to("other")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::VolumeExists, "{refused}");
    let refused = engine.volume_rename(&name("tank/none"), to("x")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::VolumeNotFound, "{refused}");

    let connecting = socket.clone();
    let connected = tokio::task::spawn_blocking(move || client::connect(Path::new(&connecting), "tank/db"));
    let connected = connected.await.unwrap().unwrap();
    let began = std::time::Instant::now();
    while engine.export("tank-3").await.unwrap().connection_count != 1 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let refused = engine.volume_rename(&name("tank/db"), to("new")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Busy, "{refused}");
    assert!(refused.message.contains("tank-3") && refused.message.contains("--force"), "{refused}");
    assert!(engine.volume(&name("tank/db")).await.is_ok(), "a refused request changes nothing");
    let forced = Rename { force: true, ..to("new") };
    let renamed = engine.volume_rename(&name("tank/db"), forced).await.unwrap().object.unwrap();
    assert_eq!(renamed.name, "tank/new");
    drop(connected);
    assert!(holds(&socket, "tank/new", 9).await);
    assert!(read(&socket, "tank/db").await.is_err());
    end(engine).await;
    let engine = bench.engine().await;
    assert!(holds(&socket, "tank/new", 9).await, "the name is on the drives");
    assert_eq!(engine.volume(&name("tank/new")).await.unwrap().id, renamed.id);
    end(engine).await;
}

#[tokio::test]
async fn a_second_group_of_the_same_name_is_assembled_under_another_and_a_copy_is_not() {
    let bench = Bench::new();
    let first = bench.request("tank", Level::Raid1, 2);
    let engine = bench.engine().await;
    let made = bench.create(&engine, first.clone()).await;
    end(engine).await;
    // The drives come from a machine whose state directory is not here.
    std::fs::remove_dir_all(bench.directory.join("state")).unwrap();
    let engine = bench.engine().await;
    let second = GroupCreate { drives: vec![bench.drive("x"), bench.drive("y")], ..first.clone() };
    bench.create(&engine, second.clone()).await;
    let refused = engine.group_assemble(drives_of(&first)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupExists);
    assert!(refused.message.contains("`purlin group assemble --name NEW`"), "{refused}");
    let other = GroupAssemble { name: Some("tank2".into()), ..drives_of(&first) };
    let planned = engine.group_assemble(GroupAssemble { dry_run: true, ..other.clone() }).await.unwrap();
    assert_eq!(planned.steps[1], "rename it to \"tank2\"");
    let group = engine.group_assemble(other.clone()).await.unwrap().object.unwrap();
    assert_eq!((group.name.as_str(), group.uuid.as_str()), ("tank2", made.uuid.as_str()));

    let copies: Vec<String> = (0..2).map(|index| bench.drive(&format!("copy-{index}"))).collect();
    for (drive, copy) in first.drives.iter().zip(&copies) {
        std::fs::copy(drive, copy).unwrap();
    }
    let copied = GroupAssemble { drives: copies, name: Some("copy".into()), dry_run: false };
    let refused = engine.group_assemble(copied).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupExists, "{refused}");
    assert!(refused.message.contains("these drives are a copy"), "{refused}");
    end(engine).await;
    let engine = bench.engine().await;
    let names: Vec<String> = engine.groups().await.unwrap().into_iter().map(|group| group.name).collect();
    assert_eq!(names, ["tank", "tank2"]);
    end(engine).await;
}

#[tokio::test]
async fn a_group_that_was_stopped_is_started_by_its_name_also_after_a_restart() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let made = bench.create(&engine, bench.request("tank", Level::Raid5, 3)).await;
    let refused = engine.group_start("tank", GroupStart::default()).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (ErrorCode::WrongState, "the group \"tank\" is started already")
    );
    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    let planned = engine.group_start("tank", GroupStart { dry_run: true }).await.unwrap();
    assert!(planned.dry_run && engine.groups().await.unwrap().is_empty());
    let started = engine.group_start("tank", GroupStart::default()).await.unwrap().object.unwrap();
    assert_eq!((started.uuid.as_str(), started.health), (made.uuid.as_str(), GroupHealth::Optimal));
    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    end(engine).await;
    let engine = bench.engine().await;
    assert_eq!(engine.groups().await.unwrap(), [], "what was stopped stays stopped");
    let started = engine.group_start("tank", GroupStart::default()).await.unwrap().object.unwrap();
    assert_eq!(started.uuid, made.uuid);
    let refused = engine.group_start("lake", GroupStart::default()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupNotFound);
    assert!(refused.message.contains("`purlin group scan`"), "{refused}");
    end(engine).await;
}

#[tokio::test]
async fn a_scan_says_of_each_group_whether_it_runs_or_can_be_started_and_how() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid5, 3);
    bench.create(&engine, request.clone()).await;
    let plain = bench.drive("plain");
    std::fs::write(&plain, vec![1; 1 << 20]).unwrap();
    let scan = |drives: &[String]| engine.group_scan(GroupScan { drives: drives.to_vec() });
    let named = [&request.drives[..], std::slice::from_ref(&plain)].concat();
    let found = scan(&named).await.unwrap();
    let [group] = &found.groups[..] else { panic!("{found:?}") };
    assert_eq!((group.name.as_str(), group.state, &group.command), ("tank", ScannedState::Running, &None));
    assert_eq!((group.level, group.found_count, group.member_count), (Level::Raid5, 3, 3));
    assert_eq!(found.others, [ScannedDrive { drive: plain.clone(), reason: "holds no group".into() }]);

    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    let all = engine.group_scan(GroupScan::default()).await.unwrap();
    let stopped = all.groups.iter().find(|group| group.name == "tank").expect("its drives are known");
    assert_eq!(stopped.state, ScannedState::Optimal);
    assert_eq!(stopped.command.as_deref(), Some("purlin group start tank"));
    let found = scan(&request.drives[..2]).await.unwrap();
    assert_eq!((found.groups[0].state, found.groups[0].found_count), (ScannedState::Degraded, 2));
    assert_eq!(found.groups[0].reasons, ["member 2 is missing"]);
    let found = scan(&request.drives[..1]).await.unwrap();
    assert_eq!((found.groups[0].state, &found.groups[0].command), (ScannedState::CannotStart, &None));
    assert!(found.groups[0].reasons[0].contains("raid5 survives 1"), "{found:?}");
    // Nothing was claimed or changed.
    engine.group_start("tank", GroupStart::default()).await.unwrap();
    end(engine).await;
}

#[tokio::test]
async fn an_assembly_leaves_out_what_is_no_member_and_refuses_two_groups_by_their_names() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (one, other) = (bench.request("one", Level::Raid1, 2), bench.request("other", Level::Raid1, 2));
    bench.create(&engine, one.clone()).await;
    bench.create(&engine, other.clone()).await;
    engine.group_stop("one", GroupStop::default()).await.unwrap();
    // Like the system's own drive among all drives: it is in use, and holds no group.
    let busy = bench.drive("busy");
    std::fs::write(&busy, vec![1; 32 << 20]).unwrap();
    let held = std::fs::File::open(&busy).unwrap();
    held.lock().unwrap();
    let plain = bench.drive("plain");
    std::fs::write(&plain, vec![1; 32 << 20]).unwrap();
    let drives = [&one.drives[..], &other.drives[..1]].concat();
    let refused = engine.group_assemble(GroupAssemble { drives, name: None, dry_run: false }).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAssemblable, "{refused}");
    assert!(refused.message.contains("to one (") && refused.message.contains("to other ("), "{refused}");
    engine.group_stop("other", GroupStop::default()).await.unwrap();
    let drives = [&one.drives[..], &other.drives[..1]].concat();
    let refused = engine.group_assemble(GroupAssemble { drives, name: None, dry_run: false }).await.unwrap_err();
    assert!(refused.message.contains("to one (") && refused.message.contains("to other ("), "{refused}");

    let drives = [&[busy.clone(), plain.clone()], &one.drives[..]].concat();
    let done = engine.group_assemble(GroupAssemble { drives, name: None, dry_run: false }).await.unwrap();
    assert_eq!(done.object.unwrap().health, GroupHealth::Optimal);
    let left_out = |drive: &String| done.warnings.iter().any(|it| it.starts_with(&format!("{drive} is left out: ")));
    assert!(left_out(&busy) && left_out(&plain), "{:?}", done.warnings);
    let gone = GroupAssemble { drives: vec![bench.drive("none")], name: None, dry_run: false };
    assert_eq!(engine.group_assemble(gone).await.unwrap_err().code, ErrorCode::DriveNotFound, "a name mistyped");
    end(engine).await;
}
