//! Converts a group's settings between the API, the catalogue and the engine.

use std::time::Duration;

use api::{GroupSettings, GroupUpdate, format_duration};
use array::{GroupStatus, Settings};
use format::{SettingsRecord, THIN_WARN_DEFAULT};

/// The settings for the engine.
pub(crate) fn of_engine(record: &SettingsRecord) -> Settings {
    Settings { client_p99: record.client_p99_us.map(|us| us.saturating_mul(1000)), retire_slow: record.retire_slow }
}

/// The settings for the API.
pub(crate) fn shown(record: &SettingsRecord) -> GroupSettings {
    let SettingsRecord { client_p99_us, retire_slow, scrub_every_s, .. } = *record;
    GroupSettings { client_p99_us, retire_slow, scrub_every_s, thin_warn_percents: warn_levels(record) }
}

/// The settings after a request.
pub(crate) fn updated(record: &SettingsRecord, update: &GroupUpdate) -> SettingsRecord {
    // 0 means off.
    let chosen = |asked: Option<u64>, before| asked.map_or(before, |value| Some(value).filter(|&value| value > 0));
    SettingsRecord {
        client_p99_us: chosen(update.client_p99_us, record.client_p99_us),
        retire_slow: update.retire_slow.unwrap_or(record.retire_slow),
        scrub_every_s: chosen(update.scrub_every_s, record.scrub_every_s),
        thin_warn: update.thin_warn_percents.clone().or_else(|| record.thin_warn.clone()),
    }
}

/// The changes of a request, one sentence each; empty if nothing changes.
pub(crate) fn steps(before: &SettingsRecord, after: &SettingsRecord) -> Vec<String> {
    let mut steps = Vec::new();
    if before.client_p99_us != after.client_p99_us {
        steps.push(match after.client_p99_us {
            Some(us) => format!(
                "let rebuilds and scrubs keep the 99th percentile of clients' latency below {}",
                format_duration(Duration::from_micros(us))
            ),
            None => "let rebuilds and scrubs follow no latency target".to_owned(),
        });
    }
    if before.retire_slow != after.retire_slow {
        let what = if after.retire_slow { "give a slow member's place to a spare" } else { "only report slow members" };
        steps.push(what.to_owned());
    }
    if before.scrub_every_s != after.scrub_every_s {
        steps.push(match after.scrub_every_s {
            Some(s) => format!("scrub and repair every {}", format_duration(Duration::from_secs(s))),
            None => "scrub on request only".to_owned(),
        });
    }
    let levels = warn_levels(after);
    if warn_levels(before) != levels {
        steps.push(match levels.is_empty() {
            true => "do not warn when the pool of thin volumes fills".to_owned(),
            false => format!("warn when the pool of thin volumes is {} full", shown_levels(&levels)),
        });
    }
    steps
}

/// The levels of use at which the pool of thin volumes warns, in percent.
pub(crate) fn warn_levels(record: &SettingsRecord) -> Vec<u8> {
    record.thin_warn.clone().unwrap_or_else(|| THIN_WARN_DEFAULT.to_vec())
}

fn shown_levels(levels: &[u8]) -> String {
    levels.iter().map(|level| format!("{level}%")).collect::<Vec<_>>().join(", ")
}

/// Warnings about the chosen settings.
pub(crate) fn warnings(record: &SettingsRecord, status: &GroupStatus) -> Vec<String> {
    let mut warnings = Vec::new();
    if record.retire_slow && status.spares.is_empty() {
        warnings.push("there is no spare: a slow member can only be reported until there is one".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_stays_and_zero_is_off() {
        let before =
            SettingsRecord { client_p99_us: Some(5000), retire_slow: true, scrub_every_s: Some(3600), thin_warn: None };
        assert_eq!(updated(&before, &GroupUpdate::default()), before);
        assert!(steps(&before, &before).is_empty());
        let off = GroupUpdate {
            client_p99_us: Some(0),
            retire_slow: Some(false),
            scrub_every_s: Some(0),
            ..GroupUpdate::default()
        };
        let after = updated(&before, &off);
        assert_eq!(
            after,
            SettingsRecord { client_p99_us: None, retire_slow: false, scrub_every_s: None, thin_warn: None }
        );
        assert_eq!(
            steps(&before, &after),
            ["let rebuilds and scrubs follow no latency target", "only report slow members", "scrub on request only"]
        );
        assert_eq!(of_engine(&before), Settings { client_p99: Some(5_000_000), retire_slow: true });
    }
}
