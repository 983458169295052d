//! Creates, resizes and deletes volumes of groups.

use api::{Changed, ErrorCode, Volume, VolumeCreate, VolumeName, VolumeUpdate, format_bytes, volume_bytes};
use format::{ExportKind, ExportRecord, ExtentRecord, LimitOf, VolumeKind, VolumeRecord};

use crate::engine::exports::devices::Backing;
use crate::engine::group::shard;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError, require_confirmation};

impl Engine {
    fn no_room(volume: &VolumeName, needed: &str, free_bytes: u64) -> ControlError {
        let (group, free) = (&volume.group, format_bytes(free_bytes));
        let message = format!("the volume \"{volume}\" needs {needed}, and the group {group:?} has {free} free");
        ControlError::new(ErrorCode::NoSpace, message)
    }

    pub(crate) async fn create_volume(&self, request: VolumeCreate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let group = self.find(&request.group)?;
        let catalogue = group.catalogue().await?;
        if catalogue.volumes.iter().any(|volume| volume.name == request.volume) {
            return Err(ControlError::volume_exists(&request.name()));
        }
        let (space, used) = view::space(&group, &catalogue);
        let needed = format_bytes(request.size_bytes);
        let no_room = || Self::no_room(&request.name(), &needed, space.free_bytes(&used));
        let size_bytes = volume_bytes(request.size_bytes).ok_or_else(no_room)?;
        let extents = volume::allocate(space, &used, size_bytes).ok_or_else(no_room)?;
        let steps = vec![format!("make the volume \"{}\" of {}", request.name(), format_bytes(size_bytes))];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let record = VolumeRecord {
            id: catalogue.next_id,
            name: request.volume.clone(),
            kind: VolumeKind::Direct,
            size_bytes,
            created_unix_s: self.clock.unix_s(),
            extents,
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
        let (key, shown) = (group.key, record.clone());
        group.await_all(move || shard::set_volume(key, shown.clone())).await?;
        tracing::info!(volume = %request.name(), size_bytes, "created");
        Ok(Changed::done(steps, self.query_volume(&group, &record).await?))
    }

    pub(crate) async fn resize_volume(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>> {
        let _one = self.changes.lock().await;
        let (group, record) = self.find_volume(name).await?;
        let catalogue = group.catalogue().await?;
        let (space, used) = view::space(&group, &catalogue);
        let no_room = |needed: &str| Self::no_room(name, needed, space.free_bytes(&used));
        let size_bytes = volume_bytes(request.size_bytes).ok_or_else(|| no_room(&format_bytes(request.size_bytes)))?;
        let is_device = |export: &&ExportRecord| matches!(export.kind, ExportKind::Ublk { .. });
        let device = catalogue.exports.iter().filter(is_device).find(|export| export.volume == record.id);
        if let Some(device) = device {
            self.check_device_grows(&group, name, device, size_bytes < record.size_bytes).await?;
        }
        let (extents, freed) = if size_bytes >= record.size_bytes {
            let grown = volume::extend(space, &used, &record.extents, size_bytes);
            let more = format!("{} more", format_bytes(size_bytes - record.size_bytes));
            (grown.ok_or_else(|| no_room(&more))?, Vec::new())
        } else {
            if !request.dry_run {
                let lost = format!("everything past {} of \"{name}\"", format_bytes(size_bytes));
                require_confirmation(&name.to_string(), &lost, request.confirm.as_deref())?;
            }
            volume::shrink(&record.extents, size_bytes)
        };
        let steps = vec![format!(
            "resize the volume \"{name}\" from {} to {}",
            format_bytes(record.size_bytes),
            format_bytes(size_bytes)
        )];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let resized = VolumeRecord { size_bytes, extents, ..record.clone() };
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
        let (key, shown) = (group.key, resized.clone());
        group.await_all(move || shard::set_volume(key, shown.clone())).await?;
        group.release(freed).await?;
        self.notify_resized(&group, resized.id);
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

    pub(crate) async fn delete_volume(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>> {
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
        group.release(record.extents).await?;
        tracing::info!(volume = %name, "deleted");
        Ok(Changed::gone(steps))
    }
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
