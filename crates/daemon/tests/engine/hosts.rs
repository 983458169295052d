//! The hosts of an export are stored on the drives, and may change.

use api::*;
use daemon::http::{ExportControl, HostControl, ReferralControl, VolumeControl};

use crate::bench::*;

const A: &str = "nqn.2026-11.com.example:a";
const B: &str = "nqn.2026-11.com.example:b";

fn parsed<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A group with a volume, exported over NVMe/TCP to these hosts, or to any.
async fn export(bench: &Bench, engine: &daemon::Engine, name: &str, hosts: &[&str]) -> Export {
    bench.create(engine, bench.request(name, Level::Raid1, 2)).await;
    let volume = format!("{name}/v");
    let create: VolumeCreate = parsed(serde_json::json!({ "group": name, "volume": "v", "size_bytes": 1 << 20 }));
    engine.volume_create(create).await.unwrap();
    let request: ExportCreate = parsed(serde_json::json!({
        "volume": volume,
        "nvme_tcp": { "address": bench.address(), "hosts": hosts, "allow_any_host": hosts.is_empty() },
    }));
    let (volume, place) = request.validate().unwrap();
    engine.export_create(request, volume, place).await.unwrap().object.unwrap()
}

#[tokio::test]
async fn a_host_that_is_let_in_or_put_out_stays_so_when_the_daemon_starts_again() {
    let bench = Bench::new();
    let id = {
        let engine = bench.engine().await;
        let id = export(&bench, &engine, "tank", &[A]).await.id;
        let names = |hosts: Vec<Host>| hosts.into_iter().map(|host| host.nqn).collect::<Vec<_>>();
        assert_eq!(names(engine.hosts().await.unwrap()), [A]);
        let changed = engine.host_allow(&id, B).await.unwrap().object.unwrap();
        assert_eq!(changed.hosts.unwrap(), [A, B]);
        assert_eq!(engine.host_deny(&id, A).await.unwrap().object.unwrap().hosts.unwrap(), [B]);
        end(engine).await;
        id
    };
    let engine = bench.engine().await;
    let hosts = engine.hosts().await.unwrap();
    assert_eq!((hosts.len(), hosts[0].nqn.as_str(), hosts[0].queue_count), (1, B, 0));
    let [may] = &hosts[0].exports[..] else { panic!("{:?}", hosts[0].exports) };
    assert_eq!((may.id.as_str(), may.volume.as_str(), may.nsid, may.named), (id.as_str(), "tank/v", 1, true));
    end(engine).await;
}

#[tokio::test]
async fn a_change_of_hosts_that_would_mean_nothing_is_refused_and_nothing_changes() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let named = export(&bench, &engine, "tank", &[A]).await.id;
    let open = export(&bench, &engine, "open", &[]).await.id;
    let said = |refused: Result<Changed<Export>, daemon::http::ControlError>| refused.unwrap_err().message;
    assert_eq!(said(engine.host_allow(&named, A).await), format!("{A} may use the export {named:?} already"));
    assert_eq!(said(engine.host_deny(&named, B).await), format!("{B} may not use the export {named:?} as it is"));
    let last = format!("{A} is the last host of the export {named:?}: delete the export instead");
    assert_eq!(said(engine.host_deny(&named, A).await), last);
    let any = format!("any host may use the export {open:?}: delete it, and make one that names its hosts");
    assert_eq!(said(engine.host_allow(&open, A).await), any);
    assert_eq!(said(engine.host_allow("nothing-7", A).await), "there is no export \"nothing-7\"");
    let hosts = engine.hosts().await.unwrap();
    let may: Vec<(&str, bool)> = hosts[0].exports.iter().map(|export| (export.id.as_str(), export.named)).collect();
    assert_eq!((hosts.len(), may), (1, vec![(open.as_str(), false), (named.as_str(), true)]));
    end(engine).await;
}

