//! A simulated target: a machine that serves its drives over NVMe/TCP.
//!
//! The protocol is that of `nvme::target`, as in Purlin's own target. The target keeps the promises
//! that a host may rely on, and no more:
//!
//! - It ends an association when it has not heard from the host for the keep alive time, and not
//!   before.
//! - It executes received commands to the end, also if the connection has ended meanwhile, and as
//!   late as its drives like.
//! - Overlapping changes are executed in the order of arrival, from any connection
//!   ([`drive::Order`], which Purlin's target has, too).
//! - A write with FUA is durable when it is answered, any other one after a flush.

mod command;
mod queue;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::drive::{Drive, Env, Nanos, Order, oneshot};
use initiator::Address;
use nvme::fabrics_data::DiscoveryEntry;
use nvme::target::{AccessState, Activity, Namespace, Past, Subsystem};
use nvme::{Access, Nqn};

use crate::drive::SimDrive;
use crate::net::Listener;
use crate::rng::Rng;
use crate::world::{Sim, SimEnv};

/// A host's use of the target: a controller.
pub(crate) struct Association {
    heard: Cell<Nanos>,
    /// Zero: the host may be silent forever.
    keep_alive: Cell<Duration>,
    is_ready: Cell<bool>,
    is_gone: Cell<bool>,
    /// I/O queues end when this changes.
    epoch: Cell<u64>,
    ending: RefCell<Vec<::drive::Sender<()>>>,
}

impl Association {
    /// Ends the I/O queues, and with `all` the admin queue too.
    fn end(&self, all: bool) {
        self.epoch.set(self.epoch.get() + 1);
        self.is_ready.set(false);
        self.is_gone.set(self.is_gone.get() || all);
        for ending in self.ending.take() {
            ending.send(());
        }
    }

    /// Returns at the next [`Association::end`].
    fn ended(&self) -> ::drive::Receiver<()> {
        let (sender, receiver) = oneshot();
        self.ending.borrow_mut().push(sender);
        receiver
    }
}

/// A drive of the target, as its commands use it.
#[derive(Clone)]
pub(crate) struct Slot {
    drive: SimDrive,
    order: Arc<Order>,
}

pub(crate) struct TargetState {
    env: SimEnv,
    subsystem: Subsystem,
    addresses: Vec<Address>,
    /// Index 0 is NSID 1.
    slots: RefCell<Vec<Slot>>,
    associations: RefCell<BTreeMap<u16, Rc<Association>>>,
    next_cntlid: Cell<u16>,
    is_up: Cell<bool>,
    keeps_order: Cell<bool>,
}

/// A target. A handle.
#[derive(Clone)]
pub struct Target {
    inner: Rc<TargetState>,
}

impl Target {
    /// A target with these drives, which have no other user, at `addresses` addresses of its own.
    /// It is switched on.
    pub fn new(sim: &Sim, name: &str, drives: &[SimDrive], addresses: usize) -> Target {
        let world = sim.env().world;
        let owner = world.add_target(drives.iter().map(SimDrive::index));
        let env = SimEnv { world, owner };
        let nqn = format!("nqn.2026-11.com.example:{name}").parse().expect("a name");
        let subsystem = Subsystem { nqn, serial: name.to_owned(), firmware: "sim".to_owned() };
        let address = |index| Address { host: format!("{name}-{index}"), port: initiator::DEFAULT_PORT };
        let slots = drives.iter().map(|drive| Slot { drive: drive.clone(), order: Order::new() });
        let inner = TargetState {
            env,
            subsystem,
            addresses: (0..addresses).map(address).collect(),
            slots: RefCell::new(slots.collect()),
            associations: RefCell::default(),
            next_cntlid: Cell::new(1),
            is_up: Cell::new(false),
            keeps_order: Cell::new(true),
        };
        let target = Target { inner: Rc::new(inner) };
        target.start();
        target
    }

    /// The addresses at which it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.inner.addresses
    }

    /// The name of its subsystem.
    pub fn subsystem(&self) -> &Nqn {
        &self.inner.subsystem.nqn
    }

    /// The number of a drive's namespace.
    pub fn nsid(&self, drive: &SimDrive) -> Option<u32> {
        let slots = self.inner.slots.borrow();
        let place = slots.iter().position(|slot| slot.drive.index() == drive.index());
        place.map(|place| place as u32 + 1)
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.inner.is_up.get()
    }

    /// Starts it, if it does not run.
    pub fn start(&self) {
        let TargetState { env, addresses, slots, is_up, .. } = &*self.inner;
        if is_up.replace(true) {
            return;
        }
        slots.borrow_mut().iter_mut().for_each(|slot| {
            slot.drive = slot.drive.reopen();
            slot.order = Order::new();
        });
        for address in addresses {
            let listener = Listener::bind(env, address);
            let (inner, accepting) = (self.inner.clone(), env.clone());
            Env::spawn(env, async move {
                loop {
                    let (reader, writer) = listener.accept().await;
                    queue::serve(&accepting, &inner, reader, writer);
                }
            });
        }
    }

    /// The power fails: connections end without a packet, and each drive's cache is lost in part.
    /// [`Target::start`] starts it again.
    pub fn power_cut(&self, rng: &mut Rng) {
        self.end(true);
        for slot in self.inner.slots.borrow().iter() {
            slot.drive.power_cut(rng);
        }
    }

    /// Its process is killed. The system closes the sockets; the drives complete their operations,
    /// and keep their caches.
    pub fn kill(&self) {
        self.end(false);
    }

    fn end(&self, vanishes: bool) {
        let TargetState { env, associations, is_up, .. } = &*self.inner;
        is_up.set(false);
        env.world.end_tasks(env.owner, vanishes);
        associations.borrow_mut().clear();
    }

    /// Whether overlapping changes are executed in order. They are, except in tests that show the
    /// purpose of the order.
    pub fn keep_order(&self, keeps: bool) {
        self.inner.keeps_order.set(keeps);
    }

    /// Hosts that have a controller.
    pub fn associations(&self) -> usize {
        self.inner.associations.borrow().len()
    }
}

impl nvme::target::SubsystemView for TargetState {
    fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let slots = self.slots.borrow();
        let info = slots.get((nsid as usize).checked_sub(1)?)?.drive.info();
        let mut uuid = [0x5E; 16];
        uuid[..4].copy_from_slice(&nsid.to_be_bytes());
        uuid[4..8].copy_from_slice(&self.env.owner.0.to_be_bytes());
        Some(Namespace {
            nsid,
            blocks: info.size_bytes / u64::from(info.sector_bytes),
            block_bytes: info.sector_bytes,
            optimal_write_bytes: info.sector_bytes,
            uuid,
            read_only: false,
            deallocated_reads_zeroes: false,
            thin_blocks: None,
        })
    }

    fn access(&self, nsid: u32) -> Option<AccessState> {
        let state = AccessState { state: Access::Optimized, count: 1 };
        (1..=self.slots.borrow().len() as u32).contains(&nsid).then_some(state)
    }

    fn reservations_persist(&self, _nsid: u32) -> bool {
        false
    }

    fn namespaces_above(&self, nsid: u32) -> Vec<u32> {
        (nsid + 1..=self.slots.borrow().len() as u32).collect()
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        (0, Vec::new())
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }

    fn past(&self) -> Past {
        Past::default()
    }
}
