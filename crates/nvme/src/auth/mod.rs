//! In-band authentication with DH-HMAC-CHAP: NVMe Base 2.0, clause 8.13.
//!
//! - [`Secret`]: the secret that an operator configures at both ends; a [`Key`] is derived from it.
//! - [`Message`]: the data of Authentication Send and Authentication Receive.
//! - [`ControllerAuth`] and [`HostAuth`]: the two ends of one transaction.
//! - [`Work`]: the exponentiation that either end needs. It takes milliseconds and may run on any
//!   thread.
//!
//! This module draws no random bytes: the caller gives each transaction its own [`Random`].
//! Secrets, keys and exponents are wiped when they are dropped, compared in constant time, and
//! never part of the output of `Debug`.

mod controller;
mod group;
mod hash;
mod host;
mod message;
mod primes;
mod proof;
mod secret;

pub use controller::{ControllerAuth, Policy};
pub use group::{DhGroup, Work, Worked};
pub use hash::Hash;
pub use host::{Credentials, HostAuth, Turn};
pub use message::{Challenge, MESSAGE_BYTES_MAX, Message, Negotiate, Response, Success};
pub(crate) use secret::crc32;
pub use secret::{Key, Secret, SecretError};

use std::fmt;

use zeroize::Zeroizing;

use crate::{Command, FABRICS, Nqn, Sgl, fabrics};

/// SECP: security protocol of authentication (Base 2.0, figure 378).
const SECURITY_PROTOCOL: u32 = 0xE9;

/// Random bytes that one transaction needs.
pub const RANDOM_BYTES: usize = 64 + 64 + 4;

/// AUTHREQ in the answer to Connect, in bits 31:16: bit 1, ATR, "authentication transaction
/// required". Base 2.0, figure 388.
pub const TRANSACTION_REQUIRED: u64 = 1 << 17;

/// AUTHREQ bit 2, ASCR: a secure channel is required as well.
pub const SECURE_CHANNEL_REQUIRED: u64 = 1 << 18;

/// The random bytes of one transaction. No two transactions may use the same.
pub struct Random {
    challenge: [u8; 64],
    exponent: Zeroizing<[u8; 64]>,
    sequence: u32,
}

impl Random {
    /// Takes unpredictable bytes.
    pub fn of(bytes: &[u8; RANDOM_BYTES]) -> Random {
        let (mut challenge, mut exponent) = ([0; 64], Zeroizing::new([0; 64]));
        challenge.copy_from_slice(&bytes[..64]);
        exponent.copy_from_slice(&bytes[64..128]);
        let sequence = u32::from_le_bytes([bytes[128], bytes[129], bytes[130], bytes[131]]);
        // A sequence number of 0 means that there is none.
        Random { challenge, exponent, sequence: sequence.max(1) }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random(..)")
    }
}

/// The two ends of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// HOSTNQN.
    pub host: Nqn,
    /// SUBNQN.
    pub subsystem: Nqn,
}

/// Why an authentication failed: the "reason code explanation" of reason 1, Base 2.0, clause
/// 8.13.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The other end does not have the secret.
    Failed = 0x01,
    /// No offered protocol is supported.
    Protocol = 0x02,
    /// Only one end wants secure channel concatenation.
    SecureChannel = 0x03,
    /// The two ends have no hash function in common.
    Hash = 0x04,
    /// The two ends have no Diffie-Hellman group in common.
    Group = 0x05,
    /// A malformed message.
    Payload = 0x06,
    /// A message out of order.
    Order = 0x07,
}

impl Refusal {
    /// The reason with this number. Unknown numbers count as [`Refusal::Failed`].
    pub fn of(explanation: u8) -> Refusal {
        match explanation {
            0x02 => Refusal::Protocol,
            0x03 => Refusal::SecureChannel,
            0x04 => Refusal::Hash,
            0x05 => Refusal::Group,
            0x06 => Refusal::Payload,
            0x07 => Refusal::Order,
            _ => Refusal::Failed,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Failed => "the secret is another one",
            Refusal::Protocol => "no authentication protocol is known to both",
            Refusal::SecureChannel => "a secure channel is wanted by one side only",
            Refusal::Hash => "no hash function is allowed by both",
            Refusal::Group => "no Diffie-Hellman group is allowed by both",
            Refusal::Payload => "a message was malformed",
            Refusal::Order => "a message came out of order",
        })
    }
}

/// Authentication Send (Base 2.0, clause 6.2) of `len` bytes.
pub fn send(len: u32) -> Command {
    // The data are in the capsule: on an admin queue up to 8 KiB fit there (TCP Transport 1.0,
    // clause 3.3.1.4).
    security(fabrics::AUTHENTICATION_SEND, Sgl::in_capsule(len))
}

/// Authentication Receive (clause 6.1) of at most `len` bytes.
pub fn receive(len: u32) -> Command {
    security(fabrics::AUTHENTICATION_RECEIVE, Sgl::transport(len))
}

fn security(kind: u8, dptr: Sgl) -> Command {
    let mut command = Command::new(FABRICS, 0, kind.into());
    command.dptr = dptr;
    // SPSP1 and SPSP0 are 1.
    command.set_cdw(10, SECURITY_PROTOCOL << 24 | 1 << 16 | 1 << 8);
    command.set_cdw(11, dptr.length.get());
    command
}

/// Whether Authentication Send or Receive has valid fields, and its length is that of its
/// descriptor.
pub fn is_sound(command: &Command) -> bool {
    command.cdw(10) >> 8 == SECURITY_PROTOCOL << 16 | 1 << 8 | 1 && command.cdw(11) == command.dptr.length.get()
}
