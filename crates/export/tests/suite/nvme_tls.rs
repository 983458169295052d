//! Hosts that have to encrypt with their own key, and hosts that connect in another way.

#[path = "common/tls_proxy.rs"]
mod tls_proxy;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, host, only, pattern, subsystem, wish};
use crate::common::{PATIENCE, Volume, eventually, has};
use export::{ExportState, HostSecret, Hosts};
use nvme::auth::{DhGroup, Hash, Secret};
use nvme::host::{
    Blocks, DiscoveredSubsystem, DiscoveryLog, HostError, Setup, Wish, connect_admin, connect_io, connected, io,
};
use nvme::tcp::Digests;
use nvme::tls::TlsKey;
use nvme::{DISCOVERY_NQN, Nqn, Status};
use tls_proxy::{Secure, openssl, openssl_that_renews, proxy};

fn tls_key(seed: u8, hash: Hash) -> TlsKey {
    TlsKey::generate(hash, &[seed; 48])
}

/// The keys of a host for the handshake: identities of version 1 and 0.
fn keys(key: &TlsKey, number: u8, subsystem: &Nqn) -> Vec<psk::Key> {
    let made = |psk: &nvme::tls::TlsPsk| psk::Key {
        identity: psk.identity.text().into_bytes(),
        secret: psk.secret().to_vec().into(),
        hash: if psk.identity.hash == Hash::Sha256 { psk::Hash::Sha256 } else { psk::Hash::Sha384 },
    };
    key.psks(&host(number).nqn, subsystem).iter().map(made).collect()
}

fn own(seed: u8) -> Vec<psk::Key> {
    keys(&tls_key(seed, Hash::Sha256), 1, &subsystem())
}

/// Host 1 has to encrypt with key 1. Other hosts need not.
fn target() -> (Target, Volume, Arc<ExportState>) {
    let (target, volume, state) = Target::disk(8 * MIB);
    target.secrets.set_tls(host(1).nqn.as_str(), Some(vec![tls_key(1, Hash::Sha256)]));
    (target, volume, state)
}

fn read(queue: &mut Queue) -> Status {
    queue.execute(io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK), &[], BLOCK).status()
}

/// Writes and reads back, with data in the capsule and by R2T, up to the longest transfer.
fn use_it(queue: &mut Queue, seed: usize) {
    for (round, count) in [1, 8, 32, 256].into_iter().enumerate() {
        let data = pattern((count * BLOCK) as usize, seed + round);
        let blocks = Blocks { nsid: 1, first: round as u64 * 256, count };
        let in_capsule = count <= 32;
        let written = queue.execute(io::write(blocks, data.len() as u32, in_capsule, false), &data, 0);
        assert_eq!(written.status(), Status::SUCCESS);
        let back = queue.execute(io::read(blocks, data.len() as u32), &[], data.len() as u32).data();
        assert!(back == data, "{count} blocks");
    }
}

/// The result of Connect of an admin queue.
fn admitted(address: SocketAddr, wish: Wish) -> Result<(), HostError> {
    let mut queue = Queue::open(address, Digests::default());
    nvme::host::Connected::of(&queue.submit(connect_admin(&wish)).completion).map(drop)
}

fn refused(status: Status) -> Result<(), HostError> {
    Err(HostError::Failed { command: "Connect", status })
}

/// A well-behaved host is served beside misbehaving ones.
fn others_go_on(target: &Target) {
    let controller = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    assert_eq!(read(&mut controller.queue(1)), Status::SUCCESS);
    let controller = Controller::connect(proxy(target.address, &own(1)));
    assert_eq!(read(&mut controller.queue(1)), Status::SUCCESS);
}

#[test]
fn a_host_with_its_key_works_on_each_of_its_queues_with_every_identity() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for (version, digests) in [(0, BOTH), (1, Digests::default())] {
            let (target, volume, state) = target();
            let key = tls_key(4, hash);
            target.secrets.set_tls(host(1).nqn.as_str(), Some(vec![key.clone()]));
            let offered = keys(&key, 1, &subsystem());
            let one = [offered[1 - version].clone()];
            let address = proxy(target.address, &one);
            let controller = Controller::with(address, wish(1), digests).unwrap();
            let mut queues = [controller.queue(1), controller.queue(2)];
            for (number, queue) in queues.iter_mut().enumerate() {
                use_it(queue, number * 100);
            }
            assert!(state.connections().iter().all(|connection| connection.secure));
            assert_eq!(state.connections().len(), 2);
            // Commands that are in flight together.
            let (blocks, len) = (Blocks { nsid: 1, first: 0, count: 256 }, 256 * BLOCK);
            let sent: Vec<u16> = (0..8).map(|_| queues[0].send(io::read(blocks, len), &[], len)).collect();
            for cid in sent {
                assert_eq!(queues[0].wait(cid).data().len(), len as usize);
            }
            drop((queues, controller));
            eventually("nothing is left", || state.connections().is_empty() && volume.in_flight() == 0);
        }
    }
}

