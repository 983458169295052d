//! In-band authentication with DH-HMAC-CHAP: NVMe Base 2.0, clause 8.13.
//!
//! - [`Secret`] is what an operator gives to both ends; a [`Key`] is made of it.
//! - [`Message`] is what travels in Authentication Send and Authentication Receive.
//! - [`ControllerAuth`] and [`HostAuth`] are the two ends of one transaction.
//! - [`Work`] is the exponentiation that either end has to have done: it takes milliseconds, and
//!   may run on any thread.
//!
//! None of them draws random bytes: each transaction is given a [`Random`] of its own. Secrets,
//! keys and exponents are wiped when they are dropped, compared in constant time, and never part of
//! what `Debug` prints.

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

/// Random bytes that one transaction takes.
pub const RANDOM_BYTES: usize = 64 + 64 + 4;

/// AUTHREQ in the answer to Connect, in bits 31:16: bit 1, ATR, "authentication transaction
/// required". Base 2.0, figure 388.
pub const TRANSACTION_REQUIRED: u64 = 1 << 17;

/// AUTHREQ bit 2, ASCR: a secure channel is required as well.
pub const SECURE_CHANNEL_REQUIRED: u64 = 1 << 18;

/// The random bytes of one transaction. No two may have the same.
pub struct Random {
    challenge: [u8; 64],
    exponent: Zeroizing<[u8; 64]>,
    sequence: u32,
}

impl Random {
    /// From bytes that nobody can foretell.
    pub fn of(bytes: &[u8; RANDOM_BYTES]) -> Random {
        let (mut challenge, mut exponent) = ([0; 64], Zeroizing::new([0; 64]));
        challenge.copy_from_slice(&bytes[..64]);
        exponent.copy_from_slice(&bytes[64..128]);
        let sequence = u32::from_le_bytes([bytes[128], bytes[129], bytes[130], bytes[131]]);
        // 0 says that there is none.
        Random { challenge, exponent, sequence: sequence.max(1) }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random(..)")
    }
}

/// Between whom a transaction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// HOSTNQN.
    pub host: Nqn,
    /// SUBNQN.
    pub subsystem: Nqn,
}

/// Why an authentication has failed: the "reason code explanation" of reason 1, Base 2.0, clause
/// 8.13.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The other end does not have the secret.
    Failed = 0x01,
    /// Neither protocol that is offered is known.
    Protocol = 0x02,
    /// Secure channel concatenation is wanted by one end only.
    SecureChannel = 0x03,
    /// There is no hash function that both have.
    Hash = 0x04,
    /// There is no Diffie-Hellman group that both have.
    Group = 0x05,
    /// A message whose content makes no sense.
    Payload = 0x06,
    /// A message that it is not the time for.
    Order = 0x07,
}

impl Refusal {
    /// Of a number. What nobody knows is a failure.
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

/// Authentication Send (Base 2.0, clause 6.2) of so many bytes.
pub fn send(len: u32) -> Command {
    // The data are in the capsule: those of an admin queue take 8 KiB there (TCP Transport 1.0,
    // clause 3.3.1.4).
    security(fabrics::AUTHENTICATION_SEND, Sgl::in_capsule(len))
}

/// Authentication Receive (clause 6.1) of so many bytes at most.
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

/// Whether the fields of Authentication Send or Receive are what they have to be, and speak of as
/// many bytes as its descriptor does.
pub fn is_sound(command: &Command) -> bool {
    command.cdw(10) >> 8 == SECURITY_PROTOCOL << 16 | 1 << 8 | 1 && command.cdw(11) == command.dptr.length.get()
}
