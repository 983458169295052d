//! The identity of an array or a drive.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// 128 bits that identify an array or a drive (RFC 9562). Written as `8-4-4-4-12` lower-case
/// hexadecimal digits.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Uuid([u8; 16]);

/// The text is not a UUID.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not a UUID: expected 8-4-4-4-12 hexadecimal digits")]
pub struct BadUuid {
    /// The text that was given.
    pub text: String,
}

impl Uuid {
    /// All zeroes: no drive.
    pub const NIL: Uuid = Uuid([0; 16]);

    /// The UUID with these bytes, in the order in which they are written as text.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }

    /// A version 4 UUID from 16 random bytes (RFC 9562 section 5.4): six of the bits are replaced.
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0F | 0x40;
        bytes[8] = bytes[8] & 0x3F | 0x80;
        Uuid(bytes)
    }

    /// The bytes, in the order in which they are written as text.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether this is [`Uuid::NIL`].
    pub fn is_nil(&self) -> bool {
        *self == Uuid::NIL
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(36);
        for (index, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&index) {
                text.push('-');
            }
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
        formatter.pad(&text)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl fmt::Debug for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Uuid({self})")
    }
}

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        parse(text.as_bytes()).ok_or_else(|| BadUuid { text: text.to_owned() })
    }
}

fn parse(text: &[u8]) -> Option<Uuid> {
    if text.len() != 36 || [8, 13, 18, 23].iter().any(|&dash| text[dash] != b'-') {
        return None;
    }
    let mut digits = text.iter().enumerate().filter(|(at, _)| ![8, 13, 18, 23].contains(at)).map(|(_, digit)| *digit);
    let mut nibble = || char::from(digits.next()?).to_digit(16).map(|value| value as u8);
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = nibble()? << 4 | nibble()?;
    }
    Some(Uuid(bytes))
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> String {
        uuid.to_string()
    }
}

impl TryFrom<String> for Uuid {
    type Error = BadUuid;

    fn try_from(text: String) -> Result<Self, BadUuid> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00112233-4455-6677-8899-aabbccddeeff";

    #[test]
    fn text_and_bytes_are_the_same_uuid() {
        let uuid: Uuid = TEXT.parse().unwrap();
        assert_eq!(uuid.as_bytes()[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(TEXT.to_uppercase().parse(), Ok(uuid));
        assert_eq!(serde_json::to_string(&uuid).unwrap(), format!("\"{TEXT}\""));
        assert_eq!(serde_json::from_str::<Uuid>(&format!("\"{TEXT}\"")).unwrap(), uuid);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "0", &TEXT[1..], &TEXT.replace('-', ""), &TEXT.replace('f', "g"), &TEXT.replace("00", "é")] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }

    #[test]
    fn random_bytes_become_a_version_4_uuid() {
        let text = Uuid::from_random([0xFF; 16]).to_string();
        assert_eq!(text, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
