//! Configured keys in their text form, and the PSKs of handshakes.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::TlsIdentity;
use super::derive::{CONTEXT_BYTES_MAX, Derivation, derive};
use crate::Nqn;
use crate::auth::{Hash, crc32};

/// A configured key: 32 bytes for SHA-256 or 48 for SHA-384. A host's retained key is either
/// derived from these bytes or is these bytes. The text form, the PSK interchange format (TCP
/// Transport 1.0, clause 3.6.1.5), is `NVMeTLSkey-1:HH:BASE64:`. HH is the hash function (00: the
/// bytes are the retained key), and the base 64 contains the bytes and their CRC-32.
#[derive(Clone)]
pub struct TlsKey {
    is_transformed: bool,
    derivation: Derivation,
    bytes: Zeroizing<Vec<u8>>,
}

/// Why a text is not a key. The error does not quote the text, which may be a key with a typing
/// error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TlsKeyError {
    /// The text has another form.
    #[error("it does not have the form NVMeTLSkey-1:HH:BASE64: with a colon at its end")]
    Form,
    /// HH is not 00 to 02.
    #[error("its hash function is not one of 00 (none), 01 (SHA-256) and 02 (SHA-384)")]
    Hash,
    /// The wrong number of bytes.
    #[error("it has not as many bytes as its hash function wants: 32 for SHA-256, 48 for SHA-384, either for none")]
    Length,
    /// The CRC-32 does not match.
    #[error("its checksum is wrong: a character is missing or is another one")]
    Checksum,
}

const PREFIX: &str = "NVMeTLSkey-1:";

/// The constant part of the digest's message, behind the names.
const DIGEST_SEED: &[u8] = b" NVMe-over-Fabrics";

impl TlsKey {
    /// A key of random bytes. It uses as many as the hash function has: 32 for SHA-256, 48 for
    /// SHA-384. Each host derives its own retained key from it.
    ///
    /// # Panics
    /// If there are too few bytes, or for SHA-512, which no TLS cipher suite uses.
    pub fn generate(hash: Hash, random: &[u8]) -> TlsKey {
        assert!(hash != Hash::Sha512, "no cipher suite of TLS 1.3 has SHA-512");
        let bytes = Zeroizing::new(random[..hash.bytes()].to_vec());
        TlsKey { is_transformed: true, derivation: Derivation::Rfc8446, bytes }
    }

    /// The same key for a peer with a libnvme before 1.16, which derives keys in another way than
    /// the specification says. The text of the key does not show it.
    pub fn of_old_libnvme(self) -> TlsKey {
        TlsKey { derivation: Derivation::Libnvme, ..self }
    }

    /// The hash function of the cipher suite: TLS_AES_128_GCM_SHA256 or TLS_AES_256_GCM_SHA384.
    pub fn hash(&self) -> Hash {
        if self.bytes.len() == Hash::Sha256.bytes() { Hash::Sha256 } else { Hash::Sha384 }
    }

    /// The key as text. A reader of the text can impersonate the host.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        bytes.extend_from_slice(&crc32(&self.bytes).to_le_bytes());
        let mut encoded = Base64::encode_string(&bytes);
        let number = if self.is_transformed { self.hash() as u8 } else { 0 };
        let text = Zeroizing::new(format!("{PREFIX}{number:02}:{encoded}:"));
        encoded.zeroize();
        text
    }

    /// The retained key of a host. It replaces the configured key, which "shall be destroyed" then
    /// (clause 3.6.1.3). Both lead to the same PSKs for this host.
    pub fn retained(&self, host: &Nqn) -> TlsKey {
        let bytes = match self.is_transformed {
            true => derive(self.derivation, self.hash(), &self.bytes, "HostNQN", host.as_str().as_bytes()),
            false => self.bytes.clone(),
        };
        TlsKey { is_transformed: false, derivation: self.derivation, bytes }
    }

    /// The PSKs that a host may offer to a subsystem, in both derivations, which have different
    /// identities. The most specific identity is first. A key
    /// [`of_old_libnvme`](TlsKey::of_old_libnvme), or a retained one, has its own derivation only.
    pub fn offered(&self, host: &Nqn, subsystem: &Nqn) -> Vec<TlsPsk> {
        let mut psks = self.psks(host, subsystem);
        let old = self.clone().of_old_libnvme().psks(host, subsystem);
        let is_another = self.is_transformed && self.derivation == Derivation::Rfc8446;
        psks.splice(1..1, old.into_iter().filter(|_| is_another));
        psks
    }

    /// The PSKs that a host and a subsystem may use, the most specific identity first. Version 0 is
    /// missing if both names together are too long for it. It is also missing for an old libnvme,
    /// because its secret would differ from the standard one with the same identity.
    pub fn psks(&self, host: &Nqn, subsystem: &Nqn) -> Vec<TlsPsk> {
        let hash = self.hash();
        let retained = self.retained(host).bytes;
        let names = format!("{host} {subsystem}");
        let digest = Base64::encode_string(&hash.hmac(&retained, &[names.as_bytes(), DIGEST_SEED]));
        let psk = |digest: Option<String>, context: &str| TlsPsk {
            identity: TlsIdentity { host: host.clone(), subsystem: subsystem.clone(), hash, digest },
            secret: derive(self.derivation, hash, &retained, "nvme-tls-psk", context.as_bytes()),
        };
        let version_1 = psk(Some(digest.clone()), &format!("{:02} {digest}", hash as u8));
        let context = TlsIdentity { digest: None, ..version_1.identity.clone() }.text();
        let has_version_0 = self.derivation == Derivation::Rfc8446 && context.len() <= CONTEXT_BYTES_MAX;
        let version_0 = has_version_0.then(|| psk(None, &context));
        std::iter::once(version_1).chain(version_0).collect()
    }
}

impl FromStr for TlsKey {
    type Err = TlsKeyError;

    fn from_str(text: &str) -> Result<TlsKey, TlsKeyError> {
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':')).ok_or(TlsKeyError::Form)?;
        let (number, encoded) = rest.split_once(':').ok_or(TlsKeyError::Form)?;
        let lens: &[usize] = match number {
            "00" => &[32, 48],
            "01" => &[32],
            "02" => &[48],
            _ => return Err(TlsKeyError::Hash),
        };
        let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| TlsKeyError::Form)?);
        let len = bytes.len().checked_sub(4).filter(|len| lens.contains(len)).ok_or(TlsKeyError::Length)?;
        let sum = crc32(&bytes[..len]).to_le_bytes();
        if !bool::from(bytes[len..].ct_eq(&sum)) {
            return Err(TlsKeyError::Checksum);
        }
        bytes.truncate(len);
        Ok(TlsKey { is_transformed: number != "00", derivation: Derivation::Rfc8446, bytes })
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKey(..)")
    }
}

impl PartialEq for TlsKey {
    fn eq(&self, other: &TlsKey) -> bool {
        let is_alike = (self.is_transformed, self.derivation) == (other.is_transformed, other.derivation);
        is_alike && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for TlsKey {}

/// The secret of a TLS handshake between a host and a subsystem, with its identity.
#[derive(Clone)]
pub struct TlsPsk {
    /// The identity.
    pub identity: TlsIdentity,
    secret: Zeroizing<Vec<u8>>,
}

impl TlsPsk {
    /// The TLS PSK: as many bytes as the hash function of the identity has.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity.text())
    }
}
