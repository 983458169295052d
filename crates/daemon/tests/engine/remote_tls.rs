//! Members on another machine over TLS: the network traffic is recorded and checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{GroupControl, HostControl, MemberControl, ShareControl};

use crate::bench::*;
use crate::proxy::Proxy;
use crate::target::*;

/// TLS keys for tests: the specification's example, and one that nvme-cli has made.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER: &str = "NVMeTLSkey-1:02:sNTgIRCPWtC6Khc96pJxhrCK4fLhN4dZFGuWCkrIE5D8ronBse2v0oGQBjku8jMJu2mFeg==:";

/// The first bytes of a connection without TLS: ICReq, of 128 bytes.
const ICREQ: [u8; 8] = [0, 0, 128, 0, 128, 0, 0, 0];

/// The type of a TLS handshake record.
const HANDSHAKE: u8 = 22;

/// The content of the volumes here. The tests look for it in the network traffic.
const MARK: &[u8] = b"whoever reads this on the way has found it in the clear";

/// Bytes full of marks, each with its number.
fn marked(len: usize, seed: u64) -> Vec<u8> {
    let block = |index: usize| [MARK, &seed.to_le_bytes(), &index.to_le_bytes()].concat();
    (0..).flat_map(block).take(len).collect()
}

fn holds(bytes: &[u8], sought: &[u8]) -> bool {
    bytes.windows(sought.len()).any(|window| window == sought)
}

/// The traffic of a network.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Connections without TLS, and with TLS.
    plain: usize,
    secure: usize,
    /// The mark was in the traffic.
    marked: bool,
}

fn seen(network: &Proxy) -> Seen {
    let all = network.recorded();
    let begun = |begins: &[u8]| all.iter().filter(|way| !way.to_host && way.bytes.starts_with(begins)).count();
    let (plain, secure) = (begun(&ICREQ), begun(&[HANDSHAKE, 3]));
    let other = all.iter().filter(|way| !way.to_host && !way.bytes.is_empty()).count() - plain - secure;
    assert_eq!(other, 0, "connections that are neither");
    Seen { plain, secure, marked: all.iter().any(|way| holds(&way.bytes, MARK)) }
}

fn assert_secret(network: &Proxy) {
    let seen = seen(network);
    assert!(seen.secure > 0 && seen.plain == 0 && !seen.marked, "{seen:?}");
}

fn recording(target: &Target) -> Proxy {
    let network = target.network();
    network.record();
    network
}

fn file(bench: &Bench, name: &str, key: &str) -> PathBuf {
    let file = bench.directory.join(name);
    std::fs::write(&file, format!("{key}\n")).unwrap();
    file
}

fn with_key(drive: &str, key: &Path) -> String {
    format!("{drive}&tls-key={}", key.display())
}

/// The error when a mirror with this drive is refused.
async fn refused(bench: &Bench, engine: &Engine, drive: String) -> String {
    let request = GroupCreate { drives: vec![bench.drive("near"), drive], ..bench.request("no", Level::Raid1, 2) };
    let shape = shape_of(&request);
    engine.group_create(request, shape).await.unwrap_err().message
}

/// The engine's name as a host.
fn name(bench: &Bench) -> String {
    let state = bench.directory.join("state");
    initiator::this_host(None, None, Some(&state.join("hostnqn"))).unwrap().nqn.to_string()
}

fn tls_key(key: &str, keep_old: bool) -> HostTlsKeySet {
    HostTlsKeySet { key: key.to_owned(), keep_old }
}

async fn give_key(target: &Target, host: &str, key: &str, keep_old: bool) {
    target.engine.host_tls_key_set(Some("target"), host, tls_key(key, keep_old)).await.unwrap();
}

