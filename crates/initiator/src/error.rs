//! What can go wrong, from below to above.

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
    /// The controller closed a connection instead of saying whether it believes this host. Linux'
    /// target may do so when it does not, and any may just have ended.
    #[error("the target closed the connection when it had this host's proof: the secret may be another one")]
    ClosedOnProof,
    /// A connection failed.
    #[error("the connection failed: {text}")]
    Failed {
        /// What kind of failure.
        kind: io::ErrorKind,
        /// In the system's words.
        text: String,
    },
    /// The controller broke the protocol, or said that this host did.
    #[error("{0}")]
    Violation(Violation),
    /// Something was not answered in time.
    #[error("{what} was not answered within {ms} ms")]
    Silent {
        /// What.
        what: &'static str,
        /// How long it was waited for.
        ms: u64,
    },
    /// It does not offer what this host uses any more.
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

    /// The controller has ended the connection itself: it executes nothing any more that it had not
    /// received. Otherwise it may do so until its keep alive timer has run out.
    pub(crate) fn is_ended_by_target(&self) -> bool {
        match self {
            Lost::Closed | Lost::ClosedOnProof => true,
            Lost::Failed { kind, .. } => *kind == io::ErrorKind::ConnectionReset,
            Lost::Violation(violation) => matches!(violation, Violation::Terminated { .. }),
            Lost::Silent { .. } | Lost::Unfit(_) | Lost::Disconnected => false,
        }
    }
}

/// Why there is no controller, or no namespace.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// There is no connection.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// Where.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {ms} ms")]
    Timeout {
        /// Where.
        address: Address,
        /// How long it was waited for.
        ms: u128,
    },
    /// There is no TLS with it.
    #[error("no TLS with {address}: {reason}")]
    Tls {
        /// Where.
        address: Address,
        /// Why.
        reason: String,
    },
    /// Something else listens there, or it speaks TLS only.
    #[error("what listens at {address} is not an NVMe/TCP target: {reason}")]
    NotNvme {
        /// Where.
        address: Address,
        /// What it did.
        reason: Lost,
    },
    /// The controller ended while it was set up.
    #[error("{address} ended the connection: {reason}")]
    Ended {
        /// Where.
        address: Address,
        /// What it did.
        reason: Lost,
    },
    /// The controller said no, or something of no use.
    #[error("{address}: {source}")]
    Refused {
        /// Where.
        address: Address,
        /// What it said.
        source: HostError,
    },
    /// An I/O controller was wanted and a discovery controller found, or the other way round.
    #[error("{address}: {what}")]
    Unfit {
        /// Where.
        address: Address,
        /// Why it is of no use.
        what: String,
    },
    /// There is no such namespace, or none at all.
    #[error("{address}: the subsystem has no namespace {nsid} that this host may use")]
    NoNamespace {
        /// Where.
        address: Address,
        /// NSID.
        nsid: u32,
    },
    /// No number was given, and there is not exactly one.
    #[error("{address}: {}", several(.nsids))]
    Choose {
        /// Where.
        address: Address,
        /// Those that there are.
        nsids: Vec<u32>,
    },
    /// The namespace is not the one that it was before.
    #[error("{address}: namespace {nsid} is another one now: {what}")]
    Exchanged {
        /// Where.
        address: Address,
        /// NSID.
        nsid: u32,
        /// What differs.
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

/// Why a command of a namespace failed.
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
    /// The data compared are others.
    #[error("the data differ")]
    Differs,
    /// The controller does not have this command.
    #[error("the controller does not have {0}")]
    Unsupported(&'static str),
    /// Another host has it reserved.
    #[error("another host has reserved the namespace")]
    Reserved,
    /// Any other error of the controller, as often as it was tried.
    #[error("{0}")]
    Failed(Status),
}

impl IoError {
    /// In the words of a volume.
    pub fn as_block_error(&self) -> BlockError {
        match *self {
            IoError::Gone(_) => BlockError::Stopped,
            IoError::NoSpace => BlockError::NoSpace,
            IoError::ReadOnly => BlockError::ReadOnly { reason: "the namespace is write protected" },
            IoError::OutOfRange { offset, len, size } => BlockError::OutOfRange { offset, len, size },
            // A host sees a medium that cannot be read or written, whatever is wrong: its own
            // redundancy is to help.
            IoError::Media(_)
            | IoError::Misaligned { .. }
            | IoError::Differs
            | IoError::Unsupported(_)
            | IoError::Reserved
            | IoError::Failed(_) => BlockError::Lost { lost: 1, survives: 0 },
        }
    }

    /// In the words of a drive. `offset` and `len`: of what failed.
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
            // As Linux says it of a reservation conflict.
            IoError::Reserved => DriveError::Os { operation: "a command of a reserved namespace", errno: EBADE },
            IoError::Differs | IoError::Unsupported(_) | IoError::Failed(_) => {
                DriveError::Os { operation: "an NVMe command", errno: EIO }
            }
        }
    }
}
