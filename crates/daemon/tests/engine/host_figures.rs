//! The API and the metrics report the activity of a connected NVMe host.

use std::time::Instant;

use api::*;
use daemon::Engine;
use daemon::http::{Control, ExportControl, HostControl, VolumeControl};
use nvme::host::{Blocks, io};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::nvme_host::NvmeHost;

const BLOCK_BYTES: u32 = 4096;

/// The NQN that [`NvmeHost`] uses for host 1.
const HOST: &str = "nqn.2026-11.com.example:host-1";

/// A volume of 8 MiB over NVMe/TCP.
async fn export(bench: &Bench, engine: &Engine) -> Export {
    bench.create(engine, bench.request("tank", Level::Raid1, 2)).await;
    let volume = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    let place = serde_json::json!({ "address": bench.address(), "hosts": [HOST], "block_bytes": BLOCK_BYTES });
    let request: ExportCreate =
        serde_json::from_value(serde_json::json!({ "volume": "tank/db", "nvme_tcp": place })).unwrap();
    let (volume, place) = request.validate().unwrap();
    engine.export_create(request, volume, place).await.unwrap().object.unwrap()
}

/// Reads blocks, and waits for the answer.
fn read(host: &mut NvmeHost, first: u64, count: u32) -> Status {
    let len = count * BLOCK_BYTES;
    host.execute(io::read(Blocks { nsid: 1, first, count }, len), &[], len).0
}

/// The value of the sample with these labels.
fn sample(text: &str, labels: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(labels)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{labels} is missing in:\n{text}")).parse().unwrap()
}

fn assert_says(text: &str, samples: &[(&str, f64)]) {
    for (name, value) in samples {
        let (family, labels) = name.split_once(' ').map_or((*name, String::new()), |(f, l)| (f, format!(",{l}")));
        let sample = sample(text, &format!("purlin_host_{family}{{host=\"{HOST}\"{labels}}}"));
        assert!((sample - value).abs() < 1e-9, "{name} is {sample} and not {value} in:\n{text}");
    }
}

/// Three writes of a block, five reads of two, a flush, and a read beyond the end.
fn do_io(host: &mut NvmeHost) {
    let block = vec![7; BLOCK_BYTES as usize];
    for first in 0..3 {
        let write = io::write(Blocks { nsid: 1, first, count: 1 }, BLOCK_BYTES, true, false);
        assert_eq!(host.execute(write, &block, 0).0, Status::SUCCESS);
    }
    for first in 0..5 {
        assert_eq!(read(host, first, 2), Status::SUCCESS);
    }
    assert_eq!(host.execute(io::flush(1), &[], 0).0, Status::SUCCESS);
    assert_eq!(read(host, 1 << 40, 1), Status::LBA_OUT_OF_RANGE);
}

/// The samples of [`do_io`]. The latencies are those that the API reports.
fn samples_of_io(reads: LatencyUs, writes: LatencyUs) -> [(&'static str, f64); 16] {
    [
        ("controllers", 1.0),
        ("queues", 1.0),
        ("in_flight", 0.0),
        ("errors_total", 1.0),
        ("ops_total op=\"read\"", 5.0),
        ("ops_total op=\"write\"", 3.0),
        ("ops_total op=\"flush\"", 1.0),
        ("ops_total op=\"discard\"", 0.0),
        ("io_bytes_total op=\"read\"", 40_960.0),
        ("io_bytes_total op=\"write\"", 12_288.0),
        ("latency_seconds op=\"read\",stat=\"p50\"", reads.p50 / 1e6),
        ("latency_seconds op=\"read\",stat=\"p99\"", reads.p99 / 1e6),
        ("latency_seconds op=\"read\",stat=\"max\"", reads.max / 1e6),
        ("latency_seconds op=\"write\",stat=\"p50\"", writes.p50 / 1e6),
        ("latency_seconds op=\"write\",stat=\"p99\"", writes.p99 / 1e6),
        ("latency_seconds op=\"write\",stat=\"max\"", writes.max / 1e6),
    ]
}

#[tokio::test]
async fn the_metrics_of_a_connected_host_are_what_it_has_done_and_what_is_under_way() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let made = export(&bench, &engine).await;
    let subsystem: Nqn = made.nqn.clone().unwrap().parse().unwrap();
    let mut host = NvmeHost::connect(&made.address, &subsystem, 1);
    do_io(&mut host);

    let text = engine.metrics().await.unwrap();
    let shown = engine.hosts().await.unwrap().remove(0);
    let (reads, writes) = (shown.read_latency_us.unwrap(), shown.write_latency_us.unwrap());
    for us in [reads, writes] {
        assert!(us.p50 >= 1.0 && us.p50 <= us.p99 && us.p99 <= us.max && us.max < 120e6, "{us:?}");
    }
    assert_says(&text, &samples_of_io(reads, writes));

    // The first request is free, and the second one waits for it.
    let slow = LimitUpdate { iops: Some(1), bytes_per_s: None, burst_ms: Some(10), dry_run: false };
    engine.host_limit(&made.id, HOST, slow).await.unwrap();
    let waiting = tokio::task::spawn_blocking(move || {
        let ends = [read(&mut host, 0, 1), read(&mut host, 0, 1)];
        (host, ends)
    });
    let began = Instant::now();
    let in_flight = format!("purlin_host_in_flight{{host=\"{HOST}\"}}");
    while sample(&engine.metrics().await.unwrap(), &in_flight) != 1.0 {
        assert!(began.elapsed() < PATIENCE && !waiting.is_finished(), "nothing was seen under way");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (host, ends) = waiting.await.unwrap();
    assert_eq!(ends, [Status::SUCCESS; 2]);
    assert_says(&engine.metrics().await.unwrap(), &[("in_flight", 0.0), ("ops_total op=\"read\"", 7.0)]);

    drop(host);
    let began = Instant::now();
    while engine.hosts().await.unwrap()[0].controller_count > 0 {
        assert!(began.elapsed() < PATIENCE, "it is connected still");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let gone = [("controllers", 0.0), ("queues", 0.0), ("ops_total op=\"write\"", 3.0)];
    assert_says(&engine.metrics().await.unwrap(), &gone);
    end(engine).await;
}
