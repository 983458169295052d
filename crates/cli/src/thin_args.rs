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
    /// Most that may be written to a thin volume, before compression; default its size
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bytes_or_off)]
    pub quota: Option<BytesOrOff>,
    /// Space that is kept for a thin volume, so that others cannot use it; default off
    #[arg(long, value_name = "SIZE|off", value_parser = parse_bytes_or_off)]
    pub reserve: Option<BytesOrOff>,
    /// Writes to a thin volume when there is no space: they fail, or wait for up to 20s first;
    /// default error
    #[arg(long, value_name = "error|wait:TIME", value_parser = parse_when_full)]
    pub when_full: Option<WaitMs>,
    /// Pack what was not written to a thin volume for this time, to twice that, again: in larger
    /// pieces with Zstandard. It takes less space, and small reads of it take longer; default off
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
    match parse_duration(text).map_err(|error| error.to_string())?.as_secs() {
        0 => Err(format!("{text:?} is less than a second: write a time such as 1d, or off")),
        seconds => Ok(SecondsOrOff(Some(seconds))),
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
        Ok(0) | Err(_) => Err(refuse()),
        Ok(ms) => Ok(WaitMs(ms)),
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
        assert!(parse_time_or_off("0s").is_err() && parse_time_or_off("500ms").is_err());
        assert_eq!(parse_when_full("error"), Ok(WaitMs(0)));
        assert_eq!(parse_when_full("wait:10s"), Ok(WaitMs(10_000)));
        for text in ["", "wait", "wait:", "wait:0s", "10s", "wait:x"] {
            assert!(parse_when_full(text).is_err(), "{text:?}");
        }
    }
}
