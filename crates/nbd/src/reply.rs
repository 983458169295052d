//! Replies of the transmission phase ("Simple reply message", "Structured reply chunk message").

use crate::limits::{STATUS_DESCRIPTORS_MAX, STRING_BYTES_MAX};
use crate::wire::{
    CHUNK_HEADER_BYTES, CONTEXT_ALLOCATION_ID, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk,
    state,
};

/// The errors of the protocol ("Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// `NBD_EPERM`: the export is read-only.
    Perm = 1,
    /// `NBD_EIO`.
    Io = 5,
    /// `NBD_ENOMEM`.
    NoMem = 12,
    /// `NBD_EINVAL`.
    Inval = 22,
    /// `NBD_ENOSPC`: no room, or past the end of the export.
    NoSpc = 28,
    /// `NBD_EOVERFLOW`: too long to answer.
    Overflow = 75,
    /// `NBD_ENOTSUP`: zeroing would not be fast.
    NotSup = 95,
    /// `NBD_ESHUTDOWN`: the export is being stopped.
    Shutdown = 108,
}

/// The longest [`Head`]: a hole.
const HEAD_BYTES_MAX: usize = CHUNK_HEADER_BYTES + 12;

/// The fixed part of a reply, in front of its data.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl Head {
    fn new() -> Head {
        Head { bytes: [0; HEAD_BYTES_MAX], len: 0 }
    }

    fn put<const N: usize>(mut self, bytes: [u8; N]) -> Head {
        self.bytes[self.len..self.len + N].copy_from_slice(&bytes);
        self.len += N;
        self
    }

    fn chunk(flags: u16, kind: u16, cookie: u64, payload_bytes: u32) -> Head {
        Head::new()
            .put(STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(flags.to_be_bytes())
            .put(kind.to_be_bytes())
            .put(cookie.to_be_bytes())
            .put(payload_bytes.to_be_bytes())
    }

    fn simple(error: u32, cookie: u64) -> Head {
        Head::new().put(SIMPLE_REPLY_MAGIC.to_be_bytes()).put(error.to_be_bytes()).put(cookie.to_be_bytes())
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// One descriptor of a block status reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Length in bytes, at least 1.
    pub len: u32,
    /// The range was written; otherwise it takes no space and reads as zeroes.
    pub allocated: bool,
}

/// Writes replies in the form that the session negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replies {
    structured: bool,
}

impl Replies {
    pub(crate) fn new(structured: bool) -> Replies {
        Replies { structured }
    }

    /// Whether a read may be answered in several chunks: [`Replies::data_chunk`] and
    /// [`Replies::hole_chunk`].
    pub fn structured(self) -> bool {
        self.structured
    }

    /// Success without data, for any request except a read of at least one byte. A simple reply is
    /// allowed for it in every session, except for a read with structured replies.
    #[inline]
    pub fn done(self, cookie: u64, read: bool) -> Head {
        if self.structured && read {
            return Head::chunk(chunk::FLAG_DONE, chunk::NONE, cookie, 0);
        }
        Head::simple(0, cookie)
    }

    /// The whole answer to a read: `len` bytes of data have to follow. All of them MUST be
    /// available already, since no error can be reported after this.
    ///
    /// # Panics
    /// If `len` is 0 ("each chunk MUST describe at least one byte"): [`Replies::done`] is the
    /// answer then.
    #[inline]
    pub fn data(self, cookie: u64, offset: u64, len: u32) -> Head {
        assert!(len > 0, "a content chunk describes at least one byte");
        if self.structured {
            return self.data_chunk(cookie, offset, len, true);
        }
        Head::simple(0, cookie)
    }

    /// `NBD_REPLY_TYPE_OFFSET_DATA`: `len` bytes of data have to follow. `last` ends the reply.
    ///
    /// # Panics
    /// Without structured replies, and if `len` is 0.
    pub fn data_chunk(self, cookie: u64, offset: u64, len: u32, last: bool) -> Head {
        assert!(self.structured && len > 0, "a chunk of {len} bytes");
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        Head::chunk(flags, chunk::OFFSET_DATA, cookie, len + 8).put(offset.to_be_bytes())
    }

    /// `NBD_REPLY_TYPE_OFFSET_HOLE`. `last` ends the reply.
    ///
    /// # Panics
    /// Without structured replies, and if `len` is 0.
    pub fn hole_chunk(self, cookie: u64, offset: u64, len: u32, last: bool) -> Head {
        assert!(self.structured && len > 0, "a hole of {len} bytes");
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        Head::chunk(flags, chunk::OFFSET_HOLE, cookie, 12).put(offset.to_be_bytes()).put(len.to_be_bytes())
    }

    /// Failure of any request. Only structured replies carry the reason, which is cut at 4096
    /// bytes.
    pub fn error(self, cookie: u64, errno: Errno, reason: &str) -> Vec<u8> {
        if !self.structured {
            return Head::simple(errno as u32, cookie).to_vec();
        }
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(STRING_BYTES_MAX)];
        let mut reply = Head::chunk(chunk::FLAG_DONE, chunk::ERROR, cookie, 6 + reason.len() as u32).to_vec();
        reply.extend_from_slice(&(errno as u32).to_be_bytes());
        reply.extend_from_slice(&(reason.len() as u16).to_be_bytes());
        reply.extend_from_slice(reason);
        reply
    }

    /// `NBD_REPLY_TYPE_BLOCK_STATUS` of `base:allocation`. Adjacent descriptors in the same state
    /// are joined. Descriptors beyond [`STATUS_DESCRIPTORS_MAX`] are left out.
    ///
    /// # Panics
    /// If there is no descriptor ("the server MUST return at least one"), or one is empty.
    pub fn block_status(self, cookie: u64, descriptors: impl IntoIterator<Item = Descriptor>) -> Vec<u8> {
        let mut joined: Vec<Descriptor> = Vec::new();
        for next in descriptors {
            assert!(next.len > 0, "a descriptor has a length");
            if let Some(last) = joined.last_mut()
                && last.allocated == next.allocated
                && let Some(len) = last.len.checked_add(next.len)
            {
                last.len = len;
                continue;
            }
            if joined.len() == STATUS_DESCRIPTORS_MAX {
                break;
            }
            joined.push(next);
        }
        assert!(!joined.is_empty(), "a block status reply has a descriptor");
        let payload_bytes = 4 + 8 * joined.len() as u32;
        let mut reply = Head::chunk(chunk::FLAG_DONE, chunk::BLOCK_STATUS, cookie, payload_bytes).to_vec();
        reply.extend_from_slice(&CONTEXT_ALLOCATION_ID.to_be_bytes());
        for descriptor in joined {
            let status = if descriptor.allocated { 0 } else { state::HOLE | state::ZERO };
            reply.extend_from_slice(&descriptor.len.to_be_bytes());
            reply.extend_from_slice(&status.to_be_bytes());
        }
        reply
    }
}

const _: () = assert!(SIMPLE_REPLY_BYTES == 16 && CHUNK_HEADER_BYTES == 20);
