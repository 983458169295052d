//! Namespaces over real sockets, through a proxy that breaks connections in every way.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

#[path = "../../../../export/tests/suite/common/mod.rs"]
mod export_common;
pub mod proxy;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use drive::{BufMut, Segments};
use export::{ExportState, Hosts, NamespaceOffer};
use initiator::tokio::TokioNetwork;
use initiator::{Address, Namespace, Options, Selection};
use nvme::target::Subsystem;

pub use export_common::nvme::{BLOCK, BOTH, MIB, Saved, Target, host, only, pattern, subsystem};
pub use export_common::{PATIENCE, Raw, Volume, eventually, has};

pub type Disk = Namespace<TokioNetwork>;

/// Runs a test with a time limit.
pub fn on_tokio<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async { tokio::time::timeout(PATIENCE, test).await.expect("the test ends") })
}

pub fn address(of: SocketAddr) -> Address {
    of.to_string().parse().unwrap()
}

/// Host 1, with short delays.
pub fn options() -> Options {
    Options {
        reconnect_delay: Duration::from_millis(20),
        reconnect_delay_max: Duration::from_millis(100),
        loss_timeout: Some(PATIENCE),
        keep_alive: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(2),
        ..Options::new(host(1), subsystem())
    }
}

/// The only namespace at an address.
pub async fn disk(at: SocketAddr, options: Options) -> Disk {
    Namespace::connect(&TokioNetwork::new(), &[address(at)], Selection::Only, options).await.unwrap()
}

pub fn buf(len: usize) -> BufMut {
    BufMut::zeroed(len)
}

/// Splits data into segments of different lengths.
pub fn segments(data: &[u8]) -> Segments {
    let cut = data.len() / 3;
    [&data[..cut], &data[cut..]]
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(|part| BufMut::copy_of(part).freeze())
        .collect()
}

/// Offers a volume under a number with a UUID of its own.
pub fn offer(target: &Target, nsid: u32, uuid: u8, volume: &Volume, block_bytes: u32) -> Arc<ExportState> {
    let state = ExportState::new(format!("disk-{nsid}-{uuid}"), "for tests", false);
    let described = Subsystem { nqn: subsystem(), serial: "TEST".to_owned(), firmware: "1".to_owned() };
    let volume = volume.clone();
    let open = Arc::new(move || Some(volume.clone()));
    let offer = NamespaceOffer {
        block_bytes,
        uuid: [uuid; 16],
        hosts: Hosts::Any,
        state: state.clone(),
        open,
        shared: Saved::default().namespace(),
        secrets: target.secrets.clone(),
        history: target.history.clone(),
    };
    target.portal.add(described, nsid, offer);
    state
}

/// Numbers that look random: xorshift64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
