//! How thin volumes use the pool of their group.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, format_bytes, format_duration};

/// The highest level of Zstandard. Higher ones would hold up other requests.
pub const ZSTD_LEVEL_MAX: u8 = 9;

/// The level of Zstandard that `zstd` stands for.
pub const ZSTD_LEVEL_DEFAULT: u8 = 3;

/// Most milliseconds that a write waits for space.
pub const FULL_WAIT_MS_MAX: u64 = 20_000;

/// Most seconds after which content is packed again: ten years.
pub const REPACK_AFTER_S_MAX: u64 = 3650 * 86_400;

/// Most levels of use at which the pool of thin volumes warns.
pub const THIN_WARN_LEVELS_MAX: usize = 8;

/// How new blocks of a thin volume are stored: `off`, `lz4`, `zstd` or `zstd:LEVEL`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compression {
    /// As they are.
    #[default]
    Off,
    /// With LZ4.
    Lz4,
    /// With Zstandard of this level.
    Zstd(u8),
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::Off => f.write_str("off"),
            Compression::Lz4 => f.write_str("lz4"),
            Compression::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compression {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Compression, Invalid> {
        let level = match text {
            "off" => return Ok(Compression::Off),
            "lz4" => return Ok(Compression::Lz4),
            "zstd" => return Ok(Compression::Zstd(ZSTD_LEVEL_DEFAULT)),
            _ => text.strip_prefix("zstd:"),
        };
        let Some(level) = level else {
            return Err(Invalid::new(format!("{text:?} is no compression: write off, lz4, zstd or zstd:LEVEL")));
        };
        match level.parse() {
            Ok(level) if (1..=ZSTD_LEVEL_MAX).contains(&level) => Ok(Compression::Zstd(level)),
            _ => Err(Invalid::new(format!("{level:?} is no level of zstd: choose 1 to {ZSTD_LEVEL_MAX}"))),
        }
    }
}

impl TryFrom<String> for Compression {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Compression, Invalid> {
        text.parse()
    }
}

impl From<Compression> for String {
    fn from(compression: Compression) -> String {
        compression.to_string()
    }
}

/// How a thin volume uses the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ThinSettings {
    /// How new blocks are stored: `off`, `lz4` or `zstd:LEVEL`. Blocks that are there stay as they
    /// are.
    pub compression: String,
    /// Most bytes that may be written, uncompressed; `null`: the whole volume.
    pub quota_bytes: Option<u64>,
    /// Bytes of the pool that are kept for the volume, so that it can store as much, also when
    /// others have filled the rest; `null`: nothing.
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that a write waits for space before it fails; 0: it fails at once.
    pub full_wait_ms: u64,
    /// Content that was not written for so many seconds, to twice that, is packed again in larger
    /// pieces with Zstandard; `null`: never.
    pub repack_after_s: Option<u64>,
}

/// `PATCH /v1/volumes/{group}/{volume}/thin`: change how a thin volume uses the pool. Fields that
/// are omitted or `null` stay unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ThinUpdate {
    /// How new blocks are stored. Blocks that are there stay as they are.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "zstd:3")]
    pub compression: Option<Compression>,
    /// Most bytes that may be written, uncompressed, rounded down to whole 4 KiB blocks; 0: as many
    /// as the volume has. At least what is written.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Bytes of the pool that are kept for the volume; 0: nothing. At most the size of the volume.
    #[serde(default)]
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that a write waits for space before it fails, up to 20 000; 0: it fails at
    /// once.
    #[serde(default)]
    pub full_wait_ms: Option<u64>,
    /// Content that was not written for so many seconds, to twice that, is packed again in larger
    /// pieces with Zstandard, up to 315 360 000; 0: never.
    #[serde(default)]
    pub repack_after_s: Option<u64>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

