//! Namespaces that are added, grow and go while hosts are connected, and which hosts may see them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target, only, subsystem, wish, within};
use crate::common::{PATIENCE, Volume, eventually};
use drive::{Block, BlockError, Buf, BufMut, Extent, WriteZeroes};
use export::{ExportState, Hosts, Ram};
use nvme::host::{Blocks, DiscoveredSubsystem, DiscoveryLog, HostError, Wish, admin, io};
use nvme::target::Event;
use nvme::tcp::Digests;
use nvme::{DISCOVERY_NQN, Status};

fn read(queue: &mut Queue, nsid: u32, first: u64) -> Status {
    queue.execute(io::read(Blocks { nsid, first, count: 1 }, BLOCK), &[], BLOCK).status()
}

/// Whether a stopping export ends.
fn ends(state: &ExportState) -> bool {
    within(PATIENCE, state.stopped()).is_some()
}

#[test]
fn hosts_see_and_use_only_the_namespaces_that_they_may() {
    let target: Target = Target::start(1, 64);
    for (nsid, hosts) in [(1, only(&[1])), (2, only(&[1, 2])), (3, only(&[2]))] {
        target.offer(nsid, Volume::new(MIB), hosts, false);
    }
    for (number, seen) in [(1, [1, 2]), (2, [2, 3])] {
        let mut controller = Controller::with(target.address, wish(number), Digests::default()).unwrap();
        assert_eq!(controller.namespaces().iter().map(|found| found.0).collect::<Vec<_>>(), seen);
        let mut queue = controller.queue(1);
        for nsid in [1, 2, 3] {
            let expected = if seen.contains(&nsid) { Status::SUCCESS } else { Status::INVALID_NAMESPACE };
            assert_eq!(read(&mut queue, nsid, 0), expected, "host {number}, namespace {nsid}");
            let data = vec![number; BLOCK as usize];
            let write = io::write(Blocks { nsid, first: 0, count: 1 }, BLOCK, true, false);
            assert_eq!(queue.execute(write, &data, 0).status(), expected);
        }
        // They cannot be identified by number either.
        for nsid in [1, 3] {
            let described = controller.admin.submit(admin::identify(0, nsid));
            let empty = described.data.iter().all(|byte| *byte == 0);
            assert_eq!(empty, !seen.contains(&nsid), "host {number}, namespace {nsid}");
        }
    }

    let stranger = Controller::with(target.address, wish(3), Digests::default());
    let refused = HostError::Failed { command: "Connect", status: Status::CONNECT_INVALID_HOST };
    assert_eq!(stranger.err(), Some(refused));
    let listed = |number| {
        let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(number) };
        let mut controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
        let (_, entries) = controller.admin.lead(DiscoveryLog::new()).unwrap();
        entries.iter().any(|entry| DiscoveredSubsystem::of(entry).unwrap().subsystem == subsystem())
    };
    assert!(listed(1) && !listed(3));
}

#[test]
fn hosts_are_told_of_namespaces_that_come_and_go_and_of_no_others() {
    let target: Target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let mut one = Controller::connect(target.address);
    let mut two = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let (asked, other) = (one.ask(), two.ask());
    target.offer(7, Volume::new(MIB), only(&[1]), false);
    assert_eq!(one.changed(asked), [7]);
    assert_eq!(one.namespaces(), [(1, 256), (7, 256)]);
    let mut queue = one.queue(1);
    assert_eq!(read(&mut queue, 7, 0), Status::SUCCESS);

    // Two changes are one event.
    target.offer(8, Volume::new(MIB), only(&[1]), false);
    target.portal.remove(&subsystem(), 7);
    let asked = one.ask();
    eventually("both changes are in the log", || {
        let log = one.admin.submit(admin::get_log_page(4, 0, 4096, true)).data();
        log[..8] == [7, 0, 0, 0, 8, 0, 0, 0]
    });
    assert_eq!(one.changed(asked), [7, 8]);
    assert_eq!(one.namespaces(), [(1, 256), (8, 256)]);

    // Host 2 gets no event for a namespace that it may not see. It gets one for its own namespace,
    // though it has not sent a new request since.
    target.offer(2, Volume::new(MIB), only(&[2]), false);
    assert_eq!(two.changed(other), [2], "host 2 hears of its own namespaces only");
}

type Action = Box<dyn FnOnce() + Send>;

/// A volume that may grow, and that runs an action when its size is read.
#[derive(Clone)]
struct Elastic {
    ram: Ram,
    size_bytes: Arc<AtomicU64>,
    looked_at: Arc<Mutex<Option<Action>>>,
}

impl Elastic {
    fn new(size_bytes: u64) -> Elastic {
        let size = Arc::new(AtomicU64::new(size_bytes));
        Elastic { ram: Ram::new(16 * MIB), size_bytes: size, looked_at: Arc::default() }
    }
}

