//! The limiter in virtual time.

use std::task::Waker;

use proptest::prelude::*;

use super::*;

const SECOND: Nanos = 1_000_000_000;

fn cost(bytes: u64) -> Cost {
    Cost { requests: 1, bytes }
}

/// A request that came.
struct Came {
    at: Nanos,
    cost: Cost,
    ticket: Option<Arc<Ticket>>,
    passed: Option<Nanos>,
}

/// A limiter and the requests that came to it. Its clock moves only when a test moves it.
struct World {
    limiter: Limiter,
    owner: Arc<Owner>,
    came: Vec<Came>,
    now: Nanos,
}

impl World {
    fn new(limit: Limit) -> World {
        let limiter = Limiter::default();
        limiter.set(Some(limit));
        // The clock does not begin with the limiter.
        World { limiter, owner: Arc::default(), came: Vec::new(), now: 77 * SECOND }
    }

    fn request(&mut self, cost: Cost) {
        let entered = self.limiter.enter(self.now, cost, &self.owner);
        let passed = entered.as_ref().ok().map(|passes| {
            assert!(*passes);
            self.now
        });
        self.came.push(Came { at: self.now, cost, ticket: entered.err(), passed });
    }

    /// Looks as the task at the head of the wait queue would. Returns when it looks again.
    fn look(&mut self) -> Option<Nanos> {
        loop {
            let head = lock(&self.limiter.inner).line.front().cloned()?;
            let looked = self.limiter.look(&head, self.now, Waker::noop());
            for came in self.came.iter_mut().filter(|came| came.passed.is_none()) {
                let ticket = came.ticket.as_ref().expect("it waits");
                if lock(&ticket.end).passes == Some(true) {
                    came.passed = Some(self.now);
                }
            }
            if let Err(due) = looked {
                return due;
            }
        }
    }

    /// Lets time pass until `end`, with every timer on time.
    fn run(&mut self, end: Nanos) {
        while let Some(due) = self.look().filter(|due| *due <= end) {
            assert!(due > self.now, "time goes on");
            self.now = due;
        }
        self.now = end;
    }

    fn is_done(&self) -> bool {
        self.came.iter().all(|came| came.passed.is_some())
    }
}

