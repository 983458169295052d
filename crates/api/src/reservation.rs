//! Reservations of namespaces by NVMe hosts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The NVMe hosts that are registered with a volume (a namespace), and their reservation. It is the
/// same at all exports of the volume over NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// Type of the reservation; `null` if hosts are registered but nothing is reserved.
    pub kind: Option<ReservationKind>,
    /// Whether it persists across a restart of the daemon.
    pub persists: bool,
    /// The hosts that are registered, by identifier.
    pub registrants: Vec<Registrant>,
}

/// The type of a reservation, as defined by NVMe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReservationKind {
    /// Only the holder may write.
    WriteExclusive,
    /// Only the holder may write or read.
    ExclusiveAccess,
    /// Only registrants may write.
    WriteExclusiveRegistrantsOnly,
    /// Only registrants may write or read.
    ExclusiveAccessRegistrantsOnly,
    /// Only registrants may write, and every registrant is a holder.
    WriteExclusiveAllRegistrants,
    /// Only registrants may write or read, and every registrant is a holder.
    ExclusiveAccessAllRegistrants,
    /// A type that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl ReservationKind {
    /// The name in nvme-cli and the specification.
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
    /// Its NVMe qualified name; `null` if it was not connected since the daemon started.
    pub host: Option<String>,
    /// Its key, in hexadecimal digits after `0x`.
    pub key: String,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}
