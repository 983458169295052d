//! The names that users give to drives.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Which drive to open. Parsed from the text that a user writes:
///
/// ```
/// # use runtime::DriveSpec;
/// let disk: DriveSpec = "/dev/disk/by-id/nvme-x".parse()?;
/// let memory: DriveSpec = "mem:fast:64MiB".parse()?;
/// assert_eq!(memory, DriveSpec::Memory { name: "fast".into(), size_bytes: 64 << 20 });
/// assert_eq!(memory.to_string(), "mem:fast:67108864");
/// # Ok::<(), runtime::SpecError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriveSpec {
    /// A block device or a regular file, by absolute path.
    Path(PathBuf),
    /// Memory of this process, by name. Its content lives as long as the process.
    Memory {
        /// Letters, digits, `-`, `_` and `.`.
        name: String,
        /// Capacity in bytes, a multiple of 4096.
        size_bytes: u64,
    },
}

/// Errors in a text that should name a drive.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// It is neither a path nor begins with `mem:`.
    #[error("{0:?} is neither an absolute path nor mem:NAME:SIZE")]
    Form(String),
    /// The name of a memory drive is empty or has other characters.
    #[error("{0:?} is not a name: letters, digits, '-', '_' and '.' are")]
    Name(String),
    /// The size cannot be understood.
    #[error("{0:?} is not a size: write bytes, or a number with KiB, MiB, GiB or TiB")]
    Size(String),
    /// The size is zero, or not a multiple of 4096.
    #[error("a memory drive of {0} bytes cannot be: the size is a multiple of 4096, and not zero")]
    Granularity(u64),
}

impl FromStr for DriveSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.starts_with('/') {
            return Ok(DriveSpec::Path(PathBuf::from(text)));
        }
        let form = || SpecError::Form(text.to_string());
        let (name, size) = text.strip_prefix("mem:").ok_or_else(form)?.split_once(':').ok_or_else(form)?;
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(allowed) {
            return Err(SpecError::Name(name.to_string()));
        }
        let size_bytes = parse_size(size).ok_or_else(|| SpecError::Size(size.to_string()))?;
        if size_bytes == 0 || size_bytes % 4096 != 0 {
            return Err(SpecError::Granularity(size_bytes));
        }
        Ok(DriveSpec::Memory { name: name.to_string(), size_bytes })
    }
}

/// Parses bytes, or a whole number with a binary unit. `None` for other text, and if the result
/// does not fit in 64 bits.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    // `parse` refuses an empty number. Only digits are left, so there is no sign.
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for DriveSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveSpec::Path(path) => path.display().fmt(formatter),
            DriveSpec::Memory { name, size_bytes } => write!(formatter, "mem:{name}:{size_bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_writes_is_understood_or_refused_with_a_reason() {
        let memory = |name: &str, size_bytes| Ok(DriveSpec::Memory { name: name.into(), size_bytes });
        let cases = [
            ("/dev/nvme0n1", Ok(DriveSpec::Path("/dev/nvme0n1".into()))),
            ("mem:a:4096", memory("a", 4096)),
            ("mem:a-b_c.1:64MiB", memory("a-b_c.1", 64 << 20)),
            ("mem:a:2G", memory("a", 2 << 30)),
            ("mem:a:1TiB", memory("a", 1 << 40)),
            ("relative/path", Err(SpecError::Form("relative/path".into()))),
            ("", Err(SpecError::Form(String::new()))),
            ("mem:a", Err(SpecError::Form("mem:a".into()))),
            ("mem::4096", Err(SpecError::Name(String::new()))),
            ("mem:a/b:4096", Err(SpecError::Name("a/b".into()))),
            ("mem:a:", Err(SpecError::Size(String::new()))),
            ("mem:a:MiB", Err(SpecError::Size("MiB".into()))),
            ("mem:a:-1", Err(SpecError::Size("-1".into()))),
            ("mem:a:1.5GiB", Err(SpecError::Size("1.5GiB".into()))),
            ("mem:a:99999999999TiB", Err(SpecError::Size("99999999999TiB".into()))),
            ("mem:a:0", Err(SpecError::Granularity(0))),
            ("mem:a:1000", Err(SpecError::Granularity(1000))),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<DriveSpec>(), expected, "{text:?}");
        }
    }
}