/// Asserts that the amount passed over any time is within the limit. The times checked are those
/// between any two requests that passed, both included.
///
/// Before the first of the two, the bucket held at most its burst, and the tokens added while the
/// head of the wait queue looked later than it was due. [`LOOK_MIN`] bounds that delay if timers
/// are on time. The second one may be larger than the burst: it took all tokens and owes the rest.
fn assert_within(world: &World, rate: u64, burst_ms: u64, of: impl Fn(Cost) -> u64) -> Result<(), TestCaseError> {
    let second = u128::from(SECOND);
    let passed: Vec<(Nanos, u64)> = world.came.iter().filter_map(|came| Some((came.passed?, of(came.cost)))).collect();
    let largest = u128::from(passed.iter().map(|(_, cost)| *cost).max().unwrap_or(0));
    let burst = (u128::from(rate) * u128::from(burst_ms) * 1_000_000).max(second).max(largest * second);
    for (index, (from, _)) in passed.iter().enumerate() {
        let mut sum = 0u128;
        for (to, cost) in &passed[index..] {
            sum += u128::from(*cost);
            let allowed = u128::from(rate) * u128::from(to - from + LOOK_MIN) + burst;
            prop_assert!(sum * second <= allowed, "{sum} in {} ns, {} allowed", to - from, allowed / second);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_window_holds_more_than_its_rate_and_a_burst_and_a_backlog_is_served_at_the_full_rate(
        iops in proptest::option::of(1u64..200_000),
        bytes_per_s in proptest::option::of(1u64..1 << 34),
        burst_ms in 10u64..5_000,
        requests in proptest::collection::vec((0u64..3_000_000, 0u64..1 << 20), 1..200),
    ) {
        let mut world = World::new(Limit { iops, bytes_per_s, burst_ms });
        for (pause, bytes) in requests {
            let next = world.now + pause;
            world.run(next);
            world.request(cost(bytes));
        }
        let backlog = world.came.iter().filter(|came| came.passed.is_none()).map(|came| came.cost);
        let (waiting, bytes) = backlog.fold((0, 0), |sum, cost| (sum.0 + 1, sum.1 + cost.bytes));
        let began = world.now;
        while !world.is_done() {
            let due = world.look();
            world.now = due.unwrap_or(world.now);
        }
        prop_assert!(world.came.iter().map(|came| came.passed).is_sorted(), "they pass in the order in which they came");
        if let Some(iops) = iops {
            assert_within(&world, iops, burst_ms, |cost| cost.requests)?;
        }
        if let Some(rate) = bytes_per_s {
            assert_within(&world, rate, burst_ms, |cost| cost.bytes)?;
        }
        // The backlog took no longer than the slower of the two rates needs for it and for the
        // tokens owed before.
        let took = u128::from(world.now - began);
        let time = |count: u64, rate: Option<u64>| rate.map_or(0, |rate| {
            (u128::from(count) * u128::from(SECOND)).div_ceil(rate.into())
        });
        let owed = time(waiting, iops) + time(bytes + (1 << 20), bytes_per_s);
        prop_assert!(took <= owed + u128::from(LOOK_MIN), "{took} ns for a backlog of {owed} ns");
        let waits = world.limiter.waits();
        let waited = world.came.iter().filter(|came| came.ticket.is_some());
        let waited_ns = waited.clone().map(|came| came.passed.expect("done") - came.at).sum();
        let expected = Waits { waiting: 0, waited: waited.count() as u64, waited_ns };
        prop_assert_eq!(waits, expected);
    }

    #[test]
    fn who_always_has_a_request_waiting_gets_the_whole_rate(
        iops in 1u64..1_000_000,
        burst_ms in 10u64..1_000,
        depth in 1usize..64,
        late in 0u64..2_000_000,
    ) {
        let mut world = World::new(Limit { iops: Some(iops), bytes_per_s: None, burst_ms });
        let (began, wanted) = (world.now, 3_000u64);
        let mut sent = 0;
        while sent < wanted {
            let waiting = world.came.iter().filter(|came| came.passed.is_none()).count();
            for _ in waiting..depth {
                world.request(cost(0));
                sent += 1;
            }
            world.came.retain(|came| came.passed.is_none());
            // Timers fire late, by less than what counts as late.
            if let Some(due) = world.look() {
                world.now = due + late;
            }
        }
        let took = u128::from(world.now - began);
        let capacity = (u128::from(iops) * u128::from(burst_ms) / 1000).max(1);
        let needed = (u128::from(sent).saturating_sub(capacity)) * u128::from(SECOND) / u128::from(iops);
        let slack = u128::from(LOOK_MIN + late) + u128::from(SECOND).div_ceil(u128::from(iops));
        prop_assert!(took <= needed + slack, "{took} ns instead of {needed}");
    }
}

/// Regression test: the bucket of requests filled beyond its burst while the head of the wait queue
/// waited for bytes.
#[test]
fn while_bytes_are_waited_for_no_more_than_a_burst_of_requests_is_gathered() {
    let mut world = World::new(Limit { iops: Some(1_000), bytes_per_s: Some(1 << 20), burst_ms: 10 });
    world.request(cost(1 << 20));
    world.request(cost(1));
    (0..100).for_each(|_| world.request(cost(0)));
    world.run(77 * SECOND + 2 * SECOND);
    let began = world.came[1].passed.expect("one second is over");
    let at_once = world.came[1..].iter().filter(|came| came.passed == Some(began)).count();
    assert_eq!(at_once, 10);
    assert!(world.is_done());
}

#[test]
fn another_limit_holds_at_once_for_those_that_wait() {
    let mut world = World::new(Limit { iops: Some(1), bytes_per_s: None, burst_ms: 1000 });
    (0..101).for_each(|_| world.request(cost(4096)));
    world.run(world.now + SECOND / 2);
    assert_eq!(world.limiter.waits().waiting, 100);
    world.limiter.set(Some(Limit { iops: Some(100), bytes_per_s: None, burst_ms: 1000 }));
    world.run(world.now + SECOND);
    let left = world.limiter.waits().waiting;
    assert!((0..=1).contains(&left), "100 in a second, half a one was there before: {left} left");
    (0..1000).for_each(|_| world.request(cost(4096)));
    world.limiter.set(None);
    assert_eq!(world.limiter.waits().waiting, 0, "without a limit all go");
    assert!(!world.limiter.is_on() && world.limiter.enter(world.now, cost(1 << 30), &world.owner).is_ok());
}

#[test]
fn the_requests_of_one_connection_end_or_go_without_the_others() {
    let mut world = World::new(Limit { iops: Some(10), bytes_per_s: None, burst_ms: 100 });
    world.request(cost(0));
    let (gone, hurried) = (Arc::<Owner>::default(), Arc::<Owner>::default());
    let enter = |owner: &Arc<Owner>| world.limiter.enter(world.now, cost(0), owner).expect_err("it waits");
    let tickets = [enter(&gone), enter(&world.owner), enter(&hurried), enter(&gone)];
    gone.set(GONE);
    hurried.set(HURRIES);
    world.limiter.release(&gone);
    world.limiter.release(&hurried);
    let ends = tickets.each_ref().map(|ticket| lock(&ticket.end).passes);
    assert_eq!(ends, [Some(false), None, Some(true), Some(false)]);
    assert_eq!(world.limiter.enter(world.now, cost(0), &gone).ok(), Some(false), "who is gone is not served");
    assert_eq!(world.limiter.enter(world.now, cost(0), &hurried).ok(), Some(true), "and who hurries does not wait");
    let waker = Waker::noop();
    assert!(world.limiter.look(&tickets[1], world.now, waker).is_err());
    assert_eq!(world.limiter.look(&tickets[1], world.now + SECOND / 10, waker), Ok(true), "the others go on");
}
