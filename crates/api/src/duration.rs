//! Durations as people write and read them.
//!
//! Invariants:
//! - A duration is a number with a unit: `us`, `ms`, `s`, `m` or `min`, `h`, `d`, `w`. A bare
//!   number is refused, because its unit is unknown.
//! - Parsing is exact integer arithmetic; a fraction is cut to whole nanoseconds, never rounded up.
//! - [`parse_duration`] reads the text of [`format_duration`] back to the same duration, if that is
//!   whole microseconds.

use std::time::Duration;

use thiserror::Error;

/// Why a duration could not be parsed. The text names the words that were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Not a number with a known unit.
    #[error("{0:?} is not a duration: write a number with a unit, such as 500us, 5ms, 90s, 12h or 30d")]
    Malformed(String),
    /// More than [`DURATION_MAX`].
    #[error("{0:?} is too long: a duration is at most 36500d")]
    TooLong(String),
}

/// The longest duration accepted: a hundred years, which fits 64 bits in nanoseconds.
pub const DURATION_MAX: Duration = Duration::from_secs(36_500 * DAY_S);

const DAY_S: u64 = 24 * 3600;

/// Digits after the point beyond this number are below a nanosecond of every unit.
const FRACTION_DIGITS_MAX: usize = 15;

/// Units from the longest to the shortest, with their nanoseconds, as written by
/// [`format_duration`].
const UNITS: [(&str, u64); 7] = [
    ("w", 7 * DAY_S * 1_000_000_000),
    ("d", DAY_S * 1_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];

fn unit_nanos(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let unit = match unit.as_str() {
        "min" => "m",
        "sec" => "s",
        unit => unit,
    };
    UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos)
}

/// Parses a duration such as `5ms`, `1.5 s`, `90s`, `12h` or `30d`.
///
/// # Errors
/// [`DurationError`] if the text is not a duration, or is more than a hundred years.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(api::parse_duration("5ms"), Ok(Duration::from_millis(5)));
/// assert_eq!(api::parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
/// assert_eq!(api::parse_duration("30d"), Ok(Duration::from_secs(30 * 86400)));
/// assert!(api::parse_duration("30").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    let too_long = || DurationError::TooLong(text.to_owned());
    let trimmed = text.trim();
    let number_len = trimmed.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = trimmed.split_at(number_len);
    let unit = u128::from(unit_nanos(unit.trim_start()).ok_or_else(malformed)?);
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return Err(malformed()),
        None => (number, ""),
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed());
    }
    let whole: u128 = whole.parse().map_err(|_| too_long())?;
    let nanos = whole.checked_mul(unit).ok_or_else(too_long)?;
    let part = if fraction.is_empty() {
        0
    } else {
        let numerator: u128 = fraction.parse().map_err(|_| malformed())?;
        numerator * unit / 10u128.pow(fraction.len() as u32)
    };
    let nanos = nanos.checked_add(part).filter(|nanos| *nanos <= DURATION_MAX.as_nanos()).ok_or_else(too_long)?;
    Ok(Duration::from_nanos(nanos as u64))
}

/// A duration in the longest unit that divides it, exact to the microsecond: `30d`, `90s`, `5ms`,
/// `0s`. Weeks are written as days, since intervals are usually stated in days.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(api::format_duration(Duration::from_secs(30 * 86400)), "30d");
/// assert_eq!(api::format_duration(Duration::from_micros(1500)), "1500us");
/// ```
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    let divides = |unit: &&(&str, u64)| unit.0 != "w" && micros.is_multiple_of(u128::from(unit.1 / 1_000));
    let (name, nanos) = UNITS.iter().find(divides).expect("a microsecond divides every number of them");
    format!("{}{name}", micros / u128::from(nanos / 1_000))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, micros) in [
            ("500us", 500),
            ("5ms", 5_000),
            ("1.5ms", 1_500),
            ("0.0005s", 500),
            (" 90 s ", 90_000_000),
            ("2m", 120_000_000),
            ("2min", 120_000_000),
            ("12H", 43_200_000_000),
            ("30d", 2_592_000_000_000),
            ("1w", 604_800_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_in_one_sentence() {
        for text in ["", "5", "ms", "-5ms", "5.ms", ".5s", "1.2.3s", "5 mss", "1e3s", "5ns", "١s", "off"] {
            assert_eq!(parse_duration(text), Err(DurationError::Malformed(text.into())), "{text}");
        }
        for text in ["36501d", "9999999999999999999999w", "99999999999999999999999999999999999999999s"] {
            assert_eq!(parse_duration(text), Err(DurationError::TooLong(text.into())), "{text}");
        }
        assert_eq!(
            parse_duration("5").unwrap_err().to_string(),
            "\"5\" is not a duration: write a number with a unit, such as 500us, 5ms, 90s, 12h or 30d"
        );
    }

    #[test]
    fn durations_are_shown_in_their_longest_unit() {
        for (micros, text) in [(0, "0s"), (500, "500us"), (5_000, "5ms"), (90_000_000, "90s"), (604_800_000_000, "7d")]
        {
            assert_eq!(format_duration(Duration::from_micros(micros)), text);
        }
    }

    proptest! {
        #[test]
        fn a_shown_duration_reads_back_the_same(micros in 0..=DURATION_MAX.as_micros() as u64, zeroes in 0u32..12) {
            let unit = 10u64.pow(zeroes);
            for micros in [micros, micros / unit * unit, micros / unit] {
                let duration = Duration::from_micros(micros);
                prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            }
        }

        #[test]
        fn any_text_is_answered_without_a_panic(text in "\\PC{0,40}") {
            let _ = parse_duration(&text);
        }
    }
}
