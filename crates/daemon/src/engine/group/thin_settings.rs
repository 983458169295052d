//! How thin volumes use their pool: requests, and the forms of catalogue, store and API.

use std::time::Duration;

use api::{Changed, ErrorCode, ThinSettings, ThinUpdate, Volume, VolumeName, format_bytes, format_duration};
use format::{CompressionRecord, ThinVolumeRecord, VolumeKind};
use volume::thin::{Compression, VolumeSettings};

use crate::engine::Engine;
use crate::engine::group::kinds::refuse_converting;
use crate::http::{Answer, ControlError};

/// For the store.
pub(crate) fn of_store(record: &ThinVolumeRecord) -> VolumeSettings {
    VolumeSettings {
        compression: match record.compression {
            CompressionRecord::Off => Compression::Off,
            CompressionRecord::Lz4 => Compression::Lz4,
            CompressionRecord::Zstd { level } => Compression::Zstd(level),
        },
        quota_bytes: record.quota_bytes,
        reserve_bytes: record.reserve_bytes.unwrap_or(0),
        wait: Duration::from_millis(record.full_wait_ms.unwrap_or(0).into()),
        repack_after: record.repack_after_s.map(|after| Duration::from_secs(after.into())),
    }
}

/// For the API.
pub(crate) fn shown(record: &ThinVolumeRecord) -> ThinSettings {
    ThinSettings {
        compression: shown_compression(record.compression).to_string(),
        quota_bytes: record.quota_bytes,
        reserve_bytes: record.reserve_bytes,
        full_wait_ms: record.full_wait_ms.unwrap_or(0).into(),
        repack_after_s: record.repack_after_s.map(u64::from),
    }
}

fn shown_compression(record: CompressionRecord) -> api::Compression {
    match record {
        CompressionRecord::Off => api::Compression::Off,
        CompressionRecord::Lz4 => api::Compression::Lz4,
        CompressionRecord::Zstd { level } => api::Compression::Zstd(level),
    }
}

/// The settings after a request.
pub(crate) fn updated(record: &ThinVolumeRecord, update: &ThinUpdate) -> ThinVolumeRecord {
    // 0 means off.
    let chosen = |asked: Option<u64>, before| asked.map_or(before, |value| Some(value).filter(|value| *value > 0));
    let compression = update.compression.map(|compression| match compression {
        api::Compression::Off => CompressionRecord::Off,
        api::Compression::Lz4 => CompressionRecord::Lz4,
        api::Compression::Zstd(level) => CompressionRecord::Zstd { level },
    });
    ThinVolumeRecord {
        store: record.store,
        compression: compression.unwrap_or(record.compression),
        quota_bytes: chosen(update.quota_bytes, record.quota_bytes),
        reserve_bytes: chosen(update.reserve_bytes, record.reserve_bytes),
        full_wait_ms: chosen(update.full_wait_ms, record.full_wait_ms.map(u64::from)).map(|wait| wait as u32),
        repack_after_s: chosen(update.repack_after_s, record.repack_after_s.map(u64::from)).map(|after| after as u32),
    }
}

