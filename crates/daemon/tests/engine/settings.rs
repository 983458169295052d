//! Settings are stored on the drives.

use api::*;
use daemon::http::GroupControl;

use crate::bench::*;

#[tokio::test]
async fn settings_survive_the_daemon_and_its_state_directory() {
    let bench = Bench::new();
    let chosen = GroupSettings {
        client_p99_us: Some(5000),
        retire_slow: true,
        scrub_every_s: None,
        thin_warn_percents: vec![80, 90, 95],
    };
    let request = bench.request("tank", Level::Raid5, 3);
    let drives = request.drives.clone();
    {
        let engine = bench.engine().await;
        let group = bench.create(&engine, request).await;
        let defaults = GroupSettings {
            client_p99_us: None,
            retire_slow: false,
            scrub_every_s: Some(30 * DAY),
            thin_warn_percents: vec![80, 90, 95],
        };
        assert_eq!(group.settings, defaults);
        let update = GroupUpdate {
            client_p99_us: Some(5000),
            retire_slow: Some(true),
            scrub_every_s: Some(0),
            ..GroupUpdate::default()
        };
        let planned = set(&engine, "tank", GroupUpdate { dry_run: true, ..update.clone() }).await;
        assert_eq!((planned.steps.len(), planned.object), (3, None));
        assert_eq!(engine.group("tank").await.unwrap().settings, defaults, "a dry run changes nothing");
        let changed = set(&engine, "tank", update.clone()).await;
        assert_eq!(changed.object.unwrap().settings, chosen);
        assert_eq!(changed.warnings, ["there is no spare: a slow member can only be reported until there is one"]);
        let again = set(&engine, "tank", update).await;
        assert!(again.steps.is_empty(), "{:?}", again.steps);
        end(engine).await;
    }
    std::fs::remove_dir_all(bench.directory.join("state")).unwrap();
    let engine = bench.engine().await;
    let group =
        engine.group_assemble(GroupAssemble { drives, name: None, dry_run: false }).await.unwrap().object.unwrap();
    assert_eq!((group.settings, group.scrub.next_unix_s), (chosen, None));
    end(engine).await;
}

#[tokio::test]
async fn checksums_are_kept_unless_told_otherwise_or_unable() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let cases = [
        ("default", Level::Raid5, 3, None, None, true),
        ("unwanted", Level::Raid5, 3, None, Some(false), false),
        ("mirror", Level::Raid1, 2, Some(SafetyMode::Strict), Some(true), true),
        ("striped", Level::Raid0, 2, None, None, false),
        ("scratch", Level::Raid6, 4, Some(SafetyMode::Off), None, false),
    ];
    for (name, level, members, crash_safety, checksums, expected) in cases {
        let request = GroupCreate { crash_safety, checksums, ..bench.request(name, level, members) };
        let group = bench.create(&engine, request).await;
        assert_eq!(group.checksums.enabled, expected, "{name}");
        assert!(group.checksums.note.starts_with(if expected { "on: " } else { "off: " }), "{:?}", group.checksums);
    }
    end(engine).await;
}

#[tokio::test]
async fn a_group_can_be_made_with_settings() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid1, 2);
    let request = GroupCreate { client_p99_us: Some(2000), scrub_every_s: Some(7 * DAY), ..request };
    let group = bench.create(&engine, request).await;
    let chosen = GroupSettings {
        client_p99_us: Some(2000),
        retire_slow: false,
        scrub_every_s: Some(7 * DAY),
        thin_warn_percents: vec![80, 90, 95],
    };
    assert_eq!(group.settings, chosen);
    let due = group.scrub.next_unix_s.unwrap();
    assert!((START + 63 * DAY / 10..=START + 7 * DAY).contains(&due), "within the last tenth of the interval: {due}");
    end(engine).await;
}
