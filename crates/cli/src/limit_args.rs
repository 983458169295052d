//! Rate limits on the command line.

use std::time::Duration;

use api::{LimitUpdate, parse_bytes, parse_duration};
use clap::Args;

/// Rate limits. A limit that is not given stays as it is.
#[derive(Debug, Clone, Copy, Args)]
pub struct LimitArgs {
    /// Requests per second, such as 500, 20k or 1.5M; flushes are not counted
    #[arg(long, value_name = "NUMBER|off", value_parser = parse_iops)]
    pub iops: Option<RateOrOff>,
    /// Bytes per second, such as 500MiB
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bandwidth)]
    pub bandwidth: Option<RateOrOff>,
    /// After a pause, the amount that the limit allows in this time may be used at once: 10ms to
    /// 1h, default 100ms
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub burst: Option<Duration>,
}

/// A rate per second, or none for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateOrOff(pub Option<u64>);

fn parse_iops(text: &str) -> Result<RateOrOff, String> {
    if text == "off" {
        return Ok(RateOrOff(None));
    }
    let refuse = || format!("{text:?} is not a number of requests: write one such as 500, 20k or 1.5M, or off");
    let split = text.find(|char: char| char.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let digits = match unit {
        "" => 0,
        "k" | "K" => 3,
        "m" | "M" => 6,
        _ => return Err(refuse()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // A fraction of a request is refused.
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > digits {
        return Err(refuse());
    }
    let zeroes = "0".repeat(digits - fraction.len());
    match format!("{whole}{fraction}{zeroes}").parse::<u64>() {
        // 0 means off in the API. A user who types 0 may mean something else, so it is refused.
        Ok(0) | Err(_) => Err(refuse()),
        Ok(rate) => Ok(RateOrOff(Some(rate))),
    }
}

fn parse_bandwidth(text: &str) -> Result<RateOrOff, String> {
    match text {
        "off" => Ok(RateOrOff(None)),
        text => match parse_bytes(text).map_err(|error| error.to_string())? {
            0 => Err("0 bytes a second are no limit: write a size such as 500MiB, or off".to_owned()),
            bytes => Ok(RateOrOff(Some(bytes))),
        },
    }
}

impl LimitArgs {
    /// The form of the API, in which 0 is off.
    pub fn update(self, dry_run: bool) -> LimitUpdate {
        let rate = |RateOrOff(rate): RateOrOff| rate.unwrap_or(0);
        LimitUpdate {
            iops: self.iops.map(rate),
            bytes_per_s: self.bandwidth.map(rate),
            burst_ms: self.burst.map(|burst| u64::try_from(burst.as_millis()).unwrap_or(u64::MAX)),
            dry_run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let read = |text| parse_iops(text).map(|RateOrOff(rate)| rate).ok();
        let rates = ["500", "20k", "1.5M", "0.25K", "1000m", "off"].map(read);
        assert_eq!(
            rates,
            [500, 20_000, 1_500_000, 250, 1_000_000_000]
                .map(|rate| Some(Some(rate)))
                .into_iter()
                .chain([Some(None)])
                .collect::<Vec<_>>()[..]
        );
        for text in ["", "0", "0k", "-1", "1.5", "k", "1.2345k", "20 k", "1G", "1e3", "99999999999999999999"] {
            assert_eq!(read(text), None, "{text:?}");
        }
        assert_eq!(parse_bandwidth("500MiB"), Ok(RateOrOff(Some(500 << 20))));
        assert!(parse_bandwidth("0").is_err());
    }
}
