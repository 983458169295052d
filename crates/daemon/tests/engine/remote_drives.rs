//! Drives of another machine as members. One engine is the target, another one uses its volumes as
//! drives, and the network between them fails on command.

use std::path::Path;
use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{GroupControl, HostControl, MemberControl, ShareControl};
use nvme::Status;
use nvme::host::{Blocks, io};

use crate::bench::*;
use crate::hosts::connects;
use crate::nvme_host::NvmeHost;
use crate::target::*;

#[tokio::test]
async fn a_remote_member_that_is_cut_off_leaves_after_its_time_and_gets_what_it_missed_when_it_is_back() {
    let (target, bench) = (Target::new(2).await, Bench::new());
    let networks = [target.network(), target.network()];
    let engine = head(&bench).await;
    let drives = vec![
        bench.drive("near-0"),
        target.missed_soon(&networks[0], 1),
        bench.drive("near-1"),
        target.missed_soon(&networks[1], 2),
    ];
    let group = create(&bench, &engine, Level::Raid5, drives).await;
    assert_eq!(group.members[1].drive, Some(target.missed_soon(&networks[0], 1).replace("&loss=2s", "")));
    let socket = volume(&bench, &engine).await;
    let mut model = noise(40 * MIB, 1);
    write(&socket, 0, model.clone()).await;

    networks[0].refuse(true);
    networks[0].cut();
    let began = Instant::now();
    // A write waits for the drive as long as that may be unreachable, and no longer.
    let late = noise(MIB, 2);
    write(&socket, 3 * MIB, late.clone()).await;
    model[3 * MIB..4 * MIB].copy_from_slice(&late);
    let waited = began.elapsed();
    assert!(waited >= LOSS / 2 && waited < LOSS * 5, "{waited:?}");
    let group = engine.group("tank").await.unwrap();
    assert_eq!(group.health, GroupHealth::Degraded);
    assert_eq!(states(&group)[1], MemberState::Faulty);
    assert!(read(&socket, 0, model.len()).await == model, "without the drive");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(engine.group("tank").await.unwrap().health, GroupHealth::Degraded, "it is not there");

    networks[0].refuse(false);
    let group = until(&engine, "tank", is_healthy).await;
    let rebuild = group.jobs.iter().rfind(|job| job.kind == JobKind::Rebuild).unwrap();
    assert!(rebuild.total_bytes < 8 * MIB as u64, "what it missed, not all: {rebuild:?}");
    assert!(read(&socket, 0, model.len()).await == model, "with the drive");
    scrubbed(&engine).await;

    // An idle drive is noticed, too, without a request that fails.
    networks[1].stall(true);
    until(&engine, "tank", |group| states(group)[3] == MemberState::Faulty).await;
    networks[1].cut();
    networks[1].stall(false);
    until(&engine, "tank", is_healthy).await;
    scrubbed(&engine).await;
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_group_of_remote_drives_is_started_again_when_they_are_there_and_goes_on_without_those_that_are_not() {
    let (target, bench) = (Target::new(3).await, Bench::new());
    let networks = [target.network(), target.network(), target.network()];
    let engine = head(&bench).await;
    let drives = (0..3).map(|index| target.drive(&networks[index], index as u32 + 1)).collect();
    create(&bench, &engine, Level::Raid5, drives).await;
    let socket = volume(&bench, &engine).await;
    let model = noise(8 * MIB, 3);
    write(&socket, 0, model.clone()).await;
    end(engine).await;
    assert!(!bench.directory.join("state/remote-drives").exists(), "all were let go");

    networks.iter().for_each(|network| network.refuse(true));
    let engine = head(&bench).await;
    assert!(engine.group("tank").await.is_err(), "nothing of it is there");
    networks[0].refuse(false);
    networks[2].refuse(false);
    until_there(&engine).await;
    let group = engine.group("tank").await.unwrap();
    assert_eq!(group.health, GroupHealth::Degraded);
    assert!(read(&socket, 0, model.len()).await == model);
    write(&socket, 0, noise(MIB, 4)).await;

    // The target is started again meanwhile: the others wait for it, and the third is found after a
    // while.
    let target = target.restarted().await;
    networks[1].refuse(false);
    until(&engine, "tank", is_healthy).await;
    assert!(read(&socket, 0, MIB).await == noise(MIB, 4));
    scrubbed(&engine).await;
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_remote_drive_is_one_drive_under_every_address_and_has_several_paths() {
    let (target, bench) = (Target::new(2).await, Bench::new());
    let networks = [target.network(), target.network()];
    let engine = head(&bench).await;
    let request = |drives: Vec<String>| GroupCreate { drives, ..bench.request("tank", Level::Raid1, 2) };
    let same = request(vec![target.drive(&networks[0], 1), target.drive(&networks[1], 1)]);
    same.validate().unwrap();
    let shape = shape_of(&same);
    let error = engine.group_create(same, shape).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::DriveInUse, "{error}");
    assert!(error.message.contains("maybe under another address"), "{error}");

    let paths = format!("{}&path={}", target.drive(&networks[0], 1), networks[1].address);
    create(&bench, &engine, Level::Raid1, vec![paths, bench.drive("near")]).await;
    let socket = volume(&bench, &engine).await;
    for round in 0..4 {
        let network = &networks[round % 2];
        network.refuse(true);
        network.cut();
        let bytes = noise(4 * MIB, round as u64);
        write(&socket, round * 4 * MIB, bytes.clone()).await;
        assert!(read(&socket, round * 4 * MIB, bytes.len()).await == bytes);
        network.refuse(false);
        // The other one may still be connecting.
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    assert!(is_healthy(&engine.group("tank").await.unwrap()), "one path was always there");
    scrubbed(&engine).await;
    end(engine).await;
    end(target.engine).await;
}

#[tokio::test]
async fn a_remote_member_that_an_operator_took_out_stays_out_and_what_cannot_be_reached_is_refused() {
    let (target, bench) = (Target::new(1).await, Bench::new());
    let network = target.network();
    let engine = head(&bench).await;
    let gone = format!("nvme-tcp://127.0.0.1:1/{}?nsid=1", target.subsystem);
    let missing = target.missed_soon(&network, 9);
    for (drive, code) in [(gone, ErrorCode::Unreachable), (missing, ErrorCode::DriveNotFound)] {
        let request =
            GroupCreate { drives: vec![bench.drive("never"), drive], ..bench.request("tank", Level::Raid1, 2) };
        let shape = shape_of(&request);
        let error = engine.group_create(request, shape).await.unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(!Path::new(&bench.drive("never")).exists(), "nothing is left of it");
    }
    create(&bench, &engine, Level::Raid1, vec![bench.drive("near"), target.missed_soon(&network, 1)]).await;
    engine.member_fail("tank", 1, MemberFail { dry_run: false }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(states(&engine.group("tank").await.unwrap())[1], MemberState::Faulty);
    let with = MemberReplace {
        with: target.missed_soon(&network, 1),
        create_files_bytes: None,
        wipe_foreign: true,
        dry_run: false,
    };
    engine.member_replace("tank", 1, with).await.unwrap();
    until(&engine, "tank", is_healthy).await;
    end(engine).await;
    end(target.engine).await;
}

async fn share(engine: &Engine, request: ShareCreate) -> Vec<Share> {
    request.validate().unwrap();
    engine.share_create(request).await.unwrap().object.unwrap().shares
}

/// Shares two new files of 64 MiB with any host.
async fn shared_files(bench: &Bench, engine: &Engine) -> Vec<Share> {
    let drives = vec![bench.drive("raw-0"), bench.drive("raw-1")];
    for drive in &drives {
        std::fs::File::create(drive).unwrap().set_len(64 << 20).unwrap();
    }
    let address = Some(bench.address());
    share(engine, ShareCreate { drives, address, allow_any_host: true, ..ShareCreate::default() }).await
}

#[tokio::test]
async fn drives_that_are_shared_are_members_elsewhere_also_after_both_machines_were_restarted() {
    let (target, bench) = (Bench::new(), Bench::new());
    let (giving, engine) = (target.engine().await, head(&bench).await);
    let shares = shared_files(&target, &giving).await;
    // The first one is removed in the end.
    let losses = shares.iter().zip(["15s", "60s"]);
    let drives: Vec<String> = losses.map(|(share, loss)| format!("{}&loss={loss}", share.url)).collect();
    create(&bench, &engine, Level::Raid1, drives).await;
    let socket = volume(&bench, &engine).await;
    let model = noise(8 * MIB, 5);
    write(&socket, 0, model.clone()).await;
    let seen = giving.shares().await.unwrap();
    assert!(seen.iter().all(|share| share.queue_count > 0 && share.io.write_bytes >= 8 * MIB as u64), "{seen:?}");
    // The host's counters are those of the drives that it uses.
    let hosts = giving.hosts().await.unwrap();
    let [host] = &hosts[..] else { panic!("{hosts:?}") };
    assert!(host.controller_count > 0 && host.queue_count > 0 && host.io.write_bytes >= 16 * MIB as u64, "{host:?}");
    assert_eq!(
        host.shares.iter().map(|share| &share.id).collect::<Vec<_>>(),
        seen.iter().map(|share| &share.id).collect::<Vec<_>>()
    );
    end(engine).await;
    end(giving).await;

    let giving = target.engine().await;
    let again: Vec<String> = giving.shares().await.unwrap().into_iter().map(|share| share.url).collect();
    assert_eq!(again, shares.iter().map(|share| share.url.clone()).collect::<Vec<_>>(), "the same names");
    let engine = head(&bench).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()));
    assert!(read(&socket, 0, model.len()).await == model);

    giving.share_delete(&shares[0].id).await.unwrap();
    until(&engine, "tank", |group| states(group)[0] == MemberState::Faulty).await;
    assert!(read(&socket, 0, model.len()).await == model);
    assert_eq!(giving.share_delete(&shares[0].id).await.unwrap_err().code, ErrorCode::DriveNotFound);
    end(engine).await;
    end(giving).await;
}

/// The status of a read of a shared drive by a connected host. It blocks.
fn reads(host: &mut NvmeHost, share: &Share) -> Status {
    let block_bytes = share.sector_bytes.unwrap();
    host.execute(io::read(Blocks { nsid: share.nsid, first: 0, count: 1 }, block_bytes), &[], block_bytes).0
}

/// The hosts that may use each shared drive, and the drives that each host may use, as the engine
/// reports them.
async fn may_use(engine: &Engine) -> (Vec<Vec<String>>, Vec<(String, Vec<String>)>) {
    let shares = engine.shares().await.unwrap().into_iter().map(|share| share.hosts.unwrap()).collect();
    let ids = |host: Host| (host.nqn, host.shares.into_iter().map(|share| share.id).collect());
    (shares, engine.hosts().await.unwrap().into_iter().map(ids).collect())
}

#[tokio::test]
async fn a_shared_drive_is_for_the_hosts_that_it_names_and_a_change_of_them_holds_at_once_and_after_a_restart() {
    let [a, b, nobody] = [1, 2, 3].map(|number| format!("nqn.2026-11.com.example:host-{number}"));
    let bench = Bench::new();
    let engine = bench.engine().await;
    let address = bench.address();
    let mut shares = Vec::new();
    for (drive, hosts) in [("raw-0", vec![a.clone()]), ("raw-1", vec![a.clone(), b.clone()])] {
        std::fs::File::create(bench.drive(drive)).unwrap().set_len(64 << 20).unwrap();
        let drives = vec![bench.drive(drive)];
        let request = ShareCreate { drives, address: Some(address.clone()), hosts, ..ShareCreate::default() };
        shares.append(&mut share(&engine, request).await);
    }
    let [first, second] = [&shares[0], &shares[1]];
    // Without keys the target only checks a host's name.
    let subsystem: nvme::Nqn = first.nqn.parse().unwrap();
    let invalid = format!("{address}: Connect failed: Connect Invalid Host");
    assert_eq!(connects(&address, &first.nqn, &nobody, None).await, Err(invalid));
    let connect = |number| NvmeHost::connect(&address, &subsystem, number);
    let (mut host_a, mut host_b) = (connect(1), connect(2));
    let mut ends = |share: &Share| [reads(&mut host_a, share), reads(&mut host_b, share)];
    assert_eq!(ends(first), [Status::SUCCESS, Status::INVALID_NAMESPACE]);
    assert_eq!(ends(second), [Status::SUCCESS; 2]);

    let changed = engine.share_host_allow(&first.id, &b).await.unwrap();
    assert_eq!(changed.steps, [format!("let {b} use the shared drive {}", first.id)]);
    assert_eq!(changed.object.unwrap().hosts.unwrap(), [a.clone(), b.clone()]);
    assert_eq!(ends(first), [Status::SUCCESS; 2]);
    let changed = engine.share_host_deny(&first.id, &a).await.unwrap();
    assert_eq!(changed.object.unwrap().hosts.unwrap(), std::slice::from_ref(&b));
    assert_eq!(ends(first), [Status::INVALID_NAMESPACE, Status::SUCCESS]);
    assert_eq!(ends(second), [Status::SUCCESS; 2], "the other one stays");

    // A request without effect is refused, and changes nothing.
    let said = |refused: Result<Changed<Share>, daemon::http::ControlError>| refused.unwrap_err().message;
    let id = &first.id;
    assert_eq!(said(engine.share_host_allow(id, &b).await), format!("{b} may use the shared drive {id:?} already"));
    assert_eq!(said(engine.share_host_deny(id, &a).await), format!("{a} may not use the shared drive {id:?} as it is"));
    let last = format!("{b} is the last host of the shared drive {id:?}: share it no longer instead");
    assert_eq!(said(engine.share_host_deny(id, &b).await), last);
    assert_eq!(said(engine.share_host_allow("share-9", &b).await), "no drive is shared as \"share-9\"");
    let ids = |shares: &[&Share]| shares.iter().map(|share| share.id.clone()).collect::<Vec<_>>();
    let expected = (
        vec![vec![b.clone()], vec![a.clone(), b.clone()]],
        vec![(a.clone(), ids(&[second])), (b.clone(), ids(&[first, second]))],
    );
    assert_eq!(may_use(&engine).await, expected);
    end(engine).await;

    let engine = bench.engine().await;
    assert_eq!(may_use(&engine).await, expected);
    let (mut host_a, mut host_b) = (connect(1), connect(2));
    let ends = [reads(&mut host_a, first), reads(&mut host_b, first)];
    assert_eq!(ends, [Status::INVALID_NAMESPACE, Status::SUCCESS]);
    drop((host_a, host_b));
    end(engine).await;
}

#[tokio::test]
async fn a_shared_drive_is_nobody_elses_and_sharing_is_all_or_nothing() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let shares = shared_files(&bench, &engine).await;
    let request = GroupCreate {
        drives: vec![bench.drive("raw-0"), bench.drive("other")],
        ..bench.request("tank", Level::Raid1, 2)
    };
    let shape = shape_of(&request);
    assert_eq!(engine.group_create(request, shape).await.unwrap_err().code, ErrorCode::DriveInUse);

    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let request = |drives: Vec<String>| ShareCreate {
        drives,
        address: Some(bench.address()),
        allow_any_host: true,
        ..ShareCreate::default()
    };
    std::fs::File::create(bench.drive("new")).unwrap().set_len(64 << 20).unwrap();
    let error = engine.share_create(request(vec![bench.drive("new"), bench.drive("tank-0")])).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::DriveInUse, "{error}");
    // If the address is invalid, nothing is shared.
    let wrong = ShareCreate { address: Some("256.0.0.1:4420".into()), ..request(vec![bench.drive("new")]) };
    assert_eq!(engine.share_create(wrong).await.unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(engine.shares().await.unwrap().len(), shares.len());
    let again = share(&engine, request(vec![bench.drive("new")])).await;
    assert_eq!(again[0].nsid, 3, "it was let go");
    end(engine).await;
}

