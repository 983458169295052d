//! Completion queue entries: NVMe Base 2.0, clause 3.3.3.2.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion queue entry of 16 bytes, "CQE": Base 2.0, figure 90; figure 381 for fabrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1. Each command gives them its own meaning.
    pub result: U64,
    /// SQHD: how far the submission queue was consumed, or [`Completion::NO_FLOW_CONTROL`] without
    /// flow control.
    pub sq_head: U16,
    /// SQID; reserved over fabrics.
    pub sq_id: U16,
    /// CID of the command.
    pub cid: U16,
    /// The phase tag in bit 0, unused over fabrics, and the status above it.
    pub status: U16,
}

impl Completion {
    /// SQHD of a queue without flow control: Base 2.0, clause 6.3.
    pub const NO_FLOW_CONTROL: u16 = 0xFFFF;

    /// The completion of a command with this status and result.
    pub fn new(cid: u16, status: Status, result: u64) -> Completion {
        Completion {
            result: result.into(),
            sq_head: U16::ZERO,
            sq_id: U16::ZERO,
            cid: cid.into(),
            status: (status.0 << 1).into(),
        }
    }

    /// The status, without the phase tag.
    pub fn status(&self) -> Status {
        Status(self.status.get() >> 1)
    }
}

/// A status as in bits 15:1 of its field: code (SC) in bits 7:0, type (SCT) in bits 10:8, do not
/// retry (DNR) in bit 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const GENERIC: u16 = 0;
const SPECIFIC: u16 = 1 << 8;
const MEDIA: u16 = 2 << 8;
const PATH: u16 = 3 << 8;
const DNR: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// The name in the specification, without "Do Not Retry".
            pub fn name(self) -> Option<&'static str> {
                match Status(self.0 & 0x7FF) {
                    $(known if known.0 == ($value) & 0x7FF => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// The command succeeded.
    SUCCESS = GENERIC, "Successful Completion";
    /// The opcode is not supported.
    INVALID_OPCODE = GENERIC | DNR | 0x01, "Invalid Command Opcode";
    /// A field has an invalid value.
    INVALID_FIELD = GENERIC | DNR | 0x02, "Invalid Field in Command";
    /// A command in flight has the same identifier.
    COMMAND_ID_CONFLICT = GENERIC | DNR | 0x03, "Command ID Conflict";
    /// The data could not be transferred.
    DATA_TRANSFER_ERROR = GENERIC | 0x04, "Data Transfer Error";
    /// An internal error of the controller.
    INTERNAL_ERROR = GENERIC | 0x06, "Internal Error";
    /// An Abort command ended it.
    ABORT_REQUESTED = GENERIC | 0x07, "Command Abort Requested";
    /// The submission queue was deleted.
    ABORTED_SQ_DELETION = GENERIC | 0x08, "Command Aborted due to SQ Deletion";
    /// The other of two fused commands failed.
    ABORTED_FAILED_FUSED = GENERIC | DNR | 0x09, "Command Aborted due to Failed Fused Command";
    /// The other of two fused commands is missing.
    ABORTED_MISSING_FUSED = GENERIC | DNR | 0x0A, "Command Aborted due to Missing Fused Command";
    /// There is no such namespace.
    INVALID_NAMESPACE = GENERIC | DNR | 0x0B, "Invalid Namespace or Format";
    /// The command is not allowed in the current state.
    COMMAND_SEQUENCE_ERROR = GENERIC | DNR | 0x0C, "Command Sequence Error";
    /// The descriptor has more or less data than the command transfers.
    DATA_SGL_LENGTH_INVALID = GENERIC | DNR | 0x0F, "Data SGL Length Invalid";
    /// The transport does not have this type of descriptor.
    SGL_TYPE_INVALID = GENERIC | DNR | 0x11, "SGL Descriptor Type Invalid";
    /// An offset behind the end of the capsule's data.
    SGL_OFFSET_INVALID = GENERIC | DNR | 0x16, "SGL Offset Invalid";
    /// The host mixed host identifiers of 64 and of 128 bits.
    HOST_ID_INCONSISTENT = GENERIC | DNR | 0x18, "Host Identifier Inconsistent Format";
    /// The namespace is write protected.
    WRITE_PROTECTED = GENERIC | DNR | 0x20, "Namespace is Write Protected";
    /// The data were damaged in transit; the host may retry the command.
    TRANSIENT_TRANSPORT_ERROR = GENERIC | 0x22, "Transient Transport Error";
    /// Blocks behind the end of the namespace.
    LBA_OUT_OF_RANGE = GENERIC | DNR | 0x80, "LBA Out of Range";
    /// No space is left.
    CAPACITY_EXCEEDED = GENERIC | DNR | 0x81, "Capacity Exceeded";
    /// The namespace cannot be used at the moment.
    NAMESPACE_NOT_READY = GENERIC | 0x82, "Namespace Not Ready";
    /// Another host holds a reservation.
    RESERVATION_CONFLICT = GENERIC | DNR | 0x83, "Reservation Conflict";
    /// More Abort commands at a time than [`crate::target::ABORTS_MAX`].
    ABORT_LIMIT_EXCEEDED = SPECIFIC | DNR | 0x03, "Abort Command Limit Exceeded";
    /// More event requests than [`crate::target::EVENT_REQUESTS_MAX`].
    EVENT_REQUESTS_EXCEEDED = SPECIFIC | DNR | 0x05, "Asynchronous Event Request Limit Exceeded";
    /// There is no such log page.
    INVALID_LOG_PAGE = SPECIFIC | DNR | 0x09, "Invalid Log Page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = SPECIFIC | DNR | 0x0D, "Feature Identifier Not Saveable";
    /// The feature has a fixed value.
    FEATURE_NOT_CHANGEABLE = SPECIFIC | DNR | 0x0E, "Feature Not Changeable";
    /// The feature belongs to the controller, not to a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = SPECIFIC | DNR | 0x0F, "Feature Not Namespace Specific";
    /// Copy: more ranges, or longer ones, than the namespace takes in one command.
    COMMAND_SIZE_LIMIT_EXCEEDED = SPECIFIC | DNR | 0x83, "Command Size Limit Exceeded";
    /// Connect: the record format is not supported.
    CONNECT_INCOMPATIBLE_FORMAT = SPECIFIC | DNR | 0x80, "Connect Incompatible Format";
    /// Connect: the controller has no room, or the queue is already connected.
    CONNECT_CONTROLLER_BUSY = SPECIFIC | 0x81, "Connect Controller Busy";
    /// Connect: a parameter is wrong; the result says which.
    CONNECT_INVALID_PARAMETERS = SPECIFIC | DNR | 0x82, "Connect Invalid Parameters";
    /// Connect: the host is not allowed.
    CONNECT_INVALID_HOST = SPECIFIC | DNR | 0x84, "Connect Invalid Host";
    /// The queue has to authenticate first.
    AUTHENTICATION_REQUIRED = SPECIFIC | DNR | 0x91, "Authentication Required";
    /// Blocks could not be written.
    WRITE_FAULT = MEDIA | 0x80, "Write Fault";
    /// Blocks could not be read.
    UNRECOVERED_READ_ERROR = MEDIA | DNR | 0x81, "Unrecovered Read Error";
    /// Compare: the data differ.
    COMPARE_FAILURE = MEDIA | DNR | 0x85, "Compare Failure";
    /// The namespace is never reachable again through this controller.
    ACCESS_PERSISTENT_LOSS = PATH | 0x01, "Asymmetric Access Persistent Loss";
    /// The namespace is not reachable through this controller.
    ACCESS_INACCESSIBLE = PATH | 0x02, "Asymmetric Access Inaccessible";
    /// The state of this path to the namespace is changing.
    ACCESS_TRANSITION = PATH | 0x03, "Asymmetric Access Transition";
}

impl Status {
    /// Whether the command succeeded.
    #[inline]
    pub fn is_success(self) -> bool {
        self.0 & 0x7FF == 0
    }

    /// DNR: a retry of the same command will fail again.
    pub fn do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status type {:x}h, code {:02x}h", self.0 >> 8 & 7, self.0 & 0xFF),
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}{}", if self.do_not_retry() { " (do not retry)" } else { "" })
    }
}
