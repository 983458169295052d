//! Identities: how a handshake names a key.

use base64ct::{Base64, Encoding};

use crate::Nqn;
use crate::auth::Hash;

/// A PSK identity: TCP Transport 1.0, clause 3.6.1.3.
///
/// ```text
/// NVMe0R01 HOSTNQN SUBNQN            version 0
/// NVMe1R01 HOSTNQN SUBNQN DIGEST     version 1
/// ```
/// The digest tells keys of the same host and subsystem apart. R is a retained key, which an
/// operator has configured. Keys that an authentication generates (G) are not supported. 01 is
/// SHA-256, 02 SHA-384.
///
/// Revision 1.0 ends an identity with a zero byte. No known implementation sends it; a reader
/// removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The host that the key belongs to.
    pub host: Nqn,
    /// The subsystem that the key is for.
    pub subsystem: Nqn,
    /// The hash function of the cipher suite.
    pub hash: Hash,
    /// Only in version 1: the digest in base 64.
    pub digest: Option<String>,
}

impl TlsIdentity {
    /// Reads an identity. `None` if it has neither form.
    pub fn parse(bytes: &[u8]) -> Option<TlsIdentity> {
        let text = std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()?;
        let mut parts = text.split(' ');
        let (version, hash) = match parts.next()? {
            "NVMe0R01" => (0, Hash::Sha256),
            "NVMe0R02" => (0, Hash::Sha384),
            "NVMe1R01" => (1, Hash::Sha256),
            "NVMe1R02" => (1, Hash::Sha384),
            _ => return None,
        };
        let host = parts.next()?.parse().ok()?;
        let subsystem = parts.next()?.parse().ok()?;
        let digest = match version {
            0 => None,
            _ => Some(parts.next()?.to_owned()),
        };
        let is_sound = parts.next().is_none()
            && digest
                .as_ref()
                .is_none_or(|digest| Base64::decode_vec(digest).is_ok_and(|digest| digest.len() == hash.bytes()));
        is_sound.then_some(TlsIdentity { host, subsystem, hash, digest })
    }

    /// The identity as text.
    pub fn text(&self) -> String {
        let TlsIdentity { host, subsystem, hash, digest } = self;
        let number = *hash as u8;
        match digest {
            None => format!("NVMe0R{number:02} {host} {subsystem}"),
            Some(digest) => format!("NVMe1R{number:02} {host} {subsystem} {digest}"),
        }
    }
}
