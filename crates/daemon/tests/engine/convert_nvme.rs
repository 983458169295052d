//! Volumes that are converted between direct and thin while NVMe hosts use them as namespaces.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, VolumeControl};
use nvme::host::{AsyncEvent, Blocks, admin, io};
use nvme::target::Event;
use nvme::{Command, Nqn, Status};

use crate::bench::*;
use crate::convert::{bench_with_group, convert, stuck, until_converted};
use crate::nvme_host::{NvmeHost, ask, connect};
use crate::thin::{MIB, bytes};

const BLOCK: u64 = 4096;

/// Commands that are sent before the first answer.
const QUEUE_DEPTH: usize = 8;

/// Offers the volume `tank/db` as the namespace 1.
async fn export(bench: &Bench, engine: &Engine) -> (String, Nqn) {
    let address = bench.address();
    let request: ExportCreate = serde_json::from_value(serde_json::json!({
        "volume": "tank/db", "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": BLOCK, "nsid": 1 },
    }))
    .unwrap();
    let (volume, place) = request.validate().unwrap();
    let export = engine.export_create(request, volume, place).await.unwrap().object.unwrap();
    (address, export.nqn.unwrap().parse().unwrap())
}

fn blocks(offset: u64, len: u64) -> Blocks {
    Blocks { nsid: 1, first: offset / BLOCK, count: (len / BLOCK) as u32 }
}

fn write_command(offset: u64, data: Vec<u8>) -> (Command, Vec<u8>) {
    (io::write(blocks(offset, data.len() as u64), data.len() as u32, true, false), data)
}

/// Writes in commands of 64 KiB.
fn write(host: &mut NvmeHost, offset: u64, content: &[u8]) {
    let parts: Vec<_> = (offset..).step_by(64 << 10).zip(content.chunks(64 << 10)).collect();
    for parts in parts.chunks(QUEUE_DEPTH) {
        let commands: Vec<_> = parts.iter().map(|(at, part)| write_command(*at, part.to_vec())).collect();
        assert!(host.execute_at_once(&commands).iter().all(|status| *status == Status::SUCCESS));
    }
}

fn read(host: &mut NvmeHost, len: u64) -> Vec<u8> {
    let parts = (0..len).step_by(MIB as usize).map(|at| {
        let (status, data) = host.execute(io::read(blocks(at, MIB), MIB as u32), &[], MIB as u32);
        assert_eq!(status, Status::SUCCESS);
        data
    });
    parts.collect::<Vec<_>>().concat()
}

/// The parts of Identify Namespace that depend on the kind of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    is_thin: bool,
    capacity_bytes: u64,
    used_bytes: u64,
    optimal_write_bytes: u64,
}

fn shown(host: &mut NvmeHost) -> Shown {
    let data = host.identify(1);
    assert_eq!((data.nsze.get() * BLOCK % MIB, data.npwg.get()), (0, 0), "size and grain are those of any volume");
    Shown {
        is_thin: data.nsfeat & 1 != 0,
        capacity_bytes: data.ncap.get() * BLOCK,
        used_bytes: data.nuse.get() * BLOCK,
        optimal_write_bytes: (u64::from(data.nows.get()) + 1) * BLOCK,
    }
}

/// Waits until the host is told that the namespace is another one, and reads which.
fn told(host: &mut NvmeHost, request: u16) -> Shown {
    let event: AsyncEvent = host.event(request);
    assert_eq!((event.notice(), event.log_page), (Some(Event::NamespaceChanged), 4));
    let (status, changed) = host.administer(admin::get_log_page(4, 0, 4096, false).command, 4096);
    assert_eq!((status, &changed[..8]), (Status::SUCCESS, &[1, 0, 0, 0, 0, 0, 0, 0][..]));
    shown(host)
}

/// A host that writes the whole time, with several commands under way, where `content` is not zero.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(NvmeHost, Vec<u8>, u64)>,
}

impl Writer {
    fn start(mut host: NvmeHost, mut content: Vec<u8>) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::task::spawn_blocking(move || {
            let (mut number, mut rounds) = (1u32, 0);
            while !stopped.load(Ordering::Relaxed) {
                let mut commands = Vec::new();
                // Each command has a part of its own, as their order is not known.
                for part in 0..QUEUE_DEPTH {
                    number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let (start, len) = (part * content.len() / QUEUE_DEPTH, content.len() / QUEUE_DEPTH);
                    let written = (1 + number as usize % 16) * BLOCK as usize;
                    let at = start + (number >> 8) as usize % ((len - written) / BLOCK as usize) * BLOCK as usize;
                    let place = &mut content[at..at + written];
                    if place.chunks(BLOCK as usize).all(|block| block.iter().any(|byte| *byte != 0)) {
                        place.copy_from_slice(&bytes(number, written as u64));
                        commands.push(write_command(at as u64, place.to_vec()));
                    }
                }
                let statuses = host.execute_at_once(&commands);
                assert!(statuses.iter().all(|status| *status == Status::SUCCESS), "{statuses:?}");
                rounds += 1;
            }
            (host, content, rounds)
        });
        Writer { stop, task }
    }

    async fn end(self) -> (NvmeHost, Vec<u8>) {
        self.stop.store(true, Ordering::Relaxed);
        let (host, content, rounds) = self.task.await.unwrap();
        assert!(rounds > 0, "nothing was written meanwhile");
        (host, content)
    }
}

