//! The handshake phase: greeting, client flags, option negotiation ("Handshake").
//!
//! Invariants:
//! 1. Every option is answered with exactly one final reply, in order of arrival, or ends the
//!    connection.
//! 2. Options that were negotiated in the clear are forgotten when TLS starts (`NBD_OPT_STARTTLS`:
//!    the server MUST NOT preserve any negotiation state). Bytes that arrived in the clear are
//!    never read as if they had come through TLS.
//! 3. Metadata contexts apply only to the export name for which they were chosen
//!    (`NBD_OPT_SET_META_CONTEXT`).

use crate::directory::{Directory, ExportInfo, Refusal};
use crate::limits::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX};
use crate::transmission::Transmission;
use crate::violation::Violation;
use crate::wire::{
    CONTEXT_ALLOCATION, CONTEXT_ALLOCATION_ID, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields, GREETING_MAGIC,
    OPTION_HEADER_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, opt, rep,
};

/// Whether connections are encrypted ("Server-side requirements" of TLS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsPolicy {
    /// NOTLS: `NBD_OPT_STARTTLS` is refused.
    #[default]
    Off,
    /// SELECTIVETLS without an export that requires TLS: the client chooses.
    Optional,
    /// FORCEDTLS: nothing but `NBD_OPT_STARTTLS` and `NBD_OPT_ABORT` is served in the clear.
    Required,
}

/// The action for the caller after [`Handshake::step`]. Before that, the caller sends the bytes in
/// `out` to the client.
#[derive(Debug)]
pub enum Progress<E> {
    /// A message was handled; call again.
    Continue,
    /// The input holds no complete message.
    NeedMore,
    /// From the next byte on, in both directions, the stream is TLS. The rest of the input belongs
    /// to TLS, too.
    StartTls,
    /// The client has chosen an export; the rest of the input is for [`Transmission::step`].
    Entered(Transmission, E),
    /// The client has ended the session: close once `out` is sent.
    Ended,
    /// Close at once.
    Close(Violation),
}

/// State of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    ClientFlags,
    Options,
    /// Discards the data of an option that is too long.
    Skip {
        left: u32,
    },
}

/// Server side of the handshake phase.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    tls: TlsPolicy,
    secure: bool,
    fixed: bool,
    zeroes: bool,
    structured: bool,
    /// The export name for which `base:allocation` was chosen.
    allocation_of: Option<String>,
    options: u32,
}

/// The kind of data that an option carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// "The client MUST NOT send any additional data with the option": `NBD_REP_ERR_INVALID`
    /// otherwise.
    Empty,
    /// "A server SHOULD ignore any data".
    Ignored,
    /// Parsed by the option.
    Parsed,
}

/// The action for an option that arrives in the clear although TLS is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InClear {
    /// It is served.
    Serve,
    /// `NBD_REP_ERR_TLS_REQD`.
    Refuse,
    /// The option has no error reply: the connection ends.
    Close,
}

/// The checks before an option is served.
#[derive(Debug)]
pub(crate) struct OptionRule {
    pub option: u32,
    pub name: &'static str,
    pub data: Data,
    pub in_clear: InClear,
    /// Only after `NBD_OPT_STRUCTURED_REPLY`: `NBD_REP_ERR_INVALID` otherwise.
    pub structured_first: bool,
}

const fn rule(option: u32, name: &'static str, data: Data, in_clear: InClear, structured_first: bool) -> OptionRule {
    OptionRule { option, name, data, in_clear, structured_first }
}

/// The options that this server knows. Any other is answered with `NBD_REP_ERR_UNSUP`, or with
/// `NBD_REP_ERR_TLS_REQD` if TLS has to be started first.
#[rustfmt::skip]
pub(crate) const OPTIONS: [OptionRule; 9] = [
    // Columns: option, name, data, in the clear although TLS is required, structured replies first.
    rule(opt::EXPORT_NAME,       "NBD_OPT_EXPORT_NAME",       Data::Parsed,  InClear::Close,      false),
    rule(opt::ABORT,             "NBD_OPT_ABORT",             Data::Ignored, InClear::Serve,      false),
    rule(opt::LIST,              "NBD_OPT_LIST",              Data::Empty,   InClear::Refuse,     false),
    rule(opt::STARTTLS,          "NBD_OPT_STARTTLS",          Data::Empty,   InClear::Serve,      false),
    rule(opt::INFO,              "NBD_OPT_INFO",              Data::Parsed,  InClear::Refuse,     false),
    rule(opt::GO,                "NBD_OPT_GO",                Data::Parsed,  InClear::Refuse,     false),
    rule(opt::STRUCTURED_REPLY,  "NBD_OPT_STRUCTURED_REPLY",  Data::Empty,   InClear::Refuse,     false),
    rule(opt::LIST_META_CONTEXT, "NBD_OPT_LIST_META_CONTEXT", Data::Parsed,  InClear::Refuse,     true),
    rule(opt::SET_META_CONTEXT,  "NBD_OPT_SET_META_CONTEXT",  Data::Parsed,  InClear::Refuse,     true),
];

