//! The discovery log changes: hosts that watch it get an event.

use crate::common::Volume;
use crate::common::nvme::{Controller, MIB, Target, only, subsystem, wish};
use nvme::DISCOVERY_NQN;
use nvme::host::{AsyncEvent, DiscoveredSubsystem, DiscoveryLog, Wish};
use nvme::target::Event;
use nvme::tcp::Digests;

/// A host with a discovery controller.
struct Watcher {
    controller: Controller,
    /// The generation of the log when it was last read.
    generation: u64,
    /// The outstanding event request.
    asked: u16,
}

impl Watcher {
    /// A host that sees the subsystem, or does not.
    fn new(target: &Target, number: u8, sees: bool) -> Watcher {
        let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(number) };
        let controller = Controller::with(target.address, discovery, Digests::default()).unwrap();
        let mut watcher = Watcher { controller, generation: 0, asked: 0 };
        assert_eq!(watcher.read(), sees);
        watcher.asked = watcher.controller.ask();
        watcher
    }

    /// Reads the log, which must be a new generation. Returns whether the subsystem is in it.
    fn read(&mut self) -> bool {
        let (generation, entries) = self.controller.admin.lead(DiscoveryLog::new()).unwrap();
        assert!(generation > self.generation, "{generation} after {}", self.generation);
        self.generation = generation;
        entries.iter().any(|entry| DiscoveredSubsystem::of(entry).unwrap().subsystem == subsystem())
    }

    /// Waits for the event of a change, then reads the log. Returns whether the subsystem is in it.
    fn told(&mut self) -> bool {
        let answer = self.controller.admin.wait(self.asked);
        let event = AsyncEvent::of(answer.completion.result.get());
        assert_eq!((event.notice(), event.log_page), (Some(Event::DiscoveryChanged), 0x70));
        let sees = self.read();
        self.asked = self.controller.ask();
        sees
    }
}

#[test]
fn a_host_that_watches_hears_of_an_export_that_comes() {
    let target: Target = Target::start(1, 64);
    let mut watcher = Watcher::new(&target, 1, false);
    target.offer(1, Volume::new(MIB), only(&[1]), false);
    assert!(watcher.told());
}

#[test]
fn a_host_that_watches_hears_of_an_export_that_goes() {
    let target: Target = Target::start(1, 64);
    for nsid in [1, 2] {
        target.offer(nsid, Volume::new(MIB), only(&[1]), false);
    }
    let mut watcher = Watcher::new(&target, 1, true);
    target.portal.remove(&subsystem(), 1);
    assert!(watcher.told(), "there is another one");
    target.portal.remove(&subsystem(), 2);
    assert!(!watcher.told());
}

#[test]
fn a_host_that_watches_hears_that_it_is_let_in_and_shut_out() {
    let target: Target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), only(&[2]), false);
    let (mut one, mut two) = (Watcher::new(&target, 1, false), Watcher::new(&target, 2, true));
    target.portal.allow(&subsystem(), 1, only(&[1, 2]));
    assert!(one.told() && two.told());
    target.portal.allow(&subsystem(), 1, only(&[1]));
    assert!(one.told() && !two.told());
}
