//! Requests about volumes of groups.

use std::sync::Arc;

use api::{
    Changed, ErrorCode, LimitUpdate, Rename, THIN_BYTES_MAX, ThinUpdate, Volume, VolumeConvert, VolumeCreate,
    VolumeName, VolumeUpdate, format_bytes, volume_bytes,
};
use async_trait::async_trait;
use format::{ExportKind, ExportRecord, ExtentRecord, LimitOf, ThinVolumeRecord, VolumeKind, VolumeRecord};

use crate::engine::exports::devices::Backing;
use crate::engine::exports::limits::LimitChange;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::group::direct_room::{DirectNeed, DirectRoom};
use crate::engine::group::kinds::refuse_converting;
use crate::engine::group::rename::{known_as, refuse_named_clients};
use crate::engine::group::{shard, thin_settings};
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError, VolumeControl, require_confirmation};

#[async_trait]
impl VolumeControl for Engine {
    async fn volumes(&self) -> Answer<Vec<Volume>> {
        let mut volumes = Vec::new();
        for group in self.all() {
            for record in group.catalogue().await?.volumes {
                volumes.push(self.query_volume(&group, &record).await?);
            }
        }
        volumes.extend(self.all_imports().iter().filter_map(|import| import.volume()));
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(volumes)
    }

    async fn volume(&self, name: &VolumeName) -> Answer<Volume> {
        if let Some(import) = self.import_of(name) {
            return import?.volume().ok_or_else(|| ControlError::volume_not_found(name));
        }
        let (group, record) = self.find_volume(name).await?;
        self.query_volume(&group, &record).await
    }

    async fn volume_create(&self, request: VolumeCreate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let group = self.find(&request.group)?;
        let turn = group.space_turn.lock().await;
        let catalogue = group.catalogue().await?;
        if catalogue.volumes.iter().any(|volume| volume.name == request.volume) {
            return Err(ControlError::volume_exists(&request.name()));
        }
        let (name, dry_run) = (request.name(), request.dry_run);
        let size_bytes = volume_bytes(request.size_bytes).unwrap_or(u64::MAX);
        let kind = if request.thin { VolumeKind::Thin } else { VolumeKind::Direct };
        let room = match kind {
            VolumeKind::Direct => {
                let shown = format_bytes(request.size_bytes);
                let need = DirectNeed { volume: &name, bytes: size_bytes, shown: &shown, dry_run };
                group.find_direct(need, |space, used| volume::allocate(space, used, size_bytes)).await?
            }
            VolumeKind::Thin => DirectRoom::default(),
        };
        let thin = if request.thin { "thin " } else { "" };
        let mut steps: Vec<String> = room.step().into_iter().collect();
        steps.push(format!("make the {thin}volume \"{name}\" of {}", format_bytes(size_bytes)));
        let mut settings = thin_settings::updated(&ThinVolumeRecord::default(), &request.thin_settings());
        thin_settings::check(&settings)?;
        if request.thin {
            settings.store = group.need_store(&catalogue, dry_run).await?;
            if let Some(reserve) = settings.reserve_bytes {
                let kept = group.need_reserve(&name, settings.store, (reserve, 0), dry_run).await;
                if kept.is_err() {
                    // The store may have been made for this volume.
                    group.drop_unused_stores().await?;
                }
                kept?;
            }
        }
        steps.extend(thin_settings::steps(&ThinVolumeRecord::default(), &settings));
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        let record = VolumeRecord {
            id: catalogue.next_id,
            name: request.volume.clone(),
            kind,
            size_bytes,
            created_unix_s: self.clock.unix_s(),
            extents: room.extents,
            thin: settings,
            conversion: None,
        };
        // A volume whose deletion a crash interrupted may have left data there.
        group.release(record.extents.clone()).await?;
        let added = record.clone();
        group
            .change_catalogue(|catalogue| {
                catalogue.next_id += 1;
                catalogue.volumes.push(added);
            })
            .await?;
        drop(turn);
        group.set_volume(&record).await?;
        tracing::info!(volume = %name, size_bytes, "created");
        Ok(Changed::done(steps, self.query_volume(&group, &record).await?))
    }

