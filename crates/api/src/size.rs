//! Sizes as people write and read them.
//!
//! Invariants:
//! - `K`, `M`, `G`, `T`, `P` and `KiB` .. `PiB` are powers of 1024; `KB` .. `PB` are powers of
//!   1000; a bare number and `B` are bytes. So `10G` is `10GiB`, as in `lsblk`, `qemu-img` and
//!   `truncate`.
//! - Parsing is exact integer arithmetic; a fraction is cut to whole bytes, never rounded up.
//! - [`parse_bytes`] reads the text of [`format_bytes_exact`] back to the same number.

use thiserror::Error;

/// Why a size could not be parsed. The text names the words that were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Not a number with a known unit.
    #[error("{0:?} is not a size: write a number with a unit, such as 64KiB, 10GiB or 1.5TiB")]
    Malformed(String),
    /// More than 2^63 - 1 bytes, the largest file offset.
    #[error("{0:?} is too large: a size is below 8 EiB")]
    TooLarge(String),
}

/// The largest size accepted: a file offset is a signed 64-bit number.
const BYTES_MAX: u128 = i64::MAX as u128;

/// Digits after the point beyond this number are below one byte of the largest unit.
const FRACTION_DIGITS_MAX: usize = 18;

/// The unit's multiplier, in any letter case; `None` for an unknown unit.
fn unit_bytes(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let exponent = match unit.as_bytes()[0] {
        b'k' => 1,
        b'm' => 2,
        b'g' => 3,
        b't' => 4,
        b'p' => 5,
        b'e' => 6,
        _ => return None,
    };
    match &unit[1..] {
        "" | "ib" => Some(1024u128.pow(exponent)),
        "b" => Some(1000u128.pow(exponent)),
        _ => None,
    }
}

/// Parses a size such as `4096`, `64KiB`, `10G`, `1.5 TiB` or `2TB`, in bytes.
///
/// # Errors
/// [`SizeError`] if the text is not a size, or is 8 EiB or more.
///
/// ```
/// assert_eq!(api::parse_bytes("10GiB"), Ok(10 << 30));
/// assert_eq!(api::parse_bytes("10G"), Ok(10 << 30));
/// assert_eq!(api::parse_bytes("10GB"), Ok(10_000_000_000));
/// assert_eq!(api::parse_bytes("1.5TiB"), Ok(3 << 39));
/// assert!(api::parse_bytes("ten").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let too_large = || SizeError::TooLarge(text.to_owned());

    let trimmed = text.trim();
    let number_len = trimmed.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = trimmed.split_at(number_len);
    let unit = unit_bytes(unit.trim_start()).ok_or_else(malformed)?;

    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return Err(malformed()),
        None => (number, ""),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || (!fraction.is_empty() && !digits(fraction)) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed());
    }
    if !fraction.is_empty() && unit == 1 {
        // A fraction of a byte is a mistake, so it is refused instead of cut.
        return Err(malformed());
    }

    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let bytes = whole.checked_mul(unit).ok_or_else(too_large)?;
    let fraction_bytes = if fraction.is_empty() {
        0
    } else {
        let numerator: u128 = fraction.parse().map_err(|_| malformed())?;
        // At most 10^18 * 2^60, below 2^120.
        numerator * unit / 10u128.pow(fraction.len() as u32)
    };
    let bytes = bytes.checked_add(fraction_bytes).ok_or_else(too_large)?;
    if bytes > BYTES_MAX {
        return Err(too_large());
    }
    Ok(bytes as u64)
}

