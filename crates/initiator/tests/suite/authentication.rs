//! Targets that require authentication, and the error messages for a host without a valid secret.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{MIB, Target, address, disk, host, on_tokio, options};
use export::HostSecret;
use initiator::tokio::TokioNetwork;
use initiator::{Namespace, Options, Selection};
use nvme::auth::{Credentials, DhGroup, Hash, Secret};

fn secret(seed: u8) -> Secret {
    Secret::generate(Some(Hash::Sha512), &[seed; 64])
}

/// Host 1 has secret 1, and the target authenticates itself with secret 2.
fn target(group: DhGroup) -> Target {
    let (target, _, _) = Target::disk(MIB);
    let secret = HostSecret { host: secret(1), controller: Some(secret(2)), group };
    target.secrets.set(host(1).nqn.as_str(), Some(secret));
    target
}

fn with(own: u8, controllers: Option<u8>) -> Options {
    let credentials = Credentials { host: secret(own), controller: controllers.map(secret) };
    Options { credentials: Some(credentials), queues: 2, ..options() }
}

async fn refused(target: &Target, options: Options) -> String {
    refused_at(target.address, options).await
}

async fn refused_at(at: SocketAddr, options: Options) -> String {
    let network = TokioNetwork::new();
    match Namespace::connect(&network, &[address(at)], Selection::Only, options).await {
        Ok(_) => panic!("connected"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_host_authenticates_on_each_queue_one_way_and_both_ways() {
    on_tokio(async {
        for group in [DhGroup::Null, DhGroup::Ffdhe2048, DhGroup::Ffdhe4096] {
            let target = target(group);
            for controllers in [None, Some(2)] {
                let disk = disk(target.address, with(1, controllers)).await;
                disk.flush().await.unwrap();
                disk.close().await;
            }
        }
    });
}

#[test]
fn who_cannot_prove_itself_is_told_why() {
    on_tokio(async {
        let target = target(DhGroup::Ffdhe2048);
        let said = refused(&target, options()).await;
        assert!(said.ends_with("the controller wants this host to authenticate, and no secret was given"), "{said}");
        let said = refused(&target, with(3, None)).await;
        assert!(
            said.ends_with("the controller refused to authenticate this host: the secret is another one"),
            "{said}"
        );
        let said = refused(&target, with(1, Some(3))).await;
        assert!(said.ends_with("the controller did not prove who it is: the secret is another one"), "{said}");
    });
}

/// FCTYPE: Base 2.0, figure 392.
const AUTHENTICATION_SEND: u8 = 0x05;
const AUTHENTICATION_RECEIVE: u8 = 0x06;

/// A path to a target on which each connection ends at the given number of Fabrics commands of a
/// kind.
fn mute_at(target: SocketAddr, kind: u8, count: usize) -> SocketAddr {
    /// Bytes of a PDU's common header.
    const HEADER: usize = 8;
    const CAPSULE_COMMAND: u8 = 0x04;
    const FABRICS: u8 = 0x7F;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (mut host, mut target) = (host.unwrap(), TcpStream::connect(target).unwrap());
            let (mut back, mut to) = (target.try_clone().unwrap(), host.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut to));
            let mut said = 0;
            let mut pdu = vec![0; HEADER];
            while host.read_exact(&mut pdu[..HEADER]).is_ok() {
                pdu.resize(u32::from_le_bytes(pdu[4..8].try_into().unwrap()) as usize, 0);
                host.read_exact(&mut pdu[HEADER..]).unwrap();
                let is_command = pdu[0] == CAPSULE_COMMAND && pdu[HEADER] == FABRICS;
                said += usize::from(is_command && pdu[HEADER + 4] == kind);
                if said == count {
                    break;
                }
                target.write_all(&pdu).unwrap();
            }
            let _ = (host.shutdown(Shutdown::Both), target.shutdown(Shutdown::Both));
        }
    });
    address
}

#[test]
fn an_impostor_that_hangs_up_when_it_is_told_so_is_still_called_one() {
    on_tokio(async {
        let target = target(DhGroup::Null);
        let way = mute_at(target.address, AUTHENTICATION_SEND, 3);
        let said = refused_at(way, with(1, Some(3))).await;
        assert!(said.ends_with("the controller did not prove who it is: the secret is another one"), "{said}");
    });
}

#[test]
fn of_a_target_that_hangs_up_when_it_has_the_proof_it_is_said_that_it_may_not_believe_it() {
    on_tokio(async {
        let target = target(DhGroup::Null);
        let way = mute_at(target.address, AUTHENTICATION_RECEIVE, 2);
        let said = refused_at(way, with(3, None)).await;
        assert!(
            said.ends_with("closed the connection when it had this host's proof: the secret may be another one"),
            "{said}"
        );
    });
}

#[test]
fn a_target_that_asks_for_nothing_is_believed_only_by_a_host_that_wants_no_proof() {
    on_tokio(async {
        let (target, _, _) = Target::disk(MIB);
        disk(target.address, with(1, None)).await.close().await;
        let said = refused(&target, with(1, Some(2))).await;
        assert!(said.ends_with("does not ask for authentication, so that it cannot prove who it is"), "{said}");
    });
}

#[test]
fn a_connection_that_is_made_again_authenticates_again() {
    on_tokio(async {
        let target = target(DhGroup::Ffdhe2048);
        let proxy = Proxy::to(target.address);
        let disk = disk(proxy.address, with(1, Some(2))).await;
        disk.flush().await.unwrap();
        proxy.cut();
        disk.flush().await.unwrap();
        // With another secret at the target the host waits, and goes on when the right secret is
        // back.
        let right = HostSecret { host: secret(1), controller: Some(secret(2)), group: DhGroup::Null };
        let name = host(1).nqn.to_string();
        target.secrets.set(&name, Some(HostSecret { host: secret(9), ..right.clone() }));
        proxy.cut();
        let flush = disk.flush();
        let waiting = tokio::time::timeout(Duration::from_millis(700), flush).await;
        assert!(waiting.is_err(), "nobody lets it in: {waiting:?}");
        target.secrets.set(&name, Some(right));
        disk.flush().await.unwrap();
        disk.close().await;
    });
}