#[test]
fn openssl_is_a_host_that_is_let_in_and_reads_what_it_wrote() {
    if !has("openssl") {
        return;
    }
    // The s_client takes keys for SHA-256 only.
    let (target, _, _) = target();
    for identity in own(1) {
        let controller = Controller::with(openssl(target.address, &identity), wish(1), BOTH).unwrap();
        use_it(&mut controller.queue(1), 7);
    }
    // With another secret it gets no data.
    let mut stream = TcpStream::connect(openssl(target.address, &own(9)[0])).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(&[0; 128]);
    assert!(matches!(stream.read(&mut [0; 128]), Ok(0) | Err(_)));
}

/// KeyUpdate: RFC 8446, clause 4.6.3.
#[test]
fn a_host_that_renews_its_keys_is_served_on_with_new_ones_both_ways() {
    if !has("openssl") {
        return;
    }
    let (target, _, _) = target();
    let (address, renew) = openssl_that_renews(target.address, &own(1)[0]);
    let mut controller = Controller::with(address, wish(1), Digests::default()).unwrap();
    let mut queue = controller.queue(1);
    for _ in 0..5 {
        assert_eq!(read(&mut queue), Status::SUCCESS);
        // The admin queue renews its keys, too. Answered commands are no longer on their way to
        // s_client.
        assert_eq!(controller.namespaces().len(), 1);
        renew();
    }
    assert_eq!(read(&mut queue), Status::SUCCESS);
}

#[test]
fn a_host_that_has_a_key_is_refused_without_it_and_others_are_not() {
    let (target, _, state) = target();
    assert_eq!(admitted(target.address, wish(1)), refused(Status::CONNECT_INVALID_HOST));
    assert_eq!(admitted(target.address, wish(2)), Ok(()));
    others_go_on(&target);
    eventually("the others have gone", || state.connections().is_empty());
    // A host without TLS was let in before its key was set. It can connect no further queue.
    let controller = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut queue = controller.queue(1);
    target.secrets.set_tls(host(2).nqn.as_str(), Some(vec![tls_key(2, Hash::Sha256)]));
    assert_eq!(read(&mut queue), Status::SUCCESS, "what is connected stays");
    let failed = controller.try_queue(2, 32).map(drop);
    assert_eq!(failed, refused(Status::CONNECT_INVALID_HOST));
    assert!(state.connections().iter().all(|connection| !connection.secure));
}

#[test]
fn whoever_has_another_key_or_none_gets_no_further_than_the_handshake() {
    let (target, _, state) = target();
    let other_host = keys(&tls_key(1, Hash::Sha256), 2, &subsystem());
    let other_subsystem = keys(&tls_key(1, Hash::Sha256), 1, &Nqn::of_uuid(&[9; 16]));
    let nonsense = psk::Key { identity: b"root".to_vec(), ..own(1).remove(0) };
    for (what, keys) in [
        ("another key", own(2)),
        ("another hash", keys(&tls_key(1, Hash::Sha384), 1, &subsystem())),
        ("a host without key", other_host),
        ("a subsystem that is not here", other_subsystem),
        ("an identity that is none", vec![nonsense]),
    ] {
        assert!(Secure::connect(target.address, &keys).is_none(), "{what}");
    }
    // A host that has a key, but no namespace that it may use any more.
    target.portal.allow(&subsystem(), 1, only(&[2]));
    assert!(Secure::connect(target.address, &own(1)).is_none());
    target.portal.allow(&subsystem(), 1, Hosts::Any);
    // Its removed keys are not accepted any more.
    target.secrets.set_tls(host(1).nqn.as_str(), Some(Vec::new()));
    assert!(Secure::connect(target.address, &own(1)).is_none());
    assert_eq!(admitted(target.address, wish(1)), refused(Status::CONNECT_INVALID_HOST));
    assert!(state.connections().is_empty());
}

