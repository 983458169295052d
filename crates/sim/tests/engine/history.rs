//! What may be read after a crash: for each sector every version since the last one that is known to be durable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use drive::{BlockError, Buf, BufMut, WriteZeroes, join_all};
use sim::{Rng, SimEnv};

use crate::group::*;

pub const SECTOR: u64 = 512;

type Version = Vec<u8>;

/// A version of a sector.
#[derive(Clone)]
struct Entry {
    version: Rc<Version>,
    /// When its request was answered, counted in requests; `None` while it is under way.
    done: Option<u64>,
}

/// The history of every sector that was ever touched. Others are zero.
pub struct History {
    sectors: BTreeMap<u64, Vec<Entry>>,
    zero: Rc<Version>,
    /// Counts answers.
    now: u64,
}

pub type Shared = Rc<RefCell<History>>;

impl History {
    pub fn shared() -> Shared {
        Rc::new(RefCell::new(History { sectors: BTreeMap::new(), zero: Rc::new(vec![0; SECTOR as usize]), now: 0 }))
    }

    /// A request is given to the group.
    fn begin(&mut self, start: u64, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let base = || vec![Entry { version: self.zero.clone(), done: Some(0) }];
            let history = self.sectors.entry(start / SECTOR + index as u64).or_insert_with(base);
            history.push(Entry { version: Rc::new(chunk.to_vec()), done: None });
        }
    }

    /// It was answered.
    fn end(&mut self, start: u64, len: u64, durable: bool) {
        self.now += 1;
        for sector in start / SECTOR..(start + len) / SECTOR {
            let history = self.sectors.get_mut(&sector).expect("a request begins before it ends");
            history.last_mut().expect("it was begun").done = Some(self.now);
            if durable {
                history.drain(..history.len() - 1);
            }
        }
    }

    /// A flush that was given to the group at `since` was answered: older versions than those which were answered then
    /// cannot come back.
    fn flushed(&mut self, since: u64) {
        for history in self.sectors.values_mut() {
            let durable = history.iter().rposition(|entry| entry.done.is_some_and(|done| done <= since));
            // None: what is left came with FUA, after the flush began.
            history.drain(..durable.unwrap_or(0));
        }
    }

    /// What is read without a crash.
    fn latest(&self, start: u64, len: u64) -> Vec<u8> {
        let sectors = start / SECTOR..(start + len) / SECTOR;
        let last = |sector| self.sectors.get(&sector).and_then(|history| history.last());
        sectors.flat_map(|sector| last(sector).map_or(&self.zero, |entry| &entry.version).to_vec()).collect()
    }

    /// Checks what was read after a crash, and takes it for the truth from now on.
    fn settle(&mut self, start: u64, read: &[u8]) {
        for (index, chunk) in read.chunks_exact(SECTOR as usize).enumerate() {
            let sector = start / SECTOR + index as u64;
            let Some(history) = self.sectors.get_mut(&sector) else {
                assert!(chunk.iter().all(|&byte| byte == 0), "sector {sector} was never written and is not zero");
                continue;
            };
            let known = history.iter().any(|entry| **entry.version == *chunk);
            let states: Vec<_> = history.iter().map(|entry| (entry.version[0], entry.done)).collect();
            assert!(known, "sector {sector} starts with {:#x}; it may be one of {states:x?}", chunk[0]);
            *history = vec![Entry { version: Rc::new(chunk.to_vec()), done: Some(self.now) }];
        }
    }

    /// Everything as a model, once it is settled.
    pub fn model(&self, size: u64) -> Model {
        Model { bytes: self.latest(0, size) }
    }
}

/// Reads everything after a crash.
pub async fn settle(group: &Group, history: &Shared, rng: &mut Rng) {
    each_chunk(group, rng, |at, read| history.borrow_mut().settle(at, read)).await;
}

/// Reads everything, when no request was interrupted since the last time.
pub async fn verify_latest(group: &Group, history: &Shared, rng: &mut Rng) {
    each_chunk(group, rng, |at, read| same(read, &history.borrow().latest(at, read.len() as u64), at)).await;
}

async fn each_chunk(group: &Group, rng: &mut Rng, check: impl Fn(u64, &[u8])) {
    let size = group.size();
    let mut at = 0;
    while at < size {
        let len = (64 * KIB).min(size - at);
        let read =
            rng.pick(&group.shards).read(at, BufMut::zeroed(len as usize)).await.expect("everything can be read");
        check(at, &read);
        at += len;
    }
}

/// Rounds of up to `width` requests on disjoint sectors, flushes and FUA among them, that may be cut off at any time.
pub async fn work_for_a_crash(group: &Group, history: &Shared, rng: &mut Rng, rounds: usize, width: usize) {
    let geometry = &group.leader().shared().geometry;
    let (stripe, unit) = (geometry.stripe_data(), geometry.stripe_data() * geometry.rows() * geometry.sets);
    let grain = geometry.sector.max(SECTOR);
    for _ in 0..rounds {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..width {
            let (start, len) = any_range(rng, group.size(), stripe, unit);
            let start = start / grain * grain;
            let len = len.next_multiple_of(grain).min(group.size() - start);
            if taken.iter().any(|&(other, other_len)| start < other + other_len && other < start + len) {
                continue;
            }
            taken.push((start, len));
            let (array, kind, mut fork) = (rng.pick(&group.shards).clone(), rng.below(12), rng.fork());
            let pause = rng.below(300_000);
            let (history, env) = (history.clone(), group.env.clone());
            requests.push(async move {
                pause_for(&env, pause).await;
                one(&array, &history, &mut fork, kind, start, len).await.expect("nothing but the power fails");
            });
        }
        join_all(requests).await;
    }
}

async fn pause_for(env: &SimEnv, nanos: u64) {
    drive::Env::sleep(env, std::time::Duration::from_nanos(nanos)).await;
}

async fn one(
    array: &array::Array<SimEnv>,
    history: &Shared,
    rng: &mut Rng,
    kind: u64,
    start: u64,
    len: u64,
) -> Result<(), BlockError> {
    let mut new = vec![0; len as usize];
    match kind {
        0..6 => {
            rng.fill(&mut new);
            history.borrow_mut().begin(start, &new);
            let fua = kind < 2;
            array.write(start, Buf::from(new), fua).await?;
            history.borrow_mut().end(start, len, fua);
        }
        6..8 => {
            history.borrow_mut().begin(start, &new);
            array.discard(start, len).await?;
            history.borrow_mut().end(start, len, false);
        }
        8 => {
            let how = WriteZeroes { fua: true, keep_allocated: rng.chance(1, 2), only_fast: false };
            history.borrow_mut().begin(start, &new);
            array.write_zeroes(start, len, how).await?;
            history.borrow_mut().end(start, len, true);
        }
        9..11 => {
            let since = history.borrow().now;
            array.flush().await?;
            history.borrow_mut().flushed(since);
        }
        _ => {
            let expected = history.borrow().latest(start, len);
            let read = array.read(start, BufMut::zeroed(len as usize)).await?;
            same(&read, &expected, start);
        }
    }
    Ok(())
}
