//! The client's messages: encoders for those it sends, parsers for those it receives. For tests and
//! tools; there is no client state machine here.

use crate::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, cmd, opt,
};

/// "Client flags".
pub fn flags(fixed: bool, no_zeroes: bool) -> Vec<u8> {
    let fixed = if fixed { FLAG_FIXED_NEWSTYLE } else { 0 };
    let no_zeroes = if no_zeroes { FLAG_NO_ZEROES } else { 0 };
    u32::from(fixed | no_zeroes).to_be_bytes().to_vec()
}

/// Any option with its data ("Newstyle negotiation").
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    message
}

/// `NBD_OPT_GO` with a list of wanted information.
pub fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    option(opt::GO, &info_data(name, wanted))
}

/// `NBD_OPT_INFO` with a list of wanted information.
pub fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    option(opt::INFO, &info_data(name, wanted))
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// `NBD_OPT_LIST_META_CONTEXT`, or with `set` `NBD_OPT_SET_META_CONTEXT`.
pub fn meta_context(set: bool, name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| counted(query)));
    option(if set { opt::SET_META_CONTEXT } else { opt::LIST_META_CONTEXT }, &data)
}

fn counted(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Any request without data ("Request message").
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
    message.extend_from_slice(&flags.to_be_bytes());
    message.extend_from_slice(&command.to_be_bytes());
    message.extend_from_slice(&cookie.to_be_bytes());
    message.extend_from_slice(&offset.to_be_bytes());
    message.extend_from_slice(&len.to_be_bytes());
    message
}

/// `NBD_CMD_READ`.
pub fn read(cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    request(0, cmd::READ, cookie, offset, len)
}

/// `NBD_CMD_WRITE` with its data.
pub fn write(cookie: u64, offset: u64, data: &[u8], flags: u16) -> Vec<u8> {
    let mut message = request(flags, cmd::WRITE, cookie, offset, data.len() as u32);
    message.extend_from_slice(data);
    message
}

/// `NBD_CMD_FLUSH`.
pub fn flush(cookie: u64) -> Vec<u8> {
    request(0, cmd::FLUSH, cookie, 0, 0)
}

/// `NBD_CMD_DISC`.
pub fn disconnect() -> Vec<u8> {
    request(0, cmd::DISC, 0, 0, 0)
}

/// A reply to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionReply {
    /// The option that it answers.
    pub option: u32,
    /// One of [`crate::wire::rep`].
    pub kind: u32,
    /// The payload after the header.
    pub payload: Vec<u8>,
}

/// Takes one option reply off the front of `input`. `None` if there is no complete one, or another
/// message.
pub fn option_reply(input: &mut &[u8]) -> Option<OptionReply> {
    let mut fields = Fields(input);
    if fields.u64()? != OPTION_REPLY_MAGIC {
        return None;
    }
    let (option, kind) = (fields.u32()?, fields.u32()?);
    let payload = fields.counted()?.to_vec();
    *input = fields.0;
    Some(OptionReply { option, kind, payload })
}

/// A reply to a request, or a chunk of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// "Simple reply message".
    Simple {
        /// 0 or an error value.
        error: u32,
        /// The request's cookie.
        cookie: u64,
        /// Data of a read.
        data: Vec<u8>,
    },
    /// "Structured reply chunk message".
    Chunk {
        /// This is the last chunk of the reply.
        done: bool,
        /// One of [`crate::wire::chunk`].
        kind: u16,
        /// The request's cookie.
        cookie: u64,
        /// The payload after the header.
        payload: Vec<u8>,
    },
}

/// Takes one reply off the front of `input`. `None` if there is no complete one, or another
/// message. The length of the data after a successful simple reply is known only to the sender of
/// the request: `read_bytes` returns it for a cookie.
pub fn reply(input: &mut &[u8], read_bytes: impl Fn(u64) -> usize) -> Option<Reply> {
    let mut fields = Fields(input);
    let reply = match fields.u32()? {
        SIMPLE_REPLY_MAGIC => {
            let (error, cookie) = (fields.u32()?, fields.u64()?);
            let len = if error == 0 { read_bytes(cookie) } else { 0 };
            Reply::Simple { error, cookie, data: fields.bytes(len)?.to_vec() }
        }
        STRUCTURED_REPLY_MAGIC => {
            let (flags, kind, cookie) = (fields.u16()?, fields.u16()?, fields.u64()?);
            Reply::Chunk { done: flags & chunk::FLAG_DONE != 0, kind, cookie, payload: fields.counted()?.to_vec() }
        }
        _ => return None,
    };
    *input = fields.0;
    Some(reply)
}
