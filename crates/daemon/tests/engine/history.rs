//! The history of a subsystem outlives the daemon, and hosts can read it.

use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, GroupControl, VolumeControl};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::nvme_host::NvmeHost;

/// The log as host `number` reads it: power cycles, and the events, the newest first. For an added
/// or removed namespace, its number.
async fn log(address: &str, subsystem: &Nqn, number: u8) -> (u64, Vec<String>) {
    let (address, subsystem) = (address.to_owned(), subsystem.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let mut host = NvmeHost::connect(&address, &subsystem, number);
        let mut submission = nvme::host::admin::get_log_page(0x0D, 0, 65_536, false);
        // Establish Context and Read Log Data.
        submission.command.set_cdw(10, submission.command.cdw(10) | 0b01 << 8);
        let (status, page) = host.administer(submission.command, 65_536);
        assert_eq!(status, Status::SUCCESS);
        page
    });
    let page = reading.await.unwrap();
    let field =
        |at: usize, len: usize| page[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut at = 512;
    let mut events = Vec::new();
    while at < field(8, 8) as usize {
        let data = at + usize::from(page[at + 2]) + 3;
        let select = if page[at] == 6 { field(data, 4) } else { 0 };
        events.push(match (page[at], select) {
            (4, _) => "power on".to_owned(),
            (6, 0) => format!("created {} of {} blocks", field(data + 44, 4), field(data + 8, 8)),
            (6, 1) => format!("deleted {}", field(data + 44, 4)),
            (kind, select) => format!("event {kind}, {select}"),
        });
        at = data + field(at + 22, 2) as usize;
    }
    (field(44, 8), events)
}

async fn export(engine: &Arc<Engine>, export: serde_json::Value) -> Export {
    let request: ExportCreate = serde_json::from_value(export).unwrap();
    let (volume, place) = request.validate().unwrap();
    engine.export_create(request, volume, place).await.unwrap().object.unwrap()
}

#[tokio::test]
async fn what_happened_to_a_subsystem_outlives_the_daemon() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    for volume in ["db", "secret"] {
        let volume = serde_json::json!({ "group": "tank", "volume": volume, "size_bytes": 8 << 20 });
        engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    }
    let (address, other) = (bench.address(), bench.address());
    let at = |address: &str| serde_json::json!({ "address": address, "allow_any_host": true, "block_bytes": 4096 });
    let first = export(&engine, serde_json::json!({ "volume": "tank/db", "nvme_tcp": at(&address) })).await;
    let nqn: Nqn = first.nqn.clone().unwrap().parse().unwrap();
    assert_eq!(log(&address, &nqn, 1).await, (1, vec!["created 1 of 2048 blocks".to_owned(), "power on".to_owned()]));
    // Another path to the same namespace, and a namespace for another host: the host gets no event
    // for either.
    let second = export(&engine, serde_json::json!({ "volume": "tank/db", "nvme_tcp": at(&other) })).await;
    let hidden =
        serde_json::json!({ "address": address, "hosts": ["nqn.2026-11.com.example:host-2"], "block_bytes": 4096 });
    export(&engine, serde_json::json!({ "volume": "tank/secret", "nvme_tcp": hidden })).await;
    assert_eq!(log(&address, &nqn, 1).await.1, ["created 1 of 2048 blocks", "power on"]);
    assert_eq!(log(&other, &nqn, 2).await.1, ["created 2 of 2048 blocks", "created 1 of 2048 blocks", "power on"]);
    end(engine).await;

    let engine = bench.engine().await;
    let after = ["power on", "created 1 of 2048 blocks", "power on"].map(str::to_owned);
    assert_eq!(log(&address, &nqn, 1).await, (2, after.to_vec()));
    // The removal of a path is not the removal of the namespace.
    engine.export_delete(&first.id).await.unwrap();
    assert_eq!(log(&other, &nqn, 1).await.1, after);
    engine.export_delete(&second.id).await.unwrap();
    // The other namespace of this subsystem is still there.
    let gone = ["deleted 1", "power on", "created 2 of 2048 blocks", "created 1 of 2048 blocks", "power on"];
    assert_eq!(log(&address, &nqn, 2).await.1, gone);

    let histories = || {
        let state = std::fs::read_dir(bench.directory.join("state")).unwrap();
        state.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("history-")).count()
    };
    assert_eq!(histories(), 1);
    engine.group_delete("tank", false).await.unwrap();
    assert_eq!(histories(), 0, "it goes with the group");
    end(engine).await;
}