#[test]
fn a_key_opens_what_it_is_for_and_nothing_else() {
    let (target, _, _) = target();
    target.secrets.set_tls(host(2).nqn.as_str(), Some(vec![tls_key(2, Hash::Sha256)]));
    let address = proxy(target.address, &own(1));
    assert_eq!(admitted(address, wish(2)), refused(Status::CONNECT_INVALID_HOST), "another host, which has a key");
    assert_eq!(admitted(address, wish(3)), refused(Status::CONNECT_INVALID_HOST), "another host, which has none");
    let discovery: Nqn = DISCOVERY_NQN.parse().unwrap();
    let asks = |number| Wish { subsystem: discovery.clone(), queues: 0, ..wish(number) };
    let is_not_seen = |admitted| matches!(admitted, Err(HostError::Parameter { .. }));
    assert!(is_not_seen(admitted(address, asks(1))), "another subsystem");
    let for_discovery = proxy(target.address, &keys(&tls_key(1, Hash::Sha256), 1, &discovery));
    assert!(is_not_seen(admitted(for_discovery, wish(1))), "that of discovery");
    assert_eq!(admitted(for_discovery, asks(1)), Ok(()));
    assert_eq!(admitted(address, wish(1)), Ok(()));
}

#[test]
fn the_queues_of_a_controller_are_all_inside_of_tls_or_all_outside() {
    let (target, _, _) = target();
    let inside = Controller::connect(proxy(target.address, &own(1)));
    let try_queue = |address, number: u8, cntlid| {
        let mut queue = Queue::open(address, Digests::default());
        connected(&queue.submit(connect_io(&host(number), &subsystem(), cntlid, 1, 32)).completion).map(drop)
    };
    let no = refused(Status::CONNECT_INVALID_HOST);
    assert_eq!(try_queue(target.address, 1, inside.established.cntlid), no);
    // This holds even after its key was removed.
    target.secrets.set_tls(host(1).nqn.as_str(), None);
    assert_eq!(try_queue(target.address, 1, inside.established.cntlid), no);
    target.secrets.set_tls(host(1).nqn.as_str(), Some(vec![tls_key(1, Hash::Sha256)]));
    assert_eq!(try_queue(proxy(target.address, &own(1)), 1, inside.established.cntlid), Ok(()));
    let outside = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    target.secrets.set_tls(host(2).nqn.as_str(), Some(vec![tls_key(2, Hash::Sha256)]));
    let address = proxy(target.address, &keys(&tls_key(2, Hash::Sha256), 2, &subsystem()));
    assert_eq!(try_queue(address, 2, outside.established.cntlid), no);
}

#[test]
fn a_key_is_exchanged_without_a_gap() {
    let (target, _, _) = target();
    let controller = Controller::connect(proxy(target.address, &own(1)));
    let mut queue = controller.queue(1);
    let name = host(1).nqn.to_string();
    let set = |seeds: &[u8]| {
        let keys = seeds.iter().map(|seed| tls_key(*seed, Hash::Sha256)).collect();
        target.secrets.set_tls(&name, Some(keys));
    };
    let is_let_in = |seed: u8, version: usize| Secure::connect(target.address, &own(seed)[1 - version..]).is_some();
    // Both keys are valid for a time. The identity of version 0 does not name the key, and means
    // the newer one.
    set(&[2, 1]);
    assert!(is_let_in(1, 1) && is_let_in(2, 1));
    assert!(!is_let_in(1, 0) && is_let_in(2, 0));
    set(&[2]);
    assert!(!is_let_in(1, 1) && is_let_in(2, 1));
    assert_eq!(read(&mut queue), Status::SUCCESS, "what is connected stays");
}

#[test]
fn tls_and_authentication_go_together() {
    let (target, _, _) = target();
    let secret = Secret::generate(Some(Hash::Sha256), &[5; 32]);
    let secret = HostSecret { host: secret, controller: None, group: DhGroup::Null };
    target.secrets.set(host(1).nqn.as_str(), Some(secret));
    let mut queue = Queue::open(proxy(target.address, &own(1)), Digests::default());
    let connected = nvme::host::Connected::of(&queue.submit(connect_admin(&wish(1))).completion).unwrap();
    assert!(connected.must_authenticate, "a key of TLS does not stand for the secret");
}

