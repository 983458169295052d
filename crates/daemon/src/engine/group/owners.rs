//! Chooses the shards that own the stripe groups of each drive group: as few as its load needs,
//! close to its writes.
//!
//! One shard merges work that several would do separately, and needs no messages for requests that
//! arrive there (`array::ownership`). So a drive group starts with one owner. The number of owners
//! doubles while all of them are busy and other shards are not. The ownership follows the clients
//! when their writes arrive on another shard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use array::Owners;
use runtime::ShardHandle;
use tokio::task::JoinHandle;

use crate::engine::group::Group;
use crate::engine::group::sampler::thread_times;
use crate::engine::group::shard::GroupKey;

/// How often groups with writes are looked at.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);

/// Groups without writes are looked at every fourth time: a rebuild may need several shards, too.
const QUIET_LOOKS: u32 = 4;

/// The looks that have to agree before owners are added or moved.
const AGREE: u32 = 2;
/// The looks that have to agree before owners are removed.
const AGREE_LESS: u32 = 8;
/// The looks that are skipped after a change, until its effect shows.
const REST: u32 = 4;

/// A shard that works for this share of its core's time counts as busy.
const FULL: f64 = 0.85;
/// Owners are removed only if the rest would work for at most this share of the time on average.
const LIGHT: f64 = 0.4;
/// A core can take more work if it is idle for this share of the time.
const FREE: f64 = 0.5;
/// The writes between two looks from which their origin can be determined.
const WRITES_MIN: u64 = 16;

/// Consecutive bytes of a group with the same owner, so that large client requests go to one or two
/// shards. An owner's writes are then adjacent on the members: the kernel merges them, and they
/// need one frame of the log.
const RUN_BYTES: u64 = 1 << 20;

/// The activity of shards and their cores between two looks, as shares of the time.
#[derive(Debug, Clone, PartialEq)]
struct Activity {
    /// The share in which the shard worked, by shard.
    busy: Vec<f64>,
    /// The share in which the shard's core was idle, by shard.
    free: Vec<f64>,
}

/// How many successive looks at a group agreed on each change.
#[derive(Debug, Default)]
struct Habits {
    full: u32,
    light: u32,
    elsewhere: u32,
    rest: u32,
}

impl Habits {
    /// Adds a look, in which `writes` arrived at each shard. Returns the new owners, if they should
    /// change.
    fn observe(&mut self, owners: Owners, writes: &[u64], activity: &Activity) -> Option<Owners> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let shards = writes.len();
        let owns = |shard: usize| owners.among(shards).any(|owner| owner == shard);
        let all: u64 = writes.iter().sum();
        let most = (0..shards).max_by_key(|&shard| writes[shard]).filter(|_| all >= WRITES_MIN);
        let elsewhere = most.filter(|&most| writes[most] * 4 >= all * 3 && !owns(most));
        let more = Owners { count: (2 * owners.count).min(shards), ..owners };
        let new: Vec<f64> = more.among(shards).skip(owners.count).map(|shard| activity.free[shard]).collect();
        let have_time = !new.is_empty() && new.iter().sum::<f64>() >= FREE * new.len() as f64;
        let is_full = have_time && owners.among(shards).all(|shard| activity.busy[shard] >= FULL);
        let less = Owners { count: owners.count.div_ceil(2), ..owners };
        let work: f64 = owners.among(shards).map(|shard| activity.busy[shard]).sum();
        let is_light = less != owners && work <= LIGHT * less.count as f64;
        let so_far = |before: u32, again: bool| if again { before + 1 } else { 0 };
        self.full = so_far(self.full, is_full);
        self.light = so_far(self.light, is_light);
        self.elsewhere = so_far(self.elsewhere, elsewhere.is_some());
        let next = match elsewhere {
            _ if self.full >= AGREE => more,
            Some(first) if self.elsewhere >= AGREE => Owners { first, ..owners },
            _ if self.light >= AGREE_LESS => less,
            _ => return None,
        };
        *self = Habits { rest: REST, ..Habits::default() };
        Some(next)
    }
}

/// Times of the shards' threads and cores at one moment.
struct Reading {
    at: Instant,
    worked: Vec<Duration>,
    /// System ticks of each core: idle ones, and all.
    cores: BTreeMap<usize, (u64, u64)>,
}