/// An error reply to an option: type and text.
struct OptionError(u32, &'static str);

impl From<Refusal> for OptionError {
    fn from(refusal: Refusal) -> OptionError {
        match refusal {
            Refusal::Unknown => OptionError(rep::ERR_UNKNOWN, "there is no export of that name"),
            Refusal::ShuttingDown => OptionError(rep::ERR_SHUTDOWN, "the export is being stopped"),
            Refusal::Forbidden => OptionError(rep::ERR_POLICY, "the server's configuration forbids this"),
        }
    }
}

const MALFORMED: OptionError = OptionError(rep::ERR_INVALID, "malformed option data");
const STRING_TOO_LONG: OptionError = OptionError(rep::ERR_TOO_BIG, "a string is longer than 4096 bytes");

impl Handshake {
    /// A new connection. The greeting is written to `out` ("Newstyle negotiation").
    pub fn new(tls: TlsPolicy, out: &mut Vec<u8>) -> Handshake {
        out.extend_from_slice(&GREETING_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Handshake {
            state: State::ClientFlags,
            tls,
            secure: false,
            fixed: false,
            zeroes: true,
            structured: false,
            allocation_of: None,
            options: 0,
        }
    }

    /// Whether TLS was started ([`Progress::StartTls`]).
    pub fn secure(&self) -> bool {
        self.secure
    }

    /// Handles at most one message at the start of `input`, and returns how many bytes it took.
    /// Replies are appended to `out`. The caller drops the taken bytes, and keeps the rest for the
    /// next call. An input of [`crate::INPUT_BYTES_MIN`] bytes always holds a whole message.
    pub fn step<D: Directory>(
        &mut self,
        input: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> (usize, Progress<D::Export>) {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Skip { left } => self.skip(input, left),
            State::Options => self.option(input, directory, out),
        }
    }

    /// "Client flags".
    fn client_flags<E>(&mut self, input: &[u8]) -> (usize, Progress<E>) {
        let Some(flags) = Fields(input).u32() else { return (0, Progress::NeedMore) };
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return (4, Progress::Close(Violation::ClientFlags { flags }));
        }
        self.fixed = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
        self.zeroes = flags & u32::from(FLAG_NO_ZEROES) == 0;
        self.state = State::Options;
        (4, Progress::Continue)
    }

    fn skip<E>(&mut self, input: &[u8], left: u32) -> (usize, Progress<E>) {
        let taken = input.len().min(left as usize);
        let left = left - taken as u32;
        self.state = if left == 0 { State::Options } else { State::Skip { left } };
        (taken, if left == 0 { Progress::Continue } else { Progress::NeedMore })
    }

    /// One option: header, the rules of [`OPTIONS`], then the option itself.
    fn option<D: Directory>(&mut self, input: &[u8], directory: &D, out: &mut Vec<u8>) -> (usize, Progress<D::Export>) {
        let mut fields = Fields(input);
        let (Some(magic), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return (0, Progress::NeedMore);
        };
        if magic != OPTION_MAGIC {
            return (0, Progress::Close(Violation::OptionMagic { magic }));
        }
        if len > OPTION_SKIP_BYTES_MAX {
            return (0, Progress::Close(Violation::OptionLength { option, len }));
        }
        if !self.fixed && option != opt::EXPORT_NAME {
            return (0, Progress::Close(Violation::NotFixed { option }));
        }
        if option == opt::EXPORT_NAME && len as usize > STRING_BYTES_MAX {
            return (0, Progress::Close(Violation::ExportName { len }));
        }
        let refused = self.refusal(option, len);
        let data = match refused {
            Some(_) => &[],
            None => match fields.bytes(len as usize) {
                Some(data) => data,
                None => return (0, Progress::NeedMore),
            },
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return (0, Progress::Close(Violation::Options));
        }
        match refused {
            Some(Err(violation)) => (0, Progress::Close(violation)),
            Some(Ok(refusal)) => {
                if option == opt::SET_META_CONTEXT {
                    // "replaces all previously-set metadata contexts (including when this command
                    // fails)".
                    self.allocation_of = None;
                }
                self.state = if len == 0 { State::Options } else { State::Skip { left: len } };
                error(out, option, refusal);
                (OPTION_HEADER_BYTES, Progress::Continue)
            }
            None => (OPTION_HEADER_BYTES + data.len(), self.serve(option, data, directory, out)),
        }
    }

    /// Applies [`OPTIONS`] to an option's header. Returns why the option is not served, if so.
    fn refusal(&self, option: u32, len: u32) -> Option<Result<OptionError, Violation>> {
        let known = OPTIONS.iter().find(|rule| rule.option == option);
        let clear = self.tls == TlsPolicy::Required && !self.secure;
        Some(Ok(match known {
            Some(rule) if clear && rule.in_clear == InClear::Close => return Some(Err(Violation::TlsRequired)),
            _ if clear && known.is_none_or(|rule| rule.in_clear == InClear::Refuse) => {
                OptionError(rep::ERR_TLS_REQD, "this server requires TLS")
            }
            None => OptionError(rep::ERR_UNSUP, "unknown option"),
            Some(_) if len as usize > OPTION_BYTES_MAX => {
                OptionError(rep::ERR_TOO_BIG, "the option is longer than 32 KiB")
            }
            Some(rule) if rule.data == Data::Empty && len != 0 => {
                OptionError(rep::ERR_INVALID, "this option carries no data")
            }
            Some(rule) if rule.structured_first && !self.structured => {
                OptionError(rep::ERR_INVALID, "structured replies have to be negotiated first")
            }
            Some(_) => return None,
        }))
    }

    fn serve<D: Directory>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Progress<D::Export> {
        let answer = match option {
            opt::EXPORT_NAME => return self.export_name(data, directory, out),
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                return Progress::Ended;
            }
            opt::STARTTLS => match self.start_tls() {
                Ok(()) => {
                    reply(out, option, rep::ACK, &[]);
                    return Progress::StartTls;
                }
                Err(refusal) => Err(refusal),
            },
            opt::LIST => {
                list(directory, out);
                Ok(())
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                Ok(())
            }
            opt::INFO | opt::GO => match self.describe(option, data, directory, out) {
                Ok((name, export, info)) if option == opt::GO => {
                    reply(out, option, rep::ACK, &[]);
                    return Progress::Entered(self.transmission(name, &info), export);
                }
                Ok(_) => Ok(()),
                Err(refusal) => Err(refusal),
            },
            _ => self.meta_context(option, data, directory, out),
        };
        match answer {
            Ok(()) => reply(out, option, rep::ACK, &[]),
            Err(refusal) => error(out, option, refusal),
        }
        Progress::Continue
    }

    /// "`NBD_OPT_STARTTLS`", and the modes under "Server-side requirements".
    fn start_tls(&mut self) -> Result<(), OptionError> {
        if self.tls == TlsPolicy::Off {
            return Err(OptionError(rep::ERR_POLICY, "this server is not configured for TLS"));
        }
        if self.secure {
            return Err(OptionError(rep::ERR_INVALID, "TLS is already in use"));
        }
        self.secure = true;
        self.structured = false;
        self.allocation_of = None;
        Ok(())
    }

    /// "`NBD_OPT_EXPORT_NAME`": size, flags and, unless negotiated away, 124 zeroes.
    fn export_name<D: Directory>(&mut self, data: &[u8], directory: &D, out: &mut Vec<u8>) -> Progress<D::Export> {
        let Ok(name) = string(data) else {
            return Progress::Close(Violation::ExportName { len: data.len() as u32 });
        };
        let Ok((export, info)) = directory.find(name) else {
            return Progress::Close(Violation::NoSuchExport);
        };
        out.extend_from_slice(&info.size_bytes.to_be_bytes());
        out.extend_from_slice(&info.flags(self.structured).to_be_bytes());
        if self.zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Progress::Entered(self.transmission(name, &info), export)
    }

    fn transmission(&self, name: &str, info: &ExportInfo) -> Transmission {
        let allocation = self.allocation_of.as_deref() == Some(name);
        Transmission::new(info, self.structured, allocation)
    }

    /// "`NBD_OPT_INFO` and `NBD_OPT_GO`", all but the final reply.
    fn describe<'a, D: Directory>(
        &self,
        option: u32,
        data: &'a [u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Result<(&'a str, D::Export, ExportInfo), OptionError> {
        let mut fields = Fields(data);
        let name = string(fields.counted().ok_or(MALFORMED)?)?;
        let count = fields.u16().ok_or(MALFORMED)?;
        let wanted = fields.0;
        if wanted.len() != usize::from(count) * 2 {
            return Err(MALFORMED);
        }
        let (export, found) = directory.find(name)?;

        let mut payload = info::EXPORT.to_be_bytes().to_vec();
        payload.extend_from_slice(&found.size_bytes.to_be_bytes());
        payload.extend_from_slice(&found.flags(self.structured).to_be_bytes());
        reply(out, option, rep::INFO, &payload);
        // "The client MUST NOT include any information request in the list more than once";
        // answering once is enough.
        let asked = |kind: u16| wanted.chunks_exact(2).any(|pair| pair == kind.to_be_bytes());
        for (kind, text) in [(info::NAME, &found.name), (info::DESCRIPTION, &found.description)] {
            if asked(kind) {
                let mut payload = kind.to_be_bytes().to_vec();
                payload.extend_from_slice(clipped(text));
                reply(out, option, rep::INFO, &payload);
            }
        }
        if asked(info::BLOCK_SIZE) {
            let mut payload = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for bytes in [1, found.block_bytes_preferred, PAYLOAD_BYTES_MAX] {
                payload.extend_from_slice(&bytes.to_be_bytes());
            }
            reply(out, option, rep::INFO, &payload);
        }
        Ok((name, export, found))
    }

    /// "`NBD_OPT_LIST_META_CONTEXT`" and "`NBD_OPT_SET_META_CONTEXT`", all but the final reply.
    fn meta_context<D: Directory>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Result<(), OptionError> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.allocation_of = None;
        }
        let mut fields = Fields(data);
        let name = string(fields.counted().ok_or(MALFORMED)?)?;
        let count = fields.u32().ok_or(MALFORMED)?;
        // Without a query, a list contains all contexts, and a choice is empty.
        let mut matched = count == 0 && !set;
        for _ in 0..count {
            let query = string(fields.counted().ok_or(MALFORMED)?)?;
            let Some((namespace, leaf)) = query.split_once(':') else {
                return Err(OptionError(rep::ERR_INVALID, "a metadata query has no namespace"));
            };
            matched |= namespace == "base" && (leaf == "allocation" || (leaf.is_empty() && !set));
        }
        if !fields.0.is_empty() {
            return Err(MALFORMED);
        }
        directory.find(name)?;
        if matched {
            // "The metadata context ID in these replies is reserved and SHOULD be set to zero" in a
            // list.
            let mut payload = if set { CONTEXT_ALLOCATION_ID } else { 0 }.to_be_bytes().to_vec();
            payload.extend_from_slice(CONTEXT_ALLOCATION.as_bytes());
            reply(out, option, rep::META_CONTEXT, &payload);
            if set {
                self.allocation_of = Some(name.to_owned());
            }
        }
        Ok(())
    }
}

/// "`NBD_OPT_LIST`", all but the final reply.
fn list<D: Directory>(directory: &D, out: &mut Vec<u8>) {
    for export in directory.list() {
        let name = clipped(&export.name);
        let mut payload = (name.len() as u32).to_be_bytes().to_vec();
        payload.extend_from_slice(name);
        payload.extend_from_slice(clipped(&export.description));
        reply(out, opt::LIST, rep::SERVER, &payload);
    }
}

/// Strings are UTF-8 without NUL and at most 4096 bytes long ("Terms").
fn string(bytes: &[u8]) -> Result<&str, OptionError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(STRING_TOO_LONG);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&0) => Ok(text),
        _ => Err(MALFORMED),
    }
}

/// The part of a string that the protocol can carry.
fn clipped(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(STRING_BYTES_MAX)]
}

fn error(out: &mut Vec<u8>, option: u32, OptionError(kind, text): OptionError) {
    reply(out, option, kind, text.as_bytes());
}

/// "Fixed newstyle negotiation", the reply format.
fn reply(out: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
}
