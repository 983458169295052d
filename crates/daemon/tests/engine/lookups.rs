//! A DNS server, or a target, that does not answer delays only the requests that name a host.
//!
//! Each test with a DNS server runs once more as a process of its own, in a mount namespace whose
//! `/etc/resolv.conf` names a UDP socket that never replies.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{
    ControlError, ExportControl, GroupControl, ImportControl, MemberControl, ShareControl, VolumeControl,
};

use crate::bench::*;

/// Set in the run that has its own resolver file.
const INSIDE: &str = "PURLIN_TEST_SILENT_DNS";

/// The hosts file in that run.
const HOSTS: &str = "127.0.0.1 localhost
127.0.0.1 silent.example
127.0.0.1 several.example
127.0.0.2 several.example
::1 several.example
";

/// A lookup takes longer than this, and everything else less.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Longer than a lookup may take, and shorter than the resolver's own limit.
const LOOKUP_MAX: Duration = Duration::from_secs(8);

/// Runs a test with a DNS server that does not answer. Returns whether the caller is that run.
fn with_silent_dns(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // Other tests of this machine do not bind this address.
    let server = format!("127.{}.{}.53", 100 + std::process::id() % 100, test.len());
    let directory = Bench::new();
    let socket = UdpSocket::bind((server.as_str(), 53));
    let file = directory.drive("resolv.conf");
    std::fs::write(&file, format!("nameserver {server}\noptions timeout:30 attempts:1\n")).unwrap();
    let hosts = directory.drive("hosts");
    std::fs::write(&hosts, HOSTS).unwrap();
    let script = format!("mount --bind {file} /etc/resolv.conf && mount --bind {hosts} /etc/hosts");
    let can = |what: &str| Command::new("unshare").args(["--mount", "sh", "-c", what]).status();
    if socket.is_err() || !can(&script).is_ok_and(|status| status.success()) {
        eprintln!("skipped: the resolver's file cannot be replaced here");
        return false;
    }
    let own = std::env::current_exe().unwrap();
    let script = format!("{script} && exec {} --exact {test} --nocapture", own.display());
    let ended = Command::new("unshare").args(["--mount", "sh", "-c", &script]).env(INSIDE, "1").status().unwrap();
    assert!(ended.success(), "{test}");
    drop(socket);
    false
}

/// Runs `waiting`, checks that another change and the API's answers pass it, and returns its
/// result.
async fn others_go_on<T: Send + 'static>(
    engine: &Engine,
    waiting: impl Future<Output = Result<T, ControlError>> + Send + 'static,
) -> Result<T, ControlError> {
    let began = Instant::now();
    let waiting = tokio::spawn(waiting);
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 0..3 {
        let now = Instant::now();
        assert_eq!(engine.groups().await.unwrap().len(), 1);
        let volume = serde_json::json!({ "group": "tank", "volume": format!("v{number}"), "size_bytes": 1 << 20 });
        let name = VolumeName { group: "tank".to_owned(), volume: format!("v{number}") };
        engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
        engine.volume_delete(&name, false).await.unwrap();
        assert!(now.elapsed() < AT_ONCE, "{:?}", now.elapsed());
        assert!(!waiting.is_finished(), "the host is looked up");
        tokio::time::sleep(AT_ONCE / 4).await;
    }
    let ended = waiting.await.unwrap();
    assert!(began.elapsed() < LOOKUP_MAX, "a lookup has a limit: {:?}", began.elapsed());
    ended
}

async fn with_a_group(bench: &Bench) -> std::sync::Arc<Engine> {
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    engine
}

#[test]
fn a_drive_whose_host_is_not_found_delays_no_other_change() {
    if !with_silent_dns("lookups::a_drive_whose_host_is_not_found_delays_no_other_change") {
        return;
    }
    // A lookup that goes on in its thread must not delay the end of the test.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        let engine = with_a_group(&bench).await;
        let far = "nvme-tcp://target.example/nqn.2026-11.com.example:target?nsid=1".to_owned();
        let (own, drives) = (engine.clone(), vec![bench.drive("near"), far.clone()]);
        let request = GroupCreate { drives, ..bench.request("pool", Level::Raid1, 2) };
        let creating = async move {
            let shape = shape_of(&request);
            own.group_create(request, shape).await
        };
        let error = others_go_on(&engine, creating).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::DriveNotFound);
        assert!(error.message.contains("no answer in time where the host \"target.example\" is"), "{error}");
        assert!(!std::path::Path::new(&bench.drive("near")).exists(), "nothing was changed");

        let (own, drive) = (engine.clone(), far.clone());
        let importing = async move { own.import_nvme(ImportNvme { drive, name: None, dry_run: false }).await };
        assert_eq!(others_go_on(&engine, importing).await.unwrap_err().code, ErrorCode::DriveNotFound);
        let (own, request) = (engine.clone(), serde_json::json!({ "drives": [far] }));
        let assembling = async move { own.group_assemble(serde_json::from_value(request).unwrap()).await };
        assert_eq!(others_go_on(&engine, assembling).await.unwrap_err().code, ErrorCode::DriveNotFound);
        end(engine).await;
    });
    runtime.shutdown_background();
}