#[tokio::test]
async fn hosts_are_referred_elsewhere_at_every_address_also_after_a_restart() {
    let bench = Bench::new();
    let other: std::net::SocketAddr = "192.0.2.6:8009".parse().unwrap();
    // The discovery log at an address: its generation, and the referrals.
    let ask = |address: String| async move {
        let options = initiator::Options::new(
            nvme::target::Host { nqn: A.parse().unwrap(), id: [1; 16] },
            nvme::DISCOVERY_NQN.parse().unwrap(),
        );
        let network = initiator::tokio::TokioNetwork::new();
        let address = address.parse().unwrap();
        let asking = initiator::discover(&network, &address, &options);
        let found = tokio::task::LocalSet::new().run_until(asking).await.unwrap();
        let referrals = found.entries.iter().filter(|entry| entry.kind == 1);
        let referrals = referrals.map(|entry| format!("{}:{}", entry.address, entry.port));
        (found.generation, referrals.collect::<Vec<_>>())
    };
    let engine = bench.engine().await;
    let before = export(&bench, &engine, "tank", &[A]).await.address;
    let (generation, none) = ask(before.clone()).await;
    assert!(none.is_empty());
    engine.referral_add(other).await.unwrap();
    let (changed, listed) = ask(before.clone()).await;
    assert!(changed > generation, "{changed} after {generation}");
    assert_eq!(listed, ["192.0.2.6:8009"]);
    let after = export(&bench, &engine, "pool", &[A]).await.address;
    assert_eq!(ask(after.clone()).await.1, ["192.0.2.6:8009"], "at an address that came later, too");
    // A host at this address needs no referral to it.
    engine.referral_add(after.parse().unwrap()).await.unwrap();
    assert_eq!(ask(after.clone()).await.1, ["192.0.2.6:8009"]);
    assert_eq!(ask(before.clone()).await.1.len(), 2);
    assert_eq!(engine.referral_add(other).await.unwrap_err().message, "hosts are referred to 192.0.2.6:8009 already");
    end(engine).await;

    let engine = bench.engine().await;
    assert_eq!(ask(before.clone()).await.1.len(), 2);
    engine.referral_remove(other).await.unwrap();
    assert_eq!(ask(before.clone()).await.1, [after]);
    assert_eq!(engine.referral_remove(other).await.unwrap_err().message, "hosts are not referred to 192.0.2.6:8009");
    assert_eq!(engine.referrals().await.unwrap().len(), 1);
    end(engine).await;
}

fn key(secret: &str, controller: Option<&str>) -> HostKeySet {
    let controller_secret = controller.map(str::to_owned);
    HostKeySet { secret: secret.to_owned(), controller_secret, dh_group: DhGroup::Ffdhe2048 }
}

/// Two secrets for tests: the specification's example, and one that nvme-cli has made.
const SECRET: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const OTHER: &str = "DHHC-1:01:vYcm5QemILkz5zSIeZidb4nPGcxongu2l/OaWMRgM9iIk/2A:";

/// Tries to connect as a host with these secrets, or none, and returns the result.
pub async fn connects(
    address: &str,
    nqn: &str,
    host: &str,
    credentials: Option<nvme::auth::Credentials>,
) -> Result<(), String> {
    connects_with(address, nqn, host, credentials, None).await
}

/// As [`connects`], with a TLS key.
async fn connects_with(
    address: &str,
    nqn: &str,
    host: &str,
    credentials: Option<nvme::auth::Credentials>,
    tls: Option<nvme::tls::TlsKey>,
) -> Result<(), String> {
    let who = nvme::target::Host { nqn: host.parse().unwrap(), id: [7; 16] };
    let mut options = initiator::Options::new(who, nqn.parse().unwrap());
    (options.credentials, options.tls) = (credentials, tls);
    let address: initiator::Address = address.parse().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let open = async {
        let network = initiator::tokio::TokioNetwork::new();
        let opened = initiator::Controller::open(&network, &address, &options, initiator::Purpose::Io).await;
        let controller = opened.map_err(|error| error.to_string())?;
        controller.shutdown().await;
        Ok(())
    };
    tasks.run_until(open).await
}

