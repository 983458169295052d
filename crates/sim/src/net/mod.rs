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
//! Both pipes lie on the [`NetworkLink`] of an address, which may be cut in either direction. Each
//! may stall independently, as the links of a bundle do.

mod link;
mod pipe;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ::drive::{BufMut, Env, Segments};
use initiator::{Address, Network, Reader, Writer};

use self::link::{NetworkLink, Presence};
use self::pipe::{Pipe, carry};
use crate::world::{Owner, SimEnv, World};

pub use self::link::Way;

/// All lines, and the connections on them.
#[derive(Default)]
pub(crate) struct NetworkLinks {
    links: BTreeMap<Address, Rc<NetworkLink>>,
    /// In the order in which they were made.
    connections: BTreeMap<Address, Vec<Weak<Connection>>>,
}

/// The two pipes of a connection.
struct Connection {
    to_target: Rc<Pipe>,
    to_host: Rc<Pipe>,
}

/// One end of a connection. When both halves are dropped, it is closed.
pub(crate) struct Socket {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    world: Rc<World>,
    owner: Cell<Owner>,
    _link: Rc<Connection>,
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
        let link = self.world.links.borrow_mut().link(address);
        for way in [Way::ToTarget, Way::ToHost] {
            Env::sleep(self, Duration::from_nanos(link.delay(self))).await;
            while !link.is_open(way) {
                link.reopened(self, way).await;
            }
        }
        if link.presence.get() != Presence::Listener {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let connection = Rc::new(Connection {
            to_target: Pipe::new(link.clone(), Way::ToTarget),
            to_host: Pipe::new(link.clone(), Way::ToHost),
        });
        self.world.links.borrow_mut().note(address, &connection);
        let between = self.between_machines();
        Env::spawn(&between, carry(between.clone(), connection.to_target.clone(), connection.to_host.clone()));
        Env::spawn(&between, carry(between.clone(), connection.to_host.clone(), connection.to_target.clone()));
        let end = |incoming: &Rc<Pipe>, outgoing: &Rc<Pipe>| {
            let (incoming, outgoing) = (incoming.clone(), outgoing.clone());
            let (world, owner) = (self.world.clone(), Cell::new(Owner::NETWORK));
            Rc::new(Socket { incoming, outgoing, world, owner, _link: connection.clone() })
        };
        link.arrive(end(&connection.to_target, &connection.to_host));
        Ok(split(end(&connection.to_host, &connection.to_target), self))
    }
}

impl NetworkLinks {
    fn link(&mut self, address: &Address) -> Rc<NetworkLink> {
        self.links.entry(address.clone()).or_insert_with(NetworkLink::new).clone()
    }

    fn note(&mut self, address: &Address, connection: &Rc<Connection>) {
        let all = self.connections.entry(address.clone()).or_default();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(connection));
    }
}

/// An address with a listener. Dropping this ends listening.
pub(crate) struct Listener {
    env: SimEnv,
    link: Rc<NetworkLink>,
}

impl Listener {
    pub fn bind(env: &SimEnv, address: &Address) -> Listener {
        let link = env.world.links.borrow_mut().link(address);
        link.set_presence(Presence::Listener, Env::now(env));
        Listener { env: env.clone(), link }
    }

    pub async fn accept(&self) -> (SimReader, SimWriter) {
        split(self.link.accept().await, &self.env)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = self.env.world.has_vanished(self.env.owner);
        let presence = if gone { Presence::Nothing } else { Presence::Machine };
        self.link.set_presence(presence, Env::now(&self.env));
    }
}

/// The network of a world, for tests that inject faults. [`crate::Sim::network`] gives it.
pub struct SimNetwork {
    pub(crate) world: Rc<World>,
}

impl SimNetwork {
    fn link(&self, address: &Address) -> Rc<NetworkLink> {
        self.world.links.borrow_mut().link(address)
    }

    /// No bytes arrive in one direction any more, and no connection can be made. Lost data are sent
    /// again and again.
    pub fn cut(&self, address: &Address, way: Way) {
        self.link(address).set_cut(way, true, self.world.now());
    }

    /// Ends a cut.
    pub fn heal(&self, address: &Address, way: Way) {
        self.link(address).set_cut(way, false, self.world.now());
    }

    /// Ends all cuts.
    pub fn heal_all(&self, address: &Address) {
        [Way::ToTarget, Way::ToHost].into_iter().for_each(|way| self.heal(address, way));
    }

    /// The connections to an address with at least one end that is not closed, oldest first.
    pub fn connections(&self, address: &Address) -> Vec<SimConnection> {
        let links = self.world.links.borrow();
        let all = links.connections.get(address).into_iter().flatten().filter_map(Weak::upgrade);
        all.map(|connection| SimConnection { connection, world: self.world.clone() }).collect()
    }
}

/// A connection, for tests that inject faults.
pub struct SimConnection {
    connection: Rc<Connection>,
    world: Rc<World>,
}

impl SimConnection {
    fn pipe(&self, way: Way) -> &Pipe {
        match way {
            Way::ToTarget => &self.connection.to_target,
            Way::ToHost => &self.connection.to_host,
        }
    }

    /// No bytes arrive in one direction for this time; then all of them do.
    pub fn stall(&self, way: Way, duration: Duration) {
        self.pipe(way).stall(self.world.now() + duration.as_nanos() as u64);
    }

    /// Both ends find the connection reset. Bytes in flight do not arrive.
    pub fn reset(&self) {
        let keeps = self.world.rng.borrow_mut().chance(1, 2);
        for pipe in [&self.connection.to_target, &self.connection.to_host] {
            pipe.fail_sender(ErrorKind::ConnectionReset, true);
            pipe.fail_receiver(ErrorKind::ConnectionReset, keeps);
        }
    }

    /// The host's kernel gives the connection up. The target is not notified, and sent bytes still
    /// arrive.
    pub fn time_out(&self) {
        self.connection.to_target.fail_sender(ErrorKind::TimedOut, false);
        self.connection.to_host.fail_receiver(ErrorKind::TimedOut, true);
    }

    /// Bytes that have arrived in one direction.
    pub fn carried(&self, way: Way) -> u64 {
        self.pipe(way).carried.get()
    }
}
