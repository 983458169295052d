//! Requests that change state: [`Control`] for the engine.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use api::{
    Changed, Drive, DriveDetails, DriveHealth, DriveWipe, ErrorCode, Export, ExportCreate, ExportPlace, ExportUpdate,
    Group, GroupAssemble, GroupCreate, GroupForget, GroupNotStarted, GroupScan, GroupStart, GroupStop, GroupUpdate,
    Host, HostKey, HostKeySet, HostTlsKey, HostTlsKeySet, Import, ImportForget, ImportMd, ImportNvme, Imported,
    LimitUpdate, MemberFail, MemberReplace, Referral, Rename, SafetyMode, Scanned, Scrub, ScrubRequest, Share,
    ShareCreate, ShareList, SpareAdd, Status, Upgrade, UpgradeRequest, Volume, VolumeCreate, VolumeName, VolumeUpdate,
    WipedDrive, format_bytes,
};
use array::{Cause, CreateError, NewGroup, create};
use async_trait::async_trait;
use format::{CrashSafety, SettingsRecord, Shape, Superblock};
use runtime::{OpenDrive, ShardEnv, forget_memory};

use crate::engine::drives::{Consent, Taken};
use crate::engine::errors::{new_uuid, stopping};
use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::offer;
use crate::engine::group::{join_error, lost};
use crate::engine::{Engine, drives, settings, view};
use crate::http::{Answer, Control, ControlError};

fn create_error(error: &CreateError) -> ControlError {
    let code = match error {
        CreateError::Layout(_) | CreateError::SpareTooSmall { .. } => ErrorCode::DriveUnfit,
        CreateError::Drive { .. } => ErrorCode::Io,
        CreateError::Invalid(_) => ErrorCode::Invalid,
    };
    ControlError::new(code, error.to_string())
}

/// Refuses while clients use exports of a group, because they would lose their volumes. `or` names
/// the alternative to disconnecting them.
fn refuse_clients(group: &crate::engine::Group, or: &str) -> Answer<()> {
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

/// Refuses to take out a member if its set would lose data without it.
async fn refuse_loss(group: &crate::engine::Group, member: &array::MemberStatus) -> Answer<()> {
    let in_sync = |member: &array::MemberStatus| member.state == format::MemberState::InSync;
    let status = group.status().await?;
    let (shape, index) = (status.superblock.shape, usize::from(member.member.0));
    let set = status.members.chunks(shape.members_per_set()).nth(index / shape.members_per_set()).unwrap_or(&[]);
    let lost = set.iter().filter(|member| !in_sync(member)).count();
    if !in_sync(member) || lost < shape.survives() {
        return Ok(());
    }
    let message = format!("the group {:?} cannot do without slot {index}: data would be lost", group.name);
    Err(ControlError::new(ErrorCode::WouldLoseData, message))
}

/// The content of a new group's superblock that the request decides, with new UUIDs for the group
/// and its drives.
fn new_group(request: &GroupCreate, shape: Shape, drive_count: usize, created_unix_s: u64) -> Answer<NewGroup> {
    let mut identities = Vec::new();
    for _ in 0..drive_count {
        identities.push(new_uuid()?);
    }
    Ok(NewGroup {
        array: new_uuid()?,
        name: request.name.clone(),
        shape,
        crash_safety: match request.crash_safety {
            // Unknown modes were refused with the request.
            None | Some(SafetyMode::On | SafetyMode::Unknown) => CrashSafety::On,
            Some(SafetyMode::Off) => CrashSafety::Off,
            Some(SafetyMode::Strict) => CrashSafety::Strict,
        },
        // A group without a log has no checksums.
        checksums: request.checksums.unwrap_or(true),
        drives: identities,
        created_unix_s,
    })
}

/// The settings of a new group, as changes of the defaults.
fn settings_of(request: &GroupCreate) -> GroupUpdate {
    GroupUpdate {
        client_p99_us: request.client_p99_us,
        retire_slow: request.retire_slow,
        scrub_every_s: request.scrub_every_s,
        dry_run: request.dry_run,
    }
}

/// The steps of a request that say what a new group is made of, and how much it holds.
fn layout_steps(request: &GroupCreate, shape: &Shape, superblock: &Superblock) -> Vec<String> {
    let tolerated = match shape.survives() {
        0 => "no member".to_owned(),
        1 => "any member".to_owned(),
        count => format!("any {count} members"),
    };
    let usable = format_bytes(superblock.layout.capacity_bytes(shape));
    vec![
        format!("write the group {:?} to {} members and {} spares", request.name, shape.members, request.spares.len()),
        format!("{} of {usable} usable, {tolerated} may be lost", shape.level),
    ]
}

impl Engine {
    /// Opens and inspects drives for a request. Returns the drives, and descriptions of the data
    /// that would be lost on them.
    async fn take(&self, texts: &[String], consent: Consent) -> Answer<(Vec<Taken>, Vec<String>)> {
        let (mut taken, mut lost) = (Vec::new(), Vec::new());
        for text in texts {
            self.refuse_own_device(text)?;
            self.refuse_own_drive(text)?;
            let drive = drives::open(&self.opener, text, consent).await?;
            self.refuse_imported(&drive)?;
            lost.extend(drives::inspect(&self.shards[0], &drive, consent).await?);
            taken.push(drive);
        }
        Ok((taken, lost))
    }

    /// Refuses a drive that a running group has open under the same name. Under another name,
    /// opening it fails: the system reports that it is in use.
    fn refuse_own_drive(&self, text: &str) -> Answer<()> {
        let name = drives::name_of(text)?;
        match self.all().iter().find(|group| group.drive_id(&name).is_some()) {
            Some(group) => Err(ControlError::new(
                ErrorCode::DriveInUse,
                format!("{name} is part of the group {:?} already", group.name),
            )),
            None => Ok(()),
        }
    }

    /// Opens a drive that can join a running group. Also returns what is lost on it.
    pub(crate) async fn take_one(
        &self,
        group: &crate::engine::Group,
        text: &str,
        consent: Consent,
    ) -> Answer<(Taken, Vec<String>)> {
        group.release_if_unused(&drives::name_of(text)?).await?;
        let (mut taken, holds) = self.take(&[text.to_owned()], consent).await?;
        let steps = lost::overwritten(&taken, &holds);
        Ok((taken.pop().expect("one drive was asked for"), steps))
    }

    /// Computes the superblock of a group that is to be created. Writes nothing.
    async fn plan_new_group(&self, new: NewGroup, opens: Vec<OpenDrive>) -> Answer<Superblock> {
        let planning = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
            array::plan(&new, &drives)
        });
        planning.await.map_err(|_| stopping())?.map_err(|error| create_error(&error))
    }

    async fn write_new_group(&self, new: NewGroup, opens: Vec<OpenDrive>) -> Answer<()> {
        let writing = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
            create::<ShardEnv>(&new, &drives).await.map(|_| ())
        });
        writing.await.map_err(|_| stopping())?.map_err(|error| create_error(&error))
    }

    async fn set_settings(&self, group: &crate::engine::Group, settings: SettingsRecord) -> Answer<()> {
        let chosen = settings.clone();
        group.change_catalogue(|catalogue| catalogue.settings = chosen).await?;
        group.configure(&settings).await
    }

    pub(crate) async fn member(&self, group: &crate::engine::Group, slot: u32) -> Answer<array::MemberStatus> {
        let members = group.status().await?.members;
        let count = members.len() as u32;
        members.into_iter().nth(slot as usize).ok_or_else(|| ControlError::member_not_found(&group.name, slot, count))
    }
}

