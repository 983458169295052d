//! Linux md arrays on files: imported, exported, remembered, refused, and never written to.

use std::path::PathBuf;
use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{ControlError, DriveControl, ExportControl, GroupControl, ImportControl, VolumeControl};

use crate::bench::*;
use crate::client;
use crate::md_support::{Plain, content, lay_out, parity_table};

const CHUNK_SECTORS: u32 = 16;
const ROWS: u64 = 24;

/// Three members of a RAID 5 as files `d0` to `d2`, each superblock changed by `change`. Returns
/// their names and the content of the array.
fn raid5(bench: &Bench, change: impl Fn(u32, &mut Plain)) -> (Vec<String>, Vec<u8>) {
    let chunk_bytes = CHUNK_SECTORS as usize * 512;
    let content = content(2 * ROWS as usize * chunk_bytes, 7);
    let images = lay_out(&parity_table(md::Level::Raid5, 2, 3, ROWS), 2, chunk_bytes, &content);
    let drives = images.iter().enumerate().map(|(number, image)| {
        let mut plain = Plain::new(5, 2, 3, CHUNK_SECTORS, ROWS * u64::from(CHUNK_SECTORS), number as u32);
        change(number as u32, &mut plain);
        let mut bytes = vec![0; 64 * 512];
        bytes[4096..8192].copy_from_slice(&plain.bytes());
        bytes.extend_from_slice(image);
        bytes.resize(1 << 20, 0);
        std::fs::write(bench.drive(&format!("d{number}")), bytes).unwrap();
        bench.drive(&format!("d{number}"))
    });
    (drives.collect(), content)
}

fn request(drives: &[String]) -> ImportMd {
    ImportMd { drives: drives.to_vec(), name: None, array: None, allow_inconsistent: false, dry_run: false }
}

async fn import(engine: &Engine, request: ImportMd) -> Result<Imported, ControlError> {
    request.validate().unwrap();
    engine.import_md(request).await
}

/// Exports the import `old`. Returns the socket.
async fn export(bench: &Bench, engine: &Engine) -> (PathBuf, Changed<Export>) {
    let socket = bench.directory.join("nbd.sock");
    let request = ExportCreate {
        volume: "old/md".into(),
        nbd: Some(format!("unix:{}", socket.display())),
        ..ExportCreate::default()
    };
    let (volume, address) = request.validate().unwrap();
    (socket, engine.export_create(request, volume, address).await.unwrap())
}

async fn read(socket: PathBuf, len: usize) -> Vec<u8> {
    tokio::task::spawn_blocking(move || client::read(&socket, "old/md", 0, len).unwrap()).await.unwrap()
}

fn images(drives: &[String]) -> Vec<Vec<u8>> {
    drives.iter().map(|drive| std::fs::read(drive).unwrap()).collect()
}

#[tokio::test]
async fn an_import_is_exported_for_reading_survives_the_daemon_and_changes_nothing() {
    let bench = Bench::new();
    let (drives, content) = raid5(&bench, |_, _| {});
    let before = images(&drives);
    {
        let engine = bench.engine().await;
        let planned = import(&engine, ImportMd { dry_run: true, ..request(&drives) }).await.unwrap();
        assert_eq!((planned.object, planned.found.len(), planned.steps.len()), (None, 1, 1));
        assert!(engine.imports().await.unwrap().is_empty(), "a dry run changes nothing");

        let imported = import(&engine, request(&drives[1..])).await.unwrap();
        assert_eq!(imported.warnings, ["slot 0 is missing"]);
        let shown = imported.object.unwrap();
        assert_eq!(
            (shown.name.as_str(), shown.volume.as_str(), shown.health),
            ("old", "old/md", GroupHealth::Degraded)
        );
        let (socket, changed) = export(&bench, &engine).await;
        assert_eq!(changed.warnings, ["an import is exported for reading only"]);
        let exported = changed.object.unwrap();
        assert!(exported.read_only && exported.listening, "{exported:?}");
        assert_eq!(read(socket.clone(), content.len()).await, content);
        let refused = tokio::task::spawn_blocking(move || client::write(&socket, "old/md", 0, &[1; 4096]));
        assert_eq!(refused.await.unwrap().unwrap_err().to_string(), "error 1", "EPERM");
        end(engine).await;
    }
    let engine = bench.engine().await;
    let shown = engine.import("old").await.unwrap();
    assert_eq!((shown.health, shown.exports.len()), (GroupHealth::Degraded, 1));
    assert_eq!(read(bench.directory.join("nbd.sock"), content.len()).await, content);
    let volume = engine.volume(&"old/md".parse().unwrap()).await.unwrap();
    assert_eq!((volume.kind, volume.size_bytes), (VolumeKind::Md, content.len() as u64));
    assert_eq!(engine.drives().await.unwrap().len(), 2);
    assert_eq!(engine.volumes().await.unwrap().len(), 1);

    let exports = engine.exports().await.unwrap();
    engine.export_delete(&exports[0].id).await.unwrap();
    engine.import_forget("old", ImportForget::default()).await.unwrap();
    assert_eq!(engine.import("old").await.unwrap_err().code, ErrorCode::ImportNotFound);
    end(engine).await;
    let engine = bench.engine().await;
    assert!(engine.imports().await.unwrap().is_empty(), "what was forgotten stays so");
    // The drives are free: the complete array can be imported again.
    assert_eq!(import(&engine, request(&drives)).await.unwrap().object.unwrap().health, GroupHealth::Optimal);
    end(engine).await;
    assert_eq!(images(&drives), before);
}

