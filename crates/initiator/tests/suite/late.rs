//! Late commands are aborted, and if that does not help, their controller is given up. The test
//! sets the clock.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::common::{BLOCK, MIB, Target, address, buf, on_tokio, options};
use drive::{BufMut, Nanos, Tasks};
use export::Limit;
use initiator::tokio::TokioNetwork;
use initiator::{Address, Call, Controller, Lost, Network, Options, Payload, Purpose, Reply};
use nvme::Status;
use nvme::host::{Blocks, io as command};

/// Sockets of tokio, and a clock that stands still until it is set.
#[derive(Clone, Default)]
struct Clock {
    network: TokioNetwork,
    now: Rc<Cell<Nanos>>,
    sleeping: Rc<RefCell<Vec<Waker>>>,
}

impl Clock {
    fn advance(&self, seconds: u64) {
        self.now.set(self.now.get() + seconds * 1_000_000_000);
        self.sleeping.take().into_iter().for_each(Waker::wake);
    }
}

impl Tasks for Clock {
    fn now(&self) -> Nanos {
        self.now.get()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        let (clock, until) = (self.clone(), self.now.get() + duration.as_nanos() as u64);
        poll_fn(move |context| {
            if clock.now.get() >= until {
                return Poll::Ready(());
            }
            clock.sleeping.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
    }

    fn turn_end(&self) -> impl Future<Output = ()> + 'static {
        self.network.turn_end()
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.network.spawn(task);
    }

    fn alloc(&self, len: usize) -> BufMut {
        self.network.alloc(len)
    }
}

impl Network for Clock {
    type Reader = <TokioNetwork as Network>::Reader;
    type Writer = <TokioNetwork as Network>::Writer;

    async fn connect(&self, address: &Address) -> io::Result<(Self::Reader, Self::Writer)> {
        self.network.connect(address).await
    }
}

/// A command is late after 100 s, and its controller is given up after 150 s.
const LIMIT_S: u64 = 100;

async fn controller(clock: &Clock, target: &Target, queues: u16) -> Controller<Clock> {
    let command_timeout = Duration::from_secs(LIMIT_S);
    let options = Options { command_timeout, queues, keep_alive: Duration::from_secs(10_000), ..options() };
    Controller::open(clock, &address(target.address), &options, Purpose::Io).await.unwrap()
}

type Answer = tokio::task::JoinHandle<Result<Reply, Lost>>;

/// Reads a block in a task of its own.
fn read(controller: &Controller<Clock>) -> Answer {
    let (controller, blocks) = (controller.clone(), Blocks { nsid: 1, first: 0, count: 1 });
    let payload = Payload::ToHost(buf(BLOCK as usize));
    let call = Call { command: command::read(blocks, BLOCK), payload, is_patient: false };
    tokio::task::spawn_local(async move { controller.execute(call).await })
}

/// Waits for other tasks. The test as a whole has a limit.
async fn eventually(there: impl Fn() -> bool) {
    while !there() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn each_late_command_is_aborted_by_its_queue_and_identifier_and_no_other() {
    on_tokio(async {
        let (target, _, state) = Target::disk(MIB);
        let clock = Clock::default();
        let controller = controller(&clock, &target, 2).await;
        let name = options().host.nqn.to_string();
        state.limit_host(&name, Some(Limit { iops: None, bytes_per_s: Some(1), burst_ms: 10 }));
        assert!(read(&controller).await.unwrap().unwrap().completion.status().is_success(), "the first one goes");
        let waiting = || state.limited_hosts()[&name].1.waiting;
        // Two reads on each queue, of different ages.
        let mut late = Vec::new();
        for count in 1..=4 {
            late.push(read(&controller));
            eventually(|| waiting() == count).await;
            clock.advance(10);
        }
        clock.advance(LIMIT_S - 40);
        for (index, answer) in late.into_iter().enumerate() {
            assert_eq!(waiting(), 4 - index as u64, "none before its time");
            clock.advance(5);
            let reply = answer.await.unwrap().unwrap();
            assert_eq!(reply.completion.status(), Status::ABORT_REQUESTED);
            clock.advance(5);
        }
        assert_eq!((waiting(), controller.lost()), (0, None));
        state.limit_host(&name, None);
        assert!(read(&controller).await.unwrap().unwrap().completion.status().is_success(), "it goes on");
    });
}

#[test]
fn a_controller_that_can_not_abort_a_late_command_is_given_up_half_as_late_again() {
    on_tokio(async {
        let (target, volume, _) = Target::disk(MIB);
        let clock = Clock::default();
        let controller = controller(&clock, &target, 1).await;
        volume.hold();
        let answer = read(&controller);
        eventually(|| volume.in_flight() == 1).await;
        clock.advance(LIMIT_S + 5);
        // The check for late commands has run when this is answered.
        controller.execute_admin(nvme::host::admin::keep_alive()).await.unwrap();
        assert_eq!(controller.lost(), None, "it may still answer");
        clock.advance(LIMIT_S / 2);
        let silent = Lost::Silent { what: "a command", ms: 1500 * LIMIT_S };
        assert_eq!(controller.ended().await, silent);
        assert_eq!(answer.await.unwrap().err(), Some(silent));
        volume.release();
    });
}

#[test]
fn a_controller_that_answers_in_turn_is_waited_for_however_much_waits_there() {
    on_tokio(async {
        let (target, _, state) = Target::disk(MIB);
        let clock = Clock::default();
        let controller = controller(&clock, &target, 1).await;
        let name = options().host.nqn.to_string();
        state.limit_host(&name, Some(Limit { iops: Some(20), bytes_per_s: None, burst_ms: 10 }));
        assert!(read(&controller).await.unwrap().unwrap().completion.status().is_success(), "the first one goes");
        // Twenty reads a second on the target's clock. Here a whole limit passes for each four of
        // them.
        let waiting: Vec<Answer> = (0..10).map(|_| read(&controller)).collect();
        let mut answered = 0;
        for answer in waiting {
            assert!(answer.await.unwrap().unwrap().completion.status().is_success());
            answered += 1;
            clock.advance(LIMIT_S / 4);
            // The check for late commands has run when this is answered.
            controller.execute_admin(nvme::host::admin::keep_alive()).await.unwrap();
            assert_eq!(controller.lost(), None, "after {answered} answers");
        }
    });
}