    async fn volume_resize(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        refuse_converting(name, &record)?;
        let turn = group.space_turn.lock().await;
        let catalogue = group.catalogue().await?;
        let size_bytes = volume_bytes(request.size_bytes).unwrap_or(u64::MAX);
        let is_device = |export: &&ExportRecord| matches!(export.kind, ExportKind::Ublk { .. });
        let device = catalogue.exports.iter().filter(is_device).find(|export| export.volume == record.id);
        if let Some(device) = device {
            self.check_device_grows(&group, name, device, size_bytes < record.size_bytes).await?;
        }
        let is_thin = record.kind == VolumeKind::Thin;
        if is_thin && size_bytes > THIN_BYTES_MAX {
            let message = format!("a thin volume has at most {}: give it a smaller size", format_bytes(THIN_BYTES_MAX));
            return Err(ControlError::new(ErrorCode::Invalid, message));
        }
        let (room, freed) = if size_bytes >= record.size_bytes && is_thin {
            (DirectRoom::default(), Vec::new())
        } else if size_bytes >= record.size_bytes {
            let bytes = size_bytes - record.size_bytes;
            let shown = format!("{} more", format_bytes(bytes));
            let need = DirectNeed { volume: name, bytes, shown: &shown, dry_run: request.dry_run };
            let find = |space, used: &[_]| volume::extend(space, used, &record.extents, size_bytes);
            (group.find_direct(need, find).await?, Vec::new())
        } else {
            if !request.dry_run {
                let lost = format!("everything past {} of \"{name}\"", format_bytes(size_bytes));
                require_confirmation(&name.to_string(), &lost, request.confirm.as_deref())?;
            }
            let (extents, freed) = volume::shrink(&record.extents, size_bytes);
            (DirectRoom { extents, from_pool_bytes: 0 }, freed)
        };
        let mut steps: Vec<String> = room.step().into_iter().collect();
        steps.extend(resize_steps(name, &record, size_bytes));
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let mut resized = VolumeRecord { size_bytes, extents: room.extents, ..record.clone() };
        resized.thin.reserve_bytes = resized.thin.reserve_bytes.map(|reserve| reserve.min(size_bytes));
        if freed.is_empty() {
            let new: Vec<ExtentRecord> =
                resized.extents.iter().filter(|extent| !record.extents.contains(extent)).copied().collect();
            group.release(beyond(&new, &record.extents)).await?;
        }
        let stored = resized.clone();
        group
            .change_catalogue(|catalogue| {
                for volume in catalogue.volumes.iter_mut().filter(|volume| volume.id == stored.id) {
                    *volume = stored.clone();
                }
            })
            .await?;
        drop(turn);
        group.set_volume(&resized).await?;
        group.free_extents(freed).await?;
        self.notify_changed(&group, resized.id);
        tracing::info!(volume = %name, size_bytes, "resized");
        let mut warnings = Vec::new();
        if let Some(device) = device
            && let Err(error) = self.resize_device(&group, name, device).await
        {
            let path = device.kind.address();
            tracing::warn!(volume = %name, device = %path, %error, "the block device does not have its volume's size");
            warnings.push(format!("{path} still has its old size: {error}; resizing to the same size tries again"));
        }
        Ok(Changed::done(steps, self.query_volume(&group, &resized).await?).with_warnings(warnings))
    }

    async fn volume_thin(&self, name: &VolumeName, request: ThinUpdate) -> Answer<Changed<Volume>> {
        self.change_thin_volume(name, request).await
    }

    async fn volume_convert(&self, name: &VolumeName, request: VolumeConvert) -> Answer<Changed<Volume>> {
        self.convert_volume(name, request).await
    }

    async fn volume_limit(&self, name: &VolumeName, request: LimitUpdate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        let of = LimitOf::Volume(record.id);
        let change = LimitChange::of(&group.catalogue().await?, &of, &request, &format!("the volume \"{name}\""))?;
        if request.dry_run {
            return Ok(Changed::planned(change.steps).with_warnings(change.warnings));
        }
        if !change.steps.is_empty() {
            group.change_catalogue(|catalogue| change.record(of, catalogue)).await?;
            group.limiter(record.id).set(change.after);
            tracing::info!(volume = %name, limit = ?change.after, "limited");
        }
        let volume = self.query_volume(&group, &record).await?;
        Ok(Changed::done(change.steps, volume).with_warnings(change.warnings))
    }

