//! The form of a refusal.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// The body of every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The refused request and the reason.
    pub error: ErrorDetail,
}

/// A code for programs and a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// Stable; programs should decide by this.
    pub code: ErrorCode,
    /// One sentence that names what was refused and why. Its words may change.
    pub message: String,
}

/// Why a request was refused. Each code has one HTTP status, [`ErrorCode::status`].
///
/// Nothing is changed by a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: not JSON, an unknown field, a missing field, a value of the wrong kind.
    BadRequest,
    /// 400: understood, but the values don't make sense (for example a RAID 6 of three drives).
    Invalid,
    /// 400: it would destroy data and `confirm` does not name the object.
    ConfirmationNeeded,
    /// 401: the bearer token is missing or wrong.
    Unauthorized,
    /// 404: no such route.
    NoRoute,
    /// 405: the route exists, but with other methods.
    MethodNotAllowed,
    /// 404: no such group.
    GroupNotFound,
    /// 404: no such volume.
    VolumeNotFound,
    /// 404: no such export.
    ExportNotFound,
    /// 404: no such NVMe host.
    HostNotFound,
    /// 404: no such import.
    ImportNotFound,
    /// 404: no such drive, or no such file or device.
    DriveNotFound,
    /// 404: the group has no member in that slot.
    MemberNotFound,
    /// 409: a group with that name or identity exists.
    GroupExists,
    /// 409: a volume with that name exists.
    VolumeExists,
    /// 409: the address is already in use.
    ExportExists,
    /// 409: the drive belongs to a group, or something else has it open.
    DriveInUse,
    /// 409: the drive has foreign content; the message names it. See `wipe_foreign`.
    ForeignData,
    /// 409: the drive is too small or its sectors don't fit.
    DriveUnfit,
    /// 409: the drives don't make a complete group: stale, from two groups, an unknown version, too
    /// few.
    NotAssemblable,
    /// 409: the group, volume or drive is in use; its users must be removed first.
    Busy,
    /// 409: the current state of the object doesn't allow it (for example a scrub that runs
    /// already).
    WrongState,
    /// 409: it would lose data that redundancy can't restore.
    WouldLoseData,
    /// 413: the request is larger than the daemon accepts.
    TooLarge,
    /// 507: not enough free space in the group.
    NoSpace,
    /// 500: a drive or the system failed; the message says which.
    Io,
    /// 500: a fault of the daemon itself.
    Internal,
    /// 502: another machine cannot be reached or refuses this one; the message names it and the
    /// reason.
    Unreachable,
    /// 503: the daemon starts or stops, or has too many connections.
    Unavailable,
    /// A code that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// Every code that the daemon may send, in the order of the definitions.
    pub const ALL: [ErrorCode; 30] = [
        ErrorCode::BadRequest,
        ErrorCode::Invalid,
        ErrorCode::ConfirmationNeeded,
        ErrorCode::Unauthorized,
        ErrorCode::NoRoute,
        ErrorCode::MethodNotAllowed,
        ErrorCode::GroupNotFound,
        ErrorCode::VolumeNotFound,
        ErrorCode::ExportNotFound,
        ErrorCode::HostNotFound,
        ErrorCode::ImportNotFound,
        ErrorCode::DriveNotFound,
        ErrorCode::MemberNotFound,
        ErrorCode::GroupExists,
        ErrorCode::VolumeExists,
        ErrorCode::ExportExists,
        ErrorCode::DriveInUse,
        ErrorCode::ForeignData,
        ErrorCode::DriveUnfit,
        ErrorCode::NotAssemblable,
        ErrorCode::Busy,
        ErrorCode::WrongState,
        ErrorCode::WouldLoseData,
        ErrorCode::TooLarge,
        ErrorCode::NoSpace,
        ErrorCode::Io,
        ErrorCode::Internal,
        ErrorCode::Unreachable,
        ErrorCode::Unavailable,
        ErrorCode::Unknown,
    ];

    /// The HTTP status that goes with the code.
    pub fn status(self) -> u16 {
        match self {
            ErrorCode::BadRequest | ErrorCode::Invalid | ErrorCode::ConfirmationNeeded => 400,
            ErrorCode::Unauthorized => 401,
            ErrorCode::NoRoute
            | ErrorCode::GroupNotFound
            | ErrorCode::VolumeNotFound
            | ErrorCode::ExportNotFound
            | ErrorCode::HostNotFound
            | ErrorCode::ImportNotFound
            | ErrorCode::DriveNotFound
            | ErrorCode::MemberNotFound => 404,
            ErrorCode::MethodNotAllowed => 405,
            ErrorCode::GroupExists
            | ErrorCode::VolumeExists
            | ErrorCode::ExportExists
            | ErrorCode::DriveInUse
            | ErrorCode::ForeignData
            | ErrorCode::DriveUnfit
            | ErrorCode::NotAssemblable
            | ErrorCode::Busy
            | ErrorCode::WrongState
            | ErrorCode::WouldLoseData => 409,
            ErrorCode::TooLarge => 413,
            ErrorCode::Io | ErrorCode::Internal | ErrorCode::Unknown => 500,
            ErrorCode::Unreachable => 502,
            ErrorCode::Unavailable => 503,
            ErrorCode::NoSpace => 507,
        }
    }
}

/// A request whose values don't make sense, detected without access to any drive. One sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Invalid {
        Invalid(message.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_code_and_a_sentence() {
        let body = ErrorBody {
            error: ErrorDetail { code: ErrorCode::GroupExists, message: "there is a group \"tank\" already".into() },
        };
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            r#"{"error":{"code":"group_exists","message":"there is a group \"tank\" already"}}"#
        );
    }

    #[test]
    fn a_code_from_a_newer_daemon_reads_as_unknown() {
        let body: ErrorBody =
            serde_json::from_str(r#"{"error":{"code":"moon_phase","message":"m","hint":"new field"}}"#).unwrap();
        assert_eq!(body.error.code, ErrorCode::Unknown);
    }

    #[test]
    fn every_code_has_an_error_status_and_its_own_name() {
        let mut names: Vec<String> = ErrorCode::ALL.iter().map(|c| serde_json::to_string(c).unwrap()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        assert!(ErrorCode::ALL.iter().all(|c| (400..600).contains(&c.status())));
    }
}
