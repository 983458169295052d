//! Secrets in their text form, and the keys derived from them: NVMe Base 2.0, clauses 8.13.5.7 and
//! 8.13.5.8.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use super::Hash;
use crate::Nqn;

/// A secret: 32, 48 or 64 bytes, and the hash function that derives a host's or a controller's key
/// from them. The text form is `DHHC-1:HH:BASE64:`. HH is that function (00 for none), and the base
/// 64 contains the bytes and their CRC-32.
#[derive(Clone)]
pub struct Secret {
    transform: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

/// Why a text is not a secret. The error does not quote the text: it may be one with a typing
/// error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SecretError {
    /// The text has another form.
    #[error("it does not have the form DHHC-1:HH:BASE64: with a colon at its end")]
    Form,
    /// HH is not 00 to 03.
    #[error("its hash function is not one of 00 (none), 01 (SHA-256), 02 (SHA-384) and 03 (SHA-512)")]
    Hash,
    /// The wrong number of bytes.
    #[error("it has neither 32, 48 nor 64 bytes")]
    Length,
    /// The CRC-32 does not match.
    #[error("its checksum is wrong: a character is missing or is another one")]
    Checksum,
}

const PREFIX: &str = "DHHC-1:";

impl Secret {
    /// A secret of random bytes for a hash function. It uses as many bytes as a digest has, or 32
    /// without a hash function.
    ///
    /// # Panics
    /// If there are too few bytes.
    pub fn generate(transform: Option<Hash>, random: &[u8]) -> Secret {
        let len = transform.map_or(32, Hash::bytes);
        Secret { transform, bytes: Zeroizing::new(random[..len].to_vec()) }
    }

    /// The secret as text. A reader of the text can impersonate its owner.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        bytes.extend_from_slice(&crc32(&self.bytes).to_le_bytes());
        let mut encoded = Base64::encode_string(&bytes);
        let number = self.transform.map_or(0, |hash| hash as u8);
        let text = Zeroizing::new(format!("{PREFIX}{number:02x}:{encoded}:"));
        encoded.zeroize();
        text
    }

    /// The key of the host or the subsystem of this name.
    pub fn key(&self, nqn: &Nqn) -> Key {
        Key(match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_str().as_bytes(), b"NVMe-over-Fabrics"]),
        })
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secret, SecretError> {
        let rest = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':')).ok_or(SecretError::Form)?;
        let (number, encoded) = rest.split_once(':').ok_or(SecretError::Form)?;
        let transform = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let mut bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| SecretError::Form)?);
        let len = bytes.len().checked_sub(4).ok_or(SecretError::Length)?;
        if !matches!(len, 32 | 48 | 64) {
            return Err(SecretError::Length);
        }
        let sum = crc32(&bytes[..len]).to_le_bytes();
        if !bool::from(bytes[len..].ct_eq(&sum)) {
            return Err(SecretError::Checksum);
        }
        bytes.truncate(len);
        Ok(Secret { transform, bytes })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.transform == other.transform && bool::from(self.bytes.ct_eq(&other.bytes))
    }
}

impl Eq for Secret {}

/// The key with which a host or a subsystem authenticates.
#[derive(Clone)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// CRC-32 of IEEE 802.3, bit by bit: its time depends on the length alone.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_ieee_802_3() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_secret_is_read_as_it_is_printed() {
        for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
            let secret = Secret::generate(transform, &[0x5A; 64]);
            assert_eq!(secret.text().parse::<Secret>(), Ok(secret.clone()));
            assert!(!format!("{secret:?}{:?}", secret.key(&Nqn::of_uuid(&[1; 16]))).contains('Z'));
        }
    }

    /// The example of the specification, which is valid with any hash function, and secrets made by
    /// nvme-cli.
    #[test]
    fn secrets_of_others_are_read() {
        let mut texts: Vec<String> =
            (0..4).map(|hash| format!("DHHC-1:0{hash}:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:")).collect();
        texts.push("DHHC-1:01:vYcm5QemILkz5zSIeZidb4nPGcxongu2l/OaWMRgM9iIk/2A:".to_owned());
        texts.push("DHHC-1:02:Hi9ha9idssh3FgURRbfMUvOY7NlHiApDCmHhmIRCdhdlNQwebHEt/7DHoag3SmCHFvei/Q==:".to_owned());
        for text in texts {
            let secret: Secret = text.parse().expect("a secret");
            assert_eq!(*secret.text(), text);
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let good = Secret::generate(Some(Hash::Sha256), &[7; 64]).text();
        let (head, tail) = good.split_at(20);
        let cases = [
            ("", SecretError::Form),
            ("DHHC-1:01:", SecretError::Form),
            (good.trim_end_matches(':'), SecretError::Form),
            (&good.replace("DHHC-1", "DHHC-2"), SecretError::Form),
            (&good.replace(":01:", ":04:"), SecretError::Hash),
            (&good.replace(":01:", ":1:"), SecretError::Hash),
            (&format!("{head}{}", tail.replacen('B', "C", 1)), SecretError::Checksum),
            (&format!("{head}!{}", &tail[1..]), SecretError::Form),
            ("DHHC-1:00:AAAA:", SecretError::Length),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Secret>().map(drop), Err(expected), "{text}");
        }
    }
}
