//! The load of the last second, from counters that only grow.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::Load;
use export::Counters;
use runtime::ShardHandle;

use crate::engine::view;

/// How often the counters are sampled.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The last two samples of each group, and of the CPU time of the shards.
#[derive(Default)]
pub(crate) struct Sampler {
    groups: Mutex<BTreeMap<String, Samples>>,
    shards: Mutex<BTreeMap<usize, (Instant, Duration, f64)>>,
}

struct Samples {
    before: Option<(Instant, Counters)>,
    last: (Instant, Counters),
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Samples>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn sample(&self, group: &str, counters: Counters) {
        let now = (Instant::now(), counters);
        let mut groups = self.lock();
        match groups.get_mut(group) {
            Some(samples) => samples.before = Some(std::mem::replace(&mut samples.last, now)),
            None => {
                groups.insert(group.to_owned(), Samples { before: None, last: now });
            }
        }
    }

    /// Samples the CPU time of the shards' threads.
    pub fn sample_shards(&self) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        for (shard, busy) in thread_times() {
            let percent = match shards.get(&shard) {
                Some((then, before, _)) => {
                    let window = (now - *then).as_secs_f64().max(f64::EPSILON);
                    (busy.saturating_sub(*before).as_secs_f64() / window * 100.0).min(100.0)
                }
                None => 0.0,
            };
            shards.insert(shard, (now, busy, percent));
        }
    }

    /// The percentage of its core that a shard used between the last two samples.
    pub fn busy_percent(&self, shard: &ShardHandle) -> f64 {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.get(&shard.index()).map_or(0.0, |(_, _, percent)| *percent)
    }

    pub fn forget(&self, group: &str) {
        self.lock().remove(group);
    }

    /// The load between the last two samples; zero before there are two.
    pub fn load(&self, group: &str) -> Load {
        let groups = self.lock();
        let Some(Samples { before: Some((then, before)), last: (now, after) }) = groups.get(group) else {
            return Load::default();
        };
        view::load(before, after, (*now - *then).as_secs_f64().max(f64::EPSILON))
    }
}

/// The CPU time of each shard's thread (proc_pid_schedstat: nanoseconds).
pub(crate) fn thread_times() -> Vec<(usize, Duration)> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let time = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let shard = name.trim().strip_prefix("shard-")?.parse().ok()?;
        let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((shard, Duration::from_nanos(stat.split_whitespace().next()?.parse().ok()?)))
    };
    tasks.flatten().filter_map(time).collect()
}
