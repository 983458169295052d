//! Requests to convert a volume from direct to thin, or back.

use std::sync::Arc;

use api::{
    Changed, ConvertAction, ErrorCode, THIN_BYTES_MAX, ThinUpdate, Volume, VolumeConvert, VolumeName, format_bytes,
};
use format::{Catalogue, ConversionRecord, ExtentRecord, ThinVolumeRecord, VolumeKind, VolumeRecord};

use crate::engine::group::direct_room::DirectNeed;
use crate::engine::group::kinds::{kind_name, refuse_converting};
use crate::engine::group::thin_settings;
use crate::engine::{Engine, Group};
use crate::http::{Answer, ControlError};

impl Group {
    /// Refuses while the pool still has content under the identity of a volume.
    async fn refuse_old_line(&self, name: &VolumeName, id: u64) -> Answer<()> {
        let has_line = self.on_stores(move |store| async move { store.lines().contains(&(id as u32)) }).await?;
        if !has_line.iter().any(|(_, has_line)| *has_line) {
            return Ok(());
        }
        let message =
            format!("the pool still frees what the volume \"{name}\" had there before: try again in a moment");
        Err(ControlError::new(ErrorCode::Busy, message))
    }
}

impl Engine {
    pub(super) async fn convert_volume(&self, name: &VolumeName, request: VolumeConvert) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        let to = match request.action {
            ConvertAction::Cancel => return self.cancel_conversion(&group, name, record, request.dry_run).await,
            ConvertAction::Thin => VolumeKind::Thin,
            ConvertAction::Direct => VolumeKind::Direct,
        };
        refuse_converting(name, &record)?;
        if record.kind == to {
            let message = format!("the volume \"{name}\" is {} already", kind_name(to));
            return Err(ControlError::new(ErrorCode::WrongState, message));
        }
        let turn = group.space_turn.lock().await;
        let catalogue = group.catalogue().await?;
        let mut steps = vec![format!(
            "convert the volume \"{name}\" of {} to {} while it is in use",
            format_bytes(record.size_bytes),
            kind_name(to)
        )];
        let conversion = match to {
            VolumeKind::Thin => self.plan_thin(&group, &catalogue, (name, &record), &request.thin_settings()).await?,
            VolumeKind::Direct => {
                let (bytes, dry_run) = (record.size_bytes, request.dry_run);
                let need = DirectNeed { volume: name, bytes, shown: &format_bytes(bytes), dry_run };
                let room = group.find_direct(need, |space, used| volume::allocate(space, used, bytes)).await?;
                steps.extend(room.step());
                plan_direct(&catalogue, room.extents)
            }
        };
        steps.extend(thin_settings::steps(&ThinVolumeRecord::default(), &conversion.thin));
        steps.push(match to {
            VolumeKind::Thin => format!("then free the {} that it has now", format_bytes(record.size_bytes)),
            VolumeKind::Direct => "then free what it has in the pool".to_owned(),
        });
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        // A volume whose deletion a crash interrupted may have left data there.
        group.release(conversion.extents.clone()).await?;
        let changed = group
            .change_catalogue(|catalogue| {
                catalogue.next_id += 1;
                for volume in catalogue.volumes.iter_mut().filter(|volume| volume.id == record.id) {
                    volume.conversion = Some(conversion.clone());
                }
            })
            .await;
        if changed.is_err() {
            group.drop_unused_stores().await?;
        }
        changed?;
        drop(turn);
        let converting = VolumeRecord { conversion: Some(conversion), ..record };
        group.set_volume(&converting).await?;
        group.start_conversion(&converting).await?;
        tracing::info!(volume = %name, to = kind_name(to), "conversion started");
        Ok(Changed::done(steps, self.query_volume(&group, &converting).await?))
    }

    /// Plans a conversion to thin, and makes the pool if there is none.
    async fn plan_thin(
        &self,
        group: &Arc<Group>,
        catalogue: &Catalogue,
        (name, record): (&VolumeName, &VolumeRecord),
        settings: &ThinUpdate,
    ) -> Answer<ConversionRecord> {
        let dry_run = settings.dry_run;
        if record.size_bytes > THIN_BYTES_MAX {
            let message = format!("a thin volume has at most {}", format_bytes(THIN_BYTES_MAX));
            return Err(ControlError::new(ErrorCode::Invalid, message));
        }
        settings.validate_for(record.size_bytes, self.query_volume(group, record).await?.used_bytes)?;
        group.refuse_old_line(name, record.id).await?;
        let mut thin = thin_settings::updated(&ThinVolumeRecord::default(), settings);
        thin_settings::check(&thin)?;
        thin.store = group.need_store(catalogue, dry_run).await?;
        if let Some(reserve) = thin.reserve_bytes {
            let kept = group.need_reserve(name, thin.store, (reserve, 0), dry_run).await;
            if kept.is_err() {
                // The store may have been made for this volume.
                group.drop_unused_stores().await?;
            }
            kept?;
        }
        let (id, to) = (catalogue.next_id, VolumeKind::Thin);
        Ok(ConversionRecord { id, to, extents: Vec::new(), thin, copied_bytes: 0, stale: Vec::new() })
    }

    async fn cancel_conversion(
        &self,
        group: &std::sync::Arc<Group>,
        name: &VolumeName,
        record: VolumeRecord,
        dry_run: bool,
    ) -> Answer<Changed<Volume>> {
        let Some(conversion) = record.conversion.clone() else {
            let message = format!("the volume \"{name}\" is not being converted");
            return Err(ControlError::new(ErrorCode::WrongState, message));
        };
        let (from, to) = (kind_name(record.kind), kind_name(conversion.to));
        let steps = vec![format!("stop the conversion of the volume \"{name}\" to {to}; it stays {from}")];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        group
            .change_catalogue(|catalogue| {
                for volume in catalogue.volumes.iter_mut().filter(|volume| volume.id == record.id) {
                    volume.conversion = None;
                }
            })
            .await?;
        let serving = group.serving_shard(&record);
        let stays = VolumeRecord { conversion: None, ..record };
        group.change_volume(&stays, &serving).await?;
        group.forget_conversion(stays.id);
        group.free_content(stays.id, conversion.to, conversion.extents, conversion.thin.store).await?;
        tracing::info!(volume = %name, to, "conversion cancelled");
        Ok(Changed::done(steps, self.query_volume(group, &stays).await?))
    }
}

/// A conversion to direct, with all of its space.
fn plan_direct(catalogue: &Catalogue, extents: Vec<ExtentRecord>) -> ConversionRecord {
    ConversionRecord {
        id: catalogue.next_id,
        to: VolumeKind::Direct,
        extents,
        thin: ThinVolumeRecord::default(),
        copied_bytes: 0,
        stale: Vec::new(),
    }
}