#[async_trait]
impl Control for Engine {
    async fn status(&self) -> Answer<Status> {
        self.query_status().await
    }

    async fn groups(&self) -> Answer<Vec<Group>> {
        self.query_groups().await
    }

    async fn groups_not_started(&self) -> Answer<Vec<GroupNotStarted>> {
        Ok(self.query_not_started())
    }

    async fn group_forget(&self, name: &str, request: GroupForget) -> Answer<Changed<Group>> {
        self.forget_group(name, request.dry_run).await
    }

    async fn group(&self, group: &str) -> Answer<Group> {
        self.query_group(&*self.find(group)?).await
    }

    async fn group_create(&self, request: GroupCreate, shape: Shape) -> Answer<Changed<Group>> {
        self.opener.remotes.try_all(&[&request.drives[..], &request.spares].concat()).await?;
        let _one = self.changes.lock().await;
        self.check_free(&request.name)?;
        let consent = Consent {
            create_files_bytes: request.create_files_bytes,
            wipe_foreign: request.wipe_foreign,
            dry_run: request.dry_run,
        };
        let texts: Vec<String> = request.drives.iter().chain(&request.spares).cloned().collect();
        let (taken, holds) = self.take(&texts, consent).await?;
        let new = new_group(&request, shape, taken.len(), self.clock.unix_s())?;
        let chosen = settings::updated(&SettingsRecord::default(), &settings_of(&request));
        let opens: Vec<OpenDrive> = taken.iter().map(|taken| taken.open.clone()).collect();
        let superblock = self.plan_new_group(new.clone(), opens.clone()).await?;
        let mut steps = layout_steps(&request, &shape, &superblock);
        steps.extend(lost::overwritten(&taken, &holds));
        steps.push(format!("checksums {}", view::checksums(&superblock).note));
        steps.extend(settings::steps(&SettingsRecord::default(), &chosen));
        if request.dry_run {
            return Ok(Changed::planned(steps).with_warnings(holds));
        }
        self.write_new_group(new, opens).await?;
        let group = self.start_group(taken).await?;
        let unremembered = self.remember();
        if chosen != SettingsRecord::default() {
            self.set_settings(&group, chosen).await?;
        }
        tracing::info!(group = group.name, level = %shape.level, members = shape.members, "created");
        let warnings = [holds, unremembered].concat();
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }

    async fn group_assemble(&self, request: GroupAssemble) -> Answer<Changed<Group>> {
        self.assemble_group(request).await
    }

    async fn group_start(&self, name: &str, request: GroupStart) -> Answer<Changed<Group>> {
        self.start_group_named(name, request).await
    }

    async fn group_scan(&self, request: GroupScan) -> Answer<Scanned> {
        self.scan_drives(request).await
    }

    async fn group_rename(&self, name: &str, request: Rename) -> Answer<Changed<Group>> {
        self.rename_group(name, request).await
    }

    async fn volume_rename(&self, name: &VolumeName, request: Rename) -> Answer<Changed<Volume>> {
        self.rename_volume(name, request).await
    }

    async fn group_stop(&self, name: &str, request: GroupStop) -> Answer<Changed<Group>> {
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

    async fn group_delete(&self, name: &str, dry_run: bool) -> Answer<Changed<Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        offer::refuse_used_devices(group.exports().values())?;
        refuse_clients(&group, "delete the exports first")?;
        let opens: Vec<crate::engine::group::group_drive::GroupDrive> =
            group.drives().iter().flatten().cloned().collect();
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

    async fn group_update(&self, name: &str, update: GroupUpdate) -> Answer<Changed<Group>> {
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
        self.change_scrub(&*self.find(name)?, request).await
    }

    async fn imports(&self) -> Answer<Vec<Import>> {
        Ok(self.query_imports().await)
    }

    async fn import(&self, name: &str) -> Answer<Import> {
        self.query_import(name).await
    }

    async fn import_md(&self, request: ImportMd) -> Answer<Imported> {
        self.import_array(request).await
    }

    async fn import_nvme(&self, request: ImportNvme) -> Answer<Changed<Import>> {
        self.import_namespace(request).await
    }

    async fn import_forget(&self, name: &str, request: ImportForget) -> Answer<Changed<Import>> {
        self.forget_import(name, request).await
    }

    async fn drives(&self) -> Answer<Vec<Drive>> {
        self.query_drives().await
    }

    async fn drive(&self, drive: &str) -> Answer<DriveDetails> {
        self.query_drive(&drives::name_of(drive)?).await
    }

    async fn drive_healths(&self) -> Answer<BTreeMap<String, DriveHealth>> {
        Ok(self.query_healths())
    }

    async fn member_fail(&self, name: &str, slot: u32, request: MemberFail) -> Answer<Changed<Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let member = self.member(&group, slot).await?;
        refuse_loss(&group, &member).await?;
        let drive = member.drive.and_then(|id| group.drive(id)).map_or("no drive".to_owned(), |drive| drive.name);
        let steps = vec![format!("take member {slot} ({drive}) out of the group {name:?}")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, slot, drive, "an operator takes a member out");
        let (index, drive) = (member.member, member.drive);
        let fail = move |array: array::Array<runtime::ShardEnv>| async move {
            match drive {
                Some(drive) => array.fail_member_on(index, drive, Cause::Operator).await,
                None => array.fail_member(index).await,
            }
        };
        group.lead(fail).await?.map_err(|error| join_error(name, &error))?;
        Ok(Changed::done(steps, self.query_group(&group).await?))
    }

    async fn member_replace(&self, name: &str, slot: u32, request: MemberReplace) -> Answer<Changed<Group>> {
        self.replace_member(name, slot, request).await
    }

    async fn drive_wipe(&self, drive: &str, request: DriveWipe) -> Answer<Changed<WipedDrive>> {
        self.wipe_drive(drive, request).await
    }

