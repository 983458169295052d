//! Which hosts a target accepts, and the error messages for those that it refuses.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use crate::common::{MIB, Target, Volume, address, disk, host, on_tokio, only, options};
use drive::Tasks;
use export::Hosts;
use initiator::tokio::TokioNetwork;
use initiator::{ConnectError, Namespace, Options, Selection, discover};
use nvme::{DISCOVERY_NQN, Nqn};

async fn refused(at: std::net::SocketAddr, selection: Selection, options: Options) -> ConnectError {
    let network = TokioNetwork::new();
    match Namespace::connect(&network, &[address(at)], selection, options).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

#[test]
fn discovery_lists_what_the_host_may_use() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let options = Options { subsystem: DISCOVERY_NQN.parse().unwrap(), ..options() };
        let found = discover(&TokioNetwork::new(), &address(target.address), &options).await.unwrap();
        let listed: Vec<_> = found.entries.iter().map(|entry| (entry.kind, entry.subsystem.to_string())).collect();
        assert!(listed.contains(&(2, crate::common::subsystem().to_string())), "{listed:?}");
        let entry = found.entries.iter().find(|entry| entry.kind == 2).unwrap();
        assert_eq!(format!("{}:{}", entry.address, entry.port), target.address.to_string());
    });
}

#[test]
fn a_host_that_is_not_allowed_is_told_so() {
    on_tokio(async {
        let target = Target::start(1, 64);
        target.offer(1, Volume::new(MIB), only(&[2]), false);
        let error = refused(target.address, Selection::Only, options()).await.to_string();
        assert!(error.contains("Connect Invalid Host"), "{error}");
        let allowed = Options { host: host(2), ..options() };
        disk(target.address, allowed).await.close().await;
    });
}

#[test]
fn a_subsystem_that_there_is_not_is_told_so() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let other = Options { subsystem: Nqn::of_uuid(&[0x77; 16]), ..options() };
        let error = refused(target.address, Selection::Only, other).await.to_string();
        assert!(error.contains("the name of the subsystem"), "{error}");
        let discovery = Options { subsystem: DISCOVERY_NQN.parse().unwrap(), ..options() };
        let error = refused(target.address, Selection::Only, discovery).await.to_string();
        assert!(error.contains("discovery subsystem"), "{error}");
    });
}

#[test]
fn among_several_namespaces_one_has_to_be_chosen() {
    on_tokio(async {
        let target = Target::start(1, 64);
        for nsid in [3, 7] {
            target.offer(nsid, Volume::new(MIB), Hosts::Any, false);
        }
        let error = refused(target.address, Selection::Only, options()).await;
        assert!(matches!(&error, ConnectError::Choose { nsids, .. } if nsids[..] == [3, 7]), "{error}");
        let error = refused(target.address, Selection::Number(4), options()).await;
        assert!(matches!(error, ConnectError::NoNamespace { nsid: 4, .. }), "{error}");
        let network = TokioNetwork::new();
        let seventh = Namespace::connect(&network, &[address(target.address)], Selection::Number(7), options()).await;
        assert_eq!(seventh.unwrap().info().nsid, 7);
    });
}

#[test]
fn what_is_no_target_is_called_that() {
    on_tokio(async {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = refused(closed, Selection::Only, options()).await;
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            // A server with another protocol, one that closes at once, and one that is silent.
            listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            drop(listener.accept().unwrap());
            let silent = listener.accept();
            std::thread::sleep(Duration::from_secs(5));
            drop(silent);
        });
        let error = refused(at, Selection::Only, options()).await;
        assert!(matches!(error, ConnectError::NotNvme { .. }), "{error}");
        let error = refused(at, Selection::Only, options()).await;
        assert!(matches!(error, ConnectError::NotNvme { .. }), "{error}");
        let patience = Options { connect_timeout: Duration::from_millis(300), ..options() };
        let error = refused(at, Selection::Only, patience).await;
        assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    });
}

#[test]
fn a_namespace_that_is_closed_or_dropped_leaves_no_connection() {
    on_tokio(async {
        let (target, _volume, state) = Target::disk(MIB);
        let connected = |state: &export::ExportState| state.connections().len();
        let closed = disk(target.address, Options { queues: 3, ..options() }).await;
        closed.flush().await.unwrap();
        assert!(connected(&state) > 0);
        closed.close().await;
        assert!(closed.flush().await.is_err());
        let dropped = disk(target.address, options()).await;
        dropped.flush().await.unwrap();
        drop(dropped);
        while connected(&state) > 0 {
            TokioNetwork::new().sleep(Duration::from_millis(5)).await;
        }
    });
}
