//! Reservations of one namespace: NVMe Base 2.0, clause 8.19.
//!
//! Invariants of [`Reservations`]:
//! 1. Each host is registered at most once, under a key that is not 0. There are at most
//!    [`REGISTRANTS_MAX`] hosts.
//! 2. The holder of a reservation is a registrant. A reservation of all registrants has at least
//!    one.
//! 3. A refused request has changed nothing.

mod report;
mod request;

use std::collections::BTreeMap;

pub use request::{RegisterAction, ReservationRequest, Reserve};

use crate::Status;

/// A host identifier, HOSTID: the same on all controllers of a host.
pub type HostId = [u8; 16];

/// Maximum number of hosts registered with one namespace. Clusters have about ten. The saved state
/// of all namespaces of a group has to fit its catalog.
pub const REGISTRANTS_MAX: usize = 256;

/// RTYPE: Base 2.0, clause 7.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder may write.
    WriteExclusive = 1,
    /// Only the holder may read and write.
    ExclusiveAccess = 2,
    /// Only registrants may write.
    WriteExclusiveRegistrantsOnly = 3,
    /// Only registrants may read and write.
    ExclusiveAccessRegistrantsOnly = 4,
    /// As [`ReservationType::WriteExclusiveRegistrantsOnly`], but every registrant is a holder.
    WriteExclusiveAllRegistrants = 5,
    /// As [`ReservationType::ExclusiveAccessRegistrantsOnly`], but every registrant is a holder.
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationType {
    /// All of them.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    /// The type with this number. `None` if there is none.
    pub fn of(number: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether every registrant is a holder.
    pub fn is_of_all(self) -> bool {
        self as u8 >= 5
    }

    /// Whether registrants that are not holders have access.
    fn lets_registrants_in(self) -> bool {
        self as u8 >= 3
    }

    /// Whether the type excludes reads, too: types with even numbers do.
    fn excludes_reads(self) -> bool {
        (self as u8).is_multiple_of(2)
    }
}

/// The access of a host to a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// Commands of the read group: Read, Compare, Verify (Base 2.0, clause 8.19, "Command Behavior
    /// in the Presence of a Reservation").
    pub reads: bool,
    /// Commands of the write group: Write, Write Zeroes, Dataset Management, Copy, and Flush.
    pub writes: bool,
}

impl Permit {
    /// Full access.
    pub const ALL: Permit = Permit { reads: true, writes: true };
}

/// RNLPT, the type of a reservation notification: Base 2.0, clause 8.19.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Notice {
    /// Another host removed the registration.
    RegistrationPreempted = 1,
    /// The reservation was released, and the host is still registered.
    ReservationReleased = 2,
    /// Another host cleared the reservation and all registrations.
    ReservationPreempted = 3,
}

/// The registrants of a namespace, and its reservation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservations {
    /// Keys, by host.
    registrants: BTreeMap<HostId, u64>,
    held: Option<Held>,
    /// PTPL: Persist Through Power Loss.
    persists: bool,
    /// GEN.
    generation: u32,
}

/// A reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The type.
    pub kind: ReservationType,
    /// The holder; `None` if all registrants are.
    pub holder: Option<HostId>,
}

impl Reservations {
    /// Restores the saved state of a namespace with persistence. `None` if it violates an
    /// invariant.
    pub fn restore(registrants: BTreeMap<HostId, u64>, held: Option<Held>, generation: u32) -> Option<Reservations> {
        let restored = Reservations { registrants, held, persists: true, generation };
        restored.is_sound().then_some(restored)
    }

    fn is_sound(&self) -> bool {
        let holds = |Held { kind, holder }: Held| match holder {
            Some(host) => !kind.is_of_all() && self.registrants.contains_key(&host),
            None => kind.is_of_all() && !self.registrants.is_empty(),
        };
        let keys = self.registrants.values().all(|key| *key != 0);
        keys && self.registrants.len() <= REGISTRANTS_MAX && self.held.is_none_or(holds)
    }

    /// Keys of the registered hosts.
    pub fn registrants(&self) -> &BTreeMap<HostId, u64> {
        &self.registrants
    }

