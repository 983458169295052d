//! Every limit, with the reason for its number.

/// Longest string in bytes: export name, description, metadata query, error message. A string "MUST
/// be no longer than 4096 bytes" ("Terms").
pub const STRING_BYTES_MAX: usize = 4096;

/// Longest option data that is parsed, in bytes. The longest sensible option is a metadata query:
/// an export name and a few context names of at most [`STRING_BYTES_MAX`] each. An option must fit
/// into the receive buffer as a whole, so this also bounds the memory of a client that has not
/// chosen an export.
pub const OPTION_BYTES_MAX: usize = 32 << 10;

/// Longest option data that is skipped and answered with `NBD_REP_ERR_TOO_BIG`, in bytes. A greater
/// length is taken for garbage and ends the connection. The limit is equal to the largest payload
/// that is served ([`PAYLOAD_BYTES_MAX`]). After the handshake up to [`DRAIN_BYTES_MAX`] are
/// skipped.
pub const OPTION_SKIP_BYTES_MAX: u32 = 32 << 20;

/// Options that one connection may send. Clients send fewer than ten, and one more for every export
/// they ask about. A client that sends more only keeps the server busy.
pub const OPTIONS_MAX: u32 = 8192;

/// Largest payload of one request or reply, in bytes: the value that every client may assume ("Size
/// constraints").
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Largest write payload that is read and discarded, so that the connection survives an oversized
/// write, in bytes. A greater length counts as an attack and ends the connection ("Size
/// constraints": a party MAY initiate a hard disconnect if a payload would be large enough to be
/// deemed a denial of service attack).
pub const DRAIN_BYTES_MAX: u32 = 64 << 20;

/// If at least this many payload bytes are missing, the payload is received directly into its own
/// buffer. For fewer bytes, a receive that also brings the next requests, plus a copy, is cheaper
/// than a separate system call.
pub const DIRECT_BYTES_MIN: u32 = 16 << 10;

/// Descriptors in one block status reply. The protocol allows 2^20 (`NBD_REPLY_TYPE_BLOCK_STATUS`).
/// This limit keeps the reply to a 28-byte request at about 64 KiB, and clients send another
/// request for the rest.
pub const STATUS_DESCRIPTORS_MAX: usize = 8 << 10;

/// Smallest receive buffer with which every message can be parsed, in bytes: the largest option
/// with its header.
pub const INPUT_BYTES_MIN: usize = OPTION_BYTES_MAX + 16;
