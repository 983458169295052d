//! HKDF-Extract (RFC 5869, clause 2.2) and HKDF-Expand-Label (RFC 8446, clause 7.1).
//!
//! libnvme before 1.16, which Debian 13 still ships, expands a label in another way: the length is
//! in little endian, and label and context have no length bytes.

use zeroize::Zeroizing;

use crate::auth::Hash;

/// The longest context of a label, in bytes: its length is stored in one byte.
pub(super) const CONTEXT_BYTES_MAX: usize = 255;

/// The implementation whose way of expanding labels is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Derivation {
    /// As the specification says.
    Rfc8446,
    /// As libnvme before 1.16 does, and later versions with `--compat`.
    Libnvme,
}

/// Derives a key from `secret` for a label and a context: HKDF-Extract without salt, then expand.
/// The result has as many bytes as the hash function.
///
/// # Panics
/// If label or context are too long for RFC 8446.
pub(super) fn derive(by: Derivation, hash: Hash, secret: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    // "if not provided, [the salt] is set to a string of HashLen zeros": HMAC makes the same of an
    // empty key.
    let extracted = hash.hmac(&[], &[secret]);
    let label = [b"tls13 ", label.as_bytes()].concat();
    let length_of = |text: &[u8]| [u8::try_from(text.len()).expect("labels and contexts have 255 bytes at most")];
    let len = hash.bytes() as u16;
    // HkdfLabel, then the counter of the first block. One block is enough.
    match by {
        Derivation::Rfc8446 => {
            hash.hmac(&extracted, &[&len.to_be_bytes(), &length_of(&label), &label, &length_of(context), context, &[1]])
        }
        Derivation::Libnvme => hash.hmac(&extracted, &[&len.to_le_bytes(), &label, context, &[1]]),
    }
}
