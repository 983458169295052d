//! `purlin iostat`: activity of clients and drives between two samples of the daemon's counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::{IoCounters, format_bytes};
use clap::Args;
use comfy_table::Cell;
use serde::{Deserialize, Serialize};

use crate::common_args::{Common, DurationOrOff, parse_duration_or_off};
use crate::ending::Ending;
use crate::fit::{Column, table};
use crate::output::{has_colour, show};
use crate::table::per_second;
use crate::{Client, Failure};

/// `purlin iostat`.
#[derive(Debug, Args)]
pub struct IostatArgs {
    /// Volumes and drives, too, not only groups
    #[arg(long, short)]
    verbose: bool,
    /// Length of each sample
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration_or_off)]
    every: DurationOrOff,
    /// Number of samples; default 1; 0 runs until Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
}

/// Reads and writes in a sample of some seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IoStats {
    /// Length of the sample in seconds.
    pub window_s: f64,
    /// Groups, and with `--verbose` volumes and drives.
    pub rates: Vec<IoRate>,
}

/// The rates of one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IoRate {
    /// Its kind.
    pub kind: IoKind,
    /// Its name.
    pub name: String,
    /// Its group; `null` for a drive without a group.
    pub group: Option<String>,
    /// Reads per second.
    pub reads_per_s: f64,
    /// Writes per second.
    pub writes_per_s: f64,
    /// Bytes read per second.
    pub read_bytes_per_s: f64,
    /// Bytes written per second.
    pub write_bytes_per_s: f64,
}

/// Kinds of objects that have rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoKind {
    /// A group: activity of its clients.
    Group,
    /// A volume: activity of its clients.
    Volume,
    /// A drive: activity of the daemon on it.
    Drive,
}

/// An object by group, kind and name, in display order.
type Key = (Option<String>, IoKind, String);

/// Shows the requested number of samples.
pub async fn run(common: &Common, client: &Client, args: IostatArgs) -> Result<(), Failure> {
    let DurationOrOff(Some(every)) = args.every else {
        return Err(Failure::Usage("a look takes some time: name a duration such as 1s".to_owned()));
    };
    let fail = |source| Failure::Local { what: "cannot listen to signals".to_owned(), source };
    let mut ending = Ending::listen().map_err(fail)?;
    let (mut before, mut began) = (counters(client, args.verbose).await?, Instant::now());
    let mut left = (args.count > 0).then_some(args.count);
    while left != Some(0) {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = ending.told() => return Ok(()),
        }
        let (after, now) = (counters(client, args.verbose).await?, Instant::now());
        let stats = stats(&before, &after, now - began);
        show(common, &stats, |stats| shown(has_colour(), stats))?;
        (before, began) = (after, now);
        left = left.map(|left| left - 1);
    }
    Ok(())
}

async fn counters(client: &Client, verbose: bool) -> Result<BTreeMap<Key, IoCounters>, Failure> {
    let mut all = BTreeMap::new();
    for group in client.groups().await?.groups {
        all.insert((Some(group.name.clone()), IoKind::Group, group.name), group.io);
    }
    if !verbose {
        return Ok(all);
    }
    for volume in client.volumes().await?.volumes {
        all.insert((Some(volume.group), IoKind::Volume, volume.name), volume.io);
    }
    for drive in client.drives().await?.drives {
        all.insert((drive.group, IoKind::Drive, drive.name), drive.io);
    }
    Ok(all)
}

/// The difference of two samples. An object that is not in the first one counts from 0.
fn stats(before: &BTreeMap<Key, IoCounters>, after: &BTreeMap<Key, IoCounters>, window: Duration) -> IoStats {
    let window_s = window.as_secs_f64().max(f64::MIN_POSITIVE);
    let rate = |(key, after): (&Key, &IoCounters)| {
        let before = before.get(key).copied().unwrap_or_default();
        // An object that was closed and reopened counts from 0.
        let of = |count: fn(&IoCounters) -> u64| count(after).saturating_sub(count(&before)) as f64 / window_s;
        let (group, kind, name) = key.clone();
        IoRate {
            kind,
            name,
            group,
            reads_per_s: of(|io| io.read_count),
            writes_per_s: of(|io| io.write_count),
            read_bytes_per_s: of(|io| io.read_bytes),
            write_bytes_per_s: of(|io| io.write_bytes),
        }
    };
    IoStats { window_s, rates: after.iter().map(rate).collect() }
}

/// The figures for people.
fn shown(colour: bool, stats: &IoStats) -> String {
    if stats.rates.is_empty() {
        return crate::table::NO_GROUPS.to_owned();
    }
    let bytes = |rate: f64| Cell::new(format!("{}/s", format_bytes(rate as u64)));
    let row = |rate: &IoRate| {
        let kind = match rate.kind {
            IoKind::Group => "group",
            IoKind::Volume => "volume",
            IoKind::Drive => "drive",
        };
        vec![
            Cell::new(&rate.name),
            Cell::new(kind),
            Cell::new(per_second(rate.reads_per_s)),
            Cell::new(per_second(rate.writes_per_s)),
            bytes(rate.read_bytes_per_s),
            bytes(rate.write_bytes_per_s),
        ]
    };
    let columns = [
        Column::Long("NAME"),
        Column::Word("KIND"),
        Column::Number("READS/S"),
        Column::Number("WRITES/S"),
        Column::Number("READ"),
        Column::Number("WRITTEN"),
    ];
    table(colour, &columns, stats.rates.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let key = |kind, name: &str| (Some("tank".to_owned()), kind, name.to_owned());
        let io = |read_count, write_bytes| IoCounters { read_count, write_bytes, ..IoCounters::default() };
        let before = BTreeMap::from([(key(IoKind::Group, "tank"), io(100, 0)), (key(IoKind::Drive, "/d"), io(9, 9))]);
        let after = BTreeMap::from([
            (key(IoKind::Group, "tank"), io(300, 8192)),
            (key(IoKind::Volume, "tank/db"), io(10, 0)),
            (key(IoKind::Drive, "/d"), io(1, 0)),
        ]);
        let stats = stats(&before, &after, Duration::from_secs(2));
        let found: Vec<(&str, f64, f64)> =
            stats.rates.iter().map(|rate| (rate.name.as_str(), rate.reads_per_s, rate.write_bytes_per_s)).collect();
        assert_eq!(found, [("tank", 100.0, 4096.0), ("tank/db", 5.0, 0.0), ("/d", 0.0, 0.0)]);
        insta::assert_snapshot!("iostat", shown(false, &stats));
    }
}
