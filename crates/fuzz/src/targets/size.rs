//! Sizes as users write them.

use api::{SizeError, format_bytes, format_bytes_exact, parse_bytes};

use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "size",
    checks: "sizes as people write them: exact, the same in every notation, and shown so that they read back",
    run,
    seeds: || {
        let texts = ["4096", "64KiB", "1.5 TiB", "10GB", "0.000000000000000001E", "9223372036854775807", "  7eib "];
        texts.iter().enumerate().map(|(n, text)| Seed::new(format!("size-{n}"), *text)).collect()
    },
    stored: Vec::new,
    dictionary: &[b"KiB", b"EiB", b"GB", b"P", b".", b"999999999999999999", b" ", "\u{a0}".as_bytes(), "١".as_bytes()],
    input_bytes_max: 96,
    memory: Memory { base_bytes: 2048, per_input_byte: 32 },
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(number) = input.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) {
        shown(number);
    }
    let bytes = match parse_bytes(&text) {
        Ok(bytes) => bytes,
        Err(error) => {
            assert!(
                matches!(&error, SizeError::Malformed(refused) | SizeError::TooLarge(refused) if *refused == *text)
            );
            return assert!(!error.to_string().chars().any(char::is_control), "a refusal moves a cursor: {error:?}");
        }
    };
    assert!(bytes <= i64::MAX as u64, "a file offset holds it");
    shown(bytes);
    for same in [text.to_ascii_lowercase(), text.to_ascii_uppercase(), format!("\t{text} ")] {
        assert_eq!(parse_bytes(&same), Ok(bytes), "{same:?} is {text:?}");
    }
    if let Ok(plain) = text.trim().parse::<u64>() {
        assert_eq!(plain, bytes, "a bare number counts bytes");
    }
}

fn shown(bytes: u64) {
    let (short, exact) = (format_bytes(bytes), format_bytes_exact(bytes));
    assert!(short.len() <= 10, "{short:?} is not short");
    if bytes <= i64::MAX as u64 {
        assert_eq!(parse_bytes(&exact), Ok(bytes), "{exact}");
    }
    if let Ok(read) = parse_bytes(&short) {
        assert!(read.abs_diff(bytes) <= bytes / 20, "{bytes} is shown as {short}");
    }
}
