//! Durations as users write them.

use std::time::Duration;

use api::{DURATION_MAX, DurationError, format_duration, parse_duration};

use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "duration",
    checks: "durations as people write them: exact, the same in every notation, and shown so that they read back",
    run,
    seeds: || {
        let texts = ["500us", "1.5 ms", "90s", "10min", "0.5h", "36500d", "2W", "0.000000000000001s"];
        texts.iter().enumerate().map(|(n, text)| Seed::new(format!("duration-{n}"), *text)).collect()
    },
    stored: Vec::new,
    dictionary: &[
        b"us",
        b"ms",
        b"min",
        b"sec",
        b"d",
        b"w",
        b".",
        b"999999999999999",
        b" ",
        "\u{a0}".as_bytes(),
        b"off",
    ],
    input_bytes_max: 96,
    memory: Memory { base_bytes: 2048, per_input_byte: 32 },
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(micros) = input.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) {
        shown(Duration::from_micros(micros));
    }
    let duration = match parse_duration(&text) {
        Ok(duration) => duration,
        Err(error) => {
            assert!(
                matches!(&error, DurationError::Malformed(refused) | DurationError::TooLong(refused) if *refused == *text)
            );
            return assert!(!error.to_string().chars().any(char::is_control), "a refusal moves a cursor: {error:?}");
        }
    };
    assert!(duration <= DURATION_MAX, "nanoseconds in 64 bits hold it");
    shown(duration);
    for same in [text.to_ascii_lowercase(), text.to_ascii_uppercase(), format!("\t{text} ")] {
        assert_eq!(parse_duration(&same), Ok(duration), "{same:?} is {text:?}");
    }
}

fn shown(duration: Duration) {
    let whole = Duration::from_micros(u64::try_from(duration.as_micros()).expect("made of 64 bits"));
    if whole <= DURATION_MAX {
        assert_eq!(parse_duration(&format_duration(duration)), Ok(whole), "{duration:?}");
    }
}
