//! Metrics are text that Prometheus reads, and say what the API says.

use api::{DriveList, GroupList, Status, VolumeList};
use daemon::http::metrics_text;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{call, filled, send};

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
        format!("purlin_build{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
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

/// With figures that a machine does not have when it is asked for them.
#[test]
fn loads_latencies_and_jobs_have_the_figures_of_the_api_in_seconds_and_ratios() {
    let (status, mut groups) = (example::<Status>("Status"), example::<GroupList>("GroupList").groups);
    groups[0].jobs = status.groups[0].jobs.clone();
    let (drives, volumes) = (example::<DriveList>("DriveList").drives, example::<VolumeList>("VolumeList").volumes);
    assert_says(
        &metrics_text(&status, &groups, &drives, &volumes),
        [
            "purlin_uptime_seconds 7265",
            "purlin_group_shards{group=\"tank\"} 2",
            "purlin_shard_busy_ratios{shard=\"0\"} 0.125",
            "purlin_group_latency_seconds{group=\"tank\",op=\"read\",quantile=\"0.99\"} 0.00031",
            "purlin_drive_ops_total{drive=\"/dev/nvme0n1\",group=\"tank\",op=\"read\"} 7",
            "purlin_job_done_ratios{group=\"tank\",job=\"rebuild\",slot=\"2\"} 0.5",
        ],
    );
}

/// Every sample has a family that was announced with type and help before it, as OpenMetrics asks for.
#[tokio::test]
async fn every_sample_belongs_to_an_announced_family() {
    let machine = filled().await;
    let (_, text) = send(&machine, "GET", "/metrics", "").await;
    let mut family = String::new();
    let mut samples = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name.strip_suffix("_total").unwrap_or(name), family, "{line}");
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            samples += 1;
        }
    }
    assert!(samples > 50, "{samples}");
}
