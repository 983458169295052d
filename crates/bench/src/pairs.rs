//! Alternating pairs: two contenders take turns, and each pair gives one ratio.
//!
//! A disturbance that is longer than a pair affects both contenders. A shorter one spoils one
//! ratio, which the median ignores.

use std::time::{Duration, Instant};

/// The times of two contenders, pair by pair.
#[derive(Clone, Debug)]
pub struct Pairs {
    times: Vec<[Duration; 2]>,
}

impl Pairs {
    /// Runs `ours` and `peers` in turn, `count` times each, after one unmeasured turn of each. The
    /// contender that goes first changes from pair to pair.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn measure(count: usize, mut ours: impl FnMut(), mut peers: impl FnMut()) -> Pairs {
        assert!(count > 0, "a median needs a pair");
        ours();
        peers();
        let mut times = Vec::with_capacity(count);
        for pair in 0..count {
            if pair % 2 == 0 {
                let first = time(&mut ours);
                times.push([first, time(&mut peers)]);
            } else {
                let first = time(&mut peers);
                times.push([time(&mut ours), first]);
            }
        }
        Pairs { times }
    }

    /// The median time of our side.
    pub fn ours(&self) -> Duration {
        median(self.times.iter().map(|pair| pair[0]).collect())
    }

    /// The median time of the peer's side.
    pub fn peers(&self) -> Duration {
        median(self.times.iter().map(|pair| pair[1]).collect())
    }

    /// Our speed divided by the peer's: the smallest, the median and the largest ratio of the
    /// pairs.
    pub fn speed_ratio(&self) -> [f64; 3] {
        let mut ratios: Vec<f64> =
            self.times.iter().map(|[ours, peers]| peers.as_secs_f64() / ours.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        [ratios[0], ratios[ratios.len() / 2], ratios[ratios.len() - 1]]
    }
}

/// The median time of `count` runs, after one that is not measured.
///
/// # Panics
/// If `count` is 0.
pub fn measure_alone(count: usize, mut run: impl FnMut()) -> Duration {
    assert!(count > 0, "a median needs a run");
    run();
    median((0..count).map(|_| time(&mut run)).collect())
}

fn time(run: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_a_disturbed_pair() {
        let ms = Duration::from_millis;
        let pairs = Pairs { times: vec![[ms(10), ms(20)], [ms(500), ms(20)], [ms(10), ms(30)]] };
        assert_eq!(pairs.ours(), ms(10));
        assert_eq!(pairs.peers(), ms(20));
        assert_eq!(pairs.speed_ratio()[1], 2.0);
    }

    #[test]
    fn turns_alternate_and_the_first_is_not_measured() {
        let turns = std::cell::RefCell::new(String::new());
        let pairs = Pairs::measure(3, || turns.borrow_mut().push('o'), || turns.borrow_mut().push('p'));
        assert_eq!(*turns.borrow(), "opoppoop");
        assert_eq!(pairs.times.len(), 3);
    }
}
