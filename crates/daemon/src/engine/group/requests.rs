//! Requests about groups.

use std::sync::{Arc, PoisonError};

use api::{
    Changed, ErrorCode, GroupAssemble, GroupCreate, GroupForget, GroupNotStarted, GroupScan, GroupStart, GroupStop,
    GroupUpdate, Rename, Scanned, Scrub, ScrubAction, ScrubRequest, VolumeName,
};
use async_trait::async_trait;
use format::{SettingsRecord, Shape};
use runtime::{OpenDrive, forget_memory};

use crate::engine::drives::Consent;
use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::offer;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::group::create::{layout_steps, new_group, settings_of};
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::rename::{known_as, refuse_named_clients, volume_of};
use crate::engine::group::{Group, lost};
use crate::engine::{Engine, settings, view};
use crate::http::{Answer, ControlError, GroupControl};

/// Refuses while clients use exports of a group, because they would lose their volumes. `or` names
/// the alternative to disconnecting them.
fn refuse_clients(group: &Group, or: &str) -> Answer<()> {
    let used: Vec<(String, usize)> = group
        .exports()
        .values()
        .map(|running| (view::export_id(group, running.record.id), running.clients()))
        .filter(|(_, clients)| *clients > 0)
        .collect();
    let (clients, them) = match used.iter().map(|(_, clients)| clients).sum() {
        0 => return Ok(()),
        1 => ("1 client is".to_owned(), "it"),
        count => (format!("{count} clients are"), "them"),
    };
    let exports: Vec<&str> = used.iter().map(|(id, _)| id.as_str()).collect();
    let name = &group.name;
    Err(ControlError::new(
        ErrorCode::Busy,
        format!(
            "{clients} connected to volumes of the group {name:?}, as {}: disconnect {them}, or {or}",
            exports.join(", ")
        ),
    ))
}

#[async_trait]
impl GroupControl for Engine {
    async fn groups(&self) -> Answer<Vec<api::Group>> {
        let mut groups = Vec::new();
        for group in self.all() {
            groups.push(self.query_group(&group).await?);
        }
        Ok(groups)
    }

    async fn groups_not_started(&self) -> Answer<Vec<GroupNotStarted>> {
        Ok(self.query_not_started())
    }

    async fn group(&self, group: &str) -> Answer<api::Group> {
        self.query_group(&*self.find(group)?).await
    }

    async fn group_create(&self, request: GroupCreate, shape: Shape) -> Answer<Changed<api::Group>> {
        self.opener.remotes.try_all(&[&request.drives[..], &request.spares].concat()).await?;
        let _one = self.changes.lock().await;
        self.check_free(&request.name)?;
        let consent = Consent {
            create_files_bytes: request.create_files_bytes,
            wipe_foreign: request.wipe_foreign,
            dry_run: request.dry_run,
        };
        let texts: Vec<String> = request.drives.iter().chain(&request.spares).cloned().collect();
        let (requested, holds) = self.open_requested(&texts, consent).await?;
        let new = new_group(&request, shape, requested.len(), self.clock.unix_s())?;
        let chosen = settings::updated(&SettingsRecord::default(), &settings_of(&request));
        let opens: Vec<OpenDrive> = requested.iter().map(|requested| requested.open.clone()).collect();
        let superblock = self.plan_new_group(new.clone(), opens.clone()).await?;
        let mut steps = layout_steps(&request, &shape, &superblock);
        steps.extend(lost::overwritten(&requested, &holds));
        steps.push(format!("checksums {}", view::checksums(&superblock).note));
        steps.extend(settings::steps(&SettingsRecord::default(), &chosen));
        if request.dry_run {
            return Ok(Changed::planned(steps).with_warnings(holds));
        }
        self.write_new_group(new, opens).await?;
        let group = self.start_group(requested).await?;
        let unremembered = self.remember();
        if chosen != SettingsRecord::default() {
            self.set_settings(&group, chosen).await?;
        }
        tracing::info!(group = group.name, level = %shape.level, members = shape.members, "created");
        let warnings = [holds, unremembered].concat();
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }

    async fn group_assemble(&self, request: GroupAssemble) -> Answer<Changed<api::Group>> {
        self.opener.remotes.try_all(&request.drives).await?;
        let _one = self.changes.lock().await;
        let (requested, warnings) = self.open_members(&request.drives, Consent::none(request.dry_run)).await?;
        self.assemble_from(requested, warnings, request.name.as_deref(), request.dry_run).await
    }

