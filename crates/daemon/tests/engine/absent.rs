//! Groups that could not be started when the daemon started.

use std::time::{Duration, Instant};

use api::*;
use daemon::http::{Control, GroupControl};

use crate::bench::*;
use crate::target::head;

#[tokio::test]
async fn a_group_that_could_not_be_started_is_tried_again_by_itself_once_its_drives_are_there() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid5, 3)).await;
    end(engine).await;
    // Files have no events: this is like an adapter that works again.
    let drives: Vec<String> = (0..3).map(|index| bench.drive(&format!("tank-{index}"))).collect();
    let aside = |drive: &String| format!("{drive}.aside");
    drives[1..].iter().for_each(|drive| std::fs::rename(drive, aside(drive)).unwrap());
    let engine = head(&bench).await;
    let refused = engine.group("tank").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::WrongState);
    assert!(refused.message.contains("is not started"), "{}", refused.message);
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

#[tokio::test]
async fn a_group_that_could_not_be_started_is_shown_keeps_its_name_and_can_be_forgotten() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid5, 3)).await;
    end(engine).await;
    for index in 0..2 {
        std::fs::remove_file(bench.drive(&format!("tank-{index}"))).unwrap();
    }
    let engine = bench.engine().await;
    let [shown] = &engine.groups_not_started().await.unwrap()[..] else { panic!("one group") };
    assert_eq!(shown.name, "tank");
    assert!(shown.reason.contains("raid5 survives 1"), "{}", shown.reason);
    assert_eq!(shown.missing_drives.len(), 2, "{:?}", shown.missing_drives);
    assert_eq!(engine.status().await.unwrap().not_started, std::slice::from_ref(shown));
    assert_eq!(engine.groups().await.unwrap(), []);

    // Another group cannot take its name: the absent group could then never be started again.
    let other = GroupCreate { dry_run: false, ..bench.request("tank", Level::Raid1, 2) };
    let other = GroupCreate { drives: vec![bench.drive("a"), bench.drive("b")], ..other };
    let refused = bench.try_create(&engine, other.clone()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::GroupExists, "{}", refused.message);

    let planned = engine.group_forget("tank", GroupForget { dry_run: true }).await.unwrap();
    assert!(planned.dry_run && engine.groups_not_started().await.unwrap().len() == 1);
    engine.group_forget("tank", GroupForget::default()).await.unwrap();
    assert_eq!(engine.groups_not_started().await.unwrap(), []);
    assert_eq!(engine.group("tank").await.unwrap_err().code, ErrorCode::GroupNotFound);
    bench.create(&engine, other).await;
    let refused = engine.group_forget("tank", GroupForget::default()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::WrongState, "{}", refused.message);
    end(engine).await;
    let engine = bench.engine().await;
    assert_eq!(engine.groups_not_started().await.unwrap(), [], "it stays forgotten");
    end(engine).await;
}
