//! Requests of hosts for reservations: NVMe Base 2.0, clauses 7.2 to 7.4.

use super::ReservationType;
use crate::{Command, Status, nvm};

/// Reservation Register, Acquire or Release, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    opcode: u8,
    /// Command dword 10.
    dword10: u32,
}

/// A host's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationRequest {
    /// Reservation Register.
    Register {
        /// RREGA.
        action: RegisterAction,
        /// CRKEY: the key that the host has. `None` is IEKEY: the existing key is ignored.
        current: Option<u64>,
        /// CPTPL: the new value of persistence, if it is to change.
        persistence: Option<bool>,
    },
    /// Reservation Acquire, "Acquire".
    Acquire {
        /// RTYPE.
        kind: ReservationType,
        /// CRKEY.
        key: u64,
    },
    /// Reservation Acquire, "Preempt" or "Preempt and Abort".
    Preempt {
        /// RTYPE of the requested reservation.
        kind: ReservationType,
        /// CRKEY.
        key: u64,
        /// PRKEY: the key of the hosts to preempt.
        preempted: u64,
        /// Whether their commands in flight have to end before this is answered.
        abort: bool,
    },
    /// Reservation Release, "Release".
    Release {
        /// RTYPE. `None` for an invalid number.
        kind: Option<ReservationType>,
        /// CRKEY.
        key: u64,
    },
    /// Reservation Release, "Clear".
    Clear {
        /// CRKEY.
        key: u64,
    },
}

/// RREGA: Base 2.0, clause 7.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterAction {
    /// Register, with this key (NRKEY).
    Register(u64),
    /// Unregister.
    Unregister,
    /// Replace the key by this one (NRKEY).
    Replace(u64),
}

/// IEKEY.
const IGNORE_EXISTING_KEY: u32 = 1 << 3;

impl Reserve {
    pub(in crate::target) fn new(command: &Command) -> Reserve {
        Reserve { opcode: command.opcode, dword10: command.cdw(10) }
    }

    /// Bytes of the command's data.
    pub fn data_bytes(&self) -> u32 {
        if self.opcode == nvm::RESERVATION_RELEASE { 8 } else { 16 }
    }

    /// Decodes the request. `data` are the command's data.
    ///
    /// # Errors
    /// The status for the host.
    pub fn request(&self, data: &[u8]) -> Result<ReservationRequest, Status> {
        let key = |index: usize| data.chunks_exact(8).nth(index).and_then(|bytes| bytes.try_into().ok());
        let key = |index| key(index).map(u64::from_le_bytes).ok_or(Status::DATA_SGL_LENGTH_INVALID);
        let ignores = self.dword10 & IGNORE_EXISTING_KEY != 0;
        let (action, kind) = (self.dword10 & 0b111, ReservationType::of((self.dword10 >> 8) as u8));
        let first = key(0)?;
        if self.opcode == nvm::RESERVATION_REGISTER {
            let second = key(1)?;
            let action = match action {
                0 => RegisterAction::Register(second),
                1 => RegisterAction::Unregister,
                2 => RegisterAction::Replace(second),
                _ => return Err(Status::INVALID_FIELD),
            };
            let persistence = match self.dword10 >> 30 {
                0b00 => None,
                0b10 => Some(false),
                0b11 => Some(true),
                _ => return Err(Status::INVALID_FIELD),
            };
            return Ok(ReservationRequest::Register { action, current: (!ignores).then_some(first), persistence });
        }
        // "If this bit is set to '1', then ... Invalid Field in Command".
        if ignores {
            return Err(Status::INVALID_FIELD);
        }
        if self.opcode == nvm::RESERVATION_RELEASE {
            return match action {
                0 => Ok(ReservationRequest::Release { kind, key: first }),
                1 => Ok(ReservationRequest::Clear { key: first }),
                _ => Err(Status::INVALID_FIELD),
            };
        }
        let (preempted, kind) = (key(1)?, kind.ok_or(Status::INVALID_FIELD)?);
        match action {
            0 => Ok(ReservationRequest::Acquire { kind, key: first }),
            1 | 2 => Ok(ReservationRequest::Preempt { kind, key: first, preempted, abort: action == 2 }),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}
