//! The loop: tasks, turns, timers, messages between shards, idleness.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{Random, start};
use drive::Env;
use runtime::{Config, Mailbox, MailboxSender, Runtime, ShardEnv, StartError, Stopped, mailbox};

/// Runs a test on the first shard.
fn on_shard<F, T>(runtime: &Runtime, test: impl FnOnce(ShardEnv) -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    runtime.shard(0).call(|| test(ShardEnv::current())).wait().expect("the shard runs")
}

#[test]
fn a_call_brings_its_result_back_from_every_shard() {
    let runtime = start(3);
    for (index, shard) in runtime.shards().iter().enumerate() {
        let call = shard.call(move || async move { (ShardEnv::current().index(), Rc::new(7)).0 });
        assert_eq!((shard.index(), call.wait()), (index, Ok(index)));
    }
    assert!(ShardEnv::try_current().is_none(), "this thread is no shard");
    runtime.stop();
}

#[test]
fn a_stopped_shard_says_so_and_answers_what_it_dropped() {
    let runtime = start(1);
    let shard = runtime.shard(0).clone();
    let never = shard.call(|| async { std::future::pending::<()>().await });
    runtime.stop();
    assert_eq!(never.wait(), Err(Stopped));
    assert_eq!(shard.call(|| async {}).wait(), Err(Stopped));
    assert_eq!(shard.spawn(|| async {}), Err(Stopped));
}

#[test]
fn impossible_configurations_are_refused() {
    let config = |cores| Config { cores, arena_bytes: 16 << 20, ..Config::default() };
    assert!(matches!(Runtime::start(config(vec![])), Err(StartError::NoCores)));
    let error = Runtime::start(config(vec![0, 100_000])).expect_err("no machine has that core");
    assert!(matches!(&error, StartError::Pin { core: 100_000, .. }), "{error}");
    let error = Runtime::start(Config { ring_entries: 0, ..config(vec![0]) }).expect_err("a ring has entries");
    assert!(matches!(&error, StartError::Ring { core: 0, .. }), "{error}");
}

#[test]
fn a_thread_runs_on_its_core_under_its_name() {
    let runtime = start(2);
    for shard in runtime.shards() {
        let call = shard.call(|| async {
            let name = std::thread::current().name().map(str::to_string);
            // SAFETY: no memory is involved.
            (name, unsafe { libc::sched_getcpu() })
        });
        let expected = (Some(format!("shard-{}", shard.index())), shard.core() as i32);
        assert_eq!(call.wait(), Ok(expected));
    }
    runtime.stop();
}

#[test]
fn tasks_that_wake_each_other_all_end() {
    let runtime = start(1);
    on_shard(&runtime, |env| async move {
        const TASKS: usize = 1000;
        let sum = Rc::new(Cell::new(0));
        let (first, mut wait) = drive::oneshot::<usize>();
        for _ in 0..TASKS {
            let (next, wait_next) = drive::oneshot();
            let (sum, wait_here) = (sum.clone(), std::mem::replace(&mut wait, wait_next));
            env.spawn(async move {
                let value = wait_here.await.expect("the sender sends");
                sum.set(sum.get() + value);
                next.send(value);
            });
        }
        first.send(1);
        assert_eq!(wait.await, Ok(1));
        assert_eq!(sum.get(), TASKS);
    });
    runtime.stop();
}

#[test]
fn turn_end_comes_after_every_task_that_can_run_and_gathers_them() {
    let runtime = start(1);
    on_shard(&runtime, |env| async move {
        let log = Rc::new(RefCell::new(Vec::new()));
        let gather = env.clone();
        let gathered = log.clone();
        // It is first in the queue, and still sees the work of all other tasks, also of those that
        // were only woken by others.
        env.spawn(async move {
            gather.turn_end().await;
            gathered.borrow_mut().push("gathered");
        });
        for _ in 0..3 {
            let (sender, receiver) = drive::oneshot();
            let (one, other) = (log.clone(), log.clone());
            env.spawn(async move {
                receiver.await.expect("sent below");
                one.borrow_mut().push("second");
            });
            env.spawn(async move {
                other.borrow_mut().push("first");
                sender.send(());
            });
        }
        // This task waits for the same end of turn, and did so first. After the second one the
        // other task has run as well.
        env.turn_end().await;
        assert_eq!(log.borrow().len(), 6);
        env.turn_end().await;
        let expected = ["first", "first", "first", "second", "second", "second", "gathered"];
        let mut seen = log.borrow().clone();
        seen[..6].sort_unstable();
        assert_eq!(seen, expected);
    });
    runtime.stop();
}

