//! HKDF-Extract (RFC 5869, clause 2.2) and HKDF-Expand-Label (RFC 8446, clause 7.1).
//!
//! libnvme before 1.16, which Debian 13 still has, expands a label otherwise: the length has its
//! low byte first, and label and context have no lengths.

use zeroize::Zeroizing;

use crate::auth::Hash;

/// The longest context that a label may have, in bytes: its length is one byte.
pub(super) const CONTEXT_BYTES_MAX: usize = 255;

/// Who expands a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Derivation {
    /// As the specification has it.
    Rfc8446,
    /// As libnvme before 1.16 does, and later ones when they are asked for it (`--compat`).
    Libnvme,
}

/// What `secret` becomes for a label and a context, as many bytes as the hash function has:
/// extracted without salt, and expanded.
///
/// # Panics
/// If label or context are too long for RFC 8446.
pub(super) fn derive(by: Derivation, hash: Hash, secret: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    // "if not provided, [the salt] is set to a string of HashLen zeros", which is what HMAC makes
    // of an empty key.
    let extracted = hash.hmac(&[], &[secret]);
    let label = [b"tls13 ", label.as_bytes()].concat();
    let length_of = |text: &[u8]| [u8::try_from(text.len()).expect("labels and contexts have 255 bytes at most")];
    let len = hash.bytes() as u16;
    // HkdfLabel, and the counter of the first block, which is all that is needed.
    match by {
        Derivation::Rfc8446 => {
            hash.hmac(&extracted, &[&len.to_be_bytes(), &length_of(&label), &label, &length_of(context), context, &[1]])
        }
        Derivation::Libnvme => hash.hmac(&extracted, &[&len.to_le_bytes(), &label, context, &[1]]),
    }
}
