//! Metrics are in Prometheus' text format, and agree with the API.

use std::collections::{BTreeMap, BTreeSet};

use api::{DriveDetails, DriveHealth, DriveList, GroupList, HostList, Status, VolumeList};
use axum::body::Body;
use axum::http::Request;
use daemon::http::metrics_text;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{Machine, call, filled, send};

fn assert_says<'a>(text: &str, lines: impl IntoIterator<Item = &'a str>) {
    for line in lines {
        assert!(text.lines().any(|other| other == line), "{line} is missing in:\n{text}");
    }
}

#[tokio::test]
async fn metrics_say_what_the_api_says() {
    let machine = filled().await;
    let (status, _) = call(&machine, "POST", "/v1/groups/tank/members/2/fail", json!({})).await;
    assert_eq!(status, 200);
    let (_, text) = send(&machine, "GET", "/metrics", "").await;
    let group = call(&machine, "GET", "/v1/groups/tank", Value::Null).await.1;
    let lines = [
        format!("purlin_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
        "purlin_group_health{group=\"tank\",health=\"optimal\"} 0".into(),
        "purlin_group_health{group=\"tank\",health=\"degraded\"} 1".into(),
        "purlin_group_members{group=\"tank\",state=\"in-sync\"} 5".into(),
        "purlin_group_members{group=\"tank\",state=\"faulty\"} 1".into(),
        "purlin_group_losses_left{group=\"tank\"} 1".into(),
        format!("purlin_group_capacity_bytes{{group=\"tank\"}} {}", group["capacity_bytes"]),
        "purlin_group_allocated_bytes{group=\"tank\"} 67108864".into(),
        format!("purlin_drive_online{{drive=\"{}\",group=\"tank\"}} 0", machine.drive("2")),
        format!("purlin_drive_online{{drive=\"{}\",group=\"tank\"}} 1", machine.drive("1")),
        format!("purlin_drive_damaged_total{{drive=\"{}\",group=\"tank\"}} 0", machine.drive("1")),
        "purlin_group_checksums{group=\"tank\"} 1".into(),
        "purlin_export_connections{export=\"tank-2\",volume=\"tank/db\",protocol=\"nbd\"} 0".into(),
    ];
    assert_says(&text, lines.iter().map(String::as_str));
    assert!(text.ends_with("# EOF\n"));
}

/// An example of docs/cli/json.md.
fn example<T: DeserializeOwned>(name: &str) -> T {
    let page = include_str!("../../../../docs/cli/json.md");
    let (_, rest) = page.split_once(&format!("<!-- type: {name} -->\n```json\n")).expect("it is on the page");
    serde_json::from_str(rest.split("```").next().expect("it ends")).unwrap()
}

/// With figures that a real machine does not have at will.
#[test]
fn loads_latencies_and_jobs_have_the_figures_of_the_api_in_seconds_and_ratios() {
    let (status, mut groups) = (example::<Status>("Status"), example::<GroupList>("GroupList").groups);
    groups[0].jobs = status.groups[0].jobs.clone();
    let (drives, volumes) = (example::<DriveList>("DriveList").drives, example::<VolumeList>("VolumeList").volumes);
    assert_says(
        &metrics_text(&status, &groups, &drives, &volumes, &healths()),
        [
            "purlin_uptime_seconds 7265",
            "purlin_drive_temperature_celsius{drive=\"/dev/nvme0n1\",group=\"tank\"} 41",
            "purlin_drive_life_used_ratio{drive=\"/dev/nvme0n1\",group=\"tank\"} 0.03",
            "purlin_volume_ops_total{volume=\"tank/db\",op=\"read\"} 0",
            "purlin_group_shards{group=\"tank\"} 2",
            "purlin_shard_busy_ratio{shard=\"0\"} 0.125",
            "purlin_group_latency_seconds{group=\"tank\",op=\"read\",stat=\"p99\"} 0.00031",
            "purlin_drive_ops_total{drive=\"/dev/nvme0n1\",group=\"tank\",op=\"read\"} 7",
            "purlin_job_done_ratio{group=\"tank\",job=\"rebuild\",slot=\"2\"} 0.5",
        ],
    );
}

/// A health report of a drive.
fn healths() -> BTreeMap<String, DriveHealth> {
    let details: DriveDetails = example("DriveDetails");
    let health = DriveHealth { temperature_c: Some(41), used_percent: 3, ..details.health.expect("the page shows it") };
    BTreeMap::from([("/dev/nvme0n1".to_owned(), health)])
}

/// All metrics that there may be, with the figures of docs/cli/json.md.
fn everything() -> String {
    let (status, mut groups) = (example::<Status>("Status"), example::<GroupList>("GroupList").groups);
    groups[0].jobs = status.groups[0].jobs.clone();
    let status = Status { hosts: example::<HostList>("HostList").hosts, ..status };
    let (drives, volumes) = (example::<DriveList>("DriveList").drives, example::<VolumeList>("VolumeList").volumes);
    metrics_text(&status, &groups, &drives, &volumes, &healths())
}

/// Requests metrics as a client with this `Accept` header.
async fn accepted(machine: &Machine, accept: &str) -> (String, String) {
    let request = Request::builder().uri("/metrics").header("accept", accept).body(Body::empty()).unwrap();
    let response = machine.router.clone().oneshot(request).await.unwrap();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (content_type, String::from_utf8(body.to_vec()).unwrap())
}

/// Checks a text by the rules of `promtool check metrics`: every family is announced once, with
/// help before its type; names are plain, without abbreviated or derived units; counters end in
/// `_total`, and nothing else does; only summaries and histograms use their reserved labels; no
/// series comes twice.
fn check(text: &str, is_open_metrics: bool) {
    let (mut family, mut kind, mut helped) = (String::new(), String::new(), String::new());
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(help.len() > 5 && families.insert(name.to_owned()), "{line}");
                helped = name.to_owned();
            }
            ["#", "TYPE", name, said] => {
                assert_eq!(helped, name, "{line}: the help comes first");
                (family, kind) = (name.to_owned(), said.to_owned());
                assert!(matches!(said, "counter" | "gauge"), "{line}");
            }
            ["#", "UNIT", name, unit] => {
                assert!(is_open_metrics && name == family && name.ends_with(&format!("_{unit}")), "{line}");
            }
            ["#", "EOF"] => assert!(is_open_metrics, "{line}"),
            _ => {
                let (name, _) = line.split_at(line.find(['{', ' ']).unwrap());
                let (labelled, value) = line.rsplit_once(' ').unwrap();
                value.parse::<f64>().unwrap();
                assert!(series.insert(labelled.to_owned()), "{line} comes twice");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                let announced = if is_open_metrics { name.strip_suffix("_total").unwrap_or(name) } else { name };
                assert_eq!(announced, family, "{line}");
                assert!(!line.contains("quantile=") && !line.contains("le="), "{line}");
                let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
                assert!(name.starts_with("purlin_") && name.chars().all(plain), "{line}");
                for part in name.split('_') {
                    let bad =
                        ["ms", "us", "ns", "kb", "mb", "gb", "percent", "milliseconds", "ratios", "gauge", "counter"];
                    assert!(!bad.contains(&part), "{line}: {part}");
                }
                let end = name.strip_suffix("_total").unwrap_or(name);
                assert!(!["_count", "_sum", "_bucket"].iter().any(|suffix| end.ends_with(suffix)), "{line}");
            }
        }
    }
    assert_eq!(text.ends_with("# EOF\n"), is_open_metrics);
    assert!(series.len() > 50, "{}", series.len());
}

#[tokio::test]
async fn both_formats_follow_the_rules_of_prometheus_and_a_client_chooses_by_accept() {
    let machine = filled().await;
    let (content_type, text) = accepted(&machine, "application/openmetrics-text;version=1.0.0,text/plain;q=0.2").await;
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    check(&text, true);
    let (content_type, text) = accepted(&machine, "text/plain").await;
    assert_eq!(content_type, "text/plain; version=0.0.4; charset=utf-8");
    check(&text, false);
    assert!(text.contains("# TYPE purlin_volume_ops_total counter\n"), "{text}");
    check(&everything(), true);
    // For `promtool check metrics`, if it is installed.
    if let Some(path) = std::env::var_os("PURLIN_WRITE_METRICS") {
        std::fs::write(path, text).unwrap();
    }
}
