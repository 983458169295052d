//! Metrics are text that Prometheus reads, and say what the API says.

use serde_json::{Value, json};

use crate::{call, filled, send};

#[tokio::test]
async fn metrics_say_what_the_api_says() {
    let router = filled().await;
    let (status, _) = call(&router, "POST", "/v1/groups/tank/members/2/fail", json!({})).await;
    assert_eq!(status, 200);
    let (_, text) = send(&router, "GET", "/metrics", "").await;
    for line in [
        "purlin_build{version=\"0.1.0\"} 1",
        "purlin_uptime_seconds 7265",
        "purlin_shard_busy_ratios{shard=\"1\"} 0.125",
        "purlin_group_health{group=\"tank\",health=\"optimal\"} 0",
        "purlin_group_health{group=\"tank\",health=\"degraded\"} 1",
        "purlin_group_members{group=\"tank\",state=\"in-sync\"} 5",
        "purlin_group_members{group=\"tank\",state=\"faulty\"} 1",
        "purlin_group_losses_left{group=\"tank\"} 1",
        "purlin_group_capacity_bytes{group=\"tank\"} 4294967296",
        "purlin_group_allocated_bytes{group=\"tank\"} 1073741824",
        "purlin_group_latency_seconds{group=\"tank\",op=\"read\",quantile=\"0.99\"} 0.00031",
        "purlin_drive_online{drive=\"/drives/2\",group=\"tank\"} 0",
        "purlin_drive_ops_total{drive=\"/drives/1\",group=\"tank\",op=\"read\"} 7",
        "purlin_drive_damaged_total{drive=\"/drives/1\",group=\"tank\"} 0",
        "purlin_group_checksums{group=\"tank\"} 1",
        "purlin_export_connections{export=\"2\",volume=\"tank/db\",protocol=\"nbd\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_running_job_has_its_progress_in_the_metrics() {
    let router = filled().await;
    call(&router, "POST", "/v1/groups/tank/members/2/replace", json!({"with": "/drives/new"})).await;
    call(&router, "GET", "/v1/groups/tank", Value::Null).await;
    let (_, text) = send(&router, "GET", "/metrics", "").await;
    assert!(text.contains("purlin_job_done_ratios{group=\"tank\",job=\"rebuild\",slot=\"2\"} 0.5\n"), "{text}");
}

/// Every sample has a family that was announced with type and help before it, as OpenMetrics asks for.
#[tokio::test]
async fn every_sample_belongs_to_an_announced_family() {
    let (_, text) = send(&filled().await, "GET", "/metrics", "").await;
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
