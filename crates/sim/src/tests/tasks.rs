//! Time, turns and the order of tasks.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use ::drive::{Drive, Env, join_all, oneshot};

use super::data;
use crate::{Sim, SimDrive, TraceEntry};

/// Eight tasks that sleep, write and read on two drives. Gives the order in which they ended, and
/// the trace.
fn workload(seed: u64) -> (Vec<u32>, Vec<TraceEntry>, u64) {
    let sim = Sim::new(seed);
    sim.trace_start();
    let env = sim.env();
    let drives = [SimDrive::new(&env, "a", 1 << 20, 512), SimDrive::new(&env, "b", 1 << 20, 4096)];
    let order = Rc::new(RefCell::new(Vec::new()));
    for task in 0..8_u32 {
        let (env, order, drive) = (env.clone(), order.clone(), drives[task as usize % 2].clone());
        env.clone().spawn(async move {
            env.sleep(Duration::from_micros(u64::from(task % 3))).await;
            let offset = u64::from(task) * 8192;
            drive.write(offset, data(&[task as u8; 8192]), task % 2 == 0).await.unwrap();
            env.turn_end().await;
            drive.discard(offset, 4096).await.unwrap();
            let reads = (0..4).map(|part| drive.read(offset + 4096 * (part % 2), env.alloc(4096)));
            assert!(join_all(reads).await.iter().all(Result::is_ok));
            order.borrow_mut().push(task);
        });
    }
    sim.run_until_idle();
    assert_eq!(sim.task_count(), 0);
    (order.take(), sim.trace_take(), sim.fingerprint())
}

#[test]
fn one_seed_gives_one_run() {
    for seed in 0..20 {
        assert!(workload(seed) == workload(seed), "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_orders() {
    let mut orders: Vec<_> = (0..20).map(|seed| workload(seed).0).collect();
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 15, "{} orders out of 20 seeds", orders.len());
}

#[test]
fn tasks_that_are_runnable_together_run_in_any_order() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let order = Rc::new(RefCell::new(Vec::new()));
        for task in 0..3 {
            let order = order.clone();
            sim.env().spawn(async move { order.borrow_mut().push(task) });
        }
        sim.run_until_idle();
        seen.insert(order.take());
    }
    assert_eq!(seen.len(), 6, "all permutations of three: {seen:?}");
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let sim = Sim::new(1);
    let env = sim.env();
    let woken = Rc::new(RefCell::new(Vec::new()));
    for nanos in [30, 10, 20, 50, 40] {
        let (env, woken) = (env.clone(), woken.clone());
        sim.env().spawn(async move {
            env.sleep(Duration::from_nanos(nanos)).await;
            assert_eq!(env.now(), nanos, "exactly then");
            woken.borrow_mut().push(nanos);
        });
    }
    sim.run_until_idle();
    assert_eq!(*woken.borrow(), [10, 20, 30, 40, 50]);
}

#[test]
fn a_dropped_sleep_does_not_move_time() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.block_on(async {
        let mut long = Box::pin(env.sleep(Duration::from_secs(100)));
        let poll_once = std::future::poll_fn(|context| {
            assert!(long.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        });
        poll_once.await;
        env.sleep(Duration::from_secs(1)).await;
        drop(long);
    });
    sim.run_until_idle();
    assert_eq!(sim.now(), 1_000_000_000);
}

#[test]
fn running_for_a_while_lets_exactly_that_time_pass() {
    let sim = Sim::new(1);
    let ticks = Rc::new(Cell::new(0));
    let (env, counter) = (sim.env(), ticks.clone());
    sim.env().spawn(async move {
        loop {
            env.sleep(Duration::from_millis(10)).await;
            counter.set(counter.get() + 1);
        }
    });
    sim.run_for(Duration::from_millis(55));
    assert_eq!((ticks.get(), sim.now()), (5, 55_000_000));
    sim.run_for(Duration::from_millis(5));
    assert_eq!(ticks.get(), 6, "an event of the last instant happens");
}

