//! Dates and times, in UTC.

/// Year, month and day from the number of days since 1970-01-01, in the proleptic Gregorian
/// calendar.
///
/// The computation starts years in March, so that the leap day is the last of its year. It divides
/// days into eras of 400 years, which all have 146 097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

/// The date of a time in seconds since 1970: `2026-11-22`.
pub fn date(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A time in seconds since 1970, to the minute: `2026-11-22 02:21 UTC`.
pub fn minute(unix_s: u64) -> String {
    let minutes = unix_s % 86_400 / 60;
    format!("{} {:02}:{:02} UTC", date(unix_s), minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `date -u -d @N`.
    #[test]
    fn moments_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13 UTC"),
            (1_709_210_096, "2024-02-29 12:34 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(minute(unix_s), text);
        }
    }

    #[test]
    fn days_follow_each_other_for_four_hundred_years() {
        let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(civil(days), (year, month, day), "day {days}");
            let last = match month {
                2 => 28 + u64::from(leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }

    #[test]
    fn no_number_of_seconds_is_too_large() {
        assert!(minute(u64::MAX).ends_with("UTC"));
    }
}
