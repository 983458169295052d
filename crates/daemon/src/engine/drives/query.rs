//! The status of the daemon, requests about drives, and what other requests show of groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{
    Changed, Drive, DriveDetails, DriveHealth, DriveWipe, ErrorCode, GroupStatus, ShardStatus, Status, WipedDrive,
};
use array::DriveId;
use async_trait::async_trait;
use drive::Env;
use runtime::ShardEnv;

use crate::engine::drives::{Consent, unassigned};
use crate::engine::errors::stopping;
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::{Group, conversions, lost};
use crate::engine::view::Moment;
use crate::engine::{Engine, drives, view};
use crate::http::{Answer, Control, ControlError, DriveControl, ExportControl, HostControl};

#[async_trait]
impl Control for Engine {
    async fn status(&self) -> Answer<Status> {
        let mut groups = Vec::new();
        let moment = self.moment().await?;
        for group in self.all() {
            let status = group.status().await?;
            let catalogue = group.catalogue().await?;
            let mut seen = view::group(&group, &status, &catalogue, &moment);
            seen.warnings.extend(self.all_warnings(&group, &status));
            group.add_thin(&catalogue, &mut seen).await?;
            let in_sync = |member: &&api::Member| member.state == api::MemberState::InSync;
            groups.push(GroupStatus {
                in_sync_count: seen.members.iter().filter(in_sync).count() as u32,
                name: seen.name,
                level: seen.level,
                health: seen.health,
                member_count: seen.member_count,
                spare_count: seen.spares.len() as u32,
                volume_count: catalogue.volumes.len() as u32,
                losses_left: seen.losses_left,
                capacity_bytes: seen.capacity_bytes,
                allocated_bytes: seen.allocated_bytes,
                used_bytes: seen.used_bytes,
                load: self.sampler.load(&group.name),
                io: seen.io,
                crash_safety: seen.crash_safety,
                warnings: seen.warnings,
                jobs: seen.jobs,
                scrub: seen.scrub,
            });
        }
        let shard = |handle: &runtime::ShardHandle| ShardStatus {
            shard: handle.index() as u32,
            core: Some(handle.core() as u32),
            busy_percent: self.sampler.busy_percent(handle),
        };
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("PURLIN_BUILT_FROM").map(str::to_owned),
            uptime_s: self.started.elapsed().as_secs(),
            pid: std::process::id(),
            resident_bytes: resident_bytes(),
            log_lines_dropped: crate::dropped_lines(),
            buffers: self.listeners.buffers(),
            shards: self.shards.iter().map(shard).collect(),
            groups,
            not_started: self.query_not_started(),
            exports: self.exports().await?,
            hosts: self.hosts().await?,
        })
    }
}

#[async_trait]
impl DriveControl for Engine {
    async fn drives(&self) -> Answer<Vec<Drive>> {
        let mut drives = Vec::new();
        for group in self.all() {
            let status = group.status().await?;
            let open = group.drives().clone();
            for (index, drive) in open.iter().enumerate() {
                if let Some(drive) = drive {
                    drives.push(view::drive(&group, &status, DriveId(index as u16), drive));
                }
            }
        }
        drives.extend(self.all_imports().iter().flat_map(|import| import.drives()));
        drives.extend(self.shared_drives());
        drives.extend(self.unassigned_drives.list(&self.all()).iter().map(view::unassigned));
        Ok(drives)
    }

    async fn drive(&self, drive: &str) -> Answer<DriveDetails> {
        self.query_drive(&drives::name_of(drive)?).await
    }

    async fn drive_healths(&self) -> Answer<BTreeMap<String, DriveHealth>> {
        let mut healths = BTreeMap::new();
        for group in self.all() {
            let said = |drive: &GroupDrive| Some((drive.name.clone(), self.healths.of(drive.open.device_number()?)?));
            healths.extend(group.drives().iter().flatten().filter_map(said));
        }
        Ok(healths)
    }