    /// The reservation, if there is one.
    pub fn held(&self) -> Option<Held> {
        self.held
    }

    /// PTPL: whether registrations and the reservation survive a power loss.
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// GEN: number of changes of registrations, modulo 2^32.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Sets the feature Reservation Persistence.
    pub fn set_persistence(&mut self, persists: bool) {
        self.persists = persists;
    }

    /// The state after a power loss.
    pub fn after_power_loss(&self) -> Reservations {
        if self.persists { self.clone() } else { Reservations::default() }
    }

    /// The access of `host`.
    pub fn permit(&self, host: &HostId) -> Permit {
        let Some(Held { kind, holder }) = self.held else { return Permit::ALL };
        let is_in = holder == Some(*host) || (kind.lets_registrants_in() && self.registrants.contains_key(host));
        if is_in { Permit::ALL } else { Permit { reads: !kind.excludes_reads(), writes: false } }
    }

    fn holds(&self, host: &HostId) -> bool {
        self.held.is_some_and(|held| match held.holder {
            Some(holder) => holder == *host,
            None => self.registrants.contains_key(host),
        })
    }

    /// Executes a request of `host`. Returns the hosts to notify, with the notifications.
    ///
    /// # Errors
    /// The status for the host. Nothing is changed then.
    pub fn apply(&mut self, host: &HostId, request: &ReservationRequest) -> Result<Vec<(HostId, Notice)>, Status> {
        // "A Host Identifier of 0h": such hosts could not be told apart.
        if *host == [0; 16] {
            return Err(Status::INVALID_FIELD);
        }
        let told = match *request {
            ReservationRequest::Register { action, current, persistence } => {
                let told = self.register(host, action, current)?;
                self.persists = persistence.unwrap_or(self.persists);
                told
            }
            ReservationRequest::Acquire { kind, key } => {
                self.check_key(host, key)?;
                self.acquire(host, kind)?
            }
            ReservationRequest::Preempt { kind, key, preempted, .. } => {
                self.check_key(host, key)?;
                self.preempt(host, kind, preempted)?
            }
            ReservationRequest::Release { kind, key } => {
                self.check_key(host, key)?;
                self.release(host, kind)?
            }
            ReservationRequest::Clear { key } => {
                self.check_key(host, key)?;
                self.held = None;
                let cleared = std::mem::take(&mut self.registrants);
                others(cleared.into_keys(), host, Notice::ReservationPreempted)
            }
        };
        // Acquire and Release do not count.
        if !matches!(request, ReservationRequest::Acquire { .. } | ReservationRequest::Release { .. }) {
            self.generation = self.generation.wrapping_add(1);
        }
        debug_assert!(self.is_sound());
        Ok(told)
    }

    /// A request conflicts if its host is registered under another key, or not at all.
    fn check_key(&self, host: &HostId, key: u64) -> Result<(), Status> {
        if self.registrants.get(host) == Some(&key) { Ok(()) } else { Err(Status::RESERVATION_CONFLICT) }
    }

    /// Clauses 8.19.2 and 8.19.4. `current` is the key that the host claims to have; `None` if it
    /// is not checked.
    fn register(
        &mut self,
        host: &HostId,
        action: RegisterAction,
        current: Option<u64>,
    ) -> Result<Vec<(HostId, Notice)>, Status> {
        let known = self.registrants.get(host).copied();
        let is_right = known.is_some() && current.is_none_or(|current| known == Some(current));
        match action {
            // A preempting host uses 0 for "all".
            RegisterAction::Register(0) | RegisterAction::Replace(0) => Err(Status::INVALID_FIELD),
            RegisterAction::Register(key) => match known {
                Some(known) if known != key => Err(Status::RESERVATION_CONFLICT),
                _ => self.enter(host, key),
            },
            // A host that ignores the existing key does not need to be registered.
            RegisterAction::Replace(key) if is_right || (known.is_none() && current.is_none()) => self.enter(host, key),
            RegisterAction::Unregister if is_right => Ok(self.remove(host)),
            RegisterAction::Replace(_) | RegisterAction::Unregister => Err(Status::RESERVATION_CONFLICT),
        }
    }

