//! The size of a volume as users write it: in bytes, or as a share of the available space.

use std::str::FromStr;

use api::parse_bytes;

use crate::Failure;

/// The size of a volume is a multiple of this.
const BLOCK_BYTES: u64 = 4096;

/// A size, or a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeSize {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the space that is available to the volume.
    Share(Share),
}

/// A share, 1 to 100 percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u8);

impl Share {
    /// This share of `free_bytes`, rounded down to whole blocks.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the result is 0.
    pub fn of(self, free_bytes: u64) -> Result<u64, Failure> {
        let bytes = (u128::from(free_bytes) * u128::from(self.0) / 100) as u64 / BLOCK_BYTES * BLOCK_BYTES;
        if bytes == 0 {
            return Err(Failure::Usage(format!("{}% of {free_bytes} free bytes hold no volume", self.0)));
        }
        Ok(bytes)
    }
}

impl FromStr for VolumeSize {
    type Err = String;

    fn from_str(text: &str) -> Result<VolumeSize, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return parse_bytes(text).map(VolumeSize::Bytes).map_err(|error| error.to_string());
        };
        match percent.parse() {
            Ok(percent @ 1..=100) if !text.starts_with('+') => Ok(VolumeSize::Share(Share(percent))),
            _ => Err(format!("{text:?} is not a share: write 1% to 100%")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_bytes_or_a_share_of_what_is_free() {
        assert_eq!("10GiB".parse(), Ok(VolumeSize::Bytes(10 << 30)));
        for (text, free, bytes) in [("100%", 10_000, 8192), ("50%", 1 << 30, 1 << 29), ("1%", u64::MAX, u64::MAX / 100)]
        {
            let Ok(VolumeSize::Share(share)) = text.parse() else { panic!("{text}") };
            assert_eq!(share.of(free).unwrap(), bytes / BLOCK_BYTES * BLOCK_BYTES, "{text} of {free}");
        }
        for text in ["0%", "101%", "%", "-1%", "+5%", "1.5%", "50%FREE"] {
            assert!(text.parse::<VolumeSize>().is_err(), "{text}");
        }
        assert!(Share(100).of(4095).is_err());
    }
}
