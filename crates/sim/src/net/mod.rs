//! A simulated network: TCP between hosts and targets, in virtual time.
//!
//! It keeps the promise of TCP: within a connection, bytes arrive in order and unchanged, or not at
//! all. It decides everything else freely: how bytes are cut, how long they take, and whether they
//! arrive at all. In particular, bytes sent through a connection that its host has given up are
//! still in flight, and arrive.
//!
//! ```text
//! host ── SimWriter ──> Pipe (to the target) ──> SimReader ── target
//!      <─ SimReader ─── Pipe (to the host)   <── SimWriter ──
//! ```
//! Both pipes lie on the [`Line`] of an address, which may be cut in either direction. Each may
//! stall independently, as the links of a bundle do.

mod line;
mod pipe;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ::drive::{BufMut, Env, Segments};
use initiator::{Address, Network, Reader, Writer};

use self::line::{Line, Presence};
use self::pipe::{Pipe, carry};
use crate::world::{Owner, SimEnv, World};

pub use self::line::Way;

/// All lines, and the connections on them.
#[derive(Default)]
pub(crate) struct Lines {
    lines: BTreeMap<Address, Rc<Line>>,
    /// In the order in which they were made.
    connections: BTreeMap<Address, Vec<Weak<Link>>>,
}

/// The two pipes of a connection.
struct Link {
    to_target: Rc<Pipe>,
    to_host: Rc<Pipe>,
}

/// One end of a connection. When both halves are dropped, it is closed.
pub(crate) struct Socket {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    world: Rc<World>,
    owner: Cell<Owner>,
    _link: Rc<Link>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.world.has_vanished(self.owner.get()) {
            self.outgoing.vanish();
        } else {
            // A socket that is closed with unread data sends a reset: RFC 9293, clause 3.6.1.
            self.outgoing.close(self.incoming.is_read_up());
        }
        self.incoming.deafen();
    }
}

/// The receiving half of a connection.
pub struct SimReader(Rc<Socket>);

/// The sending half of a connection.
pub struct SimWriter(Rc<Socket>);

impl Reader for SimReader {
    async fn recv(&mut self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        let received = poll_fn(|context| self.0.incoming.poll_recv(context, &mut buf[from..])).await;
        (received.map_err(io::Error::from), buf)
    }
}

impl Writer for SimWriter {
    async fn send(&mut self, data: Segments) -> io::Result<()> {
        for segment in data {
            let mut at = 0;
            while at < segment.len() {
                at += poll_fn(|context| self.0.outgoing.poll_send(context, &segment[at..])).await?;
            }
        }
        Ok(())
    }
}

/// Splits an end into its halves. It belongs to `env` from now on.
fn split(socket: Rc<Socket>, env: &SimEnv) -> (SimReader, SimWriter) {
    socket.owner.set(env.owner);
    (SimReader(socket.clone()), SimWriter(socket))
}

impl Network for SimEnv {
    type Reader = SimReader;
    type Writer = SimWriter;

    async fn connect(&self, address: &Address) -> io::Result<(SimReader, SimWriter)> {
        let line = self.world.lines.borrow_mut().line(address);
        for way in [Way::ToTarget, Way::ToHost] {
            Env::sleep(self, Duration::from_nanos(line.delay(self))).await;
            while !line.is_open(way) {
                line.reopened(self, way).await;
            }
        }
        if line.presence.get() != Presence::Listener {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let link = Rc::new(Link {
            to_target: Pipe::new(line.clone(), Way::ToTarget),
            to_host: Pipe::new(line.clone(), Way::ToHost),
        });
        self.world.lines.borrow_mut().note(address, &link);
        let between = self.between_machines();
        Env::spawn(&between, carry(between.clone(), link.to_target.clone(), link.to_host.clone()));
        Env::spawn(&between, carry(between.clone(), link.to_host.clone(), link.to_target.clone()));
        let end = |incoming: &Rc<Pipe>, outgoing: &Rc<Pipe>| {
            let (incoming, outgoing) = (incoming.clone(), outgoing.clone());
            let (world, owner) = (self.world.clone(), Cell::new(Owner::NETWORK));
            Rc::new(Socket { incoming, outgoing, world, owner, _link: link.clone() })
        };
        line.arrive(end(&link.to_target, &link.to_host));
        Ok(split(end(&link.to_host, &link.to_target), self))
    }
}

impl Lines {
    fn line(&mut self, address: &Address) -> Rc<Line> {
        self.lines.entry(address.clone()).or_insert_with(Line::new).clone()
    }

