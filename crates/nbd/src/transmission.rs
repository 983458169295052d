//! The transmission phase: parses and checks requests ("Transmission").
//!
//! Invariants:
//! 1. Every request but `NBD_CMD_DISC` is returned once, as a [`Step::Request`] or a
//!    [`Step::Refused`], and in order.
//! 2. A returned range lies within the export. A change is returned only if the export is writable.
//!    For requests with payload, the length is at most [`PAYLOAD_BYTES_MAX`].
//! 3. The data of a write follows its [`Step::Request`] without a gap, and has `len` bytes in
//!    total. The data of a refused write is never returned.

use crate::directory::ExportInfo;
use crate::limits::{DIRECT_BYTES_MIN, DRAIN_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::reply::{Errno, Replies};
use crate::violation::Violation;
use crate::wire::{Fields, REQUEST_BYTES, REQUEST_MAGIC, cmd, cmd_flag};

/// A request that passed every check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client's identifier of the request, to be repeated in the reply.
    pub cookie: u64,
    /// The operation.
    pub command: Command,
}

/// The operation of a request. Offsets and lengths are in bytes; a length may be 0 unless stated
/// otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read {
        /// First byte.
        offset: u64,
        /// At most [`PAYLOAD_BYTES_MAX`].
        len: u32,
        /// `NBD_CMD_FLAG_DF`: at most one content chunk.
        unfragmented: bool,
    },
    /// `NBD_CMD_WRITE`. The data follows as [`Step::Data`] and [`Step::Receive`].
    Write {
        /// First byte.
        offset: u64,
        /// At most [`PAYLOAD_BYTES_MAX`].
        len: u32,
        /// `NBD_CMD_FLAG_FUA`: durable before the reply.
        fua: bool,
    },
    /// `NBD_CMD_FLUSH`.
    Flush,
    /// `NBD_CMD_TRIM`.
    Trim {
        /// First byte.
        offset: u64,
        /// May exceed [`PAYLOAD_BYTES_MAX`].
        len: u32,
        /// `NBD_CMD_FLAG_FUA`.
        fua: bool,
    },
    /// `NBD_CMD_CACHE`.
    Cache {
        /// First byte.
        offset: u64,
        /// May exceed [`PAYLOAD_BYTES_MAX`].
        len: u32,
    },
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// May exceed [`PAYLOAD_BYTES_MAX`].
        len: u32,
        /// `NBD_CMD_FLAG_FUA`.
        fua: bool,
        /// `NBD_CMD_FLAG_NO_HOLE`: keep the range allocated.
        keep_allocated: bool,
        /// `NBD_CMD_FLAG_FAST_ZERO`: `NBD_ENOTSUP` if it would be no faster than a write.
        only_fast: bool,
    },
    /// `NBD_CMD_BLOCK_STATUS` of `base:allocation`.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// At least 1; may exceed [`PAYLOAD_BYTES_MAX`].
        len: u32,
        /// `NBD_CMD_FLAG_REQ_ONE`: one descriptor only.
        one: bool,
    },
}

/// The action for the caller after [`Transmission::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A message was handled that needs no action; call again.
    Continue,
    /// Receive more into the input, then call again.
    NeedMore,
    /// Serve this request.
    Request(Request),
    /// The first `len` bytes of the input are the next data of the last write. They are included in
    /// the number of taken bytes.
    Data {
        /// Number of bytes.
        len: usize,
        /// The write is complete with them.
        last: bool,
    },
    /// The input is empty and much data of the last write is missing. Receive up to `len` bytes
    /// directly into the write's buffer, and report them with [`Transmission::received`]. Receiving
    /// them into the input is allowed, too.
    Receive {
        /// Missing bytes.
        len: u32,
    },
    /// Answer with an error.
    Refused {
        /// The request's cookie.
        cookie: u64,
        /// The error to answer with.
        errno: Errno,
        /// Text for people.
        reason: &'static str,
    },
    /// `NBD_CMD_DISC`: complete the requests in flight, then close.
    Disconnect,
    /// Close; the rest of the input cannot be parsed.
    Close(Violation),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    /// Data of a write, which is passed to the caller.
    Payload {
        left: u32,
    },
    /// Data of a refused write, which is discarded.
    Drain {
        left: u32,
    },
}

