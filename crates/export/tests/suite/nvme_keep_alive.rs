//! The keep alive timer as hosts change it while they are connected: the feature KATO.

use std::time::{Duration, Instant};

use crate::common::nvme::{Controller, MIB, Target, wish};
use nvme::Status;
use nvme::host::{Wish, admin};
use nvme::tcp::Digests;

/// Keep Alive Timer.
const KATO: u8 = 0x0F;

fn connect(target: &Target, keep_alive_ms: u32) -> Controller {
    Controller::with(target.address, Wish { keep_alive_ms, ..wish(1) }, Digests::default()).unwrap()
}

fn set(controller: &mut Controller, keep_alive_ms: u32) {
    assert_eq!(controller.admin.submit(admin::set_features(KATO, keep_alive_ms)).status(), Status::SUCCESS);
    let told = controller.admin.submit(admin::get_features(KATO)).completion;
    assert_eq!((told.status(), told.result.get()), (Status::SUCCESS, keep_alive_ms.into()));
}

#[test]
fn a_silent_host_is_ended_after_the_shorter_time_that_it_has_chosen() {
    let (target, ..) = Target::disk(MIB);
    let mut controller = connect(&target, 6000);
    set(&mut controller, 2000);
    // Longer than the time that the host connected with: the old value has no effect any more.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(6500) {
        assert_eq!(controller.admin.submit(admin::keep_alive()).status(), Status::SUCCESS);
        std::thread::sleep(Duration::from_millis(100));
    }
    let silent = Instant::now();
    assert!(controller.admin.is_closed());
    let silent = silent.elapsed();
    assert!(silent < Duration::from_millis(5000), "{silent:?} instead of 2 s");

    // A controller without a limit gets one. It is then checked more often than once a minute.
    let mut controller = connect(&target, 0);
    set(&mut controller, 1000);
    let silent = Instant::now();
    assert!(controller.admin.is_closed());
    let silent = silent.elapsed();
    assert!(silent < Duration::from_secs(20), "{silent:?} instead of 1 s");
}

#[test]
fn a_silent_host_stays_for_the_longer_time_that_it_has_chosen() {
    let (target, ..) = Target::disk(MIB);
    // A longer time, and no limit.
    for longer in [60_000, 0] {
        let mut controller = connect(&target, 1000);
        set(&mut controller, longer);
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(controller.admin.submit(admin::keep_alive()).status(), Status::SUCCESS);
    }
}
