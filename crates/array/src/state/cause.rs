//! Why a drive left its group, and which flaws were found on drives that stayed. This is for
//! operators who read the event log.
//!
//! The engine bases no decision on it, and spends nothing on it where nothing failed.

use std::fmt;

use drive::DriveError;

/// A kind of drive operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read,
    /// A write, or an operation that makes a range read as zeroes.
    Write,
    /// A flush.
    Flush,
}

/// A drive operation that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The operation.
    pub operation: Operation,
    /// Byte on the drive at which it began. `None` for a flush, which covers the whole drive.
    pub offset: Option<u64>,
    /// The error that the drive returned.
    pub error: DriveError,
}

/// Why a member or a spare is not in service any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// An operation failed, and a retry could not help.
    Failed(Failure),
    /// An operation failed, and its retry too. This is the last failure.
    WarmFailing(Failure),
    /// An operator ordered it.
    Operator,
    /// It has not answered within the time limit.
    Silent {
        /// The time limit.
        seconds: u64,
    },
    /// It was far slower than the others for long, and a spare was there
    /// ([`crate::Settings::retire_slow`]).
    Slow,
    /// It was pulled: the machine does not have it any more.
    Pulled,
    /// A drive of another machine was out of reach for longer than the group waits.
    OutOfReach,
    /// It failed during the recovery after a crash, which went on without it.
    Recovery,
}

/// Why bytes cannot be used as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// Their checksums show that they are not what was written there.
    Damaged,
    /// The drive cannot read them.
    Unreadable(DriveError),
}

impl Failure {
    pub(crate) fn read(offset: u64, error: DriveError) -> Failure {
        Failure { operation: Operation::Read, offset: Some(offset), error }
    }

    pub(crate) fn write(offset: u64, error: DriveError) -> Failure {
        Failure { operation: Operation::Write, offset: Some(offset), error }
    }

    pub(crate) fn flush(error: DriveError) -> Failure {
        Failure { operation: Operation::Flush, offset: None, error }
    }
}

impl Cause {
    /// The cause for the last failure of an operation that is retried where that could help.
    pub(crate) fn of(failure: Failure) -> Cause {
        match failure.error {
            DriveError::Gone => Cause::Failed(failure),
            _ => Cause::WarmFailing(failure),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { operation, offset, error } = self;
        match offset {
            Some(offset) => write!(formatter, "{operation} at byte {offset}: {error}"),
            None => write!(formatter, "{operation}: {error}"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Failed(failure) => failure.fmt(formatter),
            Cause::WarmFailing(failure) => write!(formatter, "kept on failing: {failure}"),
            Cause::Operator => formatter.write_str("told so by an operator"),
            Cause::Silent { seconds } => write!(formatter, "did not answer for {seconds} s"),
            Cause::Slow => formatter.write_str("retired as slow"),
            Cause::Pulled => formatter.write_str("pulled"),
            Cause::OutOfReach => formatter.write_str("out of reach for too long"),
            Cause::Recovery => formatter.write_str("failed while a crash was put right"),
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Damaged => formatter.write_str("not what was written there"),
            Flaw::Unreadable(error) => error.fmt(formatter),
        }
    }
}