/// Server side of the transmission phase.
#[derive(Debug)]
pub struct Transmission {
    state: State,
    size_bytes: u64,
    read_only: bool,
    structured: bool,
    allocation: bool,
}

/// The rules for a request type.
#[derive(Debug)]
pub(crate) struct CommandRule {
    pub command: u16,
    pub name: &'static str,
    /// Flags it may carry. `NBD_CMD_FLAG_FUA` is valid for all commands ("Command flags").
    pub flags: u16,
    /// `NBD_EPERM` on a read-only export.
    pub changes: bool,
    /// The length counts bytes of payload, so [`PAYLOAD_BYTES_MAX`] applies.
    pub payload: bool,
    /// The answer to a range past the end ("Error values"); `None` if it has no range.
    pub past_end: Option<Errno>,
}

const fn rule(
    command: u16,
    name: &'static str,
    flags: u16,
    changes: bool,
    payload: bool,
    past_end: Option<Errno>,
) -> CommandRule {
    CommandRule { command, name, flags: flags | cmd_flag::FUA, changes, payload, past_end }
}

/// The requests that are checked for flags and range. `NBD_CMD_DISC` has no reply and is not
/// checked. Any other request is `NBD_EINVAL`. A flush has no range: its offset and length "MUST be
/// set to all-zero", and are ignored.
#[rustfmt::skip]
pub(crate) const COMMANDS: [CommandRule; 7] = [
    // Columns: command, name, flags besides FUA, changes, payload, past the end.
    rule(cmd::READ,         "NBD_CMD_READ",          cmd_flag::DF,                             false, true,  Some(Errno::Inval)),
    rule(cmd::WRITE,        "NBD_CMD_WRITE",         0,                                        true,  true,  Some(Errno::NoSpc)),
    rule(cmd::FLUSH,        "NBD_CMD_FLUSH",         0,                                        false, false, None),
    rule(cmd::TRIM,         "NBD_CMD_TRIM",          0,                                        true,  false, Some(Errno::Inval)),
    rule(cmd::CACHE,        "NBD_CMD_CACHE",         0,                                        false, false, Some(Errno::Inval)),
    rule(cmd::WRITE_ZEROES, "NBD_CMD_WRITE_ZEROES",  cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,  true,  false, Some(Errno::NoSpc)),
    rule(cmd::BLOCK_STATUS, "NBD_CMD_BLOCK_STATUS",  cmd_flag::REQ_ONE,                        false, false, Some(Errno::Inval)),
];

