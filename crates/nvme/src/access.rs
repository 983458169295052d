//! How a controller reaches a namespace: Asymmetric Namespace Access, NVMe Base 2.0, clause 8.1.

use crate::Status;

/// Type and code of a status, without DNR.
const CODE: u16 = 0x7FF;

/// An ANA state: Base 2.0, clause 8.1.3, with the codes of figure 220.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The best path.
    Optimized,
    /// A path; there may be better ones.
    NonOptimized,
    /// Not usable at the moment: the state is changing.
    Change,
    /// Not reachable through this controller.
    Inaccessible,
    /// Never reachable again through this controller.
    PersistentLoss,
}

impl Access {
    /// The number of the state in the log.
    pub fn code(self) -> u8 {
        match self {
            Access::Optimized => 0x1,
            Access::NonOptimized => 0x2,
            Access::Inaccessible => 0x3,
            Access::PersistentLoss => 0x4,
            Access::Change => 0xF,
        }
    }

    /// The state with this number, if there is one.
    #[inline]
    pub fn of(code: u8) -> Option<Access> {
        Some(match code {
            0x1 => Access::Optimized,
            0x2 => Access::NonOptimized,
            0x3 => Access::Inaccessible,
            0x4 => Access::PersistentLoss,
            0xF => Access::Change,
            _ => return None,
        })
    }

    /// Whether commands may be sent through this controller.
    pub fn is_usable(self) -> bool {
        self.refusal().is_none()
    }

    /// The status of a command for the namespace that is refused because of the state: Base 2.0,
    /// clauses 8.1.3.3 to 8.1.3.5. The host may retry through another controller.
    #[inline]
    pub fn refusal(self) -> Option<Status> {
        match self {
            Access::Optimized | Access::NonOptimized => None,
            Access::Inaccessible => Some(Status::ACCESS_INACCESSIBLE),
            Access::PersistentLoss => Some(Status::ACCESS_PERSISTENT_LOSS),
            Access::Change => Some(Status::ACCESS_TRANSITION),
        }
    }

    /// The state that made a controller refuse a command with this status. `None` if the status has
    /// another cause.
    pub fn of_refusal(status: Status) -> Option<Access> {
        use Access::*;
        let is = |refusal: Status| refusal.0 & CODE == status.0 & CODE;
        [Inaccessible, PersistentLoss, Change].into_iter().find(|state| state.refusal().is_some_and(is))
    }
}
