//! Damage by the network is detected with digests, and only with them.

use std::sync::{Arc, Mutex};

use crate::common::proxy::{At, Damage, Proxy};
use crate::common::{BOTH, Disk, MIB, Target, Volume, address, buf, disk, on_tokio, options, pattern, segments};
use drive::Block;
use initiator::tokio::TokioNetwork;
use initiator::{IoError, Namespace, Options, Selection};
use nvme::Status;
use nvme::tcp::{Digests, Kind};

const HEADER: Digests = Digests { header: true, data: false };
const DATA: Digests = Digests { header: false, data: true };
const NONE: Digests = Digests { header: false, data: false };

/// SLBA of a read or write in its capsule: 8 bytes of the PDU, then 40 of the command.
const SLBA: At = At::Header(48);

/// The upper byte of the status in a response: 8 bytes of the PDU, then 15 of the completion.
const STATUS: At = At::Header(23);

/// Turns a success into a media error, which is not retried.
const MEDIA: u8 = 1 << 2;

/// DGST of ICReq and ICResp.
const DGST: At = At::Header(11);

/// The offset at which the data is damaged.
const PLACE: usize = 1000;

/// A namespace behind a proxy, with a pattern in its first half.
async fn behind_a_proxy(digests: Digests) -> (Target, Volume, Proxy, Disk) {
    let (target, volume, _) = Target::disk(2 * MIB);
    let proxy = Proxy::to(target.address);
    proxy.record();
    let disk = disk(proxy.address, Options { digests, ..options() }).await;
    disk.write(0, segments(&pattern(MIB as usize, 1)), false).await.unwrap();
    (target, volume, proxy, disk)
}

fn data(kind: Kind, times: u64) -> Damage {
    Damage { kind, at: At::Data(PLACE), flips: 1, after: 0, times }
}

fn damaged(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[PLACE] ^= 1;
    bytes
}

/// One is received with other bytes, the other directly into its buffer.
const LENS: [usize; 2] = [4096, 256 << 10];

#[test]
fn damaged_data_of_a_read_are_asked_for_again_and_never_handed_out() {
    on_tokio(async {
        for digests in [DATA, BOTH] {
            let (_target, _, proxy, disk) = behind_a_proxy(digests).await;
            for len in LENS {
                for times in 1..=2 {
                    let before = proxy.damaged();
                    proxy.damage(data(Kind::C2hData, times));
                    let read = disk.read(0, buf(len)).await.unwrap();
                    assert_eq!(proxy.damaged() - before, times, "{len} bytes");
                    assert!(*read == pattern(len, 1)[..], "{len} bytes");
                }
            }
            assert_eq!(disk.paths()[0].connects, 1, "the connection goes on");
        }
    });
}

#[test]
fn data_of_a_read_that_are_damaged_every_time_are_an_error() {
    on_tokio(async {
        let (_target, _, proxy, disk) = behind_a_proxy(BOTH).await;
        proxy.damage(data(Kind::C2hData, u64::MAX));
        let read = disk.read(0, buf(4096)).await;
        assert_eq!(read.map(drop), Err(IoError::Failed(Status::TRANSIENT_TRANSPORT_ERROR)));
        assert_eq!(proxy.damaged(), 6, "it was tried five times more");
        proxy.damage(data(Kind::C2hData, 0));
        assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(4096, 1)[..]);
    });
}

#[test]
fn damaged_data_of_a_write_are_sent_again_and_never_written() {
    on_tokio(async {
        for (len, kind) in LENS.into_iter().zip([Kind::CapsuleCmd, Kind::H2cData]) {
            let (_target, volume, proxy, disk) = behind_a_proxy(BOTH).await;
            proxy.damage(data(kind, 1));
            disk.write(MIB, segments(&pattern(len, 2)), false).await.unwrap();
            assert_eq!((proxy.damaged(), disk.paths()[0].connects), (1, 1), "{len} bytes");
            assert!(*Block::read(&volume, MIB, buf(len)).await.unwrap() == pattern(len, 2)[..], "{len} bytes");
        }
    });
}

#[test]
fn without_data_digests_the_same_damage_is_read_and_written() {
    on_tokio(async {
        for digests in [NONE, HEADER] {
            for (len, kind) in LENS.into_iter().zip([Kind::CapsuleCmd, Kind::H2cData]) {
                let (_target, volume, proxy, disk) = behind_a_proxy(digests).await;
                proxy.damage(data(Kind::C2hData, 1));
                assert!(*disk.read(0, buf(len)).await.unwrap() == damaged(pattern(len, 1)), "{len} bytes");
                proxy.damage(data(kind, 1));
                disk.write(MIB, segments(&pattern(len, 2)), false).await.unwrap();
                assert_eq!((proxy.damaged(), disk.paths()[0].connects), (2, 1), "{len} bytes");
                assert!(*Block::read(&volume, MIB, buf(len)).await.unwrap() == damaged(pattern(len, 2)), "{len} bytes");
            }
        }
    });
}