impl Reading {
    fn now(shards: &[ShardHandle]) -> Reading {
        let times: BTreeMap<usize, Duration> = thread_times().into_iter().collect();
        let worked = |shard: &ShardHandle| {
            let looked = Duration::from_nanos(shard.stats().looked_ns);
            times.get(&shard.index()).copied().unwrap_or_default().saturating_sub(looked)
        };
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Reading { at: Instant::now(), worked: shards.iter().map(worked).collect(), cores: core_times(&stat) }
    }

    fn since(&self, before: &Reading, shards: &[ShardHandle]) -> Activity {
        let elapsed = (self.at - before.at).as_secs_f64().max(f64::EPSILON);
        let busy = self.worked.iter().zip(&before.worked);
        let free = |shard: &ShardHandle| {
            let (idle, all) = self.cores.get(&shard.core())?;
            let (idle_before, all_before) = before.cores.get(&shard.core())?;
            let all = all.saturating_sub(*all_before).max(1);
            Some(idle.saturating_sub(*idle_before) as f64 / all as f64)
        };
        Activity {
            busy: busy.map(|(now, then)| now.saturating_sub(*then).as_secs_f64() / elapsed).collect(),
            // A core without a reading counts as not idle.
            free: shards.iter().map(|shard| free(shard).unwrap_or(0.0)).collect(),
        }
    }
}

/// Idle and total ticks by core (proc_stat(5)).
fn core_times(stat: &str) -> BTreeMap<usize, (u64, u64)> {
    let core = |line: &str| {
        let mut words = line.split_whitespace();
        let core = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        // Guest ticks are contained in user ticks already.
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some((core, (idle, ticks.iter().sum())))
    };
    stat.lines().filter_map(core).collect()
}

/// A group's state between two looks.
struct Known {
    owners: Owners,
    writes: Vec<u64>,
    habits: Habits,
    change: Option<(Owners, JoinHandle<bool>)>,
}

/// Looks at groups periodically and changes the owners of their stripe groups.
#[derive(Default)]
pub(crate) struct Balance {
    groups: BTreeMap<GroupKey, Known>,
    last: Option<Reading>,
    quiet: u32,
}

impl Balance {
    pub async fn look(&mut self, shards: &[ShardHandle], groups: &[Arc<Group>]) {
        self.groups.retain(|key, _| groups.iter().any(|group| group.key == *key));
        let mut written = BTreeMap::new();
        for group in groups {
            let writes = group.shared.writes_by_shard();
            let known = self.groups.entry(group.key).or_insert_with(|| Known::new(group, shards.len(), &writes));
            let new: Vec<u64> = writes.iter().zip(&known.writes).map(|(now, then)| now - then).collect();
            known.writes = writes;
            known.ended().await;
            written.insert(group.key, new);
        }
        let is_quiet = written.values().flatten().all(|&new| new == 0);
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        if !self.quiet.is_multiple_of(QUIET_LOOKS) {
            return;
        }
        let reading = Reading::now(shards);
        let Some(before) = self.last.replace(reading) else { return };
        let activity = self.last.as_ref().expect("it was just taken").since(&before, shards);
        for group in groups {
            let known = self.groups.get_mut(&group.key).expect("all are known");
            if known.change.is_none()
                && let Some(next) = known.habits.observe(known.owners, &written[&group.key], &activity)
            {
                known.change(group, next);
            }
        }
    }
}

impl Known {
    /// Adds a group that was just started. At first all shards own it together. It is given to one
    /// of them, so that groups are spread over the shards.
    fn new(group: &Arc<Group>, shards: usize, writes: &[u64]) -> Known {
        let geometry = &group.shared.geometry;
        let run = RUN_BYTES.div_ceil(geometry.stripe_group_bytes * geometry.data as u64);
        let owners = Owners { run, ..Owners::all(shards) };
        let mut known = Known { owners, habits: Habits::default(), writes: writes.to_vec(), change: None };
        known.change(group, Owners { first: group.key as usize % shards, count: 1, ..owners });
        known
    }

    fn change(&mut self, group: &Arc<Group>, next: Owners) {
        let group = group.clone();
        let change = tokio::spawn(async move {
            let own = group.lead(move |array| async move { array.own(next).await });
            let done = matches!(own.await, Ok(Ok(true)));
            let Owners { first, count, .. } = next;
            tracing::debug!(group = group.name, first, count, done, "shards that own the stripe groups");
            done
        });
        self.change = Some((next, change));
    }

