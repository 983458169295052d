//! The limits of volumes and hosts are stored on the drives, and may change.

use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{Control, ControlError, ExportControl, HostControl, VolumeControl};

use crate::bench::*;
use crate::client;

const A: &str = "nqn.2026-11.com.example:a";
const B: &str = "nqn.2026-11.com.example:b";

fn parsed<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn update(iops: u64, bytes_per_s: u64, burst_ms: u64) -> LimitUpdate {
    LimitUpdate { iops: Some(iops), bytes_per_s: Some(bytes_per_s), burst_ms: Some(burst_ms), dry_run: false }
}

fn volume() -> VolumeName {
    "tank/v".parse().unwrap()
}

async fn export(engine: &Engine, request: serde_json::Value) -> Export {
    let request: ExportCreate = parsed(request);
    let (volume, place) = request.validate().unwrap();
    engine.export_create(request, volume, place).await.unwrap().object.unwrap()
}

/// A group with a volume, over NBD at a socket, and over NVMe/TCP to the host A.
async fn exports(bench: &Bench, engine: &Engine) -> (std::path::PathBuf, String) {
    bench.create(engine, bench.request("tank", Level::Raid1, 2)).await;
    let create: VolumeCreate = parsed(serde_json::json!({ "group": "tank", "volume": "v", "size_bytes": 8 << 20 }));
    engine.volume_create(create).await.unwrap();
    let socket = bench.directory.join("nbd.sock");
    export(engine, serde_json::json!({ "volume": "tank/v", "nbd": format!("unix:{}", socket.display()) })).await;
    let nvme = serde_json::json!({ "address": bench.address(), "hosts": [A] });
    let id = export(engine, serde_json::json!({ "volume": "tank/v", "nvme_tcp": nvme })).await.id;
    (socket, id)
}

async fn host_limit(engine: &Engine, host: &str) -> Option<(Option<u64>, Option<u64>, u64)> {
    let hosts = engine.hosts().await.unwrap();
    let host = hosts.iter().find(|known| known.nqn == host)?;
    host.exports[0].limit.map(|limit| (limit.iops, limit.bytes_per_s, limit.burst_ms))
}

#[tokio::test]
async fn a_limit_holds_at_once_and_after_a_restart_until_it_is_taken_off() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (socket, id) = exports(&bench, &engine).await;
    let changed = engine.volume_limit(&volume(), update(0, 2 << 20, 10)).await.unwrap();
    assert_eq!(changed.steps, ["limit the volume \"tank/v\" to 2 MiB a second, and what 10ms allow at once"]);
    let limit = changed.object.unwrap().limit.unwrap();
    assert_eq!((limit.iops, limit.bytes_per_s, limit.burst_ms, limit.waited_count), (None, Some(2 << 20), 10, 0));
    engine.host_limit(&id, A, update(1000, 0, 500)).await.unwrap();
    end(engine).await;

    let engine = bench.engine().await;
    assert_eq!(host_limit(&engine, A).await, Some((Some(1000), None, 500)));
    // Four requests of 1 MiB: the first goes at once, and the ones after it pay for it.
    let write = move |socket: std::path::PathBuf| {
        let start = Instant::now();
        client::write(&socket, "tank/v", 0, &vec![7; 4 << 20]).unwrap();
        start.elapsed()
    };
    let at = socket.clone();
    let slow = tokio::task::spawn_blocking(move || write(at)).await.unwrap();
    assert!(slow > Duration::from_millis(1400), "3 MiB at 2 MiB a second took {slow:?}");
    let limit = engine.volume(&volume()).await.unwrap().limit.unwrap();
    assert_eq!((limit.waiting_count, limit.waited_count), (0, 3));
    // A request does not count the time before it was sent as its waiting time.
    assert!(limit.waited_us > 0 && u128::from(limit.waited_us) <= 3 * slow.as_micros(), "{limit:?}");
    let metrics = engine.metrics().await.unwrap();
    assert!(metrics.contains("purlin_volume_limit_waits_total{volume=\"tank/v\"} 3\n"), "{metrics}");
    let rate = format!("purlin_host_limit_iops{{host=\"{A}\",export=\"{id}\"}} 1000\n");
    assert!(metrics.contains(&rate), "{metrics}");

    let off =
        engine.volume_limit(&volume(), LimitUpdate { bytes_per_s: Some(0), ..LimitUpdate::default() }).await.unwrap();
    assert_eq!(off.steps, ["limit the volume \"tank/v\" no longer"]);
    assert_eq!(off.object.unwrap().limit, None);
    let started = Instant::now();
    tokio::task::spawn_blocking(move || (0..8).map(|_| write(socket.clone())).sum::<Duration>()).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(14), "32 MiB at 2 MiB a second would take 16 s");
    end(engine).await;
    let engine = bench.engine().await;
    assert_eq!(engine.volume(&volume()).await.unwrap().limit, None);
    end(engine).await;
}

#[tokio::test]
async fn limits_go_with_what_they_are_of_and_those_that_mean_nothing_are_refused() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (_, id) = exports(&bench, &engine).await;
    let said = |refused: ControlError| refused.message;
    let burst = LimitUpdate { burst_ms: Some(50), ..LimitUpdate::default() };
    assert_eq!(
        said(engine.volume_limit(&volume(), burst).await.unwrap_err()),
        "the volume \"tank/v\" is not limited: name a number of requests or a bandwidth first"
    );
    assert_eq!(
        said(engine.host_limit(&id, B, update(1, 0, 10)).await.unwrap_err()),
        format!("{B} may not use the export {id:?}: let it with `purlin host allow` first")
    );
    let nbd = engine.exports().await.unwrap().into_iter().find(|export| export.protocol == Protocol::Nbd).unwrap().id;
    assert_eq!(
        said(engine.host_limit(&nbd, A, update(1, 0, 10)).await.unwrap_err()),
        format!("the export {nbd:?} is not one over NVMe/TCP: only those know hosts")
    );
    let planned = engine.host_limit(&id, A, LimitUpdate { dry_run: true, ..update(2, 0, 10) }).await.unwrap();
    assert!(planned.dry_run && planned.warnings[0].contains("give up and connect again"), "{planned:?}");
    assert_eq!(host_limit(&engine, A).await, None, "a dry run changes nothing");

    engine.host_allow(&id, B).await.unwrap();
    engine.host_limit(&id, B, update(5000, 0, 10)).await.unwrap();
    assert_eq!(host_limit(&engine, B).await, Some((Some(5000), None, 10)));
    engine.host_deny(&id, B).await.unwrap();
    engine.host_allow(&id, B).await.unwrap();
    assert_eq!(host_limit(&engine, B).await, None, "a host that is put out leaves its limit behind");
    engine.host_limit(&id, B, update(5000, 0, 10)).await.unwrap();
    engine.volume_limit(&volume(), update(5000, 0, 10)).await.unwrap();
    engine.export_delete(&id).await.unwrap();
    engine.export_delete(&nbd).await.unwrap();
    engine.volume_delete(&volume(), false).await.unwrap();
    end(engine).await;
    let engine = bench.engine().await;
    assert!(engine.volumes().await.unwrap().is_empty(), "the catalogue is whole without them");
    end(engine).await;
}