    async fn spare_add(&self, name: &str, request: SpareAdd) -> Answer<Changed<Group>> {
        self.opener.remotes.try_all(std::slice::from_ref(&request.drive)).await?;
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let consent = Consent {
            create_files_bytes: request.create_files_bytes,
            wipe_foreign: request.wipe_foreign,
            dry_run: request.dry_run,
        };
        let (taken, mut steps) = self.take_one(&group, &request.drive, consent).await?;
        steps.push(format!("add {} to the group {name:?} as a spare", taken.name));
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, drive = taken.name, "an operator adds a spare");
        let (id, identity) = (group.install_drive(taken).await?, new_uuid()?);
        let added = group.lead(move |array| async move { array.add_spare(id, identity).await }).await?;
        if let Err(error) = added {
            group.release_drive(id).await?;
            return Err(join_error(name, &error));
        }
        group.log_torn();
        self.remember();
        Ok(Changed::done(steps, self.query_group(&group).await?))
    }

    async fn spare_remove(&self, name: &str, drive: &str, dry_run: bool) -> Answer<Changed<Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let drive = drives::name_of(drive)?;
        let no_spare = |code| ControlError::new(code, format!("{drive} is not a spare of the group {name:?}"));
        let id = group.drive_id(&drive).ok_or_else(|| no_spare(ErrorCode::DriveNotFound))?;
        if !group.status().await?.spares.contains(&id) {
            return Err(no_spare(ErrorCode::WrongState));
        }
        let steps = vec![format!("take the spare {drive} from the group {name:?} and erase it")];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, drive, "an operator removes a spare");
        let removed = group.lead(move |array| async move { array.remove_spare(id).await }).await?;
        removed.map_err(|error| join_error(name, &error))?;
        let open = group.drive(id).map(|drive| drive.open);
        group.release_drive(id).await?;
        let mut warnings = Vec::new();
        if let Some(open) = open
            && let Err(error) = self.erase(open).await
        {
            warnings.push(format!("not erased: {error}"));
        }
        self.remember();
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }

    async fn volumes(&self) -> Answer<Vec<Volume>> {
        self.query_volumes().await
    }

    async fn volume(&self, name: &VolumeName) -> Answer<Volume> {
        if let Some(import) = self.import_of(name) {
            return import?.volume().ok_or_else(|| ControlError::volume_not_found(name));
        }
        let (group, record) = self.find_volume(name).await?;
        self.query_volume(&group, &record).await
    }

    async fn volume_create(&self, request: VolumeCreate) -> Answer<Changed<Volume>> {
        self.create_volume(request).await
    }

    async fn volume_resize(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>> {
        self.resize_volume(name, request).await
    }

    async fn volume_limit(&self, name: &VolumeName, request: LimitUpdate) -> Answer<Changed<Volume>> {
        self.limit_volume(name, request).await
    }

    async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>> {
        self.delete_volume(name, dry_run).await
    }

    async fn exports(&self) -> Answer<Vec<Export>> {
        self.query_exports().await
    }

    async fn export_create(
        &self,
        request: ExportCreate,
        volume: VolumeName,
        place: ExportPlace,
    ) -> Answer<Changed<Export>> {
        self.create_export(request, volume, place).await
    }

    async fn export_delete(&self, id: &str) -> Answer<Changed<Export>> {
        self.delete_export(id).await
    }

    async fn shares(&self) -> Answer<Vec<Share>> {
        Ok(self.query_shares())
    }

    async fn share_create(&self, request: ShareCreate) -> Answer<Changed<ShareList>> {
        self.share_drives(request).await
    }

    async fn share_delete(&self, id: &str) -> Answer<Changed<Share>> {
        self.unshare_drive(id).await
    }

    async fn share_host_allow(&self, id: &str, host: &str) -> Answer<Changed<Share>> {
        self.set_share_host(id, host, true).await
    }

    async fn share_host_deny(&self, id: &str, host: &str) -> Answer<Changed<Share>> {
        self.set_share_host(id, host, false).await
    }

    async fn export_set(&self, id: &str, request: ExportUpdate) -> Answer<Changed<Export>> {
        self.set_access(id, request.validate()?, request.dry_run).await
    }

    async fn hosts(&self) -> Answer<Vec<Host>> {
        self.query_hosts().await
    }

    async fn host_allow(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        self.set_host(id, host, true).await
    }

    async fn host_deny(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        self.set_host(id, host, false).await
    }

    async fn host_limit(&self, id: &str, host: &str, request: LimitUpdate) -> Answer<Changed<Export>> {
        self.limit_host(id, host, request).await
    }

    async fn referrals(&self) -> Answer<Vec<Referral>> {
        Ok(self.query_referrals())
    }

    async fn referral_add(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        self.add_referral(address).await
    }

    async fn referral_remove(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        self.remove_referral(address).await
    }

    async fn host_key_set(&self, group: Option<&str>, host: &str, request: HostKeySet) -> Answer<Changed<HostKey>> {
        self.set_host_key(group, host, request).await
    }

    async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>> {
        self.remove_host_key(group, host).await
    }

    async fn host_tls_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostTlsKeySet,
    ) -> Answer<Changed<HostTlsKey>> {
        self.set_host_tls_key(group, host, request).await
    }

    async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>> {
        self.remove_host_tls_key(group, host).await
    }

    async fn upgrade(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>> {
        self.plan_upgrade(request).await
    }

    async fn upgrade_state(&self) -> Answer<Upgrade> {
        Ok(self.handover.upgrade())
    }
}