#[test]
fn turn_end_comes_before_the_turn_is_submitted() {
    let runtime = start(1);
    let (_path, open) = crate::common::file_drive("/dev/shm", 1 << 20);
    let shard = runtime.shard(0).clone();
    on_shard(&runtime, move |env| async move {
        use drive::Drive;
        let drive = env.attach(&open);
        // The shard's own first submission is over then.
        env.sleep(Duration::from_millis(1)).await;
        for _ in 0..100 {
            let before = shard.stats().submitted;
            let reading = drive.clone();
            let buf = env.alloc(4096);
            let (done, wait) = drive::oneshot();
            env.spawn(async move {
                reading.read(0, buf).await.expect("read");
                done.send(());
            });
            env.turn_end().await;
            env.turn_end().await;
            assert_eq!(shard.stats().submitted, before, "two turn ends, and still nothing was submitted");
            wait.await.expect("the read ends");
            assert_eq!(shard.stats().submitted, before + 1);
        }
    });
    runtime.stop();
}

#[test]
fn a_task_that_never_waits_keeps_nobody_from_running() {
    let runtime = start(1);
    on_shard(&runtime, |env| async move {
        use drive::Drive;
        let stop = Rc::new(Cell::new(false));
        let (memory, busy_env, stopped) =
            (env.attach(&crate::common::memory_drive(1 << 20)), env.clone(), stop.clone());
        env.spawn(async move {
            let mut buf = busy_env.alloc(4096);
            while !stopped.get() {
                buf = memory.read(0, buf).await.expect("read");
            }
        });
        let (spinning, stopped) = (env.clone(), stop.clone());
        env.spawn(async move {
            while !stopped.get() {
                spinning.turn_end().await;
            }
        });
        // A timer and a message from outside both get through.
        env.sleep(Duration::from_millis(5)).await;
        let handle = env.handle();
        let outside = std::thread::spawn(move || handle.call(|| async {}).wait());
        while !outside.is_finished() {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(outside.join().expect("no panic"), Ok(()));
        stop.set(true);
    });
    runtime.stop();
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines_and_not_before() {
    let runtime = start(1);
    on_shard(&runtime, |env| async move {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let mut random = Random(5);
        let durations: Vec<u64> = (0..200).map(|_| random.below(30_000)).collect();
        for &micros in &durations {
            let (env_there, fired) = (env.clone(), fired.clone());
            env.spawn(async move {
                let (before, duration) = (env_there.now(), Duration::from_micros(micros));
                let mut sleep = Box::pin(env_there.sleep(duration));
                // The deadline was computed between these two times.
                let (earliest, latest) = (before + micros * 1000, env_there.now() + micros * 1000);
                // A sleep that is already due at its first poll does not wait for another. A busy
                // machine can do that to any sleep.
                let waits = poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context).is_pending())).await;
                if waits {
                    sleep.await;
                }
                assert!(env_there.now() >= earliest);
                fired.borrow_mut().push((waits, earliest, latest));
            });
        }
        // Dropped timers do not fire.
        drop(env.sleep(Duration::from_micros(1)));
        while fired.borrow().len() < durations.len() {
            env.sleep(Duration::from_millis(1)).await;
        }
        let fired = fired.borrow();
        for (at, &(_, earliest, _)) in fired.iter().enumerate().filter(|(_, timer)| timer.0) {
            let late = fired[at..].iter().find(|(_, _, latest)| *latest < earliest);
            assert_eq!(late, None, "its deadline is earlier, and it comes after {:?}", fired[at]);
        }
    });
    runtime.stop();
}

#[test]
fn equal_deadlines_fire_in_the_order_in_which_they_were_set() {
    let runtime = start(1);
    on_shard(&runtime, |env| async move {
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..50 {
            let (env_there, order) = (env.clone(), order.clone());
            env.spawn(async move {
                // Each waits a little less, since it starts a little later: as near to equal as the
                // clock allows.
                env_there.sleep(Duration::from_millis(3)).await;
                order.borrow_mut().push(number);
            });
        }
        while order.borrow().len() < 50 {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(*order.borrow(), (0..50).collect::<Vec<_>>());
    });
    runtime.stop();
}

/// Answers every message until `count` have come, or the other side has ended. Pauses of different
/// lengths let messages meet the receiver awake, falling asleep and asleep.
async fn play(inbox: Mailbox<u64>, other: MailboxSender<u64>, count: u64, seed: u64) -> u64 {
    let (env, mut inbox, mut random) = (ShardEnv::current(), inbox, Random(seed));
    let (mut batch, mut received) = (Vec::new(), 0);
    while received < count && inbox.recv_batch(&mut batch).await {
        for message in batch.drain(..) {
            received += 1;
            match random.below(2000) {
                0 => env.sleep(Duration::from_micros(random.below(200))).await,
                1..40 => {
                    let until = Instant::now() + Duration::from_nanos(random.below(20_000));
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                _ => {}
            }
            // At the end the other side may be gone already.
            let _ = other.send(message + 1);
        }
    }
    received
}

/// A lost wake-up would leave both asleep, and the test would not end. Seven messages are in flight
/// at a time: enough to end soon on a busy machine, few enough for both shards to fall asleep
/// thousands of times.
#[test]
fn no_wake_up_is_lost_between_two_shards() {
    const MESSAGES: u64 = 200_000;
    const BALLS: u64 = 7;
    let runtime = start(2);
    let (to_one, one) = mailbox();
    let (to_other, other) = mailbox();
    let serve = to_one.clone();
    let first = runtime.shard(0).call(move || play(one, to_other, MESSAGES / 2, 1));
    let second = runtime.shard(1).call(move || play(other, to_one, MESSAGES / 2, 2));
    (0..BALLS).for_each(|ball| serve.send(ball).expect("the shard listens"));
    drop(serve);
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send((first.wait(), second.wait())));
    let stats = || runtime.shards().iter().map(|shard| shard.stats()).collect::<Vec<_>>();
    let ends = wait.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("stuck: {:?}", stats()));
    let whole = |received: Result<u64, Stopped>| received.is_ok_and(|received| received >= MESSAGES / 2 - BALLS);
    assert!(whole(ends.0) && whole(ends.1), "{ends:?}");
    println!("{:?}", stats());
    assert!(stats().iter().all(|shard| shard.rung > 1000), "both were asleep often enough for this to show something");
    runtime.stop();
}