    fn enter(&mut self, host: &HostId, key: u64) -> Result<Vec<(HostId, Notice)>, Status> {
        if self.registrants.len() == REGISTRANTS_MAX && !self.registrants.contains_key(host) {
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.insert(*host, key);
        Ok(Vec::new())
    }

    /// Removes a registrant and, if no holder is left, the reservation.
    fn remove(&mut self, host: &HostId) -> Vec<(HostId, Notice)> {
        let held = self.holds(host).then_some(self.held).flatten();
        self.registrants.remove(host);
        let Some(Held { kind, holder }) = held else { return Vec::new() };
        if holder.is_none() && !self.registrants.is_empty() {
            return Vec::new();
        }
        self.held = None;
        // Registrants are notified only if the type gave them access.
        if kind.lets_registrants_in() { self.released(host) } else { Vec::new() }
    }

    fn released(&self, by: &HostId) -> Vec<(HostId, Notice)> {
        others(self.registrants.keys().copied(), by, Notice::ReservationReleased)
    }

    /// Clause 8.19.5.
    fn acquire(&mut self, host: &HostId, kind: ReservationType) -> Result<Vec<(HostId, Notice)>, Status> {
        match self.held {
            None => self.hold(host, kind),
            Some(held) if self.holds(host) && held.kind == kind => {}
            Some(_) => return Err(Status::RESERVATION_CONFLICT),
        }
        Ok(Vec::new())
    }

    fn hold(&mut self, host: &HostId, kind: ReservationType) {
        self.held = Some(Held { kind, holder: (!kind.is_of_all()).then_some(*host) });
    }

    /// Clause 8.19.7. The host is registered.
    fn preempt(
        &mut self,
        host: &HostId,
        kind: ReservationType,
        preempted: u64,
    ) -> Result<Vec<(HostId, Notice)>, Status> {
        let replaced = match self.held {
            Some(Held { holder: None, .. }) => preempted == 0,
            Some(Held { holder: Some(holder), .. }) if self.registrants.get(&holder) == Some(&preempted) => true,
            Some(_) if preempted == 0 => return Err(Status::INVALID_FIELD),
            _ => false,
        };
        let is_meant = |(_, key): &(&HostId, &u64)| preempted == 0 || **key == preempted;
        let meant = self.registrants.iter().filter(is_meant).map(|(other, _)| *other);
        if !replaced {
            let meant: Vec<HostId> = meant.collect();
            // With 0 there is no reservation, and no host has that key.
            if meant.is_empty() || preempted == 0 {
                return Err(Status::RESERVATION_CONFLICT);
            }
            for gone in &meant {
                // This ends a reservation only if all registrants held it, and then no host is left
                // to notify.
                let told = self.remove(gone);
                debug_assert!(told.is_empty());
            }
            return Ok(others(meant.into_iter(), host, Notice::RegistrationPreempted));
        }
        let gone: Vec<HostId> = meant.filter(|other| other != host).collect();
        for other in &gone {
            self.registrants.remove(other);
        }
        let was = self.held.map(|held| held.kind);
        self.hold(host, kind);
        let mut told = others(gone.into_iter(), host, Notice::RegistrationPreempted);
        if was != Some(kind) {
            told.extend(self.released(host));
        }
        Ok(told)
    }

    /// Clause 8.19.6. A registrant that holds nothing releases nothing.
    fn release(&mut self, host: &HostId, kind: Option<ReservationType>) -> Result<Vec<(HostId, Notice)>, Status> {
        let Some(held) = self.held.filter(|_| self.holds(host)) else { return Ok(Vec::new()) };
        if kind != Some(held.kind) {
            return Err(Status::INVALID_FIELD);
        }
        self.held = None;
        Ok(if held.kind.lets_registrants_in() { self.released(host) } else { Vec::new() })
    }
}

fn others(hosts: impl Iterator<Item = HostId>, but: &HostId, notice: Notice) -> Vec<(HostId, Notice)> {
    hosts.filter(|host| host != but).map(|host| (host, notice)).collect()
}