    /// Applies a change that has ended.
    async fn ended(&mut self) {
        if let Some((next, change)) = self.change.take_if(|(_, change)| change.is_finished())
            && change.await.unwrap_or(false)
        {
            self.owners = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owners = Owners { first: 1, count: 1, run: 4 };

    fn activity(busy: [f64; 4], free: [f64; 4]) -> Activity {
        Activity { busy: busy.to_vec(), free: free.to_vec() }
    }

    /// The first change that equal looks in a row ask for, and how many it takes.
    fn asked(owners: Owners, writes: [u64; 4], activity: &Activity, looks: usize) -> Option<(usize, Owners)> {
        let mut habits = Habits::default();
        (1..=looks).find_map(|look| Some((look, habits.observe(owners, &writes, activity)?)))
    }

    #[test]
    fn a_group_whose_owner_has_no_time_left_gets_twice_as_many_where_others_have() {
        let writes = [0, 9000, 0, 0];
        let full = activity([0.0, 0.95, 0.1, 0.0], [1.0, 0.0, 0.9, 1.0]);
        assert_eq!(asked(ONE, writes, &full, 9), Some((2, Owners { first: 1, count: 2, ..ONE })));
        let crowded = activity([0.0, 0.95, 0.1, 0.0], [1.0, 0.0, 0.2, 1.0]);
        assert_eq!(asked(ONE, writes, &crowded, 99), None, "the next core is another program's");
        let some_left = activity([0.0, 0.75, 0.1, 0.0], [1.0, 0.0, 0.9, 1.0]);
        assert_eq!(asked(ONE, writes, &some_left, 99), None);
        let three = activity([0.9, 0.95, 0.9, 0.0], [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(
            asked(Owners { first: 0, count: 3, ..ONE }, writes, &three, 9),
            Some((2, Owners { first: 0, count: 4, ..ONE }))
        );
        assert_eq!(
            asked(Owners { count: 4, ..ONE }, writes, &activity([1.0; 4], [0.0; 4]), 99),
            None,
            "there are no more"
        );
    }

    #[test]
    fn a_group_whose_owners_have_little_to_do_gets_half_of_them() {
        let light = activity([0.1, 0.1, 0.0, 0.0], [0.9; 4]);
        let two = Owners { first: 0, count: 2, ..ONE };
        assert_eq!(asked(two, [40, 40, 0, 0], &light, 99), Some((8, Owners { first: 0, count: 1, ..ONE })));
        let busy = activity([0.3, 0.3, 0.0, 0.0], [0.7; 4]);
        assert_eq!(asked(two, [40, 40, 0, 0], &busy, 99), None);
        assert_eq!(asked(ONE, [0, 40, 0, 0], &activity([0.0; 4], [1.0; 4]), 99), None, "one is the least");
    }

    #[test]
    fn what_needs_more_owners_does_not_need_less_of_them_then() {
        let (full, next) = (activity([0.0, 1.0, 0.0, 0.0], [1.0; 4]), Owners { first: 1, count: 2, ..ONE });
        assert_eq!(asked(ONE, [0, 99, 0, 0], &full, 9), Some((2, next)));
        assert_eq!(asked(next, [0, 99, 0, 0], &activity([0.0, 0.5, 0.5, 0.0], [1.0; 4]), 99), None);
    }

    #[test]
    fn a_group_follows_its_clients() {
        let calm = activity([0.2; 4], [0.8; 4]);
        assert_eq!(asked(ONE, [0, 100, 0, 900], &calm, 9), Some((2, Owners { first: 3, count: 1, ..ONE })));
        assert_eq!(asked(ONE, [0, 500, 0, 500], &calm, 99), None, "half of them are here");
        assert_eq!(asked(ONE, [0, 0, 0, 3], &calm, 99), None, "three writes say nothing");
    }

    #[test]
    fn a_change_is_given_time_to_show() {
        let mut habits = Habits::default();
        let calm = activity([0.2; 4], [0.8; 4]);
        let mut look = |writes: [u64; 4]| habits.observe(ONE, &writes, &calm);
        assert_eq!((look([0, 0, 0, 99]), look([0, 0, 0, 99])), (None, Some(Owners { first: 3, count: 1, ..ONE })));
        let looks: Vec<bool> = (0..6).map(|_| look([99, 0, 0, 0]).is_some()).collect();
        assert_eq!(looks, [false, false, false, false, false, true]);
    }

    #[test]
    fn idle_ticks_are_those_without_and_with_input_and_guests_are_not_counted_twice() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 1 5 70 4 2 3 5 8 1\ncpu12 1 1 1 1 1 1 1 1 1 1\nintr 5 4\n";
        assert_eq!(core_times(stat), BTreeMap::from([(0, (74, 100)), (12, (2, 8))]));
    }
}