#[test]
fn every_message_of_many_senders_arrives_once_and_in_the_order_of_its_sender() {
    const EACH: u64 = 50_000;
    let runtime = start(2);
    let (sender, mut inbox) = mailbox::<(usize, u64)>();
    let received = runtime.shard(0).call(move || async move {
        let (mut next, mut batch) = ([0; 4], Vec::new());
        while inbox.recv_batch(&mut batch).await {
            for (who, number) in batch.drain(..) {
                assert_eq!(number, next[who]);
                next[who] += 1;
            }
        }
        next
    });
    let threads: Vec<_> = (0..3)
        .map(|who| {
            let sender = sender.clone();
            std::thread::spawn(move || (0..EACH).for_each(|number| sender.send((who, number)).expect("it listens")))
        })
        .collect();
    let last = runtime.shard(1).call(move || async move {
        let mut batch = Vec::new();
        for start in (0..EACH).step_by(100) {
            batch.extend((start..start + 100).map(|number| (3, number)));
            sender.send_all(&mut batch).expect("it listens");
            ShardEnv::current().turn_end().await;
        }
    });
    threads.into_iter().for_each(|thread| thread.join().expect("no sender failed"));
    last.wait().expect("the shard runs");
    assert_eq!(received.wait(), Ok([EACH; 4]));
    runtime.stop();
}

#[test]
fn a_message_to_a_mailbox_that_is_gone_comes_back() {
    let (sender, inbox) = mailbox();
    sender.send(1).expect("it is there");
    drop(inbox);
    assert_eq!(sender.send(2), Err(2));
    assert!(sender.send_all(&mut vec![3]).is_err());
}

#[test]
fn wakers_work_from_any_thread_and_after_their_task() {
    let runtime = start(1);
    let woken = Arc::new(AtomicU64::new(0));
    let (send_waker, wakers) = std::sync::mpsc::channel();
    let seen = woken.clone();
    let call = runtime.shard(0).call(move || async move {
        for _ in 0..1000 {
            let mut first = true;
            poll_fn(|context| {
                if std::mem::take(&mut first) {
                    send_waker.send(context.waker().clone()).expect("the thread listens");
                    return std::task::Poll::Pending;
                }
                std::task::Poll::Ready(())
            })
            .await;
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut last = None;
    for waker in wakers {
        waker.wake_by_ref();
        waker.wake_by_ref();
        last = Some(waker);
    }
    call.wait().expect("the shard runs");
    assert_eq!(woken.load(Ordering::Relaxed), 1000);
    // The task has ended, and its slot may belong to another one.
    let waker = last.expect("there were wakers");
    runtime.shard(0).spawn(|| async {}).expect("the shard runs");
    waker.wake_by_ref();
    runtime.stop();
    waker.wake();
}

#[test]
fn an_idle_shard_sleeps() {
    let runtime = start(2);
    // Resources that must not wake a sleeping shard: an attached file, an armed timer, a mailbox.
    let (_path, open) = crate::common::file_drive("/dev/shm", 1 << 20);
    let (_sender, mut inbox) = mailbox::<()>();
    runtime
        .shard(0)
        .spawn(move || async move {
            let env = ShardEnv::current();
            let _drive = env.attach(&open);
            env.spawn({
                let env = env.clone();
                async move { env.sleep(Duration::from_secs(3600)).await }
            });
            inbox.recv_batch(&mut Vec::new()).await;
        })
        .expect("the shard runs");
    // On a busy machine it may take a while until they rest.
    let stats = || runtime.shards().iter().map(|shard| shard.stats()).collect::<Vec<_>>();
    let rested = (0..20).any(|_| {
        let before = stats();
        std::thread::sleep(Duration::from_millis(500));
        stats() == before
    });
    assert!(rested, "never was there half a second without a turn");
    runtime.stop();
}
