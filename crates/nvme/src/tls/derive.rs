//! HKDF-Extract (RFC 5869, clause 2.2) and HKDF-Expand-Label (RFC 8446, clause 7.1).

use zeroize::Zeroizing;

use crate::auth::Hash;

/// The longest context that a label may have, in bytes: its length is one byte.
pub(super) const CONTEXT_BYTES_MAX: usize = 255;

/// What `secret` becomes for a label and a context, as many bytes as the hash function has: extracted without salt, and expanded.
///
/// # Panics
/// If label or context are too long.
pub(super) fn derive(hash: Hash, secret: &[u8], label: &str, context: &[u8]) -> Zeroizing<Vec<u8>> {
    // "if not provided, [the salt] is set to a string of HashLen zeros", which is what HMAC makes of an empty key.
    let extracted = hash.hmac(&[], &[secret]);
    let label = [b"tls13 ", label.as_bytes()].concat();
    let length_of = |text: &[u8]| [u8::try_from(text.len()).expect("labels and contexts have 255 bytes at most")];
    let len = (hash.bytes() as u16).to_be_bytes();
    // HkdfLabel, and the counter of the first block, which is all that is needed.
    hash.hmac(&extracted, &[&len, &length_of(&label), &label, &length_of(context), context, &[1]])
}
