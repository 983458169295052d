//! How full a pool of thin volumes is, and how fast it fills.

use std::collections::VecDeque;

use volume::thin::{ThinCounts, ThinSpace};

/// The rate is that of so many seconds.
const SECONDS: u64 = 600;

/// Fewer seconds say nothing about a rate.
const SECONDS_MIN: u64 = 30;

/// A level of use is left when the use is so many percent below it. So one warning comes once.
const LEVEL_GAP: u8 = 2;

/// The use of a pool in the last minutes.
#[derive(Default)]
pub(crate) struct Trend {
    /// Seconds, and bytes in use.
    samples: VecDeque<(u64, u64)>,
    /// The highest level of use that was reached, in percent.
    level: u8,
}

/// Most bytes that may be in use, counting the free space of the group that the pool can take.
fn limit_bytes(space: &ThinSpace, free_bytes: u64) -> u64 {
    let share = space.limit as f64 / space.segments.total.max(1) as f64;
    space.limit + (free_bytes as f64 * share) as u64
}

/// How full a pool is, in percent, counting the free space of the group.
pub(crate) fn used_percent(space: &ThinSpace, free_bytes: u64) -> u8 {
    let used = u128::from(space.used() + space.reserved);
    (used * 100 / u128::from(limit_bytes(space, free_bytes).max(1))).min(100) as u8
}

/// The pool for the API.
pub(crate) fn shown(
    (store_count, space, counts): &(u16, ThinSpace, ThinCounts),
    used_percent: u8,
    full_in_s: Option<u64>,
) -> api::ThinPool {
    let sums = &space.segments;
    api::ThinPool {
        size_bytes: sums.total,
        used_bytes: space.used(),
        limit_bytes: space.limit,
        data_bytes: sums.live_data,
        metadata_bytes: sums.live_nodes,
        garbage_bytes: sums.garbage,
        reserved_bytes: space.reserved,
        free_bytes: sums.free,
        used_percent,
        full_in_s,
        store_count: *store_count,
        work: api::ThinWork {
            data_bytes: counts.data_run_bytes,
            collected_bytes: counts.collected_run_bytes,
            metadata_bytes: counts.node_run_bytes,
            frame_count: counts.frames,
            checkpoint_count: counts.checkpoints,
            repacked_from_bytes: counts.repacked_from_bytes,
            repacked_to_bytes: counts.repacked_to_bytes,
            reordered_bytes: counts.reordered_bytes,
        },
    }
}

impl Trend {
    /// Takes note of the use at a moment.
    pub fn add(&mut self, now_s: u64, used: u64) {
        self.samples.push_back((now_s, used));
        while self.samples.front().is_some_and(|(then, _)| now_s.saturating_sub(*then) > SECONDS) {
            self.samples.pop_front();
        }
    }

    /// Seconds until the pool is full, if it fills as before.
    pub fn full_in_s(&self, space: &ThinSpace, free_bytes: u64) -> Option<u64> {
        let (&(first_s, first), &(last_s, last)) = (self.samples.front()?, self.samples.back()?);
        let (seconds, bytes) = (last_s.saturating_sub(first_s), last.saturating_sub(first));
        if seconds < SECONDS_MIN || bytes == 0 {
            return None;
        }
        let left = limit_bytes(space, free_bytes).saturating_sub(space.used() + space.reserved);
        Some((u128::from(left) * u128::from(seconds) / u128::from(bytes)).try_into().unwrap_or(u64::MAX))
    }

    /// The level of use that a pool has reached or left, if it is another one than before: its new
    /// level, in percent, 0 below all of them.
    pub fn new_level(&mut self, percent: u8, levels: &[u8]) -> Option<u8> {
        let reached = levels.iter().rfind(|level| percent >= **level).copied().unwrap_or(0);
        let held = levels.iter().rfind(|level| percent + LEVEL_GAP >= **level).copied().unwrap_or(0);
        let level = self.level.clamp(reached, held.max(reached));
        let is_new = level != self.level;
        self.level = level;
        is_new.then_some(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::thin::SegmentSums;

    fn space(used: u64) -> ThinSpace {
        let segments = SegmentSums { total: 1000, live_data: used, ..SegmentSums::default() };
        ThinSpace { segments, growth: 0, reserved: 0, limit: 800 }
    }

    #[test]
    fn the_time_until_full_follows_the_last_minutes() {
        let mut trend = Trend::default();
        trend.add(0, 0);
        assert_eq!(trend.full_in_s(&space(0), 0), None);
        for (now_s, used) in [(100, 100), (200, 200), (300, 300)] {
            trend.add(now_s, used);
        }
        assert_eq!(trend.full_in_s(&space(300), 0), Some(500));
        // The group has 500 more, of which 400 can be used.
        assert_eq!(trend.full_in_s(&space(300), 500), Some(900));
        for now_s in (400..2000).step_by(100) {
            trend.add(now_s, 300);
        }
        assert_eq!(trend.full_in_s(&space(300), 0), None, "it does not fill any more");
        assert_eq!(used_percent(&space(400), 0), 50);
        assert_eq!(used_percent(&space(400), 1000), 25);
    }

    #[test]
    fn each_level_is_reported_once_and_left_some_percent_below_it() {
        let mut trend = Trend::default();
        let levels = [80, 90];
        let mut seen = Vec::new();
        for percent in [10, 79, 80, 81, 79, 80, 89, 95, 89, 87, 79, 77, 90] {
            seen.extend(trend.new_level(percent, &levels).map(|level| (percent, level)));
        }
        assert_eq!(seen, [(80, 80), (95, 90), (87, 80), (77, 0), (90, 90)]);
        assert_eq!(trend.new_level(90, &[]), Some(0), "the levels were taken away");
    }
}