impl ThinUpdate {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == ThinUpdate { dry_run: self.dry_run, ..ThinUpdate::default() }
    }

    /// Checks everything that does not need the volume.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.is_empty() {
            return Err(Invalid::new("there is nothing to change: name at least one setting"));
        }
        self.check_values()
    }

    /// Checks the values alone.
    pub(crate) fn check_values(&self) -> Result<(), Invalid> {
        if let Some(quota) = self.quota_bytes.filter(|quota| (1..4096).contains(quota)) {
            return Err(Invalid::new(format!("a quota of {quota}B has no block: choose 4 KiB or more, or off")));
        }
        if let Some(wait) = self.full_wait_ms.filter(|wait| *wait > FULL_WAIT_MS_MAX) {
            let shown = format_duration(Duration::from_millis(wait));
            return Err(Invalid::new(format!("a write cannot wait for {shown}: choose at most 20s, or error")));
        }
        if let Some(after) = self.repack_after_s.filter(|after| *after > REPACK_AFTER_S_MAX) {
            let shown = format_duration(Duration::from_secs(after));
            return Err(Invalid::new(format!(
                "content cannot be packed again after {shown}: choose at most 3650d, or off"
            )));
        }
        Ok(())
    }

    /// Checks the values for a volume of `size_bytes` with `written_bytes` of content.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate_for(&self, size_bytes: u64, written_bytes: u64) -> Result<(), Invalid> {
        let (size, written) = (format_bytes(size_bytes), format_bytes(written_bytes));
        if let Some(quota) = self.quota_bytes.filter(|quota| *quota > 0 && *quota < written_bytes) {
            let quota = format_bytes(quota);
            return Err(Invalid::new(format!(
                "a quota of {quota} is less than the {written} that are written: choose more, or discard data first"
            )));
        }
        if let Some(reserve) = self.reserve_bytes.filter(|reserve| *reserve > size_bytes) {
            let reserve = format_bytes(reserve);
            return Err(Invalid::new(format!("a volume of {size} cannot use a reserve of {reserve}: choose less")));
        }
        Ok(())
    }
}

/// Checks levels of use at which the pool of thin volumes warns.
///
/// # Errors
/// A sentence that names the problem.
pub fn check_warn_levels(percents: &[u8]) -> Result<(), Invalid> {
    if percents.len() > THIN_WARN_LEVELS_MAX {
        return Err(Invalid::new(format!("{} levels are too many: choose at most 8", percents.len())));
    }
    if let Some(level) = percents.iter().find(|level| !(1..100).contains(*level)) {
        return Err(Invalid::new(format!("a pool cannot warn at {level}%: choose 1% to 99%")));
    }
    if percents.is_sorted_by(|one, next| one < next) {
        return Ok(());
    }
    Err(Invalid::new("levels come in ascending order, each once: write such as 80%,90%,95%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_is_read_as_it_is_shown() {
        for text in ["off", "lz4", "zstd:1", "zstd:9"] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Compression::Zstd(3)));
        let refusal = |text: &str| text.parse::<Compression>().unwrap_err().to_string();
        assert_eq!(refusal("gzip"), "\"gzip\" is no compression: write off, lz4, zstd or zstd:LEVEL");
        for level in ["0", "10", "-1", "", "x"] {
            let message = format!("{level:?} is no level of zstd: choose 1 to 9");
            assert_eq!(refusal(&format!("zstd:{level}")), message);
        }
    }

    #[test]
    fn values_that_cannot_be_kept_are_refused() {
        let usual = ThinUpdate::default();
        let refusal = |update: ThinUpdate| {
            update.validate().and_then(|()| update.validate_for(1 << 30, 1 << 20)).unwrap_err().to_string()
        };
        let cases = [
            (
                ThinUpdate { quota_bytes: Some(4095), ..usual },
                "a quota of 4095B has no block: choose 4 KiB or more, or off",
            ),
            (
                ThinUpdate { quota_bytes: Some(8192), ..usual },
                "a quota of 8 KiB is less than the 1 MiB that are written: choose more, or discard data first",
            ),
            (
                ThinUpdate { reserve_bytes: Some(2 << 30), ..usual },
                "a volume of 1 GiB cannot use a reserve of 2 GiB: choose less",
            ),
            (
                ThinUpdate { full_wait_ms: Some(20_001), ..usual },
                "a write cannot wait for 20001ms: choose at most 20s, or error",
            ),
            (
                ThinUpdate { repack_after_s: Some(3651 * 86_400), ..usual },
                "content cannot be packed again after 3651d: choose at most 3650d, or off",
            ),
        ];
        for (update, message) in cases {
            assert_eq!(refusal(update), message);
        }
        let off = ThinUpdate { quota_bytes: Some(0), reserve_bytes: Some(0), full_wait_ms: Some(0), ..usual };
        assert_eq!(off.validate().and_then(|()| off.validate_for(1 << 30, 1 << 30)), Ok(()));
        assert!(usual.is_empty() && usual.validate().is_err() && !off.is_empty());
        for levels in [&[0][..], &[100], &[90, 80], &[80, 80], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            assert!(check_warn_levels(levels).is_err(), "{levels:?}");
        }
        assert_eq!(check_warn_levels(&[]).and_then(|()| check_warn_levels(&[80, 90, 95])), Ok(()));
    }
}
