//! Errors, from the lowest layer to the highest.

use std::io;

use drive::{BlockError, DriveError};
use nvme::Status;
use nvme::host::HostError;
use nvme::tcp::Violation;
use thiserror::Error;

use crate::network::Address;

/// Why a controller has ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Lost {
    /// The controller closed a connection.
    #[error("the target closed the connection")]
    Closed,
    /// The controller closed a connection after it had received the proof of this host. Linux's
    /// target may do so if it rejects the proof, and any target may simply have ended.
    #[error("the target closed the connection when it had this host's proof: the secret may be another one")]
    ClosedOnProof,
    /// A connection failed.
    #[error("the connection failed: {text}")]
    Failed {
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The text of the system.
        text: String,
    },
    /// The controller violated the protocol, or reported that this host did.
    #[error("{0}")]
    Violation(Violation),
    /// A command or request was not answered in time.
    #[error("{what} was not answered within {ms} ms")]
    Silent {
        /// The command or request.
        what: &'static str,
        /// How long this host waited.
        ms: u64,
    },
    /// It no longer has properties that this host uses.
    #[error("{0}")]
    Unfit(String),
    /// This host ended it.
    #[error("disconnected")]
    Disconnected,
}

impl Lost {
    pub(crate) fn failed(error: &io::Error) -> Lost {
        Lost::Failed { kind: error.kind(), text: error.to_string() }
    }

    /// Whether the controller has ended the connection itself: then it executes only commands that
    /// it had already received. Otherwise it may execute more until its keep alive timer expires.
    pub(crate) fn is_ended_by_target(&self) -> bool {
        match self {
            Lost::Closed | Lost::ClosedOnProof => true,
            Lost::Failed { kind, .. } => *kind == io::ErrorKind::ConnectionReset,
            Lost::Violation(violation) => matches!(violation, Violation::Terminated { .. }),
            Lost::Silent { .. } | Lost::Unfit(_) | Lost::Disconnected => false,
        }
    }
}

/// Why a controller or a namespace could not be connected.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The connection could not be established.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// The address.
        address: Address,
        /// The cause.
        source: io::Error,
    },
    /// The connect took too long.
    #[error("{address} did not answer within {ms} ms")]
    Timeout {
        /// The address.
        address: Address,
        /// How long this host waited.
        ms: u128,
    },
    /// TLS could not be established.
    #[error("no TLS with {address}: {reason}")]
    Tls {
        /// The address.
        address: Address,
        /// The cause.
        reason: String,
    },
    /// Another service listens there, or the target requires TLS.
    #[error("what listens at {address} is not an NVMe/TCP target: {reason}")]
    NotNvme {
        /// The address.
        address: Address,
        /// Its reaction.
        reason: Lost,
    },
    /// The controller ended during the setup.
    #[error("{address} ended the connection: {reason}")]
    Ended {
        /// The address.
        address: Address,
        /// Its reaction.
        reason: Lost,
    },
    /// The controller refused, or sent an answer that cannot be used.
    #[error("{address}: {source}")]
    Refused {
        /// The address.
        address: Address,
        /// Its answer.
        source: HostError,
    },
    /// An I/O controller was expected and a discovery controller found, or vice versa.
    #[error("{address}: {what}")]
    Unfit {
        /// The address.
        address: Address,
        /// Why it cannot be used.
        what: String,
    },
    /// The namespace does not exist, or the subsystem has none.
    #[error("{address}: the subsystem has no namespace {nsid} that this host may use")]
    NoNamespace {
        /// The address.
        address: Address,
        /// NSID.
        nsid: u32,
    },
    /// No NSID was given, and the subsystem does not have exactly one namespace.
    #[error("{address}: {}", several(.nsids))]
    Choose {
        /// The address.
        address: Address,
        /// The existing namespaces.
        nsids: Vec<u32>,
    },
    /// The namespace is not the same as before.
    #[error("{address}: namespace {nsid} is another one now: {what}")]
    Exchanged {
        /// The address.
        address: Address,
        /// NSID.
        nsid: u32,
        /// The difference.
        what: String,
    },
}

fn several(nsids: &[u32]) -> String {
    if nsids.is_empty() {
        return "the subsystem has no namespace that this host may use".to_owned();
    }
    let list: Vec<String> = nsids.iter().map(u32::to_string).collect();
    format!("the subsystem has several namespaces, say which one: {}", list.join(", "))
}

/// Why a command to a namespace failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IoError {
    /// No path is left, or the namespace was closed.
    #[error("the namespace cannot be reached any more: {0}")]
    Gone(String),
    /// The medium could not be read or written.
    #[error("{0}")]
    Media(Status),
    /// No space is left.
    #[error("no space is left")]
    NoSpace,
    /// The namespace is write protected.
    #[error("the namespace is write protected")]
    ReadOnly,
    /// The range reaches past the end.
    #[error("range {offset}+{len} lies outside of a namespace of {size} bytes")]
    OutOfRange {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Offset or length is not a multiple of the block size.
    #[error("range {offset}+{len} is not aligned to blocks of {block} bytes")]
    Misaligned {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Size of a block in bytes.
        block: u32,
    },
    /// The compared data differ.
    #[error("the data differ")]
    Differs,
    /// The controller does not support this command.
    #[error("the controller does not have {0}")]
    Unsupported(&'static str),
    /// Another host has it reserved.
    #[error("another host has reserved the namespace")]
    Reserved,
    /// Any other error of the controller, after all retries.
    #[error("{0}")]
    Failed(Status),
}

impl IoError {
    /// Converts it to the error of a volume.
    pub fn as_block_error(&self) -> BlockError {
        match *self {
            IoError::Gone(_) => BlockError::Stopped,
            IoError::NoSpace => BlockError::NoSpace,
            IoError::ReadOnly => BlockError::ReadOnly { reason: "the namespace is write protected" },
            IoError::OutOfRange { offset, len, size } => BlockError::OutOfRange { offset, len, size },
            // A host gets a medium error for all of these: its own redundancy has to help.
            IoError::Media(_)
            | IoError::Misaligned { .. }
            | IoError::Differs
            | IoError::Unsupported(_)
            | IoError::Reserved
            | IoError::Failed(_) => BlockError::Lost { lost: 1, survives: 0 },
        }
    }

    /// Converts it to the error of a drive. `offset` and `len` are those of the failed operation.
    pub fn as_drive_error(&self, offset: u64, len: u64) -> DriveError {
        const EIO: i32 = 5;
        const EBADE: i32 = 52;
        match *self {
            IoError::Gone(_) => DriveError::Gone,
            IoError::Media(_) => DriveError::Media { offset, len },
            IoError::NoSpace => DriveError::NoSpace,
            IoError::ReadOnly => DriveError::ReadOnly,
            IoError::OutOfRange { offset, len, size } => DriveError::OutOfRange { offset, len, size },
            IoError::Misaligned { offset, len, block } => DriveError::Misaligned { offset, len, sector: block },
            // The errno that Linux uses for a reservation conflict.
            IoError::Reserved => DriveError::Os { operation: "a command of a reserved namespace", errno: EBADE },
            IoError::Differs | IoError::Unsupported(_) | IoError::Failed(_) => {
                DriveError::Os { operation: "an NVMe command", errno: EIO }
            }
        }
    }
}