impl Block for Elastic {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::SeqCst)
    }

    fn optimal_io_bytes(&self) -> u32 {
        if let Some(then) = self.looked_at.lock().unwrap().take() {
            then();
        }
        self.ram.optimal_io_bytes()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.ram.read(offset, buf).await
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.ram.write(offset, data, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.ram.write_zeroes(offset, len, how).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.ram.discard(offset, len).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.ram.flush().await
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.ram.extents(offset, len).await
    }
}

#[test]
fn a_namespace_that_grows_is_told_of_and_usable_at_once() {
    let target = Target::start(1, 64);
    let volume = Elastic::new(MIB);
    target.offer(1, volume.clone(), Hosts::Any, false);
    let mut controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let asked = controller.ask();
    assert_eq!((read(&mut queue, 1, 255), read(&mut queue, 1, 256)), (Status::SUCCESS, Status::LBA_OUT_OF_RANGE));
    volume.size_bytes.store(2 * MIB, Ordering::SeqCst);
    target.portal.resized(&subsystem(), 1);
    assert_eq!(controller.changed(asked), [1]);
    assert_eq!(controller.namespaces(), [(1, 512)]);
    assert_eq!((read(&mut queue, 1, 511), read(&mut queue, 1, 512)), (Status::SUCCESS, Status::LBA_OUT_OF_RANGE));
}

#[test]
fn a_namespace_that_shrinks_is_told_of_and_what_lay_behind_its_new_end_is_refused() {
    let target = Target::start(1, 64);
    let volume = Elastic::new(2 * MIB);
    target.offer(1, volume.clone(), Hosts::Any, false);
    let mut controller = Controller::connect(target.address);
    let (mut queue, mut other) = (controller.queue(1), controller.queue(2));
    let asked = controller.ask();
    assert_eq!((read(&mut queue, 1, 511), read(&mut other, 1, 511)), (Status::SUCCESS, Status::SUCCESS));
    volume.size_bytes.store(MIB, Ordering::SeqCst);
    target.portal.resized(&subsystem(), 1);
    assert_eq!(controller.changed(asked), [1]);
    assert_eq!(controller.namespaces(), [(1, 256)]);
    for queue in [&mut queue, &mut other] {
        assert_eq!((read(queue, 1, 255), read(queue, 1, 256)), (Status::SUCCESS, Status::LBA_OUT_OF_RANGE));
        assert_eq!(read(queue, 1, 511), Status::LBA_OUT_OF_RANGE);
        // A write that begins before the end and goes beyond it writes nothing.
        let write = io::write(Blocks { nsid: 1, first: 255, count: 2 }, 2 * BLOCK, true, false);
        assert_eq!(queue.execute(write, &vec![5; 2 * BLOCK as usize], 0).status(), Status::LBA_OUT_OF_RANGE);
    }
    assert_eq!(volume.ram.allocated_bytes(), 0);
}

#[test]
fn a_removed_namespace_answers_what_it_has_and_the_queue_goes_on() {
    let (target, volume, state) = Target::disk(MIB);
    target.offer(2, Volume::new(MIB), Hosts::Any, false);
    let mut controller = Controller::connect(target.address);
    let (mut busy, mut idle) = (controller.queue(1), controller.queue(2));
    assert_eq!((read(&mut idle, 1, 0), state.connections().len()), (Status::SUCCESS, 1));
    volume.hold();
    let write = io::write(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK, true, false);
    let in_flight = busy.send(write, &vec![5; BLOCK as usize], 0);
    eventually("the write is in the volume", || volume.in_flight() == 1);

    let asked = controller.ask();
    target.portal.remove(&subsystem(), 1);
    state.stop();
    assert_eq!(controller.changed(asked), [1]);
    assert_eq!(controller.namespaces(), [(2, 256)]);
    assert_eq!((read(&mut busy, 1, 0), read(&mut idle, 1, 0)), (Status::INVALID_NAMESPACE, Status::INVALID_NAMESPACE));
    assert_eq!((read(&mut busy, 2, 0), read(&mut idle, 2, 0)), (Status::SUCCESS, Status::SUCCESS));
    assert!(within(Duration::from_millis(50), state.stopped()).is_none(), "a write is still in flight");
    volume.release();
    assert_eq!(busy.wait(in_flight).status(), Status::SUCCESS);
    assert!(ends(&state), "though both queues stay connected");
    assert_eq!((state.connections().len(), state.counters().in_flight), (0, 0));
    assert_eq!(volume.ram.allocated_bytes(), u64::from(BLOCK));
    assert_eq!(read(&mut busy, 2, 0), Status::SUCCESS);
}

