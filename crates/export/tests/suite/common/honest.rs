//! A well-behaved host, beside hostile ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvme::host::{Blocks, io};

use super::nvme::{BLOCK, BOTH, Controller, Queue, pattern, wish};

/// A host that writes and reads back all the time, until the test collects the result.
pub struct Honest {
    go_on: Arc<AtomicBool>,
    /// How long the rounds before the disturbance took.
    alone: Vec<Duration>,
    /// How long each round took since then.
    thread: JoinHandle<Vec<Duration>>,
}

/// Rounds, a write and a read each, before the disturbance begins.
const ROUNDS_ALONE: u32 = 200;

/// Minimum of rounds beside the disturbance. Some of them may come after it.
const ROUNDS_MIN: u32 = 20;

/// During the disturbance, the median of the rounds may be `SLOWER_MAX` times the earlier median,
/// or `MEDIAN_MAX`. A round takes some 100 us, and other tests and programs use the processors,
/// too.
const SLOWER_MAX: u32 = 20;
const MEDIAN_MAX: Duration = Duration::from_millis(50);

/// Of a hundred rounds all but one end within this time; with fewer rounds, all do. A busy machine
/// took 0.3 s.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Writes a pattern, reads it back and compares.
fn round(queue: &mut Queue, number: u32) -> Duration {
    let start = Instant::now();
    let place = Blocks { nsid: 1, first: u64::from(number % 100 * 8), count: 8 };
    let (len, in_capsule) = (8 * BLOCK, number.is_multiple_of(2));
    let data = pattern(len as usize, number as usize);
    assert!(queue.execute(io::write(place, len, in_capsule, false), &data, 0).status().is_success());
    assert!(queue.execute(io::read(place, len), &[], len).data() == data, "round {number}");
    start.elapsed()
}

/// The time in which `percent` of a hundred rounds are done.
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
                // At least `ROUNDS_MIN` rounds, even if this thread begins late and the others are
                // done early.
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
