//! The rules of reservations, written a second time: Base 2.0, clause 8.19, sentence by sentence,
//! with lists instead of cases.

use nvme::Status;
use nvme::target::{RegisterAction, ReservationRequest};

/// One namespace. Hosts are numbers.
#[derive(Debug, Default)]
pub struct Model {
    registered: Vec<(u8, u64)>,
    /// RTYPE, 0 without a reservation.
    kind: u8,
    /// All who hold it.
    holders: Vec<u8>,
    persists: bool,
    generation: u32,
}

const REGISTRATION_PREEMPTED: u8 = 1;
const RELEASED: u8 = 2;
const PREEMPTED: u8 = 3;

/// By RTYPE: may a registrant who holds nothing read and write, and may a stranger?
const TABLE: [[(bool, bool); 2]; 7] = [
    [(true, true), (true, true)],
    [(true, false), (true, false)],
    [(false, false), (false, false)],
    [(true, true), (true, false)],
    [(true, true), (false, false)],
    [(true, true), (true, false)],
    [(true, true), (false, false)],
];

impl Model {
    fn key(&self, host: u8) -> Option<u64> {
        self.registered.iter().find(|(known, _)| *known == host).map(|(_, key)| *key)
    }

    pub fn access(&self, host: u8) -> (bool, bool) {
        if self.holders.contains(&host) {
            return (true, true);
        }
        TABLE[usize::from(self.kind)][usize::from(self.key(host).is_none())]
    }

    /// Registrants that are there and others than `by`.
    fn rest(&self, by: u8, notice: u8) -> Vec<(u8, u8)> {
        self.registered.iter().map(|(host, _)| (*host, notice)).filter(|(host, _)| *host != by).collect()
    }

    /// Drops those who are not registered any more from the holders; and adds those who are where
    /// all hold it.
    fn settle(&mut self) {
        if self.kind >= 5 {
            self.holders = self.registered.iter().map(|(host, _)| *host).collect();
        }
        self.holders.retain(|holder| self.registered.iter().any(|(host, _)| host == holder));
        if self.holders.is_empty() {
            self.kind = 0;
        }
    }

    fn reserve(&mut self, host: u8, kind: u8) {
        (self.kind, self.holders) = (kind, vec![host]);
        self.settle();
    }

    /// Executes a request. Gives the hosts that are notified, in their order, with the notices.
    pub fn ask(&mut self, host: u8, request: &ReservationRequest) -> Result<Vec<(u8, u8)>, Status> {
        let mut told = match *request {
            ReservationRequest::Register { action, current, persistence } => {
                self.register(host, action, current, persistence)?
            }
            ReservationRequest::Acquire { kind, key } => self.acquire(host, kind as u8, key)?,
            ReservationRequest::Preempt { kind, key, preempted, .. } => {
                self.preempt(host, kind as u8, key, preempted)?
            }
            ReservationRequest::Release { kind, key } => self.release(host, kind.map(|kind| kind as u8), key)?,
            ReservationRequest::Clear { key } => self.clear(host, key)?,
        };
        told.sort_unstable();
        Ok(told)
    }

    fn register(
        &mut self,
        host: u8,
        action: RegisterAction,
        current: Option<u64>,
        persistence: Option<bool>,
    ) -> Result<Vec<(u8, u8)>, Status> {
        let key = match action {
            RegisterAction::Register(key) | RegisterAction::Replace(key) => key,
            RegisterAction::Unregister => u64::MAX,
        };
        if key == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let is_allowed = match (action, self.key(host), current) {
            (RegisterAction::Register(_), None, _) => true,
            (RegisterAction::Register(new), Some(own), _) => new == own,
            (RegisterAction::Replace(_), _, None) => true,
            (RegisterAction::Unregister, own, None) => own.is_some(),
            (_, own, Some(current)) => own == Some(current),
        };
        if !is_allowed {
            return Err(Status::RESERVATION_CONFLICT);
        }
        let mut told = Vec::new();
        self.registered.retain(|(known, _)| *known != host);
        let was = self.kind;
        if action == RegisterAction::Unregister {
            self.settle();
            if self.kind == 0 && matches!(was, 3 | 4) {
                told = self.rest(host, RELEASED);
            }
        } else {
            self.registered.push((host, key));
            self.settle();
        }
        self.persists = persistence.unwrap_or(self.persists);
        self.generation += 1;
        Ok(told)
    }

