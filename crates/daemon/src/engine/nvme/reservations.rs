//! Reservations of NVMe hosts: one state for each volume at all addresses, and its record in the
//! catalogue.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use api::{Registrant, Reservation, ReservationKind};
use export::{Keep, SharedNamespace};
use format::{HeldRecord, RegistrantRecord, ReservationRecord};
use nvme::target::{Held, HostId, ReservationType, Reservations};

use crate::engine::Group;
use crate::http::Answer;

impl Group {
    /// The state that all namespaces of a volume share. It exists as long as the group runs, or
    /// until the volume is deleted.
    pub(crate) async fn shared_namespace(self: &Arc<Self>, volume: u64) -> Answer<Arc<SharedNamespace>> {
        let known = |group: &Group| group.namespaces().get(&volume).cloned();
        if let Some(known) = known(self) {
            return Ok(known);
        }
        let saved = self.catalogue().await?.reservations.into_iter().find(|record| record.volume == volume);
        // The catalogue accepts only valid reservations.
        let saved = saved.as_ref().and_then(restored).unwrap_or_default();
        let shared = SharedNamespace::new(saved, self.keeps_reservations(volume));
        Ok(self.namespaces().entry(volume).or_insert(shared).clone())
    }

    /// Saves a volume's reservations in the catalogue.
    fn keeps_reservations(self: &Arc<Self>, volume: u64) -> Keep {
        let group = Arc::downgrade(self);
        Box::new(move |saved: Option<Reservations>| {
            let group = group.clone();
            Box::pin(async move {
                let group = group.upgrade().ok_or("the group is being stopped")?;
                let record = saved.map(|saved| recorded(volume, &saved));
                let changed = group.change_catalogue(|catalogue| {
                    catalogue.reservations.retain(|known| known.volume != volume);
                    // A volume that was deleted meanwhile has none.
                    if catalogue.volumes.iter().any(|known| known.id == volume) {
                        catalogue.reservations.extend(record);
                    }
                });
                changed.await.map(|_| ()).map_err(|error| error.message)
            })
        })
    }

    /// The registrations and the reservation of a volume; `None` without registrants.
    pub(crate) fn reservation(&self, volume: u64) -> Option<Reservation> {
        let shared = self.namespaces().get(&volume).cloned()?;
        let reservations = shared.reservations();
        let held = reservations.held();
        let registrant = |(host, key): (&HostId, &u64)| Registrant {
            host_id: digits(host),
            host: shared.name_of(host).map(|name| name.to_string()),
            key: format!("{key:#x}"),
            is_holder: held.is_some_and(|held| held.holder.is_none_or(|holder| holder == *host)),
        };
        let registrants: Vec<Registrant> = reservations.registrants().iter().map(registrant).collect();
        let shown =
            Reservation { kind: held.map(|held| shown(held.kind)), persists: reservations.persists(), registrants };
        (!shown.registrants.is_empty()).then_some(shown)
    }

    /// Drops the shared state of the namespaces of a deleted volume.
    pub(crate) fn forget_namespace(&self, volume: u64) {
        self.namespaces().remove(&volume);
    }

    fn namespaces(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<SharedNamespace>>> {
        // No code panics while it holds the lock.
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shown(kind: ReservationType) -> ReservationKind {
    match kind {
        ReservationType::WriteExclusive => ReservationKind::WriteExclusive,
        ReservationType::ExclusiveAccess => ReservationKind::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly => ReservationKind::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly => ReservationKind::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants => ReservationKind::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants => ReservationKind::ExclusiveAccessAllRegistrants,
    }
}

fn digits(host: &HostId) -> String {
    host.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn host(digits: &str) -> Option<HostId> {
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

pub(crate) fn recorded(volume: u64, saved: &Reservations) -> ReservationRecord {
    let registrants = saved.registrants().iter();
    ReservationRecord {
        volume,
        generation: saved.generation(),
        registrants: registrants.map(|(host, key)| RegistrantRecord { host: digits(host), key: *key }).collect(),
        held: saved.held().map(|held| HeldRecord { kind: held.kind as u8, holder: held.holder.as_ref().map(digits) }),
    }
}

pub(crate) fn restored(record: &ReservationRecord) -> Option<Reservations> {
    let registrants = record.registrants.iter().map(|registrant| Some((host(&registrant.host)?, registrant.key)));
    let held = match &record.held {
        None => None,
        Some(HeldRecord { kind, holder }) => {
            let holder = holder.as_deref().map(|holder| host(holder).ok_or(()));
            Some(Held { kind: ReservationType::of(*kind)?, holder: holder.transpose().ok()? })
        }
    };
    Reservations::restore(registrants.collect::<Option<_>>()?, held, record.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_what_is_restored() {
        let registrants = BTreeMap::from([([0xAB; 16], 7), ([0; 16].map(|_: u8| 1), u64::MAX)]);
        let of = |kind: ReservationType| Held { kind, holder: (!kind.is_of_all()).then_some([0xAB; 16]) };
        for held in ReservationType::ALL.map(|kind| Some(of(kind))).into_iter().chain([None]) {
            let saved = Reservations::restore(registrants.clone(), held, 9).unwrap();
            let record = recorded(3, &saved);
            assert_eq!((record.volume, record.registrants[1].host.as_str()), (3, "ab".repeat(16).as_str()));
            assert_eq!(restored(&record), Some(saved));
        }
    }
}