    async fn drive_wipe(&self, drive: &str, request: DriveWipe) -> Answer<Changed<WipedDrive>> {
        self.opener.remotes.try_all(&[drive.to_owned()]).await?;
        let _one = self.changes.lock().await;
        let requested = drives::open(&self.opener, drive, Consent::none(request.dry_run)).await?;
        let Some(superblock) = drives::superblock_of(&self.shards[0], &requested).await? else {
            let message = format!("{} belongs to no group: there is nothing to erase", requested.name);
            return Err(ControlError::new(ErrorCode::WrongState, message));
        };
        let described = lost::described(&requested.name, &requested.open);
        let steps = vec![format!("erase the group {:?} ({}) from {described}", superblock.name, superblock.array)];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(drive = requested.name, group = superblock.name, uuid = %superblock.array, "an operator wipes a drive");
        self.erase(requested.open.clone()).await?;
        let (group, uuid) = (superblock.name, superblock.array.to_string());
        Ok(Changed::done(steps, WipedDrive { drive: requested.name.clone(), group, uuid }))
    }
}

impl Engine {
    /// The shards' monotonic time, in which jobs are measured.
    async fn shard_now(&self) -> Answer<u64> {
        self.shards[0].call(|| async { ShardEnv::current().now() }).await.map_err(|_| stopping())
    }

    async fn moment(&self) -> Answer<Moment> {
        let (shard_ns, unix_s) = (self.shard_now().await?, self.clock.unix_s());
        Ok(Moment { shard_ns, unix_s, scrubbed: self.scrubbed_now() })
    }

    pub(crate) async fn query_group(&self, group: &Group) -> Answer<api::Group> {
        let (status, catalogue) = (group.status().await?, group.catalogue().await?);
        let mut seen = view::group(group, &status, &catalogue, &self.moment().await?);
        seen.warnings.extend(self.all_warnings(group, &status));
        group.add_thin(&catalogue, &mut seen).await?;
        Ok(seen)
    }

    /// The warnings of a group's drives, and the drives that could help the group.
    fn all_warnings(&self, group: &Group, status: &array::GroupStatus) -> Vec<String> {
        let mut warnings = self.drive_warnings(group, status);
        warnings.extend(self.offers_for(group, status));
        warnings
    }

    /// Offers of unassigned drives that could take the place of a lost member of the group.
    pub(crate) fn offers_for(&self, group: &Group, status: &array::GroupStatus) -> Vec<String> {
        unassigned::offers(group, status, &self.unassigned_drives.list(&self.all()))
    }

    pub(crate) async fn query_volume(&self, group: &Arc<Group>, record: &format::VolumeRecord) -> Answer<api::Volume> {
        let mut shown = self.query_content(group, record).await?;
        if record.conversion.is_some() {
            let look = group.look_at_conversion(record.id).await?;
            let (written, _) = group.coming_thin_bytes(record).await?;
            shown.conversion = conversions::shown(record, look.as_ref(), written);
        }
        Ok(shown)
    }

    async fn query_content(&self, group: &Arc<Group>, record: &format::VolumeRecord) -> Answer<api::Volume> {
        if record.kind == format::VolumeKind::Thin {
            let (mapped, stored) = group.thin_bytes(record).await?;
            return Ok(view::volume(group, record, mapped, Some(stored)));
        }
        let extents = record.extents.clone();
        let used = group.lead(move |array| async move {
            let mut used = 0;
            for extent in extents {
                used += array.used_bytes(extent.start_byte, extent.len_bytes).await;
            }
            used
        });
        Ok(view::volume(group, record, used.await?, None))
    }

    /// The record of a volume and its group.
    pub(crate) async fn find_volume(&self, name: &api::VolumeName) -> Answer<(Arc<Group>, format::VolumeRecord)> {
        let group = self.find(&name.group)?;
        let record = group.catalogue().await?.volumes.into_iter().find(|volume| volume.name == name.volume);
        Ok((group, record.ok_or_else(|| ControlError::volume_not_found(name))?))
    }
}

/// The resident memory of this process in bytes; 0 if the system does not tell.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
