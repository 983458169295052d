//! Lines about thin volumes and their pool.

use std::time::Duration;

use api::{Conversion, ThinPool, ThinSettings, format_bytes, format_duration};

/// Bytes that a thin volume takes, and how much smaller that is than what was written.
pub fn stored(written: u64, stored: u64) -> String {
    match stored {
        0 => format_bytes(0),
        _ => format!("{}, ratio {:.2}", format_bytes(stored), written as f64 / stored as f64),
    }
}

/// How a thin volume uses the pool. Settings that are off stay away.
pub fn settings(settings: &ThinSettings) -> Vec<(&'static str, String)> {
    let ThinSettings { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s } = settings;
    let bytes = |bytes: &Option<u64>| bytes.map_or_else(String::new, format_bytes);
    let wait = Duration::from_millis(*full_wait_ms);
    let when_full = if wait.is_zero() { String::new() } else { format!("writes wait {}", format_duration(wait)) };
    let after = |s: &u64| format!("after {}", format_duration(Duration::from_secs(*s)));
    let repack_after = repack_after_s.as_ref().map_or_else(String::new, after);
    vec![
        ("compression", compression.clone()),
        ("quota", bytes(quota_bytes)),
        ("reserve", bytes(reserve_bytes)),
        ("when full", when_full),
        ("packed again", repack_after),
    ]
}

/// How a volume that is being made thin will use the pool.
pub fn coming_settings(conversion: Option<&Conversion>) -> String {
    let all = conversion.and_then(|conversion| conversion.thin.as_ref()).into_iter().flat_map(settings);
    let given = all.filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// The space of a pool of thin volumes.
pub fn pool(pool: &ThinPool) -> Vec<(&'static str, String)> {
    let work = &pool.work;
    let wrote = [("data", work.data_bytes), ("collected", work.collected_bytes), ("maps", work.metadata_bytes)];
    let wrote: Vec<String> = wrote.iter().map(|(name, bytes)| format!("{name} {}", format_bytes(*bytes))).collect();
    let used = format!("{} of at most {}", format_bytes(pool.used_bytes), format_bytes(pool.limit_bytes));
    let reserved = match pool.reserved_bytes {
        0 => String::new(),
        bytes => format!(", {} more are reserved", format_bytes(bytes)),
    };
    let full_in = match pool.full_in_s {
        None | Some(0) => String::new(),
        Some(s) => format!(", full in {} at this rate", rough(s)),
    };
    let parts = [("data", pool.data_bytes), ("maps", pool.metadata_bytes), ("garbage", pool.garbage_bytes)];
    let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {}", format_bytes(*bytes))).collect();
    let stores = if pool.store_count == 1 { String::new() } else { format!(", in {} stores", pool.store_count) };
    let (size, free) = (format_bytes(pool.size_bytes), format_bytes(pool.free_bytes));
    let anew = match work.repacked_from_bytes + work.reordered_bytes {
        0 => String::new(),
        _ => {
            let [from, to, ordered] = [work.repacked_from_bytes, work.repacked_to_bytes, work.reordered_bytes];
            let [from, to, ordered] = [from, to, ordered].map(format_bytes);
            format!("{from} packed again to {to}, {ordered} put in order")
        }
    };
    let mut rows = vec![
        ("thin pool", format!("{size}, {free} of it free{stores}")),
        ("thin used", format!("{used}{reserved}")),
        ("thin parts", parts.join(", ")),
        ("thin fills", format!("{}% of the space that it can have{full_in}", pool.used_percent)),
        ("thin wrote", wrote.join(", ")),
        ("thin improved", anew),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    rows
}

/// A time as people say it.
fn rough(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}
