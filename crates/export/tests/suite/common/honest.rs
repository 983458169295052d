//! A host that does no harm, beside those that do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvme::host::{Blocks, io};

use super::nvme::{BLOCK, BOTH, Controller, Queue, pattern, wish};

/// A host that reads what it has written all the time, until it is asked how that went.
pub struct Honest {
    go_on: Arc<AtomicBool>,
    /// How long the rounds took that were had alone.
    alone: Vec<Duration>,
    /// How long each round took since then.
    thread: JoinHandle<Vec<Duration>>,
}

/// Rounds, a write and a read each, that are had before anybody disturbs.
const ROUNDS_ALONE: u32 = 200;

/// Rounds at least while somebody does: some may come after it.
const ROUNDS_MIN: u32 = 20;

/// While somebody disturbs, half of the rounds are done in so many times what half of them took
/// before, or in this time: one takes some 100 us, and other tests and other programs have the
/// processors, too.
const SLOWER_MAX: u32 = 20;
const MEDIAN_MAX: Duration = Duration::from_millis(50);

/// Of a hundred rounds all but one are done in this time, and all where there are fewer. A machine
/// with much else to do took 0.3 s.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// A write of a pattern, and a read that has to give it.
fn round(queue: &mut Queue, number: u32) -> Duration {
    let start = Instant::now();
    let place = Blocks { nsid: 1, first: u64::from(number % 100 * 8), count: 8 };
    let (len, in_capsule) = (8 * BLOCK, number.is_multiple_of(2));
    let data = pattern(len as usize, number as usize);
    assert!(queue.execute(io::write(place, len, in_capsule, false), &data, 0).status().is_success());
    assert!(queue.execute(io::read(place, len), &[], len).data() == data, "round {number}");
    start.elapsed()
}

/// The time in which so many of a hundred are done.
fn percentile(took: &mut [Duration], percent: usize) -> Duration {
    took.sort_unstable();
    took[(took.len() * percent / 100).min(took.len() - 1)]
}

impl Honest {
    pub fn begin(address: SocketAddr) -> Honest {
        let go_on = Arc::new(AtomicBool::new(true));
        let asked = go_on.clone();
        let controller = Controller::with(address, wish(9), BOTH).unwrap();
        let mut queue = controller.queue(1);
        let alone = (0..ROUNDS_ALONE).map(|number| round(&mut queue, number)).collect();
        let thread = std::thread::spawn(move || {
            let mut took = Vec::new();
            for number in 0.. {
                // However late this thread begins, and however soon the others have done their
                // worst.
                if number >= ROUNDS_MIN && !asked.load(Ordering::Relaxed) {
                    break;
                }
                took.push(round(&mut queue, number));
                std::thread::yield_now();
            }
            drop(controller);
            took
        });
        Honest { go_on, alone, thread }
    }

    pub fn end(mut self) {
        self.go_on.store(false, Ordering::Relaxed);
        let mut took = self.thread.join().unwrap();
        let alone = percentile(&mut self.alone, 50);
        let (half, nearly_all) = (percentile(&mut took, 50), percentile(&mut took, 99));
        println!("{} rounds, half of them in {half:?} ({alone:?} alone), 99% in {nearly_all:?}", took.len());
        assert!(half <= (alone * SLOWER_MAX).max(MEDIAN_MAX), "{half:?}, and {alone:?} alone");
        assert!(nearly_all <= ROUND_MAX, "{nearly_all:?}");
    }
}
