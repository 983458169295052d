//! Reservations of namespaces by NVMe hosts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which NVMe hosts are registered with a volume as a namespace, and what they have reserved. The
/// same at all its exports over NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// What is excluded; `null` where hosts are registered and nothing is reserved.
    pub kind: Option<ReservationKind>,
    /// It outlives a restart of the daemon.
    pub persists: bool,
    /// The hosts that are registered, by identifier.
    pub registrants: Vec<Registrant>,
}

/// The type of a reservation, as NVMe has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReservationKind {
    /// Others than the holder may not write.
    WriteExclusive,
    /// Others than the holder may neither write nor read.
    ExclusiveAccess,
    /// Others than registrants may not write.
    WriteExclusiveRegistrantsOnly,
    /// Others than registrants may neither write nor read.
    ExclusiveAccessRegistrantsOnly,
    /// Others than registrants may not write, and every registrant is a holder.
    WriteExclusiveAllRegistrants,
    /// Others than registrants may neither write nor read, and every registrant is a holder.
    ExclusiveAccessAllRegistrants,
    /// A type that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl ReservationKind {
    /// As nvme-cli and the specification call it.
    pub fn as_str(self) -> &'static str {
        match self {
            ReservationKind::WriteExclusive => "write exclusive",
            ReservationKind::ExclusiveAccess => "exclusive access",
            ReservationKind::WriteExclusiveRegistrantsOnly => "write exclusive, registrants only",
            ReservationKind::ExclusiveAccessRegistrantsOnly => "exclusive access, registrants only",
            ReservationKind::WriteExclusiveAllRegistrants => "write exclusive, all registrants",
            ReservationKind::ExclusiveAccessAllRegistrants => "exclusive access, all registrants",
            ReservationKind::Unknown => "unknown",
        }
    }
}

/// A host that is registered with a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Registrant {
    /// Its identifier (HOSTID), in 32 hexadecimal digits.
    pub host_id: String,
    /// Its NVMe qualified name; `null` where it was not seen since the daemon started.
    pub host: Option<String>,
    /// Its key, in hexadecimal digits after `0x`.
    pub key: String,
    /// It holds the reservation.
    pub is_holder: bool,
}
