//! Targets that require TLS, and the error messages for a host that does not get it.

use std::net::TcpListener;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{BOTH, MIB, Target, Volume, address, buf, disk, host, on_tokio, only, options, pattern, segments};
use export::HostSecret;
use initiator::tokio::TokioNetwork;
use initiator::{Namespace, Options, Selection, discover};
use nvme::DISCOVERY_NQN;
use nvme::auth::{Credentials, DhGroup, Hash, Secret};
use nvme::tls::TlsKey;

fn key(seed: u8, hash: Hash) -> TlsKey {
    TlsKey::generate(hash, &[seed; 48])
}

/// Host 1 has to encrypt, with key 1.
fn target(hash: Hash) -> (Target, Volume) {
    let (target, volume, _) = Target::disk(64 * MIB);
    target.secrets.set_tls(host(1).nqn.as_str(), Some(vec![key(1, hash)]));
    (target, volume)
}

fn with(seed: u8, hash: Hash) -> Options {
    Options { tls: Some(key(seed, hash)), queues: 3, ..options() }
}

async fn refused(at: std::net::SocketAddr, options: Options) -> String {
    match Namespace::connect(&TokioNetwork::new(), &[address(at)], Selection::Only, options).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_by_several_queues_inside_of_tls_is_read_back() {
    on_tokio(async {
        for (hash, digests) in [(Hash::Sha256, BOTH), (Hash::Sha384, Default::default())] {
            let (target, _) = target(hash);
            let disk = disk(target.address, Options { digests, ..with(1, hash) }).await;
            // Lengths around what fits into a capsule, a record and a transfer; longer ones are
            // split.
            let lens = [4 << 10, 16 << 10, 20 << 10, 128 << 10, 132 << 10, 1 << 20, 5 << 20];
            let mut offset = 0;
            let mut written = Vec::new();
            for (seed, len) in lens.into_iter().enumerate() {
                let data = pattern(len, seed);
                disk.write(offset, segments(&data), seed % 2 == 0).await.unwrap();
                written.push((offset, data));
                offset += len as u64;
            }
            disk.flush().await.unwrap();
            for (offset, data) in &written {
                let read = disk.read(*offset, buf(data.len())).await.unwrap();
                assert!(read[..] == data[..], "{} bytes", data.len());
                disk.compare(*offset, segments(data)).await.unwrap();
            }
            disk.close().await;
        }
    });
}

#[test]
fn who_does_not_get_tls_is_told_why() {
    on_tokio(async {
        let (target, _) = target(Hash::Sha256);
        let ended = "the target ended the handshake: it has another key of this host, or none, or no TLS";
        for wrong in [with(2, Hash::Sha256), with(1, Hash::Sha384)] {
            let said = refused(target.address, wrong).await;
            assert!(said.starts_with("no TLS with 127.0.0.1") && said.ends_with(ended), "{said}");
        }
        // A host without any namespace that it may use.
        target.portal.allow(&crate::common::subsystem(), 1, only(&[2]));
        assert!(refused(target.address, with(1, Hash::Sha256)).await.ends_with(ended));
        target.portal.allow(&crate::common::subsystem(), 1, export::Hosts::Any);
        // Without TLS.
        let said = refused(target.address, options()).await;
        assert!(said.ends_with("Connect Invalid Host"), "{said}");
        // A target without any key does not recognize the handshake.
        let (plain, _, _) = Target::disk(MIB);
        let said = refused(plain.address, with(1, Hash::Sha256)).await;
        assert!(said.starts_with("no TLS with"), "{said}");
        // A listener that never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let impatient = Options { connect_timeout: Duration::from_millis(300), ..with(1, Hash::Sha256) };
        let said = refused(silent.local_addr().unwrap(), impatient).await;
        assert!(said.ends_with("did not answer within 300 ms"), "{said}");
    });
}

#[test]
fn a_connection_that_is_made_again_is_encrypted_again_and_with_the_key_of_then() {
    on_tokio(async {
        let (target, _) = target(Hash::Sha256);
        let proxy = Proxy::to(target.address);
        let disk = disk(proxy.address, with(1, Hash::Sha256)).await;
        let data = pattern(300 << 10, 1);
        disk.write(0, segments(&data), false).await.unwrap();
        for _ in 0..3 {
            proxy.cut();
            assert!(disk.read(0, buf(data.len())).await.unwrap()[..] == data[..]);
        }
        // With another key at the target the host waits, and goes on when the right key is back.
        let name = host(1).nqn.to_string();
        target.secrets.set_tls(&name, Some(vec![key(7, Hash::Sha256)]));
        proxy.cut();
        let waiting = tokio::time::timeout(Duration::from_millis(700), disk.flush()).await;
        assert!(waiting.is_err(), "nobody lets it in: {waiting:?}");
        target.secrets.set_tls(&name, Some(vec![key(7, Hash::Sha256), key(1, Hash::Sha256)]));
        disk.flush().await.unwrap();
        disk.close().await;
    });
}

/// An attacker between both can end a connection and hold back what was sent. So a write whose
/// connection ended without a TLS close notification is retried only when the target can no longer
/// execute the first copy. Without TLS it is retried at once.
#[test]
fn an_end_that_anybody_could_have_made_is_not_taken_for_the_targets() {
    on_tokio(async {
        let (target, volume) = target(Hash::Sha256);
        let proxy = Proxy::to(target.address);
        let slow = Options { keep_alive: Duration::from_secs(3), ..with(1, Hash::Sha256) };
        let disk = disk(proxy.address, Options { queues: 1, ..slow }).await;
        volume.hold();
        let data = pattern(4 << 10, 1);
        let begun = std::time::Instant::now();
        let write = disk.write(0, segments(&data), false);
        let cut = async {
            while volume.in_flight() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            proxy.cut();
            volume.release();
        };
        let (written, ()) = tokio::join!(write, cut);
        written.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
        disk.close().await;
    });
}

#[test]
fn discovery_and_authentication_go_inside_of_tls() {
    on_tokio(async {
        let (target, _) = target(Hash::Sha384);
        let asks = Options { subsystem: DISCOVERY_NQN.parse().unwrap(), ..with(1, Hash::Sha384) };
        let found = discover(&TokioNetwork::new(), &address(target.address), &asks).await.unwrap();
        let told: Vec<(u8, bool)> =
            found.entries.iter().map(|entry| (entry.kind, entry.needs_secure_channel)).collect();
        assert_eq!(told, [(3, false), (2, true)]);

        let secret = |seed| Secret::generate(Some(Hash::Sha256), &[seed; 64]);
        let proof = HostSecret { host: secret(1), controller: Some(secret(2)), group: DhGroup::Ffdhe2048 };
        target.secrets.set(host(1).nqn.as_str(), Some(proof));
        let credentials = Some(Credentials { host: secret(1), controller: Some(secret(2)) });
        let disk = disk(target.address, Options { credentials, ..with(1, Hash::Sha384) }).await;
        disk.flush().await.unwrap();
        disk.close().await;
    });
}
