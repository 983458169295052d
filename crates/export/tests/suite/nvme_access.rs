//! Asymmetric Namespace Access: namespaces that an address reaches well, worse, or not at all.

use crate::common::Volume;
use crate::common::nvme::{BLOCK, Controller, MIB, Queue, Saved, Target, copy, only, subsystem, wish};
use export::{Hosts, Limit};
use nvme::host::{AsyncEvent, Blocks, Wish, admin, io};
use nvme::target::Event;
use nvme::tcp::Digests;
use nvme::{Access, Command, Status};

const LEN: usize = BLOCK as usize;

fn block(nsid: u32) -> Blocks {
    Blocks { nsid, first: 0, count: 1 }
}

fn read(queue: &mut Queue, nsid: u32) -> Status {
    queue.execute(io::read(block(nsid), BLOCK), &[], BLOCK).status()
}

fn write(queue: &mut Queue, nsid: u32, byte: u8) -> Status {
    queue.execute(io::write(block(nsid), BLOCK, true, false), &[byte; LEN], 0).status()
}

/// A host that requests events for changes of access states.
fn connect(target: &Target, host: u8) -> Controller {
    let wish = Wish { events: 1 << 11, ..wish(host) };
    Controller::with(target.address, wish, Digests::default()).unwrap()
}

/// The ANA log: its change count; and group, change count and state of each namespace.
fn states(controller: &mut Controller) -> (u64, Vec<(u32, u64, u8)>) {
    let log = controller.admin.submit(admin::get_log_page(0x0C, 0, 16 + 8 * 36, false)).data();
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    let groups = (0..usize::from(log[8])).map(|index| 16 + index * 36);
    let states = groups.map(|at| (number(at) as u32, number(at + 8), log[at + 16])).collect();
    (number(0), states)
}

/// Waits for the answer to an event request.
fn told(controller: &mut Controller, request: u16) -> (Option<Event>, u8) {
    let answer = controller.admin.wait(request);
    let event = AsyncEvent::of(answer.completion.result.get());
    (event.notice(), event.log_page)
}

