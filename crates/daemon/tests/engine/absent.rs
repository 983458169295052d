//! Groups that could not be started when the daemon was.

use std::time::{Duration, Instant};

use api::*;
use daemon::http::Control;

use crate::bench::*;
use crate::shelf::head;

#[tokio::test]
async fn a_group_that_could_not_be_started_is_tried_again_by_itself_once_its_drives_are_there() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid5, 3)).await;
    end(engine).await;
    // Files have no events: it is as with an adapter that works again.
    let drives: Vec<String> = (0..3).map(|index| bench.drive(&format!("tank-{index}"))).collect();
    let aside = |drive: &String| format!("{drive}.aside");
    drives[1..].iter().for_each(|drive| std::fs::rename(drive, aside(drive)).unwrap());
    let engine = head(&bench).await;
    assert_eq!(engine.group("tank").await.unwrap_err().code, ErrorCode::GroupNotFound);
    drives[1..].iter().for_each(|drive| std::fs::rename(aside(drive), drive).unwrap());
    let began = Instant::now();
    let group = loop {
        match engine.group("tank").await {
            Ok(group) => break group,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{}", error.message),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(group.health, GroupHealth::Optimal);
    end(engine).await;
}
