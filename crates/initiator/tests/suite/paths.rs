//! Several paths to one namespace.

use std::time::{Duration, Instant};

use crate::common::proxy::Proxy;
use crate::common::{
    BLOCK, Disk, MIB, PATIENCE, Target, Volume, address, buf, offer, on_tokio, options, pattern, segments, subsystem,
};
use initiator::tokio::TokioNetwork;
use initiator::{Address, ConnectError, IoError, Namespace, Options, PathState, Selection};
use nvme::Access;

/// ANA states of the log: Base 2.0, figure 220.
const OPTIMIZED: u8 = 0x1;
const NON_OPTIMIZED: u8 = 0x2;
const INACCESSIBLE: u8 = 0x3;

async fn connect(addresses: &[Address], options: Options) -> Disk {
    Namespace::connect(&TokioNetwork::new(), addresses, Selection::Only, options).await.unwrap()
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE / 2, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn states(disk: &Disk) -> Vec<PathState> {
    disk.paths().into_iter().map(|path| path.state).collect()
}

/// Two targets that offer one volume, each behind a proxy.
struct Two {
    volume: Volume,
    targets: [Target; 2],
    commands: [std::sync::Arc<export::ExportState>; 2],
    proxies: [Proxy; 2],
}

impl Two {
    fn start() -> Two {
        let volume = Volume::new(MIB);
        let targets = [Target::start(1, 64), Target::start(1, 64)];
        let commands = [0, 1].map(|index| offer(&targets[index], 1, 1, &volume, BLOCK));
        let proxies = [0, 1].map(|index| Proxy::to(targets[index].address));
        Two { volume, targets, commands, proxies }
    }

    fn addresses(&self) -> [Address; 2] {
        [0, 1].map(|index| address(self.proxies[index].address))
    }

    /// Changes the ANA state of a target, and sends the event.
    fn set_access(&self, index: usize, state: Access) {
        self.commands[index].set_access(state);
        self.targets[index].portal.access_changed(&subsystem(), 1);
    }

    /// Reads of each target so far.
    fn reads(&self) -> [u64; 2] {
        [0, 1].map(|index| self.commands[index].counters().requests[export::Kind::Read as usize])
    }
}

#[test]
fn requests_go_on_when_a_path_is_cut_and_when_the_other_is() {
    on_tokio(async {
        let two = Two::start();
        let disk = connect(&two.addresses(), options()).await;
        let live = [PathState::Live(Access::Optimized); 2];
        eventually("both are connected", || states(&disk) == live).await;
        for step in 0..6_usize {
            let cut = &two.proxies[step % 2];
            cut.refuse(true);
            cut.cut();
            for slot in 0..20_u64 {
                disk.write(slot * 4096, segments(&pattern(4096, step * 100 + slot as usize)), false).await.unwrap();
            }
            cut.refuse(false);
            eventually("it is connected again", || states(&disk) == live).await;
            for slot in 0..20_u64 {
                let data = disk.read(slot * 4096, buf(4096)).await.unwrap();
                assert!(*data == pattern(4096, step * 100 + slot as usize)[..]);
            }
        }
        assert_eq!(two.volume.in_flight(), 0);
    });
}

#[test]
fn optimized_paths_share_the_work_and_others_have_none() {
    on_tokio(async {
        let two = Two::start();
        let disk = connect(&two.addresses(), options()).await;
        eventually("both are connected", || states(&disk) == [PathState::Live(Access::Optimized); 2]).await;
        for _ in 0..100 {
            disk.read(0, buf(4096)).await.unwrap();
        }
        let both = two.reads();
        assert!(both[0] >= 40 && both[1] >= 40, "{both:?}");

        two.proxies[0].access(NON_OPTIMIZED);
        two.proxies[0].cut();
        let expected = [PathState::Live(Access::NonOptimized), PathState::Live(Access::Optimized)];
        eventually("the first is a worse way now", || states(&disk) == expected).await;
        let before = two.reads();
        for _ in 0..100 {
            disk.read(0, buf(4096)).await.unwrap();
        }
        assert_eq!(two.reads(), [before[0], before[1] + 100]);

        // A bad path is better than none.
        two.proxies[1].refuse(true);
        two.proxies[1].cut();
        for _ in 0..10 {
            disk.read(0, buf(4096)).await.unwrap();
        }
        assert!(two.reads()[0] >= before[0] + 9, "{:?}", two.reads());
    });
}

#[test]
fn a_path_that_is_inaccessible_is_never_used_and_waited_for() {
    on_tokio(async {
        let two = Two::start();
        two.proxies[1].access(INACCESSIBLE);
        let limit = Some(Duration::from_secs(1));
        let disk = connect(&two.addresses(), Options { loss_timeout: limit, ..options() }).await;
        let expected = [PathState::Live(Access::Optimized), PathState::Live(Access::Inaccessible)];
        eventually("both are connected", || states(&disk) == expected).await;
        two.proxies[0].refuse(true);
        two.proxies[0].cut();
        assert!(matches!(disk.read(0, buf(4096)).await, Err(IoError::Gone(_))), "there is no way for too long");
        assert_eq!(two.reads()[1], 0);

        two.proxies[1].access(OPTIMIZED);
        two.proxies[1].cut();
        eventually("it is accessible", || states(&disk)[1] == PathState::Live(Access::Optimized)).await;
        disk.read(0, buf(4096)).await.unwrap();
        assert_eq!(two.reads()[1], 1);
    });
}

/// Targets that enforce the ANA state, unlike the proxies above: they refuse commands, and send an
/// event for the change.
#[test]
fn a_path_that_becomes_inaccessible_is_left_without_a_failed_request() {
    on_tokio(async {
        let two = Two::start();
        let disk = connect(&two.addresses(), options()).await;
        eventually("both are connected", || states(&disk) == [PathState::Live(Access::Optimized); 2]).await;
        for step in 0..6_usize {
            let (used, left) = (step % 2, 1 - step % 2);
            two.set_access(used, Access::Optimized);
            two.set_access(left, Access::Inaccessible);
            // Some of them meet the refusal before the host has heard of the change.
            for slot in 0..20_u64 {
                disk.write(slot * 4096, segments(&pattern(4096, step * 100 + slot as usize)), false).await.unwrap();
            }
            let of = |index| if index == used { Access::Optimized } else { Access::Inaccessible };
            let expected = [0, 1].map(|index| PathState::Live(of(index)));
            eventually("the host has heard of it", || states(&disk) == expected).await;
            let before = two.reads();
            for slot in 0..20_u64 {
                let data = disk.read(slot * 4096, buf(4096)).await.unwrap();
                assert!(*data == pattern(4096, step * 100 + slot as usize)[..]);
            }
            assert_eq!(two.reads()[left], before[left], "nothing is sent there");
        }
        // No path is usable: a request waits until there is one again.
        two.set_access(1, Access::Inaccessible);
        eventually("both are away", || states(&disk) == [PathState::Live(Access::Inaccessible); 2]).await;
        let (read, ()) = tokio::join!(disk.read(0, buf(4096)), async { two.set_access(0, Access::NonOptimized) });
        assert!(*read.unwrap() == pattern(4096, 500)[..]);
        assert_eq!(states(&disk)[0], PathState::Live(Access::NonOptimized));
        assert_eq!(disk.paths().iter().map(|path| path.connects).collect::<Vec<_>>(), [1, 1], "no connection was lost");
    });
}

#[test]
fn an_address_with_another_namespace_is_no_path() {
    on_tokio(async {
        let (mine, other) = (Volume::new(MIB), Volume::new(MIB));
        let targets = [Target::start(1, 64), Target::start(1, 64)];
        offer(&targets[0], 1, 1, &mine, BLOCK);
        offer(&targets[1], 1, 2, &other, BLOCK);
        let disk = connect(&[0, 1].map(|index| address(targets[index].address)), options()).await;
        let said = || disk.paths()[1].last_error.clone().unwrap_or_default();
        eventually("it is refused", || said().contains("is another one now")).await;
        for slot in 0..10 {
            disk.write(slot * 4096, segments(&[7; 4096]), false).await.unwrap();
        }
        assert!(drive::Block::read(&other, 0, buf(40_960)).await.unwrap().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn the_first_address_may_be_dead_and_not_all_of_them() {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let disk = connect(&[closed, target.address].map(address), options()).await;
        disk.read(0, buf(4096)).await.unwrap();
        let none = Namespace::connect(&TokioNetwork::new(), &[address(closed)], Selection::Only, options()).await;
        assert!(matches!(none.map(drop), Err(ConnectError::Unreachable { .. })));
    });
}