    async fn group_start(&self, name: &str, request: GroupStart) -> Answer<Changed<api::Group>> {
        self.reach_stopped(name).await;
        let _one = self.changes.lock().await;
        if self.groups_named(name) {
            let message = format!("the group {name:?} is started already");
            return Err(ControlError::new(ErrorCode::WrongState, message));
        }
        let consent = Consent::none(request.dry_run);
        let requested = match self.remembered_group(name) {
            Some(remembered) => self.open_remembered(&remembered, consent).await?,
            None => self.open_found(name, consent).await?,
        };
        self.assemble_from(requested, Vec::new(), None, request.dry_run).await
    }

    async fn group_scan(&self, request: GroupScan) -> Answer<Scanned> {
        if request.drives.is_empty() {
            return Ok(self.scan_all().await);
        }
        Ok(self.scan(request.drives).await)
    }

    async fn group_rename(&self, name: &str, request: Rename) -> Answer<Changed<api::Group>> {
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

    async fn group_stop(&self, name: &str, request: GroupStop) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        offer::refuse_used_devices(group.exports().values())?;
        if !request.force {
            refuse_clients(&group, "say --force")?;
        }
        let steps = vec![format!("end {} exports and stop the group {name:?}; its data stay", group.exports().len())];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let remembered = crate::engine::remembered(&group);
        self.stop_group(&group, DeviceEnd::Goes).await?;
        self.stopped.note(remembered, &self.memory);
        self.remember();
        tracing::info!(group = name, "stopped");
        Ok(Changed::gone(steps))
    }

    async fn group_forget(&self, name: &str, request: GroupForget) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let Some(group) = self.not_started.named(name) else {
            self.find(name)?;
            let message = format!("the group {name:?} is started: `purlin group stop {name}` stops it");
            return Err(ControlError::new(ErrorCode::WrongState, message));
        };
        let steps = vec![format!("no longer try to start the group {name:?}; its drives stay as they are")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        self.not_started.forget(&group.remembered.uuid);
        let warnings = self.remember();
        tracing::info!(group = name, "forgotten: it could not be started");
        Ok(Changed::gone(steps).with_warnings(warnings))
    }

    async fn group_delete(&self, name: &str, dry_run: bool) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        offer::refuse_used_devices(group.exports().values())?;
        refuse_clients(&group, "delete the exports first")?;
        let opens: Vec<GroupDrive> = group.drives().iter().flatten().cloned().collect();
        let steps = lost::destroyed(&group, &group.catalogue().await?);
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        self.stop_group(&group, DeviceEnd::Goes).await?;
        let mut warnings = Vec::new();
        for drive in &opens {
            if let Err(error) = self.erase(drive.open.clone()).await {
                warnings.push(format!("not erased: {error}"));
            }
        }
        let names: Vec<String> = opens.iter().map(|drive| drive.name.clone()).collect();
        drop(opens);
        for memory in names.iter().filter_map(|name| name.strip_prefix("mem:")) {
            forget_memory(memory);
        }
        self.histories.forget(&group.uuid.to_string());
        self.remember();
        tracing::info!(group = name, "deleted");
        Ok(Changed::gone(steps).with_warnings(warnings))
    }

    async fn group_update(&self, name: &str, update: GroupUpdate) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let before = group.catalogue().await?.settings;
        let after = settings::updated(&before, &update);
        let steps = settings::steps(&before, &after);
        let warnings = settings::warnings(&after, &group.status().await?);
        if update.dry_run {
            return Ok(Changed::planned(steps).with_warnings(warnings));
        }
        if !steps.is_empty() {
            self.set_settings(&group, after).await?;
            tracing::info!(group = name, changes = steps.join("; "), "settings changed");
        }
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }

    async fn scrub(&self, name: &str, request: ScrubRequest) -> Answer<Scrub> {
        let group = &*self.find(name)?;
        match request.action {
            ScrubAction::Status => {}
            ScrubAction::Start => self.start_scrub(group, request.repair).await?,
            ScrubAction::Pause => self.pause_scrub(group).await?,
            ScrubAction::Resume => self.resume_scrub(group).await?,
            ScrubAction::Stop => self.stop_scrub(group).await?,
        }
        let shown = self.query_group(group).await?;
        let job =
            shown.jobs.into_iter().rev().find(|job| !matches!(job.kind, api::JobKind::Rebuild | api::JobKind::Replace));
        Ok(Scrub { job, schedule: shown.scrub })
    }
}

impl Engine {
    async fn set_settings(&self, group: &Group, settings: SettingsRecord) -> Answer<()> {
        let chosen = settings.clone();
        group.change_catalogue(|catalogue| catalogue.settings = chosen).await?;
        group.configure(&settings).await
    }
}
