//! The ANA state of an address is the operator's last choice, also after a restart.

use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, VolumeControl};
use nvme::host::{Blocks, io};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::nvme_host::NvmeHost;

/// A volume at two addresses over NVMe/TCP, and over NBD.
async fn exports(bench: &Bench, engine: &Arc<Engine>) -> ([Export; 2], Export) {
    bench.create(engine, bench.request("tank", Level::Raid1, 2)).await;
    let volume = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    let nvme = |address| serde_json::json!({ "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096 } });
    let nbd = serde_json::json!({ "nbd": format!("unix:{}", bench.directory.join("nbd.sock").display()) });
    let mut made = Vec::new();
    for place in [nvme(bench.address()), nvme(bench.address()), nbd] {
        let mut request = place;
        request["volume"] = "tank/db".into();
        let request: ExportCreate = serde_json::from_value(request).unwrap();
        let (volume, place) = request.validate().unwrap();
        made.push(engine.export_create(request, volume, place).await.unwrap().object.unwrap());
    }
    let nbd = made.pop().unwrap();
    (made.try_into().unwrap(), nbd)
}

fn update(ana: AnaState) -> ExportUpdate {
    ExportUpdate { ana: Some(ana), dry_run: false }
}

async fn shown(engine: &Engine) -> Vec<Option<AnaState>> {
    engine.exports().await.unwrap().iter().map(|export| export.ana).collect()
}

/// The status of a read at an address.
async fn read(export: &Export) -> Status {
    let (address, subsystem): (String, Nqn) = (export.address.clone(), export.nqn.clone().unwrap().parse().unwrap());
    let asking = tokio::task::spawn_blocking(move || {
        let mut host = NvmeHost::connect(&address, &subsystem, 1);
        host.execute(io::read(Blocks { nsid: 1, first: 0, count: 1 }, 4096), &[], 4096).0
    });
    asking.await.unwrap()
}

#[tokio::test]
async fn an_address_that_is_closed_refuses_commands_until_it_is_opened_also_after_a_restart() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let ([one, two], nbd) = exports(&bench, &engine).await;
    assert_eq!(shown(&engine).await, [Some(AnaState::Optimized), Some(AnaState::Optimized), None]);
    let changed = engine.export_set(&one.id, update(AnaState::Inaccessible)).await.unwrap();
    let step = format!("tell hosts that the export {} is inaccessible at {}", one.id, one.address);
    assert_eq!((changed.steps, changed.warnings), (vec![step], vec![]), "there is another way");
    assert_eq!(changed.object.unwrap().ana, Some(AnaState::Inaccessible));
    engine.export_set(&two.id, update(AnaState::NonOptimized)).await.unwrap();
    assert_eq!([read(&one).await, read(&two).await], [Status::ACCESS_INACCESSIBLE, Status::SUCCESS]);
    // This is the last path.
    let planned = ExportUpdate { dry_run: true, ..update(AnaState::Inaccessible) };
    let planned = engine.export_set(&two.id, planned).await.unwrap();
    let warning = "no other address reaches tank/db: what hosts ask of it waits, or fails where they do not wait";
    assert_eq!((planned.dry_run, &planned.warnings[..]), (true, &[warning.to_owned()][..]));
    let expected = [Some(AnaState::Inaccessible), Some(AnaState::NonOptimized), None];
    assert_eq!(shown(&engine).await, expected, "a dry run changes nothing");
    // Other changes leave the state as it is.
    let same = engine.export_set(&one.id, update(AnaState::Inaccessible)).await.unwrap();
    assert!(same.steps.is_empty(), "{same:?}");
    let refused = engine.export_set(&nbd.id, update(AnaState::Optimized)).await.unwrap_err().message;
    let only = "is not one over NVMe/TCP: only those have an ANA state";
    assert_eq!(refused, format!("the export {:?} {only}", nbd.id));
    let nothing = engine.export_set("nothing-7", update(AnaState::Optimized)).await.unwrap_err();
    assert_eq!(nothing.message, "there is no export \"nothing-7\"");
    end(engine).await;

    let engine = bench.engine().await;
    assert_eq!(shown(&engine).await, expected);
    assert_eq!([read(&one).await, read(&two).await], [Status::ACCESS_INACCESSIBLE, Status::SUCCESS]);
    engine.export_set(&one.id, update(AnaState::Optimized)).await.unwrap();
    assert_eq!(read(&one).await, Status::SUCCESS);
    end(engine).await;
}

#[tokio::test]
async fn a_namespace_has_the_same_blocks_at_all_addresses_and_after_a_restart() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let volume = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    let asked = async |block_bytes: Option<u32>| {
        let place =
            serde_json::json!({ "address": bench.address(), "allow_any_host": true, "block_bytes": block_bytes });
        let request: ExportCreate =
            serde_json::from_value(serde_json::json!({ "volume": "tank/db", "nvme_tcp": place })).unwrap();
        let (volume, place) = request.validate().unwrap();
        engine.export_create(request, volume, place).await
    };
    // One of the two block sizes differs from the atomic write size of these drives.
    for (blocks, others) in [(512, 4096), (4096, 512)] {
        let first = asked(Some(blocks)).await.unwrap().object.unwrap();
        let second = asked(None).await.unwrap().object.unwrap();
        assert_eq!((first.block_bytes, second.block_bytes), (Some(blocks), Some(blocks)));
        assert!(first.atomic_bytes.is_some_and(|bytes| (512..=4096).contains(&bytes)), "{:?}", first.atomic_bytes);
        let refused = asked(Some(others)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Invalid);
        assert!(refused.message.contains("elsewhere"), "{}", refused.message);
        for export in [first, second] {
            engine.export_delete(&export.id).await.unwrap();
        }
    }
    asked(Some(512)).await.unwrap();
    end(engine).await;
    let engine = bench.engine().await;
    let blocks: Vec<_> = engine.exports().await.unwrap().iter().map(|export| export.block_bytes).collect();
    assert_eq!(blocks, [Some(512)]);
    end(engine).await;
}