#[test]
fn a_turn_ends_when_no_other_task_is_runnable_and_before_time_moves() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let log = Rc::new(RefCell::new(Vec::new()));
        for waiter in 0..2 {
            let (env, log) = (sim.env(), log.clone());
            sim.env().spawn(async move {
                env.turn_end().await;
                assert_eq!(env.now(), 0);
                log.borrow_mut().push("end");
                if waiter == 0 {
                    env.turn_end().await;
                    log.borrow_mut().push("second end");
                }
            });
        }
        let (env, logged) = (sim.env(), log.clone());
        sim.env().spawn(async move {
            env.sleep(Duration::ZERO).await;
            logged.borrow_mut().push("event of the instant");
        });
        let (env, logged) = (sim.env(), log.clone());
        sim.env().spawn(async move {
            // A chain of tasks, each of which makes the next one runnable.
            for _ in 0..5 {
                let (sender, receiver) = oneshot();
                env.spawn(async move { sender.send(()) });
                receiver.await.unwrap();
                logged.borrow_mut().push("work");
            }
        });
        sim.run_until_idle();
        let log = log.take();
        assert_eq!(log[..5], ["work"; 5], "seed {seed}");
        assert_eq!(log[5..], ["end", "end", "second end", "event of the instant"], "seed {seed}");
    }
}

fn panic_text(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_deadlock_is_reported_with_the_seed() {
    let sim = Sim::new(4711);
    sim.env().spawn(pending());
    let text = panic_text(|| sim.block_on(pending::<()>()));
    assert!(text.contains("seed 4711") && text.contains("deadlock") && text.contains("1 spawned"), "{text}");
}

#[test]
fn a_deadlock_names_the_drive_that_hangs() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "sleepy", 1 << 20, 512);
    drive.hang(true);
    let text = panic_text(|| drop(sim.block_on(drive.flush())));
    assert!(text.contains("drive sleepy holds back 1 operations"), "{text}");
}

#[test]
fn a_task_that_never_rests_is_reported_with_the_seed() {
    let sim = Sim::new(4711);
    sim.set_steps_max(1000);
    let env = sim.env();
    let text = panic_text(|| {
        sim.block_on(async {
            loop {
                env.turn_end().await;
            }
        });
    });
    assert!(text.contains("seed 4711") && text.contains("limit of steps"), "{text}");
}

#[test]
fn killed_tasks_are_dropped_and_their_operations_still_complete() {
    let sim = Sim::new(1);
    let drive = SimDrive::new(&sim.env(), "d", 1 << 20, 512);
    let guard = Rc::new(());
    let (writer, held) = (drive.clone(), guard.clone());
    sim.env().spawn(async move {
        writer.write(0, data(&[1; 512]), false).await.unwrap();
        drop(held);
        unreachable!("killed before the write is done");
    });
    sim.run_for(Duration::from_nanos(1));
    sim.kill_tasks();
    assert_eq!((Rc::strong_count(&guard), sim.task_count()), (1, 0));
    sim.run_until_idle();
    assert_eq!(drive.read_raw(0, 512), [1; 512]);
}

#[test]
fn a_dropped_world_drops_its_tasks() {
    let guard = Rc::new(());
    {
        let sim = Sim::new(1);
        let (env, held) = (sim.env(), guard.clone());
        sim.env().spawn(async move {
            env.sleep(Duration::from_secs(1)).await;
            drop(held);
        });
        sim.run_for(Duration::from_nanos(1));
    }
    assert_eq!(Rc::strong_count(&guard), 1);
}

#[test]
fn a_fresh_buffer_is_never_zero() {
    let env = Sim::new(1).env();
    for _ in 0..1000 {
        assert!(env.alloc(16).iter().all(|&byte| byte != 0));
    }
}
