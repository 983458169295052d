//! Namespaces of other machines as imports. Their block devices are tested in the VM, which has
//! ublk.

use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{ControlError, ExportControl, GroupControl, ImportControl, VolumeControl};

use crate::bench::*;
use crate::target::*;

async fn connect(engine: &Engine, drive: &str, name: Option<&str>) -> Result<Import, ControlError> {
    let request = ImportNvme { drive: drive.to_owned(), name: name.map(str::to_owned), dry_run: false };
    request.validate().unwrap();
    Ok(engine.import_nvme(request).await?.object.unwrap())
}

async fn until_health(engine: &Engine, name: &str, health: GroupHealth) -> Import {
    let began = Instant::now();
    loop {
        let import = engine.import(name).await.unwrap();
        if import.health == health {
            return import;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{import:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_namespace_is_there_again_after_a_restart_also_when_its_machine_comes_later() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let networks = [target.network(), target.network()];
    let engine = head(&bench).await;
    let drive = target.drive(&networks[0], 1).replace("&loss=60s", "") + &format!("&path={}", networks[1].address);
    let import = connect(&engine, &drive, None).await.unwrap();
    assert_eq!((import.name.as_str(), import.volume.as_str(), import.array), ("remote1", "remote1/nvme", None));
    assert_eq!(import.drives, [format!("{drive}&loss=10m")], "as long as Linux waits");
    let there = until_health(&engine, "remote1", GroupHealth::Optimal).await;
    let namespace = there.namespace.unwrap();
    assert_eq!((namespace.size_bytes, namespace.block_bytes, namespace.paths.len()), (Some(64 << 20), Some(4096), 2));
    let volume = engine.volume(&"remote1/nvme".parse().unwrap()).await.unwrap();
    assert_eq!((volume.kind, volume.size_bytes), (VolumeKind::Nvme, 64 << 20));

    networks[1].refuse(true);
    networks[1].cut();
    until_health(&engine, "remote1", GroupHealth::Degraded).await;
    networks[0].refuse(true);
    networks[0].cut();
    let away = until_health(&engine, "remote1", GroupHealth::Failed).await;
    assert!(away.message.unwrap().starts_with("out of reach: "));
    networks.iter().for_each(|network| network.refuse(false));
    assert_eq!(until_health(&engine, "remote1", GroupHealth::Optimal).await.message, None);
    end(engine).await;
    assert!(!bench.directory.join("state/remote-drives").exists(), "it was let go");

    networks.iter().for_each(|network| network.refuse(true));
    let engine = head(&bench).await;
    let away = engine.import("remote1").await.unwrap();
    assert_eq!((away.health, away.uuid.as_str()), (GroupHealth::Failed, import.uuid.as_str()));
    assert_eq!(away.namespace.unwrap().subsystem, target.subsystem);
    networks[1].refuse(false);
    until_health(&engine, "remote1", GroupHealth::Degraded).await;
    networks[0].refuse(false);
    until_health(&engine, "remote1", GroupHealth::Optimal).await;

    engine.import_forget("remote1", ImportForget::default()).await.unwrap();
    end(engine).await;
    let engine = head(&bench).await;
    assert!(engine.imports().await.unwrap().is_empty(), "what was forgotten stays so");
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_namespace_that_grows_over_there_grows_here() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let network = target.network();
    let engine = head(&bench).await;
    connect(&engine, &target.drive(&network, 1), Some("disk")).await.unwrap();
    let grown = VolumeUpdate { size_bytes: 96 << 20, confirm: None, dry_run: false };
    target.engine.volume_resize(&"target/d1".parse().unwrap(), grown).await.unwrap();
    let began = Instant::now();
    while engine.volume(&"disk/nvme".parse().unwrap()).await.unwrap().size_bytes != 96 << 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not notice");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(engine.import("disk").await.unwrap().namespace.unwrap().size_bytes, Some(96 << 20));
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_namespace_that_somebody_here_has_is_refused() {
    let (target, bench) = (Target::new(2).await, Bench::new());
    let networks = [target.network(), target.network()];
    let engine = head(&bench).await;
    let planned = ImportNvme { drive: target.drive(&networks[0], 1), name: Some("disk".into()), dry_run: true };
    assert_eq!(engine.import_nvme(planned).await.unwrap().object, None);
    assert!(engine.imports().await.unwrap().is_empty(), "a dry run changes nothing");
    connect(&engine, &target.drive(&networks[0], 1), Some("disk")).await.unwrap();
    let refused = |error: ControlError, code: ErrorCode, why: &str| {
        assert!(error.code == code && error.message.contains(why), "{error:?}");
    };
    let again = connect(&engine, &target.drive(&networks[1], 1), None).await.unwrap_err();
    refused(again, ErrorCode::DriveInUse, "imported already, as \"disk\"");
    let request = |number: u32| GroupCreate {
        drives: vec![target.drive(&networks[1], number), bench.drive("near")],
        ..bench.request("tank", Level::Raid1, 2)
    };
    let taken = request(1);
    let shape = shape_of(&taken);
    let member = engine.group_create(taken, shape).await.unwrap_err();
    refused(member, ErrorCode::DriveInUse, "in use by this daemon already");
    bench.create(&engine, request(2)).await;
    let member = connect(&engine, &target.drive(&networks[0], 2), None).await.unwrap_err();
    refused(member, ErrorCode::DriveInUse, "a drive of the group \"tank\"");
    let name = connect(&engine, &target.drive(&networks[0], 2), Some("tank")).await.unwrap_err();
    refused(name, ErrorCode::GroupExists, "already");
    let itself = connect(&target.engine, &target.drive(&networks[0], 2), None).await.unwrap_err();
    refused(itself, ErrorCode::Invalid, "served by this daemon itself");
    let absent = connect(&engine, &target.drive(&networks[0], 9), None).await.unwrap_err();
    refused(absent, ErrorCode::DriveNotFound, "namespace 9");

    let export =
        ExportCreate { volume: "disk/nvme".into(), nbd: Some("unix:/run/n".into()), ..ExportCreate::default() };
    let (volume, place) = export.validate().unwrap();
    let error = engine.export_create(export, volume, place).await.unwrap_err();
    refused(error, ErrorCode::Invalid, "offered as a block device only");
    assert_eq!(engine.imports().await.unwrap().len(), 1, "what was refused left nothing");
    end(engine).await;
    end(target.engine).await;
}