#[test]
fn the_discovery_log_says_to_each_host_what_it_has_to_do() {
    let (target, _, _) = target();
    let discovery: Nqn = DISCOVERY_NQN.parse().unwrap();
    let ask = |address, number: u8| -> Vec<(u8, bool, u8)> {
        let asks = Wish { subsystem: discovery.clone(), queues: 0, ..wish(number) };
        let mut queue = Queue::open(address, Digests::default());
        queue.lead(Setup::new(asks)).unwrap();
        let (_, entries) = queue.lead(DiscoveryLog::new()).unwrap();
        let told = entries.iter().map(|entry| {
            let found = DiscoveredSubsystem::of(entry).unwrap();
            (found.kind, found.needs_secure_channel, entry.tsas[0])
        });
        told.collect()
    };
    let inside = proxy(target.address, &keys(&tls_key(1, Hash::Sha256), 1, &discovery));
    for address in [target.address, inside] {
        assert_eq!(ask(address, 1), [(3, false, 2), (2, true, 2)]);
    }
    assert_eq!(ask(target.address, 2), [(3, false, 0), (2, false, 0)]);
}

/// A valid ClientHello.
fn hello() -> Vec<u8> {
    let mut session = psk::Session::client(&own(1)).unwrap();
    session.shake(&[]).unwrap();
    session.to_send()
}

#[test]
fn a_handshake_that_is_cut_or_damaged_anywhere_ends_alone() {
    let (target, _, state) = target();
    let hello = hello();
    for end in (1..hello.len()).step_by(23) {
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.write_all(&hello[..end]).unwrap();
        drop(stream);
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut damaged = hello.clone();
        damaged[end] ^= 0x55;
        stream.write_all(&damaged).unwrap();
        // A message with too large a length waits for the rest.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 4096);
    }
    // The client closes the connection before the end of the handshake.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.write_all(&hello).unwrap();
        let _ = stream.read(&mut [0; 10]).unwrap();
    }
    others_go_on(&target);
    eventually("nothing is left", || state.connections().is_empty());
}

#[test]
fn garbage_inside_of_tls_and_behind_the_handshake_ends_its_connection_only() {
    let (target, _, state) = target();
    // Bytes that are no record.
    let mut secure = Secure::connect(target.address, &own(1)).unwrap();
    secure.stream.write_all(&[0xA5; 1000]).unwrap();
    assert!(ends(&mut secure.stream));
    // A record with a changed byte.
    let mut secure = Secure::connect(target.address, &own(1)).unwrap();
    let mut cipher = secure.seal(&[0; 128]);
    cipher[60] ^= 1;
    secure.stream.write_all(&cipher).unwrap();
    assert!(ends(&mut secure.stream));
    // A valid record with an invalid PDU: it is answered, inside TLS.
    let mut secure = Secure::connect(target.address, &own(1)).unwrap();
    let cipher = secure.seal(&[0xEE; 128]);
    secure.stream.write_all(&cipher).unwrap();
    let mut answer = Vec::new();
    secure.stream.read_to_end(&mut answer).unwrap();
    let mut plain = [0; 4096];
    let opened = secure.session.open(&answer, &mut plain).unwrap();
    assert!(opened.len >= 24 && plain[0] == 3, "C2HTermReq");
    // Garbage while a queue works.
    let controller = Controller::connect(proxy(target.address, &own(1)));
    let mut queue = controller.queue(1);
    use_it(&mut queue, 3);
    queue.stream.write_all(&[0xEE; 300]).unwrap();
    assert!(queue.is_closed());
    others_go_on(&target);
    drop((controller, queue));
    eventually("nothing is left", || state.connections().is_empty());
}

fn ends(stream: &mut TcpStream) -> bool {
    stream.read_to_end(&mut Vec::new()).is_ok()
}

#[test]
fn whoever_dawdles_in_the_handshake_holds_nobody_up_and_is_sent_away() {
    let (target, _, _) = target();
    let hello = hello();
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..200)
        .map(|at| {
            let mut stream = TcpStream::connect(target.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&hello[..1 + at % hello.len()]).unwrap();
            stream
        })
        .collect();
    others_go_on(&target);
    assert!(begun.elapsed() < Duration::from_secs(20));
    // A single byte now and then does not extend the time.
    std::thread::sleep(Duration::from_secs(15));
    let _ = slow[0].write_all(&hello[1..2]);
    assert!(slow.iter_mut().all(ends));
    assert!(begun.elapsed() < Duration::from_secs(45));
}

#[test]
fn where_nobody_has_a_key_a_handshake_is_answered_as_what_it_is_not() {
    let (target, _, _) = Target::disk(MIB);
    let mut stream = TcpStream::connect(target.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&hello()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[0], 3, "C2HTermReq");
}