#[tokio::test]
async fn an_import_whose_drives_are_gone_is_listed_with_the_reason_and_can_be_forgotten() {
    let bench = Bench::new();
    let (drives, content) = raid5(&bench, |_, _| {});
    {
        let engine = bench.engine().await;
        import(&engine, request(&drives)).await.unwrap();
        export(&bench, &engine).await;
        end(engine).await;
    }
    let away = bench.drive("away");
    std::fs::rename(&drives[0], &away).unwrap();
    std::fs::rename(&drives[1], bench.drive("away-too")).unwrap();
    {
        let engine = bench.engine().await;
        let shown = engine.import("old").await.unwrap();
        assert_eq!((shown.health, shown.array), (GroupHealth::Failed, None));
        let message = shown.message.unwrap();
        assert!(message.contains("2 of 3 are missing") && message.contains("does not exist"), "{message}");
        assert!(engine.exports().await.unwrap().iter().all(|export| !export.listening));
        end(engine).await;
    }
    // One drive is back: the import goes on degraded.
    std::fs::rename(&away, &drives[0]).unwrap();
    let engine = bench.engine().await;
    assert_eq!(engine.import("old").await.unwrap().health, GroupHealth::Degraded);
    assert_eq!(read(bench.directory.join("nbd.sock"), content.len()).await, content);
    engine.import_forget("old", ImportForget { force: true, dry_run: false }).await.unwrap();
    assert!(engine.exports().await.unwrap().is_empty());
    end(engine).await;
}

#[tokio::test]
async fn what_cannot_be_imported_is_refused_with_the_reason_and_lets_go_of_the_drives() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (drives, _) = raid5(&bench, |number, plain| {
        plain.resync_offset = 0;
        plain.events = if number == 2 { 50 } else { 100 };
    });
    let refusal = async |request: ImportMd| import(&engine, request).await.unwrap_err().message;
    assert_eq!(
        refusal(request(&drives)).await,
        format!(
            "the array \"host:old\" (616e2061:72726179:27732075:7569642e) is not read: it was not stopped cleanly and is degraded \
             (slots 2 are missing): what was being written may be computed wrongly, so md does not start it without --force; to \
             read it all the same, say --allow-inconsistent (left out: {}: stale: its superblock has seen 50 events, the newest 100)",
            drives[2]
        )
    );
    let planned = import(&engine, ImportMd { dry_run: true, ..request(&drives) }).await.unwrap();
    assert!(planned.steps.is_empty() && planned.found[0].refusal.is_some(), "{planned:?}");
    let consented = ImportMd { allow_inconsistent: true, name: Some("kept".into()), ..request(&drives) };
    let imported = import(&engine, consented).await.unwrap();
    assert_eq!(imported.object.unwrap().drives, drives[..2]);
    assert_eq!(
        refusal(request(&drives[..1])).await,
        format!("{0} is in use: another process, or this one, has locked the file", drives[0])
    );
    let taken = ImportMd { name: Some("kept".into()), ..request(&drives[2..]) };
    assert!(refusal(taken).await.contains("2 of 3 are missing"));
    let group = bench.request("kept", Level::Raid1, 2);
    let shape = shape_of(&group);
    assert_eq!(engine.group_create(group, shape).await.unwrap_err().message, "there is an import \"kept\" already");
    assert_eq!(
        engine.group_stop("kept", GroupStop::default()).await.unwrap_err().message,
        "\"kept\" is an import, not a group: see `purlin import show kept`"
    );
    engine.import_forget("kept", ImportForget::default()).await.unwrap();

    let group = bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    engine.group_stop("tank", GroupStop::default()).await.unwrap();
    let member = group.members[0].drive.clone().unwrap();
    let message = refusal(request(&[member])).await;
    assert!(message.contains("the drives hold no md array") && message.contains("Purlin superblock"), "{message}");

    // Two arrays at once: the request has to name one.
    let other = |number: u32| {
        let mut plain = Plain::new(1, 0, 2, 0, 64, number);
        (plain.array, plain.name) = ([9; 16], "other");
        let mut bytes = vec![0; 1 << 20];
        bytes[4096..8192].copy_from_slice(&plain.bytes());
        std::fs::write(bench.drive(&format!("m{number}")), bytes).unwrap();
        bench.drive(&format!("m{number}"))
    };
    let both = [drives.clone(), vec![other(0), other(1)]].concat();
    let message = refusal(request(&both)).await;
    assert!(message.starts_with("the drives hold several arrays, say with --array which: \"host:old\" ("), "{message}");
    let chosen = import(&engine, ImportMd { array: Some("other".into()), ..request(&both) }).await.unwrap();
    assert_eq!((chosen.object.unwrap().name.as_str(), chosen.found.len()), ("other", 2));
    assert!(
        refusal(ImportMd { array: Some("none".into()), ..request(&drives) })
            .await
            .starts_with("the drives hold no array \"none\"")
    );
    end(engine).await;
}

/// An engine that is not stopped in order: its import is remembered from the moment it was made.
#[tokio::test]
async fn an_import_is_remembered_when_it_is_made() {
    let bench = Bench::new();
    let (drives, _) = raid5(&bench, |_, _| {});
    let engine: Arc<Engine> = bench.engine().await;
    import(&engine, request(&drives)).await.unwrap();
    let state = std::fs::read_to_string(bench.directory.join("state/imports.json")).unwrap();
    assert!(drives.iter().all(|drive| state.contains(drive.as_str())), "{state}");
    end(engine).await;
}