#[tokio::test]
async fn a_namespace_stays_connected_while_its_volume_is_converted_and_its_hosts_are_told() {
    let (bench, engine) = bench_with_group().await;
    let size_bytes = 24 * MIB;
    let asked = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": size_bytes });
    engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
    let (address, nqn) = export(&bench, &engine).await;
    let content = [bytes(1, 9 * MIB), vec![0; 7 * MIB as usize], bytes(2, 8 * MIB)].concat();
    let (host, content) = ask(connect(&address, &nqn, 1).await, move |host| {
        write(host, 0, &content[..9 * MIB as usize]);
        write(host, 16 * MIB, &content[16 * MIB as usize..]);
        content
    })
    .await;
    // The shards take turns with connections: the watcher asks the one that has no thin store.
    let turn = TcpStream::connect(&address).unwrap();
    let watcher = connect(&address, &nqn, 2).await;
    let (watcher, (direct, event)) = ask(watcher, |host| (shown(host), host.ask_event())).await;
    assert_eq!((direct.is_thin, direct.capacity_bytes, direct.used_bytes), (false, size_bytes, size_bytes));

    let writer = Writer::start(host, content);
    convert(&engine, "db", ConvertAction::Thin).await.unwrap();
    let (watcher, thin) = ask(watcher, move |host| told(host, event)).await;
    let optimal_write_bytes = 64 << 10;
    assert_eq!(thin, Shown { is_thin: true, capacity_bytes: size_bytes, used_bytes: 17 * MIB, optimal_write_bytes });
    until_converted(&engine, "db", VolumeKind::Thin).await;
    let (host, content) = writer.end().await;
    let (host, stored) = ask(host, move |host| read(host, size_bytes)).await;
    assert!(stored == content, "as a thin volume");

    // A quota is the capacity of the namespace.
    let (watcher, event) = ask(watcher, NvmeHost::ask_event).await;
    let quota = ThinUpdate { quota_bytes: Some(18 * MIB), ..ThinUpdate::default() };
    engine.volume_thin(&"tank/db".parse().unwrap(), quota).await.unwrap();
    let (watcher, limited) = ask(watcher, move |host| told(host, event)).await;
    assert_eq!(limited, Shown { capacity_bytes: 18 * MIB, ..thin });

    let (watcher, event) = ask(watcher, NvmeHost::ask_event).await;
    let writer = Writer::start(host, content);
    convert(&engine, "db", ConvertAction::Direct).await.unwrap();
    let (watcher, again) = ask(watcher, move |host| told(host, event)).await;
    assert_eq!(again, direct);
    until_converted(&engine, "db", VolumeKind::Direct).await;
    let (host, content) = writer.end().await;
    let (host, stored) = ask(host, move |host| read(host, size_bytes)).await;
    assert!(stored == content, "as a direct volume");
    drop((host, watcher, turn));
    end(engine).await;

    let engine = bench.engine().await;
    let (host, stored) = ask(connect(&address, &nqn, 1).await, move |host| read(host, size_bytes)).await;
    assert!(stored == content, "after a restart");
    drop(host);
    end(engine).await;
}

#[tokio::test]
async fn a_volume_that_is_being_converted_is_for_all_hosts_as_it_was() {
    let (bench, engine) = bench_with_group().await;
    let (_, content) = stuck(&bench, &engine).await;
    let size_bytes = content.len() as u64;
    let (address, nqn) = export(&bench, &engine).await;
    let (mut hosts, mut turns) = (Vec::new(), Vec::new());
    for number in 1..=2 {
        // The shards take turns with connections, and a host has two of them.
        turns.push(TcpStream::connect(&address).unwrap());
        let (host, shown) = ask(connect(&address, &nqn, number).await, shown).await;
        assert_eq!((shown.is_thin, shown.capacity_bytes, shown.used_bytes), (false, size_bytes, size_bytes));
        assert_eq!(shown.optimal_write_bytes, 48 << 10, "host {number}");
        let (host, stored) = ask(host, move |host| read(host, size_bytes)).await;
        assert!(stored == content, "host {number}");
        hosts.push(host);
    }
    drop((hosts, turns));
    end(engine).await;
}