/// Shares two new files of 64 MiB with a host, and returns their URLs through `network`.
async fn share_with(bench: &Bench, engine: &Engine, host: &str) -> (Vec<Share>, Proxy, Vec<String>) {
    let drives = vec![bench.drive("raw-0"), bench.drive("raw-1")];
    for drive in &drives {
        std::fs::File::create(drive).unwrap().set_len(64 << 20).unwrap();
    }
    let hosts = vec![host.to_owned()];
    let request = ShareCreate { drives, address: Some(bench.address()), hosts, ..ShareCreate::default() };
    request.validate().unwrap();
    let shares = engine.share_create(request).await.unwrap().object.unwrap().shares;
    let network = Proxy::to(shares[0].address.parse().unwrap());
    network.record();
    let at = network.address.to_string();
    let url = |share: &Share| format!("{}&loss=60s", share.url.replace(&share.address, &at));
    let urls = shares.iter().map(url).collect();
    (shares, network, urls)
}

/// A mirror of a local drive and one of the target, with the volume's socket, full of marks.
async fn mirror(bench: &Bench, engine: &Arc<Engine>, drive: String) -> PathBuf {
    create(bench, engine, Level::Raid1, vec![bench.drive("near"), drive]).await;
    let socket = volume(bench, engine).await;
    write(&socket, 0, marked(4 * MIB, 1)).await;
    socket
}

