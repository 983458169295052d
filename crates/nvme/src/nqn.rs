//! Names of subsystems and hosts: NVMe Base 2.0, clause 4.5.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// An NVMe Qualified Name: up to 223 bytes of UTF-8 that begin with `nqn.` and a month.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// The longest name in bytes.
pub const NQN_BYTES_MAX: usize = 223;

/// Bytes of a field that holds a name, ended by a zero byte.
pub const NQN_FIELD_BYTES: usize = 256;

/// The name of every discovery subsystem: Base 2.0, clause 4.5.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The service type of discovery services that announce themselves by multicast DNS over TCP: TP
/// 8009, in the form of RFC 6763.
pub const DISCOVERY_SERVICE_TYPE: &str = "_nvme-disc._tcp.local.";

/// The prefix of names made of a UUID.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Why a text is not an NQN.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NqnError {
    /// Too long.
    #[error("an NQN has at most {NQN_BYTES_MAX} bytes, this one has {0}")]
    Long(usize),
    /// Not `nqn.yyyy-mm.`
    #[error(
        "{0:?} is not an NQN: it would begin with \"nqn.\", a year and a month, such as \"nqn.2026-11.com.example:\""
    )]
    Form(String),
    /// Not text, or no zero byte behind it.
    #[error("the field of an NQN holds no text that is ended by a zero")]
    Field,
}

impl Nqn {
    /// The name made of a UUID, for owners without a domain.
    pub fn of_uuid(uuid: &[u8; 16]) -> Nqn {
        let hex =
            |range: std::ops::Range<usize>| uuid[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts = [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)];
        Nqn(format!("{UUID_PREFIX}{}", parts.join("-")))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a field of a structure: text ended by a zero byte.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).ok_or(NqnError::Field)?;
        std::str::from_utf8(&field[..end]).map_err(|_| NqnError::Field)?.parse()
    }

    /// The name as a field of a structure.
    pub fn field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::Long(text.len()));
        }
        let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        let well_formed = match text.as_bytes() {
            [b'n', b'q', b'n', b'.', y0, y1, y2, y3, b'-', m0, m1, b'.', rest @ ..] => {
                digits(&[*y0, *y1, *y2, *y3, *m0, *m1]) && !rest.is_empty() && rest.iter().all(|byte| *byte >= b' ')
            }
            _ => false,
        };
        if well_formed { Ok(Nqn(text.to_owned())) } else { Err(NqnError::Form(text.to_owned())) }
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_specification_allows() {
        for good in [DISCOVERY_NQN, "nqn.2026-11.com.example:target-1", "nqn.2014-08.org.nvmexpress:uuid:0"] {
            let nqn: Nqn = good.parse().expect(good);
            assert_eq!(Nqn::from_field(&nqn.field()), Ok(nqn));
        }
        for bad in [
            "",
            "nqn",
            "nqn.2026-11",
            "nqn.2026-11.",
            "nqn.26-11.com.example",
            "iqn.2026-11.com.example",
            "nqn.2026-1x.a",
        ] {
            assert_eq!(bad.parse::<Nqn>(), Err(NqnError::Form(bad.to_owned())));
        }
        let long = format!("nqn.2026-11.{}", "a".repeat(NQN_BYTES_MAX));
        assert_eq!(long.parse::<Nqn>(), Err(NqnError::Long(long.len())));
        assert_eq!(Nqn::from_field(&[b'a'; NQN_FIELD_BYTES]), Err(NqnError::Field));
        assert_eq!(
            Nqn::of_uuid(&[0x12; 16]).as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:12121212-1212-1212-1212-121212121212"
        );
    }
}