#[test]
fn an_inaccessible_namespace_is_neither_read_nor_changed_and_others_are_served() {
    let target: Target = Target::start(1, 64);
    let volume = Volume::new(MIB);
    let state = target.offer(1, volume.clone(), Hosts::Any, false);
    target.offer(2, Volume::new(MIB), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    assert_eq!(write(&mut queue, 1, 7), Status::SUCCESS);

    state.set_access(Access::Inaccessible);
    let refused = Status::ACCESS_INACCESSIBLE;
    let [data, ranges] = [vec![9; LEN], vec![0; 16]];
    let (copy, sources) = copy(1, 0, &[(1, 1)], true, false);
    let reservation = Command::new(nvme::nvm::RESERVATION_REPORT, 0, 1);
    for (command, data) in [
        (io::read(block(1), BLOCK), &[][..]),
        (io::write(block(1), BLOCK, true, false), &data),
        (io::write(block(1), BLOCK, false, false), &data),
        (io::compare(block(1), BLOCK, true), &data),
        (io::write_zeroes(block(1), false, true), &[]),
        (io::verify(block(1)), &[]),
        (io::flush(1), &[]),
        (io::deallocate(1, &[(0, 1)], true).0, &ranges),
        (copy, &sources),
        (reservation, &[]),
    ] {
        let opcode = command.opcode;
        assert_eq!(queue.execute(command, data, 0).status(), refused, "{opcode:02x}h");
    }
    // Both parts of a fused operation are refused.
    let compare = Command { flags: 0x41, ..io::compare(block(1), BLOCK, true) };
    let change = Command { flags: 0x42, ..io::write(block(1), BLOCK, true, false) };
    let sent = [queue.send(compare, &[7; LEN], 0), queue.send(change, &data, 0)];
    let statuses = sent.map(|cid| queue.wait(cid).status());
    assert!(statuses[0] == refused && !statuses[1].is_success(), "{statuses:?}");
    assert_eq!((read(&mut queue, 2), write(&mut queue, 2, 3)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(queue.requests, 0, "data of what is refused are not asked for");

    for usable in [Access::NonOptimized, Access::Optimized] {
        state.set_access(usable);
        let answer = queue.execute(io::read(block(1), BLOCK), &[], BLOCK);
        assert_eq!(answer.data(), [7; LEN]);
    }
}

#[test]
fn hosts_are_told_of_the_namespaces_that_they_may_use_and_of_no_others() {
    let target: Target = Target::start(1, 64);
    let state = target.offer(1, Volume::new(MIB), only(&[1]), false);
    target.offer(2, Volume::new(MIB), only(&[1, 2]), false);
    let [mut one, mut two] = [1, 2].map(|number| connect(&target, number));
    let (asked, other) = (one.ask(), two.ask());
    let (first, known) = states(&mut one);
    assert_eq!(known, [(1, 1, 1), (2, 1, 1)]);

    state.set_access(Access::NonOptimized);
    target.portal.access_changed(&subsystem(), 1);
    assert_eq!(told(&mut one, asked), (Some(Event::AccessChanged), 0x0C));
    let (second, known) = states(&mut one);
    assert_eq!((known, second), (vec![(1, 2, 2), (2, 1, 1)], first + 1));
    // Setting the same state again is no change.
    state.set_access(Access::NonOptimized);
    assert_eq!(states(&mut one), (second, vec![(1, 2, 2), (2, 1, 1)]));
    state.set_access(Access::Inaccessible);
    target.portal.access_changed(&subsystem(), 1);
    let asked = one.ask();
    assert_eq!(told(&mut one, asked), (Some(Event::AccessChanged), 0x0C));
    assert_eq!(states(&mut one), (second + 1, vec![(1, 3, 3), (2, 1, 1)]));

    // Host 2 has heard only of the namespace that it may use.
    assert_eq!(states(&mut two).1, [(2, 1, 1)]);
    target.portal.access_changed(&subsystem(), 2);
    assert_eq!(told(&mut two, other), (Some(Event::AccessChanged), 0x0C));
    assert_eq!(states(&mut two).0, 2, "one change that concerned it");
}

#[test]
fn what_one_address_cannot_reach_another_does() {
    let targets: [Target; 2] = [Target::start(1, 64), Target::start(1, 64)];
    let (volume, shared) = (Volume::new(MIB), Saved::default().namespace());
    let exports = [0, 1].map(|index: usize| targets[index].offer_shared(1, volume.clone(), Hosts::Any, false, &shared));
    let controllers = [0, 1].map(|index: usize| Controller::connect(targets[index].address));
    let mut queues = [0, 1].map(|index: usize| controllers[index].queue(1));
    for (there, away) in [(0, 1), (1, 0)] {
        exports[there].set_access(Access::Optimized);
        exports[away].set_access(Access::Inaccessible);
        assert_eq!(write(&mut queues[there], 1, there as u8), Status::SUCCESS);
        assert_eq!(write(&mut queues[away], 1, 9), Status::ACCESS_INACCESSIBLE);
    }
}

/// A host may send data, or be delayed by a limit, for longer than a state lasts.
#[test]
fn a_command_that_has_waited_goes_by_the_state_at_its_beginning() {
    let (target, volume, state) = Target::disk(MIB);
    target.offer(2, Volume::new(MIB), Hosts::Any, false);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    let data = [5; LEN];
    let late = io::write(block(1), BLOCK, false, false);
    let sent = queue.send(late, &data, 0);
    let request = queue.wait_for_request();
    state.set_access(Access::Inaccessible);
    // The state is in effect by now: this command is answered after the change.
    assert_eq!(read(&mut queue, 1), Status::ACCESS_INACCESSIBLE);
    queue.requested.push_back(request);
    queue.supply();
    assert_eq!(queue.wait(sent).status(), Status::ACCESS_INACCESSIBLE);

    // The same is true for both parts of a fused operation. They have all their data when the
    // second part has.
    state.set_access(Access::Optimized);
    let compare = Command { flags: 0x41, ..io::compare(block(1), BLOCK, false) };
    let sent = [queue.send(compare, &[0; LEN], 0), queue.send(Command { flags: 0x42, ..late }, &data, 0)];
    let requests = [queue.wait_for_request(), queue.wait_for_request()];
    state.set_access(Access::Inaccessible);
    queue.requested.extend(requests);
    queue.supply();
    let statuses = sent.map(|cid| queue.wait(cid).status());
    assert_eq!(statuses, [Status::ACCESS_INACCESSIBLE, Status::ABORTED_FAILED_FUSED]);

    // Commands that wait for a limit go on when the limit is removed.
    state.set_access(Access::Optimized);
    let name = controller.who.nqn.to_string();
    state.limit_host(&name, Some(Limit { iops: None, bytes_per_s: Some(1), burst_ms: 10 }));
    let waiting = [(); 3].map(|()| queue.send(io::write(block(1), BLOCK, true, false), &data, 0));
    crate::common::eventually("writes wait", || state.limited_hosts()[&name].1.waiting >= 2);
    state.set_access(Access::Inaccessible);
    state.limit_host(&name, None);
    let statuses = waiting.map(|cid| queue.wait(cid).status());
    assert!(statuses[1..].iter().all(|status| *status == Status::ACCESS_INACCESSIBLE), "{statuses:?}");
    // The first write was not delayed.
    let written = if statuses[0].is_success() { data } else { [0; LEN] };
    let held = crate::common::nvme::within(
        crate::common::PATIENCE,
        drive::Block::read(&volume, 0, drive::BufMut::zeroed(LEN)),
    );
    assert_eq!(held.unwrap().unwrap()[..], written);
}