/// Shows that the tests below can fail.
#[tokio::test]
async fn what_goes_to_a_remote_drive_in_the_clear_is_seen_on_its_way() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let engine = head(&bench).await;
    let network = recording(&target);
    mirror(&bench, &engine, target.drive(&network, 1)).await;
    let seen = seen(&network);
    assert!(seen.plain > 0 && seen.secure == 0 && seen.marked, "{seen:?}");
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn members_inside_of_tls_are_filled_when_they_were_away_or_new_and_come_back_after_a_restart() {
    let (target, bench) = (Target::new(3).await, Bench::new());
    let networks = [recording(&target), recording(&target), recording(&target)];
    let engine = head(&bench).await;
    let host = name(&bench);
    give_key(&target, &host, KEY, false).await;
    let key = file(&bench, "own.tls", KEY);
    let far = |index: usize| with_key(&target.drive(&networks[index], index as u32 + 1), &key);
    let away = with_key(&target.missed_soon(&networks[0], 1), &key);
    let drives = vec![bench.drive("near-0"), away, bench.drive("near-1"), far(1)];
    let group = create(&bench, &engine, Level::Raid5, drives).await;
    assert!(!format!("{group:?}").contains("tls"), "a member is called as without: {group:?}");
    let socket = volume(&bench, &engine).await;
    let mut model = marked(24 * MIB, 1);
    write(&socket, 0, model.clone()).await;

    // The member is away: later it gets what it missed.
    networks[0].refuse(true);
    networks[0].cut();
    let late = marked(MIB, 2);
    write(&socket, 3 * MIB, late.clone()).await;
    model[3 * MIB..4 * MIB].copy_from_slice(&late);
    until(&engine, "tank", |group| states(group)[1] == MemberState::Faulty).await;
    assert!(read(&socket, 0, model.len()).await == model, "without the drive");
    networks[0].refuse(false);
    let group = until(&engine, "tank", is_healthy).await;
    let rebuild = group.jobs.iter().rfind(|job| job.kind == JobKind::Rebuild).unwrap();
    assert!(rebuild.total_bytes < 8 * MIB as u64, "what it missed, not all: {rebuild:?}");

    // Another drive takes the slot of a member: it gets all data.
    let with = MemberReplace { with: far(2), create_files_bytes: None, wipe_foreign: true, dry_run: false };
    engine.member_fail("tank", 3, MemberFail { dry_run: false }).await.unwrap();
    engine.member_replace("tank", 3, with).await.unwrap();
    until(&engine, "tank", is_healthy).await;
    assert!(read(&socket, 0, model.len()).await == model, "with the new drive");
    scrubbed(&engine).await;

    end(engine).await;
    let engine = head(&bench).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()), "where the key is, is remembered");
    assert!(read(&socket, 0, model.len()).await == model, "after the restart");
    networks.iter().for_each(assert_secret);
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_remote_drive_that_cannot_be_had_inside_of_tls_is_refused_with_the_reason_and_not_used_in_the_clear() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let engine = head(&bench).await;
    let host = name(&bench);
    let (own, other) = (file(&bench, "own.tls", KEY), file(&bench, "other.tls", OTHER));
    let broken = file(&bench, "broken.tls", &KEY.replace("VRLb", "VRLc"));
    let network = recording(&target);
    let drive = target.drive(&network, 1);
    let (called, at) = (drive.replace("&loss=60s", ""), network.address);

    // No host has a key at the target; another host has one, but not this host; this host has
    // another one.
    let plain = format!("{called}: no TLS with {at}: what listens there answers without TLS; this host is {host}");
    assert_eq!(refused(&bench, &engine, with_key(&drive, &own)).await, plain);
    let ended = "the target ended the handshake: it has another key of this host, or none, or no TLS";
    let no_tls = format!("{called}: no TLS with {at}: {ended}; this host is {host}");
    give_key(&target, "nqn.2026-11.com.example:else", KEY, false).await;
    assert_eq!(refused(&bench, &engine, with_key(&drive, &own)).await, no_tls);
    give_key(&target, &host, KEY, false).await;
    assert_eq!(refused(&bench, &engine, with_key(&drive, &other)).await, no_tls);
    // Invalid key files: no connection is made for them.
    let before = network.connections();
    let said = refused(&bench, &engine, with_key(&drive, &broken)).await;
    let sum = "its checksum is wrong: a character is missing or is another one";
    assert_eq!(said, format!("{called}: {} holds no key of TLS of an NVMe host: {sum}", broken.display()));
    let said = refused(&bench, &engine, with_key(&drive, Path::new("/nowhere/key"))).await;
    assert!(said.starts_with(&format!("{called}: cannot read the key of TLS in /nowhere/key")), "{said}");
    assert_eq!(network.connections(), before);
    assert_secret(&network);

    let clear = target.network();
    let drive = target.drive(&clear, 1);
    let wants = "the target wants this host to use TLS, and no key was given (&tls-key=FILE)";
    let said = refused(&bench, &engine, drive.clone()).await;
    assert_eq!(said, format!("{}: {wants}; this host is {host}", drive.replace("&loss=60s", "")));
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_member_whose_key_is_another_one_after_a_restart_stays_away_until_it_is_the_right_one() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let engine = head(&bench).await;
    let host = name(&bench);
    give_key(&target, &host, KEY, false).await;
    let (network, key) = (recording(&target), file(&bench, "own.tls", KEY));
    let socket = mirror(&bench, &engine, with_key(&target.missed_soon(&network, 1), &key)).await;
    // The key is exchanged: existing connections go on with the old key, and drives that are opened
    // use the new one.
    give_key(&target, &host, OTHER, true).await;
    network.cut();
    write(&socket, 0, marked(MIB, 2)).await;
    file(&bench, "own.tls", OTHER);
    end(engine).await;
    let engine = head(&bench).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()), "with the new key");
    give_key(&target, &host, OTHER, false).await;
    end(engine).await;

    file(&bench, "own.tls", KEY);
    let engine = head(&bench).await;
    until_there(&engine).await;
    assert_eq!(engine.group("tank").await.unwrap().health, GroupHealth::Degraded, "its key counts no longer");
    write(&socket, MIB, marked(MIB, 3)).await;
    file(&bench, "own.tls", OTHER);
    until(&engine, "tank", is_healthy).await;
    assert!(read(&socket, 0, 2 * MIB).await == [marked(MIB, 2), marked(MIB, 3)].concat());
    scrubbed(&engine).await;
    assert_secret(&network);
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn shared_drives_are_members_inside_of_tls_and_the_key_is_there_after_both_restarted_and_never_shown() {
    let (target, bench) = (Bench::new(), Bench::new());
    let (giving, engine) = (target.engine().await, head(&bench).await);
    let host = name(&bench);
    // The key is set before a drive is shared, so the host is never let in without it.
    let changed = giving.host_tls_key_set(None, &host, tls_key(KEY, false)).await.unwrap();
    assert_eq!(changed.object, Some(HostTlsKey { group: None, key_count: 1 }));
    let (shares, network, urls) = share_with(&target, &giving, &host).await;
    assert_eq!(shares[0].tls_hosts, [host.as_str()]);
    let shown = serde_json::to_string(&(changed, shares, giving.shares().await.unwrap())).unwrap();
    assert!(!shown.contains("NVMeTLS"), "{shown}");
    let shown = serde_json::to_string(&giving.hosts().await.unwrap()).unwrap();
    assert!(shown.contains(r#""tls_keys":[{"group":null,"key_count":1}]"#) && !shown.contains("NVMeTLS"), "{shown}");
    let document = target.directory.join("state/shares.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&document).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "the key is in it");
    assert!(!std::fs::read_to_string(&document).unwrap().contains(KEY), "only as it is retained for this host");

    let key = file(&bench, "own.tls", KEY);
    let drives = urls.iter().map(|url| with_key(url, &key)).collect();
    create(&bench, &engine, Level::Raid1, drives).await;
    let socket = volume(&bench, &engine).await;
    write(&socket, 0, marked(4 * MIB, 1)).await;
    end(engine).await;
    end(giving).await;

    let giving = target.engine().await;
    let engine = head(&bench).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()));
    assert!(read(&socket, 0, 4 * MIB).await == marked(4 * MIB, 1));
    assert_secret(&network);
    end(engine).await;

    let (other, at) = (Bench::new(), giving.shares().await.unwrap().remove(0).url);
    let engine = other.engine().await;
    std::fs::copy(bench.directory.join("state/hostnqn"), other.directory.join("state/hostnqn")).ok();
    let said = refused(&other, &engine, at.clone()).await;
    assert!(said.contains("the target wants this host to use TLS"), "{said}");
    giving.host_tls_key_remove(None, &host).await.unwrap();
    let said = giving.host_tls_key_remove(None, &host).await.unwrap_err().message;
    assert_eq!(said, format!("{host} has no key of TLS for the shared drives"));
    let said = refused(&other, &engine, at).await;
    assert!(said.contains("belongs to the Purlin array tank"), "it is looked at: {said}");
    end(engine).await;
    end(giving).await;
}

#[tokio::test]
async fn a_host_of_shared_drives_proves_itself_where_it_has_a_secret() {
    const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let (target, bench) = (Bench::new(), Bench::new());
    let (giving, engine) = (target.engine().await, head(&bench).await);
    let host = name(&bench);
    let secret = HostKeySet { secret: SECRET.to_owned(), controller_secret: None, dh_group: DhGroup::Ffdhe2048 };
    giving.host_key_set(None, &host, secret).await.unwrap();
    let (_, _network, urls) = share_with(&target, &giving, &host).await;
    end(giving).await;
    let giving = target.engine().await;
    let said = refused(&bench, &engine, urls[0].clone()).await;
    assert!(said.contains("wants this host to authenticate"), "{said}");
    let key = file(&bench, "own.key", SECRET);
    let drives = urls.iter().map(|url| format!("{url}&dhchap-secret={}", key.display())).collect();
    create(&bench, &engine, Level::Raid1, drives).await;
    let keys = giving.hosts().await.unwrap().remove(0).keys;
    assert_eq!(keys, [HostKey { group: None, mutual: false, dh_group: DhGroup::Ffdhe2048 }]);
    end(engine).await;
    giving.host_key_remove(None, &host).await.unwrap();
    end(giving).await;
}
