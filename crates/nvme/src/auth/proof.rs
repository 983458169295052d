//! Proof that an end has a key: NVMe Base 2.0, clauses 8.13.5.4 and 8.13.5.5.

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{DhGroup, Hash, Key, Names};

/// The end that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Host,
    Controller,
}

/// Values that both ends of a transaction share after the Diffie-Hellman exchange.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub hash: Hash,
    pub group: DhGroup,
    pub transaction: u16,
    pub names: Names,
    /// (g^x)^y mod p; empty without a group.
    pub shared: Zeroizing<Vec<u8>>,
}

impl Terms {
    /// The answer to a challenge, R1 or R2. Integers are in little endian. There is no secure
    /// channel (SC_C is 0).
    pub fn answer(&self, who: Who, key: &Key, challenge: &[u8], sequence: u32) -> Zeroizing<Vec<u8>> {
        let Terms { hash, group, transaction, names, shared } = self;
        let augmented = match group {
            DhGroup::Null => Zeroizing::new(challenge.to_vec()),
            // The key is the session key, K_S.
            _ => hash.hmac(&hash.digest(shared), &[challenge]),
        };
        let (host, subsystem) = (names.host.as_str().as_bytes(), names.subsystem.as_str().as_bytes());
        let (label, first, second): (&[u8], _, _) = match who {
            Who::Host => (b"HostHost", host, subsystem),
            Who::Controller => (b"Controller", subsystem, host),
        };
        let (sequence, transaction) = (sequence.to_le_bytes(), transaction.to_le_bytes());
        hash.hmac(key.bytes(), &[&augmented, &sequence, &transaction, &[0], label, first, &[0], second])
    }

    /// Whether an answer is right. The comparison takes constant time.
    pub fn is_answer(&self, who: Who, key: &Key, challenge: &[u8], sequence: u32, answer: &[u8]) -> bool {
        self.answer(who, key, challenge, sequence).ct_eq(answer).into()
    }
}
