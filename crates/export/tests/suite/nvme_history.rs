//! The Persistent Event Log of a subsystem, as its hosts read it.

use std::collections::BTreeSet;

use crate::common::nvme::{Controller, ENABLED, MIB, Target, host, only, wish};
use crate::common::{PATIENCE, Volume};
use export::{SavedHistory, SubsystemHistory};
use nvme::host::admin;
use nvme::target::Happening;
use nvme::tcp::Digests;
use nvme::{Command, FABRICS, Status, fabrics};

/// Values of the field Action.
const READ: u32 = 0b00;
const ESTABLISH: u32 = 0b01;
const RELEASE: u32 = 0b10;

fn ask(controller: &mut Controller, action: u32, offset: u64, len: u32) -> Result<Vec<u8>, Status> {
    let mut submission = admin::get_log_page(0x0D, offset, len, false);
    submission.command.set_cdw(10, submission.command.cdw(10) | action << 8);
    if action == RELEASE {
        // A release has no data.
        submission.reply_bytes = 0;
    }
    let answer = controller.admin.submit(submission);
    if answer.status().is_success() { Ok(answer.data) } else { Err(answer.status()) }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// An event: its type, controller and port, and its data.
type Event = (u8, u16, u16, Vec<u8>);

/// Reads the log in pieces of 64 bytes, as a host with little memory does. Returns the header, and
/// the events.
fn read(controller: &mut Controller) -> (Vec<u8>, Vec<Event>) {
    let head = ask(controller, ESTABLISH, 0, 512).unwrap();
    let len = number(&head, 8, 8);
    let mut page = head.clone();
    for offset in (512..len).step_by(64) {
        page.extend(ask(controller, READ, offset, 64).unwrap());
    }
    assert_eq!(ask(controller, READ, 0, 512).unwrap()[372..374], head[372..374], "the same generation at the end");
    ask(controller, RELEASE, 0, 512).unwrap();
    let mut events = Vec::new();
    let mut at = 512;
    while at < len as usize {
        let data = at + usize::from(page[at + 2]) + 3;
        let end = data + number(&page, at + 22, 2) as usize;
        let field = |offset: usize| number(&page, at + offset, 2) as u16;
        events.push((page[at], field(4), field(14), page[data..end].to_vec()));
        at = end;
    }
    assert_eq!(events.len() as u64, number(&head, 4, 4));
    (head, events)
}

fn kinds(events: &[Event]) -> Vec<u8> {
    events.iter().map(|event| event.0).collect()
}

fn configure(controller: &mut Controller, value: u32) {
    let mut command = Command::new(FABRICS, 0, u32::from(fabrics::PROPERTY_SET));
    command.set_cdw(11, 0x14);
    command.set_cdw(12, value);
    assert_eq!(controller.admin.execute(command, &[], 0).status(), Status::SUCCESS);
}

fn change(nsid: u32, hosts: &[u8]) -> Happening {
    let hosts: BTreeSet<String> = hosts.iter().map(|number| host(*number).nqn.to_string()).collect();
    Happening::NamespaceChange { created: true, nsid, blocks: 256, block_bytes: 4096, hosts: Some(hosts) }
}

#[test]
fn a_host_reads_what_has_happened_and_what_is_its_own_to_know() {
    let target: Target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), only(&[1, 2]), false);
    target.history.note(change(1, &[1, 2]));
    target.history.note(change(5, &[2]));
    let mut one = Controller::connect(target.address);
    let mut two = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    assert_eq!(ask(&mut one, READ, 0, 512), Err(Status::COMMAND_SEQUENCE_ERROR));
    let (head, events) = read(&mut one);
    // The newest first: a namespace that the host may use was added, and the subsystem is served.
    assert_eq!((kinds(&events), number(&events[0].3, 44, 4)), (vec![6, 4], 1));
    assert_eq!(kinds(&read(&mut two).1), [6, 6, 4]);
    // The power was turned on once. The SMART log says the same.
    assert_eq!(number(&head, 44, 8), 1);
    let health = one.admin.submit(admin::get_log_page(2, 0, 512, false)).data();
    assert_eq!(number(&health, 112, 8), 1);
    // The time is in this century, and not in the future.
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!((1_700_000_000_000..=now.as_millis() as u64).contains(&number(&head, 20, 8)));
}

#[test]
fn a_reset_of_a_controller_is_noted_with_its_number_and_port_and_ends_its_context() {
    let target: Target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), only(&[1]), false);
    let mut controller = Controller::connect(target.address);
    ask(&mut controller, ESTABLISH, 0, 512).unwrap();
    configure(&mut controller, ENABLED & !1);
    configure(&mut controller, ENABLED);
    assert_eq!(ask(&mut controller, READ, 0, 512), Err(Status::COMMAND_SEQUENCE_ERROR));
    let (_, events) = read(&mut controller);
    assert_eq!(kinds(&events), [4, 4]);
    let (_, cntlid, port, data) = &events[0];
    assert_eq!((*cntlid, *port), (controller.established.cntlid, target.address.port()));
    // Behind the firmware revision: the controller, power cycles, and how long the power was on.
    assert_eq!((number(data, 8, 2), number(data, 24, 4)), (u64::from(*cntlid), 1));
    assert!(number(data, 28, 8) < PATIENCE.as_millis() as u64 * 10);
    assert!(target.history.take_unsaved() && !target.history.take_unsaved());
}

#[test]
fn the_past_outlives_a_loss_of_power_as_far_as_it_was_saved() {
    let first = SubsystemHistory::power_on(SavedHistory::default(), "1.0");
    first.note(change(1, &[1]));
    let saved = SavedHistory { power_on_s: 7200, ..first.saved() };
    let mut target: Target = Target::start(1, 64);
    target.history = SubsystemHistory::power_on(saved, "2.0");
    target.offer(1, Volume::new(MIB), only(&[1]), false);
    let (head, events) = read(&mut Controller::connect(target.address));
    assert_eq!(kinds(&events), [4, 6, 4]);
    assert_eq!((&events[0].3[..], &events[2].3[..]), (&b"2.0     "[..], &b"1.0     "[..]));
    // Hours with power on, and how often it was turned on.
    assert_eq!((number(&head, 28, 8), number(&head, 44, 8), number(&head, 372, 2)), (2, 2, 3));
}
