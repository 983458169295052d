//! Settings of thin volumes on the command line.

use api::{Compression, ThinUpdate, parse_bytes, parse_duration};
use clap::Args;

/// How a thin volume uses the space of its group. A setting that is not given stays as it is.
#[derive(Debug, Clone, Copy, Args)]
pub struct ThinArgs {
    /// Compress new blocks of a thin volume; zstd is smaller and slower than lz4, with levels 1 to
    /// 9; default off
    #[arg(long, value_name = "lz4|zstd[:LEVEL]|off")]
    pub compress: Option<Compression>,
    /// Most content that a thin volume may have, before compression: writes that need more fail as
    /// if the pool were full; default its size
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bytes_or_off)]
    pub quota: Option<BytesOrOff>,
    /// Space that is kept for a thin volume, so that others cannot use it; default off
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bytes_or_off)]
    pub reserve: Option<BytesOrOff>,
    /// When there is no space: writes to a thin volume fail at once (error), or wait for space
    /// first (wait:10s, at most 20s); default error
    #[arg(long, value_name = "error|wait:TIME", value_parser = parse_when_full)]
    pub when_full: Option<WaitMs>,
    /// Store content of a thin volume again, in larger pieces with Zstandard, once it was not
    /// written for this time (at the latest, for twice this time). It takes less space, and small
    /// reads of it take longer; default off
    #[arg(long, value_name = "TIME|off", value_parser = parse_time_or_off)]
    pub repack_after: Option<SecondsOrOff>,
}

/// A number of bytes, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BytesOrOff(Option<u64>);

/// Milliseconds that writes wait, 0 to fail at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitMs(u64);

/// A number of seconds, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondsOrOff(Option<u64>);

fn parse_time_or_off(text: &str) -> Result<SecondsOrOff, String> {
    if text == "off" {
        return Ok(SecondsOrOff(None));
    }
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    match (time.as_secs(), time.subsec_nanos()) {
        (1.., 0) => Ok(SecondsOrOff(Some(time.as_secs()))),
        _ => Err(format!("{text:?} is no number of seconds: write a time such as 1d, or off")),
    }
}

fn parse_bytes_or_off(text: &str) -> Result<BytesOrOff, String> {
    match text {
        "off" => Ok(BytesOrOff(None)),
        // 0 means off in the API. A user who types 0 may mean something else, so it is refused.
        text => match parse_bytes(text).map_err(|error| error.to_string())? {
            0 => Err("0 bytes are no size here: write a size such as 500GiB, or off".to_owned()),
            bytes => Ok(BytesOrOff(Some(bytes))),
        },
    }
}

fn parse_when_full(text: &str) -> Result<WaitMs, String> {
    if text == "error" {
        return Ok(WaitMs(0));
    }
    let refuse = || format!("{text:?} is neither error nor a time to wait: write such as wait:10s");
    let duration = parse_duration(text.strip_prefix("wait:").ok_or_else(refuse)?).map_err(|error| error.to_string())?;
    match u64::try_from(duration.as_millis()) {
        Ok(0) => Err(format!("{text:?} is no time to wait: write such as wait:10s, or error to fail at once")),
        Ok(ms) => Ok(WaitMs(ms)),
        Err(_) => Err(refuse()),
    }
}

impl ThinArgs {
    /// The form of the API, in which 0 is off.
    pub fn update(self, dry_run: bool) -> ThinUpdate {
        let bytes = |BytesOrOff(bytes): BytesOrOff| bytes.unwrap_or(0);
        ThinUpdate {
            compression: self.compress,
            quota_bytes: self.quota.map(bytes),
            reserve_bytes: self.reserve.map(bytes),
            full_wait_ms: self.when_full.map(|WaitMs(ms)| ms),
            repack_after_s: self.repack_after.map(|SecondsOrOff(seconds)| seconds.unwrap_or(0)),
            dry_run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_people_write_them() {
        assert_eq!(parse_bytes_or_off("1GiB"), Ok(BytesOrOff(Some(1 << 30))));
        assert_eq!(parse_bytes_or_off("off"), Ok(BytesOrOff(None)));
        assert!(parse_bytes_or_off("0").is_err());
        assert_eq!(parse_time_or_off("1d"), Ok(SecondsOrOff(Some(86_400))));
        assert_eq!(parse_time_or_off("off"), Ok(SecondsOrOff(None)));
        assert!(["0s", "500ms", "1999ms"].iter().all(|text| parse_time_or_off(text).is_err()));
        assert_eq!(parse_when_full("error"), Ok(WaitMs(0)));
        assert_eq!(parse_when_full("wait:10s"), Ok(WaitMs(10_000)));
        for text in ["", "wait", "wait:", "wait:0s", "10s", "wait:x"] {
            assert!(parse_when_full(text).is_err(), "{text:?}");
        }
    }
}