/// Checks settings beside each other.
pub(crate) fn check(settings: &ThinVolumeRecord) -> Answer<()> {
    match (settings.quota_bytes, settings.reserve_bytes) {
        (Some(quota), Some(reserve)) if reserve > quota => {
            let (quota, reserve) = (format_bytes(quota), format_bytes(reserve));
            let message = format!("a volume with a quota of {quota} cannot use a reserve of {reserve}: choose less");
            Err(ControlError::new(ErrorCode::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// The changes of a request, one sentence each; empty if nothing changes.
pub(crate) fn steps(before: &ThinVolumeRecord, after: &ThinVolumeRecord) -> Vec<String> {
    let mut steps = Vec::new();
    if before.compression != after.compression {
        steps.push(match after.compression {
            CompressionRecord::Off => "store new blocks uncompressed".to_owned(),
            compression => format!("compress new blocks with {}", shown_compression(compression)),
        });
    }
    if before.quota_bytes != after.quota_bytes {
        steps.push(match after.quota_bytes {
            Some(quota) => format!("let at most {} be written", format_bytes(quota)),
            None => "let the whole volume be written".to_owned(),
        });
    }
    if before.reserve_bytes != after.reserve_bytes {
        steps.push(match after.reserve_bytes {
            Some(reserve) => format!("keep {} of the pool for the volume", format_bytes(reserve)),
            None => "keep nothing of the pool for the volume".to_owned(),
        });
    }
    if before.full_wait_ms != after.full_wait_ms {
        steps.push(match after.full_wait_ms {
            Some(wait) => {
                format!("let writes wait {} for space", format_duration(Duration::from_millis(wait.into())))
            }
            None => "refuse writes at once when there is no space".to_owned(),
        });
    }
    if before.repack_after_s != after.repack_after_s {
        steps.push(match after.repack_after_s {
            Some(after) => {
                let time = format_duration(Duration::from_secs(after.into()));
                format!("pack content again that was not written for {time}")
            }
            None => "leave content packed as it is".to_owned(),
        });
    }
    steps
}

impl Engine {
    pub(super) async fn change_thin_volume(&self, name: &VolumeName, request: ThinUpdate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        refuse_converting(name, &record)?;
        if record.kind != VolumeKind::Thin {
            let message = format!("the volume \"{name}\" is not thin: it has all of its space, and no such settings");
            return Err(ControlError::new(ErrorCode::WrongState, message));
        }
        group.check_stores().await?;
        let (written, stored) = group.thin_bytes(&record).await?;
        request.validate_for(record.size_bytes, written)?;
        let after = updated(&record.thin, &request);
        check(&after)?;
        let steps = steps(&record.thin, &after);
        if let Some(reserve) = after.reserve_bytes {
            // The reserve that the volume has is kept already.
            let has = stored.max(record.thin.reserve_bytes.unwrap_or(0));
            let turn = group.space_turn.lock().await;
            group.need_reserve(name, record.thin.store, (reserve, has), request.dry_run).await?;
            drop(turn);
        }
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let has_new_quota = record.thin.quota_bytes != after.quota_bytes;
        let mut changed = record;
        changed.thin = after;
        if !steps.is_empty() {
            group
                .change_catalogue(|catalogue| {
                    for volume in catalogue.volumes.iter_mut().filter(|volume| volume.id == changed.id) {
                        volume.thin = after;
                    }
                })
                .await?;
            group.set_volume(&changed).await?;
            // The quota is the capacity of a namespace.
            if has_new_quota {
                self.notify_changed(&group, changed.id);
            }
            tracing::info!(volume = %name, changes = steps.join("; "), "settings changed");
        }
        Ok(Changed::done(steps, self.query_volume(&group, &changed).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_at_most_the_quota() {
        let of = |quota_bytes, reserve_bytes| ThinVolumeRecord { quota_bytes, reserve_bytes, ..Default::default() };
        assert!(check(&of(Some(1 << 30), Some(1 << 30))).is_ok());
        assert!(check(&of(None, Some(1 << 40))).is_ok());
        assert_eq!(
            check(&of(Some(1 << 30), Some(2 << 30))).unwrap_err().to_string(),
            "a volume with a quota of 1 GiB cannot use a reserve of 2 GiB: choose less"
        );
    }

    #[test]
    fn fields_that_are_not_named_stay_and_zero_is_off() {
        let all = ThinUpdate {
            compression: Some(api::Compression::Zstd(7)),
            quota_bytes: Some(1 << 30),
            reserve_bytes: Some(1 << 20),
            full_wait_ms: Some(5000),
            repack_after_s: Some(86_400),
            dry_run: false,
        };
        let usual = ThinVolumeRecord::default();
        let set = updated(&usual, &all);
        assert_eq!(
            steps(&usual, &set),
            [
                "compress new blocks with zstd:7",
                "let at most 1 GiB be written",
                "keep 1 MiB of the pool for the volume",
                "let writes wait 5s for space",
                "pack content again that was not written for 1d"
            ]
        );
        assert_eq!(updated(&set, &ThinUpdate::default()), set);
        let off = ThinUpdate {
            compression: Some(api::Compression::Off),
            quota_bytes: Some(0),
            reserve_bytes: Some(0),
            full_wait_ms: Some(0),
            repack_after_s: Some(0),
            dry_run: false,
        };
        assert_eq!(updated(&set, &off), usual);
        assert_eq!(steps(&set, &usual).len(), 5);
        assert_eq!(shown(&set).compression, "zstd:7");
        assert_eq!(of_store(&set).wait, Duration::from_secs(5));
    }
}
