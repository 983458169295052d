//! A drive on a target, and a network that splits: late commands change nothing.

use std::time::Duration;

use drive::{BufMut, Drive, DriveError, Env, Receiver, Segments, oneshot};
use initiator::{Address, Namespace, Selection};
use sim::{Patience, Sim, SimConnection, SimDrive, SimEnv, Target, Way};

use crate::group::{both, seeds};

const KEEP_ALIVE: Duration = Patience::USUAL.keep_alive;

/// A drive on a target with `addresses` addresses.
fn target(sim: &Sim, addresses: usize) -> (Target, SimDrive) {
    let drive = SimDrive::new(&sim.env(), "far", 1 << 20, 4096);
    (Target::new(sim, "target", std::slice::from_ref(&drive), addresses), drive)
}

async fn connect(env: &SimEnv, target: &Target) -> Namespace<SimEnv> {
    connect_at(env, target, target.addresses()).await
}

async fn connect_at(env: &SimEnv, target: &Target, addresses: &[Address]) -> Namespace<SimEnv> {
    let options = Patience::USUAL.options(target);
    Namespace::connect(env, addresses, Selection::Only, options).await.expect("the target is there")
}

fn data(byte: u8) -> Segments {
    Segments::from_iter([BufMut::copy_of(&[byte; 4096]).freeze()])
}

async fn write(drive: &Namespace<SimEnv>, byte: u8) {
    Drive::write(drive, 0, data(byte), false).await.expect("it is there again in time");
}

/// The final content of the first block.
fn first_block(sim: &Sim, drive: &SimDrive) -> u8 {
    sim.run_for(Duration::from_secs(60));
    let bytes = drive.read_raw(0, 4096);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
    bytes[0]
}

async fn ms(env: &SimEnv, ms: u64) {
    Env::sleep(env, Duration::from_millis(ms)).await;
}

/// The earliest time at which a controller is given up after a command without an answer.
const GIVEN_UP_MS: u64 = 3 * KEEP_ALIVE.as_millis() as u64;

/// The connections of the admin queue and of the I/O queue, if there is one controller.
fn queues(sim: &Sim, target: &Target) -> [SimConnection; 2] {
    let connections = sim.network().connections(&target.addresses()[0]);
    connections.try_into().unwrap_or_else(|all: Vec<_>| panic!("{} connections", all.len()))
}

/// Writes, and reports the result when there is one.
fn write_in_background(env: &SimEnv, drive: &Namespace<SimEnv>, byte: u8) -> Receiver<Result<(), DriveError>> {
    let (drive, (answer, answered)) = (drive.clone(), oneshot());
    Env::spawn(env, async move { answer.send(Drive::write(&drive, 0, data(byte), false).await) });
    answered
}

#[test]
fn a_write_that_a_split_delayed_does_not_overwrite_a_newer_one() {
    // Regression: the keep alive timer runs from the last command that arrived. A command that was
    // sent before a controller was given up can arrive almost a keep alive time later. Other
    // commands sent with it could be executed after a wait of one such time, that is, after the
    // write had been retried and acknowledged.
    for seed in seeds(2000) {
        let sim = Sim::new(seed);
        let (target, far) = target(&sim, 2);
        let (env, network, mut rng) = (sim.env(), sim.network(), sim.rng());
        sim.block_on(async {
            // The second path is not available before the first write is in flight.
            let [first, second] = [&target.addresses()[0], &target.addresses()[1]];
            network.cut(second, Way::ToTarget);
            let drive = connect(&env, &target).await;
            write(&drive, 1).await;
            ms(&env, rng.below(2500)).await;
            let [_, io] = queues(&sim, &target);
            io.stall(Way::ToTarget, Duration::from_millis(GIVEN_UP_MS + rng.below(12_500)));
            let answered = write_in_background(&env, &drive, 2);
            network.heal_all(second);
            // Acknowledgments no longer arrive, and delayed commands finally do.
            ms(&env, GIVEN_UP_MS - 500 + rng.below(1500)).await;
            network.cut(first, Way::ToHost);
            network.cut(first, Way::ToTarget);
            ms(&env, rng.below(2500)).await;
            network.heal(first, Way::ToTarget);
            answered.await.expect("it is answered").expect("there is another path");
            write(&drive, 3).await;
        });
        assert_eq!(first_block(&sim, &far), 3, "seed {seed}");
    }
}

#[test]
fn a_drive_is_closed_only_when_no_controller_that_it_ever_had_executes_something() {
    // Regression: closing waited for the last controller, but not for the one before, whose write
    // was still in flight.
    for seed in seeds(500) {
        let sim = Sim::new(seed);
        let (target, far) = target(&sim, 1);
        let (env, mut rng) = (sim.env(), sim.rng());
        sim.block_on(async {
            let drive = connect(&env, &target).await;
            ms(&env, rng.below(2500)).await;
            let [admin, io] = queues(&sim, &target);
            io.stall(Way::ToTarget, Duration::from_millis(GIVEN_UP_MS + rng.below(5000)));
            let answered = write_in_background(&env, &drive, 2);
            ms(&env, GIVEN_UP_MS - 1000).await;
            admin.stall(Way::ToTarget, Duration::from_millis(rng.below(5000)));
            // Soon there is another controller, through other connections.
            ms(&env, 1500 + rng.below(2000)).await;
            drive.close().await;
            drop(drive);
            assert!(answered.await.is_ok());
            write(&connect(&env, &target).await, 3).await;
        });
        assert_eq!(first_block(&sim, &far), 3, "seed {seed}");
    }
}

#[test]
fn what_a_killed_process_had_sent_changes_nothing_that_the_next_one_writes() {
    for seed in seeds(2000) {
        let sim = Sim::new(seed);
        let (target, far) = target(&sim, 2);
        let (env, network, mut rng) = (sim.env(), sim.network(), sim.rng());
        let first = &target.addresses()[0];
        sim.block_on(async {
            let drive = connect(&env, &target).await;
            ms(&env, rng.below(2500)).await;
            let [_, io] = queues(&sim, &target);
            io.stall(Way::ToTarget, Duration::from_millis(rng.below(12_500)));
            drop(write_in_background(&env, &drive, 2));
            drop(write_in_background(&env, &drive, 2));
            ms(&env, 1 + rng.below(100)).await;
            network.cut(first, Way::ToHost);
            network.cut(first, Way::ToTarget);
            ms(&env, rng.below(2500)).await;
            drop(drive);
        });
        sim.kill();
        sim.block_on(async {
            let heal = async {
                ms(&env, rng.below(2500)).await;
                network.heal(first, Way::ToTarget);
            };
            both(heal, Env::sleep(&env, Patience::USUAL.quiet)).await;
            write(&connect_at(&env, &target, &target.addresses()[1..]).await, 3).await;
        });
        assert_eq!(first_block(&sim, &far), 3, "seed {seed}");
    }
}
