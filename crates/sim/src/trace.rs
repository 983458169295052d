//! Records of the drives' operations.

use std::fmt;

use std::rc::Rc;

use ::drive::Nanos;

/// A kind of drive operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// [`drive::Drive::read`].
    Read,
    /// [`drive::Drive::write`].
    Write,
    /// [`drive::Drive::flush`].
    Flush,
    /// [`drive::Drive::discard`].
    Discard,
    /// [`drive::Drive::write_zeroes`].
    Zeroes,
}

/// How many operations a drive was given. An operation counts when it is started, also if it fails
/// later or its future is dropped. One that is refused at once (misaligned, out of range, gone)
/// does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes, with and without FUA.
    pub writes: u64,
    /// Writes with FUA.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Operations that write zeroes.
    pub zeroes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Bytes of the discards.
    pub discard_bytes: u64,
    /// Bytes of the operations that write zeroes.
    pub zero_bytes: u64,
    /// Operations that were started and failed.
    pub errors: u64,
}

impl Counts {
    /// Operations of every kind.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.zeroes
    }

    #[inline]
    pub(crate) fn add(&mut self, kind: OpKind, len: u64, fua: bool) {
        let (ops, bytes) = match kind {
            OpKind::Read => (&mut self.reads, &mut self.read_bytes),
            OpKind::Write => (&mut self.writes, &mut self.write_bytes),
            OpKind::Discard => (&mut self.discards, &mut self.discard_bytes),
            OpKind::Zeroes => (&mut self.zeroes, &mut self.zero_bytes),
            OpKind::Flush => {
                self.flushes += 1;
                return;
            }
        };
        *ops += 1;
        *bytes += len;
        self.fua_writes += u64::from(fua);
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |sum, other| Counts {
            reads: sum.reads + other.reads,
            writes: sum.writes + other.writes,
            fua_writes: sum.fua_writes + other.fua_writes,
            flushes: sum.flushes + other.flushes,
            discards: sum.discards + other.discards,
            zeroes: sum.zeroes + other.zeroes,
            read_bytes: sum.read_bytes + other.read_bytes,
            write_bytes: sum.write_bytes + other.write_bytes,
            discard_bytes: sum.discard_bytes + other.discard_bytes,
            zero_bytes: sum.zero_bytes + other.zero_bytes,
            errors: sum.errors + other.errors,
        })
    }
}

/// The phase of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The drive took it.
    Start,
    /// The drive completed it.
    Done,
    /// It failed.
    Failed,
}

/// A line of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEntry {
    /// Virtual time.
    pub at: Nanos,
    /// Which drive: the order in which the drives of the world were made, from 0.
    pub drive_index: u32,
    /// Its phase.
    pub phase: Phase,
    /// The kind of operation.
    pub kind: OpKind,
    /// Start of the range in bytes; 0 for a flush.
    pub offset: u64,
    /// Length of the range in bytes; 0 for a flush.
    pub len: u64,
    /// A write that is durable when it is done.
    pub fua: bool,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceEntry { at, drive_index, phase, kind, offset, len, fua } = self;
        let fua = if *fua { " fua" } else { "" };
        write!(formatter, "{at:>12} ns  drive {drive_index}  {phase:?} {kind:?} {offset}+{len}{fua}")
    }
}

/// An event on the tape: an event of a drive, with the bytes, so that every state that a power cut
/// could leave can be derived from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapeEvent {
    /// Which drive: the order in which the drives of the world were made, from 0.
    pub drive_index: u32,
    /// Which of the drive's operations.
    pub serial: u64,
    /// The step of the operation.
    pub step: TapeStep,
}

/// The step of an operation on the tape. Reads are not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapeStep {
    /// The drive took a write.
    Write {
        /// Start in bytes.
        offset: u64,
        /// The bytes to write.
        bytes: Rc<[u8]>,
        /// Durable when it is done.
        fua: bool,
    },
    /// The drive took a request to zero or to discard a range; a discard is recorded as if it
    /// zeroed the range.
    Zeroes {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The drive took a flush.
    Flush,
    /// The operation is done.
    Done,
}
