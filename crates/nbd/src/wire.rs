//! Numbers of the protocol, named as in the specification, and a cursor over big-endian fields.
//!
//! Clause names in this crate are headings of `doc/proto.md` in the repository
//! `NetworkBlockDevice/nbd`.

/// `NBDMAGIC`, first field of the greeting ("Newstyle negotiation").
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, second field of the greeting and first of every option ("Newstyle negotiation").
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First field of every option reply ("Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First field of a request ("Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First field of a simple reply ("Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First field of a structured reply chunk ("Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Magic (8), option (4), length (4).
pub const OPTION_HEADER_BYTES: usize = 16;
/// Magic (4), flags (2), type (2), cookie (8), offset (8), length (4).
pub const REQUEST_BYTES: usize = 28;
/// Magic (4), error (4), cookie (8).
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Magic (4), flags (2), type (2), cookie (8), length (4).
pub const CHUNK_HEADER_BYTES: usize = 20;

/// Handshake and client flag bit 0: options may be answered with errors ("Handshake flags").
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake and client flag bit 1: no 124 zeroes after `NBD_OPT_EXPORT_NAME` ("Handshake flags").
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options ("Option types").
pub mod opt {
    /// Enter transmission without the possibility of an error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Continue inside of TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types ("Option reply types").
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One attribute of an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that all errors have.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = ERROR_BIT + 1;
    /// Forbidden by the server's configuration.
    pub const ERR_POLICY: u32 = ERROR_BIT + 2;
    /// Malformed, or not allowed now.
    pub const ERR_INVALID: u32 = ERROR_BIT + 3;
    /// TLS has to be started first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    /// The server or the export is being stopped.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT + 7;
    /// The option is longer than the server reads.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
}

/// Information types (`NBD_REP_INFO`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for people.
    pub const DESCRIPTION: u16 = 2;
    /// Size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags ("Transmission flags").
pub mod flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks cost time.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_CMD_TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is served.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` is served.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types ("Request types").
pub mod cmd {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data follows.
    pub const WRITE: u16 = 1;
    /// End the session; no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Give space back.
    pub const TRIM: u16 = 4;
    /// A hint that a range will be accessed.
    pub const CACHE: u16 = 5;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Query metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags ("Command flags").
pub mod cmd_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Keep the zeroed range allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk at most.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero only if that is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply types and flags ("Structured reply types").
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No payload.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Metadata context and its descriptors.
    pub const BLOCK_STATUS: u16 = 5;
    /// Errno and text.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Errno, text and the offset where it happened.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// States of `base:allocation` ("`base:allocation` metadata context").
pub mod state {
    /// Takes no space.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// The only metadata context of this server.
pub const CONTEXT_ALLOCATION: &str = "base:allocation";
/// The number of [`CONTEXT_ALLOCATION`] in replies.
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

/// Takes big-endian fields off the front of a message. `None` means that the message is too short.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length in 32 bits and that many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }
}
