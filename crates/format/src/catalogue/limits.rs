//! Rate limits of volumes, and of hosts on exports: version 2 of the document.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::exports::is_host;
use super::{Catalogue, CatalogueError, ExportKind};

/// Allowed values of a limit in requests per second.
pub const LIMIT_IOPS: RangeInclusive<u64> = 1..=1_000_000_000;

/// Allowed values of a limit in bytes per second, up to 1 TiB/s.
pub const LIMIT_BYTES_PER_S: RangeInclusive<u64> = 1..=1 << 40;

/// Allowed bursts in milliseconds. Below 10 ms, a timer that fires late would cost throughput.
/// Above an hour, the limit has hardly any effect.
pub const LIMIT_BURST_MS: RangeInclusive<u64> = 10..=3_600_000;

/// A rate limit. The field names are those of the JSON document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRecord {
    /// The subject of the limit.
    pub of: LimitOf,
    /// Requests per second, within [`LIMIT_IOPS`]. None: unlimited.
    pub iops: Option<u64>,
    /// Bytes per second, within [`LIMIT_BYTES_PER_S`]. None: unlimited.
    pub bytes_per_s: Option<u64>,
    /// Burst size: after a pause, the allowance of this many milliseconds may be used at once.
    /// Within [`LIMIT_BURST_MS`].
    pub burst_ms: u64,
}

/// The subject of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LimitOf {
    /// A volume, by its identity: all its exports together.
    Volume(u64),
    /// One host on one export over NVMe/TCP: all its queues together.
    Host {
        /// Identity of the export.
        export: u64,
        /// NVMe qualified name of the host.
        host: String,
    },
}

impl LimitRecord {
    /// The rule that the record breaks on its own, without regard to the rest of the catalogue.
    fn broken_rule(&self) -> Option<&'static str> {
        let within = |value: Option<u64>, range: RangeInclusive<u64>| value.is_none_or(|value| range.contains(&value));
        if self.iops.is_none() && self.bytes_per_s.is_none() {
            return Some("it limits nothing");
        }
        if !within(self.iops, LIMIT_IOPS) || !within(self.bytes_per_s, LIMIT_BYTES_PER_S) {
            return Some("a rate that there cannot be");
        }
        (!LIMIT_BURST_MS.contains(&self.burst_ms)).then_some("a burst of less than 10 ms or more than an hour")
    }
}

impl Catalogue {
    pub(super) fn check_limits(&self) -> Result<(), CatalogueError> {
        for (index, record) in self.limits.iter().enumerate() {
            let is_there = match &record.of {
                LimitOf::Volume(volume) => self.volumes.iter().any(|known| known.id == *volume),
                LimitOf::Host { export, host } => {
                    let is_export = |kind: &ExportKind| matches!(kind, ExportKind::NvmeTcp { .. });
                    is_host(host) && self.exports.iter().any(|known| known.id == *export && is_export(&known.kind))
                }
            };
            let is_twice = self.limits[..index].iter().any(|other| other.of == record.of);
            let reason = match record.broken_rule() {
                _ if !is_there => Some("there is no such volume, host, or export over NVMe/TCP"),
                _ if is_twice => Some("it is there twice"),
                reason => reason,
            };
            if let Some(reason) = reason {
                let (LimitOf::Volume(id) | LimitOf::Host { export: id, .. }) = record.of;
                return Err(CatalogueError::Limit { id, reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AnaRecord, ExportRecord, ExtentRecord, VolumeKind, VolumeRecord};
    use super::*;

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";

    fn sample() -> Catalogue {
        let extents = vec![ExtentRecord { start_byte: 0, len_bytes: 4096 }];
        let (kind, name) = (VolumeKind::Direct, "a".to_owned());
        let volume = VolumeRecord {
            id: 1,
            name,
            kind,
            size_bytes: 4096,
            created_unix_s: 0,
            extents,
            thin: crate::ThinVolumeRecord::default(),
            conversion: None,
        };
        let address = "0.0.0.0:4420".to_owned();
        let kind = ExportKind::NvmeTcp {
            address,
            nsid: 1,
            block_bytes: 4096,
            read_only: false,
            hosts: None,
            ana: AnaRecord::default(),
        };
        let nbd = ExportKind::Nbd { address: "unix:/a".to_owned(), read_only: false, tls: None };
        let exports = [(2, kind), (3, nbd)].map(|(id, kind)| ExportRecord { id, volume: 1, kind }).to_vec();
        let host = LimitOf::Host { export: 2, host: HOST.to_owned() };
        let limits = vec![
            LimitRecord { of: LimitOf::Volume(1), iops: Some(1), bytes_per_s: Some(1 << 40), burst_ms: 10 },
            LimitRecord { of: host, iops: Some(1_000_000_000), bytes_per_s: None, burst_ms: 3_600_000 },
        ];
        Catalogue { next_id: 4, volumes: vec![volume], exports, limits, ..Catalogue::default() }
    }

    fn of(export: u64, host: &str) -> LimitOf {
        LimitOf::Host { export, host: host.to_owned() }
    }

    #[test]
    fn limits_are_of_what_is_there_and_can_be_kept() {
        assert_eq!(sample().check(4096), Ok(()));
        assert_eq!(sample().version(), 2, "older readers are not given them");
        type Damage = fn(&mut Catalogue);
        let damages: [Damage; 11] = [
            |c| c.limits[0].of = LimitOf::Volume(2),
            |c| c.limits[1].of = of(1, HOST),
            |c| c.limits[1].of = of(3, HOST),
            |c| c.limits[1].of = of(2, "somebody"),
            |c| c.limits.push(c.limits[1].clone()),
            |c| c.limits[1].iops = None,
            |c| c.limits[0].iops = Some(0),
            |c| c.limits[0].bytes_per_s = Some(0),
            |c| c.limits[0].bytes_per_s = Some((1 << 40) + 1),
            |c| c.limits[0].burst_ms = 9,
            |c| c.limits[0].burst_ms = 3_600_001,
        ];
        for (index, damage) in damages.into_iter().enumerate() {
            let mut damaged = sample();
            damage(&mut damaged);
            let refused = damaged.check(4096);
            assert!(matches!(refused, Err(CatalogueError::Limit { .. })), "case {index}: {refused:?}");
        }
    }
}
