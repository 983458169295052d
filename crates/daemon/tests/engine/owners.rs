//! A group's writes use as many shards as they need.

use api::Level;
use daemon::http::GroupControl;

use crate::bench::*;

#[tokio::test]
async fn a_group_that_has_little_to_do_is_owned_by_one_shard() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let group = bench.create(&engine, bench.request("tank", Level::Raid5, 3)).await;
    assert_eq!(group.shards, [0, 1]);
    engine.start_balancing();
    let began = std::time::Instant::now();
    while engine.group("tank").await.unwrap().shards.len() > 1 {
        assert!(began.elapsed() < PATIENCE, "two shards own it still");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    end(engine).await;
}
