//! Asynchronous events, and aborting those who wait for them.

use crate::common::admin::{data, done, enabled, execute, failed, feature, log, set};
use nvme::target::{Answer, Controller, EVENT_REQUESTS_MAX, Event, Kind};
use nvme::{Command, Completion, Status, admin};

fn request(controller: &mut Controller, cid: u16) -> Answer {
    execute(controller, &Command::new(admin::ASYNC_EVENT_REQUEST, cid, 0))
}

/// A controller whose host wants to hear of everything.
fn listening(kind: Kind) -> Controller {
    let mut controller = enabled(kind);
    assert_eq!(feature(&mut controller, admin::SET_FEATURES, 0x0B, 0x8000_0900), done(0));
    controller
}

fn told(cid: u16, result: u64) -> Option<Completion> {
    Some(Completion::new(cid, Status::SUCCESS, result))
}

#[test]
fn events_are_told_with_the_log_page_that_says_more() {
    // Base 2.0, figure 147: type 2, "Notice"; information; log page.
    for (kind, event, result) in [
        (Kind::Io, Event::NamespaceChanged, 0x04_00_02),
        (Kind::Io, Event::AccessChanged, 0x0C_03_02),
        (Kind::Discovery, Event::DiscoveryChanged, 0x70_F0_02),
    ] {
        let mut controller = listening(kind);
        assert_eq!(request(&mut controller, 9), Answer::Later);
        assert_eq!(controller.event(), None);
        controller.happened(event);
        assert_eq!(controller.event(), told(9, result));
        assert_eq!(controller.event(), None);
    }
}

#[test]
fn an_event_waits_for_a_request_and_is_not_repeated_before_its_log_is_read() {
    let mut controller = listening(Kind::Io);
    controller.namespace_changed(3);
    assert_eq!(controller.event(), None, "nobody has asked");
    (10..12).for_each(|cid| assert_eq!(request(&mut controller, cid), Answer::Later));
    assert_eq!(controller.event(), told(10, 0x04_00_02));
    controller.namespace_changed(1);
    assert_eq!(controller.event(), None, "the first was not looked up");
    // With RAE the event stays as it is.
    let mut retaining = log(0x04, 0, 4096);
    retaining.set_cdw(10, retaining.cdw(10) | 1 << 15);
    assert_eq!(data(execute(&mut controller, &retaining)).expect("a log")[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(controller.event(), None);
    assert_eq!(data(execute(&mut controller, &log(0x04, 0, 4096))).expect("a log")[..4], [1, 0, 0, 0]);
    assert_eq!(controller.event(), told(11, 0x04_00_02));
    assert_eq!(data(execute(&mut controller, &log(0x04, 0, 4096))).expect("a log"), [0; 4096], "read and cleared");
}

#[test]
fn events_that_nobody_wants_are_not_told() {
    let mut controller = enabled(Kind::Io);
    assert_eq!(request(&mut controller, 1), Answer::Later);
    controller.happened(Event::AccessChanged);
    assert_eq!(controller.event(), None);
    feature(&mut controller, admin::SET_FEATURES, 0x0B, 1 << 11);
    assert_eq!(controller.event(), told(1, 0x0C_03_02), "wanted since");
}

#[test]
fn no_more_requests_wait_than_may() {
    let mut controller = listening(Kind::Io);
    for cid in 0..EVENT_REQUESTS_MAX as u16 {
        assert_eq!(request(&mut controller, cid), Answer::Later);
    }
    assert_eq!(request(&mut controller, 99), failed(Status::EVENT_REQUESTS_EXCEEDED));
}

#[test]
fn a_request_that_is_aborted_is_answered_and_others_are_not_touched() {
    let mut controller = listening(Kind::Io);
    (5..8).for_each(|cid| assert_eq!(request(&mut controller, cid), Answer::Later));
    let abort = |controller: &mut _, queue: u32, cid: u32| {
        let mut command = Command::new(admin::ABORT, 50, 0);
        command.set_cdw(10, queue | cid << 16);
        execute(controller, &command)
    };
    // Bit 0 of the result: it was not aborted.
    assert_eq!(abort(&mut controller, 0, 6), done(0));
    assert_eq!(controller.event(), Some(Completion::new(6, Status::ABORT_REQUESTED, 0)));
    assert_eq!(abort(&mut controller, 0, 6), done(1));
    // Its own identifier, and one of an I/O queue, which the owner of that has to know.
    assert_eq!(abort(&mut controller, 0, 50), done(1));
    assert_eq!(abort(&mut controller, 1, 5), Answer::Abort(1, 5));
    assert_eq!(controller.event(), None);
    controller.happened(Event::NamespaceChanged);
    assert_eq!(controller.event(), told(5, 0x04_00_02));
}

#[test]
fn a_reset_forgets_who_waits_and_what_happened() {
    let mut controller = listening(Kind::Io);
    request(&mut controller, 1);
    controller.happened(Event::AccessChanged);
    set(&mut controller, 0x14, 0);
    set(&mut controller, 0x14, 0x0046_0001);
    feature(&mut controller, admin::SET_FEATURES, 0x0B, 0x900);
    assert_eq!(request(&mut controller, 2), Answer::Later);
    assert_eq!(controller.event(), None);
}
