//! The memory that many namespaces and many connections take. This is a program of its own, because
//! its memory is measured. Its tests run one after the other.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "suite/common/mod.rs"]
mod common;

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::honest::Honest;
use common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, wish};
use common::{Volume, eventually};
use export::{ExportState, HostConnections, Hosts};
use nvme::host::{Blocks, Wish, io};
use nvme::tcp::pdu::initialize;
use nvme::tcp::{Digests, Kind};

const NAMESPACES: u32 = 1000;

/// Each host has an admin queue and three I/O queues.
const HOSTS: u8 = 64;

/// Held by the test whose memory is measured.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resident memory of this process in bytes, with both ends of all connections.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Requests of all namespaces.
fn used(states: &[Arc<ExportState>]) -> u64 {
    states.iter().map(|state| state.counters().requests.iter().sum::<u64>()).sum()
}

#[test]
fn a_thousand_namespaces_and_256_connections_are_served_within_a_mebibyte_for_each() {
    let _alone = alone();
    let target: Target = Target::start(2, 300);
    let offer = |nsid| target.offer(nsid, Volume::new(MIB), Hosts::Any, false);
    let states: Vec<Arc<ExportState>> = (1..=NAMESPACES).map(offer).collect();
    let before = resident_bytes();
    let mut hosts: Vec<(Controller, Vec<Queue>)> = Vec::new();
    for number in 1..=HOSTS {
        let wish = Wish { queues: 3, ..wish(number) };
        let controller = Controller::with(target.address, wish, Digests::default()).unwrap();
        let queues = (1..=3).map(|queue| controller.queue(queue)).collect();
        hosts.push((controller, queues));
    }
    let connections = hosts.iter().map(|(_, queues)| 1 + queues.len() as u64).sum::<u64>();
    assert_eq!(connections, 256);

    assert_eq!(hosts[0].0.namespaces().len(), NAMESPACES as usize);
    // Every namespace is used. Every queue uses several, and shares some with other queues.
    let mut nsid = 0;
    for round in 0..8 {
        for (index, queue) in hosts.iter_mut().flat_map(|(_, queues)| queues).enumerate() {
            nsid = nsid % NAMESPACES + 1;
            let place = Blocks { nsid, first: index as u64, count: 1 };
            let data = vec![nsid as u8 ^ round; BLOCK as usize];
            assert!(queue.execute(io::write(place, BLOCK, true, false), &data, 0).status().is_success());
            assert_eq!(queue.execute(io::read(place, BLOCK), &[], BLOCK).data(), data);
        }
    }
    // A queue that uses many namespaces counts once.
    let connected = target.portal.connected();
    let one = HostConnections { controllers: 1, queues: 3 };
    assert!(connected.len() == usize::from(HOSTS) && connected.values().all(|host| *host == one), "{connected:?}");
    let each = resident_bytes().saturating_sub(before) / connections;
    assert!(each < MIB, "{each} bytes for each connection, both ends and what was written included");
    println!("{} KiB for each connection, both ends and what was written included", each >> 10);

    // A queue that uses all namespaces, more than once, does not keep state for each of them.
    let before = resident_bytes();
    let (used_before, queues) = (used(&states), 8);
    for (_, of_host) in hosts.iter_mut().take(queues) {
        for nsid in (1..=NAMESPACES).chain(1..=NAMESPACES) {
            let place = Blocks { nsid, first: 0, count: 1 };
            assert!(of_host[0].execute(io::read(place, BLOCK), &[], BLOCK).status().is_success());
        }
    }
    let each = resident_bytes().saturating_sub(before) / queues as u64;
    assert!(each < MIB, "{each} bytes for each queue that has used all namespaces");
    println!("{} KiB more for each queue that has used all namespaces", each >> 10);
    assert_eq!(
        used(&states) - used_before,
        2 * u64::from(NAMESPACES) * queues as u64,
        "nothing is forgotten of what it has done"
    );
}

/// Whether the target has not ended the connection.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn ten_thousand_connections_without_a_handshake_are_bounded_and_disturb_nobody() {
    const MOST: usize = 500;
    let _alone = alone();
    runtime::raise_descriptor_limit().unwrap();
    let target: Target = Target::start(1, MOST);
    let state = target.offer(1, crate::common::Volume::new(16 * MIB), export::Hosts::Any, false);
    let honest = Honest::begin(target.address);
    let before = resident_bytes();
    let held: Vec<TcpStream> = (0..10_000)
        .map(|number| {
            let mut stream = TcpStream::connect(target.address).unwrap();
            if number % 3 == 0 {
                // Some begin, and stop in the middle. The connection may be closed already.
                let _ = stream.write_all(&initialize(Kind::IcReq, 0, BOTH, 0)[..100]);
            }
            stream
        })
        .collect();
    // Other hosts get in at once, without waiting for the timeouts of these.
    for id in 20..30 {
        let controller = Controller::with(target.address, wish(id), BOTH).unwrap();
        let place = Blocks { nsid: 1, first: 2000, count: 1 };
        assert!(controller.queue(1).execute(io::read(place, BLOCK), &[], BLOCK).status().is_success());
    }
    eventually("a quarter of the places is what they have", || {
        held.iter().filter(|stream| is_open(stream)).count() <= MOST / 4
    });
    // 64 KiB for each would be twice as much.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 300 << 20, "{grown} bytes for {} connections", held.len());
    honest.end();
    drop(held);
    eventually("all queues have let go", || state.connections().is_empty());
    assert_eq!(state.counters().in_flight, 0);
}
