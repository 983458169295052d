//! Renames groups and volumes while they run.
//!
//! A group's name is in its superblocks, a volume's in the catalogue. Clients know volumes in three
//! ways:
//! - NVMe hosts use constant numbers (UUIDs of the group and the volume): they notice nothing.
//! - Block devices of this machine stay, and requests to them wait for a moment. Their link below
//!   `/dev/purlin` gets the new name.
//! - NBD clients use the name. A connection could continue, but a client that reconnects would not
//!   find its volume. So a rename is refused while NBD clients are connected. If it is forced,
//!   their connections are closed.

use std::sync::{Arc, PoisonError};

use api::{Changed, ErrorCode, Rename, Volume, VolumeName};
use format::ExportKind;

use crate::engine::exports::devices;
use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError};

impl Engine {
    pub(crate) async fn rename_group(&self, name: &str, request: Rename) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let new = request.name.as_str();
        if new != name {
            self.check_free(new)?;
        }
        let exports: Vec<Arc<RunningExport>> = group.exports().values().cloned().collect();
        let mut steps = Vec::new();
        if new != name {
            refuse_named_clients(&group, &exports, request.force)?;
            steps.push(format!("rename the group {name:?} to {new:?}"));
            steps.extend(exports.iter().map(|running| {
                let volume = VolumeName { group: new.to_owned(), volume: volume_of(running).to_owned() };
                let (id, after) = (view::export_id(&group, running.record.id), format!("{new}-{}", running.record.id));
                format!("call the export {id} {after}{}", known_as(running, &volume))
            }));
        }
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        if steps.is_empty() {
            return Ok(Changed::done(steps, self.query_group(&group).await?));
        }
        let renamed = group.renamed(new).await?;
        {
            let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
            groups.remove(name);
            groups.insert(new.to_owned(), renamed.clone());
        }
        self.sampler.forget(name);
        self.offer_under_new_names(&renamed, &exports).await?;
        let warnings = self.remember();
        tracing::info!(group = name, new, "renamed");
        Ok(Changed::done(steps, self.query_group(&renamed).await?).with_warnings(warnings))
    }

    pub(crate) async fn rename_volume(&self, name: &VolumeName, request: Rename) -> Answer<Changed<Volume>> {
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

    /// Restarts exports under the new names of their volumes. NVMe hosts are not affected: they use
    /// numbers.
    async fn offer_under_new_names(&self, group: &Arc<Group>, exports: &[Arc<RunningExport>]) -> Answer<()> {
        for running in exports {
            match running.record.kind {
                ExportKind::NvmeTcp { .. } => continue,
                ExportKind::Nbd { .. } => {}
                ExportKind::Ublk { number, .. } => devices::unlink(running.state.name(), number),
            }
            self.end_export(group, running, DeviceEnd::Stays).await?;
            self.start_export(group, running.record.clone()).await?;
        }
        Ok(())
    }
}

/// The name, within its group, of the volume that an export was started for.
fn volume_of(running: &RunningExport) -> &str {
    running.state.name().split_once('/').map_or("", |(_, volume)| volume)
}

/// How clients of an export find its volume under the new name; empty if they need no name.
fn known_as(running: &RunningExport, volume: &VolumeName) -> String {
    match &running.record.kind {
        ExportKind::Nbd { address, .. } => format!(", which NBD clients find at {address} as \"{volume}\""),
        ExportKind::Ublk { .. } => {
            let stable = devices::stable_path(&volume.to_string());
            format!(", the block device {} or {}", running.record.kind.address(), stable.display())
        }
        ExportKind::NvmeTcp { .. } => String::new(),
    }
}

/// Refuses while NBD clients are connected, unless they may lose their connections.
fn refuse_named_clients(group: &Group, exports: &[Arc<RunningExport>], force: bool) -> Answer<()> {
    let is_used =
        |running: &&Arc<RunningExport>| matches!(running.record.kind, ExportKind::Nbd { .. }) && running.clients() > 0;
    let used: Vec<String> =
        exports.iter().filter(is_used).map(|running| view::export_id(group, running.record.id)).collect();
    if used.is_empty() || force {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::Busy,
        format!(
            "NBD clients are connected to {}, and know the volume by its old name: disconnect them, or say --force, \
             which ends their connections",
            used.join(", ")
        ),
    ))
}