#[test]
fn a_damaged_header_ends_the_connection_and_its_command_is_sent_again_through_the_next() {
    on_tokio(async {
        for digests in [HEADER, BOTH] {
            let (_target, volume, proxy, disk) = behind_a_proxy(digests).await;
            // The damaged command means the next block.
            proxy.damage(Damage { kind: Kind::CapsuleCmd, at: SLBA, flips: 1, after: 0, times: 1 });
            assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(MIB as usize, 1)[..4096]);
            assert_eq!((proxy.damaged(), disk.paths()[0].connects), (1, 2));
            let said = disk.paths()[0].last_error.clone().unwrap();
            assert!(said.contains("the other side ends the connection: status 3h"), "{said}");
            // A damaged response turns a success into an error.
            proxy.damage(Damage { kind: Kind::CapsuleResp, at: STATUS, flips: MEDIA, after: 0, times: 1 });
            disk.write(MIB, segments(&pattern(4096, 2)), false).await.unwrap();
            assert_eq!((proxy.damaged(), disk.paths()[0].connects), (2, 3));
            let said = disk.paths()[0].last_error.clone().unwrap();
            assert!(said.contains("digest"), "{said}");
            assert!(*Block::read(&volume, MIB, buf(4096)).await.unwrap() == pattern(4096, 2)[..]);
        }
    });
}

#[test]
fn without_header_digests_the_same_damage_changes_a_command_and_an_answer() {
    on_tokio(async {
        for digests in [NONE, DATA] {
            let (_target, _, proxy, disk) = behind_a_proxy(digests).await;
            proxy.damage(Damage { kind: Kind::CapsuleCmd, at: SLBA, flips: 1, after: 0, times: 1 });
            assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(MIB as usize, 1)[4096..8192]);
            proxy.damage(Damage { kind: Kind::CapsuleResp, at: STATUS, flips: MEDIA, after: 0, times: 1 });
            let written = disk.write(MIB, segments(&pattern(4096, 2)), false).await;
            assert!(matches!(written, Err(IoError::Media(_))), "{written:?}");
            assert_eq!((proxy.damaged(), disk.paths()[0].connects), (2, 1));
        }
    });
}

#[test]
fn nothing_that_a_controller_says_of_itself_and_its_namespace_is_believed_if_it_is_damaged() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let network = TokioNetwork::new();
        let mut after = 0;
        loop {
            let proxy = Proxy::to(target.address);
            // In the ANA log, the state of the first group: it would be inaccessible.
            proxy.damage(Damage { kind: Kind::C2hData, at: At::Data(32), flips: 2, after, times: 1 });
            let options = Options { digests: BOTH, ..options() };
            let connected = Namespace::connect(&network, &[address(proxy.address)], Selection::Only, options).await;
            if proxy.damaged() == 0 {
                connected.unwrap();
                break;
            }
            let error = connected.map(drop).unwrap_err().to_string();
            assert!(error.contains("the digest of the data is wrong"), "PDU {after}: {error}");
            after += 1;
        }
        assert!(after >= 4, "{after}: the controller, its namespaces, one of them, and how it is reached at least");
    });
}

/// DGST of the first PDU of each recorded connection.
fn digests_in(proxy: &Proxy, kind: Kind) -> Vec<u8> {
    let ours = proxy.recorded().into_iter().filter(|way| way.bytes.first() == Some(&(kind as u8)));
    ours.map(|way| way.bytes[11]).collect()
}

#[test]
fn digests_are_agreed_on_as_they_are_asked_for_on_every_queue() {
    on_tokio(async {
        for digests in [NONE, HEADER, DATA, BOTH] {
            let (_target, _, proxy, disk) = behind_a_proxy(digests).await;
            assert_eq!(digests_in(&proxy, Kind::IcReq), [digests.bits(); 2], "an admin queue and one more");
            assert_eq!(digests_in(&proxy, Kind::IcResp), [digests.bits(); 2]);
            // It is the same after a connection has ended.
            proxy.cut();
            disk.read(0, buf(4096)).await.unwrap();
            while disk.paths()[0].connects < 2 {
                tokio::task::yield_now().await;
            }
            assert_eq!(digests_in(&proxy, Kind::IcResp), [digests.bits(); 4]);
        }
    });
}

#[test]
fn a_target_that_wants_no_digests_is_used_without_them_and_the_log_says_so() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    on_tokio(async {
        let (target, _, _) = Target::disk(MIB);
        for (unwanted, said) in [(NONE, 0), (HEADER, 1), (DATA, 1), (BOTH, 1)] {
            log.0.lock().unwrap().clear();
            let proxy = Proxy::to(target.address);
            proxy.record();
            // The target does not get these bits of the request.
            proxy.damage(Damage { kind: Kind::IcReq, at: DGST, flips: unwanted.bits(), after: 0, times: 2 });
            let disk = disk(proxy.address, Options { digests: BOTH, ..options() }).await;
            disk.write(0, segments(&pattern(4096, 2)), false).await.unwrap();
            assert!(*disk.read(0, buf(4096)).await.unwrap() == pattern(4096, 2)[..]);
            assert_eq!(digests_in(&proxy, Kind::IcResp), [BOTH.bits() ^ unwanted.bits(); 2]);
            let lines = log.0.lock().unwrap().clone();
            let lines: Vec<_> = lines.iter().filter(|line| line.contains("digests")).collect();
            assert_eq!(lines.len(), said, "{unwanted:?}: {lines:?}");
            assert!(lines.iter().all(|line| line.contains(&proxy.address.to_string())), "{lines:?}");
        }
    });
}

/// Records the warnings of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
