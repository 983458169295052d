//! Members that do not answer are not reported as healthy, even if the group needs them.

use std::fs::{File, remove_file};
use std::time::Duration;

use api::*;
use daemon::http::{DriveControl, GroupControl};

use crate::bench::*;
use crate::target::{Target, create, head};

/// Returns the group, once it has this health.
async fn becomes(engine: &daemon::Engine, health: GroupHealth) -> Group {
    let waits = async {
        loop {
            let group = engine.group("tank").await.unwrap();
            if group.health == health {
                return group;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let group = tokio::time::timeout(PATIENCE, waits).await;
    group.unwrap_or_else(|_| panic!("the group does not become {}", health.as_str()))
}

#[tokio::test]
async fn members_that_cannot_be_read_or_are_deleted_are_unreachable_and_their_group_is_not_well() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    engine.start_asking_members();
    let group = bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let drives: Vec<String> = group.members.iter().map(|member| member.drive.clone().unwrap()).collect();
    let cut = |drive: &str, len| File::options().write(true).open(drive).unwrap().set_len(len).unwrap();
    let online = async || {
        let drives = engine.drives().await.unwrap();
        drives.iter().filter(|drive| drive.state == DriveState::Online).count()
    };
    let lens: Vec<u64> = drives.iter().map(|drive| std::fs::metadata(drive).unwrap().len()).collect();

    cut(&drives[0], 0);
    let degraded = becomes(&engine, GroupHealth::Degraded).await;
    assert_eq!(
        degraded.members.iter().map(|member| member.state).collect::<Vec<_>>(),
        [MemberState::Unreachable, MemberState::InSync]
    );
    assert_eq!((degraded.losses_left, online().await), (0, 1));
    cut(&drives[1], 0);
    let failed = becomes(&engine, GroupHealth::Failed).await;
    assert!(failed.members.iter().all(|member| member.state == MemberState::Unreachable), "{failed:?}");
    assert_eq!(failed.warnings[0], "more members are lost than the group can do without");
    assert!(failed.warnings[1].starts_with("member 0 is unreachable: "), "{:?}", failed.warnings);
    assert_eq!(online().await, 0);

    for (drive, len) in drives.iter().zip(lens) {
        cut(drive, len);
    }
    becomes(&engine, GroupHealth::Optimal).await;
    drives.iter().for_each(|drive| remove_file(drive).unwrap());
    let deleted = becomes(&engine, GroupHealth::Failed).await;
    let why = "member 1 is unreachable: its file was deleted: what is on it is gone when the group stops";
    assert!(deleted.warnings.iter().any(|warning| warning == why), "{:?}", deleted.warnings);
}

#[tokio::test]
async fn a_mirror_of_two_other_machines_has_failed_while_both_are_stopped_and_is_well_when_they_are_back() {
    let (targets, bench) = ([Target::new(1).await, Target::new(1).await], Bench::new());
    let networks = targets.each_ref().map(Target::network);
    let engine = head(&bench).await;
    engine.start_asking_members();
    let drives = targets.iter().zip(&networks).map(|(target, network)| target.missed_soon(network, 1)).collect();
    create(&bench, &engine, Level::Raid1, drives).await;
    becomes(&engine, GroupHealth::Optimal).await;

    let [first, second] = targets;
    // The connections end with the targets, and nothing listens behind the addresses.
    let (first, second) = (first.stopped().await, second.stopped().await);
    let failed = becomes(&engine, GroupHealth::Failed).await;
    // One member may be given up before the other one is lost. The group cannot do without both.
    let is_lost = |state: &MemberState| matches!(state, MemberState::Unreachable | MemberState::Faulty);
    let states: Vec<MemberState> = failed.members.iter().map(|member| member.state).collect();
    assert!(states.iter().all(is_lost) && states.contains(&MemberState::Unreachable), "{failed:?}");
    assert_eq!(failed.warnings[0], "more members are lost than the group can do without");
    let why = failed.warnings.iter().find(|warning| warning.contains("is unreachable"));
    assert!(why.is_some_and(|why| why.ends_with("it is out of reach")), "{:?}", failed.warnings);
    let drives = engine.drives().await.unwrap();
    assert!(drives.iter().all(|drive| drive.state != DriveState::Online), "{drives:?}");

    let (first, second) = (first.started().await, second.started().await);
    becomes(&engine, GroupHealth::Optimal).await;
    end(engine).await;
    end(first.engine).await;
    end(second.engine).await;
}