/// A target that accepts connections and does not answer.
#[tokio::test]
async fn a_target_that_does_not_answer_delays_no_other_change() {
    let bench = Bench::new();
    let engine = with_a_group(&bench).await;
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = silent.local_addr().unwrap();
    let far = format!("nvme-tcp://{at}/nqn.2026-11.com.example:target?nsid=1");
    let (own, drives) = (engine.clone(), vec![bench.drive("near"), far.clone()]);
    let request = GroupCreate { drives, ..bench.request("pool", Level::Raid1, 2) };
    let creating = async move {
        let shape = shape_of(&request);
        own.group_create(request, shape).await
    };
    let error = others_go_on(&engine, creating).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unreachable, "{error}");
    let (own, with) = (engine.clone(), far.clone());
    let replacing = async move {
        let request = MemberReplace { with, create_files_bytes: None, wipe_foreign: false, dry_run: false };
        own.member_replace("tank", 1, request).await
    };
    assert_eq!(others_go_on(&engine, replacing).await.unwrap_err().code, ErrorCode::Unreachable);
    let (own, request) = (engine.clone(), serde_json::json!({ "drives": [far] }));
    let assembling = async move { own.group_assemble(serde_json::from_value(request).unwrap()).await };
    others_go_on(&engine, assembling).await.unwrap_err();
    end(engine).await;
}

#[test]
fn an_export_whose_host_is_not_found_delays_no_other_change_while_it_is_tried_again() {
    if !with_silent_dns("lookups::an_export_whose_host_is_not_found_delays_no_other_change_while_it_is_tried_again") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        let engine = with_a_group(&bench).await;
        let volume = serde_json::json!({ "group": "tank", "volume": "v", "size_bytes": 1 << 20 });
        engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
        let port = 20_000 + std::process::id() % 10_000;
        let export = |engine: &std::sync::Arc<Engine>, host: &str| {
            let own = engine.clone();
            let place = serde_json::json!({ "volume": "tank/v", "nbd": format!("{host}:{port}") });
            let export: ExportCreate = serde_json::from_value(place).unwrap();
            let (volume, place) = export.validate().unwrap();
            async move { own.export_create(export, volume, place).await }
        };
        export(&engine, "silent.example").await.unwrap();
        let error = others_go_on(&engine, export(&engine, "other.example")).await.unwrap_err();
        assert!(error.message.contains("no answer in time where the host \"other.example\" is"), "{error}");
        let file = bench.drive("raw");
        std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        let (own, address) = (engine.clone(), Some("other.example:4420".to_owned()));
        let share = ShareCreate { drives: vec![file], address, allow_any_host: true, ..ShareCreate::default() };
        let sharing = async move { own.share_create(share).await };
        let error = others_go_on(&engine, sharing).await.unwrap_err();
        assert!(error.message.contains("no answer in time"), "{error}");
        end(engine).await;

        // The name is in the catalogue, and can no longer be resolved at the next start.
        std::fs::write("/etc/hosts", "127.0.0.1 localhost\n").unwrap();
        let began = Instant::now();
        let engine = bench.engine().await;
        assert!(began.elapsed() < 2 * AT_ONCE, "the start waits a second for names: {:?}", began.elapsed());
        engine.start_retrying_exports();
        // Long enough for an attempt that waits for the server.
        let (retrying, mut changed) = (Instant::now(), 0);
        while retrying.elapsed() < 2 * LOOKUP_MAX {
            let now = Instant::now();
            let name = VolumeName { group: "tank".to_owned(), volume: "w".to_owned() };
            let volume = serde_json::json!({ "group": "tank", "volume": "w", "size_bytes": 1 << 20 });
            engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
            engine.volume_delete(&name, false).await.unwrap();
            assert!(now.elapsed() < AT_ONCE, "after {changed} changes: {:?}", now.elapsed());
            changed += 1;
            tokio::time::sleep(AT_ONCE / 10).await;
        }
        let exports = engine.exports().await.unwrap();
        assert!(exports.len() == 1 && !exports[0].listening, "{exports:?}");
        std::fs::write("/etc/hosts", HOSTS).unwrap();
        let served = async {
            while !engine.exports().await.unwrap()[0].listening {
                tokio::time::sleep(AT_ONCE / 20).await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("it is served once its host is known");
        end(engine).await;
    });
    runtime.shutdown_background();
}

#[test]
fn an_export_at_a_host_name_listens_at_all_addresses_of_the_name_and_leaves_all_of_them() {
    if !with_silent_dns("lookups::an_export_at_a_host_name_listens_at_all_addresses_of_the_name_and_leaves_all_of_them")
    {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        let engine = with_a_group(&bench).await;
        let volume = serde_json::json!({ "group": "tank", "volume": "v", "size_bytes": 1 << 20 });
        engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
        let port = 20_000 + (std::process::id() % 10_000) as u16;
        // A machine without IPv6 does not have the last one.
        let all = ["127.0.0.1", "127.0.0.2", "::1"].map(|ip| std::net::SocketAddr::new(ip.parse().unwrap(), port));
        let own = all.into_iter().filter(|address| std::net::TcpListener::bind(address).is_ok());
        let own: Vec<_> = own.collect();
        assert!(own.len() >= 2, "{own:?}");
        let places = [
            serde_json::json!({ "volume": "tank/v", "nbd": format!("several.example:{port}") }),
            serde_json::json!({ "volume": "tank/v", "nvme_tcp": {
                "address": format!("several.example:{port}"), "allow_any_host": true,
            } }),
        ];
        for place in places {
            let export: ExportCreate = serde_json::from_value(place).unwrap();
            let (volume, place) = export.validate().unwrap();
            let export = engine.export_create(export, volume, place).await.unwrap().object.unwrap();
            for address in &own {
                drop(std::net::TcpStream::connect(address).unwrap());
            }
            engine.export_delete(&export.id).await.unwrap();
            for address in &own {
                std::net::TcpStream::connect(address).unwrap_err();
            }
        }
        end(engine).await;
    });
}
