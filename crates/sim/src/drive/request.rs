//! Operations of a drive, with their operands.

use ::drive::{Buf, BufMut, Segments};

use crate::trace::{OpKind, TapeStep};

/// An operation with its operands.
pub(crate) enum Request {
    Read {
        offset: u64,
        buf: BufMut,
    },
    Write {
        offset: u64,
        data: Segments,
        fua: bool,
    },
    /// The number of the flush in the store, set when the drive takes it.
    Flush(u64),
    Discard {
        offset: u64,
        len: u64,
    },
    Zeroes {
        offset: u64,
        len: u64,
    },
}

impl Request {
    #[inline]
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            Request::Read { .. } => OpKind::Read,
            Request::Write { .. } => OpKind::Write,
            Request::Flush(_) => OpKind::Flush,
            Request::Discard { .. } => OpKind::Discard,
            Request::Zeroes { .. } => OpKind::Zeroes,
        }
    }

    /// Offset and length in bytes.
    #[inline]
    pub(super) fn range(&self) -> (u64, u64) {
        match self {
            Request::Read { offset, buf } => (*offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (*offset, data.iter().map(|part| part.len() as u64).sum()),
            Request::Flush(_) => (0, 0),
            Request::Discard { offset, len } | Request::Zeroes { offset, len } => (*offset, *len),
        }
    }

    /// The entry of a tape, for operations that change the drive.
    pub(super) fn tape_step(&self) -> Option<TapeStep> {
        match self {
            Request::Read { .. } => None,
            Request::Write { offset, data, fua } => {
                Some(TapeStep::Write { offset: *offset, bytes: join(data).into(), fua: *fua })
            }
            Request::Flush(_) => Some(TapeStep::Flush),
            &(Request::Discard { offset, len } | Request::Zeroes { offset, len }) => {
                Some(TapeStep::Zeroes { offset, len })
            }
        }
    }

    pub(super) fn fua(&self) -> bool {
        matches!(self, Request::Write { fua: true, .. })
    }
}

/// The bytes of several segments as one.
pub(super) fn join(parts: &[Buf]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}
