//! How a controller reaches a namespace: Asymmetric Namespace Access, NVMe Base 2.0, clause 8.1.

use crate::Status;

/// Type and code of a status, without DNR.
const CODE: u16 = 0x7FF;

/// An ANA state: Base 2.0, clause 8.1.3, with the codes of figure 220.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The best way.
    Optimized,
    /// A way, and there may be better ones.
    NonOptimized,
    /// Not now: the state is changing.
    Change,
    /// Not through this controller.
    Inaccessible,
    /// Never again through this controller.
    PersistentLoss,
}

impl Access {
    /// Its number in the log.
    pub fn code(self) -> u8 {
        match self {
            Access::Optimized => 0x1,
            Access::NonOptimized => 0x2,
            Access::Inaccessible => 0x3,
            Access::PersistentLoss => 0x4,
            Access::Change => 0xF,
        }
    }

    /// The state of this number, if there is one.
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

    /// Whether commands may be sent.
    pub fn is_usable(self) -> bool {
        self.refusal().is_none()
    }

    /// What a command for the namespace is answered, if it is not carried out: Base 2.0, clauses
    /// 8.1.3.3 to 8.1.3.5. The host may send it again through another controller.
    #[inline]
    pub fn refusal(self) -> Option<Status> {
        match self {
            Access::Optimized | Access::NonOptimized => None,
            Access::Inaccessible => Some(Status::ACCESS_INACCESSIBLE),
            Access::PersistentLoss => Some(Status::ACCESS_PERSISTENT_LOSS),
            Access::Change => Some(Status::ACCESS_TRANSITION),
        }
    }

    /// The state that a command met which was answered with this status, if it was not carried out
    /// because of that.
    pub fn of_refusal(status: Status) -> Option<Access> {
        use Access::*;
        let is = |refusal: Status| refusal.0 & CODE == status.0 & CODE;
        [Inaccessible, PersistentLoss, Change].into_iter().find(|state| state.refusal().is_some_and(is))
    }
}