/// "Request message", without its magic.
#[derive(Clone, Copy)]
struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Transmission {
    /// `structured`: structured replies were negotiated. `allocation`: `base:allocation` was chosen
    /// for this export.
    pub(crate) fn new(info: &ExportInfo, structured: bool, allocation: bool) -> Transmission {
        Transmission {
            state: State::Header,
            size_bytes: info.size_bytes,
            read_only: info.read_only,
            structured,
            allocation: allocation && structured,
        }
    }

    /// The writer for replies of this session.
    pub fn replies(&self) -> Replies {
        Replies::new(self.structured)
    }

    /// Missing data of a write, in bytes. Data of a refused write does not count.
    pub fn data_left(&self) -> u32 {
        match self.state {
            State::Payload { left } => left,
            State::Header | State::Drain { .. } => 0,
        }
    }

    /// Handles at most one message at the start of `input`, and returns how many bytes it took. The
    /// caller drops the taken bytes and keeps the rest for the next call.
    pub fn step(&mut self, input: &[u8]) -> (usize, Step) {
        match self.state {
            State::Header => self.header(input),
            State::Payload { left } => self.payload(input, left),
            State::Drain { left } => {
                let taken = input.len().min(left as usize);
                let left = left - taken as u32;
                self.state = if left == 0 { State::Header } else { State::Drain { left } };
                (taken, if left == 0 { Step::Continue } else { Step::NeedMore })
            }
        }
    }

    /// After a [`Step::Receive`]: `len` bytes of the data have arrived in the write's buffer.
    /// Returns true if the write is complete.
    ///
    /// # Panics
    /// If more bytes have arrived than were missing.
    pub fn received(&mut self, len: u32) -> bool {
        let State::Payload { left } = self.state else { panic!("no data were asked for") };
        assert!(len <= left, "{len} bytes received, {left} were missing");
        self.state = if len == left { State::Header } else { State::Payload { left: left - len } };
        len == left
    }

    fn payload(&mut self, input: &[u8], left: u32) -> (usize, Step) {
        if input.is_empty() && left >= DIRECT_BYTES_MIN {
            return (0, Step::Receive { len: left });
        }
        if input.is_empty() && left > 0 {
            return (0, Step::NeedMore);
        }
        let len = input.len().min(left as usize);
        let last = self.received(len as u32);
        (len, Step::Data { len, last })
    }

    /// "Request message".
    fn header(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(message) = input.first_chunk::<REQUEST_BYTES>() else { return (0, Step::NeedMore) };
        let mut fields = Fields(message);
        let mut parse = || {
            let magic = fields.u32()?;
            let (flags, command) = (fields.u16()?, fields.u16()?);
            let (cookie, offset, len) = (fields.u64()?, fields.u64()?, fields.u32()?);
            Some((magic, Header { flags, command, cookie, offset, len }))
        };
        let (magic, header) = parse().expect("a request has exactly these fields");
        if magic != REQUEST_MAGIC {
            return (0, Step::Close(Violation::RequestMagic { magic }));
        }
        if header.command == cmd::DISC {
            return (REQUEST_BYTES, Step::Disconnect);
        }
        let writes = header.command == cmd::WRITE;
        if writes && header.len > DRAIN_BYTES_MAX {
            return (0, Step::Close(Violation::WriteLength { len: header.len }));
        }
        let step = match self.check(header) {
            Ok(command) => {
                if writes {
                    self.state = State::Payload { left: header.len };
                }
                Step::Request(Request { cookie: header.cookie, command })
            }
            Err((errno, reason)) => {
                if writes && header.len > 0 {
                    self.state = State::Drain { left: header.len };
                }
                Step::Refused { cookie: header.cookie, errno, reason }
            }
        };
        (REQUEST_BYTES, step)
    }

    /// Applies [`COMMANDS`].
    #[inline]
    fn check(&self, header: Header) -> Result<Command, (Errno, &'static str)> {
        let Header { flags, command, offset, len, .. } = header;
        let rule = match COMMANDS.iter().find(|rule| rule.command == command) {
            Some(rule) => rule,
            None => return Err((Errno::Inval, "unknown command")),
        };
        if flags & !rule.flags != 0 {
            return Err((Errno::Inval, "a flag that this command does not have"));
        }
        if flags & cmd_flag::DF != 0 && !self.structured {
            return Err((Errno::Inval, "NBD_CMD_FLAG_DF needs structured replies"));
        }
        if rule.changes && self.read_only {
            return Err((Errno::Perm, "the export is read-only"));
        }
        if rule.payload && len > PAYLOAD_BYTES_MAX {
            // "Error values": NBD_EOVERFLOW is for structured reads; for other requests it would be
            // unexpected.
            let structured_read = command == cmd::READ && self.structured;
            return Err((
                if structured_read { Errno::Overflow } else { Errno::Inval },
                "longer than the maximum payload of 32 MiB",
            ));
        }
        if let Some(errno) = rule.past_end
            && offset.checked_add(u64::from(len)).is_none_or(|end| end > self.size_bytes)
        {
            return Err((errno, "the range reaches past the end of the export"));
        }
        let fua = flags & cmd_flag::FUA != 0;
        Ok(match command {
            cmd::READ => Command::Read { offset, len, unfragmented: flags & cmd_flag::DF != 0 },
            cmd::WRITE => Command::Write { offset, len, fua },
            cmd::FLUSH => Command::Flush,
            cmd::TRIM => Command::Trim { offset, len, fua },
            cmd::CACHE => Command::Cache { offset, len },
            cmd::WRITE_ZEROES => Command::WriteZeroes {
                offset,
                len,
                fua,
                keep_allocated: flags & cmd_flag::NO_HOLE != 0,
                only_fast: flags & cmd_flag::FAST_ZERO != 0,
            },
            _ if !self.allocation => return Err((Errno::Inval, "no metadata context was chosen for this export")),
            _ if len == 0 => return Err((Errno::Inval, "block status of nothing")),
            _ => Command::BlockStatus { offset, len, one: flags & cmd_flag::REQ_ONE != 0 },
        })
    }
}
