//! An absent target is not retried all the time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::proxy::Proxy;
use crate::common::{MIB, Target, address, buf, on_tokio, options};
use drive::{BufMut, Nanos, Tasks};
use initiator::tokio::TokioNetwork;
use initiator::{Address, Namespace, Network, Options, Selection};

/// Sockets of tokio that record when a connection was attempted.
#[derive(Clone)]
struct Counted {
    network: TokioNetwork,
    tried: Rc<RefCell<Vec<Instant>>>,
    /// Connections go to a port without a listener.
    is_refused: Rc<Cell<bool>>,
    closed: SocketAddr,
}

impl Counted {
    fn new() -> Counted {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Counted { network: TokioNetwork::new(), tried: Rc::default(), is_refused: Rc::default(), closed }
    }

    /// Waits for the given number of attempts.
    async fn tried(&self, count: usize) -> Vec<Instant> {
        while self.tried.borrow().len() < count {
            self.network.sleep(Duration::from_millis(1)).await;
        }
        self.tried.borrow()[..count].to_vec()
    }
}

impl Tasks for Counted {
    fn now(&self) -> Nanos {
        self.network.now()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        self.network.sleep(duration)
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

impl Network for Counted {
    type Reader = <TokioNetwork as Network>::Reader;
    type Writer = <TokioNetwork as Network>::Writer;

    async fn connect(&self, to: &Address) -> io::Result<(Self::Reader, Self::Writer)> {
        self.tried.borrow_mut().push(Instant::now());
        let closed = address(self.closed);
        self.network.connect(if self.is_refused.get() { &closed } else { to }).await
    }
}

const DELAY: Duration = Duration::from_millis(300);
/// The third delay, and the upper limit: the fourth would be twice as long.
const DELAY_MAX: Duration = Duration::from_millis(1200);

/// Tries again and again to connect to a target that `set` makes absent, and then again after it
/// returned and vanished once more.
fn asked_at_growing_intervals(set: impl Fn(&Proxy, &Counted, bool)) {
    on_tokio(async {
        let (target, _volume, _) = Target::disk(MIB);
        let proxy = Proxy::to(target.address);
        let network = Counted::new();
        let options = Options { reconnect_delay: DELAY, reconnect_delay_max: DELAY_MAX, ..options() };
        let disk = Namespace::connect(&network, &[address(proxy.address)], Selection::Only, options).await.unwrap();
        let mut begun = Vec::new();
        for round in 0..2 {
            network.tried.borrow_mut().clear();
            set(&proxy, &network, true);
            let gone = Instant::now();
            proxy.cut();
            let tried = network.tried(5).await;
            begun.push(tried[0] - gone);
            let gaps: Vec<Duration> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // A sleep is never too short. How much too long it is depends on the machine.
            let least = [DELAY, 2 * DELAY, 4 * DELAY, DELAY_MAX];
            assert!(gaps.iter().zip(least).all(|(gap, least)| *gap >= least), "round {round}: {gaps:?}");
            assert!(gaps[0] < DELAY_MAX && gaps[3] < 2 * DELAY_MAX, "round {round}: {gaps:?}");
            set(&proxy, &network, false);
            // The next attempt finds the target, and the delay begins anew.
            disk.read(0, buf(4096)).await.unwrap();
            assert_eq!(disk.paths()[0].connects, round + 2);
        }
        assert!(begun.iter().any(|begun| *begun < DELAY), "at once, not after {begun:?}");
    });
}

#[test]
fn a_target_that_refuses_connections_is_asked_at_growing_intervals() {
    asked_at_growing_intervals(|_, network, is_gone| network.is_refused.set(is_gone));
}

#[test]
fn a_target_that_accepts_connections_and_closes_them_is_asked_at_growing_intervals() {
    asked_at_growing_intervals(|proxy, _, is_gone| proxy.refuse(is_gone));
}