#[test]
fn a_write_whose_data_come_after_the_end_of_its_namespace_changes_nothing() {
    let (target, volume, state) = Target::disk(MIB);
    target.offer(2, Volume::new(MIB), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    let data = vec![5; 2 * BLOCK as usize];
    let write = |in_capsule, data: &[u8]| {
        let blocks = Blocks { nsid: 1, first: 0, count: data.len() as u32 / BLOCK };
        io::write(blocks, data.len() as u32, in_capsule, false)
    };
    let asked = queue.send(write(false, &data), &data, 0);
    // The R2T comes before the answer to the next command.
    assert_eq!((read(&mut queue, 2, 0), queue.requests), (Status::SUCCESS, 1));
    // Half of a write in a capsule.
    let cid = queue.machine.begin(nvme::tcp::Transfer::None).unwrap();
    let capsule = queue.capsule(nvme::Command { cid: cid.into(), ..write(true, &data) }, &data);
    let (now, later) = capsule.split_at(capsule.len() / 2);
    std::io::Write::write_all(&mut queue.stream, now).unwrap();
    eventually("the namespace is in use", || !state.connections().is_empty());

    target.portal.remove(&subsystem(), 1);
    state.stop();
    assert!(ends(&state), "nothing is in flight: the data may never come");
    std::io::Write::write_all(&mut queue.stream, later).unwrap();
    assert_eq!(queue.wait(cid).status(), Status::INVALID_NAMESPACE);
    queue.supply();
    assert_eq!(queue.wait(asked).status(), Status::INVALID_NAMESPACE);
    assert_eq!(volume.ram.allocated_bytes(), 0);
    assert_eq!(read(&mut queue, 2, 0), Status::SUCCESS);
}

#[test]
fn a_stop_in_the_moment_of_the_first_use_of_a_namespace_comes_to_its_end() {
    let target = Target::start(1, 64);
    let volume = Elastic::new(MIB);
    let state = target.offer(1, volume.clone(), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let stopped = state.clone();
    *volume.looked_at.lock().unwrap() = Some(Box::new(move || stopped.stop()));
    assert_eq!(read(&mut queue, 1, 0), Status::INVALID_NAMESPACE);
    assert!(ends(&state), "the queue that was about to use it lets go of it");
}

#[test]
fn a_namespace_that_comes_again_is_another_one() {
    let (target, volume, state) = Target::disk(MIB);
    target.offer(2, Volume::new(MIB), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let write = io::write(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK, true, false);
    for round in 0..2 {
        assert_eq!(queue.execute(write, &vec![5; BLOCK as usize], 0).status(), Status::SUCCESS, "round {round}");
        if round == 0 {
            target.portal.remove(&subsystem(), 1);
            state.stop();
            assert!(ends(&state));
            target.offer(1, Volume::new(MIB), Hosts::Any, false);
        }
    }
    assert_eq!((state.counters().written_bytes, volume.ram.allocated_bytes()), (u64::from(BLOCK), u64::from(BLOCK)));
}

#[test]
fn a_host_that_watches_hears_of_referrals_and_reads_them_with_a_new_generation() {
    let (target, _, _) = Target::disk(MIB);
    let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(1) };
    let mut controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
    let read = |controller: &mut Controller| {
        let (generation, entries) = controller.admin.lead(DiscoveryLog::new()).unwrap();
        let found = entries.iter().map(|entry| DiscoveredSubsystem::of(entry).unwrap()).filter(|found| found.kind == 1);
        let referrals = found.map(|found| (found.subsystem.to_string(), format!("{} {}", found.address, found.port)));
        (generation, referrals.collect::<Vec<_>>())
    };
    let (generation, none) = read(&mut controller);
    assert!(none.is_empty());
    let mut last = generation;
    for addresses in [&["192.0.2.6:8009", "[2001:db8::6]:4420"][..], &["192.0.2.6:8009"], &[]] {
        let asked = controller.ask();
        target.portal.refer(addresses.iter().map(|address| address.parse().unwrap()).collect());
        let event = nvme::host::AsyncEvent::of(controller.admin.wait(asked).completion.result.get());
        assert_eq!((event.notice(), event.log_page), (Some(Event::DiscoveryChanged), 0x70));
        let (generation, found) = read(&mut controller);
        assert!(generation > last);
        let written = addresses.iter().map(|address| {
            let (ip, port) = address.rsplit_once(':').unwrap();
            (DISCOVERY_NQN.to_owned(), format!("{} {port}", ip.trim_matches(['[', ']'])))
        });
        assert_eq!(found, written.collect::<Vec<_>>());
        last = generation;
    }
    // A call that changes nothing causes no event.
    target.portal.refer([].into());
    assert_eq!(read(&mut controller).0, last);
}

/// nvme-cli keeps a discovery controller only if EPCSD is set. It reads a known one again unless
/// DUPRETINFO is set, and turns SQ flow control off only if TREQ allows that.
#[test]
fn the_discovery_log_says_what_a_host_may_do_with_each_entry() {
    let (target, _, _) = Target::disk(MIB);
    target.portal.refer(["192.0.2.6:8009".parse().unwrap()].into());
    let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(1) };
    let mut controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
    let (_, entries) = controller.admin.lead(DiscoveryLog::new()).unwrap();
    let told: Vec<(u8, u16, u8)> =
        entries.iter().map(|entry| (entry.subtype, entry.eflags.get(), entry.treq)).collect();
    // The discovery service of another machine is unknown, so its flags are clear.
    assert_eq!(told, [(3, 0b11, 0b110), (2, 0, 0b110), (1, 0, 0b010)]);
}