#[tokio::test]
async fn a_host_with_a_secret_proves_itself_and_the_secret_is_there_after_a_restart_and_never_shown() {
    let bench = Bench::new();
    let credentials = |host: &str, controller: Option<&str>| {
        let secret = |text: &str| text.parse::<nvme::auth::Secret>().unwrap();
        Some(nvme::auth::Credentials { host: secret(host), controller: controller.map(secret) })
    };
    {
        let engine = bench.engine().await;
        let export = export(&bench, &engine, "tank", &[A, B]).await;
        let (address, nqn) = (export.address.clone(), export.nqn.clone().unwrap());
        assert_eq!(connects(&address, &nqn, A, None).await, Ok(()));
        let changed = engine.host_key_set(Some("tank"), A, key(SECRET, Some(OTHER))).await.unwrap();
        let shown = serde_json::to_string(&(changed, engine.hosts().await.unwrap())).unwrap();
        assert!(!shown.contains("DHHC") && shown.contains("\"mutual\":true"), "{shown}");
        let no_secret = format!("{address}: the controller wants this host to authenticate, and no secret was given");
        assert_eq!(connects(&address, &nqn, A, None).await, Err(no_secret));
        assert_eq!(connects(&address, &nqn, B, None).await, Ok(()), "others need none");
        engine.host_key_set(Some("tank"), B, key(OTHER, None)).await.unwrap();
        let shown = engine.exports().await.unwrap().remove(0);
        assert_eq!((shown.secret_hosts, shown.mutual_hosts), (vec![A.to_owned(), B.to_owned()], vec![A.to_owned()]));
        engine.host_key_remove(Some("tank"), B).await.unwrap();
        end(engine).await;
    }
    let engine = bench.engine().await;
    let export = engine.exports().await.unwrap().remove(0);
    let (address, nqn) = (export.address.clone(), export.nqn.clone().unwrap());
    assert!(connects(&address, &nqn, A, None).await.is_err());
    assert_eq!(connects(&address, &nqn, A, credentials(SECRET, Some(OTHER))).await, Ok(()));
    let wrong = format!("{address}: the controller refused to authenticate this host: the secret is another one");
    assert_eq!(connects(&address, &nqn, A, credentials(OTHER, None)).await, Err(wrong));
    let hosts = engine.hosts().await.unwrap();
    let told = HostKey { group: Some("tank".to_owned()), mutual: true, dh_group: DhGroup::Ffdhe2048 };
    assert_eq!((hosts[0].nqn.as_str(), &hosts[0].keys, hosts[1].keys.len()), (A, &vec![told], 0));
    engine.host_key_remove(Some("tank"), A).await.unwrap();
    assert_eq!(connects(&address, &nqn, A, None).await, Ok(()));
    end(engine).await;
    // Both copies of the catalogue had the secrets.
    for drive in ["tank-0", "tank-1"] {
        let bytes = std::fs::read(bench.drive(drive)).unwrap();
        assert!(!bytes.windows(6).any(|bytes| bytes == b"DHHC-1"), "a secret is left on {drive}");
    }
}

#[tokio::test]
async fn a_secret_that_is_none_is_refused_without_being_repeated() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let said = |refused: Result<Changed<HostKey>, daemon::http::ControlError>| refused.unwrap_err().message;
    let broken = SECRET.replace("ia6z", "ia7z");
    let sum = "its checksum is wrong: a character is missing or is another one";
    assert_eq!(
        said(engine.host_key_set(Some("tank"), A, key(&broken, None)).await),
        format!("the secret of the host {A} cannot be used: {sum}")
    );
    let same = "host and target have the same secret: make one for each";
    assert_eq!(said(engine.host_key_set(Some("tank"), A, key(SECRET, Some(SECRET))).await), same);
    assert_eq!(said(engine.host_key_set(Some("gone"), A, key(SECRET, None)).await), "there is no group \"gone\"");
    assert_eq!(
        said(engine.host_key_remove(Some("tank"), A).await),
        format!("{A} has no secret for the group \"tank\"")
    );
    assert!(engine.hosts().await.unwrap().is_empty());
    end(engine).await;
}

/// TLS keys for tests: the specification's example, and one that nvme-cli has made.
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const TLS_OTHER: &str = "NVMeTLSkey-1:02:sNTgIRCPWtC6Khc96pJxhrCK4fLhN4dZFGuWCkrIE5D8ronBse2v0oGQBjku8jMJu2mFeg==:";

fn tls_key(key: &str, keep_old: bool) -> HostTlsKeySet {
    HostTlsKeySet { key: key.to_owned(), keep_old }
}

