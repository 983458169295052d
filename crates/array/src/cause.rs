//! Why a drive left its group, and what was noticed of drives that stayed: for people who read the
//! log.
//!
//! Nothing of this is looked at by the engine, and nothing is done for it where nothing failed.

use std::fmt;
use std::rc::Rc;

use drive::{DriveError, Env};

use crate::array::Inner;
use crate::geometry::{MemberIndex, Role, UnitIndex};
use crate::message::Request;
use crate::plan::Strip;
use crate::shared::DriveId;
use crate::status::Event;
use crate::unit::{RowView, StripView};
use crate::write::StripWrite;

/// What a drive was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// To read.
    Read,
    /// To write, or to make a range read as zeroes.
    Write,
    /// To make what was written durable.
    Flush,
}

/// A drive operation that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What it was.
    pub operation: Operation,
    /// Where on the drive it began, in bytes. A flush is of all of it.
    pub offset: Option<u64>,
    /// What the drive said.
    pub error: DriveError,
}

/// Why a member or a spare is not in service any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// An operation failed, and there was no use in trying again.
    Failed(Failure),
    /// An operation failed, and again when it was tried again; this is the last failure.
    KeptFailing(Failure),
    /// It was told so by an operator.
    Operator,
    /// It has not answered within the time limit.
    Silent {
        /// The time limit.
        seconds: u64,
    },
    /// It was far slower than the others for long, and a spare was there
    /// ([`crate::Settings::retire_slow`]).
    Slow,
    /// It was pulled: the machine has it no more.
    Pulled,
    /// Of another machine, it was out of reach for longer than is waited for.
    OutOfReach,
    /// It failed while a crash was put right, and had no part in that.
    Recovery,
}

/// What is wrong with bytes that could not be taken as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flaw {
    /// They are not what was written there: their checksums say so.
    Damaged,
    /// The drive does not give them.
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
    /// The last failure of an operation that is tried again where that could help.
    pub(crate) fn of(failure: Failure) -> Cause {
        match failure.error {
            DriveError::Gone => Cause::Failed(failure),
            _ => Cause::KeptFailing(failure),
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
            Cause::KeptFailing(failure) => write!(formatter, "kept on failing: {failure}"),
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

impl<E: Env> Inner<E> {
    /// Lets the leader's listener hear of something. Nobody waits for it.
    #[cold]
    pub fn tell(self: &Rc<Self>, event: Event) {
        if let Some(leader) = &self.leader {
            return (leader.listener)(event);
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // Of a group that is gone nobody wants to know.
            let _ = inner.on_leader(Request::Tell(event)).await;
        });
    }

    /// An operation on a member failed, and is tried again.
    pub fn tell_retry(self: &Rc<Self>, member: MemberIndex, drive: DriveId, failure: Failure) {
        self.tell(Event::Retried { member, drive, failure });
    }

    /// Bytes of a member cannot be used.
    pub fn tell_flaw(self: &Rc<Self>, strip: &StripView<E::Drive>, offset: u64, len: u64, flaw: Flaw) {
        self.tell(Event::BytesFlawed { member: strip.member, drive: strip.id, offset, len, flaw });
    }

    /// Bytes of a member that could not be used were computed from the others and written back.
    pub fn tell_healed(self: &Rc<Self>, strip: &StripView<E::Drive>, unit: UnitIndex, x: u64, len: u64) {
        let offset = self.shared.geometry.member_offset(unit, x);
        self.tell(Event::BytesHealed { member: strip.member, drive: strip.id, offset, len });
    }

    /// As [`Inner::tell_healed`], for a write that found strips unreadable and wrote them as well,
    /// but those that `failed`.
    #[cold]
    pub fn tell_healed_by(
        self: &Rc<Self>,
        unit: UnitIndex,
        view: &RowView<E::Drive>,
        writes: &[StripWrite],
        failed: &[Role],
    ) {
        let is_healed =
            |write: &&StripWrite| view.0[write.role].strip == Strip::Unreadable && !failed.contains(&write.role);
        for write in writes.iter().filter(is_healed) {
            self.tell_healed(&view.0[write.role], unit, write.x, write.range().len());
        }
    }
}