    fn acquire(&mut self, host: u8, kind: u8, key: u64) -> Result<Vec<(u8, u8)>, Status> {
        let has_it = self.holders.contains(&host) && self.kind == kind;
        if self.key(host) != Some(key) || !(self.kind == 0 || has_it) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        self.reserve(host, kind);
        Ok(Vec::new())
    }

    fn preempt(&mut self, host: u8, kind: u8, key: u64, preempted: u64) -> Result<Vec<(u8, u8)>, Status> {
        if self.key(host) != Some(key) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        let holders_keys: Vec<u64> = self.holders.iter().filter_map(|holder| self.key(*holder)).collect();
        let takes = match self.kind {
            0 => false,
            5 | 6 => preempted == 0,
            _ => holders_keys == [preempted],
        };
        if !takes && preempted == 0 && (1..5).contains(&self.kind) {
            return Err(Status::INVALID_FIELD);
        }
        let is_hit = |known: &(u8, u64)| {
            let by_key = known.1 == preempted || (takes && preempted == 0);
            by_key && !(takes && known.0 == host)
        };
        let hit: Vec<u8> = self.registered.iter().filter(|known| is_hit(known)).map(|known| known.0).collect();
        if !takes && hit.is_empty() {
            return Err(Status::RESERVATION_CONFLICT);
        }
        let mut told = Vec::new();
        self.registered.retain(|(known, _)| !hit.contains(known));
        let was = self.kind;
        if takes {
            self.reserve(host, kind);
            if was != kind {
                told = self.rest(host, RELEASED);
            }
        } else {
            self.settle();
        }
        told.extend(hit.into_iter().filter(|gone| *gone != host).map(|gone| (gone, REGISTRATION_PREEMPTED)));
        self.generation += 1;
        Ok(told)
    }

    fn release(&mut self, host: u8, kind: Option<u8>, key: u64) -> Result<Vec<(u8, u8)>, Status> {
        if self.key(host) != Some(key) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        if !self.holders.contains(&host) {
            return Ok(Vec::new());
        }
        if kind != Some(self.kind) {
            return Err(Status::INVALID_FIELD);
        }
        let told = if self.kind >= 3 { self.rest(host, RELEASED) } else { Vec::new() };
        (self.kind, self.holders) = (0, Vec::new());
        Ok(told)
    }

    fn clear(&mut self, host: u8, key: u64) -> Result<Vec<(u8, u8)>, Status> {
        if self.key(host) != Some(key) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        let told = self.rest(host, PREEMPTED);
        (self.kind, self.holders, self.registered) = (0, Vec::new(), Vec::new());
        self.generation += 1;
        Ok(told)
    }

    /// The bytes of Reservation Report.
    pub fn report(&self) -> Vec<u8> {
        let mut bytes = self.generation.to_le_bytes().to_vec();
        bytes.extend([self.kind, self.registered.len() as u8, 0, 0, 0, u8::from(self.persists)]);
        bytes.resize(64, 0);
        let mut sorted = self.registered.clone();
        sorted.sort_unstable();
        for (host, key) in sorted {
            bytes.extend([0xFF, 0xFF, u8::from(self.holders.contains(&host)), 0, 0, 0, 0, 0]);
            bytes.extend(key.to_le_bytes());
            bytes.extend([host; 16]);
            bytes.resize(bytes.len() + 32, 0);
        }
        bytes
    }
}