#[tokio::test]
async fn a_host_with_a_key_uses_tls_and_the_key_is_there_after_a_restart_and_never_shown() {
    let bench = Bench::new();
    let secure = |text: &str| Some(text.parse::<nvme::tls::TlsKey>().unwrap());
    let in_the_clear = |address: &str| Err(format!("{address}: Connect failed: Connect Invalid Host"));
    {
        let engine = bench.engine().await;
        let export = export(&bench, &engine, "tank", &[A, B]).await;
        let (address, nqn) = (export.address.clone(), export.nqn.clone().unwrap());
        assert!(export.tls_hosts.is_empty());
        let changed = engine.host_tls_key_set(Some("tank"), A, tls_key(TLS_KEY, false)).await.unwrap();
        let shown = serde_json::to_string(&(changed, engine.hosts().await.unwrap())).unwrap();
        assert!(!shown.contains("NVMeTLS") && shown.contains("\"key_count\":1"), "{shown}");
        assert_eq!(engine.exports().await.unwrap()[0].tls_hosts, [A]);
        assert_eq!(connects(&address, &nqn, A, None).await, in_the_clear(&address));
        assert_eq!(connects(&address, &nqn, B, None).await, Ok(()), "others need none");
        assert_eq!(connects_with(&address, &nqn, A, None, secure(TLS_KEY)).await, Ok(()));
        end(engine).await;
    }
    let engine = bench.engine().await;
    let export = engine.exports().await.unwrap().remove(0);
    let (address, nqn) = (export.address.clone(), export.nqn.clone().unwrap());
    assert_eq!(connects(&address, &nqn, A, None).await, in_the_clear(&address));
    // The stored key is valid for this host only.
    assert_eq!(connects_with(&address, &nqn, A, None, secure(TLS_KEY)).await, Ok(()));
    assert!(connects_with(&address, &nqn, B, None, secure(TLS_KEY)).await.is_err());
    // The key is exchanged: both are valid for a time, then only the new one.
    let changed = engine.host_tls_key_set(Some("tank"), A, tls_key(TLS_OTHER, true)).await.unwrap();
    assert_eq!(changed.object, Some(HostTlsKey { group: Some("tank".to_owned()), key_count: 2 }));
    for key in [TLS_KEY, TLS_OTHER] {
        assert_eq!(connects_with(&address, &nqn, A, None, secure(key)).await, Ok(()));
    }
    let again = engine.host_tls_key_set(Some("tank"), A, tls_key(TLS_OTHER, true)).await.unwrap();
    assert_eq!(again.object.unwrap().key_count, 2, "the same key is there once");
    engine.host_tls_key_set(Some("tank"), A, tls_key(TLS_OTHER, false)).await.unwrap();
    assert!(connects_with(&address, &nqn, A, None, secure(TLS_KEY)).await.is_err());
    assert_eq!(connects_with(&address, &nqn, A, None, secure(TLS_OTHER)).await, Ok(()));
    engine.host_tls_key_remove(Some("tank"), A).await.unwrap();
    assert_eq!(connects(&address, &nqn, A, None).await, Ok(()));
    end(engine).await;
}

#[tokio::test]
async fn a_key_that_was_exchanged_twice_counts_in_neither_of_its_forms() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let export = export(&bench, &engine, "tank", &[A]).await;
    let (address, nqn) = (export.address.clone(), export.nqn.clone().unwrap());
    let key = |text: &str| text.parse::<nvme::tls::TlsKey>().unwrap();
    // The middle key is not transformed for the host, and so has one form.
    let plain = TLS_KEY.replace(":01:", ":00:");
    for (text, counts) in [(TLS_OTHER, true), (plain.as_str(), true), (TLS_KEY, false)] {
        engine.host_tls_key_set(Some("tank"), A, tls_key(text, true)).await.unwrap();
        for first in [key(TLS_OTHER), key(TLS_OTHER).of_old_libnvme()] {
            assert_eq!(connects_with(&address, &nqn, A, None, Some(first)).await.is_ok(), counts, "{text}");
        }
        assert_eq!(connects_with(&address, &nqn, A, None, Some(key(text))).await, Ok(()));
    }
    assert_eq!(connects_with(&address, &nqn, A, None, Some(key(TLS_KEY).of_old_libnvme())).await, Ok(()));
    end(engine).await;
}

#[tokio::test]
async fn a_key_of_tls_that_is_none_is_refused_without_being_repeated() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let said = |refused: Result<Changed<HostTlsKey>, daemon::http::ControlError>| refused.unwrap_err().message;
    let broken = TLS_KEY.replace("VRLb", "VRLc");
    assert_eq!(
        said(engine.host_tls_key_set(Some("tank"), A, tls_key(&broken, false)).await),
        format!(
            "the key of the host {A} cannot be used: its checksum is wrong: a character is missing or is another one"
        )
    );
    assert_eq!(
        said(engine.host_tls_key_set(Some("gone"), A, tls_key(TLS_KEY, false)).await),
        "there is no group \"gone\""
    );
    let nothing = format!("{A} has no key of TLS for the group \"tank\"");
    assert_eq!(said(engine.host_tls_key_remove(Some("tank"), A).await), nothing);
    assert!(engine.hosts().await.unwrap().is_empty());
    end(engine).await;
}
