//! Hosts that may use a namespace and then lose that right, and their counters.

use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Target, host, only, subsystem, wish};
use crate::common::{Volume, eventually};
use export::{Hosts, Kind};
use nvme::Status;
use nvme::host::{Blocks, io};
use nvme::tcp::Digests;

fn read(queue: &mut Queue, nsid: u32) -> Status {
    queue.execute(io::read(Blocks { nsid, first: 0, count: 1 }, BLOCK), &[], BLOCK).status()
}

#[test]
fn a_host_that_is_let_in_sees_the_namespace_at_once_and_one_that_is_put_out_loses_it() {
    let target: Target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let volume = Volume::new(MIB);
    let state = target.offer(2, volume.clone(), only(&[1]), false);
    let mut one = Controller::with(target.address, wish(1), Digests::default()).unwrap();
    let mut two = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let (mut first, mut second) = (one.queue(1), two.queue(1));
    assert_eq!((read(&mut first, 2), read(&mut second, 2)), (Status::SUCCESS, Status::INVALID_NAMESPACE));

    let asked = two.ask();
    target.portal.allow(&subsystem(), 2, only(&[1, 2]));
    assert_eq!(two.changed(asked), [2]);
    assert_eq!((read(&mut first, 2), read(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS));

    // A write of the host that loses access is in flight, and is answered.
    volume.hold();
    let write = io::write(Blocks { nsid: 2, first: 0, count: 1 }, BLOCK, true, false);
    let in_flight = first.send(write, &vec![5; BLOCK as usize], 0);
    eventually("the write is in the volume", || volume.in_flight() == 1);
    let asked = one.ask();
    target.portal.allow(&subsystem(), 2, only(&[2]));
    assert_eq!(one.changed(asked), [2]);
    assert_eq!(read(&mut first, 2), Status::INVALID_NAMESPACE);
    volume.release();
    assert_eq!(first.wait(in_flight).status(), Status::SUCCESS);
    assert_eq!((read(&mut first, 1), read(&mut second, 2)), (Status::SUCCESS, Status::SUCCESS), "nobody else notices");
    eventually("its queue has let go", || state.connections().len() == 1);

    target.portal.allow(&subsystem(), 2, Hosts::Any);
    assert_eq!(read(&mut first, 2), Status::SUCCESS, "it may come back");
}

#[test]
fn what_a_host_has_done_is_counted_over_its_queues_and_after_it_has_gone() {
    let target: Target = Target::start(1, 64);
    let state = target.offer(1, Volume::new(MIB), Hosts::Any, false);
    let one = Controller::with(target.address, wish(1), Digests::default()).unwrap();
    let two = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut queues = [one.queue(1), one.queue(2), two.queue(1)];
    for queue in &mut queues {
        assert_eq!(read(queue, 1), Status::SUCCESS);
    }
    let names = [host(1).nqn.to_string(), host(2).nqn.to_string()];
    let figures = || {
        let hosts = state.hosts();
        names.clone().map(|name| {
            let usage = &hosts[&name];
            (usage.queues, usage.counters.requests[Kind::Read as usize], usage.counters.read_bytes)
        })
    };
    let block = u64::from(BLOCK);
    assert_eq!(figures(), [(2, 2, 2 * block), (1, 1, block)]);
    let beyond = Blocks { nsid: 1, first: MIB / block, count: 1 };
    let refused = queues[2].execute(io::read(beyond, BLOCK), &[], BLOCK).status();
    assert_eq!(refused, Status::LBA_OUT_OF_RANGE);
    let errors = names.clone().map(|name| state.hosts()[&name].counters.errors);
    assert_eq!(errors, [0, 1], "what is refused is an error, too");
    drop((queues, one, two));
    eventually("they are gone", || state.connections().is_empty());
    assert_eq!(figures(), [(0, 2, 2 * block), (0, 1, block)]);
}