const BINARY_UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A size for people: binary units, one decimal below 100, so at most 5% off. `1.5 TiB`, `931 GiB`,
/// `0 B`.
///
/// ```
/// assert_eq!(api::format_bytes(10 << 30), "10 GiB");
/// assert_eq!(api::format_bytes(1_000_000_000_000), "931 GiB");
/// assert_eq!(api::format_bytes(3 << 39), "1.5 TiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    let mut unit = 0;
    let mut divisor = 1u64;
    while unit + 1 < BINARY_UNITS.len() && bytes / divisor >= 1024 {
        unit += 1;
        divisor <<= 10;
    }
    // Tenths, rounded to the nearest; 128 bits because 10 * 2^64 does not fit 64.
    let tenths = ((bytes as u128 * 10 + divisor as u128 / 2) / divisor as u128) as u64;
    if tenths >= 10 * 1024 && unit + 1 < BINARY_UNITS.len() {
        // 1023.96 KiB is written as 1 MiB, not as 1024 KiB.
        return format!("1 {}", BINARY_UNITS[unit + 1]);
    }
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if whole >= 100 {
        let nearest = (bytes as u128 + divisor as u128 / 2) / divisor as u128;
        if nearest >= 1024 && unit + 1 < BINARY_UNITS.len() {
            return format!("1 {}", BINARY_UNITS[unit + 1]);
        }
        format!("{nearest} {}", BINARY_UNITS[unit])
    } else if tenth == 0 {
        format!("{whole} {}", BINARY_UNITS[unit])
    } else {
        format!("{whole}.{tenth} {}", BINARY_UNITS[unit])
    }
}

/// An exact size: the largest binary unit that divides it, without a space. `64KiB`, `10GiB`,
/// `4097B`.
pub fn format_bytes_exact(bytes: u64) -> String {
    let mut unit = 0;
    let mut count = bytes;
    while count != 0 && count.is_multiple_of(1024) && unit + 1 < BINARY_UNITS.len() {
        count /= 1024;
        unit += 1;
    }
    format!("{count}{}", BINARY_UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_powers_of_1024_unless_they_say_otherwise() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1K", 1024),
            ("1k", 1024),
            ("1KiB", 1024),
            ("1kib", 1024),
            ("1KB", 1000),
            ("64 KiB", 65536),
            ("  64KiB ", 65536),
            ("1M", 1 << 20),
            ("10G", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1.5TiB", 3 << 39),
            ("0.5K", 512),
            ("1.1GiB", 1_181_116_006),
            ("2P", 2 << 50),
            ("7EiB", 7 << 60),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_in_one_sentence() {
        for text in ["", "G", "ten", "-1", "1.", ".5G", "1..5G", "1.2.3K", "10X", "10GiBs", "1.5", "1e3", "١", "0x10"]
        {
            assert_eq!(parse_bytes(text), Err(SizeError::Malformed(text.into())), "{text}");
        }
        for text in ["8EiB", "9223372036854775808", "99999999999999999999999999999999999999999", "8192P"] {
            assert_eq!(parse_bytes(text), Err(SizeError::TooLarge(text.into())), "{text}");
        }
        assert_eq!(
            parse_bytes("10X").unwrap_err().to_string(),
            "\"10X\" is not a size: write a number with a unit, such as 64KiB, 10GiB or 1.5TiB"
        );
        assert_eq!(parse_bytes("8EiB").unwrap_err().to_string(), "\"8EiB\" is too large: a size is below 8 EiB");
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (102_400, "100 KiB"),
            (1_048_575, "1 MiB"),
            (1_073_741_823, "1 GiB"),
            (4_000_787_030_016, "3.6 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn an_exact_size_reads_back_the_same(bytes in 0..=i64::MAX as u64, shift in 0u32..63) {
            for bytes in [bytes, bytes >> shift << shift, bytes >> shift] {
                prop_assert_eq!(parse_bytes(&format_bytes_exact(bytes)), Ok(bytes));
            }
        }

        #[test]
        fn a_short_size_is_within_five_percent(bytes in 0..(7u64 << 60), shift in 0u32..60) {
            let bytes = bytes >> shift;
            let back = parse_bytes(&format_bytes(bytes)).unwrap();
            prop_assert!(back.abs_diff(bytes) as f64 <= bytes as f64 * 0.05, "{} read back as {}", bytes, back);
        }

        #[test]
        fn any_text_is_answered_without_a_panic(text in "\\PC{0,40}") {
            let _ = parse_bytes(&text);
        }

        #[test]
        fn a_fraction_is_cut_to_whole_bytes(whole in 0u64..1000, thousandths in 0u64..1000, exponent in 1u32..5) {
            let unit = ["K", "M", "G", "T"][exponent as usize - 1];
            let expected = (whole * 1000 + thousandths) * 1024u64.pow(exponent) / 1000;
            prop_assert_eq!(parse_bytes(&format!("{whole}.{thousandths:03}{unit}")), Ok(expected));
        }
    }
}
