//! Reservations of NVMe hosts that persist across restarts: version 2 of the document.

use serde::{Deserialize, Serialize};

use super::{Catalogue, CatalogueError};

/// Most hosts that are registered with one volume.
const REGISTRANTS_MAX: usize = 256;

/// Hosts that are registered with a volume (an NVMe namespace), and the reservation that one or all
/// of them hold. The field names are those of the JSON document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationRecord {
    /// Identity of the volume.
    pub volume: u64,
    /// Number of changes of the registrations, modulo 2^32.
    pub generation: u32,
    /// The registered hosts, in ascending order.
    pub registrants: Vec<RegistrantRecord>,
    /// The reservation, if there is one.
    pub held: Option<HeldRecord>,
}

/// A registered host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistrantRecord {
    /// Host identifier, 32 hexadecimal digits.
    pub host: String,
    /// Registration key, not 0.
    pub key: u64,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldRecord {
    /// Reservation type, 1 to 6 as NVMe numbers them.
    pub kind: u8,
    /// The host that holds it. None for types 5 and 6, which all registrants hold.
    pub holder: Option<String>,
}

impl ReservationRecord {
    /// The rule that the record breaks on its own, without regard to the rest of the catalogue.
    fn broken_rule(&self) -> Option<&'static str> {
        let is_host =
            |host: &str| host.len() == 32 && host.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let known = |host: &String| self.registrants.iter().any(|registrant| registrant.host == *host);
        if self.registrants.len() > REGISTRANTS_MAX {
            return Some("more than 256 hosts are registered");
        }
        if !self.registrants.iter().all(|registrant| is_host(&registrant.host) && registrant.key != 0) {
            return Some("a host without an identifier of 32 hexadecimal digits, or without a key");
        }
        if !self.registrants.is_sorted_by(|one, other| one.host < other.host) {
            return Some("the hosts are not in order, or one is there twice");
        }
        let Some(held) = &self.held else { return None };
        let is_sound = match (&held.holder, held.kind) {
            (Some(holder), 1..=4) => known(holder),
            (None, 5 | 6) => !self.registrants.is_empty(),
            _ => false,
        };
        (!is_sound).then_some("a type that there is not, or a holder that is not registered")
    }
}

impl Catalogue {
    pub(super) fn check_reservations(&self) -> Result<(), CatalogueError> {
        for (index, record) in self.reservations.iter().enumerate() {
            let volume = record.volume;
            let is_there = self.volumes.iter().any(|known| known.id == volume);
            let is_twice = self.reservations[..index].iter().any(|other| other.volume == volume);
            let reason = match record.broken_rule() {
                _ if !is_there => Some("there is no such volume"),
                _ if is_twice => Some("they are there twice"),
                reason => reason,
            };
            if let Some(reason) = reason {
                return Err(CatalogueError::Reservation { volume, reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ExtentRecord, VolumeKind, VolumeRecord};
    use super::*;

    fn host(digit: char) -> String {
        digit.to_string().repeat(32)
    }

    fn sample() -> Catalogue {
        let extents = vec![ExtentRecord { start_byte: 0, len_bytes: 4096 }];
        let volume = VolumeRecord {
            id: 1,
            name: "a".into(),
            kind: VolumeKind::Direct,
            size_bytes: 4096,
            created_unix_s: 0,
            extents,
            thin: crate::ThinVolumeRecord::default(),
            conversion: None,
        };
        let registrants = ['a', 'b'].map(|digit| RegistrantRecord { host: host(digit), key: 7 }).to_vec();
        let held = Some(HeldRecord { kind: 3, holder: Some(host('b')) });
        let reservations = vec![ReservationRecord { volume: 1, generation: 9, registrants, held }];
        Catalogue { next_id: 2, volumes: vec![volume], reservations, ..Catalogue::default() }
    }

    #[test]
    fn reservations_are_those_that_hosts_can_have_made() {
        assert_eq!(sample().check(4096), Ok(()));
        assert_eq!(sample().version(), 2, "older readers are not given them");
        type Damage = fn(&mut Catalogue);
        let all = |catalogue: &mut Catalogue, kind| {
            catalogue.reservations[0].held = Some(HeldRecord { kind, holder: None });
        };
        let mut good = sample();
        all(&mut good, 5);
        assert_eq!(good.check(4096), Ok(()));
        let damages: [Damage; 12] = [
            |c| c.reservations[0].volume = 2,
            |c| c.reservations.push(c.reservations[0].clone()),
            |c| c.reservations[0].registrants[0].key = 0,
            |c| c.reservations[0].registrants[0].host = host('A'),
            |c| c.reservations[0].registrants[0].host.truncate(31),
            |c| c.reservations[0].registrants.reverse(),
            |c| c.reservations[0].registrants[1].host = host('a'),
            |c| c.reservations[0].held.as_mut().unwrap().holder = Some(host('c')),
            |c| c.reservations[0].held.as_mut().unwrap().holder = None,
            |c| c.reservations[0].held.as_mut().unwrap().kind = 6,
            |c| c.reservations[0].held.as_mut().unwrap().kind = 0,
            |c| {
                c.reservations[0].registrants.clear();
                c.reservations[0].held = Some(HeldRecord { kind: 5, holder: None });
            },
        ];
        for (index, damage) in damages.into_iter().enumerate() {
            let mut damaged = sample();
            damage(&mut damaged);
            let refused = damaged.check(4096);
            assert!(matches!(refused, Err(CatalogueError::Reservation { .. })), "case {index}: {refused:?}");
        }
        let mut many = sample();
        let number = |number: u32| RegistrantRecord { host: format!("{number:032x}"), key: 1 };
        many.reservations[0] =
            ReservationRecord { volume: 1, generation: 0, registrants: (0..257).map(number).collect(), held: None };
        assert!(many.check(4096).is_err());
        many.reservations[0].registrants.pop();
        assert_eq!(many.check(4096), Ok(()));
    }
}