    fn note(&mut self, address: &Address, link: &Rc<Link>) {
        let all = self.connections.entry(address.clone()).or_default();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(link));
    }
}

/// An address with a listener. Dropping this ends listening.
pub(crate) struct Listener {
    env: SimEnv,
    line: Rc<Line>,
}

impl Listener {
    pub fn bind(env: &SimEnv, address: &Address) -> Listener {
        let line = env.world.lines.borrow_mut().line(address);
        line.set_presence(Presence::Listener, Env::now(env));
        Listener { env: env.clone(), line }
    }

    pub async fn accept(&self) -> (SimReader, SimWriter) {
        split(self.line.accept().await, &self.env)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = self.env.world.has_vanished(self.env.owner);
        let presence = if gone { Presence::Nothing } else { Presence::Machine };
        self.line.set_presence(presence, Env::now(&self.env));
    }
}

/// The network of a world, for tests that inject faults. [`crate::Sim::network`] gives it.
pub struct SimNetwork {
    pub(crate) world: Rc<World>,
}

impl SimNetwork {
    fn line(&self, address: &Address) -> Rc<Line> {
        self.world.lines.borrow_mut().line(address)
    }

    /// No bytes arrive in one direction any more, and no connection can be made. Lost data are sent
    /// again and again.
    pub fn cut(&self, address: &Address, way: Way) {
        self.line(address).set_cut(way, true, self.world.now());
    }

    /// Ends a cut.
    pub fn heal(&self, address: &Address, way: Way) {
        self.line(address).set_cut(way, false, self.world.now());
    }

    /// Ends all cuts.
    pub fn heal_all(&self, address: &Address) {
        [Way::ToTarget, Way::ToHost].into_iter().for_each(|way| self.heal(address, way));
    }

    /// The connections to an address with at least one end that is not closed, oldest first.
    pub fn connections(&self, address: &Address) -> Vec<SimConnection> {
        let lines = self.world.lines.borrow();
        let all = lines.connections.get(address).into_iter().flatten().filter_map(Weak::upgrade);
        all.map(|link| SimConnection { link, world: self.world.clone() }).collect()
    }
}

/// A connection, for tests that inject faults.
pub struct SimConnection {
    link: Rc<Link>,
    world: Rc<World>,
}

impl SimConnection {
    fn pipe(&self, way: Way) -> &Pipe {
        match way {
            Way::ToTarget => &self.link.to_target,
            Way::ToHost => &self.link.to_host,
        }
    }

    /// No bytes arrive in one direction for this time; then all of them do.
    pub fn stall(&self, way: Way, duration: Duration) {
        self.pipe(way).stall(self.world.now() + duration.as_nanos() as u64);
    }

    /// Both ends find the connection reset. Bytes in flight do not arrive.
    pub fn reset(&self) {
        let keeps = self.world.rng.borrow_mut().chance(1, 2);
        for pipe in [&self.link.to_target, &self.link.to_host] {
            pipe.fail_sender(ErrorKind::ConnectionReset, true);
            pipe.fail_receiver(ErrorKind::ConnectionReset, keeps);
        }
    }

    /// The host's kernel gives the connection up. The target is not notified, and sent bytes still
    /// arrive.
    pub fn time_out(&self) {
        self.link.to_target.fail_sender(ErrorKind::TimedOut, false);
        self.link.to_host.fail_receiver(ErrorKind::TimedOut, true);
    }

    /// Bytes that have arrived in one direction.
    pub fn carried(&self, way: Way) -> u64 {
        self.pipe(way).carried.get()
    }
}