    async fn volume_rename(&self, name: &VolumeName, request: Rename) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, mut record) = self.find_volume(name).await?;
        let new = VolumeName { group: name.group.clone(), volume: request.name.clone() };
        if new == *name {
            let shown = self.query_volume(&group, &record).await?;
            return Ok(if request.dry_run { Changed::planned(Vec::new()) } else { Changed::done(Vec::new(), shown) });
        }
        if group.catalogue().await?.volumes.iter().any(|volume| volume.name == new.volume) {
            return Err(ControlError::volume_exists(&new));
        }
        let own = |running: &&Arc<RunningExport>| running.record.volume == record.id;
        let exports: Vec<Arc<RunningExport>> = group.exports().values().filter(own).cloned().collect();
        refuse_named_clients(&group, &exports, request.force)?;
        let mut steps = vec![format!("rename the volume \"{name}\" to \"{new}\"")];
        steps.extend(exports.iter().filter_map(|running| {
            let known_as = known_as(running, &new);
            let id = view::export_id(&group, running.record.id);
            (!known_as.is_empty()).then(|| format!("go on with the export {id}{known_as}"))
        }));
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let (id, stored) = (record.id, new.volume.clone());
        group
            .change_catalogue(|catalogue| {
                for volume in catalogue.volumes.iter_mut().filter(|volume| volume.id == id) {
                    volume.name.clone_from(&stored);
                }
            })
            .await?;
        self.offer_under_new_names(&group, &exports).await?;
        record.name.clone_from(&new.volume);
        tracing::info!(volume = %name, new = %new, "renamed");
        Ok(Changed::done(steps, self.query_volume(&group, &record).await?))
    }

    async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        let exports: Vec<String> = self.query_volume(&group, &record).await?.exports;
        if !exports.is_empty() {
            return Err(ControlError::new(
                ErrorCode::Busy,
                format!("the volume \"{name}\" is exported as {}: delete that first", exports.join(", ")),
            ));
        }
        let steps = vec![format!("destroy the volume \"{name}\" of {}", format_bytes(record.size_bytes))];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        group
            .change_catalogue(|catalogue| {
                catalogue.volumes.retain(|volume| volume.id != record.id);
                catalogue.reservations.retain(|known| known.volume != record.id);
                catalogue.limits.retain(|known| known.of != LimitOf::Volume(record.id));
            })
            .await?;
        group.forget_namespace(record.id);
        group.forget_limiter(record.id);
        let key = group.key;
        group.await_all(move || shard::remove_volume(key, record.id)).await?;
        group.forget_conversion(record.id);
        if let Some(conversion) = record.conversion {
            group.free_content(record.id, conversion.to, conversion.extents, conversion.thin.store).await?;
        }
        group.free_content(record.id, record.kind, record.extents, record.thin.store).await?;
        tracing::info!(volume = %name, "deleted");
        Ok(Changed::gone(steps))
    }
}

impl Engine {
    /// Refuses to resize a volume whose block device cannot follow.
    async fn check_device_grows(
        &self,
        group: &Group,
        name: &VolumeName,
        device: &ExportRecord,
        shrinks: bool,
    ) -> Answer<()> {
        let can = if shrinks {
            "can only grow"
        } else if self.devices.can_resize().await? {
            return Ok(());
        } else {
            "keeps its size on this kernel (Linux 6.16 or newer lets it grow)"
        };
        let (path, id) = (device.kind.address(), view::export_id(group, device.id));
        Err(ControlError::new(
            ErrorCode::Busy,
            format!("the volume \"{name}\" is the block device {path}, which {can}: delete the export {id} first"),
        ))
    }

    /// Sets the size of a volume's block device in the kernel.
    async fn resize_device(&self, group: &Group, name: &VolumeName, device: &ExportRecord) -> Answer<()> {
        let backing = Backing::of_volume(group, device.volume).await?;
        self.devices.resize(&backing, device, &name.to_string()).await
    }
}

fn resize_steps(name: &VolumeName, record: &VolumeRecord, after: u64) -> Vec<String> {
    let before = record.size_bytes;
    let mut steps =
        vec![format!("resize the volume \"{name}\" from {} to {}", format_bytes(before), format_bytes(after))];
    if after < before {
        steps.push(format!("destroy the data in its last {}", format_bytes(before - after)));
    }
    if record.thin.reserve_bytes.is_some_and(|reserve| reserve > after) {
        steps.push(format!("keep {} of the pool for it", format_bytes(after)));
    }
    steps
}

/// The parts of `new` beyond `old`. Of an extent that grew in place, only the new part.
fn beyond(new: &[ExtentRecord], old: &[ExtentRecord]) -> Vec<ExtentRecord> {
    let part = |extent: &ExtentRecord| match old.iter().find(|other| other.start_byte == extent.start_byte) {
        Some(other) => ExtentRecord {
            start_byte: other.start_byte + other.len_bytes,
            len_bytes: extent.len_bytes - other.len_bytes,
        },
        None => *extent,
    };
    new.iter().map(part).filter(|extent| extent.len_bytes > 0).collect()
}