#[tokio::test]
async fn a_remote_drive_authenticates_where_its_target_asks_for_that_and_again_after_a_cut() {
    const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    const OTHER: &str = "DHHC-1:01:vYcm5QemILkz5zSIeZidb4nPGcxongu2l/OaWMRgM9iIk/2A:";
    let (target, bench) = (Target::new(1).await, Bench::new());
    let network = target.network();
    let engine = head(&bench).await;
    // The refusal names this machine as a host.
    let refused = |drive: String| {
        let request =
            GroupCreate { drives: vec![bench.drive("near"), drive], ..bench.request("tank", Level::Raid1, 2) };
        let shape = shape_of(&request);
        let engine = engine.clone();
        async move { engine.group_create(request, shape).await.unwrap_err().message }
    };
    let said = refused(target.drive(&network, 9)).await;
    let host = said.rsplit_once("this host is ").unwrap().1.to_owned();
    let key = HostKeySet {
        secret: SECRET.to_owned(),
        controller_secret: Some(OTHER.to_owned()),
        dh_group: DhGroup::Ffdhe2048,
    };
    target.engine.host_key_set(Some("target"), &host, key).await.unwrap();
    let (own, its) = (bench.directory.join("own.key"), bench.directory.join("its.key"));
    std::fs::write(&own, SECRET).unwrap();
    std::fs::write(&its, OTHER).unwrap();
    let plain = target.drive(&network, 1);
    assert!(refused(plain.clone()).await.contains("wants this host to authenticate"));
    let wrong = refused(format!("{plain}&dhchap-secret={}", its.display())).await;
    assert!(wrong.contains("the secret is another one") && !wrong.contains("DHHC"), "{wrong}");
    let missing = refused(format!("{plain}&dhchap-secret=/nowhere/key")).await;
    assert!(missing.contains("cannot read the secret in /nowhere/key"), "{missing}");

    let proven = format!("{plain}&dhchap-secret={}&dhchap-ctrl-secret={}", own.display(), its.display());
    create(&bench, &engine, Level::Raid1, vec![bench.drive("near"), proven]).await;
    let socket = volume(&bench, &engine).await;
    network.cut();
    write(&socket, 0, noise(MIB, 6)).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()));
    end(engine).await;
    let engine = head(&bench).await;
    assert!(is_healthy(&engine.group("tank").await.unwrap()), "the files are remembered");
    end(engine).await;
    end(target.engine).await;
}
